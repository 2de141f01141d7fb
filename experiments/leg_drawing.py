"""Leg linkages in the plane, with the paths of their feet."""

import jax
import numpy as np

from jaxdae.plotting.style import new_axes, PALETTE, QUIET


def compared(results: dict, path):
    """Both legs in four places of their turn, and height and way back of the feet.

    Args:
        results: of `leg_linkage.study`.
        path: wanted, from the angle of the crank past its phase to a place.

    Returns:
        A figure.
    """
    figure, axes = new_axes(2, 2, title="Leg linkage along a foot's path", sharex=False)
    figure.set_size_inches(11, 9)
    angles = np.linspace(0, 2 * np.pi, 145)
    wanted = np.asarray(jax.vmap(path)(angles))
    for ax, word in ((axes[1, 0], "height"), (axes[1, 1], "place along the ground")):
        ax.set(xlabel="crank past its phase [degrees]", ylabel=f"{word} of the foot [mm]")
        ax.set_xticks(range(0, 361, 60))
        ax.axvspan(0, 180, color="#F0F0F0", zorder=0)
    axes[1, 0].annotate("on the ground", (90, 1), (90, 60), ha="center", color=QUIET)
    for i, ((name, leg), color) in enumerate(zip(results["legs"].items(), PALETTE, strict=False)):
        found = results["examined"][name]
        draw_leg(axes[0, i], leg, found.turn, wanted, color)
        axes[0, i].set_title(
            f"{name}: off the ground by {1e3 * found.ripple:.1f} mm", fontsize="medium"
        )
        for j in (0, 1):
            foot = 1e3 * found.turn.foot[:, 1 - j]
            axes[1, j].plot(np.degrees(angles), foot, color=color, label=name)
    for j in (0, 1):
        height = 1e3 * wanted[:, 1 - j]
        axes[1, j].plot(np.degrees(angles), height, "--", color="black", label="wanted")
        axes[1, j].legend(fontsize="small")
    return figure


def draw_leg(ax, leg, turn, wanted, color) -> None:
    """Path wanted and reached, and four places of the mechanism.

    Args:
        ax: axes of matplotlib.
        leg: its numbers.
        turn: the leg along a turn of its crank.
        wanted: places of the path [m].
        color: of the path that is reached.
    """
    system = leg.mechanism()
    named = jax.vmap(lambda q: {name: x for name, x in system.poses(q).items() if name})
    poses = jax.jit(named)(turn.q)
    quarter = (len(turn.q) - 1) // 4
    for i, shade in ((3, 0.25), (2, 0.25), (0, 0.25), (1, 1.0)):
        k = i * quarter
        _draw_bars(ax, leg, {n: (x.place[k], x.turn[k]) for n, x in poses.items()}, shade)
    ax.plot(*wanted.T, color="black", linestyle="--", linewidth=1, label="wanted")
    ax.plot(*turn.foot.T, color=color, linewidth=2.5, alpha=0.8, label="reached")
    ax.set(aspect="equal", xlabel="x [m]", ylabel="z [m]", xlim=(-0.35, 0.95), ylim=(-0.08, 0.95))
    ax.legend(fontsize="small", loc="upper left")


def _draw_bars(ax, leg, poses, shade: float) -> None:
    """Bars and pivots in one place; arm and leg are triangles."""

    def at(name, x, z=0.0):
        place, turn = (np.asarray(x) for x in poses[name])
        return (place + turn @ np.array([float(x), 0.0, float(z)]))[[0, 2]]

    axle, pin, knee = at("crank", 0), at("arm", 0), at("leg", 0)
    joint, hip = at("arm", leg.arm), at("leg", leg.hip)
    pivots = [axle, at("lower", 0), at("upper", 0)]
    for corners in ((pin, joint, knee), (knee, hip, at("leg", *leg.foot))):
        ax.fill(*np.array(corners).T, color=QUIET, alpha=0.2 * shade, linewidth=0)
        ax.plot(*np.array([*corners, corners[0]]).T, color=QUIET, alpha=shade, linewidth=1)
    for one, other in ((axle, pin), (pivots[1], joint), (pivots[2], hip)):
        ax.plot(*np.array([one, other]).T, color="black", alpha=shade, linewidth=2)
    ax.plot(*np.array(pivots).T, "^", color="black", markersize=6)
