"""SciPy's constrained minimizers behind `tune`: a published problem, failures, several starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.tuning import Equality, Inequality, Positive, tune

# Problem 71 of the collection of Hock and Schittkowski (1981), with its published solution.
START = jnp.array([1.0, 5.0, 5.0, 1.0])
MINIMUM = 17.0140173
SOLUTION = np.array([1.0, 4.7429994, 3.8211503, 1.3794082])
CONSTRAINTS = (
    Inequality(lambda x: jnp.prod(x) - 25.0, "product"),
    Equality(lambda x: x @ x - 40.0, "sphere"),
    Inequality(lambda x: jnp.concatenate([x - 1.0, 5.0 - x]), "box"),
)


def objective(x):
    return x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2]


# SLSQP stops where the loss is good to its tolerance of 1.8e-12 by its own estimate: six digits of
# the parameters. The other goes on until the trust region is as small as 1.5e-8.
@pytest.mark.parametrize(("optimizer", "tolerance"), [("slsqp", 1e-5), ("trust-constr", 1e-6)])
def test_a_published_problem_is_solved_to_its_digits(optimizer, tolerance):
    result = tune(objective, START, optimizer=optimizer, constraints=CONSTRAINTS, steps=300)
    np.testing.assert_allclose(result.loss, MINIMUM, rtol=2e-9)
    np.testing.assert_allclose(result.params, SOLUTION, rtol=tolerance)
    assert result.stop_reason == "converged"
    assert result.ending.startswith("SciPy: ")
    assert list(result.violations) == ["product", "sphere", "box"]
    # Those count as none that are below the tolerance, of the largest value, 25, at the start.
    assert max(result.violations.values()) < 25 * 1.5e-8
    assert "violated by product" in result.summary()
    assert result.evaluations == result.steps + 1 == result.history.loss.size


def test_violations_of_the_size_of_round_off_count_as_none():
    """No float's square is 2: what is left is below the tolerance, and SciPy counts it."""
    root = (Equality(lambda x: x * x - 2.0, "root"),)
    result = tune(lambda x: x, jnp.array(1.0), optimizer="trust-constr", constraints=root)
    assert result.stop_reason == "converged"
    assert 0 < result.violations["root"] < 1e-11


@pytest.mark.filterwarnings("ignore:tune")
def test_constraints_decide_and_it_is_said():
    result = tune(objective, START, constraints=CONSTRAINTS, steps=0)
    assert result.method == "SLSQP of SciPy, because there are constraints (product, sphere, box)"
    assert result.stop_reason == "infeasible"


def test_constraints_of_one_name_are_numbered():
    """Of two that are left at the default name a message must say which is violated."""
    two = (Inequality(lambda x: x - 1.0), Inequality(lambda x: -x - 0.5), Equality(lambda x: 0 * x))
    with pytest.warns(UserWarning, match="the constraint 'inequality 2' is still violated by"):
        result = tune(lambda x: x**2, jnp.array(3.0), constraints=two, steps=0)
    assert list(result.violations) == ["inequality 1", "inequality 2", "equality"]
    assert "(inequality 1, inequality 2, equality)" in result.method


def test_several_starts_take_the_ways_they_take_alone():
    several = tune(objective, START, constraints=CONSTRAINTS, steps=60, starts=3, spread=0.3)
    single = tune(objective, START, constraints=CONSTRAINTS, steps=60)
    column = several.histories.loss[:, 0]
    np.testing.assert_array_equal(column[np.isfinite(column)], single.history.loss)
    np.testing.assert_allclose(several.params, SOLUTION, rtol=1e-5)
    assert several.evaluations == np.isfinite(several.histories.loss).sum()


@pytest.mark.parametrize("name", ["slsqp", "trust-constr"])
def test_where_the_objective_is_not_finite_the_search_turns_back(name):
    def walled(x):
        return jnp.where(x[0] > 1.5, jnp.nan, (x[0] - 1.4) ** 2 + (x[0] * x[1] - 1.0) ** 2)

    start = jnp.array([-3.0, 0.2])
    result = tune(walled, start, optimizer=name, steps=200)
    assert result.skipped > 0
    assert np.isnan(result.history.loss[result.history.skipped]).all()
    np.testing.assert_allclose(result.params, [1.4, 1 / 1.4], rtol=1e-4)


def test_a_perturbed_start_that_fails_is_halved_towards_the_given_one():
    def wall(x):
        return jnp.where(x > 1.5, jnp.nan, (x - 1.0) ** 2)

    result = tune(
        wall, jnp.array(1.4), optimizer="slsqp", starts=8, spread=1.0, key=jax.random.key(3)
    )
    assert result.histories.skipped[0].any()
    assert (result.histories.loss[-1] < 1e-10).any()
    assert np.isfinite(result.histories.loss).any(axis=0).all()


def test_parametrizations_and_dictionaries_work_as_everywhere():
    params = {"a": Positive(jnp.array([2.0, 3.0])), "b": jnp.array(1.0), "held": 2.0}
    budget = Inequality(lambda p: 4.0 - jnp.sum(p["a"]) - p["b"], "budget")
    result = tune(
        lambda p: -jnp.sum(jnp.log(p["a"])) - p["held"] * jnp.log(p["b"]),
        params,
        constraints=budget,
        steps=60,
    )
    # In the optimum each share is as large as its weight. The loss is flat there: good to 1e-9, it
    # leaves half of the digits of the shares.
    np.testing.assert_allclose(result.params["a"], 1.0, rtol=1e-4)
    np.testing.assert_allclose(result.params["b"], 2.0, rtol=1e-4)


def test_single_precision_works():
    start = START.astype(jnp.float32)
    result = tune(objective, start, constraints=CONSTRAINTS, steps=60)
    assert result.params.dtype == jnp.float32
    np.testing.assert_allclose(result.params, SOLUTION, rtol=1e-2)


def test_starts_that_fail_are_an_error():
    with pytest.raises(ValueError, match="first evaluation failed at all 2 starts"):
        tune(lambda x: x * jnp.nan, jnp.array(1.0), optimizer="slsqp", starts=2)


REFUSED = [
    (
        {"optimizer": "adam"},
        "Adam with a falling rate takes no constraints, and there is 'small'",
    ),
    ({"optimizer": "lm"}, 'Levenberg-Marquardt takes no constraints.*choose "slsqp" or "trust-c'),
    ({"constraints": lambda x: x}, r"a constraint is a function, must be Equality\(function, name"),
    ({"constraints": [Inequality(lambda x: x > 0, "true")]}, "'true' returned bool"),
    ({"constraints": [Inequality(lambda _: None, "none")]}, "'none' returned nothing"),
    ({"checkpoint": "run"}, "of SLSQP of SciPy no run can be saved or resumed"),
    ({"optimizer": "slspq"}, "No optimizer is named 'slspq'. Did you mean 'slsqp'"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_cannot_be_constrained_is_refused(settings, message):
    usual = {"constraints": Inequality(lambda x: 1.0 - x, "small")}
    with pytest.raises(ValueError, match=message):
        tune(lambda x: x**2, jnp.array(0.5), **(usual | settings))


def test_a_constraint_that_has_no_value_at_the_start_is_an_error():
    logarithm = Inequality(lambda x: jnp.log(x[:1] - 2.0), "logarithm")
    with pytest.raises(ValueError, match="constraint 'logarithm' or its derivative is not finite"):
        tune(objective, START, constraints=(CONSTRAINTS[0], logarithm))
