"""Plain-text tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table with aligned columns: text to the left, numbers to the right.

    Args:
        headings: one for each column.
        rows: cells; floats are written with four significant digits.

    Returns:
        Text of `len(rows) + 2` lines.
    """
    cells = [[_cell(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    right = [all(not isinstance(row[i], str) for row in rows) for i in range(len(headings))]
    line = lambda row: "  ".join(  # noqa: E731
        x.rjust(w) if r else x.ljust(w) for x, w, r in zip(row, widths, right, strict=True)
    ).rstrip()
    rule = "  ".join("-" * w for w in widths)
    return "\n".join([line(headings), rule, *map(line, cells)])


def array_text(value: Any, digits: int | None = None, most: int = 1000) -> str:
    """A number or an array as text in one line.

    Args:
        value: a number, a vector or a matrix, shown by rows.
        digits: significant ones; by default NumPy's.
        most: numbers that are shown; of more, those at the ends.
    """
    write: Any = None if digits is None else {"float_kind": lambda x: f"{x:.{digits}g}"}
    text = np.array2string(np.asarray(value), formatter=write, separator=", ", threshold=most)
    return " ".join(text.split()).replace("[ ", "[").replace(" ]", "]")


def gain_text(value: Any) -> str:
    """A gain as short text: a number, a diagonal, or a matrix by rows."""
    return array_text(value, digits=4)


def root_text(root: Any, digits: int = 6) -> str:
    """A root as short text: a real one as one number, a complex pair as one."""
    real, imaginary = np.real(root), abs(np.imag(root))
    if imaginary == 0:
        return f"{real:.{digits}g}"
    pair = f"{imaginary:.{digits}g}i"
    return f"±{pair}" if real == 0 else f"{real:.{digits}g} ± {pair}"


def _cell(x: Any) -> str:
    if isinstance(x, str | int):
        return str(x)
    return "failed" if not np.isfinite(x) else f"{float(x):.4g}"
