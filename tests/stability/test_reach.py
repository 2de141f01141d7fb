"""How far stability regions reach, against what is known of them."""

import diffrax
import numpy as np
import pytest

from jaxdae.solvers import RK4, Rodas5P
from jaxdae.stability.reach import reach
from jaxdae.stability.stability_functions import amplification


def test_the_region_of_the_classical_method_is_as_published():
    # Its ends on both axes, -2.7853 and 2.8284i [HairerWanner1996, section IV.2], on a grid of 1 %.
    np.testing.assert_allclose(reach(RK4(), [-3.0, 5e4j]), [2.7853, 2.8284], rtol=0.02)


@pytest.mark.parametrize("solver", [diffrax.Dopri8(), RK4()])
def test_methods_amplify_beyond_their_reach_and_not_within(solver):
    roots = np.exp(1j * np.linspace(0.55 * np.pi, np.pi, 9))
    limit = reach(solver, roots)
    # Directions are interpolated between some thirty of them.
    assert (amplification(solver, 0.9 * limit * roots) <= 1.01).all()
    assert (amplification(solver, 1.1 * limit * roots) > 1.01).all()


def test_the_reach_is_of_directions_in_the_left_half_plane():
    """Whatever the size of a root or the sign of its imaginary part."""
    limits = reach(diffrax.Dopri8(), np.array([-1 + 2j, -1 - 2j, -1e6 + 2e6j]))
    np.testing.assert_allclose(limits, limits[0])
    assert reach(RK4(), 1 + 1e6j) == reach(RK4(), 1e6j)
    assert np.isinf(reach(Rodas5P(), [-1.0, -1 + 1j, 2j])).all()  # L-stable
