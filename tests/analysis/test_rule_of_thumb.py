"""The table of gains for the usual methods."""

import diffrax
import numpy as np
import pytest

from jaxdae.analysis import rule_of_thumb, rule_of_thumb_table
from jaxdae.solvers import AdamsBashforth, RK4


def test_rows_are_gains_for_a_step_of_one_second():
    rows = rule_of_thumb([diffrax.Euler(), RK4(), AdamsBashforth(1)], margins=(1.0, 2.0))
    assert [x.method for x in rows[::2]] == ["Euler", "RK4", "AdamsBashforth(1)"]
    assert [x.margin for x in rows[:2]] == [1.0, 2.0]
    np.testing.assert_allclose(rows[0][2:], [2.0, 1.0, 1.0, 0.0, 0.0], atol=1e-9)
    # (1 - x) and -(1 - x / 2) are of one size where x = 4/3: a third.
    np.testing.assert_allclose(rows[1][2:], [8 / 3, 16 / 9, 4 / 3, 1 / 3, 1 / 3], rtol=1e-6)
    # Euler's method is Adams and Bashforth's of one step; its optimum is found without zeros.
    np.testing.assert_allclose(rows[4][2:5], rows[0][2:5], rtol=1e-5)
    text = rule_of_thumb_table(rows)
    assert "3.459" in text
    assert "K_P h^2" in text


@pytest.mark.slow
def test_the_usual_methods_have_zeros_but_for_one_and_adams():
    rows = rule_of_thumb(margins=(1.0,))
    damped = [x.method for x in rows if x.factor > 1e-9]
    assert damped == ["ImplicitEuler", "AdamsBashforth(2)", "AdamsBashforth(4)"]
    assert max(x.velocity_factor for x in rows) < 0.9
