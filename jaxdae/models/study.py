"""A study: which gains are tuned, on what, in which budget, and what they are validated on."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import AbstractFormulation, Baumgarte
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import step_ends
from jaxdae.systems import State, System
from jaxdae.tuning.costs import (
    AbstractCost,
    ControlEffort,
    IntegratedViolation,
    TrackingError,
    WeightedSum,
)
from jaxdae.tuning.parametrizations import resolve


@dataclasses.dataclass(frozen=True)
class Check:
    """Conditions that gains are validated under."""

    name: str  # what differs
    count: int = 64  # number of starts
    deviation: float = 1.0  # size of the perturbations, as a multiple of the tuned one
    dt: float = 1.0  # step, as a multiple of the tuned one
    t1: float | None = None  # end time [s]; `None` for the tuned one

    def grid(self, study: "Study") -> np.ndarray:
        """Ends of the steps of the validation [s]."""
        t1 = study.t1 if self.t1 is None else self.t1
        return step_ends(0.0, t1, self.dt * study.dt, study.start.q.dtype)


# Steps of the tuned size: of the validation of all gains, and of the tuning for a range. That has
# none of the first, so that it is validated at steps it was not tuned on, and reaches beyond them.
VALIDATION_STEPS = (0.5, 1.0, 1.5, 2.0)
RANGE = (0.6, 0.8, 1.25, 1.7, 2.1)


def common_checks(longer: float) -> tuple[Check, ...]:
    """Other starts at several steps, some twice as far off, and a longer time."""
    names = {0.5: "half the step", 1.0: "other starts", 2.0: "twice the step"}
    steps = tuple(Check(names.get(x, f"{x:g} times the step"), dt=x) for x in VALIDATION_STEPS)
    return (
        *steps,
        Check("starts twice as far off", deviation=2.0),
        Check("longer horizon", t1=longer),
    )


class Goal(Module):
    """What a study makes small."""

    cost: AbstractCost  # cost of one motion; tuned is its mean over the starts
    parts: dict[str, AbstractCost]  # what it is made of, each cost in its own unit, by symbol
    # What should vanish along a motion, `trajectory -> (times, c)`.
    residuals: Callable[[Trajectory], Float[Array, "times c"]] = eqx.field(static=True)
    integrand: str = eqx.field(static=True)  # of the cost, in symbols
    size: str = eqx.field(static=True)  # of the residuals, in symbols


class Formulated(Module):
    """A system that moves by itself; what is tuned is its formulation."""

    system: System

    def __call__(self, formulation: AbstractFormulation):
        """System, formulation, controller."""
        return self.system, formulation, None


class Servoed(Module):
    """The plant of a servo-constraint under it; what is tuned is its stabilizer."""

    servo: ServoConstraint

    def __call__(self, stabilizer: HurwitzGains):
        """System, formulation, controller."""
        servo = eqx.tree_at(lambda s: s.stabilizer, self.servo, stabilizer)
        return servo.plant.system, servo.plant.formulation, servo


@dataclasses.dataclass(frozen=True)
class Study:
    """A tuning task."""

    name: str  # heading
    method: str  # name of the formulation, or "servo"; also the stem of file names
    system: System
    start: State  # its unperturbed start
    # Formulation with the gains to start from; parametrizations are tuned.
    formulation: AbstractFormulation
    goal: Goal  # what is made small
    t1: float  # end time [s]
    dt: float  # fixed step [s]: the budget the optimum belongs to
    deviation: float  # size of the perturbation of the starts, in the coordinates' own units
    checks: tuple[Check, ...]  # conditions of the validation afterwards
    # End time [s] past a place where the method is known to break, or `None`.
    beyond: float | None = None
    # A servo-constraint of the system; its gains are then tuned, not the formulation.
    servo: ServoConstraint | None = None
    first_gains: str = "the first gains"  # what the gains to start from are called

    @property
    def params(self) -> Any:
        """What is tuned, with parametrizations."""
        return self.formulation if self.servo is None else self.servo.stabilizer

    def by_theory(self, solver) -> Any:
        """The parameters with gains by theory for the step; `None` where theory gives none.

        Theory is of `Baumgarte`; what else a formulation has keeps its first values.
        """
        params = resolve(self.params)
        first = getattr(params, "stabilization", None)
        if self.servo is not None or not isinstance(first, Baumgarte):
            return None
        gains = Baumgarte.for_step(solver, self.dt)
        names = [name for name in ("K_D", "K_P", "Gamma") if getattr(first, name) is not None]
        new = {x: jnp.full_like(getattr(first, x), getattr(gains, x)) for x in names}
        return eqx.tree_at(lambda p: p.stabilization, params, Baumgarte(**new))

    @property
    def build(self) -> Formulated | Servoed:
        """Maps resolved parameters to `(system, formulation, controller)`."""
        return Formulated(self.system) if self.servo is None else Servoed(self.servo)


def violation_goal(m: int, r: int, time_scale: float) -> Goal:
    """The integrated squared violation of the constraints at both levels, joined by a time.

        |phi|^2 + time_scale^2 |phi_dot|^2

    A violation that is removed in the time `tau` takes a rate of its size over `tau`: to count the
    positions alone would ask for any rate. Without position constraints there is one level,
    `|g|^2`. The given start is not counted: no gain can change it.
    """
    velocity = IntegratedViolation(position=0.0, velocity=1.0)
    if not m:
        return Goal(velocity, {"|g|^2": velocity}, declared_residuals, "|g|^2", "|g|")
    cost = IntegratedViolation.at_both_levels(time_scale)
    position = IntegratedViolation(position=1.0, velocity=0.0)
    parts: dict[str, AbstractCost] = {"|phi|^2": position, "|phi_dot|^2": velocity}
    integrand = f"|phi|^2 + ({time_scale:g} s)^2 |phi_dot|^2"
    return Goal(
        cost, parts, declared_residuals, integrand, ", ".join(["|phi|"] + ["|g|"] * bool(r))
    )


def declared_residuals(run: Trajectory) -> Float[Array, "times m+r"]:
    """Residuals of position and velocity constraints along a run, each at its own level."""
    m = run.violation.phi.shape[-1]
    return jnp.concatenate([run.violation.phi, run.violation.phi_dot[..., m:]], axis=-1)


def program_goal(servo: ServoConstraint, effort: float) -> Goal:
    """The integrated squared residuals of a program, plus the integrated squared control."""
    tracking, control = TrackingError(servo.program, jnp.zeros_like), ControlEffort()
    cost = WeightedSum(((1.0, tracking), (effort, control)))
    parts = {"|f|^2": tracking, "|u|^2": control}
    return Goal(cost, parts, program_residuals, f"|f|^2 + {effort:g} |u|^2", "|f|")


def program_residuals(run: Trajectory) -> Float[Array, "times r"]:
    """Residuals `f` of the program of a servo-constraint along a run under it."""
    servo: Any = run.controller
    return jax.vmap(servo.program)(run.ts, run.q, run.v)
