"""A study: which gains are tuned, on what, in which budget, and what they are judged on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import AbstractFormulation
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.systems import State, System
from jaxdae.tuning.costs import (
    AbstractCost,
    ControlEffort,
    IntegratedViolation,
    TrackingError,
    WeightedSum,
)


@dataclasses.dataclass(frozen=True)
class Check:
    """Conditions the gains were not tuned on.

    Args:
        name: what differs.
        count: number of starts.
        deviation: size of the perturbations, as a multiple of the tuned one.
        dt: step, as a multiple of the tuned one.
        t1: end time [s]; `None` for the tuned one.
    """

    name: str
    count: int = 64
    deviation: float = 1.0
    dt: float = 1.0
    t1: float | None = None


def common_checks(longer: float) -> tuple[Check, ...]:
    """Other starts, other steps, and a longer time, which ends at `longer` [s]."""
    return (
        Check("other starts, twice as far off", deviation=2.0),
        Check("half the step", dt=0.5),
        Check("twice the step (past its budget)", dt=2.0),
        Check("longer horizon", t1=longer),
    )


class Goal(eqx.Module):
    """What a study makes small.

    Args:
        cost: cost of one motion; tuned is its mean over the starts.
        residuals: what should vanish along a motion, `trajectory -> (times, c)`.
        integrand: of the cost, in symbols.
        size: of the residuals, in symbols.
    """

    cost: AbstractCost
    residuals: Callable[[Trajectory], Float[Array, "times c"]] = eqx.field(static=True)
    integrand: str = eqx.field(static=True)
    size: str = eqx.field(static=True)


class Formulated(eqx.Module):
    """A system that moves by itself; what is tuned is its formulation."""

    system: System

    def __call__(self, formulation: AbstractFormulation):
        """System, formulation, controller."""
        return self.system, formulation, None


class Servoed(eqx.Module):
    """The plant of a servo-constraint under it; what is tuned is its stabilizer."""

    servo: ServoConstraint

    def __call__(self, stabilizer: HurwitzGains):
        """System, formulation, controller."""
        servo = eqx.tree_at(lambda s: s.stabilizer, self.servo, stabilizer)
        return servo.plant.system, servo.plant.formulation, servo


@dataclasses.dataclass(frozen=True)
class Study:
    """A tuning task.

    Args:
        name: heading.
        method: name of the formulation, or "servo"; also the stem of file names.
        system: the system.
        start: its unperturbed start.
        formulation: formulation with the gains to start from; parametrizations are tuned.
        goal: what is made small.
        t1: end time [s].
        dt: fixed step [s]: the budget the optimum belongs to.
        deviation: size of the perturbation of the starts, in the coordinates' own units.
        checks: conditions the result is judged on afterwards.
        beyond: end time [s] past a place where the method is known to break, or `None`.
        servo: a servo-constraint of the system; its gains are then tuned, not the formulation.
    """

    name: str
    method: str
    system: System
    start: State
    formulation: AbstractFormulation
    goal: Goal
    t1: float
    dt: float
    deviation: float
    checks: tuple[Check, ...]
    beyond: float | None = None
    servo: ServoConstraint | None = None

    @property
    def params(self) -> Any:
        """What is tuned, with parametrizations."""
        return self.formulation if self.servo is None else self.servo.stabilizer

    @property
    def build(self) -> Formulated | Servoed:
        """Maps resolved parameters to `(system, formulation, controller)`."""
        return Formulated(self.system) if self.servo is None else Servoed(self.servo)


def violation_goal(m: int, r: int) -> Goal:
    """The integrated squared violation of the constraints as they are declared.

    Position constraints `phi` count at position level, velocity constraints `g` at velocity level.
    The given start is not counted: no gain can change it.

    Args:
        m: number of position constraints.
        r: number of velocity constraints.
    """
    own_level = jnp.array([0.0] * m + [1.0] * r)
    cost = IntegratedViolation(position=1.0, velocity=own_level, from_start=False)
    symbols = ["|phi|"] * bool(m) + ["|g|"] * bool(r)
    integrand = " + ".join(f"{x}^2" for x in symbols)
    return Goal(cost, declared_residuals, integrand, ", ".join(symbols))


def declared_residuals(run: Trajectory) -> Float[Array, "times m+r"]:
    """Residuals of position and velocity constraints along a run, each at its own level."""
    m = run.violation.phi.shape[-1]
    return jnp.concatenate([run.violation.phi, run.violation.phi_dot[..., m:]], axis=-1)


def program_goal(servo: ServoConstraint, effort: float) -> Goal:
    """The integrated squared residuals of a program, plus the integrated squared control.

    Args:
        servo: the servo-constraint.
        effort: weight of the squared control, in the units of the program.
    """
    terms = ((1.0, TrackingError(servo.program, jnp.zeros_like)), (effort, ControlEffort()))
    return Goal(WeightedSum(terms), program_residuals, f"|f|^2 + {effort:g} |u|^2", "|f|")


def program_residuals(run: Trajectory) -> Float[Array, "times r"]:
    """Residuals `f` of the program of a servo-constraint along a run under it."""
    servo: Any = run.controller
    return jax.vmap(servo.program)(run.ts, run.q, run.v)
