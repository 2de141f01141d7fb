r"""Constraint stabilization: the constraint perturbation equations a formulation enforces.

A stabilization gives the wanted rate of the velocity-level residual,

    d(phi_dot)/dt = Phi(t, q, v, phi, phi_dot),     Phi(., 0, 0) = 0,

with `phi` the position residuals `(m,)` and `phi_dot = (dphi/dt, g)` the velocity-level residuals
`(m+r,)` [Mukharlyamov2019, eq. 0.11]. Any callable of these five arguments may be used as one.

A stabilization is a device of the integration and acts in its direction: in a run backward in time
the residuals obey the same equations in `s = -t`, so that they decay there as well (`InDirection`).
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations.gains import (
    apply_gain,
    apply_symmetric,
    as_gain,
    check_finite_gain,
    check_positive,
    check_size,
    Gain,
    is_number,
)
from jaxdae.reprs import Module
from jaxdae.stability.step_gains import gains_for_step, StepOptions
from jaxdae.systems.calls import call_with_shapes, check_parameters, check_real, describe_shape

Stabilization = Callable[..., Float[Array, " c"]]


class AbstractStabilization(Module):
    """A stabilization that knows which numbers of constraints it fits.

    Attributes:
        of_positions: names of the gains that act on position constraints, one for each of them.
        of_velocities: likewise of velocity constraints.
    """

    of_positions: ClassVar[tuple[str, ...]] = ()
    of_velocities: ClassVar[tuple[str, ...]] = ()

    @abc.abstractmethod
    def __call__(self, t, q, v, phi, phi_dot) -> Float[Array, " c"]:
        """Wanted `d(phi_dot)/dt`, shape `(m+r,)`."""

    @abc.abstractmethod
    def check(self, m: int, r: int) -> None:
        """Raise `ValueError` unless the gains fit `m` position and `r` velocity constraints."""

    def gains(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Gains by name, those that are given.

        Args:
            names: of fields.
        """
        return {name: vars(self)[name] for name in names if vars(self)[name] is not None}

    def counts(self) -> tuple[int | None, int | None]:
        """Numbers of position and velocity constraints that the shapes of the gains tell.

        1 for scalars, 0 where no gain is given; `None` where the class names none.
        """
        return self._count(self.of_positions), self._count(self.of_velocities)

    def _count(self, names: tuple[str, ...]) -> int | None:
        sizes = [jnp.shape(x)[0] if jnp.ndim(x) else 1 for x in self.gains(names).values()]
        return max(sizes, default=0) if names else None


class Baumgarte(AbstractStabilization):
    r"""Generalized Baumgarte stabilization.

        d2phi/dt2 = -K_D dphi/dt - K_P phi,        dg/dt = -Gamma g

    with symmetric positive definite gains [MukharlyamovDeressa2015, eq. 16]. The classical method
    [Baumgarte1972] has `K_D = 2 alpha`, `K_P = beta^2`. Exact integration is asymptotically stable
    for all such gains; larger ones are stiffer, so a given step admits only a bounded set of them.
    In a run backward in time `simulate` takes these equations in `s = -t`, with the same positive
    gains: residuals decay in the direction of integration.

    Args:
        K_D: velocity gain [1/s]: scalar, diagonal `(m,)`, or matrix `(m, m)`; required only when
            there are position constraints.
        K_P: position gain [1/s^2]: scalar, diagonal `(m,)`, or matrix `(m, m)`; likewise.
        Gamma: gain of the velocity constraints [1/s]: scalar, `(r,)` or `(r, r)`;
            required only when there are any.

    Raises:
        ValueError: for a gain that is not positive definite.
    """

    of_positions: ClassVar[tuple[str, ...]] = ("K_D", "K_P")
    of_velocities: ClassVar[tuple[str, ...]] = ("Gamma",)

    K_D: Gain | None = eqx.field(default=None, converter=as_gain)
    K_P: Gain | None = eqx.field(default=None, converter=as_gain)
    Gamma: Gain | None = eqx.field(default=None, converter=as_gain)

    def __check_init__(self):
        check_positive("K_D", self.K_D)
        check_positive("K_P", self.K_P)
        check_positive("Gamma", self.Gamma)

    @classmethod
    def critical(cls, rate) -> "Baumgarte":
        """Critical damping: every residual decays like `exp(-rate t)`.

        `K_D = 2 rate`, `K_P = rate^2`, `Gamma = rate` (Redundant, remark 3).

        Args:
            rate: decay rate [1/s], positive; scalar, or one for each constraint `(m,)`
                (then only for systems without velocity constraints).
        """
        rate = as_gain(rate)
        check_positive("rate", rate)
        return cls(2 * rate, rate**2, rate if jnp.ndim(rate) == 0 else None)

    @classmethod
    def from_time_constant(cls, tau, zeta=1.0) -> "Baumgarte":
        """Gains from a time constant and a damping ratio.

        `d2phi/dt2 + (2 zeta / tau) dphi/dt + phi / tau^2 = 0`, `Gamma = 1 / tau`.

        Args:
            tau: time constant [s], positive; keep it above two steps of a fixed-step solver.
            zeta: damping ratio [-], positive; 1 is critical.
        """
        check_positive("tau", tau)
        check_positive("zeta", zeta)
        return cls(2 * zeta / tau, 1 / tau**2, 1 / tau)

    @classmethod
    def for_step(cls, solver, dt, **options: Unpack[StepOptions]) -> "Baumgarte":
        """Gains by theory: those with which a method's step damps a violation best.

        For a given violation `K_D dt` and `K_P dt^2` put the roots of `s^2 + K_D s + K_P` on zeros
        of the method's stability function divided by the step. Ranges of steps by `margin=`, and
        `regime="steps"` with a `motion`, are options of `jaxdae.stability.step_gains`, which also
        says what the gains do to a violation. Wide ranges leave little damping at the longest step:
        a warning gives the turn of the motion beyond which violations grow
        (`jaxdae.stability.largest_turn`).

        Args:
            solver: a Runge-Kutta solver of diffrax or `jaxdae.solvers`.
            dt: largest step [s], positive; it may be traced.
            **options: `margin`, `regime` and `motion` of `step_gains`, as of every `for_step`.

        Raises:
            TypeError: see `step_gains`.
            ValueError: likewise.
        """
        gains = gains_for_step(solver, dt, **options)
        return cls(gains.K_D, gains.K_P, gains.Gamma)

    def __call__(self, t, q, v, phi, phi_dot):
        m = phi.shape[0]
        rate = -_applied(self.K_D, phi_dot[:m]) - _applied(self.K_P, phi)
        return jnp.concatenate([rate, -_applied(self.Gamma, phi_dot[m:])])

    def check(self, m, r):
        if m and (self.K_D is None or self.K_P is None):
            raise ValueError(
                f"the system has {m} position constraints, but Baumgarte lacks a gain for them; "
                "give K_D=… and K_P=…, for example Baumgarte(K_D=20.0, K_P=100.0)."
            )
        if m:
            check_size("K_D", self.K_D, m, "position constraints")
            check_size("K_P", self.K_P, m, "position constraints")
        if r and self.Gamma is None:
            raise ValueError(
                f"the system has {r} velocity constraints, but Baumgarte has no gain for them; "
                "give Gamma=…, for example Baumgarte(K_D, K_P, Gamma=10.0)."
            )
        if r:
            check_size("Gamma", self.Gamma, r, "velocity constraints")


class LinearStabilization(AbstractStabilization):
    r"""General linear constraint perturbation equations.

        d/dt y = [[0, I, 0], [K10, K11, K12], [K20, K21, K22]] y,        y = (phi, dphi/dt, g)

    [Mukharlyamov2019, eq. 0.12]. Classical Baumgarte is `K10 = -omega^2`, `K11 = -2 alpha`,
    `K22 = -gamma`. Stability is the user's: the block matrix must have its spectrum in the left
    half-plane (`jaxdae.step_limit` refuses one that has not).

    Args:
        K10: block on `phi` in the rate of `dphi/dt`: scalar, diagonal `(m,)` or `(m, m)`.
        K11: block on `dphi/dt`, likewise.
        K12: block on `g`, shape `(m, r)`; `None` is zero.
        K20: block on `phi` in the rate of `g`, shape `(r, m)`; `None` is zero.
        K21: block on `dphi/dt`, shape `(r, m)`; `None` is zero.
        K22: block on `g`: scalar, `(r,)` or `(r, r)`; required only with velocity constraints.
    """

    of_positions: ClassVar[tuple[str, ...]] = ("K10", "K11")
    of_velocities: ClassVar[tuple[str, ...]] = ("K22",)

    K10: Gain = eqx.field(converter=as_gain)
    K11: Gain = eqx.field(converter=as_gain)
    K12: Float[Array, "m r"] | None = None
    K20: Float[Array, "r m"] | None = None
    K21: Float[Array, "r m"] | None = None
    K22: Gain | None = eqx.field(default=None, converter=as_gain)

    def __check_init__(self):
        for name, block in vars(self).items():
            check_finite_gain(name, block)

    @classmethod
    def for_step(cls, solver, dt, **options: Unpack[StepOptions]) -> "LinearStabilization":
        """Those of `Baumgarte.for_step`, of the same arguments, with the signs of the blocks."""
        gains = gains_for_step(solver, dt, **options)
        return cls(K10=-gains.K_P, K11=-gains.K_D, K22=-gains.Gamma)

    def __call__(self, t, q, v, phi, phi_dot):
        m = phi.shape[0]
        f_dot, g = phi_dot[:m], phi_dot[m:]
        first = apply_gain(self.K10, phi) + apply_gain(self.K11, f_dot) + _cross(self.K12, g)
        if g.size == 0:
            return first
        second = _cross(self.K20, phi) + _cross(self.K21, f_dot) + apply_gain(self.K22, g)  # pyright: ignore[reportArgumentType]
        return jnp.concatenate([first, second])

    def check(self, m, r):
        check_size("K10", self.K10, m, "position constraints")
        check_size("K11", self.K11, m, "position constraints")
        if r and self.K22 is None:
            raise ValueError(
                f"the system has {r} velocity constraints: LinearStabilization needs K22."
            )
        if r:
            check_size("K22", self.K22, r, "velocity constraints")
        for name, shape in (("K12", (m, r)), ("K20", (r, m)), ("K21", (r, m))):
            block = getattr(self, name)
            if block is not None and (not is_number(block) or jnp.shape(block) != shape):
                raise ValueError(
                    f"{name} must be a matrix of shape {shape}; got {jnp.shape(block)}."
                )


class InDirection(AbstractStabilization):
    r"""A stabilization that acts in the direction of integration.

    With `s = sign t` the residuals obey the perturbation equations of the given stabilization in
    `s`, where `dphi/ds = sign dphi/dt`, `d2phi/ds2 = d2phi/dt2` and `dg/ds = sign dg/dt`:

        d2phi/dt2 = Phi_phi(phi, sign dphi/dt, g),    dg/dt = sign Phi_g(phi, sign dphi/dt, g)

    Arguments `t`, `q` and `v` are those of the motion. `simulate` makes it for runs backward in
    time, and where the times are not known before the program runs.

    Args:
        stabilization: `Phi`, as for a run forward in time.
        sign: 1 forward in time, -1 backward, 0 for none; a number, or an array.
    """

    stabilization: Stabilization
    sign: Any

    def __call__(self, t, q, v, phi, phi_dot):
        m = phi.shape[0]
        signs = jnp.concatenate([jnp.full(m, self.sign), jnp.ones(phi_dot.shape[0] - m)])
        signs = signs.astype(phi_dot.dtype)
        rate = jnp.asarray(self.stabilization(t, q, v, phi, signs * phi_dot))
        return self.sign * signs * rate

    def check(self, m, r):
        if isinstance(self.stabilization, AbstractStabilization):
            self.stabilization.check(m, r)


def desired_rate(stabilization: Stabilization | None, t, q, v, phi, phi_dot) -> Float[Array, " c"]:
    """`Phi`, or zeros when nothing is stabilized."""
    if stabilization is None:
        return jnp.zeros_like(phi_dot)
    return stabilization(t, q, v, phi, phi_dot)


def may_grow(stabilization: Stabilization | None) -> bool:
    """Whether violations may grow though the gains fit: positive definite gains cannot do that."""
    if isinstance(stabilization, InDirection):
        stabilization = stabilization.stabilization
    return isinstance(stabilization, LinearStabilization)


def perturbation_block(
    stabilization: Stabilization, t, q, v, y: Float[Array, " p"], m: int
) -> Float[Array, "p p"]:
    """`H` of the linearized equations `dy/dt = H y`, `y = (phi, dphi/dt, g)`, shape `(2m+r, 2m+r)`.

    `y` is where it is linearized; zero unless `Phi` is not linear.
    """

    def rate(y):
        wanted = jnp.asarray(stabilization(t, q, v, y[:m], y[m:]))
        return jnp.concatenate([y[m : 2 * m], wanted])

    return jax.jacfwd(rate)(y)


def check_stabilization(stabilization: Stabilization | None, m: int, r: int, q) -> None:
    """Check that a stabilization fits the numbers of constraints."""
    if stabilization is None:
        return
    if isinstance(stabilization, AbstractStabilization):
        stabilization.check(m, r)
        return
    t, phi, phi_dot = jnp.zeros((), q.dtype), jnp.zeros(m, q.dtype), jnp.zeros(m + r, q.dtype)
    names = ("t", "q", "v", "phi", "phi_dot")
    check_parameters("the stabilization", stabilization, names)
    out = call_with_shapes("the stabilization", stabilization, (t, q, q, phi, phi_dot), names)
    if getattr(out, "shape", None) != (m + r,):
        raise ValueError(
            f"the stabilization returned {describe_shape(out)}; it must return the wanted rate of "
            f"the {m + r} velocity-level residuals, shape ({m + r},)."
        )
    check_real("the stabilization", out, differentiated=True)


def _applied(gain: Gain | None, y):
    return y if y.size == 0 else apply_symmetric(gain, y)  # pyright: ignore[reportArgumentType]


def _cross(block, y):
    return 0.0 if block is None else block @ y
