"""Least squares: certified problems, SciPy as oracle, places where the residuals are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix as optx
import pytest

from jaxdae.tuning import Interval, LeastSquares, tune
from jaxdae.tuning.optimizers import choose

# Misra1a of NIST's Statistical Reference Datasets (nonlinear regression, lower difficulty):
# y = b1 (1 - exp(-b2 x)), with certified values and standard deviations of 11 digits.
X = np.array([
    77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0,
])  # fmt: skip
Y = np.array([
    10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.4, 75.47, 81.78,
])  # fmt: skip
CERTIFIED = np.array([2.3894212918e2, 5.5015643181e-4])
DEVIATIONS = np.array([2.7070075241, 7.2668688436e-6])
SUM_OF_SQUARES = 1.2455138894e-1


def misra(b):
    return b[0] * (1 - jnp.exp(-b[1] * X)) - Y


# From the last the loss does not fall any more while the parameters have seven digits.
@pytest.mark.parametrize("start", [[500.0, 1e-4], [240.0, 5.4e-4]])
def test_a_certified_regression_is_solved_to_its_digits(start):
    result = tune(LeastSquares(misra), jnp.array(start), steps=100)
    assert result.stop_reason == "converged"
    assert "Levenberg-Marquardt, because the objective has 14 residuals of 2" in result.method
    # Ten of eleven certified digits of the sum; the parameters, at whose optimum it is flat, eight.
    np.testing.assert_allclose(result.loss, SUM_OF_SQUARES, rtol=1e-10)
    np.testing.assert_allclose(result.params, CERTIFIED, rtol=1e-8)
    assert result.residuals is not None
    assert result.jacobian is not None
    np.testing.assert_allclose(result.residuals, misra(result.params), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.jacobian, jax.jacfwd(misra)(result.params), rtol=1e-9)
    covariance = np.linalg.inv(result.jacobian.T @ result.jacobian) * result.loss / (X.size - 2)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), DEVIATIONS, rtol=1e-7)


def rosenbrock(x):
    return jnp.array([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def powell(x):
    """Powell's singular function: at its zero the Jacobian has rank 2 of 4."""
    parts = [x[0] + 10 * x[1], 5**0.5 * (x[2] - x[3])]
    return jnp.array([*parts, (x[1] - 2 * x[2]) ** 2, 10**0.5 * (x[0] - x[3]) ** 2])


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("gauss-newton", "l-bfgs")]
EACH = pytest.mark.parametrize("name", ["lm", *SLOW])


@EACH
def test_rosenbrocks_valley_is_followed_to_its_end(name):
    result = tune(LeastSquares(rosenbrock), jnp.array([-1.2, 1.0]), optimizer=name, steps=100)
    assert result.stop_reason == "converged"
    # The sum of squares is at 1e-16 of what it was where a step is at the tolerance of 1.5e-8.
    np.testing.assert_allclose(result.params, 1.0, rtol=1e-7)
    assert result.evaluations == result.steps + 1 == result.history.loss.size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "gauss-newton"])
def test_a_jacobian_that_loses_rank_at_the_solution_is_borne(name):
    start = jnp.array([3.0, -1.0, 0.0, 1.0])
    result = tune(LeastSquares(powell), start, optimizer=name, steps=100)
    # Convergence is linear there: each undamped step leaves half of the distance.
    assert result.loss < 1e-20
    np.testing.assert_allclose(result.params, 0.0, atol=1e-4)


@pytest.mark.slow
def test_the_way_does_not_depend_on_units():
    unit = np.array([1e6, 1e-5])
    scaled = LeastSquares(lambda x: 1e-9 * rosenbrock(x * unit))
    one = tune(LeastSquares(rosenbrock), jnp.array([-1.2, 1.0]), steps=12)
    other = tune(scaled, jnp.array([-1.2, 1.0]) / unit, steps=12)
    # Round-off of twelve steps.
    np.testing.assert_allclose(other.history.loss, 1e-18 * one.history.loss, rtol=1e-6)


def logarithmic(x):
    """NaN for what is not positive; an undamped step from 1 would lead to -3.6."""
    return jnp.log(x) - jnp.log(0.01)


@EACH
def test_a_step_that_is_not_finite_is_shortened(name):
    result = tune(LeastSquares(logarithmic), jnp.array([1.0]), optimizer=name, steps=60)
    assert result.skipped > 0
    assert np.isnan(result.history.loss[result.history.skipped]).all()
    np.testing.assert_allclose(result.params, 0.01, rtol=1e-7)


def test_a_user_s_gauss_newton_without_a_search_is_halved_where_it_is_not_finite():
    solver = optx.GaussNewton(rtol=1e-8, atol=1e-8)
    result = tune(LeastSquares(logarithmic), jnp.array([1.0]), optimizer=solver, steps=60)
    assert "GaussNewton of optimistix, as asked" in result.method
    assert result.skipped > 0
    np.testing.assert_allclose(result.params, 0.01, rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [
        optx.Dogleg(rtol=1e-8, atol=1e-8),
        optx.BFGS(rtol=1e-8, atol=1e-8),
        optx.NonlinearCG(rtol=1e-8, atol=1e-8),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_solvers_of_optimistix_run(solver):
    mild = LeastSquares(lambda x: jnp.array([2 * (x[1] - x[0] ** 2), 1 - x[0]]))
    result = tune(mild, jnp.array([0.5, 0.0]), optimizer=solver, steps=200)
    np.testing.assert_allclose(result.params, 1.0, rtol=1e-4)


# Those that end at a minimum that is no zero, where the one residual's derivative vanishes.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tune. in 20 steps")
def test_several_starts_run_at_once_and_end_one_by_one():
    """Zeros of a cubic: those of its slope are minima of its square that are none of it."""
    cubic = LeastSquares(lambda x: x**3 - 3 * x + 3)
    single = tune(cubic, jnp.array(1.2), steps=60)
    several = tune(cubic, jnp.array(1.2), steps=60, starts=8, spread=4.0)
    assert single.loss > 0.9
    assert several.loss < 1e-20
    np.testing.assert_allclose(np.polyval([1, 0, -3, 3], several.params), 0.0, atol=1e-8)
    ended = np.isnan(several.histories.loss)
    assert ended.any()
    # From its end on a start has no numbers, and counts no evaluations.
    assert np.all(np.diff(ended.astype(int), axis=0) >= 0)
    assert several.evaluations == np.sum(~ended)
    assert several.history.loss.size == np.sum(~ended[:, several.best_start])


@pytest.mark.slow
def test_single_precision_converges_to_its_own_tolerance():
    start = jnp.array([250.0, 5e-4], jnp.float32)
    single = LeastSquares(lambda b: b[0] * (1 - jnp.exp(-b[1] * X.astype("f4"))) - Y.astype("f4"))
    result = tune(single, start, steps=60)
    assert result.params.dtype == jnp.float32
    assert result.stop_reason == "converged"
    # The parameters are known to a hundredth of their standard deviation, 1.1 and 1.3 per cent.
    np.testing.assert_allclose(result.params, CERTIFIED, rtol=1e-3)


@pytest.mark.slow
def test_more_parameters_than_residuals_are_differentiated_in_reverse():
    traced = []

    @jax.custom_vjp
    def only_reverse(x):
        return jnp.array([jnp.sum(x) - 1.0, x[0] - x[1]])

    def forward(x):
        traced.append(None)
        return only_reverse(x), None

    def backward(_, g):
        return (jnp.full(5, g[0]).at[0].add(g[1]).at[1].add(-g[1]),)

    only_reverse.defvjp(forward, backward)
    result = tune(LeastSquares(only_reverse), jnp.arange(5.0), steps=20)
    assert traced
    assert result.loss < 1e-20


class Sum:
    """Offers residuals, and a certificate; the objective itself cannot be called."""

    budget = "none"

    def residuals(self, x):
        return rosenbrock(x)

    def certificate(self, x):
        return f"certified at {np.round(x, 3)}"


@pytest.mark.slow
def test_an_objective_of_residuals_alone_is_tuned_by_every_kind():
    start = jnp.array([-1.2, 1.0])
    result = tune(Sum(), start, steps=60)
    assert result.certificate == "certified at [1. 1.]"
    assert "certified at" in result.summary()
    assert "converged: " in result.summary()
    # The same sum of squares, whoever adds it up.
    np.testing.assert_allclose(
        tune(Sum(), start, steps=1, optimizer="adam").initial_loss, result.initial_loss, rtol=1e-14
    )


@pytest.mark.parametrize(
    ("objective", "size", "name", "why"),
    [
        (LeastSquares(lambda x: x - 1.0), 2, "Levenberg-Marquardt", "has 2 residuals of 2"),
        (LeastSquares(lambda x: x - 1.0), 65, "Adam", "65 residuals of 65 parameters, too many"),
        (lambda x: jnp.sum(x**2), 2, "Adam", "because the objective has no residuals"),
    ],
)
def test_the_kind_of_objective_decides_and_it_is_said(objective, size, name, why):
    method = choose(objective, jnp.ones(size), None).words
    assert method.startswith(name)
    assert why in method


@pytest.mark.parametrize(
    ("objective", "optimizer", "message"),
    [
        (LeastSquares(lambda x: x > 0), None, r"`residuals` returned bool\[2\], needs a vector"),
        (LeastSquares(lambda x: x[:0]), "lm", r"`residuals` returned float64\[0\], needs a vector"),
        (sum, "lm", "Levenberg-Marquardt needs residuals, and the objective, a builtin"),
        (
            LeastSquares(misra), optx.NelderMead(rtol=1e-3, atol=1e-3),
            "NelderMead of optimistix cannot be driven here.*BFGS",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_least_squares_is_refused(objective, optimizer, message):
    with pytest.raises(ValueError, match=message):
        tune(objective, jnp.ones(2), optimizer=optimizer)


def test_residuals_of_subclasses_alone_are_not_asked_for():
    class Base:
        def __call__(self, x):
            return jnp.sum(x**2)

        def residuals(self, x):
            raise NotImplementedError(f"no residuals at {x.shape}")

    method = choose(Base(), jnp.ones(2), None).words
    assert method.startswith("Adam")
    assert method.endswith("because the objective has no residuals here (no residuals at (2,))")


def test_a_bound_that_is_reached_is_pointed_out():
    beyond = LeastSquares(lambda x: x - 3.0)
    with pytest.warns(UserWarning, match="in 20 steps .* a parametrization has reached its bound"):
        result = tune(beyond, Interval(0.5, 0.0, 1.0), steps=100)
    np.testing.assert_allclose(result.params, 1.0, rtol=1e-9)


def test_derivatives_that_are_wrong_are_pointed_out():
    @jax.custom_jvp
    def wrong(x):
        return x - 1.0

    wrong.defjvp(lambda primals, tangents: (primals[0] - 1.0, -tangents[0]))
    with pytest.warns(UserWarning, match="no step lowers the loss any more, although.*promises"):
        result = tune(LeastSquares(wrong), jnp.array([3.0]), steps=200)
    assert result.stop_reason == "stalled"
    assert result.loss == result.initial_loss == 4.0


@pytest.mark.slow
def test_evaluations_of_a_line_search_count():
    target = jnp.array([3.0, -1.0])
    result = tune(
        lambda p: jnp.sum(jnp.array([1.0, 100.0]) * (p - target) ** 2),
        jnp.zeros(2),
        steps=5,
        optimizer=optax.lbfgs(),
    )
    assert result.evaluations > 6 == result.history.loss.size


def test_a_result_is_not_lost_because_its_certificate_fails():
    class Uncertain(Sum):
        def certificate(self, x):
            raise RuntimeError(f"no stability function at {x}")

    with pytest.warns(UserWarning, match="there is no certificate: no stability function at"):
        result = tune(Uncertain(), jnp.array([-1.2, 1.0]), steps=60)
    assert result.certificate is None
    assert result.stop_reason == "converged"


def test_residuals_that_are_all_round_off_have_converged():
    # Backtracking then refuses a full step that is as short as round-off. No number's square is 2
    # in floating point, on whatever processor: the residuals are never zero, and from the number
    # nearest to the solution no step makes them smaller.
    valley = LeastSquares(lambda p: jnp.stack([2 - p[0] ** 2, 10 * (p[1] - p[0] ** 2)]))
    for start in (jnp.array([2**0.5, 2.0]), jnp.array([-1.2, 1.0])):
        result = tune(valley, start, optimizer="gauss-newton")
        assert 0 < result.loss < 1e-28  # (10 times the spacing of numbers at 2) squared is 2e-29
        assert result.stop_reason == "converged"
        assert "the last step changed the parameters by" in result.ending
