"""Plain-text tables and JSON results."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdae.files import replace_file


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


def output_folder(given: str | None, model_name: str) -> Path:
    """Where a command writes: what the user gives, or `results/MODEL`. Makes nothing yet.

    Raises:
        ValueError: before any work, where a file is in the way, or nothing can be written.
    """
    path = Path(given or f"results/{model_name}")
    for place in (path, *path.parents):
        if place.is_file():
            raise ValueError(
                f"cannot write to the folder {path}: {place} is a file; give another --out."
            )
    there = next(place for place in (path, *path.absolute().parents) if place.is_dir())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(
            f"cannot write to the folder {path}: {there} takes no files ({error.strerror}); give "
            "another --out."
        ) from error
    return path


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a result so that an interrupted write leaves the old file whole.

    Args:
        path: file; its folder is made.
        content: numbers, text, NumPy and JAX arrays, nested.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(content), indent=2, allow_nan=False) + "\n"
    replace_file(path, text.encode())


def gain_text(value: Any) -> str:
    """A gain as short text: a number, a diagonal, or a matrix by rows."""
    return np.array2string(
        np.asarray(value), formatter={"float_kind": lambda x: f"{x:.4g}"}, separator=", "
    ).replace("\n", "")


def _cell(x: Any) -> str:
    if isinstance(x, str | int):
        return str(x)
    return "failed" if not np.isfinite(x) else f"{float(x):.4g}"


def _plain(x: Any) -> Any:
    """JSON has no arrays, no NaN and no infinity: lists, and `null` for what is not finite."""
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if x is None or isinstance(x, str | bool | int):
        return x
    if hasattr(x, "tolist"):
        return _plain(np.asarray(x).tolist())
    return float(x) if np.isfinite(x) else None
