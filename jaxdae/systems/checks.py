"""Checks of a declaration: shapes before any work, and a given mass matrix against the energy."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import eval_context

from jaxdae.checks import are_known, where_known
from jaxdae.compiled import jit
from jaxdae.systems.base import ForwardDynamics, State, System
from jaxdae.systems.calls import (
    call_with_shapes,
    check_instance,
    check_parameters,
    check_real,
    describe_shape,
    unwrapped,
)
from jaxdae.systems.class_checks import (
    check_class,
    check_label_counts,
    check_labels,
    check_resolved,
)
from jaxdae.systems.kinematics import (
    along_motion,
    frame_force,
    generalized_force,
    has_rate,
    velocity_count,
)
from jaxdae.systems.points import Points
from jaxdae.systems.precision import known_array


def constraint_counts(system: System, state: State) -> tuple[int, int]:
    """Numbers `(m, r)` of position and velocity constraints."""
    t = jnp.zeros((), state.q.dtype)
    position = eqx.filter_eval_shape(system.position_constraints, t, state.q)
    velocity = eqx.filter_eval_shape(system.velocity_constraints, t, state.q, state.v)
    return position.shape[0], velocity.shape[0]


def check_system(system: System, state: State, u=None, t=0.0, *, forces: bool = True) -> None:
    """Check that every function of a system returns what it should, without calling most of them.

    All are traced. Some are computed at the state, where they are declared: `points`, whose places
    must be finite; `mass_matrix`, `bias_force` and `forward_dynamics`, which must be those of the
    energies; and `rate`, which must be linear in the velocities; to the 3/4 power of the machine
    epsilon, relative to the largest entry.

    Args:
        system: the declaration.
        state: a state whose shapes are used; its numbers matter for these.
        u: control input, as the controller would return it.
        t: time [s].
        forces: check also `force` and `actuator_rate`, which may need the control input.

    Raises:
        TypeError: for what is no system, or labels or points of another kind.
        ValueError: naming the function, the shape it returned and the one expected, or what it
            failed with; the entry in which mass matrix and energy differ most, or in which rates
            are least linear.
    """
    check_functions(system, state, u, t, forces=forces)
    check_position(system, state)
    t = jnp.asarray(t, state.q.dtype)
    check_linear_rate(system, t, state)
    _check_faster_forms(system, t, state)
    _check_points(system, t, state.q)


def check_functions(system: System, state: State, u=None, t=0.0, *, forces: bool = True) -> None:
    """What `check_system` checks by tracing alone, before every run."""
    check_instance("system", system, System, "an instance of your jaxdae.System")
    check_class(type(system))
    check_resolved(system)
    q, v, w = state.q, state.v, state.w
    check_state(system, q, v)
    name = type(system).__name__
    check_labels(system)
    if forces:
        _check_inputs(system, u)
    t, n = known_array(t, q.dtype), v.size
    constraints = 0
    for function, args, expected in (
        *([("rate", (t, q, v), (q.size,))] if has_rate(system) else []),
        ("kinetic_energy", (t, q, v), ()),
        ("potential_energy", (t, q), ()),
        ("dissipation", (t, q, v), ()),
        ("force", (t, q, v, w, u), (n,)),
        ("stiff_force", (t, q, v, w, u), (n,)),
        ("position_constraints", (t, q), (None,)),
        ("velocity_constraints", (t, q, v), (None,)),
        ("actuator_rate", (t, q, v, w, u), w.shape),
        ("mass_matrix", (t, q), (n, n)),
        ("bias_force", (t, q, v), (n,)),
        ("forward_dynamics", (t, q, v, v), (n,)),
        ("reaction_dependent_force", (t, q, v, w, u), (n,)),
    ):
        if not forces and function in _ASK_FOR_INPUTS:
            continue
        if function in _FASTER_FORMS and _is_own(system, function):
            continue
        if function in ("stiff_force", "reaction_dependent_force"):
            declared = getattr(getattr(system, function), "__func__", None)
            if declared is getattr(System, function):
                continue
        if function == "reaction_dependent_force":
            args = (*args, jnp.zeros(constraints, q.dtype))
        out = _returned(system, function, args)
        if function in _OPTIONAL and out is None:
            continue
        if function == "forward_dynamics":
            out = _acceleration(name, out)
        if not _matches(out, expected):
            wanted = "a vector" if expected == (None,) else f"shape {expected}"
            raise ValueError(
                f"{name}.{function} returned {describe_shape(out)}; expected {wanted} "
                f"(n = {q.size} coordinates, k = {w.size} actuator states). " + _remedy(function)
            )
        check_real(f"{name}.{function}", out, differentiated=function in _DIFFERENTIATED)
        constraints += out.size if expected == (None,) else 0
    check_label_counts(system, q.size, n, constraints)


# Those that return `None` where they are not declared.
_OPTIONAL = ("mass_matrix", "bias_force", "forward_dynamics", "reaction_dependent_force")
_FASTER_FORMS = ("mass_matrix", "bias_force", "forward_dynamics")
_ASK_FOR_INPUTS = ("force", "stiff_force", "actuator_rate", "reaction_dependent_force")


def _acceleration(name: str, declared) -> Any:
    """The acceleration in what `forward_dynamics` returned."""
    if not isinstance(declared, ForwardDynamics) or not callable(declared.solve):
        raise TypeError(
            f"{name}.forward_dynamics returned {describe_shape(declared)}; return "
            "jaxdae.systems.ForwardDynamics(acceleration, solve), solve a function of vectors."
        )
    return declared.acceleration


# Derived by differentiation; forces and rates are used as they are.
_DIFFERENTIATED = (
    "kinetic_energy",
    "potential_energy",
    "dissipation",
    "position_constraints",
    "velocity_constraints",
)
_ARGUMENTS = ("t", "q", "v", "w", "u", "lam")


def check_tolerance(name: str, value) -> None:
    """A tolerance is a number not below zero, or `None`."""
    if value is None or not are_known(value):
        return
    if isinstance(value, bool | str) or np.ndim(value) or not np.isrealobj(value):
        raise TypeError(f"{name} must be None or a number; got {value!r}.")
    if not value >= 0:
        raise ValueError(f"{name} must be None or a number not below zero; got {value!r}.")


def check_symmetric_mass(system: System, t, state: State) -> None:
    """A declared mass matrix is symmetric, to round-off, at a state."""
    if _is_own(system, "mass_matrix"):
        return
    declared = system.mass_matrix(jnp.asarray(t, state.q.dtype), state.q)
    if declared is None or not are_known(declared):
        return
    mass = np.asarray(declared)
    skew = np.abs(mass - mass.T)
    i, j = np.unravel_index(np.argmax(skew), skew.shape)
    # Products of factors are symmetric to round-off, which single precision makes 1e-7.
    if skew[i, j] > 1e-5 * np.abs(mass).max(initial=0.0):
        raise ValueError(
            f"{type(system).__name__}.mass_matrix is not symmetric: [{i}, {j}] = {mass[i, j]:.6g}, "
            f"but [{j}, {i}] = {mass[j, i]:.6g} (t = {float(t):.6g}). Return (M + M.T) / 2, or "
            "leave mass_matrix out: it is then derived from the kinetic energy."
        )


def _is_own(system: System, function: str) -> bool:
    """Whether a function is one of the library's own classes, of which tests say what checks do.

    A large one takes seconds to trace and to compute.
    """
    written = unwrapped(getattr(type(system), function))
    return getattr(written, "__module__", "").startswith("jaxdae.")


def check_state(system: System, q, v) -> None:
    """Raise `ValueError` unless `q` and `v` are vectors of one length, in single or double.

    Of a system with rates of its own `v` has the length that these take.
    """
    if q.ndim == 1 and v.ndim == 1 and has_rate(system):
        count = velocity_count(system, jnp.zeros((), q.dtype), q)
        if v.size != count:
            raise ValueError(
                f"{type(system).__name__}.rate takes {count} velocities for {q.size} coordinates; "
                f"the state has {v.size}."
            )
    elif q.ndim != 1 or v.shape != q.shape:
        raise ValueError(
            f"q and v must be vectors of one length; they have shapes {q.shape} and {v.shape}. "
            "For a batch of states use jax.vmap."
        )
    if q.size == 0:
        raise ValueError("the state has no coordinates (n = 0); give one at least, State(q, v).")
    if q.dtype not in (jnp.float32, jnp.float64):
        raise ValueError(
            f"the state is of type {q.dtype}, in which no linear solver works; give float32, or "
            "float64 after jax.config.update('jax_enable_x64', True)."
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


@where_known
def check_finite(state: State) -> None:
    """Raise `ValueError` naming the first entry of a known state that is not finite."""
    for field in ("q", "v", "w"):
        values = np.asarray(getattr(state, field))
        if not np.isfinite(values).all():
            i = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"the state is not finite: {field}[{i}] = {values[i]}.")


@where_known
def check_position(system: System, state: State) -> None:
    """Raise `ValueError` for a known state that is not finite, or describes no position."""
    check_finite(state)
    problem = system.undefined_at(np.asarray(state.q))
    if problem is not None:
        raise ValueError(problem)


def _returned(system: System, function: str, args) -> Any:
    """What a function of the declaration returns, as shapes."""
    name, names = f"{type(system).__name__}.{function}", _ARGUMENTS[: len(args)]
    written = unwrapped(getattr(type(system), function, None))
    if written is None:
        check_parameters(name, getattr(system, function), names)
    else:
        check_parameters(name, written, ("self", *names))
    return call_with_shapes(name, getattr(system, function), args, names)


@where_known
def check_linear_rate(system: System, t, state: State) -> None:
    """Rates of coordinates are linear in the velocities, as the equations take for granted."""
    if not has_rate(system) or _is_own(system, "rate"):
        return
    n, dtype = state.v.size, state.q.dtype
    a, b = (jnp.linspace(*ends, n, dtype=dtype) for ends in ((0.4, 1.3), (0.9, -0.6)))
    with eval_context():
        rates = [np.asarray(system.rate(t, state.q, v)) for v in (a, b, 2 * a - 3 * b, 0 * a)]
    of_a, of_b, of_both, of_none = rates
    off = np.maximum(np.abs(2 * of_a - 3 * of_b - of_both), np.abs(of_none))
    i, scale = int(np.argmax(off)), max(np.abs(x).max(initial=0.0) for x in rates)
    # Round-off of a few operations; rates that are not finite are refused elsewhere.
    if off[i] > float(np.finfo(dtype).eps) ** 0.75 * scale:
        raise ValueError(
            f"{type(system).__name__}.rate is not linear in the velocities: rates of a sum differ "
            f"from the sum of rates by {off[i]:.3g} in entry {i} (t = {float(t):.6g}). Return "
            "N(t, q) @ v; what else moves coordinates in time belongs to the constraints."
        )


@where_known
def _check_faster_forms(system: System, t, state: State) -> None:
    """What a system declares beside its energies agrees with them."""
    q, v = state.q, state.v
    mass, bias = system.mass_matrix(t, q), system.bias_force(t, q, v)
    forward = system.forward_dynamics(t, q, v, jnp.cos(jnp.arange(v.size, dtype=q.dtype)))
    if mass is None and bias is None and forward is None:
        return
    found = jax.device_get(_by_energies(system, t, q, v))
    if mass is not None:
        _compare(system, t, "mass_matrix", mass, found.mass, found.mass)
    if bias is not None:
        _compare(system, t, "bias_force", bias, found.bias, found.bias_terms)
    if forward is not None:
        a = forward.acceleration
        needed = found.mass @ a + found.bias
        terms = np.abs(found.mass) @ np.abs(a) + found.bias_terms
        _compare(system, t, "forward_dynamics", needed, np.cos(np.arange(v.size)), terms)
        b = np.sin(1.0 + np.arange(v.size))
        x = np.asarray(forward.solve(jnp.asarray(b, q.dtype)))
        terms = np.abs(found.mass) @ np.abs(x)
        _compare(system, t, "forward_dynamics(...).solve", found.mass @ x, b, terms)


class _Derived(NamedTuple):
    """Mass matrix and bias force by differentiation, and the sizes of the terms of the latter."""

    mass: Any
    bias: Any
    bias_terms: Any


@jit
def _by_energies(system: System, t, q, v) -> _Derived:
    mass = jax.hessian(system.kinetic_energy, argnums=2)(t, q, v)
    momenta = jax.grad(system.kinetic_energy, argnums=2)
    along = along_motion(system, t, q, v)
    rate = jax.jvp(lambda t, q: momenta(t, q, v), (t, q), along)[1]
    slopes = [
        generalized_force(system, t, q, v, jax.grad(f, argnums=1)(t, q, *more))
        for f, more in ((system.kinetic_energy, (v,)), (system.potential_energy, ()))
    ]
    frame = frame_force(system, t, q, v, momenta(t, q, v))
    sizes = sum(map(jnp.abs, (rate, *slopes, frame)), jnp.zeros_like(v))
    return _Derived(mass, rate - slopes[0] + slopes[1] - frame, sizes)


def _compare(system: System, t, what: str, declared, derived, terms) -> None:
    declared, derived = np.asarray(declared), np.asarray(derived)
    error = np.abs(declared - derived)
    worst = np.unravel_index(np.argmax(error), error.shape)
    # Both are accurate to round-off, of the largest of their terms.
    tolerance = float(np.finfo(declared.dtype).eps) ** 0.75
    if not error[worst] <= tolerance * np.abs(terms).max():
        entry = ", ".join(map(str, worst))
        gives = (
            f"= {declared[worst]:.9g}, but the energies give {derived[worst]:.9g}"
            if not what.startswith("forward")
            else f"does not solve the equations of motion: M times it is off by {error[worst]:.3g}"
        )
        raise ValueError(
            f"{type(system).__name__}.{what}[{entry}] {gives} (t = {float(t):.6g}); correct one of "
            f"the two, or delete {what.partition('(')[0]}: it is then derived from the energies."
        )


def _check_points(system: System, t, q) -> None:
    """Points as they are drawn, with real and finite places; their own class checks the rest."""
    out, name = _returned(system, "points", (t, q)), f"{type(system).__name__}.points"
    if out is None:
        return
    if not isinstance(out, Points):
        raise TypeError(
            f"{name} returned {describe_shape(out)}; return jaxdae.Points({{…}}, links=…), or None "
            "for a system that has no shape."
        )
    kinds = {"place": out.places, "outline": out.outlines}
    for kind, table in kinds.items():
        for place, x in table.items():
            check_real(f"{name}: the {kind} {place!r}", x, differentiated=False)
    if not are_known(system, t, q):
        return
    with eval_context():
        drawn: Any = system.points(t, q)
    for kind in kinds:
        for place, x in getattr(drawn, f"{kind}s").items():
            if not np.isfinite(np.asarray(x)).all():
                raise ValueError(
                    f"{name}: the {kind} {place!r} is {np.asarray(x)} at q = {np.asarray(q)} and "
                    f"t = {float(t):.6g}, which cannot be drawn: give a state that is finite, or "
                    "guard what divides by zero or takes a root of a negative number."
                )


def _matches(out, expected) -> bool:
    shape = () if isinstance(out, int | float | complex) else getattr(out, "shape", None)
    if expected == (None,):
        return shape is not None and len(shape) == 1
    return shape == expected


def _remedy(function: str) -> str:
    if function == "actuator_rate":
        return "Give the actuators' initial state: State(q, v, w)."
    if function.endswith("constraints"):
        return "Collect the constraints with jnp.stack or jnp.array([...])."
    return "Check the last expression of that function."
