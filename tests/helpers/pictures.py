"""What pictures of several commands have in common."""

import numpy as np
import pytest


def singular_positions_are_marked(figure, result):
    """By a line through all panels; the arm first passes where its links fold."""
    times = [x["t"] for x in result["near-singular positions"]]
    # The target reaches the fold at 0.295953 / 0.6 s; the penalty form is 0.1 s ahead of it.
    assert times[0] == pytest.approx(0.4933, abs=0.11)
    for ax in figure.axes:
        marks = [x.get_xdata()[0] for x in ax.get_lines() if x.get_linestyle() == "--"]
        np.testing.assert_allclose(marks, times, rtol=1e-12)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert any(text.startswith("near-singular") and ", least σ = " in text for text in legend)
