r"""Realizing forces with memory: inertia and delay of the contact, and hysteresis.

Real contacts have inertia, delay and hysteresis [Matyukhin1999, footnote 5], and their forces
realize the constraints as long as the power of the difference is small [Matyukhin1999, eq. 7.4],
which it is when their influence dies out within a short time.
"""

import equinox as eqx
import jax.numpy as jnp

from jaxdae.formulations.gains import as_gain, check_positive, is_number
from jaxdae.formulations.realizing import (
    AbstractLaw,
    AbstractMemoryLaw,
    AbstractSetValuedLaw,
    check_magnitude,
    Law,
    Magnitude,
    value_of,
)
from jaxdae.systems.checks import is_concrete


class LaggedLaw(AbstractMemoryLaw):
    r"""A law whose forces build up late, through a chain of first-order lags.

        (delay / N) dz_i/dt = z_(i-1) - z_i,        z_0 = law(psi', t, q, v),        R = z_N

    One stage is the relaxation of a tyre (relaxation length over speed), or any contact with
    inertia. With more stages the chain tends to a pure delay, `(1 + delay s / N)^-N -> e^(-delay
    s)`, which itself needs the history of the motion and cannot be integrated as an ordinary
    differential equation: the response to a jump comes at `delay +- delay / sqrt(N)`.

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
        if isinstance(self.law, AbstractMemoryLaw | AbstractSetValuedLaw):
            raise TypeError(
                f"{type(self.law).__name__} gives no force that could be late: it has a memory, or "
                "leaves the force to the motion. Use TanhLaw, SaturatedLaw or LinearLaw."
            )

    def initial(self, psi_dot, t, q, v):
        # As if the motion had been what it is at the start for long.
        return jnp.tile(self.law(psi_dot, t, q, v), self.stages)

    def rate(self, z, psi_dot, t, q, v):
        inflow = jnp.concatenate([self.law(psi_dot, t, q, v), z[: -psi_dot.size]])
        return (inflow - z) * (self.stages / value_of(self.delay))

    def force(self, z, psi_dot, t, q, v):
        del t, q, v
        return z[z.size - psi_dot.size :]

    def check(self, count):
        _check_number("delay", self.delay)
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
            if is_number(value) and is_concrete(value) and bool(jnp.any(value_of(value) < 0)):
                raise ValueError(f"{name} must not be negative; got {value}.")

    def initial(self, psi_dot, t, q, v):
        del t, q, v
        return jnp.zeros_like(psi_dot)

    def rate(self, z, psi_dot, t, q, v):
        del t, q, v
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


def _check_number(name: str, value) -> None:
    shape = jnp.shape(value_of(value))
    if shape:
        raise ValueError(f"{name} has shape {shape}; give one number [s].")
