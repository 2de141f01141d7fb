"""What is said of a run in a file, and the names of its arrays."""

import dataclasses
from collections.abc import Mapping
from typing import Any

# Fields of `Power`.
WORKS = ("work.force", "work.dissipation", "work.constraint", "work.explicit")
# Quantities that have a row for each time.
ROWS = (
    "ts", "q", "v", "w", "u", "multipliers", "phi", "phi_dot", "energy", "kinetic_energy",
    "potential_energy", "coordinate_rates", *WORKS,
)  # fmt: skip
# Fields of `Labels`.
LABELS = (
    "coordinates", "units", "constraints", "constraint_units", "actuators", "actuator_units",
    "inputs", "input_units",
)  # fmt: skip
# Positions of points, and their velocities: rows as well.
PLACES, RATES = "drawing.places", "drawing.rates"


@dataclasses.dataclass(frozen=True)
class About:
    """What is said of a run.

    Args:
        model: class of the system.
        formulation: class of the formulation.
        settings: the formulation with what it was made of, as text.
        controller: class of the controller, `None` without one.
        backend: `"native"` or `"plain"`.
        why_not_native: what kept the native backend from serving, or `None`.
        labels: fields of `jaxdae.Labels` by name.
        axes: names of the batch axes, as far as they have some.
        stats: statistics that are no arrays.
        failure: why a single run did not reach its end, in words.
        left_out: parameters that are no arrays of numbers.
        versions: releases of `jaxdae` and `jax` that made the run.
        drawing: names of the points and what joins them, where the system declares points.
    """

    model: str = ""
    formulation: str = ""
    settings: str = ""
    controller: str | None = None
    backend: str = ""
    why_not_native: str | None = None
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    axes: tuple[str, ...] = ()
    stats: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: str | None = None
    left_out: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drawing: Mapping[str, Any] | None = None
