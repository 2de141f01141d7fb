"""The course of a tuning run: loss, gradient norm, skipped steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxdae.plotting import style


def _read(history: Any, name: str) -> np.ndarray | None:
    """One record of the history as columns, one for each start; `None` when there is none."""
    get = history.get if isinstance(history, Mapping) else lambda key: getattr(history, key, None)
    values = get(name)
    if values is None:
        return None
    values = np.asarray(values)
    return values[:, None] if values.ndim == 1 else values


def _draw_record(ax: Axes, heading: str, values: np.ndarray) -> None:
    """A line for each start, on a logarithmic axis unless a value does not allow it."""
    steps, starts = values.shape
    names = [f"start {i + 1}" for i in range(starts)] if starts > 1 else [heading]
    marker = "." if steps <= 50 else None
    style.draw_lines(ax, np.arange(steps), values, names, marker=marker)
    ax.set_ylabel(heading)
    if not np.any(values <= 0.0):
        style.logarithmic(ax)


def _mark_skipped(ax: Axes, skipped: np.ndarray) -> None:
    """Crosses at the foot of the axes for steps that some start left out."""
    steps = np.flatnonzero(skipped.astype(bool).any(axis=1))
    if steps.size:
        ax.plot(
            steps,
            np.full(steps.shape, 0.03),
            "x",
            color=style.FAILURE,
            transform=ax.get_xaxis_transform(),
            label=f"skipped steps ({steps.size})",
        )


def plot_tuning(history: Any, *, title: str | None = None) -> Figure:
    """Draw the loss and the gradient norm of a tuning run against its steps.

    The axes are logarithmic where all values are positive, else linear. Steps without a finite
    value leave gaps; skipped steps are marked by crosses.

    Args:
        history: attributes or keys `loss`, and optionally `gradient_norm` and `skipped` (whether a
            step was left out because its gradient was not finite), each of shape `(steps,)`, or
            `(steps, starts)` for a run from several starts.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there is no loss.
    """
    loss = _read(history, "loss")
    if loss is None or loss.size == 0:
        raise ValueError("the history has no loss to draw; has the tuning run taken a step?")
    norms, skipped = _read(history, "gradient_norm"), _read(history, "skipped")
    records = {"loss": loss} | ({} if norms is None else {"gradient norm": norms})
    figure, axes = style.new_axes(len(records), title=title)
    for ax, (heading, values) in zip(axes.flat, records.items(), strict=True):
        _draw_record(ax, heading, values)
        if skipped is not None:
            _mark_skipped(ax, skipped)
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    style.finish(axes, xlabel="step")
    return figure
