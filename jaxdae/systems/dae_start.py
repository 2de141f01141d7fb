"""Consistent starts of differential-algebraic equations: what is held, and what moves."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.linalg.newton import root
from jaxdae.systems.checks import check_tolerance
from jaxdae.systems.consistent import ConsistencyError
from jaxdae.systems.dae import DAE, Variables
from jaxdae.systems.dae_checks import (
    as_variables,
    check_shapes,
    equation_names,
    index_of,
)
from jaxdae.systems.dae_equations import beside_rates, DAEEquations, dtype_of, lengths
from jaxdae.systems.dae_names import is_below, listed, variable_names
from jaxdae.systems.precision import in_dtype


def consistent_start(
    dae: DAE,
    y,
    z=None,
    *,
    t=0.0,
    controller: Callable | None = None,
    hold: str | Sequence[str] | None = None,
    tolerance: float | None = None,
) -> Variables:
    r"""Values that satisfy differential-algebraic equations, next to given ones.

    What moves depends on the index; `G` is the derivative of the constraints at the given values,
    of what is not held.

        index 1:   y is held, and z solves 0 = constraints(t, y, z, u).
                   With `hold` all else moves along the gradients: (y, z) + G^T mu, which is the
                   least change to first order.
        index 2:   y + G^T mu solves 0 = constraints(t, y, u), then z solves the hidden
                   constraint 0 = d(constraints)/dt along y' = M^-1 rate(t, y, z, u).
        residual:  y moves likewise onto the algebraic equations P residual = 0, with P onto what
                   the matrix dresidual/dy_dot does not reach, and only as far as they ask for;
                   rates solve 0 = residual and 0 = P d(residual)/dt, which determine them.

    Values given for `z` (or rates, zero by default) are where Newton's method begins; of several
    solutions it finds one next to them. Derivatives are those of the equations, by the implicit
    function theorem, in both modes.

    Args:
        dae: the declaration.
        y: differential variables; of a `residual` all variables.
        z: algebraic variables, `None` where there are none; of a `residual` the rates `dy/dt`.
        t: time [s].
        controller: `u = controller(t, y, z)`, as `solve` is given it.
        hold: names of what does not move, such as `"y"`, `"y['voltage']"` or `["y[0]", "z[1]"]`; a
            name holds all entries below it. By default `"y"` at index 1, else nothing; `()` for
            nothing.
        tolerance: largest distance allowed afterwards, to first order in the variables, relative
            to `1 + max |variables|`; by default the 2/3 power of the machine epsilon.

    Returns:
        `Variables(y, z)`, which unpacks: `y, z = consistent_start(...)`.

    Raises:
        ConsistencyError: naming the equation that remains violated, by how much, when, and what was
            held. Under `jit` and `vmap` the values are NaN instead.
        ValueError: for what `solve` refuses: equations that are not square, or of a higher index;
            and for names in `hold` that there are not.
        TypeError: for variables that are no numbers.
    """
    given = as_variables(dae, y, z)
    dtype = dtype_of(given)
    equations = DAEEquations(*in_dtype((dae, controller), dtype))
    t = jnp.asarray(t, dtype)
    check_tolerance("tolerance", tolerance)
    check_shapes(equations, t, given)
    index = equations.index(t, given)
    free = _free(given, hold, index, equations.implicit)
    found = _moved(equations, index, t, given, free)
    allowed = float(jnp.finfo(dtype).eps) ** (2 / 3) if tolerance is None else tolerance
    distances = violation(equations, index, t, found).distance
    good = jnp.all(distances <= allowed)
    if not are_known(good):
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), found)
    index_of(equations, t, found if good else given)
    if not good:
        raise ConsistencyError(_unmet(equations, index, t, given, found, hold, allowed))
    return found


class Movable(NamedTuple):
    """What may move, of each variable; `None` for the default of the index.

    Args:
        y: shape `(n,)`.
        z: shape `(m,)`.
    """

    y: Any
    z: Any


def _free(given: Variables, hold, index: int, implicit: bool) -> Movable | None:
    if hold is None:
        return None
    hold = (hold,) if isinstance(hold, str) else tuple(hold)
    names = variable_names(given, implicit)
    second = "y_dot" if implicit else "z"
    known = [*names[0], *names[1]]
    for name in hold:
        if not any(is_below(x, name) for x in known):
            raise ValueError(f"hold: nothing is called {name!r}; there are y, {second}, "
                             f"{listed(known, 20)}.")  # fmt: skip
    free = Movable(*(np.array([not any(is_below(x, h) for h in hold) for x in part], bool)
                  for part in names))  # fmt: skip
    if (implicit or index == 2) and not free.z.all():
        held = [x for x, moves in zip(names[1], free.z, strict=True) if not moves]
        why = "rates follow from the residual" if implicit else (
            "at index 2 z follows from the derivative of the constraints by time"
        )  # fmt: skip
        raise ValueError(f"hold: {listed(held)} cannot be held, as {why}; hold entries of y.")
    if index == 1 and not implicit and not free.y.any() and free.z.all():
        return None
    return free


@jit
def _moved(equations: DAEEquations, index: int, t, given: Variables, free) -> Variables:
    return consistent(equations, index, t, given, free)


def consistent(
    equations: DAEEquations, index: int, t, given: Variables, free: Movable | None = None
) -> Variables:
    """Consistent values next to given ones, as `consistent_start` has them; what fails is not said.

    Args:
        equations: of a declaration and a controller.
        index: of them.
        t: time [s].
        given: where to begin.
        free: what may move.
    """
    y, of_y = ravel_pytree(given.y)
    z, of_z = ravel_pytree(given.z)
    if equations.implicit:
        moves = jnp.ones(y.size, bool) if free is None else jnp.asarray(free.y)
        y, z = _implicit(equations, t, (y, of_y), (z, of_z), moves)
        return Variables(of_y(y), of_z(z))
    if index == 0:
        return given

    def constraints(y, z):
        return equations.constraints(t, Variables(of_y(y), of_z(z)))

    if index == 1 and free is None:
        return given._replace(z=of_z(root(lambda z: constraints(y, z), z)))
    if index == 1:
        assert free is not None
        x, n = jnp.concatenate([y, z]), y.size
        moves = jnp.concatenate([jnp.asarray(free.y), jnp.asarray(free.z)])
        x = _along_gradients(lambda x: constraints(x[:n], x[n:]), x, moves)
        return Variables(of_y(x[:n]), of_z(x[n:]))
    moves = jnp.ones(y.size, bool) if free is None else jnp.asarray(free.y)
    y = _along_gradients(lambda y: constraints(y, z), y, moves)

    def hidden(z):
        return equations.rate_of_constraints(t, Variables(of_y(y), of_z(z)))

    return Variables(of_y(y), of_z(root(hidden, z)))


def _along_gradients(function: Callable, x, moves):
    """`x + G^T mu` on `function(x) = 0`, with `G` its derivative at `x` by what moves.

    Gradients are scaled to unit length, which makes multipliers lengths.
    """
    gradients = jnp.where(moves, jax.jacfwd(function)(x), 0.0)
    gradients = gradients / lengths(gradients)
    along = lambda mu: x + gradients.T @ mu  # noqa: E731
    none = jnp.zeros(gradients.shape[0], x.dtype)
    # Equations of what is held alone hold or not; their multipliers are zero.
    unmoved = ~jnp.any(gradients != 0, axis=1)
    return along(root(lambda mu: jnp.where(unmoved, mu, function(along(mu))), none))


def _implicit(equations: DAEEquations, t, y, z, moves):
    """Variables and rates of implicit equations, from vectors and what makes pytrees of them."""
    (y, of_y), (z, of_z) = y, z

    def residual(t, y, z):
        return equations.residual(t, Variables(of_y(y), of_z(z)))

    def beside(t, y, z):
        return beside_rates(jax.jacfwd(residual, 2)(t, y, z))

    project, rows = beside(t, y, z)
    gradients = project @ (jax.jacfwd(residual, 1)(t, y, z) / rows)
    gradients = jnp.where(moves, gradients, 0.0)
    gradients = gradients / lengths(gradients)
    unmoved = ~jnp.any(gradients != 0, axis=1)

    def parts(mu, z, beside):
        """Residuals, scaled; their parts without rates; rates of change of these parts; `mu`."""
        there = y + gradients.T @ mu
        value = residual(t, there, z)
        drift = jax.jvp(lambda t, y: residual(t, y, z), (t, there), (jnp.ones_like(t), z))[1]
        project, rows = beside(t, there, z)
        rows = rows[:, 0]
        value, part, acting = value / rows, project @ (value / rows), project @ mu
        # Of what is held alone the algebraic part holds or not, and its multipliers are zero; what
        # gradients of rows without such a part would add is left out.
        value, part = value - part, jnp.where(unmoved, acting, part)
        return value + part, part, project @ (drift / rows), mu - acting

    def conditions(unknown):
        mu, z = jnp.split(unknown, 2)
        value, _, drift, rest = parts(mu, z, beside)
        return jnp.concatenate([value, drift + rest])

    # One after the other first, with the projection of the given values: units of rates and
    # variables differ, and Newton's method is damped.
    known = jax.lax.stop_gradient((project, rows))

    def algebraic(mu):
        _, part, _, rest = parts(mu, z, lambda *_: known)
        return part + rest

    def for_rates(z):
        value, part, drift, _ = parts(mu, z, lambda *_: known)
        return value - part + drift

    mu = root(algebraic, jnp.zeros_like(y))
    found = root(conditions, jnp.concatenate([mu, root(for_rates, z)]))
    mu, z = jnp.split(found, 2)
    return y + gradients.T @ mu, z


def nearest(equations: DAEEquations, index: int, t, variables: Variables) -> Variables:
    """Consistent values next to those of a run; NaN where there are none."""
    found = consistent(equations, index, t, variables)
    limit = float(jnp.finfo(dtype_of(variables)).eps) ** 0.5
    good = jnp.all(violation(equations, index, t, found).distance <= limit)
    return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), found)


def rates(equations: DAEEquations, index: int, t, variables: Variables) -> Variables:
    """Rates of consistent variables along the motion, those of `z` from the equations' derivatives.

    At index 1 `z' = -(dg/dz)^-1 (dg/dt + dg/dy y')` with `g` the constraints, at index 2 with their
    derivative by time; of a `residual` from those of the consistent start.

    Args:
        equations: of a declaration and a controller.
        index: of them.
        t: time [s].
        variables: that satisfy the equations.
    """
    one, (z, of_z) = jnp.ones_like(t), ravel_pytree(variables.z)
    if equations.implicit:
        y, of_y = ravel_pytree(variables.y)

        def residual(t, y, z):
            return equations.residual(t, Variables(of_y(y), of_z(z)))

        def conditions(t, y, z):
            """Of rates: the residual, its algebraic part in the form of a derivative by time."""
            drift = jax.jvp(lambda t, y: residual(t, y, z), (t, y), (one, z))[1]
            project, rows = beside_rates(jax.jacfwd(residual, 2)(t, y, z))
            value, drift = residual(t, y, z) / rows[:, 0], drift / rows[:, 0]
            return value - project @ value + project @ drift

        drift = jax.jvp(lambda t, y: conditions(t, y, z), (t, y), (one, z))[1]
        by_z = jax.jacfwd(conditions, 2)(t, y, z)
        return Variables(variables.z, of_z(jnp.linalg.solve(by_z, -drift)))
    y_dot = ravel_pytree(variables.y)[1](equations.explicit_rate(t, variables))
    if index == 0:
        return Variables(y_dot, jax.tree.map(jnp.zeros_like, variables.z))
    of = equations.constraints if index == 1 else equations.rate_of_constraints
    fixed = lambda t, y: of(t, variables._replace(y=y))  # noqa: E731
    drift = jax.jvp(fixed, (t, variables.y), (one, y_dot))[1]
    by_z = jax.jacfwd(lambda z: of(t, variables._replace(z=of_z(z))))(z)
    return Variables(y_dot, of_z(jnp.linalg.solve(by_z, -drift)))


class DAEViolation(NamedTuple):
    """How far values are from satisfying the equations.

    Args:
        residual: of the algebraic equations; at index 2 then their derivatives by time; of implicit
            equations of all.
        distance: of each, to first order, how far it is from zero in the variables, relative to
            `1 + max |variables|`.
    """

    residual: Any
    distance: Any


@jit
def violation(equations: DAEEquations, index: int, t, variables: Variables) -> DAEViolation:
    """Residuals of equations that values have to satisfy, see `DAEViolation`."""
    y, of_y = ravel_pytree(variables.y)
    z, of_z = ravel_pytree(variables.z)
    x, n = jnp.concatenate([y, z]), y.size

    def of(function, x0, make):
        value = lambda x: function(t, make(x))  # noqa: E731
        residual, size = value(x0), jnp.linalg.norm(jax.jacfwd(value)(x0), axis=1)
        scale = size * (1 + jnp.max(jnp.abs(x0), initial=0.0))
        away = jnp.abs(residual) / jnp.where(scale > 0, scale, 1.0)
        return residual, jnp.where((scale > 0) | (residual == 0), away, jnp.inf)

    both = lambda x: Variables(of_y(x[:n]), of_z(x[n:]))  # noqa: E731
    if equations.implicit:
        return DAEViolation(*of(equations.residual, x, both))
    if index == 0:
        return DAEViolation(jnp.zeros(0, y.dtype), jnp.zeros(0, y.dtype))
    if index == 1:
        return DAEViolation(*of(equations.constraints, x, both))
    parts = (
        of(equations.constraints, y, lambda y: variables._replace(y=of_y(y))),
        of(equations.rate_of_constraints, z, lambda z: variables._replace(z=of_z(z))),
    )
    return DAEViolation(*map(jnp.concatenate, zip(*parts, strict=True)))


def condition_names(equations: DAEEquations, index: int, variables: Variables) -> list[str]:
    """Names of what `violation` gives."""
    if equations.implicit:
        return equation_names(equations, variables)
    if index == 0:
        return []
    names = equation_names(equations, variables)
    return names if index == 1 else [*names, *(f"d/dt {x}" for x in names)]


def is_near(equations: DAEEquations, index: int, t, variables: Variables, tolerance):
    """Whether a start satisfies the equations, as `check_start` has it, of traced numbers."""
    if tolerance is None:
        return jnp.array(True)
    distance = violation(equations, index, t, jax.lax.stop_gradient(variables)).distance
    return jnp.all(distance <= tolerance)


def check_start(
    equations: DAEEquations, index: int, t, variables: Variables, tolerance: float | None
) -> None:
    """Refuse a start that is not finite, or is off the equations, where its numbers are known."""
    if not are_known(equations, t, variables):
        return
    for names, values in zip(variable_names(variables, equations.implicit), variables, strict=True):
        flat = np.asarray(ravel_pytree(values)[0])
        if not np.isfinite(flat).all():
            i = int(np.argmin(np.isfinite(flat)))
            raise ValueError(f"the start is not finite: {names[i]} = {flat[i]}.")
    if tolerance is None:
        return
    found = violation(equations, index, t, variables)
    distance = np.asarray(found.distance)
    if (distance <= tolerance).all():
        return
    i = int(np.argmax(np.where(np.isnan(distance), np.inf, distance)))
    name = condition_names(equations, index, variables)[i]
    raise ConsistencyError(
        f"the start is not consistent: {name} = {float(found.residual[i]):.3g} at "
        f"t = {float(t):.6g}, about {distance[i]:.3g} of the variables away from zero (allowed "
        f"{tolerance:.1g}). Start from jaxdae.consistent_start(dae, y, "
        f"{'y_dot' if equations.implicit else 'z'}), or give a larger start_tolerance."
    )


def _unmet(equations, index, t, given, found, hold, allowed: float) -> str:
    after = violation(equations, index, t, found)
    names = condition_names(equations, index, given)
    distance = np.asarray(after.distance)
    at_start = np.asarray(violation(equations, index, t, given).residual)
    if np.isnan(at_start).any():
        return (
            f"{names[int(np.argmax(np.isnan(at_start)))]} is nan at the values given and "
            f"t = {float(t):.6g}: it is not defined there. Start elsewhere, or guard what divides "
            "by zero or takes a root of a negative number."
        )
    i = int(np.argmax(np.where(np.isnan(distance), np.inf, distance)))
    default = index == 1 and not equations.implicit
    held = ("y" if default else "nothing") if hold is None else listed(
        [hold] if isinstance(hold, str) else [*hold]
    )  # fmt: skip
    second = "rates" if equations.implicit else "z"
    return (
        f"no consistent values were found: {names[i]} = {float(after.residual[i]):.3g} remains at "
        f"t = {float(t):.6g}, about {distance[i]:.3g} of the variables away from zero (allowed "
        f"{allowed:.1g}). Held: {held or 'nothing'}. Begin nearer to a solution, in {second} too, "
        "or hold other variables."
    )
