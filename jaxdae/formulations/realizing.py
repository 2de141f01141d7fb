r"""Constraints realized by forces: the free system with forces on the constraint functions.

    M a = f + J^T R(psi'),        psi' = (df/dt, g)

instead of constraints (Realization, eqs. 2.1, 5.1, 6.4, 7.3). `R = -lam`, so the multipliers of
every formulation and the realizing forces can be compared row by row.
"""

import abc
import math
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation
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
from jaxdae.linalg.saddle_point import Assumptions
from jaxdae.systems import evaluate, State
from jaxdae.systems.checks import constraint_counts

Magnitude = float | Float[Array, ""] | Float[Array, " c"] | eqx.Module | list
Law = Callable[..., Float[Array, " c"]]

# Largest x (1 - tanh x) over x >= 0: W(1/e), with Lambert's function.
_TANH_DEVIATION = 0.2784645427610738


class AbstractLaw(eqx.Module):
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


class LinearLaw(AbstractLaw):
    r"""Viscous friction on the constraint functions, `R = -k psi'` (Realization, eq. 5.1).

    The motion differs from the constrained one by `O(1/k)`, since a reaction `r` needs
    `psi' = -r / k`; only motions without reactions are exponentially stable.

    Args:
        k: coefficient: positive scalar, diagonal `(m+r,)`, or SPD matrix.

    Raises:
        ValueError: for a `k` that is not positive definite.
    """

    k: Gain = eqx.field(converter=as_gain)

    def __check_init__(self):
        check_positive("k", self.k)

    def __call__(self, psi_dot, t, q, v):
        del t, q, v
        return -apply_gain(self.k, psi_dot)

    def check(self, count):
        check_size("k", self.k, count, "constraints")


class SaturatedLaw(AbstractLaw):
    r"""Linear up to a bound, `R = -bound clip(psi' / width, -1, 1)`.

    Args:
        bound: largest force, positive, scalar or `(m+r,)`.
        width: constraint function at which it is reached, positive, scalar or `(m+r,)`.

    Raises:
        ValueError: for a bound or a width that is not positive.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    width: Magnitude = eqx.field(converter=as_gain)

    def __check_init__(self):
        check_positive("bound", self.bound)
        check_positive("width", self.width)

    def __call__(self, psi_dot, t, q, v):
        del t, q, v
        return -_number(self.bound) * jnp.clip(psi_dot / _number(self.width), -1.0, 1.0)

    def check(self, count):
        _check_magnitude("bound", self.bound, count)
        _check_magnitude("width", self.width, count)

    def deviation_bound(self, count: int) -> Float[Array, ""]:
        """Largest `deviation_power` over all `psi'` of `count` constraints, `bound width / 4`."""
        each = _number(self.bound) * _number(self.width) / 4
        return jnp.sum(jnp.broadcast_to(each, (count,)))


class TanhLaw(AbstractLaw):
    r"""Smooth saturation, `R = -bound tanh(psi' / width)`.

    Args:
        bound: largest force, positive, scalar or `(m+r,)`.
        width: scale of the constraint function, positive, scalar or `(m+r,)`.

    Raises:
        ValueError: for a bound or a width that is not positive.
    """

    bound: Magnitude = eqx.field(converter=as_gain)
    width: Magnitude = eqx.field(converter=as_gain)

    def __check_init__(self):
        check_positive("bound", self.bound)
        check_positive("width", self.width)

    def __call__(self, psi_dot, t, q, v):
        del t, q, v
        return -_number(self.bound) * jnp.tanh(psi_dot / _number(self.width))

    def check(self, count):
        _check_magnitude("bound", self.bound, count)
        _check_magnitude("width", self.width, count)

    def deviation_bound(self, count: int) -> Float[Array, ""]:
        """Largest `deviation_power` over all `psi'`, `W(1/e) bound width`, `W(1/e) = 0.2785`."""
        each = _TANH_DEVIATION * _number(self.bound) * _number(self.width)
        return jnp.sum(jnp.broadcast_to(each, (count,)))


class SignLaw(AbstractSetValuedLaw):
    r"""Dry friction on the constraint functions, `R_i in -bound_i Sign(psi'_i)`.

    A differential inclusion in the sense of Filippov (Realization, eqs. 6.4, 6.8). Off the
    constraint `R_i = -bound_i sign psi'_i`. On it the equivalent control: of all forces with
    `|R_i| <= bound_i` the one that keeps `psi'_i = 0` where that is possible, which is the
    constraint reaction, and the bound against the sliding that begins where it is not. Both are the
    minimizer of

        R^T A R / 2 + R^T (d + psi' / tau),        |R_i| <= bound_i,

    with `A = J M^-1 J^T` and `d` the value of `psi''` at `R = 0`: the box keeps the force at its
    bound while `|psi'_i| > tau |psi''_i|`; inside this layer it lets `psi'_i` decay like
    `exp(-t / tau)`; at `psi' = 0` it is the equivalent control exactly. So the field is continuous
    and a solver with step control integrates it: the layer is reached in the finite time of the
    sign law, and the motion differs from that of the inclusion by `O(tau)` in `psi'` for a time of
    the order of `tau` only. A step much longer than `tau` is unstable for explicit solvers.

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
        del t, q, v
        return -_number(self.bound) * jnp.sign(psi_dot)

    def select(self, response, drift, psi_dot):
        bound = jnp.broadcast_to(jnp.asarray(_number(self.bound), psi_dot.dtype), psi_dot.shape)
        return minimize_in_box(response, drift + psi_dot / _number(self.time_constant), bound)

    def check(self, count):
        _check_magnitude("bound", self.bound, count)
        shape = jnp.shape(_number(self.time_constant))
        if shape:
            raise ValueError(f"time_constant has shape {shape}; give one number [s].")


class RealizingForces(AbstractFormulation):
    r"""The free system, with realizing forces in place of constraints.

        M a = f + J^T R,        R = law(psi', t, q, v),        lam = -R

    with `psi' = phi_dot`, the velocity-level residuals (Realization, eqs. 2.1, 4.12): the forces
    act on the constraint functions only. Position constraints are realized at velocity level, so
    their residual stays where `psi'` has carried it. For time-independent constraints that are
    linear in the velocities the power of the forces is `R . psi'`, not positive for every law that
    opposes `psi'`.

    Args:
        law: `LinearLaw`, `SignLaw`, `SaturatedLaw`, `TanhLaw`, or any callable
            `law(psi_dot, t, q, v)` that returns the forces, shape `(m+r,)`.
    """

    law: Law

    def init(self, system, t, state):
        del system, t
        return state

    def recover(self, system, t, y):
        del system, t
        return y

    def vector_field(self, system, t, y, u):
        acceleration, _ = self.motion(system, t, y, u)
        return State(y.v, acceleration, system.actuator_rate(t, y.q, y.v, y.w, u))

    def multipliers(self, system, t, y, u):
        return -self.motion(system, t, y, u)[1]

    def motion(self, system, t, y, u):
        """Acceleration `(n,)` and realizing forces `(m+r,)` at a state."""
        d = evaluate(system, t, y.q, y.v, y.w, u)
        columns = jnp.concatenate([d.jac.T, d.force[:, None]], axis=1)
        solved = solve_positive_definite(d.mass, columns)
        spread, free = solved[:, :-1], solved[:, -1]
        if isinstance(self.law, AbstractSetValuedLaw):
            force = self.law.select(d.jac @ spread, d.jac @ free + d.gamma, d.phi_dot)
        else:
            force = self.law(d.phi_dot, t, y.q, y.v)
        return free + spread @ force, force

    def check(self, system, state):
        count = sum(constraint_counts(system, state))
        if isinstance(self.law, AbstractLaw):
            self.law.check(count)
            return
        t, psi_dot = jnp.zeros((), state.q.dtype), jnp.zeros(count, state.q.dtype)
        shape = eqx.filter_eval_shape(self.law, psi_dot, t, state.q, state.v).shape
        if shape != (count,):
            raise ValueError(
                f"the law of realizing forces returned shape {shape}; it must return one force for "
                f"each of the {count} constraints, shape ({count},)."
            )

    def assumptions(self):
        # Given forces may act on dependent functions; equivalent control is not unique there.
        independent = isinstance(self.law, AbstractSetValuedLaw)
        return Assumptions(independent_constraints=independent, regular_mass=True)


def deviation_power(law: Law, bound: Magnitude, psi_dot, t=0.0, q=None, v=None):
    r"""Power of the difference between a law and the sign law of a given bound.

        N = sum_i (R_i + bound_i sign psi'_i) psi'_i

    If `N <= delta` along the motion, `psi'` stays of the order `delta / eta`, with `eta` the excess
    of the bound over the reactions (Realization, eq. 7.4, whose printed difference has the opposite
    sign: as printed it is never positive for a law within the bound, whatever the motion).

    Args:
        law: the law to judge.
        bound: bound of the sign law, scalar or `(c,)`.
        psi_dot: constraint functions, shape `(c,)`.
        t: time [s].
        q: coordinates, shape `(n,)`, for laws that depend on them.
        v: velocities, shape `(n,)`, likewise.

    Returns:
        `N`, a scalar: [W] where constraint functions are velocities.
    """
    return (law(psi_dot, t, q, v) + _number(bound) * jnp.sign(psi_dot)) @ psi_dot


def reaching_time_bound(
    energy: float, eta: float, rho: float, A: float = 0.0, B: float = 0.0
) -> float:
    r"""Time within which `dG/dt <= sqrt(G) (A sqrt(G) + B G - eta / rho)` brings `G` to zero.

    With `y = sqrt(G)`, `dy/dt <= (A y + B y^2 - eta / rho) / 2`, hence

        t <= (4 / s) artanh(s y0 / (2 eta / rho - A y0)),        s^2 = A^2 + 4 B eta / rho

    (from Realization, eq. 6.6).

    Args:
        energy: `G` at the start, not negative.
        eta: excess of the bound of the sign law over the reactions, positive.
        rho: `G <= rho^2 |psi'|^2`, positive.
        A: not negative.
        B: not negative.

    Returns:
        The time [s]; infinite where the inequality does not force `G` to decrease at the start.
    """
    rate, y0 = eta / rho, math.sqrt(energy)
    if rate <= A * y0 + B * y0**2:
        return math.inf
    ratio, root = y0 / (2 * rate - A * y0), math.sqrt(A**2 + 4 * B * rate)
    return 4 * (math.atanh(root * ratio) / root if root > 0 else ratio)


def _check_magnitude(name: str, value, count: int) -> None:
    check_size(name, value, count, "constraints")
    if is_number(value) and np.ndim(value) == 2:
        raise ValueError(f"{name} must be a scalar or a vector of {count}; got a matrix.")


def _number(value: Magnitude) -> Array:
    """The value of a parameter; a parametrization has been replaced by its value before."""
    return jnp.asarray(value)  # pyright: ignore[reportArgumentType]
