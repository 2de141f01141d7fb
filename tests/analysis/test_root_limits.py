"""Theorems about the largest steps for a set of roots, critical ones included."""

import diffrax
import numpy as np
import pytest

from jaxdae.analysis.root_limits import growth, imaginary_reach, root_limit
from jaxdae.solvers import AdamsBashforth, RK4

# Where 1 + z + z^2/2 + z^3/6 + z^4/24 = 1 on the negative real axis.
RK4_INTERVAL = 2.785293563405282


@pytest.mark.parametrize(
    ("solver", "reach"),
    [
        # |R(iy)|² = 1 + y², 1 + y⁴/4; 1 - y⁶/72 + y⁸/576 for RK4, 1 again at y² = 8.
        (diffrax.Euler(), 0.0),
        (diffrax.Heun(), 0.0),
        (RK4(), np.sqrt(8.0)),
        (AdamsBashforth(2), 0.0),
        # Root locus of 12 (zeta³ - zeta²) / (23 zeta² - 16 zeta + 5): leaves the axis at 0.7236.
        (AdamsBashforth(3), 0.7236),
        (diffrax.Kvaerno5(), np.inf),
    ],
)
def test_how_far_up_the_imaginary_axis_a_method_does_not_amplify(solver, reach):
    # The last digit of 0.7236; the others are bisected to round-off at a double root.
    assert imaginary_reach(solver) == pytest.approx(reach, rel=1e-4)


def test_limits_of_mixed_roots():
    """The least over damped and undamped roots; growing and zero roots count for nothing."""
    rk4 = RK4()
    roots = np.array([3.0, 0.0, -10.0, 2j, -2j, 1 + 5j])
    assert root_limit(rk4, roots).limit == pytest.approx(RK4_INTERVAL / 10, rel=1e-6)
    assert root_limit(rk4, roots).root == -10
    fast = np.array([-10.0, 40j, -40j])
    assert root_limit(rk4, fast) == (pytest.approx(np.sqrt(8) / 40, rel=1e-4), 40j)
    assert root_limit(rk4, np.array([3.0, 0.0])) == (np.inf, None)
    # A damping of one part in 1e8 is not told from none.
    light = np.array([-1e-8 + 1j, -1e-8 - 1j])
    assert root_limit(diffrax.Heun(), light).limit == 0
    assert growth(rk4, roots, 0.1) == pytest.approx(
        max(abs(1 - 1 + 1 / 2 - 1 / 6 + 1 / 24), np.sqrt(1 - 0.2**6 / 72 + 0.2**8 / 576)), rel=1e-12
    )
    assert growth(rk4, np.array([3.0, 0.0]), 0.1) == 0
