"""Four-bars in the plane, with the paths of their coupler points and their torques."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.control import Feedforward
from jaxdae.models.four_bar import CrankMotion, FourBar
from jaxdae.plotting.style import new_axes, PALETTE


def compared(motions: dict[str, CrankMotion], path):
    """Two mechanisms, the path wanted and reached, and all torques over the crank's angle.

    Args:
        motions: by name; the first two are drawn.
        path: wanted, from the progress along it to a place.

    Returns:
        A figure.
    """
    figure, axes = new_axes(1, 3, title="Four-bar along a foot's path", sharex=False)
    figure.set_size_inches(14, 5)
    turn, torques = jnp.linspace(0, 2 * jnp.pi, 181), axes[0, 2]
    wanted = np.asarray(jax.vmap(path)(turn))
    for i, (color, (name, motion)) in enumerate(zip(PALETTE, motions.items(), strict=False)):
        law = Feedforward(motion.system, motion, 1)
        values = jax.jit(jax.vmap(law.__call__))(turn / motion.speed)[:, 0]
        torques.plot(np.degrees(turn), values, color=color, label=name)
        if i < 2:
            draw_path(axes[0, i], motion.system, motion.phase + turn, wanted, color)
            axes[0, i].set_title(name, fontsize="medium")
    torques.set(xlabel="crank past its first place [degrees]", ylabel="torque [N m]")
    torques.set_xticks(range(0, 361, 90))
    torques.legend(fontsize="small")
    return figure


def draw_path(ax, linkage: FourBar, angles, wanted, color) -> None:
    """Path wanted and reached, and four positions of the mechanism.

    Args:
        ax: axes of matplotlib.
        linkage: the mechanism.
        angles: of its crank, over a turn [rad].
        wanted: places of the path [m].
        color: of the path that is reached.
    """
    q = jax.vmap(linkage.at_crank)(angles)
    reached = np.asarray(jax.vmap(linkage.tracer)(q))
    quarter = len(q) // 4
    for i, shade in ((0, 1.0), (1, 0.35), (2, 0.35), (3, 0.35)):
        _draw_mechanism(ax, linkage, np.asarray(q[i * quarter]), reached[i * quarter], shade)
    ax.plot(*wanted.T, color="black", linestyle="--", label="wanted")
    ax.plot(*reached.T, color=color, linewidth=2.5, alpha=0.7, label="reached")
    ax.set(xlim=(-0.05, 0.45), ylim=(-0.6, -0.1), aspect="equal", xlabel="x [m]", ylabel="y [m]")
    ax.legend(fontsize="small")


def _draw_mechanism(ax, linkage: FourBar, q, tip, shade: float) -> None:
    """Links and pivots in one position."""
    a, _, c, d = (float(x) for x in linkage.lengths)
    origin, tilt = np.asarray(linkage.origin), float(linkage.tilt)
    along = [np.array([np.cos(x), np.sin(x)]) for x in (*q, tilt)]
    pin, pivot = origin + a * along[0], origin + d * along[3]
    end = pivot + c * along[2]
    color = "#707070"
    for line in ([origin, pin], [pivot, end]):
        ax.plot(*np.array(line).T, color=color, alpha=shade, linewidth=2)
    ax.fill(*np.array([pin, end, tip]).T, color=color, alpha=0.25 * shade)
    ax.plot(*np.array([pin, end, tip, pin]).T, color=color, alpha=shade, linewidth=1)
    ax.plot(*np.array([origin, pivot]).T, "o", color="black", markersize=5)
