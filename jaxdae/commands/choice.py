"""The formulation, the controller and the solver that the options of a command ask for."""

import dataclasses
from collections.abc import Callable
from typing import Any

import diffrax

from jaxdae.formulations import Baumgarte
from jaxdae.models import Model
from jaxdae.models.studies import formulation_of, method_of, studies
from jaxdae.solvers import RK4
from jaxdae.systems import System
from jaxdae.tuning import resolve

SOLVERS = {
    "dopri8": diffrax.Dopri8,
    "dopri5": diffrax.Dopri5,
    "tsit5": diffrax.Tsit5,
    "rk4": RK4,
    "heun": diffrax.Heun,
    "euler": diffrax.Euler,
    "kvaerno5": diffrax.Kvaerno5,
}
_GAINS = ("K_D", "K_P", "Gamma", "alpha")
# Where a model has no constraint mass of its own: that with which its tuning starts.
_ALPHA = 10.0


def chosen_formulation(model: Model, options, m: int, r: int) -> Any:
    """The model's formulation, or the one asked for, with the gains that are given.

    Args:
        model: entry of the registry.
        options: with `formulation`, `K_D`, `K_P`, `Gamma` and `alpha`, `None` where not given.
        m: number of position constraints.
        r: number of velocity constraints.

    Raises:
        ValueError: for a gain that has nothing to act on.
    """
    first = _first(model, options.formulation)
    given = {name: getattr(options, name) for name in _GAINS}
    given = {name: value for name, value in given.items() if value is not None}
    _refuse_idle(given, model.name, m, r, hasattr(first, "alpha"), type(first).__name__)
    changes: dict[str, Any] = {"alpha": given.pop("alpha")} if "alpha" in given else {}
    if given:
        before = first.stabilization
        gains = {name: getattr(before, name, None) for name in ("K_D", "K_P", "Gamma")}
        changes["stabilization"] = Baumgarte(**(gains | given))
    return dataclasses.replace(first, **changes)


def chosen_controller(model: Model, system: System, uncontrolled: bool) -> Callable | None:
    """The model's controller, or none where there is none or none is asked for.

    Args:
        model: entry of the registry.
        system: what it built.
        uncontrolled: run without.

    Raises:
        ValueError: where there is nothing to leave out.
    """
    if model.controller is None and uncontrolled:
        raise ValueError(
            f"--uncontrolled is for models with a controller, which {model.name!r} does not have; "
            "leave it out."
        )
    return None if model.controller is None or uncontrolled else model.controller(system)


def _first(model: Model, method: str | None) -> Any:
    """With the gains that tuning starts from; models without a study keep their own."""
    own: Any = model.formulation()
    if method is None:
        return own
    try:
        return resolve(studies(model.name, method)[-1].formulation)
    except ValueError:
        if method == method_of(own):
            return own
        return formulation_of(method, own.stabilization, getattr(own, "alpha", _ALPHA))


def _refuse_idle(given, name: str, m: int, r: int, weighted: bool, kind: str) -> None:
    for gain, count, what in (
        ("K_D", m, "position constraints"),
        ("K_P", m, "position constraints"),
        ("Gamma", r, "velocity constraints"),
        ("alpha", m + r, "constraints"),
    ):
        if gain in given and not count:
            raise ValueError(
                f"--{gain} is for {what}, which the model {name!r} does not have; leave it out."
            )
    if "alpha" in given and not weighted:
        raise ValueError(
            f"--alpha is for the penalty and augmented forms, not for {kind}; leave it out, or "
            "choose --formulation penalty."
        )
