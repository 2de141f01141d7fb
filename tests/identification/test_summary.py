"""Summaries and pictures of fits to many records stay short."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from jaxdae.identification import FittedChannel, Identification
from jaxdae.plotting import plot_residuals


def result(count) -> Any:
    """A stub of a fit to so many records; the third one is off."""
    ts, rng = np.linspace(0.1, 1.0, 10), np.random.default_rng(0)
    noise = [rng.normal(size=10) * (5.0 if i == 2 else 1.0) for i in range(count)]
    data = tuple({"angle": FittedChannel(ts, x, np.zeros(10), np.ones(10), "rad")} for x in noise)
    names = [f"q1 at the start of experiment '{i}'" for i in range(count)]
    names += [f"offset of angle in experiment '{i}'" for i in range(count)]
    errors = {name: 0.1 + i for i, name in enumerate(names)}
    return SimpleNamespace(
        data=data, start_errors=errors, estimated_noise=(), reduced_chi_square=1.0,
        degrees_of_freedom=12,
    )  # fmt: skip


def test_few_starts_are_listed_and_of_many_the_range_of_each_kind():
    assert len(Identification._start_lines(result(5))) == 10
    lines = Identification._start_lines(result(100))
    assert lines == [
        "  of each experiment: q1 ± 0.1 to 99.1, 100 in all",
        "  of each experiment: offset of angle ± 100 to 199, 100 in all",
    ]


def test_the_experiment_that_fits_worst_is_named():
    (line,) = Identification._record_line(result(100))
    assert line.startswith("experiments 100, differences of ")
    assert line.endswith("the largest in experiment 3")
    assert Identification._record_line(result(1)) == []


def test_a_picture_of_many_records_has_their_sizes_beside_and_no_legend():
    few, many = plot_residuals(result(5)), plot_residuals(result(100))
    assert len(few.axes) == 1
    assert few.axes[0].get_legend() is not None
    left, right = many.axes
    assert left.get_legend() is None
    assert right.get_xlabel() == "records, in ascending order"
    heights = np.asarray(right.get_lines()[0].get_ydata())
    assert heights.size == 100
    assert (np.diff(heights) >= 0).all()
