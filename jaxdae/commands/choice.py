"""The formulation and the controller that the options of a command ask for."""

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxdae.formulations import Baumgarte, LinearLaw
from jaxdae.models import Model
from jaxdae.simulation.choices import (
    fields_of,
    find_linear_solve,
    FORMULATIONS,
    make_formulation,
    name_of,
)
from jaxdae.systems import System

# Gains of the stabilization, and what has them.
_GAINS = {"K_D": "position constraints", "K_P": "position constraints"}
_GAINS |= {"Gamma": "velocity constraints"}
# Options that are parts of some formulations: the field of each, and what it is made of.
_PARTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "alpha": ("alpha", float),
    "decay": ("decay", float),
    "k": ("law", LinearLaw),
    "solve": ("solve", find_linear_solve),
}


def chosen_formulation(model: Model, options, m: int, r: int) -> Any:
    """The model's formulation, or the one asked for, with the gains that are given."""
    first = _first(model, options.formulation)
    chosen = {name: getattr(options, name, None) for name in (*_GAINS, *_PARTS)}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    _refuse_idle(chosen, model.name, first, m, r)
    changes = {field: make(chosen[x]) for x, (field, make) in _PARTS.items() if x in chosen}
    gains = {name: value for name, value in chosen.items() if name in _GAINS}
    if getattr(options, "unstabilized", False):
        _refuse_unstabilized(gains, first)
        changes["stabilization"] = None
    elif gains:
        law = first.capabilities.stabilization
        before = law if isinstance(law, Baumgarte) else Baumgarte()
        changes["stabilization"] = dataclasses.replace(before, **gains)
    return dataclasses.replace(first, **changes)


def chosen_controller(model: Model, system: System, uncontrolled: bool) -> Callable | None:
    """The model's controller, or none where there is none or none is asked for."""
    if model.controller is None and uncontrolled:
        raise ValueError(
            f"--uncontrolled is for models with a controller, which {model.name!r} does not have; "
            "leave it out."
        )
    return None if model.controller is None or uncontrolled else model.controller(system)


def _first(model: Model, name: str | None) -> Any:
    """With the gains that tuning starts from; models without a study keep those they have."""
    default: Any = model.formulation()
    if name is None:
        return default
    # Loaded where a formulation is named: it takes longer than the rest of this.
    from jaxdae.models.studies import studies
    from jaxdae.tuning.parametrizations import resolve

    try:
        return resolve(studies(model.name, name)[-1].formulation)
    except ValueError:
        if name == name_of(default):
            return default
        capabilities = default.capabilities
        parts = {"stabilization": capabilities.stabilization, "alpha": capabilities.weight}
        return make_formulation(name, **{x: y for x, y in parts.items() if y is not None})


def _refuse_unstabilized(gains: dict[str, float], first) -> None:
    if gains:
        raise ValueError(
            f"--unstabilized leaves no gain to set; leave out --{next(iter(gains))}, or it."
        )
    if "stabilization" not in fields_of(type(first)):
        raise ValueError(f"{type(first).__name__} has no stabilization; leave --unstabilized out.")


def _refuse_idle(chosen, name: str, first, m: int, r: int) -> None:
    """Refuse gains without constraints to act on, and parts that the formulation does not have."""
    counts = {"K_D": m, "K_P": m, "Gamma": r} | dict.fromkeys(_PARTS, m + r)
    kind, fields = type(first).__name__, fields_of(type(first))
    for option in chosen:
        if not counts[option]:
            what = _GAINS.get(option, "constraints")
            raise ValueError(
                f"--{option} is for {what}, which the model {name!r} does not have; leave it out."
            )
        field = "stabilization" if option in _GAINS else _PARTS[option][0]
        if field not in fields:
            having = [x for x, form in FORMULATIONS.items() if field in fields_of(form)]
            raise ValueError(
                f"--{option} is for {_listed(sorted(having, key=len))}, not for {kind}; leave it "
                f"out, or choose --formulation {min(having, key=len)}."
            )


def _listed(names: list[str]) -> str:
    words = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f"the {words} form{'s' * (len(names) > 1)}"
