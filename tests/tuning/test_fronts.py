"""Fronts of accuracy against work."""

import json
from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Multipliers, State, System
from jaxdae.solvers import RK4
from jaxdae.tuning import Conditions, front, Logarithm, SimulationObjective, TrackingError
from jaxdae.tuning.fronts import are_dominated


class Rate(System):
    """`x'' = -rate v`: from a speed of one x = (1 - exp(-rate t)) / rate."""

    rate: Any

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, q, w, u
        return -self.rate * v


def exact(t):
    return -jnp.expm1(-t)[None]


def built(rate):
    return Rate(rate), Multipliers(), None


OBJECTIVE = SimulationObjective(
    TrackingError(lambda _t, q, _v: q, exact),
    State(jnp.zeros((1, 1)), jnp.ones((1, 1))),
    build=built,
    t1=1.0,
    dt=0.1,
    solver=diffrax.Heun(),
)
ONE = jnp.array(1.0)


def test_dominated_points_by_hand():
    work, costs = np.array([1, 2, 2, 3, 4, 4]), np.array([5.0, 4.0, 3.0, 3.0, np.nan, 1.0])
    expected = [False, True, False, True, True, False]
    assert are_dominated(work, costs).tolist() == expected
    # Neither of two equal points is better.
    assert are_dominated(np.ones(2), np.ones(2)).tolist() == [False, False]


@pytest.fixture(scope="module")
def known():
    return front(OBJECTIVE, ONE, (0.25, 0.125), solvers=(diffrax.Heun(), RK4()), tuned=False)


def test_points_are_the_objective_at_each_method_and_step(known):
    names = [(x.solver, x.dt, x.steps, x.evaluations) for x in known.points]
    assert names[:2] == [("Heun", 0.25, 4, 8), ("Heun", 0.125, 8, 16)]
    assert names[2:] == [("RK4", 0.25, 4, 16), ("RK4", 0.125, 8, 32)]
    costs = np.array([x.cost for x in known.points])
    # Squares of errors of order 2 and 4, of which the next order takes or gives some.
    assert 2**3.5 < costs[0] / costs[1] < 2**5.5
    assert 2**7 < costs[2] / costs[3] < 2**9.5


def test_the_front_is_what_nothing_dominates(known):
    # Eight steps of Heun cost as much work as four of RK4, which are better.
    assert [x.dominated for x in known.points] == [False, True, False, False]
    assert [x.evaluations for x in known.best] == [8, 16, 32]
    text = json.dumps(known.to_json(), allow_nan=False)
    assert json.loads(text)[1]["dominated"] is True
    assert json.loads(text)[0]["certificate"]["members"] == 1


@pytest.mark.slow
def test_parameters_are_tuned_at_each_step_from_given_ones():
    asked = []

    def start(solver, dt):
        asked.append((type(solver).__name__, dt))
        return jnp.array(0.7)

    found = front(OBJECTIVE, start, 0.25, steps=20)
    assert asked == [("Heun", 0.25)]
    (point,) = found.points
    given = front(OBJECTIVE, jnp.array(0.7), 0.25, tuned=False).points[0]
    assert point.cost < 1e-2 * given.cost
    # The best rate makes up for some of the method's error.
    np.testing.assert_allclose(point.params, 1.0, atol=0.1)


@pytest.mark.slow
def test_failed_members_are_counted_and_dominated():
    made = SimulationObjective(
        OBJECTIVE.cost,
        State(jnp.zeros((2, 1)), jnp.array([[1.0], [jnp.finfo(float).max]])),
        build=built,
        conditions=Conditions(dt=0.5, t1=1.0),
        solver=RK4(),
    )
    (point,) = front(made, jnp.array(-1e6), 0.5, tuned=False).points
    assert point.failed >= 1
    assert np.isnan(point.cost)
    assert point.dominated
    assert front(made, jnp.array(-1e6), 0.5, tuned=False).best == ()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": ()}, "there are no steps; give dt"),
        ({"steps": 3, "tuned": False}, "steps are settings of tune, but nothing is tuned"),
    ],
)
def test_calls_that_make_no_sense_are_refused(arguments, message):
    settings: dict[str, Any] = {"objective": OBJECTIVE, "params": ONE, "dt": 0.5}
    with pytest.raises(ValueError, match=message):
        front(**(settings | arguments))


@pytest.mark.slow
def test_the_cost_is_nan_where_a_member_failed_whatever_the_objective_is_then():
    """Costs that overflow, though the run reached its end, or have a price."""
    huge = State(jnp.zeros((1, 1)), jnp.full((1, 1), 1e300))
    cost = TrackingError(lambda _t, q, _v: q, exact)
    for price in (None, 5.0):
        made = SimulationObjective(
            cost, huge, build=built, t1=1.0, dt=0.5, solver=RK4(), failure_cost=price
        )
        (point,) = front(made, ONE, 0.5, tuned=False).points
        assert np.isinf(made(ONE)) if price is None else made(ONE) == price
        assert (point.failed, point.dominated) == (1, True)
        assert np.isnan(point.cost)


def test_what_is_no_simulation_is_refused():
    with pytest.raises(TypeError, match="the objective is a function, must be a SimulationObject"):
        front(lambda _: 1.0, ONE, 0.02)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"is a Logarithm, .* give what it wraps"):
        front(Logarithm(OBJECTIVE), ONE, 0.02)  # pyright: ignore[reportArgumentType]


def test_adaptive_objectives_and_methods_without_tableau_are_refused():
    adaptive = SimulationObjective(
        OBJECTIVE.cost, OBJECTIVE.states, build=built, t1=1.0, max_steps=9
    )
    with pytest.raises(ValueError, match="the objective's steps are adaptive; give it a fixed"):
        front(adaptive, ONE, 0.5, tuned=False)
    with pytest.raises(ValueError, match="LeapfrogMidpoint has no Butcher tableau"):
        front(OBJECTIVE, ONE, 0.5, solvers=[diffrax.LeapfrogMidpoint()], tuned=False)
