"""Names of points on paper: beside links, beside each other, inside of the picture."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import jaxdae
from helpers.moving import Spiral, Turning, turning_run
from jaxdae.plotting import plot_mechanism


class Star(Turning):
    """Rods from a hub, a closed loop around them, names of all lengths; it turns with `q`."""

    rods: int = 5

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        del t
        angles = q[0] + 2 * jnp.pi / self.rods * jnp.arange(self.rods)
        ends = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        names = [f"rod {'i' * (i + 1)}" for i in range(self.rods)]
        places = {"hub of all": jnp.zeros(2), **dict(zip(names, ends, strict=True))}
        spokes = tuple(("hub of all", name) for name in names)
        return jaxdae.Points(places, links=(*spokes, (*names[1:], names[0])))


def boxes(figure):
    """Texts of a drawn picture in pixels, and the pixels of the links of the last position."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ax = figure.axes[0]
    texts = [x.get_window_extent(canvas.get_renderer()) for x in ax.texts]
    lines = [x for x in ax.get_lines() if x.get_linewidth() == 2.0]
    corners = ax.transData.transform(np.asarray(lines[-1].get_data()).T)
    pieces = itertools.pairwise(corners)
    # Gaps between chains are NaN, which no box holds.
    return ax, texts, np.concatenate([np.linspace(a, b, 200) for a, b in pieces])


@pytest.mark.parametrize(("angle", "rods"), [(0.0, 3), (0.7, 5), (1.9, 7)])
def test_names_cover_no_link_and_no_other_name(angle, rods):
    """As they are drawn; the hub's too, in the angle between two rods."""
    run = turning_run(Star(rods=rods))
    ax, texts, links = boxes(plot_mechanism(run, times=[angle]))
    assert len(texts) == rods + 1
    for box in texts:
        # A pixel of ascenders and descenders is empty.
        low, high = np.asarray(box.min) + 1.0, np.asarray(box.max) - 1.0
        inside = (links > low).all(axis=1) & (links < high).all(axis=1)
        assert not inside.any()
        assert ax.bbox.x0 - 1.0 <= box.x0 < box.x1 <= ax.bbox.x1 + 1.0
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)


def test_names_in_space_stand_beside_their_points_as_they_are_seen():
    """A ring around the point, whose name is not on it; within a finger's width."""
    figure = plot_mechanism(turning_run(Spiral()), times=1)
    FigureCanvasAgg(figure).draw()
    ax = figure.axes[0]
    (text,) = ax.texts
    box = text.get_window_extent()
    (point,) = [x for x in ax.get_lines() if x.get_marker() == "o"]
    seen = ax.transData.transform(np.asarray(point.get_data()).T)[0]
    middle = np.mean([box.min, box.max], axis=0)
    assert 0.0 < np.linalg.norm(middle - seen) < 0.6 * figure.get_dpi()
    assert not box.contains(*seen)


@pytest.mark.slow
def test_names_of_a_film_do_not_jump():
    """A rod that turns by 4.5 degrees in a frame: its names go with it, but for a few."""
    from jaxdae.plotting.film import Film, timing

    run = turning_run()
    shown = Film(
        run, timing(0.0, 2.0, fps=20.0, speed=1.0), names=True, plane=None, title=None, width=300
    )
    sides = []
    for i in range(len(shown)):
        shown.show(i)
        sides.append(shown._sides["end, same"])
    turns = np.einsum("ij,ij->i", sides[:-1], sides[1:])
    assert (turns < np.cos(np.pi / 4)).sum() <= 2
