"""What is left of measured channels when a model is fitted to them."""

from typing import Any

from matplotlib.figure import Figure

from jaxdae.plotting import readout, style


def plot_residuals(identification: Any, *, title: str | None = None) -> Figure:
    """Draw measured less fitted values of every channel, one panel for each.

    The shaded band is twice the noise level, in which about 95 of 100 residuals lie where the model
    holds; what bends or drifts is left for a better one.

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
    figure, axes = style.new_axes(len(names), title=title or heading)
    for ax, name in zip(axes.flat, names, strict=True):
        records = [(f"experiment {i + 1}", x[name]) for i, x in enumerate(data) if name in x]
        ax.axhline(0.0, color=style.QUIET, linewidth=1.0)
        for (label, fitted), color in zip(records, style.colors(len(records)), strict=True):
            ax.plot(fitted.ts, fitted.residuals, ".", color=color, markersize=4, label=label)
            bounds = 2.0 * fitted.sigma
            ax.fill_between(fitted.ts, -bounds, bounds, color=color, alpha=0.08, linewidth=0.0)
        ax.set_ylabel(readout.with_unit(name, records[0][1].unit))
    style.finish(axes)
    return figure
