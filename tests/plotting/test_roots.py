"""Theorems about the picture of roots."""

import numpy as np
import pytest

from jaxdae.plotting.roots import plot_roots


def test_every_root_is_drawn_where_it_lies():
    sets = {"open": [0.5, -1 + 2j, -1 - 2j], "closed": [-1e4, -0.4]}
    ax = plot_roots(sets, title="roots").axes[0]
    for artist, (name, roots) in zip(ax.collections, sets.items(), strict=False):
        assert artist.get_label() == name
        np.testing.assert_allclose(np.asarray(artist.get_offsets()) @ [1, 1j], roots)
    assert (ax.get_xscale(), ax.get_yscale()) == ("symlog", "linear")
    assert ax.get_xlabel() == "real part [1/s]"
    assert ax.get_ylabel() == "imaginary part [1/s]"
    assert ax.get_xlim()[1] > 0.5


@pytest.mark.slow
def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="no roots to draw"):
        plot_roots({"none": []})
    with pytest.raises(ValueError, match="not finite"):
        plot_roots({"bad": [np.nan]})
