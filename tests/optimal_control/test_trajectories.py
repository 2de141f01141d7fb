"""Motions to order against CasADi with IPOPT on minimal coordinates, and exact solutions."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.cart_pole import CartPole
from jaxdae.optimal_control import Bounds, optimize_trajectory, trajectories
from oracles.cart_pole_plan import planned

LAW = jaxdae.Multipliers(jaxdae.Baumgarte(20.0, 100.0))
CART = CartPole()


def hanging(x: float) -> jaxdae.State:
    return CART.at(jnp.asarray(x), jnp.asarray(np.pi))


def moved(**changes):
    """The cart half a meter further, at rest with the pendulum hanging before and after."""
    given = {"t1": 1.5, "inputs": 1, "intervals": 12, "segments": 3, "steps": 8}
    given |= {"goal": hanging(0.5), "start": hanging(0.0)}
    return optimize_trajectory(CART, LAW, **given | changes)


@pytest.fixture(scope="module")
def exact():
    return planned(0.5, 1.5, 2.0, 12)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["slsqp", "ipopt"])
def test_the_optimum_is_that_of_casadi_on_minimal_coordinates(exact, optimizer):
    plan = moved(bounds=Bounds(u=(-2.0, 2.0)), optimizer=optimizer)
    assert plan.optimal
    assert plan.goal_residual < 1e-9
    assert plan.gap < 1e-9
    # Both optimizers stop at 1e-13 of the cost or less, which leaves 1e-7 of the inputs.
    np.testing.assert_allclose(np.ravel(plan.inputs), exact.inputs, atol=1e-6)
    np.testing.assert_allclose(plan.cost, exact.cost, rtol=1e-7)
    # Bounds hold to the last bit, and their multipliers are positive where they are active.
    assert np.abs(plan.inputs).max() <= 2.0
    at = np.isclose(np.abs(exact.inputs), 2.0)
    places = slice(2 * 6, 2 * 6 + 12)
    pushed = (plan.multipliers.lower + plan.multipliers.upper)[places]
    assert (pushed[at] > 1e-3).all()
    assert (pushed[~at] == 0).all()
    assert plan.active == at.sum() > 0
    # The same motion in one adaptive run, and in its report.
    assert plan.trajectory.backend == "native"
    assert plan.end_error < 1e-7
    np.testing.assert_allclose(plan.trajectory.q[-1], hanging(0.5).q, atol=1e-6)
    report = plan.report()
    assert "optimal" in report
    assert f"{plan.active} bounds" in report


@pytest.mark.slow
def test_multipliers_of_the_goal_are_what_its_coordinates_cost():
    plan = moved(bounds=Bounds(u=(-2.0, 2.0)))
    step = 1e-4
    costs = [planned(0.5 + x, 1.5, 2.0, 12).cost for x in (-step, step)]
    measured = (costs[1] - costs[0]) / (2 * step)
    along = np.linalg.svd(np.array([[0.0, 0.0, 1.0]]))[2][1:].T  # as the library has it
    found = plan.multipliers.equal[-4:-2] @ along.T @ np.array([1.0, 1.0, 0.0])
    # Differences of step 1e-4.
    np.testing.assert_allclose(found, measured, rtol=1e-5)


@pytest.mark.slow
def test_a_free_end_time_is_that_of_casadi():
    exact = planned(0.5, (0.8, 3.0), 1.0, 12, price=2.0)
    bounds = Bounds(u=(-1.0, 1.0))
    plan = moved(t1=(0.8, 3.0), bounds=bounds, terminal=lambda t, q, v, w: 2.0 * t)
    assert plan.optimal
    np.testing.assert_allclose(plan.t1, exact.end, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(plan.inputs), exact.inputs, atol=1e-5)


class Slider(jaxdae.System):
    """A mass on a line."""

    mass: float = 2.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        return u


class Clock(Slider):
    """A mass that swings by itself, faster than the steps of its test can follow."""

    def force(self, t, q, v, w, u):
        return u - 8.0 * q


REST = jaxdae.State([0.0], [0.0])


def slid(**changes):
    given = {"t1": 2.0, "inputs": 1, "intervals": 8, "kind": "linear", "steps": 2}
    given |= {"goal": lambda t, q, v, w: jnp.stack([q[0] - 1.0, v[0]])}
    given |= {"system": Slider(), "formulation": jaxdae.Multipliers(), "start": REST}
    return optimize_trajectory(**given | changes)


def test_a_mass_is_moved_by_the_exact_force_of_least_squares():
    """`u = 6 m d (1 - 2 t/T) / T^2` with cost `12 m^2 d^2 / T^3`; linear inputs contain it.

    The optimizer stops at 1e-13 of the cost, which is 3e-7 of the inputs.
    """
    plan = slid()
    times = np.linspace(0.0, 2.0, 9)
    np.testing.assert_allclose(np.ravel(plan.inputs), 3.0 * (1 - times), atol=2e-6)
    np.testing.assert_allclose(plan.cost, 12 * 4 / 8, rtol=1e-9)
    run = jaxdae.simulate(Slider(), jaxdae.Multipliers(), REST, t1=2.0, controller=plan.controller)
    np.testing.assert_allclose(run.q[-1], [1.0], atol=1e-8)


def test_with_a_price_of_time_the_end_is_the_exact_one():
    """`12 m^2 d^2 / T^3 + c T` is least at `T = (36 m^2 d^2 / c)^(1/4)`."""
    plan = slid(t1=(0.5, 5.0), terminal=lambda t, q, v, w: 9.0 * t)
    np.testing.assert_allclose(plan.t1, 2.0, rtol=1e-6)
    at_bound = slid(t1=(0.5, 1.5), terminal=lambda t, q, v, w: 9.0 * t)
    assert at_bound.t1 == 1.5


def test_speeds_and_limits_are_kept_at_the_ends_of_all_intervals():
    """A bound of the speed is the same as a limit that says it, and costs what it keeps back."""
    bounded = slid(bounds=Bounds(v=(-np.inf, 0.6)))
    limited = slid(limits=lambda t, q, v, w, u: 0.6 - v)
    assert bounded.optimal
    assert float(jnp.max(bounded.states.v)) <= 0.6 + 1e-9
    assert bounded.active > 0
    assert bounded.cost > slid().cost
    np.testing.assert_allclose(limited.inputs, bounded.inputs, atol=1e-6)
    # By hand, as a quadratic program: exact motions of linear forces.
    from scipy import optimize

    h, n = 0.25, 8
    rows = np.array([[h / 2 * ((j == i) + (j == i + 1)) for j in range(n + 1)] for i in range(n)])
    speeds = np.cumsum(rows, axis=0) / 2.0
    places = np.zeros((n + 1, n + 1))
    before = np.vstack([np.zeros(n + 1), speeds])
    for i in range(n):
        part = np.zeros(n + 1)
        part[i], part[i + 1] = h * h / 3 / 2.0, h * h / 6 / 2.0
        places[i + 1] = places[i] + h * before[i] + part

    def cost(u):
        return h / 3 * np.sum(u[:-1] ** 2 + u[:-1] * u[1:] + u[1:] ** 2)

    conditions = [
        {"type": "eq", "fun": lambda u: [places[-1] @ u - 1.0, speeds[-1] @ u]},
        {"type": "ineq", "fun": lambda u: 0.6 - speeds @ u},
    ]
    by_hand = optimize.minimize(
        cost, np.zeros(n + 1), method="SLSQP", constraints=conditions, options={"ftol": 1e-14}
    )
    # Differences by SciPy.
    np.testing.assert_allclose(np.ravel(bounded.inputs), by_hand.x, atol=1e-5)


@pytest.mark.slow
def test_a_pendulum_that_hangs_is_brought_to_stand():
    """The straight way between both passes where the constraint is singular."""
    upright = CART.at(jnp.asarray(0.0), jnp.asarray(0.0))
    bounds = Bounds(u=(-12.0, 12.0))
    given = {"intervals": 20, "segments": None, "steps": 4, "optimizer": "ipopt"}
    plan = moved(goal=upright, bounds=bounds, **given)
    assert plan.optimal
    np.testing.assert_allclose(plan.states.q[-1], upright.q, atol=1e-5)
    assert np.abs(plan.inputs).max() <= 12.0


def pushed(t, q, v, w, u):
    return q[:1] * u


def placed(t, q, v, w):
    return t * q[0] ** 2


STEP = 1e-6


def slopes_and_differences(program, x, d):
    """Slopes along a direction, and what differences measure of them, relative to the values."""
    below, above = (np.hstack(program.values(x + s * STEP * d)) for s in (-1, 1))
    found = np.hstack([y @ d for y in program.derivatives(x)])
    scale = 1 + np.abs(below)
    return found / scale, (above - below) / (2 * STEP) / scale


def unknowns(plan):
    rng = np.random.default_rng(1)
    x = plan.first(None)
    return x + 0.05 * rng.standard_normal(x.size), rng.standard_normal(x.size), rng


def test_slopes_by_the_end_time_are_those_of_differences():
    plan = trajectories._Transcription.declared(
        Slider(), jaxdae.Multipliers(), REST, 0.0, (1.0, 1.5), 1, 4, 2, "linear", None, placed,
        jaxdae.State([1.0], [0.0]), Bounds(v=(-9.0, 9.0)), pushed, 2, None, "auto", "slsqp",
    )  # fmt: skip
    found, measured = slopes_and_differences(plan.program(), *unknowns(plan)[:2])
    np.testing.assert_allclose(found, measured, atol=1e-7)


@pytest.mark.slow
def test_first_and_second_derivatives_are_those_of_differences():
    plan = trajectories._Transcription.declared(
        CART, LAW, hanging(0.0), 0.0, 1.5, 1, 4, 2, "linear", None, placed, hanging(0.5),
        Bounds(v=(-9.0, 9.0)), pushed, 2, None, "auto", "slsqp",
    )  # fmt: skip
    program, (x, d, rng) = plan.program(), unknowns(plan)
    found, measured = slopes_and_differences(program, x, d)
    np.testing.assert_allclose(found, measured, atol=1e-7)
    slopes = program.derivatives(x)
    weights = type(slopes)(*(rng.standard_normal(np.shape(y)[:-1]) for y in slopes))

    def gradient(x):
        parts = zip(weights, program.derivatives(x), strict=True)
        return sum(np.tensordot(a, b, np.ndim(a)) for a, b in parts)

    measured = (gradient(x + STEP * d) - gradient(x - STEP * d)) / (2 * STEP)
    curvature = program.curvature(x, weights)
    np.testing.assert_allclose(curvature @ d, measured, atol=1e-6 * np.abs(measured).max())
    np.testing.assert_allclose(curvature, curvature.T, atol=1e-9 * np.abs(curvature).max())


def test_what_cannot_be_reached_is_told_with_its_amounts():
    with pytest.warns(RuntimeWarning, match="found no optimum: the goal is missed by"):
        plan = slid(bounds=Bounds(u=(-1.0, 1.0)), iterations=20)
    assert not plan.optimal
    assert np.abs(plan.inputs).max() <= 1.0
    assert "NOT optimal" in plan.report()


def test_steps_that_are_too_long_for_the_motion_are_told():
    with pytest.warns(RuntimeWarning, match="away from the planned end: take more steps"):
        slid(system=Clock(), steps=1, t1=8.0)


OUTSIDE = jaxdae.State(jnp.array([0.5, 0.5, -0.4]), jnp.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intervals": 0}, "intervals must be a positive integer, not 0"),
        ({"steps": 1.5}, "steps must be a positive integer, not 1.5"),
        ({"segments": 5}, r"segments \(5\) must divide intervals \(12\)"),
        ({"kind": "cubic"}, "kind must be 'held' or 'linear', not 'cubic'"),
        ({"optimizer": "snopt"}, "optimizer must be 'slsqp' or 'ipopt', not 'snopt'"),
        ({"t1": 0.0}, "t1 must be an end time behind t0 = 0 s"),
        ({"t1": (2.0, 1.0)}, "t1 must be an end time behind t0"),
        ({"t1": np.nan}, "t1 must be an end time behind t0"),
        ({"inputs": np.zeros((5, 1))}, "a guess has one row for each of the 12 intervals"),
        ({"inputs": np.full(1, np.nan)}, "inputs, the first guess, is not finite"),
        ({"bounds": Bounds(u=(1.0, -1.0))}, r"bounds.u\[0\] cross: from 1 to -1"),
        ({"bounds": Bounds(q=(np.zeros(2), 1.0))}, "bounds.q must be a pair of numbers, or of ve"),
        ({"bounds": Bounds(v=(np.nan, 1.0))}, r"bounds.v\[0\] cross: from nan to 1"),
        ({"goal": REST}, "goal has shapes"),
        ({"goal": OUTSIDE}, "goal violates the constraints by 0.09, and no motion ends there"),
        ({"start": OUTSIDE}, "start violates the constraints by 0.09, and no motion begins there"),
        ({"inputs": 0}, "inputs says that there are none"),
        ({"cost": lambda q, u: u @ u}, r"declared with the parameters \(q, u\)"),
        ({"limits": lambda t, q, v, w: q}, r"declared with the parameters \(t, q, v, w\)"),
        ({"goal": lambda q: q}, r"declared with the parameters \(q\)"),
        ({"guess": hanging(0.0)}, "guess must have 2 finite rows of q, v, w"),
        ({"cost": lambda t, q, v, w, u: q}, r"cost must return a number; it returns shape \(3,\)"),
        ({"cost": lambda t, q, v, w, u: jnp.log(-1 - u[0] ** 2)}, "The cost is not finite for t"),
        ({"limits": lambda t, q, v, w, u: jnp.log(-1 - u)}, "A limit is not finite for the first"),
        ({"goal": lambda t, q, v, w: q / 0.0}, "The goal is not finite for the first guess"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_any_work(changes, message):
    with pytest.raises(ValueError, match=message):
        moved(**changes)


def test_arguments_of_another_kind_are_refused():
    for changes, message in (
        ({"start": ([0.0], [0.0])}, r"start is .*give jaxdae.consistent_state"),
        ({"bounds": (-1.0, 1.0)}, r"bounds is .*give Bounds"),
    ):
        with pytest.raises(TypeError, match=message):
            moved(**changes)


def test_single_precision_is_refused():
    single = jax.tree.map(lambda x: x.astype(jnp.float32), hanging(0.0))
    with pytest.raises(ValueError, match="optimize_trajectory needs double precision"):
        optimize_trajectory(CART, LAW, single, t1=1.0, inputs=1, intervals=4)


def test_without_ipopt_it_is_said_how_it_comes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyopt", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdae\[optimize\]'"):
        slid(optimizer="ipopt")
