"""Tuning studies: for each ready system, which gains are tuned, on what, in which budget."""

import dataclasses

import jax.numpy as jnp

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
from jaxdae.tuning.parametrizations import Positive

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


@dataclasses.dataclass(frozen=True)
class Study:
    """A tuning task.

    Args:
        name: heading.
        method: one of `METHODS`; also the stem of file names.
        system: the system.
        formulation: formulation with the gains to start from; parametrizations are tuned.
        t1: end time [s].
        dt: fixed step [s]: the budget the optimum belongs to.
        spread: size of the perturbation of the starts, in the coordinates' own units.
        checks: conditions the result is judged on afterwards.
        beyond: end time [s] past a place where the method is known to break, or `None`.
    """

    name: str
    method: str
    system: AbstractModel
    formulation: AbstractFormulation
    t1: float
    dt: float
    spread: float
    checks: tuple[Check, ...]
    beyond: float | None = None


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
    "arm": (0.5, 0.01, 3e-3, 10.0, 10.0),
    "surface-arm": (0.5, 0.01, 3e-3, 10.0, 10.0),
    "ball-beam": (0.2, 1e-4, 1e-3, 20.0, 10.0),
    "two-link-reachable": (2.5, 0.01, 3e-3, 5.0, 10.0),
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
        ValueError: for a method that does not exist.
    """
    model = get_model(model_name)
    if method is not None and method not in METHODS:
        raise ValueError(f"no method is called {method!r}; there are: {', '.join(METHODS)}.")
    if model_name != "two-link" and model_name not in _BUDGETS:
        known = ", ".join(("two-link", *_BUDGETS))
        raise ValueError(
            f"the model {model_name!r} has no tuning study; there are studies of: {known}. "
            "jaxdae.tune tunes anything in Python."
        )
    if model_name == "two-link":
        methods = ("multipliers", "penalty") if method is None else (method,)
        return tuple(_two_link(model, name) for name in methods)
    return (_general(model, method or method_of(model.formulation())),)


def formulation_of(method: str, K_D, K_P, alpha, wrap=lambda x: x) -> AbstractFormulation:
    """A formulation by name, its gains wrapped by `wrap` (for example `Positive`)."""
    stabilization = Baumgarte(K_D=wrap(K_D), K_P=wrap(K_P))
    if method == "multipliers":
        return Multipliers(stabilization=stabilization)
    if method == "penalty":
        return Penalty(alpha=wrap(alpha), stabilization=stabilization)
    return AugmentedLagrangian(alpha=wrap(alpha), stabilization=stabilization)


def _two_link(model: Model, method: str) -> Study:
    """The paper's gains as the start; `[0, 0.45]` s ends before the singular configuration."""
    system = model.system()
    paper = PAPER_RUNS[0] if method == "multipliers" else PAPER_RUNS[1]
    alpha = jnp.full(2, 10.0 if paper.alpha is None else paper.alpha)
    gains = (jnp.array(paper.K_D), jnp.array(paper.K_P), alpha)
    formulation = formulation_of(method, *gains, wrap=Positive)
    regular = method == "multipliers"
    t1 = 0.45 if regular else 2.5
    checks = (
        Check("other starts, twice as far off", spread=2.0),
        Check("half the step", dt=0.5),
        Check("twice the step (past its budget)", dt=2.0),
        Check("longer horizon", t1=0.48 if regular else 2.8),
    )
    beyond = 0.6 if regular else None
    return Study(_NAMES[method], method, system, formulation, t1, 0.01, 3e-3, checks, beyond)


def _general(model: Model, method: str) -> Study:
    t1, dt, spread, rate, alpha = _BUDGETS[model.name]
    system = model.system()
    q, _ = system.start()
    m = system.position_constraints(jnp.zeros(()), q).shape[0]
    ones = jnp.ones(m)
    gains = (2 * rate * ones, rate**2 * ones, alpha * ones)
    formulation = formulation_of(method, *gains, wrap=Positive)
    checks = (
        Check("other starts, twice as far off", spread=2.0),
        Check("half the step", dt=0.5),
        Check("twice the step (past its budget)", dt=2.0),
        Check("longer horizon", t1=1.2 * t1),
    )
    return Study(_NAMES[method], method, system, formulation, t1, dt, spread, checks)


def method_of(formulation: AbstractFormulation) -> str:
    """The name in `METHODS` of a formulation."""
    kinds = {Multipliers: "multipliers", Penalty: "penalty", AugmentedLagrangian: "augmented"}
    return kinds[type(formulation)]
