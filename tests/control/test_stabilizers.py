"""Stabilizers: the polynomials they promise, and what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import companion_matrix, CoupledGains, HurwitzGains
from jaxdae.control.stabilizers import check_stabilizer

STATE = jaxdae.State([0.0], [0.0])


def roots(stabilizer, degrees):
    return np.sort_complex(np.linalg.eigvals(companion_matrix(stabilizer, degrees, 0.0, STATE)))


def test_repeated_gains_are_the_binomial_power():
    gains = HurwitzGains.repeated(3.0, 4)
    np.testing.assert_allclose(gains.coefficients, [81.0, 108.0, 54.0, 12.0], rtol=1e-15)
    # a root of multiplicity four carries the fourth root of the round-off: 1e-4 of its size
    np.testing.assert_allclose(roots(gains, (4,)), -3.0, atol=1e-2)


def test_without_the_residual_itself_a_violation_stays():
    """Servo, eq. 0.10, sums from j = 1: without `alpha_0 y` there is a root zero."""
    gains = HurwitzGains.repeated(3.0, 4)
    printed = CoupledGains(-jnp.asarray(gains.coefficients).at[0].set(0.0)[None])
    H = np.asarray(companion_matrix(printed, (4,), 0.0, STATE))
    np.testing.assert_array_equal(H @ [1.0, 0.0, 0.0, 0.0], 0.0)
    assert np.linalg.matrix_rank(companion_matrix(gains, (4,), 0.0, STATE)) == 4
    with pytest.raises(ValueError, match="not Hurwitz"):
        check_stabilizer(printed, (4,), 0.0, STATE)


def test_the_companion_matrix_has_the_roots_that_were_chosen():
    wanted = np.array([-1.0 - 2.0j, -1.0 + 2.0j, -0.5])
    gains = HurwitzGains(jaxdae.tuning.HurwitzPolynomial(roots=wanted).value)
    np.testing.assert_allclose(roots(gains, (3,)), np.sort_complex(wanted), rtol=1e-12)
    several = HurwitzGains(([2.0, 3.0], [7.0]))
    np.testing.assert_allclose(roots(several, (2, 1)), [-7.0, -2.0, -1.0], rtol=1e-12)


BAD = [
    (lambda: HurwitzGains([1.0, -1.0]), r"the polynomial is not Hurwitz: root .*choose roots"),
    (lambda: HurwitzGains([0.0, 1.0]), r"not Hurwitz: root 0"),
    (lambda: HurwitzGains.repeated(-1.0, 3), r"not Hurwitz: root 1"),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_unstable_gains_are_refused_when_built(build, message):
    with pytest.raises(ValueError, match=message):
        build()


UNFIT = [
    (
        HurwitzGains([1.0, 1.0]),
        r"has 2 coefficients for program constraint 1, .* degree is 3; give 3",
    ),
    (HurwitzGains(([1.0], [1.0])), r"coefficients for 2 program constraints; there are 1"),
    (
        HurwitzGains(jaxdae.tuning.HurwitzPolynomial(roots=[-1.0] * 3)),
        r"holds a HurwitzPoly.*jaxdae\.tuning\.resolve",
    ),
    (CoupledGains(jnp.ones((1, 2))), r"K has shape \(1, 2\); .* degrees \(3,\) need \(1, 3\)"),
    (CoupledGains(jnp.ones((1, 3))), r"the companion matrix of K is not Hurwitz"),
    (lambda _t, _q, _v, _w, y: y[0], r"returned shape \(3,\); .* of the 1 program .* shape \(1,\)"),
    (lambda _t, _q, _v, _w, y: y[0][:1] + 0.5, r"is 0\.5 for zero residuals, and must be zero"),
]


@pytest.mark.parametrize(("stabilizer", "message"), UNFIT)
def test_stabilizers_that_do_not_fit_are_refused(stabilizer, message):
    with pytest.raises(ValueError, match=message):
        check_stabilizer(stabilizer, (3,), 0.0, STATE)
