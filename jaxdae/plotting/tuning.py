"""The course of a tuning run: loss, gradient norm, skipped steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jaxdae.plotting import style


def plot_tuning(history: Any, *, title: str | None = None) -> Figure:
    """Draw the loss and the gradient norm of a tuning run against its steps.

    The axes are logarithmic where all values are positive, else linear. Steps without a finite
    value leave gaps; skipped steps are marked by crosses. Validations stand beside the loss.

    Args:
        history: attributes or keys `loss`, and optionally `gradient_norm`, `skipped` (whether a
            step was left out because its gradient was not finite) and `validation` (NaN where it
            was not asked), each of shape `(steps,)`, or `(steps, starts)` for a run from several
            starts.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there is no loss.
    """
    get = history.get if isinstance(history, Mapping) else lambda key: getattr(history, key, None)
    found = {name: get(name) for name in ("loss", "gradient_norm", "skipped", "validation")}
    known = {name.replace("_", " "): np.asarray(x) for name, x in found.items() if x is not None}
    # A column for each start.
    records = {name: x[:, None] if x.ndim == 1 else x for name, x in known.items()}
    if "loss" not in records or records["loss"].size == 0:
        raise ValueError("the history has no loss to draw; has the tuning run taken a step?")
    skipped = records.pop("skipped", np.zeros((0, 1))).astype(bool).any(axis=1)
    validation = records.pop("validation", np.zeros((0, 1)))
    asked = np.flatnonzero(np.isfinite(validation).any(axis=1))
    crosses = np.flatnonzero(skipped)
    figure, axes = style.new_axes(len(records), title=title)
    for ax, (heading, values) in zip(axes.flat, records.items(), strict=True):
        steps, starts = values.shape
        names = [f"start {i + 1}" for i in range(starts)] if starts > 1 else [heading]
        marker = "." if steps <= 50 else None
        style.draw_lines(ax, np.arange(steps), values, names, marker=marker)
        ax.set_ylabel(heading)
        if heading == "loss" and asked.size:
            several = validation.shape[1] > 1
            names = [f"validation {i + 1}" if several else "validation" for i in range(starts)]
            style.draw_lines(ax, asked, validation[asked], names, marker="o", linestyle="--")
            values = np.concatenate([values, validation[asked]])
        if not np.any(values <= 0.0):
            style.logarithmic(ax)
        if crosses.size:  # at the foot of the axes
            place = {"transform": ax.get_xaxis_transform(), "color": style.FAILURE}
            label = f"skipped steps ({crosses.size})"
            ax.plot(crosses, np.full(crosses.shape, 0.03), "x", label=label, **place)
    axes[-1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    style.finish(axes, xlabel="step")
    return figure
