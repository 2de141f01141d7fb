import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxdae import Baumgarte
from jaxdae.tuning import (
    HurwitzPolynomial,
    Interval,
    Positive,
    PositiveDefinite,
    trainable,
)

# Round trips go through exp(log(x)) and short products: a few units in the last place.
ROUND_OFF = 1e-13

SPD = np.array([[2.0, 0.5, -0.3], [0.5, 1.0, 0.2], [-0.3, 0.2, 0.7]])

ROUND_TRIPS = [
    (Positive, (3.0,), 3.0),
    (Positive, (np.array([20.0, 1e-8, 1e9]),), np.array([20.0, 1e-8, 1e9])),
    (Positive, (7,), 7.0),
    (PositiveDefinite, (SPD,), SPD),
    (PositiveDefinite, (np.array([[4.0]]),), np.array([[4.0]])),
    (Interval, (0.3, 0.0, 1.0), 0.3),
    (Interval, (np.array([-1.5, 4.0]), -2.0, np.array([0.0, 5.0])), np.array([-1.5, 4.0])),
]


@pytest.mark.parametrize(("kind", "args", "value"), ROUND_TRIPS)
def test_the_value_is_the_one_given(kind, args, value):
    np.testing.assert_allclose(kind(*args).value, value, rtol=ROUND_OFF)


ROOTS = [
    [-2.0],
    [-0.5, -1 + 4j, -1 - 4j],
    [-1.0, -1.0, -1.0, -1.0, -1.0],
    [-0.01, -50.0, -3 + 1e-3j, -3 - 1e-3j],
]


@pytest.mark.parametrize("roots", ROOTS)
@pytest.mark.parametrize("by", ["coefficients", "roots"])
def test_a_hurwitz_polynomial_is_the_one_given(roots, by):
    ascending = np.poly(roots).real[:0:-1]
    given = {"roots": roots} if by == "roots" else {"coefficients": ascending}
    value = HurwitzPolynomial(**given).value
    # numpy.roots is backward stable: its factors multiply to the given polynomial up to a small
    # multiple of machine epsilon, also for multiple roots, in which it loses most digits.
    np.testing.assert_allclose(value, ascending, rtol=1e-12)


@pytest.mark.parametrize("degree", [1, 4, 5])
def test_every_raw_array_gives_a_hurwitz_polynomial(degree, rng):
    start = HurwitzPolynomial(roots=-np.arange(1.0, degree + 1))
    for raw in rng.normal(scale=2.0, size=(20, degree)):
        module = eqx.tree_at(lambda p: p.raw, start, jnp.asarray(raw))
        roots = np.roots([1.0, *np.asarray(module.value)[::-1]])
        assert roots.real.max() < 0


def test_every_raw_array_gives_a_symmetric_positive_definite_matrix(rng):
    start = PositiveDefinite(SPD)
    for raw in rng.normal(size=(20, 6)):
        value = np.asarray(eqx.tree_at(lambda p: p.raw, start, jnp.asarray(raw)).value)
        np.testing.assert_array_equal(value, value.T)
        assert np.linalg.eigvalsh(value).min() > 0


def test_every_raw_array_stays_inside_its_interval(rng):
    start = Interval(np.zeros(50), -1.0, 2.0)
    module = eqx.tree_at(lambda p: p.raw, start, jnp.asarray(rng.normal(scale=5.0, size=50)))
    assert -1.0 < module.value.min() < module.value.max() < 2.0


REFUSED = [
    (
        lambda: Positive(-1.0),
        r"Positive: the value is -1, must be > 0; start from a pos",
    ),
    (lambda: Positive([1.0, 0.0]), r"Positive: the value at \[1\] is 0, must be > 0"),
    (lambda: Positive(1.0 + 2.0j), r"Positive: got a complex value"),
    (lambda: PositiveDefinite(2.0), r"got shape \(\), needs \(m, m\).*use Positive"),
    (lambda: PositiveDefinite([[1.0, 1.0], [0.0, 1.0]]), r"the matrix is not symmetric.* 1;"),
    (lambda: PositiveDefinite([[1.0, 2.0], [2.0, 1.0]]), r"the matrix must be positive.*value -1;"),
    (lambda: PositiveDefinite([[1.0, 1.0], [1.0, 1.0]]), r"PositiveDefinite: the matrix.*; (g|a)"),
    (lambda: PositiveDefinite([[jnp.nan]]), r"PositiveDefinite: the matrix is not finite"),
    (
        lambda: PositiveDefinite(jnp.array([[1.0, 1 - 5e-8], [1 - 5e-8, 1.0]], jnp.float32)),
        r"singular to round-off in float32, its Cholesky pivots are .*; add a multiple of the id",
    ),
    (lambda: Interval(1.0, 0.0, 1.0), r"Interval: upper - x is 0, must be > 0; start strictly"),
    (lambda: Interval(0.5, 1.0, 0.0), r"Interval: upper - lower is -1.*exchange the bounds"),
    (lambda: HurwitzPolynomial(), r"exactly one of"),
    (lambda: HurwitzPolynomial([-1.0]), r"root 1.* has real part 1, must be < 0"),
    (lambda: HurwitzPolynomial([0.0, 0.0]), r"has real part 0, must be < 0"),
    (lambda: HurwitzPolynomial([jnp.inf]), r"not finite"),
    (lambda: HurwitzPolynomial(np.ones((2, 2))), r"got shape \(2, 2\), needs a vector"),
    (lambda: HurwitzPolynomial(roots=[-1 + 1j, -2.0]), r"not conjugate pairs"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_an_inadmissible_value_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_matrix_is_symmetric_up_to_round_off_like_a_gain():
    # What `Baumgarte` takes as a gain can be tuned; both parts of the pair are averaged.
    matrix = SPD + 1e-6 * np.array([[0, 1, 0], [-1, 0, 0], [0, 0, 0]])
    Baumgarte(K_D=matrix, K_P=1.0)
    np.testing.assert_allclose(PositiveDefinite(matrix).value, SPD, rtol=ROUND_OFF)


def test_a_traced_polynomial_is_refused():
    with pytest.raises(TypeError, match="cannot factor a traced polynomial"):
        jax.jit(lambda c: HurwitzPolynomial(c).value)(jnp.ones(2))


def test_only_raw_arrays_and_plain_arrays_are_trained():
    params = (Interval(0.5, 0.0, 1.0), jnp.ones(2), 3.0, jnp.arange(2), "text")
    trained = jax.tree.leaves(eqx.filter(params, trainable(params)))
    assert [x.shape for x in trained] == [(), (2,)]


@pytest.mark.slow
def test_gradients_agree_with_central_differences():
    modules = (
        Positive(jnp.array([2.0, 3.0])),
        PositiveDefinite(SPD),
        Interval(0.3, 0.0, 1.0),
        HurwitzPolynomial(roots=[-1.0, -2 + 1j, -2 - 1j]),
    )
    for module in modules:

        def value(raw, module=module):
            return eqx.tree_at(lambda p: p.raw, module, raw).value

        check_grads(value, (module.raw,), order=1, modes=("fwd", "rev"))
