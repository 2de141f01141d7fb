"""All mechanisms of the suite, and their references as files have them."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import nonholonomic, planar, spatial
from .mechanism import Mechanism

FOLDER = Path(__file__).parents[2] / "docs" / "data" / "suite"

MECHANISMS: dict[str, Mechanism] = {
    one.name: one()
    for file in (planar, spatial, nonholonomic)
    for one in vars(file).values()
    if isinstance(one, type) and issubclass(one, Mechanism) and one is not Mechanism
}


class Motion(NamedTuple):
    """A motion and its derivatives by the p values of `Mechanism.by`, in double precision.

    Args:
        t: times.
        rows: q, v, lam at each time, `(times, 2n + m)`.
        first: `(times, 2n + m, p)`.
        second: `(times, 2n + m, p, p)`.
        impacts: their times.
    """

    t: np.ndarray
    rows: np.ndarray
    first: np.ndarray
    second: np.ndarray
    impacts: np.ndarray


def reference(name: str) -> Motion:
    """The reference motion of a mechanism.

    Args:
        name: as it is in `MECHANISMS`.
    """
    data = json.loads((FOLDER / f"{name}.json").read_text())
    rows, first, second = (as_floats(data[x]) for x in ("rows", "first", "second"))
    return Motion(np.array(data["t"]), rows, first, second, as_floats(data["impacts"]["t"]))


def as_floats(nested: Any) -> np.ndarray:
    """Nested lists of decimals as an array."""
    return np.array(nested, dtype="U40").astype(float)
