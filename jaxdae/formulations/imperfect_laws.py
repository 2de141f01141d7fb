r"""Realizing forces that come late, and through a gap.

Delay and backlash are two of the ways in which real contacts differ from the laws that realize
constraints [Matyukhin1999, footnote 5]; the constraints are realized as long as the power of the
difference is small [Matyukhin1999, eq. 7.4].
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdae.checks import are_known
from jaxdae.formulations.gains import as_gain, check_positive
from jaxdae.formulations.realizing import (
    AbstractLaw,
    AbstractMemoryLaw,
    check_magnitude,
    check_time,
    Law,
    Magnitude,
    refuse_undetermined,
    value_of,
)


class DelayedLaw(AbstractMemoryLaw):
    r"""A law whose forces come a time late, `R(t) = law(psi'(t - delay), …)`.

    The history `h(x, t) = law at t - x delay` obeys `delay dh/dt + dh/dx = 0`, `h(0, t) = law`; it
    is a sum of Legendre's polynomials, `h = sum_j z_j P_j(2 x - 1)`, `j < N = terms`, for which
    Galerkin's method with the inflow in weak form gives

        delay/(2 i + 1) dz_i/dt = (-1)^i law - sum_j z_j + 2 sum_(j < i, i - j odd) z_j,
        R = sum_j z_j = h(1, t)

    whose transfer function is Pade's approximation of `e^(-s delay)` with numerator and denominator
    of degrees `N - 1` and `N`, of order `2 N`: of a motion of angular frequency `w` forces are off
    by the part `N! (N - 1)! / ((2 N)! (2 N - 1)!) (w delay)^(2 N)`, 2e-6 for `N = 6`,
    `w delay = 3`. What is less smooth, such as the kink that a start leaves, converges with a
    power of `1 / N`. Roots of the equations of the history are of the size of `1.8 N / delay`,
    which explicit solvers have to follow.

    Args:
        law: what is late: any law without memory and not set-valued.
        delay: [s], positive.
        terms: number `N` of polynomials, at least 1.
        history: forces `R(t)` of the law before the start, of shape `(m+r,)` or one number for all;
            by default, as if the motion had been what it is at the start for long. Read at the
            zeros of `P_(2 N)`.

    Raises:
        ValueError: for a delay that is not positive or fewer than one term.
        TypeError: for a law with memory, or one that the motion decides (`SignLaw`); a history that
            is no function.
    """

    law: Law
    delay: Magnitude = eqx.field(converter=as_gain)
    terms: int = eqx.field(static=True, default=6)
    history: Callable | None = None

    def __check_init__(self):
        check_positive("delay", self.delay)
        if type(self.terms) is not int or self.terms < 1:
            raise ValueError(f"terms must be an integer, at least 1; got {self.terms!r}.")
        refuse_undetermined(self.law, "late")
        if self.history is not None and not callable(self.history):
            raise TypeError(f"history is {self.history!r}; give a function R(t) or leave it out.")

    def initial(self, psi_dot, t, q, v):
        now = jnp.asarray(self.law(psi_dot, t, q, v))
        if self.history is None:
            return jnp.concatenate([now, jnp.zeros((self.terms - 1) * now.size, now.dtype)])
        # Gauss's rule, exact for products of two histories of this kind.
        points, weights = np.polynomial.legendre.leggauss(2 * self.terms)
        back = [t - (1 + x) / 2 * value_of(self.delay) for x in points]
        values = jnp.stack([self._force_before(s, now) for s in back])
        rows = np.polynomial.legendre.legvander(points, self.terms - 1)
        rows = (rows * weights[:, None] / 2).T * (2 * np.arange(self.terms) + 1)[:, None]
        return (jnp.asarray(rows, now.dtype) @ values).ravel()

    def _force_before(self, t, like):
        before: Any = self.history
        values = jnp.asarray(before(t), like.dtype)
        if values.shape not in {(), like.shape}:
            raise ValueError(
                f"history returned shape {values.shape}; it must return one force for each of the "
                f"{like.size} constraints, shape {like.shape}, or one number for all."
            )
        return jnp.broadcast_to(values, like.shape)

    def rate(self, z, psi_dot, t, q, v):
        now = self.law(psi_dot, t, q, v)
        inner, inflow = transport(self.terms)
        table = z.reshape(self.terms, -1)
        matrix, column = (jnp.asarray(x, z.dtype) for x in (inner, inflow))
        return ((matrix @ table + column[:, None] * now) / value_of(self.delay)).ravel()

    def force(self, z, psi_dot, t, q, v):
        return jnp.sum(z.reshape(self.terms, psi_dot.size), axis=0)

    def check(self, count):
        check_time("delay", self.delay)
        if isinstance(self.law, AbstractLaw):
            self.law.check(count)


def transport(terms: int) -> tuple[np.ndarray, np.ndarray]:
    """`A (N, N)` and `B (N,)` of `delay dz/dt = A z + B law`."""
    i, j = np.indices((terms, terms))
    behind = (j < i) & ((i - j) % 2 == 1)
    size = 2 * np.arange(terms) + 1.0
    return size[:, None] * (2.0 * behind - 1.0), size * (-1.0) ** np.arange(terms)


class BacklashLaw(AbstractMemoryLaw):
    r"""A law that acts through a gap: after a reversal, only once the gap is crossed.

        R = e law(psi', t, q, v),        dz/dt = (1 - e) psi',
        e = clip((z sign psi' - gap/2) / edge + 1, 0, 1)

    for each constraint function. `z`, between `-gap/2` and `gap/2`, is the place of the contact in
    its gap: it goes with the bodies until it meets a side, which then takes the force. The sides
    give way over a length `edge`, so that the equations are continuous and need no events; whatever
    it is, what a law of constant size lacks of its work is `gap` times its force for each crossing,
    and that makes the power of the difference in [Matyukhin1999, eq. 7.4] small with the gap.

    Args:
        law: what acts: any law without memory and not set-valued.
        gap: play of the contact, the integral of `psi'` across it; positive, scalar or `(m+r,)`.
        edge: length over which a side takes the force, positive and less than half the gap, scalar
            or `(m+r,)`; by default a twentieth of the gap.

    Raises:
        ValueError: for a gap or an edge out of these ranges.
        TypeError: for a law with memory, or one that the motion decides (`SignLaw`).
    """

    law: Law
    gap: Magnitude = eqx.field(converter=as_gain)
    edge: Magnitude | None = eqx.field(default=None, converter=as_gain)

    def __check_init__(self):
        check_positive("gap", self.gap)
        refuse_undetermined(self.law, "let through a gap")
        if self.edge is None:
            return
        check_positive("edge", self.edge)
        both: Any = (self.gap, self.edge)
        if are_known(both) and not any(isinstance(x, eqx.Module) for x in both):
            half = np.asarray(self.gap) / 2
            if not np.all(np.asarray(self.edge) < half):
                raise ValueError(
                    f"edge is {self.edge}, must be less than half the gap, {half}: the two sides "
                    "would act at once."
                )

    def initial(self, psi_dot, t, q, v):
        # In the middle of its gap.
        return jnp.zeros_like(psi_dot)

    def rate(self, z, psi_dot, t, q, v):
        return (1 - self._engaged(z, psi_dot)) * psi_dot

    def force(self, z, psi_dot, t, q, v):
        return self._engaged(z, psi_dot) * self.law(psi_dot, t, q, v)

    def check(self, count):
        check_magnitude("gap", self.gap, count)
        if self.edge is not None:
            check_magnitude("edge", self.edge, count)
        if isinstance(self.law, AbstractLaw):
            self.law.check(count)

    def _engaged(self, z, psi_dot):
        """`e`, the part of the force that a side takes."""
        gap = value_of(self.gap)
        edge = gap / 20 if self.edge is None else value_of(self.edge)
        return jnp.clip((z * jnp.sign(psi_dot) - gap / 2) / edge + 1, 0.0, 1.0)
