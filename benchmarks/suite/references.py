"""Reference motions of the suite of mechanisms, in extended precision: a file for each.

    pip install gmpy2
    cd benchmarks
    python -m suite.references                   # all, in about an hour
    python -m suite.references pendulum torus    # some
    python -m suite.references --again           # those reduced by hand, by the second method

How they are computed is said in `taylor.py`. The motion and its derivatives by the first
parameter are computed twice, with two orders of the series, two tolerances and two increments of
differences; the file has the largest difference of both in `agreement`, relative to the largest
number of its column. Where a mechanism is reduced by hand (`reduced.py`), the second method
(`extrapolation.py`) computes coordinates, velocities and all their derivatives again, at all times;
the largest differences from the file are its `second_method`.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from .catalogue import FOLDER, MECHANISMS
from .extrapolation import again
from .mechanism import Mechanism
from .reduced import REDUCED
from .taylor import gmpy2, INCREMENT, Jet, jets, mpfr, ORDER, Reference, TOLERANCE

PARTS = 4  # times are quarters of the motion's length
DIGITS = 20
ZERO = mpfr("1e-15")  # derivatives that vanish are found with errors of 1e-18


def computed(
    mechanism: Mechanism, by: Sequence[str], tolerance: Any, order: int, increment: Any
) -> Jet:
    """A motion with its derivatives, as one list of numbers."""
    reference = Reference(mechanism, tolerance, order)
    times = [mpfr(mechanism.t1) * i / PARTS for i in range(PARTS + 1)]
    return jets(lambda values: reference.run(values, times), mechanism, by, increment)


def difference(pairs: Iterable[tuple[list[Any], list[Any]]]) -> float:
    """The largest, relative to the largest number of its column.

    Args:
        pairs: rows of numbers as they were found in two ways, for all times and derivatives.
    """
    sizes: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    for one, other in pairs:
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            sizes[i] = max(sizes.get(i, ZERO), abs(a))
            errors[i] = max(errors.get(i, mpfr(0)), abs(a - b))
    return float(max((errors[i] / x for i, x in sizes.items() if x > ZERO), default=0))


def second_method(mechanism: Mechanism, data: dict[str, Any]) -> dict[str, float]:
    """Largest differences of a file from what the second method finds, of all times.

    Args:
        mechanism: one that is reduced by hand.
        data: what the file has.
    """
    gmpy2.get_context().precision = 200
    n, by = 2 * len(mechanism.coordinates), range(len(mechanism.by))
    times = [mpfr(mechanism.t1) * i / PARTS for i in range(PARTS + 1)]
    found = again(mechanism, times)

    def off(flat: list[Any], wanted: list[list[str]]) -> float:
        rows = [flat[i * n : (i + 1) * n] for i in range(len(times))]
        return difference((a, [*map(mpfr, b)]) for a, b in zip(rows, wanted, strict=True))

    def column(kind: str, *at: int) -> list[list[str]]:
        return [[reduce(getitem, at, x) for x in row[:n]] for row in data[kind]]

    return {
        "motion": off(found.value, column("rows")),
        "first": max(off(found.first[i], column("first", i)) for i in by),
        "second": max(off(found.second[i][j], column("second", i, j)) for i in by for j in by),
    }


def split(numbers: list[Any], mechanism: Mechanism) -> tuple[list[list[Any]], list[Any]]:
    """Rows of times, and what belongs to impacts."""
    count = (len(numbers) - mechanism.events) // (PARTS + 1)
    if count * (PARTS + 1) + mechanism.events != len(numbers):
        raise ValueError(f"{mechanism.name} has another number of impacts than it declares")
    rows = [numbers[i * count : (i + 1) * count] for i in range(PARTS + 1)]
    return rows, numbers[(PARTS + 1) * count :]


def written(mechanism: Mechanism) -> dict[str, Any]:
    """What the file of a mechanism has."""
    fine = computed(mechanism, mechanism.by, TOLERANCE, ORDER, INCREMENT)
    coarse = computed(mechanism, mechanism.by[:1], mpfr("1e-33"), ORDER - 6, INCREMENT * 10)
    kinds = {
        "motion": [(fine.value, coarse.value)],
        "first": [(fine.first[0], coarse.first[0])],
        "second": [(fine.second[0][0], coarse.second[0][0])],
    }
    agreement = {
        kind: difference(
            rows
            for one, other in pairs
            for rows in zip(split(one, mechanism)[0], split(other, mechanism)[0], strict=True)
        )
        for kind, pairs in kinds.items()
    }
    text = lambda x: f"{x:.{DIGITS - 1}e}" if abs(x) > ZERO else "0"  # noqa: E731
    value, by, twice = fine
    places = range(len(value))
    numbers = {
        "rows": [text(value[i]) for i in places],
        "first": [[text(x[i]) for x in by] for i in places],
        "second": [[[text(x[i]) for x in row] for row in twice] for i in places],
    }
    parts = {kind: split(x, mechanism) for kind, x in numbers.items()}
    n = len(mechanism.coordinates)
    m = len(parts["rows"][0][0]) - 2 * n
    return {
        "mechanism": mechanism.name,
        "summary": (type(mechanism).__doc__ or "").strip(),
        "kinds": mechanism.kinds,
        "source": mechanism.source,
        "values": mechanism.values,
        "by": mechanism.by,
        "columns": [
            *mechanism.coordinates,
            *(f"rate of {x}" for x in mechanism.coordinates),
            *(f"multiplier {i + 1}" for i in range(m)),
        ],
        "t": [mechanism.t1 * i / PARTS for i in range(PARTS + 1)],
        "agreement": agreement,
        **{kind: rows for kind, (rows, _) in parts.items()},
        "impacts": {{"rows": "t"}.get(kind, kind): rest for kind, (_, rest) in parts.items()},
    }


def saved(data: dict[str, Any], file: Path) -> None:
    """One line for each time, so that differences of files can be read."""
    lines = []
    for key, value in data.items():
        if key in ("rows", "first", "second"):
            inner = ",\n  ".join(json.dumps(x) for x in value)
            lines.append(f"{json.dumps(key)}: [\n  {inner}\n ]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    file.write_text("{\n " + ",\n ".join(lines) + "\n}\n")


def main() -> None:
    """As the first lines say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[*MECHANISMS])
    parser.add_argument("--again", action="store_true", help="the second method alone")
    parser.add_argument("--out", type=Path, default=FOLDER)
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    for name in words.names:
        file = words.out / f"{name}.json"
        if words.again and name not in REDUCED:
            continue
        data = json.loads(file.read_text()) if words.again else written(MECHANISMS[name])
        if name in REDUCED:
            data["second_method"] = second_method(MECHANISMS[name], data)
        saved(data, file)
        print(name, data["agreement"], data.get("second_method", ""), flush=True)


if __name__ == "__main__":
    main()
