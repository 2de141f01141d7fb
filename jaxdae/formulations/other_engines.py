r"""Gains of other engines in ours, and back.

Ours are those of `d2phi/dt2 = -K_D dphi/dt - K_P phi`, in 1/s and 1/s^2, for any solver and step.
Others state a spring, a time constant, or what becomes of a violation in one of their own steps:

| engine | its numbers | here |
|---|---|---|
| MuJoCo | `solref` of two positive numbers, `solimp` | `SolRef`, `Impedance` |
| MuJoCo | `solref` of two negative numbers, `solimp` | `DirectSolRef`, `Impedance` |
| Pinocchio | `corrector.Kp`, `corrector.Kd` of a `RigidConstraintModel` | `Corrector` |
| ODE, Bullet | ERP, CFM and the step | `StepLaw` |
| Drake, SAP | stiffness, relaxation time, step, near-rigid `beta` | `HolonomicSpring` |
| Newton, Kamino | `alpha` of joints, and the step | `StepLaw.of_kamino` |
| Simscape Multibody | hard stops, contacts: stiffness, damping; joints: none | `Spring` |

MuJoCo's soft constraints are `Penalty` exactly (`jaxdae.formulations.solref`). So is a step of ODE,
Drake or Kamino, where velocities are stepped before positions (semi-implicit Euler's method), with
`K_D = 1 / dt`: such engines leave nothing of a violation's rate, whatever their numbers.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.formulations.gains import as_gain, check_positive
from jaxdae.formulations.lagrange import Multipliers, Penalty
from jaxdae.formulations.solref import diagonal_gains, Number
from jaxdae.formulations.stabilization import Baumgarte
from jaxdae.reprs import Module
from jaxdae.systems.checks import is_concrete


class Corrector(Module):
    r"""`corrector` of a `RigidConstraintModel` of Pinocchio.

    It asks for the acceleration `-Kd * (velocity error) - Kp * (placement error)` of the contact
    [Carpentier2019]: our gains by other names. Three or six numbers, along the axes of the
    constraint's frame; the placement error of six is the logarithm of a rigid motion, which is
    ours for small errors.

    Args:
        Kp: [1/s^2], positive: scalar or `(m,)`.
        Kd: [1/s], positive, likewise.
    """

    Kp: Number = eqx.field(converter=as_gain)
    Kd: Number = eqx.field(converter=as_gain)

    def stabilization(self) -> Baumgarte:
        """The same gains."""
        return Baumgarte(K_D=self.Kd, K_P=self.Kp)

    @classmethod
    def of(cls, stabilization: Baumgarte) -> "Corrector":
        """From scalar or diagonal gains."""
        gains = diagonal_gains(stabilization)
        return cls(Kp=gains.K_P, Kd=gains.K_D)


class StepLaw(Module):
    r"""What becomes of a violation `f` in one step: ERP and CFM of ODE and Bullet.

        J v_1 = -(erp / dt) f_0 - cfm lam

    [Smith2006]. Positions are stepped with the new velocities, so that without `cfm`
    a step leaves `1 - erp` of the violation, and nothing of its rate. By a semi-implicit Euler step
    `formulation()` does the same to the last term.

    Args:
        erp: error reduction parameter, in (0, 1].
        dt: step of the engine [s].
        cfm: constraint force mixing [1/(N s/m)], not negative; 0 for a rigid constraint.
    """

    erp: Number
    dt: float
    cfm: Number = 0.0

    def __check_init__(self):
        check_positive("dt", self.dt)
        if is_concrete(self.erp) and not np.all((np.asarray(self.erp) > 0) & (self.erp <= 1)):
            raise ValueError(f"StepLaw: erp is {self.erp}, must be above 0 and at most 1.")
        if is_concrete(self.cfm) and not np.all(np.asarray(self.cfm) >= 0):
            raise ValueError(f"StepLaw: cfm is {self.cfm}, must not be negative.")

    @classmethod
    def of_spring(cls, spring: "Spring", dt: float) -> "StepLaw":
        """`erp = dt k / (dt k + c)`, `cfm = 1 / (dt k + c)` of a spring and damper."""
        total = dt * spring.stiffness + spring.damping
        return cls(dt * spring.stiffness / total, dt, 1 / total)

    @classmethod
    def of_kamino(cls, alpha: Number, dt: float) -> "StepLaw":
        """From `alpha` of Kamino, which removes the velocity `alpha f / dt` [NewtonKamino]."""
        return cls(alpha, dt)

    @classmethod
    def of_rate(cls, rate: Number, dt: float) -> "StepLaw":
        """The rigid law by which violations decay like `exp(-rate t)` [1/s]."""
        check_positive("rate", rate)
        return cls(-jnp.expm1(-rate * dt), dt)

    @classmethod
    def of(cls, stabilization: Baumgarte, dt: float) -> "StepLaw":
        """From gains of the form that such an engine has.

        Raises:
            ValueError: unless `K_D dt = 1`: these engines remove all of the velocity at once.
        """
        gains = diagonal_gains(stabilization)
        damping = np.asarray(gains.K_D) * dt
        if not np.allclose(damping, 1.0, rtol=1e-6, atol=0):
            raise ValueError(
                f"K_D dt is {damping}; engines that step velocities have 1, whatever their "
                f"numbers. Take K_D = 1 / dt, or StepLaw.of_rate for the same decay over time."
            )
        return cls(gains.K_P * dt**2, dt)

    def spring(self) -> "Spring":
        """The spring and damper; of rigid constraints there is none (infinite numbers)."""
        return Spring(self.erp / (self.cfm * self.dt), (1 - self.erp) / self.cfm)

    def stabilization(self) -> Baumgarte:
        """`K_D = 1 / dt`, `K_P = erp / dt^2`."""
        ones = jnp.ones_like(jnp.asarray(self.erp))
        return Baumgarte(K_D=ones / self.dt, K_P=self.erp / self.dt**2)

    def formulation(self) -> Multipliers | Penalty:
        """`Multipliers` without `cfm`, else `Penalty` with `alpha = dt / cfm`."""
        if is_concrete(self.cfm) and not np.any(self.cfm):
            return Multipliers(self.stabilization())
        return Penalty(alpha=self.dt / self.cfm, stabilization=self.stabilization())

    def rate(self) -> Float[Array, "..."]:
        """The rate [1/s] at which a rigid law lets violations decay; infinite for `erp = 1`."""
        return -jnp.log1p(-self.erp) / self.dt


class Spring(Module):
    """A spring and damper in place of a constraint, as of hard stops and contacts of Simscape.

    The force is `-stiffness phi - damping dphi/dt` [Simscape]. What other forces do to the
    violation remains: it is no constraint.

    Args:
        stiffness: [N/m], positive.
        damping: [N s/m], positive.
    """

    stiffness: Number
    damping: Number

    def effective(self, inverse_inertia: Number) -> Baumgarte:
        """Gains with which a violation decays where no other force acts.

        Args:
            inverse_inertia: `A`, diagonal of `J M^-1 J^T` [1/kg], positive.
        """
        check_positive("inverse_inertia", inverse_inertia)
        return Baumgarte(K_D=inverse_inertia * self.damping, K_P=inverse_inertia * self.stiffness)

    @classmethod
    def of(cls, stabilization: Baumgarte, inverse_inertia: Number) -> "Spring":
        """The spring whose `effective` gains are given."""
        check_positive("inverse_inertia", inverse_inertia)
        gains = diagonal_gains(stabilization)
        return cls(gains.K_P / inverse_inertia, gains.K_D / inverse_inertia)


class HolonomicSpring(Module):
    r"""A holonomic constraint of Drake's solver SAP: impulses of an implicit spring.

        impulse = -dt k (phi_1 + tau dphi/dt_1),    phi_1 = phi_0 + dt dphi/dt_1

    [Castro2021]. Where the regularization `1 / (dt (dt + tau) k)` would be below
    `beta^2 A / (4 pi^2)`, which is that of a spring whose period is `beta` steps, SAP takes that
    one, and `tau = dt` (near-rigid regime): a step then leaves about half of a violation, whatever
    the stiffness.

    Args:
        stiffness: `k` [N/m], positive.
        relaxation_time: `tau` [s], not negative.
        beta: near-rigid parameter, positive.
    """

    stiffness: float
    relaxation_time: float
    beta: float = 0.1

    def __check_init__(self):
        check_positive("stiffness", self.stiffness)
        check_positive("beta", self.beta)
        if not self.relaxation_time >= 0:
            raise ValueError(
                f"HolonomicSpring: relaxation_time is {self.relaxation_time}, must not be negative."
            )

    def near_rigid(self, dt: float, inverse_inertia: float) -> bool:
        """Whether SAP replaces the spring by the stiffest that its step resolves."""
        regularization = 1 / (dt * (dt + self.relaxation_time) * self.stiffness)
        return regularization < self._least(inverse_inertia)

    def law(self, dt: float, inverse_inertia: float) -> StepLaw:
        """What a step of Drake makes of a violation.

        Args:
            dt: time step of the plant [s].
            inverse_inertia: `A`, diagonal of `J M^-1 J^T` [1/kg], positive.
        """
        check_positive("dt", dt)
        check_positive("inverse_inertia", inverse_inertia)
        if self.near_rigid(dt, inverse_inertia):
            return StepLaw(0.5, dt, dt * self._least(inverse_inertia))
        total = dt + self.relaxation_time
        return StepLaw(dt / total, dt, 1 / (self.stiffness * total))

    @classmethod
    def of(cls, law: StepLaw, beta: float = 0.1) -> "HolonomicSpring":
        """The constraint with a given law, where that is soft enough not to be near-rigid."""
        if not np.all(np.asarray(law.cfm) > 0):
            raise ValueError("a constraint of SAP is a spring: give a law with a positive cfm.")
        spring = law.spring()
        return cls(float(spring.stiffness), float(spring.damping / spring.stiffness), beta)

    def _least(self, inverse_inertia: float) -> float:
        return self.beta**2 / (4 * math.pi**2) * inverse_inertia
