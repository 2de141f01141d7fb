"""The common look of all figures, and how they are saved."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from jaxdae.storage.files import naming, output_file, replace_file

# Okabe and Ito's colours, which stay apart for colour-blind readers; the yellow is left out.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
# Names that a legend has room for beside its axes.
_NAMED = 10
FAILURE = "#B00020"
QUIET = "#707070"


def new_axes(
    nrows: int, ncols: int = 1, *, title: str | None = None, sharex: bool = True
) -> tuple[Figure, np.ndarray]:
    """A figure with a grid of axes in the common look.

    Args:
        nrows: rows of axes.
        ncols: columns of axes.
        title: heading above all axes.
        sharex: whether all axes share the horizontal axis.

    Returns:
        The figure, and its axes as an array of shape `(nrows, ncols)`.
    """
    figure = Figure(figsize=(8.0 if ncols == 1 else 5.5 * ncols, 0.8 + 2.2 * nrows))
    figure.set_layout_engine("tight")
    axes = figure.subplots(nrows, ncols, sharex=sharex, squeeze=False)
    for ax in axes.flat:
        ax.grid(visible=True, which="major", color="#DDDDDD", linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
    if title:
        # A fixed distance from the top: a part of a high figure would be in the first axes.
        figure.suptitle(title, y=1.0 - 0.1 / figure.get_figheight())
    return figure, axes


def colors(count: int) -> list:
    """`count` colours that differ clearly, or a smooth ramp when they are too many for that."""
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    return list(colormaps["viridis"](np.linspace(0.0, 0.92, count)))


def draw_lines(
    ax: Axes, ts: np.ndarray, columns: np.ndarray, names: Sequence[str], **style
) -> None:
    """One line per column of `columns`; of many, some at equal distances enter the legend."""
    named = np.linspace(0, len(names) - 1, min(len(names), _NAMED)).round()
    for i, (name, color) in enumerate(zip(names, colors(len(names)), strict=True)):
        ax.plot(ts, columns[:, i], color=color, label=name if i in named else None, **style)


def logarithmic(ax: Axes) -> None:
    """A logarithmic vertical axis; values that are not positive are left out, not clipped."""
    ax.set_yscale("log", nonpositive="mask")
    ax.yaxis.set_minor_locator(NullLocator())  # nine marks a decade take longest to draw
    ax.yaxis.set_major_formatter(FuncFormatter(power_of_ten))


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def power_of_ten(value: float, position: int | None = None) -> str:
    """A tick of a logarithmic axis as plain text: formulas take longer than all the rest."""
    del position
    if value <= 0:
        return ""
    digits, exponent = f"{value:.3e}".split("e")
    digits = f"{float(digits):g}"
    if int(exponent) == 0 and digits != "1":
        return digits
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPTS)
    return power if digits == "1" else f"{digits}·{power}"


def positive(values: np.ndarray) -> np.ndarray:
    """`values` with everything that a logarithmic axis cannot show replaced by nan."""
    return np.where(values > 0.0, values, np.nan)


def draw_size(ax: Axes, ts: np.ndarray, size: np.ndarray, *, color: Any, name: str = "") -> None:
    """The size of an error on a logarithmic axis, its largest value in the legend.

    Exact zeros have no place on such an axis; that a curve is nothing else, the legend says.
    """
    largest = np.max(size[np.isfinite(size)], initial=0.0)
    largest = f"max {largest:.1e}" if largest > 0.0 else "exactly zero"
    label = f"{name} ({largest})" if name else largest
    ax.plot(ts, positive(size), color=color, label=label)


# A start this many times off all that comes later would take the axis for itself.
_APART = 10.0


def show_after_start(ax: Axes) -> None:
    """Limit a logarithmic axis to what comes after the start, where that is far from all of it.

    A start that is given may be orders of magnitude above what a stabilization leaves of it, a
    consistent one at round-off as far below. Where it is left out, a remark says its size.
    """
    lines = [np.asarray(line.get_ydata(), float) for line in ax.get_lines()]
    # A change since the start is zero there: what comes next is its first.
    lines = [y[np.argmax(y > 0.0) :] for y in lines if y.size > 1]
    first = [y[0] for y in lines if y[0] > 0.0]
    later = np.concatenate([np.zeros(0), *(y[1:] for y in lines)])
    later = later[np.isfinite(later) & (later > 0.0)]
    if not first or not later.size:
        return
    low, high = float(later.min()), float(later.max())
    above, below = max(first) > _APART * high, min(first) < low / _APART
    if above or below:
        ax.set_ylim(low / 3.0, high * 3.0)
        size, where = (max(first), "above") if above else (min(first), "below")
        place = (0.98, "top") if above else (0.02, "bottom")
        text = f"start {where} the axis: {size:.1e}"
        look = {"transform": ax.transAxes, "fontsize": "small", "color": QUIET}
        ax.text(0.01, place[0], text, va=place[1], **look)


# A spread of so few units in the last place is round-off.
_LAST_PLACES = 16


def limits_of_constant(columns: np.ndarray) -> list[float] | None:
    """Limits for curves that are constant but for round-off, which no axis should enlarge."""
    values = np.asarray(columns)
    if values.size == 0 or values.dtype.kind != "f":
        return None
    part = _LAST_PLACES * float(np.finfo(values.dtype).eps)
    low, high = float(values.min()), float(values.max())
    size = max(abs(low), abs(high))
    if size == 0.0 or high - low > part * size:
        return None
    return [low - 0.1 * size, high + 0.1 * size]


def note(ax: Axes, text: str) -> None:
    """A remark in the middle of axes that would otherwise be empty."""
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=QUIET)


def remark(ax: Axes, text: str) -> None:
    """A remark in the upper right corner."""
    place = {"transform": ax.transAxes, "ha": "right", "va": "top"}
    ax.text(0.99, 0.98, text, fontsize="small", color=QUIET, **place)


def mark_failure(ax: Axes, time: float | None, *, color: str = FAILURE, name: str = "") -> None:
    """A vertical dotted line where a failed run ends, and the time in the legend."""
    if time is None:
        return
    who = f"{name}: " if name else ""
    if np.isfinite(time):
        label = f"{who}failed after t = {time:.4g} s"
        ax.axvline(time, color=color, linestyle=":", linewidth=1.4, label=label)
    else:
        # A line without points: the run has no finished row, yet the legend must say so.
        ax.plot([], [], color=color, linestyle=":", label=f"{who}failed before the first row")


def finish(axes: np.ndarray, *, xlabel: str = "time t [s]") -> None:
    """Legends beside the axes, where they hide no data, and the label of the bottom row.

    Names and units are shown as they are written: two dollar signs make no formula.
    """
    for ax in axes.flat:
        ax.yaxis.label.set_parse_math(False)
        if ax.get_legend_handles_labels()[1]:
            legend = ax.legend(
                loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small"
            )
            for text in legend.get_texts():
                text.set_parse_math(False)
        low, high = ax.get_ylim()
        if ax.get_yscale() == "log" and high < 100 * low:  # hardly a power of ten in it
            narrow = high < 3 * low  # nor more than one of their simple multiples
            ax.yaxis.set_major_locator(
                MaxNLocator(4, steps=(1, 2, 5, 10)) if narrow else LogLocator(subs=(1, 2, 5))
            )
    for ax in axes[-1]:
        ax.set_xlabel(xlabel)


def save_figure(figure: Figure, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure to a file, and make the folders that are missing.

    Args:
        figure: what one of the `plot_...` functions returned.
        path: the file; its suffix chooses the format, `.png` when it has none. `~` is the home
            folder.
        dpi: resolution of formats made of pixels [1/inch].

    Returns:
        The path that was written.

    Raises:
        ValueError: for a suffix that names no format of pictures.
        OSError: if it cannot be written, or names a folder.
    """
    path = output_file(path, "figure.png")
    suffix = path.suffix.lower()
    known = sorted(f".{x}" for x in figure.canvas.get_supported_filetypes())
    if not suffix:
        path, suffix = path.with_name(f"{path.name}.png"), ".png"
    elif suffix not in known:
        raise ValueError(
            f"no picture can be written as {suffix!r} ({str(path)!r}): its suffix must be one of "
            f"{', '.join(known)}; for a name with a dot in it give {f'{path.name}.png'!r}. Films "
            "are written by animate, pages by save_page, numbers of a run by its own methods."
        )
    content = io.BytesIO()
    with naming(path):
        # Files of the first level of compression are written in half the time.
        more: dict[str, Any] = {"pil_kwargs": {"compress_level": 1}} if suffix == ".png" else {}
        figure.savefig(content, dpi=dpi, format=suffix.removeprefix("."), **more)
    replace_file(path, content.getvalue())
    return path
