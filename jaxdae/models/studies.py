"""Tuning studies of the ready systems, made of what their files say."""

from typing import Any

import equinox as eqx
import numpy as np

from jaxdae.control import HurwitzGains
from jaxdae.formulations import Baumgarte, LinearLaw
from jaxdae.models.base import ConstraintStudy, Model, ServoStudy
from jaxdae.models.registry import get_model
from jaxdae.models.study import common_checks, program_goal, Study, violation_goal
from jaxdae.simulation.choices import find_formulation, K, make_formulation, name_of
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.tuning.parametrizations import HurwitzPolynomial, Positive

# Headings, where the name of the class is not the one of the field.
_HEADINGS = {
    "multipliers": "generalized Baumgarte",
    "penalty": "modified Lagrange",
    "augmented": "augmented Lagrangian",
}


def studies(model_name: str, formulation: str | None = None) -> tuple[Study, ...]:
    """The tuning studies of a ready system.

    Args:
        model_name: a name of the registry.
        formulation: a name of `jaxdae.simulation.choices.FORMULATIONS`; `None` for all that the
            system's study is made of.

    Returns:
        Studies, to be run in order.

    Raises:
        UnknownModelError: for a name that is not registered.
        ValueError: for a formulation that does not exist, or where there is nothing to tune.
    """
    model = get_model(model_name)
    if formulation is not None:
        find_formulation(formulation)
    if isinstance(model.study, str):
        raise ValueError(
            f"the model {model_name!r} has no tuning study: {model.study}. "
            "jaxdae.tune tunes anything in Python."
        )
    if isinstance(model.study, ConstraintStudy):
        return (of_constraints(model, formulation, model.study),)
    if isinstance(model.study, ServoStudy):
        return (of_servo(model, formulation, model.study),)
    return model.study(model, formulation)


def of_constraints(model: Model, formulation: str | None, budget: ConstraintStudy) -> Study:
    """The study of a model's stabilization, each residual by itself, from a decay rate."""
    name = formulation or name_of(model.formulation())
    system = model.system()
    start = State(*system.start(), system.actuators())
    m, r = constraint_counts(system, start)
    # By NumPy: JAX would compile a program for each of these operations.
    rate = np.asarray(budget.rate, float)
    position, velocity = (np.broadcast_to(rate, (k,)) if k else None for k in (m, r))
    decay = {} if position is None else {"decay": Positive(position)}
    gains = {} if position is None else {"K_D": 2 * position, "K_P": position**2}
    gains |= {} if velocity is None else {"Gamma": velocity}
    return Study(
        _HEADINGS.get(name) or find_formulation(name).__name__,
        name,
        system,
        start,
        make_formulation(
            name,
            stabilization=Baumgarte(**{gain: Positive(x) for gain, x in gains.items()}),
            alpha=Positive(np.full(m + r, float(budget.alpha))),
            law=LinearLaw(Positive(np.full(m + r, float(K)))),
            **decay,
        ),
        violation_goal(m, r, 2 * budget.dt if budget.time_scale is None else budget.time_scale),
        budget.t1,
        budget.dt,
        budget.deviation,
        common_checks(1.2 * budget.t1 if budget.longer is None else budget.longer),
        budget.beyond,
        first_gains=budget.first_gains,
    )


def of_servo(model: Model, formulation: str | None, budget: ServoStudy) -> Study:
    """The study of the gains of a model's servo-constraint, its polynomial kept Hurwitz."""
    if formulation is not None:
        raise ValueError(
            f"the model {model.name!r} has no constraints for a formulation to enforce; its "
            "study tunes the servo-constraint: leave the formulation out."
        )
    if model.controller is None:
        raise ValueError(f"the model {model.name!r} has no servo-constraint to tune.")
    system = model.system()
    servo: Any = model.controller(system)
    gains = HurwitzGains(HurwitzPolynomial(servo.stabilizer.coefficients))
    return Study(
        "servo-constraint",
        "servo",
        system,
        State(*system.start(), system.actuators()),
        servo.plant.formulation,
        program_goal(servo, budget.effort),
        budget.t1,
        budget.dt,
        budget.deviation,
        common_checks(1.2 * budget.t1),
        servo=eqx.tree_at(lambda s: s.stabilizer, servo, gains),
    )
