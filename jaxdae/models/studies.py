"""Tuning studies: for each ready system, which gains are tuned, on what, in which budget."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.control import HurwitzGains, ServoConstraint
from jaxdae.formulations import (
    AbstractFormulation,
    AugmentedLagrangian,
    Baumgarte,
    Multipliers,
    Penalty,
)
from jaxdae.models.base import AbstractModel
from jaxdae.models.registry import get_model, Model
from jaxdae.models.two_link import PAPER_RUNS
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.tuning.costs import (
    AbstractCost,
    ControlEffort,
    IntegratedViolation,
    TrackingError,
    WeightedSum,
)
from jaxdae.tuning.parametrizations import HurwitzPolynomial, Positive

METHODS = ("multipliers", "penalty", "augmented")


@dataclasses.dataclass(frozen=True)
class Check:
    """Conditions the gains were not tuned on.

    Args:
        name: what differs.
        count: number of starts.
        spread: size of the perturbations, as a multiple of the tuned one.
        dt: step, as a multiple of the tuned one.
        t1: end time [s]; `None` for the tuned one.
    """

    name: str
    count: int = 64
    spread: float = 1.0
    dt: float = 1.0
    t1: float | None = None


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

    system: AbstractModel

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
        method: one of `METHODS`, or "servo"; also the stem of file names.
        system: the system.
        formulation: formulation with the gains to start from; parametrizations are tuned.
        goal: what is made small.
        t1: end time [s].
        dt: fixed step [s]: the budget the optimum belongs to.
        spread: size of the perturbation of the starts, in the coordinates' own units.
        checks: conditions the result is judged on afterwards.
        beyond: end time [s] past a place where the method is known to break, or `None`.
        servo: a servo-constraint of the system; its gains are then tuned, not the formulation.
    """

    name: str
    method: str
    system: AbstractModel
    formulation: AbstractFormulation
    goal: Goal
    t1: float
    dt: float
    spread: float
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


_NAMES = {
    "multipliers": "generalized Baumgarte",
    "penalty": "modified Lagrange",
    "augmented": "augmented Lagrangian",
}
# (end time [s], step [s], size of perturbation, decay rate of the first gains [1/s], first alpha)
_BUDGETS = {
    "pendulum": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "chain": (0.5, 0.01, 3e-3, 10.0, 10.0),
    "slider-crank": (0.4, 0.005, 1e-3, 10.0, 10.0),
    "andrews": (0.003, 2e-5, 1e-4, 1e3, 10.0),
    "sleigh": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "disk": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "knife-edge": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "constant-speed": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "appell-hamel": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "circuit": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "robot": (1.0, 0.01, 3e-3, 10.0, 10.0),
    "arm": (0.5, 0.01, 3e-3, 10.0, 10.0),
    "surface-arm": (0.5, 0.01, 3e-3, 10.0, 10.0),
    "ball-beam": (0.2, 1e-4, 1e-3, 20.0, 10.0),
    # Even twice the step is within the limit 1.9e-4 s that the motor's current sets to RK4.
    "motor": (0.01, 5e-5, 1e-4, 10.0, 10.0),
    "motor-actuator": (0.01, 5e-5, 1e-4, 10.0, 10.0),
    "two-link-reachable": (2.5, 0.01, 3e-3, 5.0, 10.0),
}
# (end time [s], step [s], size of perturbation, weight of the squared control)
_SERVO_BUDGETS = {"mirror": (1.0, 0.01, 0.03, 1e-6)}
_UNTUNED = {
    "kepler": "it has no constraints, hence no gains that enforce them",
    "ball-beam-simplified": "its coordinates are independent, hence it has no constraints and no "
    "gains that enforce them; 'ball-beam' has",
}


def studies(model_name: str, method: str | None = None) -> tuple[Study, ...]:
    """The tuning studies of a ready system.

    Args:
        model_name: a name of the registry.
        method: one of `METHODS`; `None` for all that the system's study is made of.

    Returns:
        Studies, to be run in order.

    Raises:
        UnknownModelError: for a name that is not registered.
        ValueError: for a method that does not exist, or where there is nothing to tune.
    """
    model = get_model(model_name)
    if method is not None and method not in METHODS:
        raise ValueError(f"no method is called {method!r}; there are: {', '.join(METHODS)}.")
    if model_name in _UNTUNED:
        raise ValueError(
            f"the model {model_name!r} has no tuning study: {_UNTUNED[model_name]}. "
            "jaxdae.tune tunes anything in Python."
        )
    if model_name in _SERVO_BUDGETS:
        if method is not None:
            raise ValueError(
                f"the model {model_name!r} has no constraints for a formulation to enforce; its "
                "study tunes the servo-constraint: leave the formulation out."
            )
        return (_servo(model),)
    if model_name == "two-link":
        methods = ("multipliers", "penalty") if method is None else (method,)
        return tuple(_two_link(model, name) for name in methods)
    return (_general(model, method or method_of(model.formulation())),)


def formulation_of(method: str, stabilization, alpha) -> AbstractFormulation:
    """A formulation by name.

    Args:
        method: one of `METHODS`.
        stabilization: of its constraints.
        alpha: constraint mass, where the method has one.
    """
    if method == "multipliers":
        return Multipliers(stabilization=stabilization)
    if method == "penalty":
        return Penalty(alpha=alpha, stabilization=stabilization)
    return AugmentedLagrangian(alpha=alpha, stabilization=stabilization)


def method_of(formulation: AbstractFormulation) -> str:
    """The name in `METHODS` of a formulation."""
    kinds = {Multipliers: "multipliers", Penalty: "penalty", AugmentedLagrangian: "augmented"}
    return kinds[type(formulation)]


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


def _checks(longer: float) -> tuple[Check, ...]:
    return (
        Check("other starts, twice as far off", spread=2.0),
        Check("half the step", dt=0.5),
        Check("twice the step (past its budget)", dt=2.0),
        Check("longer horizon", t1=longer),
    )


def _two_link(model: Model, method: str) -> Study:
    """The paper's gains as the start; `[0, 0.45]` s ends before the singular configuration."""
    paper = PAPER_RUNS[0] if method == "multipliers" else PAPER_RUNS[1]
    alpha = jnp.full(2, 10.0 if paper.alpha is None else paper.alpha)
    stabilization = Baumgarte(Positive(jnp.array(paper.K_D)), Positive(jnp.array(paper.K_P)))
    regular = method == "multipliers"
    return Study(
        _NAMES[method],
        method,
        model.system(),
        formulation_of(method, stabilization, Positive(alpha)),
        violation_goal(2, 0),
        t1=0.45 if regular else 2.5,
        dt=0.01,
        spread=3e-3,
        checks=_checks(0.48 if regular else 2.8),
        beyond=0.6 if regular else None,
    )


def _general(model: Model, method: str) -> Study:
    """Every residual by itself, all with one decay rate at first."""
    t1, dt, spread, rate, alpha = _BUDGETS[model.name]
    system = model.system()
    m, r = constraint_counts(system, State(*system.start(), system.actuators()))
    position, velocity = jnp.ones(m), jnp.ones(r)
    gains = {"K_D": 2 * rate * position, "K_P": rate**2 * position, "Gamma": rate * velocity}
    stabilization = Baumgarte(**{name: Positive(x) for name, x in gains.items() if x.size})
    formulation = formulation_of(method, stabilization, Positive(alpha * jnp.ones(m + r)))
    goal, checks = violation_goal(m, r), _checks(1.2 * t1)
    return Study(_NAMES[method], method, system, formulation, goal, t1, dt, spread, checks)


def _servo(model: Model) -> Study:
    """The gains of the model's own servo-constraint, its polynomial kept Hurwitz."""
    t1, dt, spread, effort = _SERVO_BUDGETS[model.name]
    system = model.system()
    assert model.controller is not None  # a servo-constraint, as every model in that table has one
    servo: Any = model.controller(system)
    gains = HurwitzGains(HurwitzPolynomial(servo.stabilizer.coefficients))
    tuned = eqx.tree_at(lambda s: s.stabilizer, servo, gains)
    goal, checks = program_goal(servo, effort), _checks(1.2 * t1)
    own = servo.plant.formulation
    return Study(
        "servo-constraint", "servo", system, own, goal, t1, dt, spread, checks, servo=tuned
    )
