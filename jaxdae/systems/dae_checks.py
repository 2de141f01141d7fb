"""What must hold of differential-algebraic equations: shapes, squareness, ranks, the index."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.linalg.rank import numerical_rank, NumericalRank
from jaxdae.systems.calls import (
    call_with_shapes,
    check_instance,
    check_parameters,
    check_real,
    describe_shape,
    unwrapped,
)
from jaxdae.systems.class_checks import check_class, check_resolved
from jaxdae.systems.dae import DAE, declares, is_implicit, Variables
from jaxdae.systems.dae_equations import beside_rates, DAEEquations, dtype_of, lengths
from jaxdae.systems.dae_names import entry_names, is_below, listed, variable_names
from jaxdae.systems.precision import as_floats


def as_variables(dae: DAE, y, z) -> Variables:
    """Variables as arrays of one floating-point type; rates of `None` are zero."""
    check_instance("dae", dae, DAE, "an instance of your jaxdae.DAE")
    second = "y_dot" if is_implicit(dae) else "z"
    leaves, structure = jax.tree.flatten((y, z))
    for path, x in jax.tree_util.tree_leaves_with_path((y, z)):
        name = ("y", second)[path[0].idx] + jax.tree_util.keystr(path[1:])
        number = eqx.is_array_like(x) and not isinstance(x, bool | np.bool_)
        if not number or getattr(x, "dtype", np.dtype(float)).kind == "b":
            raise TypeError(f"{name} is {x!r}; variables are numbers or arrays of them.")
    y, z = jax.tree.unflatten(structure, as_floats(*leaves))
    if not jax.tree.leaves(y):
        raise ValueError("y holds no number; give the differential variables as a pytree.")
    if is_implicit(dae):
        z = jax.tree.map(jnp.zeros_like, y) if z is None else z
        if jax.tree.structure(z) != jax.tree.structure(y) or _shapes(z) != _shapes(y):
            raise ValueError(
                f"y_dot has other entries than y: {_structure('y_dot', z)} beside "
                f"{_structure('y', y)}; it has one rate for each variable, in the same structure."
            )
    return Variables(y, z)


def check_shapes(equations: DAEEquations, t, variables: Variables) -> None:
    """Check what every function returns, and that equations are as many as unknowns."""
    dae, name = equations.dae, type(equations.dae).__name__
    check_class(type(dae), DAE)
    check_resolved(dae)
    _check_form(dae, name)
    _check_units(dae, name, variables)
    y, z = variables
    u = _example_input(equations, t, variables)
    if is_implicit(dae):
        out = _returned(dae, "residual", (t, y, z, u), ("t", "y", "y_dot", "u"))
        _check_square(name, "residual", out, "variables", entry_names("y", y))
        return
    out = _returned(dae, "rate", (t, y, z, u), ("t", "y", "z", "u"))
    if jax.tree.structure(out) != jax.tree.structure(y) or _shapes(out) != _shapes(y):
        raise ValueError(
            f"{name}.rate returned {_structure('rate', out)}, and y is {_structure('y', y)}; it "
            "must return one rate for each variable, in the same structure."
        )
    n = ravel_pytree(y)[0].size
    if declares(dae, "mass"):
        mass = _returned(dae, "mass", (t, y), ("t", "y"))
        if mass is not None and getattr(mass, "shape", None) != (n, n):
            raise ValueError(
                f"{name}.mass returned {describe_shape(mass)}; it must return None for the "
                f"identity, or shape {(n, n)}, a row for each of {listed(entry_names('y', y))}."
            )
    out = _returned(dae, "constraints", (t, y, z, u), ("t", "y", "z", "u"))
    _check_square(name, "constraints", out, "algebraic variables", entry_names("z", z))


def index_of(equations: DAEEquations, t, variables: Variables) -> int:
    """The index, found by ranks where all numbers are known, else by structure alone.

    Ranks are those of matrices with rows and columns scaled, and a singular value counts as zero
    below the 3/4 power of the machine epsilon, relative to the largest.

    A `ValueError` names equations and variables where the index is higher than 2, the mass matrix
    is singular, or something is not finite.
    """
    index = equations.index(t, variables)
    if not are_known(equations, t, variables):
        return index
    with jax.core.eval_context():
        matrices = _matrices(equations, index, jnp.asarray(t, dtype_of(variables)), variables)
    known = {key: np.asarray(x, np.float64) for key, x in matrices.items()}
    name, when = type(equations.dae).__name__, f"at t = {float(t):.6g}"
    for key, x in known.items():
        if not np.isfinite(x).all():
            raise ValueError(
                f"{name}: {_MEANING[key]} is not finite {when}; start elsewhere, or guard what "
                "divides by zero or takes a root of a negative number."
            )
    tolerance = float(jnp.finfo(dtype_of(variables)).eps) ** 0.75
    judge = _judge_implicit if equations.implicit else _judge_semi_explicit
    judge(equations, variables, index, known, f"{name} {when}", tolerance)
    return index


def is_of_index(equations: DAEEquations, index: int, t, variables: Variables):
    """Whether ranks are those of an index, as `index_of` has them, of numbers that are traced.

    Without derivatives.
    """
    equations, t, variables = jax.tree.map(
        lambda x: jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x,
        (equations, t, variables),
    )
    known = _matrices(equations, index, t, variables)
    tolerance = float(jnp.finfo(dtype_of(variables)).eps) ** 0.75
    if not equations.implicit:
        # Without constraints or a mass matrix there is nothing that could be singular.
        regular = [_is_regular(x, tolerance) for x in known.values()]
        return jnp.all(jnp.stack(regular)) if regular else jnp.array(True)
    by_rates, by_y = known["by_rates"], known["by_y"]
    rest, rows = beside_rates(by_rates)
    parts = by_rates / rows, rest @ (by_y / rows)
    units = [jnp.maximum(jnp.max(jnp.abs(x)), jnp.finfo(x.dtype).tiny) for x in parts]
    return _is_regular(parts[0] / units[0] + parts[1] / units[1], tolerance)


def _is_regular(matrix, tolerance: float):
    """Whether a matrix is regular, with columns scaled to unit length, then rows."""
    scaled = matrix / lengths(matrix, 0)
    scaled = scaled / lengths(scaled)
    finite = jnp.all(jnp.isfinite(scaled))
    values = jnp.linalg.svd(jnp.where(finite, scaled, 0.0), compute_uv=False)
    return finite & (jnp.min(values, initial=jnp.inf) > tolerance * jnp.max(values, initial=0.0))


_MEANING = {
    "mass": "the mass matrix",
    "by_z": "the derivative of the constraints by z",
    "through_z": "the derivative of d(constraints)/dt by z",
    "by_rates": "the derivative of the residual by y_dot",
    "by_y": "the derivative of the residual by y",
}


@jit
def _matrices(equations: DAEEquations, index: int, t, variables: Variables) -> dict[str, Any]:
    y, of_y = ravel_pytree(variables.y)
    z, of_z = ravel_pytree(variables.z)
    with_y = lambda y: variables._replace(y=of_y(y))  # noqa: E731
    with_z = lambda z: variables._replace(z=of_z(z))  # noqa: E731
    if equations.implicit:
        return {
            "by_rates": jax.jacfwd(lambda z: equations.residual(t, with_z(z)))(z),
            "by_y": jax.jacfwd(lambda y: equations.residual(t, with_y(y)))(y),
        }
    mass = equations.mass(t, variables)
    found = {} if mass is None else {"mass": mass}
    if index == 1:
        found["by_z"] = jax.jacfwd(lambda z: equations.constraints(t, with_z(z)))(z)
    if index == 2:
        along = lambda z: equations.rate_of_constraints(t, with_z(z))  # noqa: E731
        found["through_z"] = jax.jacfwd(along)(z)
    return found


def _judge_semi_explicit(equations, variables, index, known, where: str, tolerance: float) -> None:
    y_names, z_names = variable_names(variables, implicit=False)
    if "mass" in known:
        rank = _rank(known["mass"], tolerance)
        if rank.rank < len(y_names):
            raise ValueError(
                f"{where}: the mass matrix is singular, of rank {rank.rank} for "
                f"{len(y_names)} variables. Declare the equations by residual(t, y, y_dot, u), "
                "which may have a singular matrix, or the variables without a rate as z."
            )
    key = {1: "by_z", 2: "through_z"}.get(index)
    if key is None:
        return
    rank = _rank(known[key], tolerance)
    if rank.rank == len(z_names):
        return
    which = _dependent(rank, equation_names(equations, variables))
    if index == 1:
        remedy = (
            "Constraints that do not depend on z at all are of index 2, which is solved; a mixture "
            "is not. Differentiate those of higher index by time, or take variables from z that "
            "nothing determines."
        )
        what, higher = "the constraints do not determine z", "higher than 1"
    else:
        remedy = (
            "Put the time derivative of those constraints in their place, until z enters it, and "
            "start where the original ones hold; or declare a mechanism as jaxdae.System."
        )
        what, higher = (
            "the derivative of the constraints by time does not determine z",
            ("higher than 2"),
        )
    raise ValueError(
        f"{where}: {what} ({listed(z_names)}): of {len(z_names)} equations {rank.rank} are "
        f"independent there, and {which}. The index is {higher}. {remedy}"
    )


def _judge_implicit(equations, variables, index, known, where: str, tolerance: float) -> None:
    del index
    by_rates, by_y, n = known["by_rates"], known["by_y"], len(known["by_y"])
    rank, regular = implicit_ranks(by_rates, by_y, tolerance)
    if regular.rank == n:
        return
    names = equation_names(equations, variables)
    raise ValueError(
        f"{where}: the index of the residual is higher than 1: of {n} equations {rank} determine "
        f"rates, and the other {n - rank}, which are algebraic, leave {n - regular.rank} of the "
        f"variables {listed(entry_names('y', variables.y))} open: {_dependent(regular, names)}. "
        "Differentiate algebraic equations by time, or declare them as constraints beside a rate, "
        "which may be of index 2."
    )


def implicit_ranks(by_rates: np.ndarray, by_y: np.ndarray, tolerance: float):
    """The rank of `E = dR/dy'`, and that of `E + P dR/dy`, with `P` onto what `E` does not reach.

    The latter is regular where the index is 1 at most. Rows and columns are scaled.
    """
    lengths = np.linalg.norm(by_rates, axis=0, keepdims=True)
    scaled = by_rates / np.where(lengths > 0, lengths, 1.0)
    rows = np.linalg.norm(scaled, axis=1, keepdims=True)
    rows = np.where(rows > 0, rows, 1.0)
    left, values, _ = np.linalg.svd(scaled / rows)
    rank = int((values > tolerance * values.max(initial=0.0)).sum())
    rest = left[:, rank:]
    parts = by_rates / rows, rest @ (rest.T @ (by_y / rows))
    units = [max(np.abs(x).max(initial=0.0), np.finfo(float).tiny) for x in parts]
    matrix = parts[0] / units[0] + parts[1] / units[1]
    return rank, _rank(matrix, tolerance)


def _rank(matrix: np.ndarray, tolerance: float) -> NumericalRank:
    """The rank with columns scaled to unit length, then rows."""
    lengths = np.linalg.norm(matrix, axis=0, keepdims=True)
    return numerical_rank(matrix / np.where(lengths > 0, lengths, 1.0), tolerance)


def _dependent(rank: NumericalRank, names: list[str]) -> str:
    """Equations that depend on each other, in words."""
    some = rank.dependent_sets[0] if rank.dependent_sets else ()
    if len(some) == 1:
        return f"{names[some[0]]} says nothing of them"
    return f"{listed([names[i] for i in some])} depend on each other"


def equation_names(equations: DAEEquations, variables: Variables) -> list[str]:
    """Names of constraints or residuals, from the keys of what the declaration returns."""
    name = "residual" if equations.implicit else "constraints"

    def shapes(t, variables):
        u = equations.control(t, variables)
        return getattr(equations.dae, name)(t, variables.y, variables.z, u)

    t = jnp.zeros((), dtype_of(variables))
    return entry_names(name, eqx.filter_eval_shape(shapes, t, variables))


def _check_form(dae: DAE, name: str) -> None:
    implicit, explicit = declares(dae, "residual"), declares(dae, "rate")
    if implicit == explicit:
        said = "both residual and rate" if implicit else "neither rate nor residual"
        raise ValueError(
            f"{name} declares {said}: give rate (with constraints and mass, where there are any), "
            "or residual alone."
        )
    beside = [x for x in ("constraints", "mass") if implicit and declares(dae, x)]
    if beside:
        raise ValueError(
            f"{name} declares {beside[0]} beside residual, which would be ignored: put it into the "
            "residual, or declare rate in its place."
        )


def _check_units(dae: DAE, name: str, variables: Variables) -> None:
    units = dae.units()
    if not (isinstance(units, Mapping) and all(isinstance(x, str) for x in units.values())):
        raise ValueError(f"{name}.units returned {units!r}; it must return texts by names.")
    known = entry_names("y", variables.y)
    known += [] if is_implicit(dae) else entry_names("z", variables.z)
    for one in units:
        if not any(is_below(x, one) for x in known):
            raise ValueError(
                f"{name}.units: nothing is called {one!r}; there are {listed(known, 20)}."
            )


def _check_square(name: str, function: str, out, what: str, unknowns: list[str]) -> None:
    found = entry_names(function, out)
    if len(found) != len(unknowns):
        raise ValueError(
            f"{name} is not square: {function} returned {len(found)} equations "
            f"({listed(found)}) for {len(unknowns)} {what} ({listed(unknowns)}). Give one equation "
            "for each of them."
        )


def _example_input(equations: DAEEquations, t, variables: Variables) -> Any:
    if equations.controller is None:
        return None
    check_parameters("the controller", equations.controller, ("t", "y", "z"))
    args = (t, variables.y, None if equations.implicit else variables.z)
    u = call_with_shapes("the controller", equations.controller, args, ("t", "y", "z"))
    if u is None:
        raise ValueError("the controller returned nothing; it must return the control input.")
    return u


def _returned(dae: DAE, function: str, args: tuple, names: tuple[str, ...]) -> Any:
    name = f"{type(dae).__name__}.{function}"
    check_parameters(name, unwrapped(getattr(type(dae), function)), ("self", *names))
    out = call_with_shapes(name, getattr(dae, function), args, names)
    for path, x in jax.tree_util.tree_leaves_with_path(out):
        if not (hasattr(x, "shape") or isinstance(x, int | float)):
            where = jax.tree_util.keystr(path)
            raise ValueError(f"{name} returned {x!r}{where and ' at '}{where}, which is no number.")
        check_real(name + jax.tree_util.keystr(path), x, differentiated=False)
    return out


def _shapes(tree) -> list[tuple[int, ...]]:
    return [np.shape(x) if not hasattr(x, "shape") else x.shape for x in jax.tree.leaves(tree)]


def _structure(name: str, tree) -> str:
    """The numbers of a pytree by name, or that there are none."""
    return listed(entry_names(name, tree)) if tree is not None else "None"
