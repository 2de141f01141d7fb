"""Residuals of a fit as a picture."""

from types import SimpleNamespace

import numpy as np
import pytest

from jaxdae.identification import FittedChannel
from jaxdae.plotting import plot_residuals

TS = np.linspace(0.0, 1.0, 5)


def fitted(unit, offset):
    measured = np.array([1.0, np.nan, 1.0, 1.0, 1.0])
    return FittedChannel(TS, measured, measured - offset, np.full(5, 0.1), unit)


@pytest.mark.parametrize("estimated", [(), ("place",)])
def test_each_channel_has_a_panel_with_its_unit_a_zero_line_and_its_residuals(estimated):
    data = ({"place": fitted("m", 0.3), "speed": fitted("", 0.0)}, {"place": fitted("m", -0.2)})
    result = SimpleNamespace(
        data=data, estimated_noise=estimated, reduced_chi_square=1.25, degrees_of_freedom=12
    )
    figure = plot_residuals(result)
    place, speed = figure.axes
    assert (place.get_ylabel(), speed.get_ylabel()) == ("place [m]", "speed")
    assert speed.get_xlabel() == "time t [s]"
    zero, first, second = place.get_lines()
    np.testing.assert_array_equal(zero.get_ydata(), [0.0, 0.0])
    np.testing.assert_allclose(np.asarray(first.get_ydata())[[0, 2]], 0.3)
    np.testing.assert_allclose(np.asarray(second.get_ydata())[0], -0.2)
    legend = place.get_legend()
    assert legend is not None
    assert [x.get_text() for x in legend.get_texts()] == [
        "experiment 1", "experiment 2"
    ]  # fmt: skip
    heading = figure.get_suptitle()
    assert ("noise levels estimated" in heading) == bool(estimated)
    assert ("1.25 at 12" in heading) == (not estimated)
    assert plot_residuals(result, title="fit").get_suptitle() == "fit"
