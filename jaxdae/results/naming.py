"""Names and units of what a run has, from the labels of its system."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from jaxdae.storage.runs import EQUATIONS, WORKS


class AxisLabels(NamedTuple):
    """What stands along the last axis of a quantity; the pattern is of names by themselves."""

    dimension: str
    names: list[str]
    units: list[str]
    pattern: str = "{}"


def quantities(run: Any) -> dict[str, AxisLabels]:
    """Names and units of all quantities of a run that have rows, but for the times.

    A multiplier's unit depends on the scaling of its constraint: none is claimed.
    """
    if run.about.kind == EQUATIONS:
        return run.quantities()
    n, k = run.q.shape[-1], run.w.shape[-1]
    units = _field(run, "units", n, "")
    names = _field(run, "coordinates", n, "q")
    rates = AxisLabels("coordinate", names, [*map(per_second, units)], "d({})/dt")
    count = run.v.shape[-1]
    results = {
        "q": AxisLabels("coordinate", names, units),
        "v": rates
        if run.velocities_are_rates
        else AxisLabels(
            "velocity", _field(run, "velocities", count, "v"), _field(run, "velocity_units", count)
        ),
        "coordinate_rates": rates,
        "w": AxisLabels(
            "actuator", _field(run, "actuators", k, "w"), _field(run, "actuator_units", k)
        ),
    }
    for name in run.known:
        if name == "u" or name.startswith("u."):
            results[name] = _inputs(run, name)
    results |= _of_constraints(run)
    energies = ("energy", "kinetic_energy", "potential_energy", *WORKS)
    results |= {name: AxisLabels("", [name], ["J"]) for name in energies}
    return {name: x for name, x in results.items() if name in run.known}


def _field(run: Any, field: str, count: int, letter: str = "") -> list[str]:
    default = lambda i: f"{letter}{i + 1}" if letter else ""  # noqa: E731
    return label_field(SimpleNamespace(**run.about.labels), field, count, default)


def _inputs(run: Any, name: str) -> AxisLabels:
    """A control input may be a number, a vector, or anything else that its system takes."""
    shape = run.known[name].shape[run.ts.ndim :]
    count = int(np.prod(shape, dtype=int))
    if name != "u" or len(shape) > 1:
        names = [name] if not shape else [f"{name}{i + 1}" for i in range(count)]
        return AxisLabels(f"{name}_entry" if shape else "", names, [""] * count)
    names, units = _field(run, "inputs", count, "u"), _field(run, "input_units", count)
    return AxisLabels("input" if shape else "", names, units)


def _of_constraints(run: Any) -> dict[str, AxisLabels]:
    if "phi_dot" not in run.known:
        return {}
    m, c = (run.known[name].shape[-1] for name in ("phi", "phi_dot"))
    names, units = _field(run, "constraints", c, "f"), _field(run, "constraint_units", c)
    rates = [per_second(unit) if i < m else unit for i, unit in enumerate(units)]
    return {
        "multipliers": AxisLabels("constraint", names, [""] * c, "lambda({})"),
        "phi": AxisLabels("position_constraint", names[:m], units[:m], "phi({})"),
        "phi_dot": AxisLabels("constraint", names, rates, "phi_dot({})"),
    }


def axis_names(run: Any) -> tuple[str, ...]:
    """Names of the batch axes; `member`, or `member_1`, …, where they have none."""
    count = len(run.batch_shape)
    unnamed = ("member",) if count == 1 else tuple(f"member_{i + 1}" for i in range(count))
    return run.about.axes or unnamed


def varied_values(run: Any) -> dict[str, np.ndarray]:
    """What was varied, by name."""
    return {} if run.varied is None else run.varied.values


def axis_labels(run: Any) -> list[np.ndarray]:
    """Values along each batch axis: those of its name, or numbers from 0."""
    labels, varied = [np.arange(n) for n in run.batch_shape], varied_values(run)
    for i, name in enumerate(run.about.axes):
        if name in varied and varied[name].ndim == len(labels):
            labels[i] = varied[name][
                tuple(slice(None) if i == k else 0 for k in range(len(labels)))
            ]
    return labels


def label_field(labels: Any, field: str, count: int, default: Callable[[int], str]) -> list[str]:
    """The entries of one field of `Labels`, filled up to `count` by `default(i)`."""
    values = tuple(getattr(labels, field, ()))
    return [values[i] if i < len(values) else default(i) for i in range(count)]


def per_second(unit: str) -> str:
    """The unit of a rate, `m/s` for `m`, `A` for `C`; nothing for nothing."""
    return {"": "", "C": "A"}.get(unit, f"{unit}/s")


def common_unit(units: list[str]) -> str:
    """The unit that all entries share, or nothing: a norm over mixed units has none."""
    return units[0] if len(set(units)) == 1 else ""
