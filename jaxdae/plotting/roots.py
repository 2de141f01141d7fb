"""Roots in the complex plane."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from jaxdae.plotting import style

_MARKERS = "oxs^vD+*"


def plot_roots(
    roots: Mapping[str, ArrayLike], *, linear: float = 1.0, title: str | None = None
) -> Figure:
    """Draw sets of roots in the complex plane.

    An axis that spans decades is linear near the origin and logarithmic farther out, so that an
    electrical root at -1e4 and a mechanical one at -0.4 are seen in one picture. The unstable half
    is shaded.

    Args:
        roots: names and roots [1/s], each of shape `(s,)`.
        linear: size of the linear part [1/s].
        title: heading of the figure.

    Returns:
        The figure.

    Raises:
        ValueError: when there are no roots, or some are not finite.
    """
    sets = {name: np.asarray(x, np.complex128).ravel() for name, x in roots.items()}
    if not any(x.size for x in sets.values()):
        raise ValueError("there are no roots to draw")
    if not all(np.isfinite(x).all() for x in sets.values()):
        raise ValueError("some roots are not finite; they cannot be drawn")
    figure, axes = style.new_axes(1, title=title)
    figure.set_size_inches(8.0, 4.5)
    ax = axes[0, 0]
    for i, (color, (name, x)) in enumerate(zip(style.colors(len(sets)), sets.items(), strict=True)):
        marker = _MARKERS[i % len(_MARKERS)]
        face = {"facecolors": "none", "edgecolors": color} if marker in "os^vD" else {"c": color}
        # Later sets are drawn smaller, so that coinciding roots show as nested marks.
        ax.scatter(np.real(x), np.imag(x), marker=marker, s=90 / (1 + 0.6 * i), label=name, **face)
    every = np.concatenate(list(sets.values()))
    # Ticks of a logarithmic scale need a decade or more.
    if np.abs(np.real(every)).max() > 10 * linear:
        ax.set_xscale("symlog", linthresh=linear)
    if np.abs(np.imag(every)).max() > 10 * linear:
        ax.set_yscale("symlog", linthresh=linear)
    right = max(ax.get_xlim()[1], linear)
    ax.axvspan(0, right, color=style.FAILURE, alpha=0.06, linewidth=0)
    ax.set_xlim(right=right)
    ax.axvline(0, color=style.QUIET, linewidth=1.0)
    ax.set_ylabel("imaginary part [1/s]")
    style.finish(axes, xlabel="real part [1/s]")
    return figure
