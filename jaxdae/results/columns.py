"""A run as a table: one row for each time that was reached, one column for each number."""

import csv
import io
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxdae.files import output_file, replace_file
from jaxdae.results import naming
from jaxdae.results.stored import StoredTrajectory


class Column(NamedTuple):
    """One column of a table.

    Args:
        name: which no other column has.
        unit: empty where none is claimed.
        values: one for each row of the table.
    """

    name: str
    unit: str
    values: np.ndarray

    @property
    def heading(self) -> str:
        """`name [unit]`, or the name alone."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


def columns(run: StoredTrajectory) -> list[Column]:
    """The table of a run: labels of batch members first, then times, then quantities.

    Rows that were not reached are left out.

    Args:
        run: with any number of batch axes.
    """
    reached = np.isfinite(run.ts)
    parts = [*_of_members(run, reached), Column("time", "s", run.ts[reached])]
    for key, about in naming.quantities(run).items():
        rows = run.arrays[key][reached]
        rows = rows.reshape(len(rows), len(about.names))
        for i, (name, unit) in enumerate(zip(about.names, about.units, strict=True)):
            parts.append(Column(about.pattern.format(name), unit, rows[:, i]))
    return _with_names_of_their_own(parts)


def _of_members(run: StoredTrajectory, reached: np.ndarray) -> list[Column]:
    """What says of which batch member a row is."""
    names, labels = naming.axis_names(run), naming.axis_labels(run)
    shaped = [
        x.reshape(*[-1 if i == j else 1 for j in range(len(names))]) for i, x in enumerate(labels)
    ]
    varied = run.tree("varied")
    values = dict(zip(names, shaped, strict=True))
    values |= {k: x for k, x in varied.items() if k not in names and x.shape == run.batch_shape}
    if not run.batch_shape:
        values = {k: x for k, x in varied.items() if np.ndim(x) == 0}
    return [
        Column(name, "", np.broadcast_to(np.asarray(x)[..., None], reached.shape)[reached])
        for name, x in values.items()
    ]


def _with_names_of_their_own(parts: list[Column]) -> list[Column]:
    """Two of one name could not be distinguished."""
    seen: dict[str, int] = {}
    results = []
    for part in parts:
        seen[part.name] = seen.get(part.name, 0) + 1
        number = "" if seen[part.name] == 1 else f" ({seen[part.name]})"
        results.append(part._replace(name=part.name + number))
    return results


def write_csv(run: StoredTrajectory, path: str | Path) -> Path:
    """Write the table of a run as text, with units in its heading and every digit.

    Args:
        run: with any number of batch axes.
        path: the file; `~` is the home folder, folders are made.

    Returns:
        The path that was written.

    Raises:
        OSError: if it cannot be written, or names a folder; the old file is left as it is.
    """
    path = output_file(path, "run.csv")
    parts, text = columns(run), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([part.heading for part in parts])
    writer.writerows(zip(*(map(str, part.values) for part in parts), strict=True))
    replace_file(path, text.getvalue().encode())
    return path
