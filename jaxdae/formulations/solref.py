r"""`solref` and `solimp` of MuJoCo in our gains, and back.

MuJoCo's constraints are soft: part of the acceleration that other forces cause remains. With `A`
the inverse inertia of the constraint, the diagonal of `J M^-1 J^T`, they are `Penalty` exactly.
"""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations.gains import as_gain, check_positive
from jaxdae.formulations.lagrange import Penalty
from jaxdae.formulations.stabilization import Baumgarte
from jaxdae.reprs import Module
from jaxdae.systems.checks import is_concrete

Number = float | Float[Array, ""] | Float[Array, " m"]

# mjMINIMP and mjMAXIMP, between which MuJoCo keeps every impedance.
_LEAST, _MOST = 1e-4, 0.9999


class Impedance(Module):
    r"""`solimp` of MuJoCo: `d(r)`, how much of the wanted acceleration a constraint reaches.

        d(r) = d_0 + y(|r| / width) (d_width - d_0)

    with a spline `y` of the given power from 0 to 1, kept in `[0.0001, 0.9999]`
    [MuJoCo].

    Args:
        start: `d_0`, at no violation, in (0, 1).
        end: `d_width`, at `width` and beyond.
        width: of the transition, in the residual's unit, positive.
        midpoint: of the spline, in (0, 1), in units of the width.
        power: of the spline, at least 1.
    """

    start: float = 0.9
    end: float = 0.95
    width: float = 1e-3
    midpoint: float = 0.5
    power: float = 2.0

    def __check_init__(self):
        for name in ("start", "end", "midpoint"):
            value = getattr(self, name)
            if is_concrete(value) and not 0 < value < 1:
                raise ValueError(f"Impedance: {name} is {value}, must be between 0 and 1.")
        if is_concrete(self.power) and not self.power >= 1:
            raise ValueError(f"Impedance: power is {self.power}, must be at least 1.")
        check_positive("width", self.width)

    def __call__(self, r: Number = 0.0) -> Float[Array, "..."]:
        """`d` at a residual `r`."""
        x = jnp.minimum(jnp.abs(r) / self.width, 1.0)
        low = x**self.power / self.midpoint ** (self.power - 1)
        high = 1 - (1 - x) ** self.power / (1 - self.midpoint) ** (self.power - 1)
        y = jnp.where(x <= self.midpoint, low, high)
        return jnp.clip(self.start + y * (self.end - self.start), _LEAST, _MOST)

    @property
    def scale(self) -> Float[Array, ""]:
        """`d_width` as MuJoCo uses it."""
        return jnp.clip(self.end, _LEAST, _MOST)


class AbstractSolRef(Module):
    r"""What a constraint of MuJoCo does with a violation `r` of rate `v`.

        r'' = (1 - d) a_0 + d a_ref,        a_ref = -b v - k r

    with `a_0` what `r''` would be without the constraint [MuJoCo].
    """

    impedance: Impedance = eqx.field(default=Impedance(), kw_only=True)

    @abc.abstractmethod
    def reference(self, r: Number = 0.0) -> Baumgarte:
        """`b` [1/s] and `k` [1/s^2] at a residual `r`, as `K_D` and `K_P` of a rigid constraint."""

    def effective(self, r: Number = 0.0) -> Baumgarte:
        """`d b` and `d k`: the gains with which a violation decays where no other force acts."""
        d, rigid = self.impedance(r), diagonal_gains(self.reference(r))
        return Baumgarte(K_D=d * rigid.K_D, K_P=d * rigid.K_P)

    def penalty(self, inverse_inertia: Number, r: Number = 0.0) -> Penalty:
        """The same constraint here: `Penalty` with `alpha = d / ((1 - d) A)`.

        Args:
            inverse_inertia: `A`, diagonal of `J M^-1 J^T`, positive; for one constraint, or several
                whose `J M^-1 J^T` is diagonal.
            r: residual at which the impedance is taken.
        """
        check_positive("inverse_inertia", inverse_inertia)
        d = self.impedance(r)
        return Penalty(alpha=d / ((1 - d) * inverse_inertia), stabilization=self.reference(r))


class SolRef(AbstractSolRef):
    r"""`solref` of MuJoCo with positive numbers: time constant and damping ratio.

        b = 2 / (d_width timeconst),        k = d(r) / (d_width timeconst dampratio)^2

    [MuJoCo]. Where the impedance is constant, `effective` is `2 / timeconst` and
    `1 / (timeconst dampratio)^2`. MuJoCo raises `timeconst` to two steps: see `as_run`.

    Args:
        timeconst: [s], positive.
        dampratio: [-], positive; 1 is critical.
        impedance: `solimp`.
    """

    timeconst: Number = eqx.field(default=0.02, converter=as_gain)
    dampratio: Number = eqx.field(default=1.0, converter=as_gain)

    def __check_init__(self):
        check_positive("timeconst", self.timeconst)
        check_positive("dampratio", self.dampratio)

    def reference(self, r=0.0):
        rate = 1 / (self.impedance.scale * self.timeconst)
        return Baumgarte(K_D=2 * rate, K_P=self.impedance(r) * (rate / self.dampratio) ** 2)

    def as_run(self, dt: float) -> "SolRef":
        """With the time constant that MuJoCo takes at a step `dt` [s] (flag `refsafe`)."""
        check_positive("dt", dt)
        return SolRef(jnp.maximum(self.timeconst, 2 * dt), self.dampratio, impedance=self.impedance)

    @classmethod
    def of(
        cls, stabilization: Baumgarte, impedance: Impedance | None = None, r: Number = 0.0
    ) -> "SolRef":
        """The `solref` whose `reference(r)` are given gains, scalars or diagonals.

        Args:
            stabilization: the gains of a rigid constraint.
            impedance: `solimp`; by default MuJoCo's.
            r: residual at which they are those.
        """
        impedance = Impedance() if impedance is None else impedance
        gains = diagonal_gains(stabilization)
        ratio = 0.5 * gains.K_D * jnp.sqrt(impedance(r) / gains.K_P)
        return cls(2 / (impedance.scale * gains.K_D), ratio, impedance=impedance)


class DirectSolRef(AbstractSolRef):
    r"""`solref` of MuJoCo with negative numbers, here without the signs.

        b = damping / d_width,        k = stiffness d(r) / d_width^2

    [MuJoCo].

    Args:
        stiffness: [1/s^2], positive.
        damping: [1/s], positive.
        impedance: `solimp`.
    """

    stiffness: Number = eqx.field(converter=as_gain)
    damping: Number = eqx.field(converter=as_gain)

    def __check_init__(self):
        check_positive("stiffness", self.stiffness)
        check_positive("damping", self.damping)

    def reference(self, r=0.0):
        scale = self.impedance.scale
        return Baumgarte(self.damping / scale, self.impedance(r) * self.stiffness / scale**2)

    @classmethod
    def of(
        cls, stabilization: Baumgarte, impedance: Impedance | None = None, r: Number = 0.0
    ) -> "DirectSolRef":
        """The `solref` whose `reference(r)` are given gains; arguments as of `SolRef.of`."""
        impedance = Impedance() if impedance is None else impedance
        gains, scale = diagonal_gains(stabilization), impedance.scale
        return cls(gains.K_P * scale**2 / impedance(r), gains.K_D * scale, impedance=impedance)


def read_solref(solref, solimp=()) -> SolRef | DirectSolRef:
    """The attributes `solref` and `solimp` of a MuJoCo model.

    Args:
        solref: two numbers of one sign.
        solimp: up to five numbers; the others are MuJoCo's defaults.

    Raises:
        ValueError: for numbers of two signs, which MuJoCo replaces by its default, or too many.
    """
    if len(solref) != 2 or len(solimp) > 5:
        raise ValueError(
            f"solref has {len(solref)} numbers and solimp {len(solimp)}; needed are 2 and up to 5."
        )
    first, second = (float(x) for x in solref)
    impedance = Impedance(*(float(x) for x in solimp))
    if first > 0 and second > 0:
        return SolRef(first, second, impedance=impedance)
    if first < 0 and second < 0:
        return DirectSolRef(-first, -second, impedance=impedance)
    raise ValueError(
        f"solref is ({first:g}, {second:g}); give two positive numbers (time constant, damping "
        "ratio) or two negative ones (stiffness, damping): MuJoCo takes its default for others."
    )


class Diagonal(NamedTuple):
    """Gains of constraints that are stabilized each by itself: [1/s] and [1/s^2]."""

    K_D: Float[Array, "..."]
    K_P: Float[Array, "..."]


def diagonal_gains(stabilization: Baumgarte) -> Diagonal:
    """Both gains, where they are scalars or diagonals: other engines have no others."""
    if stabilization.K_D is None or stabilization.K_P is None:
        raise ValueError("there are no gains of position constraints here: give K_D and K_P.")
    gains = Diagonal(jnp.asarray(stabilization.K_D), jnp.asarray(stabilization.K_P))
    if max(x.ndim for x in gains) > 1:
        raise ValueError(
            "the gains are matrices; other engines have a number for each constraint. Give scalars "
            "or diagonals."
        )
    return gains
