"""Checks of a declaration: shapes before any work, and a given mass matrix against the energy."""

import difflib
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdae.systems.base import State, System


def is_concrete(*values) -> bool:
    """Whether no leaf of `values` is being traced, so that numbers may be looked at."""
    return not any(isinstance(x, Tracer) for x in jax.tree.leaves(values))


def constraint_counts(system: System, state: State) -> tuple[int, int]:
    """Numbers `(m, r)` of position and velocity constraints."""
    t = jnp.zeros((), state.q.dtype)
    position = eqx.filter_eval_shape(system.position_constraints, t, state.q)
    velocity = eqx.filter_eval_shape(system.velocity_constraints, t, state.q, state.v)
    return position.shape[0], velocity.shape[0]


def check_system(system: System, state: State, u=None, t=0.0, *, forces: bool = True) -> None:
    """Check, without computing anything, that every function of a system returns what it should.

    Args:
        system: the declaration.
        state: a state whose shapes are used; its numbers do not matter.
        u: control input, as the controller would return it.
        t: time [s].
        forces: check also `force` and `actuator_rate`, which may need the control input.

    Raises:
        ValueError: naming the function, the shape it returned and the one expected, or what it
            failed with.
    """
    _check_spelling(type(system))
    q, v, w = state.q, state.v, state.w
    if q.ndim != 1 or v.shape != q.shape:
        raise ValueError(
            f"q and v must be vectors of one length; they have shapes {q.shape} and {v.shape}. "
            "For a batch of states use jax.vmap."
        )
    if forces:
        _check_inputs(system, u)
    t, n, name = jnp.asarray(t, q.dtype), q.size, type(system).__name__
    for function, args, expected in (
        ("kinetic_energy", (t, q, v), ()),
        ("potential_energy", (t, q), ()),
        ("dissipation", (t, q, v), ()),
        ("force", (t, q, v, w, u), (n,)),
        ("position_constraints", (t, q), (None,)),
        ("velocity_constraints", (t, q, v), (None,)),
        ("actuator_rate", (t, q, v, w, u), w.shape),
        ("mass_matrix", (t, q), (n, n)),
        ("reaction_dependent_force", (t, q, v, w, u), (n,)),
    ):
        if not forces and function in ("force", "actuator_rate", "reaction_dependent_force"):
            continue
        if function == "reaction_dependent_force":
            if getattr(system, function).__func__ is System.reaction_dependent_force:
                continue
            args = (*args, jnp.zeros(sum(constraint_counts(system, state)), q.dtype))
        shape = _shape(system, function, args)
        if function in ("mass_matrix", "reaction_dependent_force") and shape is None:
            continue
        if not _matches(shape, expected):
            wanted = "a vector" if expected == (None,) else f"shape {expected}"
            raise ValueError(
                f"{name}.{function} returned {_describe(shape)}; expected {wanted} "
                f"(n = {n} coordinates, k = {w.size} actuator states). " + _remedy(function)
            )


def check_mass_matrix(system: System, t, q, v, tolerance: float | None = None) -> None:
    """Compare a declared `mass_matrix` with the Hessian of the kinetic energy. For debugging.

    Args:
        system: a system that declares `mass_matrix`.
        t: time [s].
        q: coordinates, shape `(n,)`.
        v: velocities, shape `(n,)`.
        tolerance: largest difference allowed, relative to the largest entry; by default
            the 3/4 power of the machine epsilon, since both are round-off accurate.

    Raises:
        ValueError: when nothing is declared, or naming the worst entry and both its values.
    """
    q, v = jnp.asarray(q), jnp.asarray(v)
    declared = system.mass_matrix(t, q)
    name = type(system).__name__
    if declared is None:
        raise ValueError(f"{name} declares no mass_matrix, so there is nothing to check.")
    hessian = np.asarray(jax.hessian(system.kinetic_energy, argnums=2)(t, q, v))
    declared = np.asarray(declared)
    if tolerance is None:
        tolerance = float(np.finfo(hessian.dtype).eps) ** 0.75
    error = np.abs(declared - hessian)
    i, j = np.unravel_index(np.argmax(error), error.shape)
    if not error[i, j] <= tolerance * np.abs(hessian).max():
        raise ValueError(
            f"{name}.mass_matrix[{i}, {j}] = {declared[i, j]:.9g}, but the kinetic energy gives "
            f"{hessian[i, j]:.9g} (t = {float(t):.6g}); correct one of the two, or delete "
            "mass_matrix: it is then derived from the energy."
        )


def _check_spelling(declared: type) -> None:
    """A misspelt function would otherwise count as not declared, and be left out in silence."""
    contract = [name for name in vars(System) if not name.startswith("_")]
    written = [base for base in declared.__mro__ if issubclass(base, System) and base is not System]
    names = (name for base in written for name in vars(base))
    for name in names:
        if name.startswith("_") or name in contract:
            continue
        close = difflib.get_close_matches(name, contract, n=1, cutoff=0.92)
        if close:
            raise ValueError(
                f"{declared.__name__}.{name} is not a function of the declaration, and would be "
                f"ignored; {close[0]!r} is probably meant. Otherwise give it another name."
            )


def _check_inputs(system: System, u) -> None:
    """JAX clips an index past the end and broadcasts a single number: neither would be noticed."""
    names, shape = system.labels().inputs, getattr(u, "shape", None)
    if not names or shape is None or math.prod(shape) == len(names):
        return
    raise ValueError(
        f"{type(system).__name__} has {len(names)} control input{'s'[: len(names) > 1]} "
        f"({', '.join(names)}); the control input given has shape {shape}."
    )


def check_finite(state: State) -> None:
    """Raise `ValueError` naming the first entry of a state that is not finite."""
    for field in ("q", "v", "w"):
        values = np.asarray(getattr(state, field))
        if not np.isfinite(values).all():
            i = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"the state is not finite: {field}[{i}] = {values[i]}.")


def _shape(system: System, function: str, args):
    try:
        out = eqx.filter_eval_shape(getattr(system, function), *args)
    except Exception as error:
        t_q_v_w_u = zip(("t", "q", "v", "w", "u"), args, strict=False)
        given = ", ".join(f"{key}: {_describe(_shapes(x))}" for key, x in t_q_v_w_u)
        raise ValueError(
            f"{type(system).__name__}.{function} failed with {type(error).__name__}: {error}. It "
            f"was given {given}. Actuators need a State(q, v, w), control inputs a controller."
        ) from error
    return None if out is None else getattr(out, "shape", ())


def _shapes(x):
    return None if x is None else getattr(x, "shape", type(x).__name__)


def _matches(shape, expected) -> bool:
    if expected == (None,):
        return shape is not None and len(shape) == 1
    return shape == expected


def _describe(shape) -> str:
    return "nothing" if shape is None else f"shape {shape}"


def _remedy(function: str) -> str:
    if function == "actuator_rate":
        return "Give the actuators' initial state: State(q, v, w)."
    if function.endswith("constraints"):
        return "Collect the constraints with jnp.stack or jnp.array([...])."
    return "Check the last expression of that function."
