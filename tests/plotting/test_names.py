"""Names of points: beside their points, on the side where nothing joins them."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

import jaxdae
from helpers.moving import Turning, turning_run
from jaxdae.plotting import plot_mechanism


class Fan(Turning):
    """Two rods from a hub, with a second name at the end of one; it turns with `q`."""

    def points(self, t, q):  # pyright: ignore[reportIncompatibleMethodOverride]
        del t
        angles = q[0] + jnp.array([0.0, 2.0])
        one, other = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
        places = {"hub": jnp.zeros(2), "one": one, "other": other, "same": other, "_not": one}
        return jaxdae.Points(places, links=(("one", "hub", "other"),))


@pytest.mark.parametrize("time", [0.0, 0.9, 1.9])
def test_names_stand_in_the_widest_angle_between_links(time):
    """Beyond the ends of rods, and across from both at their hub."""
    figure = plot_mechanism(turning_run(Fan()), times=[time])
    FigureCanvasAgg(figure).draw()
    q = 0.5 * np.pi * time  # a quarter of a turn in each second
    ends = {"one": q, "other, same": q + 2.0, "hub": q + 1.0 + np.pi}
    texts: dict[str, Any] = {x.get_text(): x for x in figure.axes[0].texts}
    assert texts.keys() == ends.keys()
    for name, text in texts.items():
        box = text.get_window_extent()
        point = figure.axes[0].transData.transform(text.xy)
        assert not box.contains(*point)
        beside = np.asarray(text.xyann) / np.linalg.norm(text.xyann)
        wanted = np.array([np.cos(ends[name]), np.sin(ends[name])])
        np.testing.assert_allclose(beside, wanted, rtol=0, atol=1e-6)
        # The nearest corner or side is towards the point.
        assert (0.5 * (box.min + box.max) - point) @ wanted > 0
