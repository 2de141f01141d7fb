"""What is left of measured channels when a model is fitted to them, and how well it predicts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jaxdae.plotting import readout, style

# Of more records than these each is drawn thinly, and the band of noise once.
_FEW = 10
# Errors further apart than this factor are drawn on a logarithmic axis.
_FAR = 10.0


def plot_residuals(identification: Any, *, title: str | None = None) -> Figure:
    """Draw measured less fitted values of every channel, one panel for each.

    The shaded band is twice the noise level, in which about 95 of 100 residuals lie where the model
    holds; what bends or drifts is left for a better one. Of more than ten records a panel beside
    shows the root mean square of each, in units of the noise, in place of a legend.

    Args:
        identification: what `jaxdae.identify` returned.
        title: heading of the figure; by default how well the model fits.

    Returns:
        The figure.
    """
    data = identification.data
    names = list(dict.fromkeys(name for record in data for name in record))
    heading = "measured less model, noise levels estimated"
    if not identification.estimated_noise:
        heading = (
            f"measured less model: reduced chi-square {identification.reduced_chi_square:.3g} at "
            f"{identification.degrees_of_freedom} degrees of freedom"
        )
    many = len(data) > _FEW
    figure, axes = style.new_axes(len(names), 1 + many, title=title or heading, sharex=not many)
    for row, name in zip(axes, names, strict=True):
        records = [(f"experiment {i + 1}", x[name]) for i, x in enumerate(data) if name in x]
        _draw_residuals(row[0], records, many=many)
        row[0].set_ylabel(readout.with_unit(name, records[0][1].unit))
        if many:
            sizes = [_rms(x.residuals / x.sigma) for _, x in records]
            _draw_sizes(row[1], {"": np.array(sizes)}, "root mean square / noise")
            row[1].axhline(1.0, color=style.QUIET, linewidth=1.0)
            row[1].set_ylim(bottom=0.0)
            row[0].set_xlabel("time t [s]")
    if not many:
        style.finish(axes)
    return figure


def plot_predictions(validations: Mapping[str, Any] | Any, *, title: str | None = None) -> Figure:
    """Draw how the errors of predictions grow, beside those of each record.

    On the left the root mean square of the errors of all records against the time ahead; on the
    right that of each record up to the horizon, in ascending order of the first model's. Axes are
    logarithmic where errors are more than ten times as large as others.

    Args:
        validations: what `jaxdae.identification.validate` returned, or several by the names of
            their models, of the same records.
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: for validations of different records.
    """
    by_model = validations if isinstance(validations, Mapping) else {"": validations}
    first = next(iter(by_model.values()))
    for name, x in by_model.items():
        if x.records != first.records:
            raise ValueError(
                f"plot_predictions: {name!r} has {len(x.records)} records, "
                f"{next(iter(by_model))!r} {len(first.records)}; compare models on the same ones."
            )
    heading = title or "errors of predictions, root mean square"
    figure, axes = style.new_axes(len(first.channels), 2, title=heading, sharex=False)
    for row, channel in zip(axes, first.channels, strict=True):
        unit = next(x[channel].unit for x in first.data if channel in x)
        for (name, one), color in zip(by_model.items(), style.colors(len(by_model)), strict=True):
            row[0].plot(*one.by_horizon(channel), color=color, label=name or None)
        row[0].set(xlabel="time ahead [s]", ylabel=readout.with_unit(channel, unit))
        sizes = {name: one.rms(channel) for name, one in by_model.items()}
        _draw_sizes(row[1], sizes, readout.with_unit(channel, unit), first.records)
        known = np.concatenate([x[np.isfinite(x) & (x > 0)] for x in sizes.values()])
        if known.size and known.max() > _FAR * known.min():
            style.logarithmic(row[0])
            style.logarithmic(row[1])
        else:
            row[0].set_ylim(bottom=0.0)
            row[1].set_ylim(bottom=0.0)
        if len(by_model) > 1:
            row[1].legend(
                loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small"
            )
    return figure


def _draw_residuals(ax: Any, records: Sequence[tuple[str, Any]], *, many: bool) -> None:
    ax.axhline(0.0, color=style.QUIET, linewidth=1.0)
    size = {"markersize": 2, "alpha": 0.5} if many else {"markersize": 4}
    for (label, fitted), color in zip(records, style.colors(len(records)), strict=True):
        shown = None if many else label
        ax.plot(fitted.ts, fitted.residuals, ".", color=color, label=shown, **size)
        bounds = 2.0 * fitted.sigma
        if not many:
            ax.fill_between(fitted.ts, -bounds, bounds, color=color, alpha=0.08, linewidth=0.0)
    if many:
        bound = 2.0 * float(np.median(np.concatenate([x.sigma for _, x in records])))
        ax.axhspan(-bound, bound, color=style.QUIET, alpha=0.15, linewidth=0.0)


def _draw_sizes(
    ax: Any, sizes: Mapping[str, np.ndarray], word: str, names: Sequence[str] = ()
) -> None:
    """Root mean squares of records, in the order of the first ones."""
    order = np.argsort(next(iter(sizes.values())), kind="stable")
    places = np.arange(order.size)
    for (name, x), color in zip(sizes.items(), style.colors(len(sizes)), strict=True):
        ax.plot(places, x[order], ".", color=color, label=name or None)
    ax.set(ylabel=word, xlabel="records, in ascending order")
    if names and order.size <= _FEW:
        ax.set_xticks(places, [names[i] for i in order], rotation=20, fontsize="small")
        ax.set_xlabel("record")
        ax.margins(x=0.1)


def _rms(x: np.ndarray) -> float:
    known = x[np.isfinite(x)]
    return float(np.sqrt(np.mean(known**2))) if known.size else float("nan")
