"""Losses for outliers: SciPy's least squares with the same loss, formulas by hand."""

import warnings
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq, least_squares
from scipy.stats import norm

import jaxdae
from helpers.measured_oscillator import build, CHANNELS, motion, record, START, TIMES
from jaxdae.identification import (
    Experiment,
    identify,
    Measurement,
    posterior,
    Prior,
    repetitions,
    UnknownStart,
)
from jaxdae.identification.linearization import Group, LinearizedFit, OF_START
from jaxdae.identification.losses import Loss, SQUARES

SIGMA = 0.02
GUESS = {"stiffness": jaxdae.tuning.Positive(3.0), "damping": jnp.array(0.4)}
OUTLIERS = {7: 0.5, 8: 0.4, 21: -0.6, 33: 0.7, 46: -0.3}


def measured():
    """Samples with normal noise, a tenth of them off by 15 to 35 times its level."""
    values = motion(TIMES, 4.0, 0.2) + SIGMA * np.random.default_rng(3).normal(size=TIMES.size)
    for place, off in OUTLIERS.items():
        values[place] += off
    return values


def fitted(values, sigma: float | None = SIGMA, start=START, **options):
    experiment = Experiment(TIMES, {"place": Measurement(values, sigma)}, start)
    return identify(build, GUESS, experiment, channels=CHANNELS, dt=0.1, **options)


def slopes_of(residuals, x):
    """By central differences."""
    steps = 1e-6 * np.eye(len(x))
    return np.stack([(residuals(x + h) - residuals(x - h)) / 2e-6 for h in steps], axis=-1)


@pytest.mark.parametrize("scale", [0.8, 1.345])
@pytest.mark.parametrize("name", ["huber", "soft_l1"])
def test_estimates_are_those_of_scipy_and_errors_those_of_the_sandwich(name, scale):
    """On the exact motion; fixed steps of the runs err by less than 1e-9."""
    values = measured()
    result = fitted(values, loss=name, f_scale=scale)

    def residuals(x):
        return (motion(TIMES, *x) - values) / SIGMA

    found = least_squares(
        residuals, (3.0, 0.4), loss=name, f_scale=scale, ftol=1e-14, xtol=1e-14, gtol=1e-12
    )
    order = [result.names.index(x) for x in ("stiffness", "damping")]
    errors = result.classical_errors[order]
    # To a thousandth of a standard error, where both methods end.
    np.testing.assert_allclose(result.values[order], found.x, atol=1e-3 * errors.min())
    np.testing.assert_allclose(result.chi_square, 2 * found.cost, rtol=1e-6)
    assert result.stop_reason == "converged"
    assert result.evaluations < 25

    r, jac = residuals(found.x), slopes_of(residuals, found.x)
    z = (r / scale) ** 2
    if name == "huber":
        psi = np.clip(r, -scale, scale)
        slope = (z < 1).astype(float)
    else:
        psi, slope = r / np.sqrt(1 + z), (1 + z) ** -1.5
    inverse = np.linalg.inv(jac.T @ (jac * slope[:, None]))
    covariance = inverse @ (jac.T @ (jac * psi[:, None] ** 2)) @ inverse * 50 / 48
    # Slopes of less than 1e-4 count as that.
    np.testing.assert_allclose(result.classical_covariance[np.ix_(order, order)], covariance,
                               rtol=2e-3)  # fmt: skip
    assert result.samples_beyond == np.sum(z > 1)
    assert f"{name} beyond {scale:g} sigma, where {result.samples_beyond} samples are" in (
        result.summary()
    )
    assert "by the sandwich formula" in result.summary()
    assert np.isnan(result.probability)
    np.testing.assert_array_equal(result.error_freedom, 48)


def test_outliers_spoil_squares_and_not_a_loss():
    values = measured()
    with pytest.warns(RuntimeWarning, match="do not explain the data"):
        squares = fitted(values)
    robust = fitted(values, loss="huber")
    true = np.array([0.2, 4.0])
    assert robust.names == ("damping", "stiffness")
    assert np.all(np.abs(robust.values - true) < 3 * robust.classical_errors)
    assert np.all(np.abs(robust.values - true) < 0.5 * np.abs(squares.values - true).max())
    # Errors of squares for noise of the level given are too small beside what they are off.
    assert np.abs((squares.values - true) / squares.classical_errors).max() > 3


def test_far_beyond_all_residuals_a_loss_is_the_square():
    experiment = record(np.random.default_rng(2))
    values = experiment.measurements["place"].values
    squares, robust = fitted(values), fitted(values, loss="huber", f_scale=100.0)
    np.testing.assert_allclose(robust.values, squares.values, rtol=1e-7)
    np.testing.assert_allclose(robust.chi_square, squares.chi_square, rtol=1e-9)
    assert robust.samples_beyond == squares.samples_beyond == 0


def test_a_prior_and_a_measured_start_keep_their_squares():
    """SciPy sums the loss of the samples beside their squares."""
    values, start = measured(), UnknownStart(START, q=0.01, v=0.0)
    experiment = Experiment(TIMES, {"place": Measurement(values, SIGMA)}, start)
    result = identify(
        build, GUESS, experiment, channels=CHANNELS, dt=0.1, loss="soft_l1", f_scale=1.0,
        priors={"damping": Prior(0.22, 0.01)},
    )  # fmt: skip

    def residuals(x):
        return np.append((motion(TIMES, *x) - values) / SIGMA, [(x[1] - 0.22) / 0.01,
                                                                (x[2] - 1) / 0.01])  # fmt: skip

    def loss(z) -> Any:
        root, some = np.sqrt(1 + z), np.arange(z.size) < 50
        return np.stack(
            [
                np.where(some, 2 * (root - 1), z),
                np.where(some, 1 / root, 1.0),
                np.where(some, -0.5 / root**3, 0.0),
            ]
        )

    found = least_squares(residuals, (3.0, 0.4, 1.0), loss=cast(Any, loss), ftol=1e-14, xtol=1e-14)
    order = [result.names.index(x) for x in ("stiffness", "damping")]
    errors = result.classical_errors[order]
    np.testing.assert_allclose(result.values[order], found.x[:2], atol=2e-3 * errors.min())
    np.testing.assert_allclose(result.chi_square, 2 * found.cost, rtol=1e-6)


@pytest.mark.parametrize("name", ["huber", "soft_l1"])
def test_rows_have_the_gradient_of_the_cost(name):
    """And of its residuals the influence is the derivative of half the cost."""
    rng, loss = np.random.default_rng(0), Loss(name, 0.7)
    rows = np.array([0, 0, 1, 1, 0, OF_START])
    shared, own = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 6, 1))
    group = Group(
        3 * rng.normal(size=(2, 6)), shared, own, np.array([[3], [4]]), np.zeros(1, bool), rows,
        np.array([0, 1, 0, 1, 2, -1]), (0, 1),
    )  # fmt: skip
    found = LinearizedFit([group], rng.normal(size=1), rng.normal(size=(1, 3)), 5, np.dtype(float))

    def cost(x):
        value = group.value + shared @ x
        priors = found.priors + found.prior_slopes @ x
        return loss.cost(found._replace(groups=[group._replace(value=value)], priors=priors))

    gradient = slopes_of(cost, np.zeros(3))
    np.testing.assert_allclose(2 * loss.rows(found).gradient(), gradient, rtol=1e-5, atol=1e-5)
    expected = jax.grad(lambda r: jnp.where(jnp.abs(r) < 0.7, 0.5 * r**2, 0.7 * jnp.abs(r)))
    if name == "huber":
        np.testing.assert_allclose(
            loss.influence(group.value), jax.vmap(jax.vmap(expected))(group.value), rtol=1e-6
        )


def bulk_of_normal(name, c):
    """`E[psi(n)^2]`: of Huber's loss in closed form [Huber1981, section 7.7]."""
    if name == "huber":
        return norm.cdf(c) - norm.cdf(-c) - 2 * c * norm.pdf(c) + 2 * c**2 * norm.sf(c)
    return quad(lambda n: n**2 / (1 + (n / c) ** 2) * norm.pdf(n), -12, 12)[0]


@pytest.mark.parametrize(("name", "c"), [("huber", 1.345), ("soft_l1", 1.0)])
def test_noise_that_is_not_given_is_that_of_proposal_2(name, c):
    """Parameters and the level by SciPy in turn, until neither moves."""
    values = measured()
    result = fitted(values, sigma=None, loss=name, f_scale=c)
    x, s, wanted = (3.0, 0.4), 0.1, 48 * bulk_of_normal(name, c)
    for _ in range(60):
        residuals = lambda x, s=s: (motion(TIMES, *x) - values) / s  # noqa: E731
        x = least_squares(residuals, x, loss=name, f_scale=c, ftol=1e-13, xtol=1e-13).x
        r = motion(TIMES, *x) - values

        def left(s, r=r):
            z = r / s
            psi = np.clip(z, -c, c) if name == "huber" else z / np.sqrt(1 + (z / c) ** 2)
            return np.sum(psi**2) - wanted

        s = float(cast(float, brentq(left, 1e-4, 10.0, xtol=1e-14)))
    # Levels have converged where a round changes them by a thousandth.
    np.testing.assert_allclose(result.noise["place"], s, rtol=3e-3)
    order = [result.names.index(n) for n in ("stiffness", "damping")]
    np.testing.assert_allclose(
        result.values[order], x, atol=1e-2 * result.classical_errors[order].min()
    )
    assert result.stop_reason == "converged"
    assert result.estimated_noise == ("place",)
    np.testing.assert_allclose(result.noise_freedom["place"], 48, rtol=1e-6)
    # Nearer to what the bulk was made with than the root mean square of all, outliers too.
    assert abs(result.noise["place"] / SIGMA - 1) < 0.4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert fitted(values, sigma=None).noise["place"] > 2 * SIGMA


@pytest.mark.parametrize("name", ["huber", "soft_l1"])
def test_levels_of_residuals_are_in_their_unit_and_near_those_of_normal_ones(name):
    loss, x = Loss(name, 1.345), np.random.default_rng(0).normal(size=20_000)
    level = loss.level(x, x.size)
    # Of so many numbers half a per cent, a little more than of squares.
    np.testing.assert_allclose(level, 1.0, atol=0.02)
    np.testing.assert_allclose(loss.level(1e-9 * x, x.size), 1e-9 * level, rtol=1e-9)
    x[:1000] = 1e8
    assert loss.level(x, x.size) < 1.2
    assert SQUARES.level(x, x.size) > 1e7
    assert loss.level(np.zeros(5), 3.0) == 0.0
    # Where all but one are nothing beside the largest.
    assert loss.level(np.append(np.full(49, 1e-300), 1.0), 48.0) == 0.0
    assert 0 < loss.level(np.append(np.full(49, 1e-80), 1.0), 48.0) < 1e-79
    # Of mostly exact samples no level is small enough.
    assert loss.level(np.append(np.zeros(97), [1.0, 2.0, 3.0]), 98.0) == 0.0


def test_most_samples_beyond_the_scale_are_said_to_be_no_outliers():
    words = r"% of the samples are further than f_scale=1.345 times .* these are no outliers"
    with pytest.warns(RuntimeWarning, match=words) as caught:
        result = fitted(measured(), sigma=0.002, loss="huber")
    part = result.samples_beyond / 50
    assert any(f"identify: {100 * part:.2g} % of the" in str(x.message) for x in caught)


@pytest.mark.parametrize("sigma", [SIGMA, None])
def test_samples_a_million_times_too_large_move_an_estimate_by_less_than_its_error(sigma):
    """The sum that they make is no measure of when a fit has ended."""
    usual, values = measured(), measured()
    values[[21, 33]] = -1e6, 1e6
    other, result = (fitted(x, sigma, loss="huber") for x in (usual, values))
    assert result.stop_reason == "converged"
    # Beyond the scale a sample counts the same, however far it is.
    np.testing.assert_allclose(result.values, other.values, atol=0.02 * other.standard_errors.min())


@pytest.mark.slow
def test_errors_by_a_loss_with_estimated_noise_are_the_scatter_of_estimates():
    """Of a hundred fits scatter is known to 7 %; nine of them outside come once in fifty times."""
    repeated = repetitions(fitted(measured(), sigma=None, loss="huber"), 100)
    assert repeated.converged.all()
    scatter = repeated.values.std(axis=0, ddof=1) / np.median(repeated.standard_errors, axis=0)
    np.testing.assert_allclose(scatter, 1.0, atol=0.25)
    assert (repeated.within(2.0) > 0.87).all()


def test_more_outliers_than_an_estimated_noise_withstands_are_said():
    rng, values = np.random.default_rng(5), measured()
    places = rng.permutation(50)[:14]
    values[places] += rng.choice([-1, 1], 14) * rng.uniform(1.0, 3.0, 14)
    with pytest.warns(RuntimeWarning, match=r"'place' \([\d.]+\)\. There are more outliers than"):
        fitted(values, sigma=None, loss="soft_l1")


BAD = {
    "another": ({"loss": "cauchy"}, "loss is 'cauchy', must be one of linear, huber, soft_l1"),
    "no scale": ({"loss": "huber", "f_scale": 0.0}, "f_scale is 0.0, must be a positive number"),
    "text": ({"loss": "huber", "f_scale": "1"}, "f_scale is '1', must be a positive number"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_loss_that_makes_no_sense_is_refused_in_words(case):
    options, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        fitted(measured(), **options)


def test_a_posterior_by_a_loss_is_refused():
    pytest.importorskip("blackjax")
    result = fitted(measured(), loss="huber")
    with pytest.raises(ValueError, match="the fit has loss='huber', which is no density"):
        posterior(result)
