r"""Constraints realized by forces: the free system with forces on the constraint functions.

    M a = f + J^T R(psi'),        psi' = (dphi/dt, g)

instead of constraints [Matyukhin1999, eqs. 2.1, 5.1, 6.4, 7.3]. `R = -lam`, so the multipliers of
every formulation and the realizing forces can be compared row by row.

Real contacts have inertia, delay and hysteresis [Matyukhin1999, footnote 5], and their forces
realize the constraints as long as the power of the difference is small [Matyukhin1999, eq. 7.4],
which it is when their influence dies out within a short time: laws with memory.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.formulations.base import AbstractFormulation, Examination
from jaxdae.formulations.gains import (
    apply_gain,
    as_gain,
    check_positive,
    check_size,
    Gain,
    is_number,
)
from jaxdae.linalg.box_quadratic import minimize_in_box
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import Capabilities
from jaxdae.reprs import Module
from jaxdae.systems import constraint_residuals, evaluate, State
from jaxdae.systems.calls import call_with_shapes, check_parameters, describe_shape
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.kinematics import coordinate_rate

Magnitude = float | Float[Array, ""] | Float[Array, " c"] | eqx.Module | list
Law = Callable[..., Float[Array, " c"]]


class AbstractLaw(Module):
    """A law of realizing forces that knows which numbers of constraints it fits."""

    @abc.abstractmethod
    def __call__(self, psi_dot, t, q, v) -> Float[Array, " c"]:
        """Forces `R` on the constraint functions, shape `(m+r,)`."""

    @abc.abstractmethod
    def check(self, count: int) -> None:
        """Raise `ValueError` unless the parameters fit `count` constraints."""


class AbstractSetValuedLaw(AbstractLaw):
    """A law that leaves the force open at `psi' = 0`, where the motion decides it."""

    @abc.abstractmethod
    def select(self, response, drift, psi_dot) -> Float[Array, " c"]:
        """The force out of the law's set for which `psi'' = response @ R + drift` fits it.

        Args:
            response: `J M^-1 J^T`, shape `(c, c)`.
            drift: `psi''` without realizing forces, shape `(c,)`.
            psi_dot: constraint functions, shape `(c,)`.
        """


class AbstractMemoryLaw(Module):
    """A law with a state `z` of its own: forces that depend on what has been.

        R = force(z, psi', t, q, v),        dz/dt = rate(z, psi', t, q, v)

    The state is integrated along with the motion; `Trajectory.saved.memory` has it, shape
    `(times, l)`.
    """

    @abc.abstractmethod
    def initial(self, psi_dot, t, q, v) -> Float[Array, " l"]:
        """State at the start, a vector `(l,)`."""

    @abc.abstractmethod
    def rate(self, z, psi_dot, t, q, v) -> Float[Array, " l"]:
        """Rate of the state, shape `(l,)`."""

    @abc.abstractmethod
    def force(self, z, psi_dot, t, q, v) -> Float[Array, " c"]:
        """Forces `R` on the constraint functions, shape `(m+r,)`."""

    @abc.abstractmethod
    def check(self, count: int) -> None:
        """Raise `ValueError` unless the parameters fit `count` constraints."""


class RealizedState(Module):
    """Coordinates `q (n,)`, velocities `v (n,)`, actuators `w (k,)`, a law's `memory (l,)`."""

    q: Float[Array, " n"]
    v: Float[Array, " n"]
    w: Float[Array, " k"]
    memory: Float[Array, " l"]


class LinearLaw(AbstractLaw):
    r"""Viscous friction on the constraint functions, `R = -k psi'` [Matyukhin1999, eq. 5.1].

    The motion differs from the constrained one by `O(1/k)`, since a reaction `r` needs
    `psi' = -r / k`. Of a motion without reactions a deviation decays at first, for `k` above the
    threshold of [Matyukhin1999, theorem 1] (`realizing_bounds.linear_threshold`); later it follows
    the reactions that the changed motion needs (`linear_decay_bound`).

    Args:
        k: coefficient: positive scalar, diagonal `(m+r,)`, or SPD matrix.

    Raises:
        ValueError: for a `k` that is not positive definite.
    """

    k: Gain = eqx.field(converter=as_gain)

    def __check_init__(self):
        check_positive("k", self.k)

    def __call__(self, psi_dot, t, q, v):
        return -apply_gain(self.k, psi_dot)

    def check(self, count):
        check_size("k", self.k, count, "constraints")


class AbstractSaturation(AbstractLaw):
    """A law with a bound, `R = -bound shape(psi' / width)`."""

    bound: eqx.AbstractVar[Magnitude]
    width: eqx.AbstractVar[Magnitude]
    # Largest x (1 - shape(x)) over x >= 0.
    deviation: ClassVar[float]

    def __check_init__(self):
        check_positive("bound", self.bound)
        check_positive("width", self.width)

    @abc.abstractmethod
    def shape(self, x) -> Array:
        """Part of the bound at a part of the width, between -1 and 1."""

    def __call__(self, psi_dot, t, q, v):
        return -value_of(self.bound) * self.shape(psi_dot / value_of(self.width))

    def check(self, count):
        check_magnitude("bound", self.bound, count)
        check_magnitude("width", self.width, count)

    def deviation_bound(self, count: int) -> Float[Array, ""]:
        """Largest `deviation_power` over all `psi'` of `count` constraints."""
        each = self.deviation * value_of(self.bound) * value_of(self.width)
        return jnp.sum(jnp.broadcast_to(each, (count,)))


class SaturatedLaw(AbstractSaturation):
    r"""Linear up to a bound, `R = -bound clip(psi' / width, -1, 1)`.

    Args:
        bound: largest force, positive, scalar or `(m+r,)`.
        width: constraint function at which it is reached, positive, scalar or `(m+r,)`.

    Raises:
        ValueError: for a bound or a width that is not positive.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    width: Magnitude = eqx.field(converter=as_gain)
    deviation: ClassVar[float] = 0.25

    def shape(self, x):
        return jnp.clip(x, -1.0, 1.0)


class TanhLaw(AbstractSaturation):
    r"""Smooth saturation, `R = -bound tanh(psi' / width)`.

    Args:
        bound: largest force, positive, scalar or `(m+r,)`.
        width: scale of the constraint function, positive, scalar or `(m+r,)`.

    Raises:
        ValueError: for a bound or a width that is not positive.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    width: Magnitude = eqx.field(converter=as_gain)
    deviation: ClassVar[float] = 0.2784645427610738  # W(1/e), with Lambert's function

    def shape(self, x):
        return jnp.tanh(x)


class SignLaw(AbstractSetValuedLaw):
    r"""Dry friction on the constraint functions, `R_i in -bound_i Sign(psi'_i)`.

    A differential inclusion in the sense of [Filippov1985], after [Matyukhin1999, eqs. 6.4, 6.8].
    Off the constraint `R_i = -bound_i sign psi'_i`. On it the equivalent control: of all forces
    with `|R_i| <= bound_i` the one that keeps `psi'_i = 0` where that is possible, which is the
    constraint reaction, and the bound against the sliding that begins where it is not. Both are the
    minimizer of

        R^T A R / 2 + R^T (d + psi' / tau),        |R_i| <= bound_i,

    with `A = J M^-1 J^T` and `d` the value of `psi''` at `R = 0`: the box keeps the force at its
    bound while `|psi'_i| > tau |psi''_i|`; inside this layer it lets `psi'_i` decay like
    `exp(-t / tau)`; at `psi' = 0` it is the equivalent control exactly. So the field is continuous
    and a solver with step control integrates it: the layer is reached in the finite time of the
    sign law, and the motion differs from that of the inclusion by `O(tau)` in `psi'` for a time of
    the order of `tau` only. A step much longer than `tau` is unstable for explicit solvers.
    `jaxdae.stick_slip` has events in place of the layer.

    Args:
        bound: largest force, positive, scalar or `(m+r,)`; it must exceed the reactions for the
            constraints to hold.
        time_constant: `tau` [s], positive.

    Raises:
        ValueError: for a bound or a time constant that is not positive.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    time_constant: Magnitude = eqx.field(default=1e-3, converter=as_gain)

    def __check_init__(self):
        check_positive("bound", self.bound)
        check_positive("time_constant", self.time_constant)

    def __call__(self, psi_dot, t, q, v):
        return -value_of(self.bound) * jnp.sign(psi_dot)

    def select(self, response, drift, psi_dot):
        bound = jnp.broadcast_to(jnp.asarray(value_of(self.bound), psi_dot.dtype), psi_dot.shape)
        linear = drift + psi_dot / value_of(self.time_constant)
        return minimize_in_box(response, linear, -bound, bound)

    def check(self, count):
        check_magnitude("bound", self.bound, count)
        check_time("time_constant", self.time_constant)


class SwitchedLaw(AbstractLaw):
    r"""The sign law in modes that events switch, as `jaxdae.stick_slip` makes it.

    Each constraint function has a mode `s_i` among the actuator states: it slides up (1) or down
    (-1), or sticks (0):

        R_i = -bound_i s_i  where it slides,        psi''_i = 0  where it sticks.

    Args:
        law: the sign law; its time constant does not matter.
        first: place of the first mode in the actuator state.
    """

    law: SignLaw
    first: int = eqx.field(static=True)

    def __call__(self, psi_dot, t, q, v):
        return self.law(psi_dot, t, q, v)

    def check(self, count):
        self.law.check(count)

    def force(self, response, drift, w) -> Float[Array, " c"]:
        """Forces in the modes of an actuator state.

        Args:
            response: `J M^-1 J^T`, shape `(c, c)`.
            drift: `psi''` without realizing forces, shape `(c,)`.
            w: actuator state with the modes in it.
        """
        modes = w[self.first : self.first + drift.size]
        sliding = -value_of(self.law.bound) * modes
        sticks = modes == 0
        both = sticks[:, None] & sticks[None, :]
        matrix = jnp.where(both, response, jnp.eye(drift.size, dtype=drift.dtype))
        wanted = jnp.where(sticks, -(drift + response @ sliding), 0.0)
        return jnp.where(sticks, solve_positive_definite(matrix, wanted), sliding)


class LaggedLaw(AbstractMemoryLaw):
    r"""A law whose forces build up late, through a chain of first-order lags.

        (delay / N) dz_i/dt = z_(i-1) - z_i,        z_0 = law(psi', t, q, v),        R = z_N

    One stage is the relaxation of a tyre (relaxation length over speed), or any contact with
    inertia. With more stages the chain tends to a pure delay, `(1 + delay s / N)^-N -> e^(-delay
    s)`, but slowly: the response to a jump comes at `delay +- delay / sqrt(N)`. For a pure delay
    there is `DelayedLaw`.

    Args:
        law: what is late: any law without memory and not set-valued.
        delay: mean delay [s], positive.
        stages: number `N` of lags, at least 1.

    Raises:
        ValueError: for a delay that is not positive or fewer than one stage.
        TypeError: for a law with memory, or one that the motion decides (`SignLaw`).
    """

    law: Law
    delay: Magnitude = eqx.field(converter=as_gain)
    stages: int = eqx.field(static=True, default=1)

    def __check_init__(self):
        check_positive("delay", self.delay)
        if not isinstance(self.stages, int) or self.stages < 1:
            raise ValueError(f"stages must be an integer, at least 1; got {self.stages!r}.")
        refuse_undetermined(self.law, "late")

    def initial(self, psi_dot, t, q, v):
        # As if the motion had been what it is at the start for long.
        return jnp.tile(self.law(psi_dot, t, q, v), self.stages)

    def rate(self, z, psi_dot, t, q, v):
        inflow = jnp.concatenate([self.law(psi_dot, t, q, v), z[: -psi_dot.size]])
        return (inflow - z) * (self.stages / value_of(self.delay))

    def force(self, z, psi_dot, t, q, v):
        return z[z.size - psi_dot.size :]

    def check(self, count):
        check_time("delay", self.delay)
        if isinstance(self.law, AbstractLaw):
            self.law.check(count)


class LuGreLaw(AbstractMemoryLaw):
    r"""Dry friction of elastic asperities, with hysteresis before it slips.

        dz/dt = psi' - stiffness |psi'| z / g(psi'),
        R = -(stiffness z + damping dz/dt + viscosity psi'),
        g = bound + (static - bound) exp(-(psi' / stribeck)^2)

    for each constraint function: the LuGre model [CanudasDeWit1995]; with `damping = viscosity = 0`
    and without `static`, that of [Dahl1968]. Bristles of deflection `z` bend like a spring before
    the contact slides with `|R| = g`; reversals leave loops of hysteresis. Where the motion has no
    rest it is the sign law with a layer of width `bound / stiffness` in displacement: bounded
    deviation for a time that falls with stiffness.

    Args:
        bound: force of sliding, positive, scalar or `(m+r,)`.
        stiffness: of the bristles [force / displacement], positive, scalar or `(m+r,)`.
        damping: of the bristles, not negative.
        viscosity: viscous friction beside them, not negative.
        static: force at which sliding begins; by default `bound`.
        stribeck: constant of `psi'` at which `g` falls from `static` to `bound`, positive.

    Raises:
        ValueError: for parameters out of these ranges.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    stiffness: Magnitude = eqx.field(converter=as_gain)
    damping: Magnitude = eqx.field(default=0.0, converter=as_gain)
    viscosity: Magnitude = eqx.field(default=0.0, converter=as_gain)
    static: Magnitude | None = eqx.field(default=None, converter=as_gain)
    stribeck: Magnitude = eqx.field(default=1e-2, converter=as_gain)

    def __check_init__(self):
        for name in ("bound", "stiffness", "stribeck"):
            check_positive(name, getattr(self, name))
        if self.static is not None:
            check_positive("static", self.static)
        for name in ("damping", "viscosity"):
            value = getattr(self, name)
            if is_number(value) and fails(lambda x: not np.any(x < 0), value):
                raise ValueError(f"{name} must not be negative; got {value}.")

    def initial(self, psi_dot, t, q, v):
        return jnp.zeros_like(psi_dot)

    def rate(self, z, psi_dot, t, q, v):
        relaxation = value_of(self.stiffness) * jnp.abs(psi_dot) / self._sliding_force(psi_dot)
        return psi_dot - relaxation * z

    def force(self, z, psi_dot, t, q, v):
        bending = self.rate(z, psi_dot, t, q, v)
        elastic = value_of(self.stiffness) * z + value_of(self.damping) * bending
        return -(elastic + value_of(self.viscosity) * psi_dot)

    def check(self, count):
        for name in ("bound", "stiffness", "damping", "viscosity", "stribeck"):
            check_magnitude(name, getattr(self, name), count)
        if self.static is not None:
            check_magnitude("static", self.static, count)

    def _sliding_force(self, psi_dot):
        """`g`."""
        bound = value_of(self.bound)
        if self.static is None:
            return bound
        speed = psi_dot / value_of(self.stribeck)
        return bound + (value_of(self.static) - bound) * jnp.exp(-(speed**2))


class RealizingForces(AbstractFormulation):
    r"""The free system, with realizing forces in place of constraints.

        M a = f + J^T R,        R = law(psi', t, q, v),        lam = -R

    with `psi' = phi_dot`, the velocity-level residuals [Matyukhin1999, eqs. 2.1, 4.12]: the forces
    act on the constraint functions only. Position constraints are realized at velocity level, so
    their residual stays where `psi'` has carried it. For time-independent constraints that are
    linear in the velocities the power of the forces is `R . psi'`, not positive for every law that
    opposes `psi'`.

    A law with memory makes the formulation's own state a `RealizedState`.

    Args:
        law: `LinearLaw`, `SignLaw`, `SaturatedLaw`, `TanhLaw`, one with memory (`LuGreLaw`,
            `LaggedLaw`), or any callable `law(psi_dot, t, q, v)` that returns the forces, shape
            `(m+r,)`.
    """

    law: Law | AbstractMemoryLaw

    @property
    def capabilities(self):
        # Given forces may act on dependent functions; equivalent control is not unique there.
        independent = isinstance(self.law, AbstractSetValuedLaw | SwitchedLaw)
        return Capabilities(independent_constraints=independent, enforces_constraints=False)

    @property
    def examination(self):
        return Examination(declaration=self._check, start=self._check_start)

    def without_stiff_part(self):
        law = self.law
        none = _Silent(law) if isinstance(law, AbstractMemoryLaw) else _no_force
        return RealizingForces(none)

    def init(self, system, t, state, like=None):
        if not isinstance(self.law, AbstractMemoryLaw):
            return state
        if like is not None:
            return RealizedState(state.q, state.v, state.w, like.memory)
        t = jnp.asarray(t, state.q.dtype)
        psi_dot = constraint_residuals(system, t, state.q, state.v).phi_dot
        memory = self.law.initial(psi_dot, t, state.q, state.v)
        return RealizedState(state.q, state.v, state.w, jnp.asarray(memory, state.q.dtype))

    def recover(self, system, t, y):
        return State(y.q, y.v, y.w)

    def rate_and_multipliers(self, system, t, y, u):
        acceleration, force = self.motion(system, t, y, u)
        actuators = system.actuator_rate(t, y.q, y.v, y.w, u)
        q_dot = coordinate_rate(system, t, y.q, y.v)
        if not isinstance(self.law, AbstractMemoryLaw):
            return State(q_dot, acceleration, actuators), -force
        psi_dot = constraint_residuals(system, t, y.q, y.v).phi_dot
        memory = self.law.rate(y.memory, psi_dot, t, y.q, y.v)
        return RealizedState(q_dot, acceleration, actuators, memory), -force

    def motion(self, system, t, y, u):
        """Acceleration `(n,)` and realizing forces `(m+r,)` at a state."""
        d = evaluate(system, t, y.q, y.v, y.w, u)
        mobility, free, response, drift = responses(d)
        if isinstance(self.law, AbstractSetValuedLaw):
            force = self.law.select(response, drift, d.phi_dot)
        elif isinstance(self.law, SwitchedLaw):
            force = self.law.force(response, drift, y.w)
        elif isinstance(self.law, AbstractMemoryLaw):
            force = self.law.force(y.memory, d.phi_dot, t, y.q, y.v)
        else:
            force = self.law(d.phi_dot, t, y.q, y.v)
        return free + mobility @ force, force

    def _check_start(self, system, t, state) -> str | None:
        if not isinstance(self.law, AbstractMemoryLaw):
            return None
        own: Any = self.init(system, t, state)
        memory = np.asarray(own.memory)
        bad = np.flatnonzero(~np.isfinite(memory))
        if not bad.size:
            return None
        return (
            f"{type(self.law).__name__}.initial is not finite at t = {float(t):.6g} s: entry "
            f"{bad[0]} is {memory[bad[0]]}. Correct the law, or its history before the start."
        )

    def _check(self, system, state) -> None:
        count = sum(constraint_counts(system, state))
        law, t = self.law, jnp.zeros((), state.q.dtype)
        args = jnp.zeros(count, state.q.dtype), t, state.q, state.v
        if isinstance(law, AbstractLaw | AbstractMemoryLaw):
            law.check(count)
        if isinstance(law, AbstractMemoryLaw):
            _check_memory_law(law, args)
        elif not isinstance(law, AbstractLaw):
            check_forces("the law of realizing forces", law, args)


def responses(d: Any) -> tuple[Array, Array, Array, Array]:
    """What forces do to a free system.

    `M^-1 J^T (n, c)`, acceleration `(n,)` without realizing forces; `J M^-1 J^T (c, c)`, and
    `psi'' (c,)` without them.
    """
    columns = jnp.concatenate([d.jac.T, d.force[:, None]], axis=1)
    solved = solve_positive_definite(d.mass, columns)
    mobility, free = solved[:, :-1], solved[:, -1]
    return mobility, free, d.jac @ mobility, d.jac @ free + d.gamma


_ARGUMENTS = ("psi_dot", "t", "q", "v")


def check_forces(name: str, law: Callable, args: tuple) -> None:
    """A law that gives one force for each constraint. Computes nothing."""
    check_parameters(name, law, _ARGUMENTS)
    _check_vector(name, call_with_shapes(name, law, args, _ARGUMENTS), args[0].shape)


def _check_memory_law(law: AbstractMemoryLaw, args: tuple) -> None:
    name = type(law).__name__
    inner = getattr(law, "law", None)
    if inner is not None and not isinstance(inner, AbstractMemoryLaw):
        check_forces(f"the law of {name}", inner, args)
    z = call_with_shapes(f"{name}.initial", law.initial, args, _ARGUMENTS)
    if len(getattr(z, "shape", ())) != 1:
        raise ValueError(f"{name}.initial returned {describe_shape(z)}; it must return a vector.")
    z, names = jnp.zeros(z.shape, args[2].dtype), ("z", *_ARGUMENTS)
    for part, shape in (("rate", z.shape), ("force", args[0].shape)):
        out = call_with_shapes(f"{name}.{part}", getattr(law, part), (z, *args), names)
        what = "the rate of each number of its state" if part == "rate" else None
        _check_vector(f"{name}.{part}", out, shape, what)


def _check_vector(name: str, out, shape: tuple[int, ...], what: str | None = None) -> None:
    if getattr(out, "shape", None) != shape:
        what = f"one force for each of the {shape[0]} constraints" if what is None else what
        raise ValueError(
            f"{name} returned {describe_shape(out)}; it must return {what}, shape {shape}."
        )


def _no_force(psi_dot, t, q, v):
    return jnp.zeros_like(psi_dot)


class _Silent(AbstractMemoryLaw):
    """A law with the state of another one, which it holds, and no forces."""

    law: AbstractMemoryLaw

    def initial(self, psi_dot, t, q, v):
        return self.law.initial(psi_dot, t, q, v)

    def rate(self, z, psi_dot, t, q, v):
        return jnp.zeros_like(z)

    def force(self, z, psi_dot, t, q, v):
        return jnp.zeros_like(psi_dot)

    def check(self, count):
        self.law.check(count)


def refuse_undetermined(law: Any, what: str) -> None:
    """Refuse a law that gives no force by itself."""
    if isinstance(law, AbstractMemoryLaw | AbstractSetValuedLaw):
        raise TypeError(
            f"{type(law).__name__} gives no force that could be {what}: it has a memory, or "
            "leaves the force to the motion. Use TanhLaw, SaturatedLaw or LinearLaw."
        )


def check_magnitude(name: str, value, count: int) -> None:
    """Raise `ValueError` unless a parameter is one number, or one for each constraint."""
    check_size(name, value, count, "constraints")
    if is_number(value) and np.ndim(value) == 2:
        raise ValueError(f"{name} must be a scalar or a vector of {count}; got a matrix.")


def check_time(name: str, value) -> None:
    """Raise `ValueError` unless a parameter is one number [s]."""
    shape = jnp.shape(value_of(value))
    if shape:
        raise ValueError(f"{name} has shape {shape}; give one number [s].")


def value_of(value: Magnitude) -> Array:
    """The value of a parameter; a parametrization has been replaced by its value before."""
    return jnp.asarray(value)  # pyright: ignore[reportArgumentType]
