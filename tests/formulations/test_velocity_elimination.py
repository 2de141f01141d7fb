"""Shulgin's and Voronets' equations: literal forms, closed forms, agreement, choice."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import evaluate, Multipliers, simulate, SimulationError, State
from jaxdae.formulations import choose_independent, VelocityElimination
from jaxdae.linalg.held_rank import split_columns
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

# Solves with fewer than ten unknowns and condition numbers below 1e3.
ROUND_OFF: Any = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.slow
def test_motion_is_the_projection_on_the_kernel(driven, flow, rng):
    """N^T (M a - f) = 0 with a kernel from an independent factorization, and J a + gamma = 0."""
    system, state, t = driven, driven.start(), 0.3
    # Off the position constraint too: the equations do not use f = 0.
    state = State(state.q + 0.05 * rng.normal(size=state.q.size), state.v, state.w)
    state, motion, lam = flow(system, VelocityElimination(), state, t, 1.5)
    d = jax.jit(evaluate)(system, t, state.q, state.v, state.w, 1.5)
    kernel = np.linalg.svd(d.jac)[2][d.jac.shape[0] :]
    np.testing.assert_allclose(kernel @ (d.mass @ motion.v - d.force), 0, atol=1e-10)
    np.testing.assert_allclose(d.jac @ motion.v + d.gamma, 0, atol=1e-10)
    np.testing.assert_allclose(d.mass @ motion.v + d.jac.T @ lam, d.force, **ROUND_OFF)
    np.testing.assert_allclose(d.phi_dot, 0, atol=1e-13)
    np.testing.assert_array_equal(motion.q, state.v)
    assert np.abs(d.gamma).min() > 1e-2
    assert np.abs(lam).min() > 1e-2


@pytest.mark.slow
def test_decay_returns_the_positions_to_the_constraints(driven):
    """df/dt = -decay f along q', while velocities and the other equations stay as they are."""
    start = driven.start()
    state = State(start.q + jnp.array([0.0, 0.1, 0.0, 0.0]), start.v, start.w)
    weak, strong = (VelocityElimination(("x", "lift"), decay) for decay in (0.5, 7.0))
    y = eqx.filter_jit(weak.init)(driven, 0.0, state)
    rate = eqx.filter_jit(lambda f, y: f.vector_field(driven, 0.0, y, 0.4))
    slow, fast = (rate(f, y) for f in (weak, strong))
    zero = jnp.zeros(())
    along = jax.jit(
        lambda q_dot: jax.jvp(driven.position_constraints, (zero, y.q), (jnp.ones(()), q_dot))
    )
    for motion, decay in ((slow, 0.5), (fast, 7.0)):
        residual, rate = along(motion.q)
        np.testing.assert_allclose(rate, -decay * residual, **ROUND_OFF)
    assert abs(residual[0]) > 0.1
    np.testing.assert_allclose(fast.v, slow.v, rtol=1e-12)
    # Independent coordinates are not moved, and the nonholonomic row is kept.
    moved = fast.q - slow.q
    np.testing.assert_array_equal(moved[jnp.array([0, 3])], 0)
    row = jax.jit(jax.jacfwd(driven.velocity_constraints, argnums=2))(zero, y.q, fast.q)
    np.testing.assert_allclose(row @ moved, 0, atol=1e-13)


@pytest.mark.parametrize(
    ("formulation", "message"),
    [
        (VelocityElimination("x"), "must name 2 different coordinates of x, y, angle, lift"),
        (VelocityElimination(("x", 0)), "must name 2 different coordinates"),
        (VelocityElimination(("x", "z")), "no coordinate is called 'z'; there are: x, y, angle"),
        (VelocityElimination((0, 4)), "independent coordinate 4 is out of range: there are 4"),
        (VelocityElimination(decay=jnp.ones(3)), "decay has shape .3,., which does not fit 1"),
    ],
    ids=["too few", "twice", "unknown", "out of range", "decay"],
)
def test_choices_that_do_not_fit_are_refused(formulation, message, driven):
    """Before any work."""
    with pytest.raises(ValueError, match=message):
        simulate(driven, formulation, driven.start(), t1=0.1)


def test_a_decay_that_is_not_positive_is_refused():
    """On construction."""
    with pytest.raises(ValueError, match=r"decay must be positive definite, but has a value -1"):
        VelocityElimination(decay=-1.0)


def test_more_constraints_than_coordinates_are_refused(repeated_rod):
    """Named with both numbers."""
    with pytest.raises(ValueError, match="3 constraints on 2 coordinates cannot be independent"):
        VelocityElimination().check(repeated_rod((1.0, 2.0, 3.0)), State([1.0, 0.0], [0.0, 1.0]))


def test_a_start_with_singular_dependent_columns_is_refused_with_the_numbers():
    """The coordinates, the singular value, and a choice that works."""
    system, state = CartesianPendulum(), State([1.0, 0.0], [0.0, 1.0])
    message = (
        r"coordinates \(x\) do not determine the velocities of \(y\) at t = 0: the singular values "
        r"of the dependent columns of J, with rows of unit length, are \[0\].*=\('y',\)"
    )
    with pytest.raises(ValueError, match=message):
        simulate(system, VelocityElimination("x"), state, t1=0.1)
    assert VelocityElimination("y").examination.start(system, 0.0, state) is None


def test_choosing_among_dependent_constraints_is_refused(repeated_rod):
    """Nothing can be eliminated twice."""
    with pytest.raises(
        ValueError, match=r"constraints are dependent at t = 0.*involved: 'f1', 'f2'"
    ):
        choose_independent(repeated_rod((1.0, 2.0)), 0.0, jnp.array([0.6, 0.8]))


# A pendulum started at rest 1.2 rad from below; x is a coordinate of the lower half circle only.
ANGLE, SPEED = 1.2, 3.0


@pytest.fixture(scope="module")
def stopped():
    """A run whose independent coordinate ceases to be one: the rod becomes level."""
    system = CartesianPendulum()
    q = jnp.array([jnp.sin(ANGLE), -jnp.cos(ANGLE)])
    state = State(q, SPEED * jnp.array([jnp.cos(ANGLE), jnp.sin(ANGLE)]))
    return simulate(system, VelocityElimination((0,)), state, t1=2.0, throw=False)


@pytest.mark.slow
def test_an_adaptive_run_stops_where_the_choice_ends(stopped):
    """It ends with the rod level, not beyond, and without throwing finite numbers after it."""
    assert not bool(stopped.success)
    # |B| = 1e5 is reached 1e-5 rad before; the last steps may end a hundred times farther.
    np.testing.assert_allclose(stopped.last_state.q, [1.0, 0.0], atol=1e-3)
    assert stopped.last_state.q[1] < 0
    assert np.isnan(stopped.q[-1]).all()
    reached = np.isfinite(stopped.ts)
    assert 1 < reached.sum() < 201
    np.testing.assert_allclose(stopped.energy[reached], stopped.energy[0], atol=1e-5)


def test_the_end_of_a_choice_is_diagnosed_with_the_coordinates(stopped):
    """Names, singular value, largest entry of B, and what to take instead."""
    text = stopped.formulation.examination.stop(stopped.system, stopped.final_time, stopped.final)
    assert text is not None
    assert "independent coordinates (x) do not determine the velocities of (y)" in text
    assert "VelocityElimination(independent=('y',))" in text
    y = VelocityElimination("y").init(stopped.system, 0.0, stopped.last_state)
    assert VelocityElimination("y").examination.stop(stopped.system, stopped.final_time, y) is None


def _swing(short_of_level, formulation):
    """A pendulum that turns so far [rad] below the level rod, and comes back."""
    system = CartesianPendulum()
    q = jnp.array([jnp.sin(ANGLE), -jnp.cos(ANGLE)])
    speed = jnp.sqrt(2 * 9.81 * (jnp.cos(ANGLE) - jnp.sin(short_of_level)))
    state = State(q, speed * jnp.array([jnp.cos(ANGLE), jnp.sin(ANGLE)]))
    return simulate(system, formulation, state, t1=0.6)


@pytest.mark.slow
def test_fixed_steps_into_the_end_of_a_choice_are_not_blamed_on_the_step_alone():
    system = CartesianPendulum()
    state = State(jnp.array([0.0, -1.0]), jnp.array([6.0, 0.0]))
    form = VelocityElimination("x")
    with pytest.raises(SimulationError, match=r"no longer finite .* came close to a singular cho"):
        simulate(system, form, state, t1=0.6, dt=0.001, solver=RK4())


@pytest.mark.slow
def test_a_run_that_came_close_to_a_singular_choice_is_reviewed():
    """Where, how close, and what to take instead; the run itself has succeeded."""
    with pytest.warns(RuntimeWarning, match="came close to a singular choice"):
        run = _swing(0.004, VelocityElimination("x"))
    assert bool(run.success)
    text = run.formulation.examination.review(run.system, run.ts, run.saved)
    assert text is not None
    assert "independent coordinates (x) came close to a singular choice at t = 0.2" in text
    found = re.search(r"belong to \(y\), .* is (\S+), which is (\S+) times less", text)
    assert found is not None
    # J = 2 (x, y), so |y| / |J| = sin(0.004) at the turn; a saved time is within 1.5 ms of it, and
    # y within 9.81 / 2 * 0.0015^2 = 1.1e-5.
    assert float(found[1]) == pytest.approx(0.004, abs=2e-5)
    assert float(found[2]) == pytest.approx(250.0, rel=1e-2)
    assert "use VelocityElimination(independent=('y',)), or NullSpace" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "formulation"),
    [
        (0.1, VelocityElimination("x")),
        (0.004, VelocityElimination()),
    ],
    ids=["farther off", "chosen"],
)
def test_a_good_choice_passes_review(short, formulation):
    """Ten times closer than the constraints is no cause for a warning."""
    run = _swing(short, formulation)
    assert run.formulation.examination.review(run.system, run.ts, run.saved) is None


@pytest.mark.slow
def test_review_does_not_mistake_dependent_constraints_for_a_bad_choice(led_point):
    """Where J itself loses rank no other choice would help."""
    system = led_point(0.5)
    # At t = 2 the target leaves the circle.
    run = simulate(system, Multipliers(), system.start(), t1=1.99999, throw=False)
    values = np.linalg.svd(run.jacobian[-1], compute_uv=False)
    assert values[-1] < 0.01 * values[0]
    formulation = VelocityElimination()
    ys = jax.jit(jax.vmap(lambda t, s: formulation.init(system, t, s)))(run.ts, run.states)
    assert formulation.examination.review(system, run.ts, ys) is None


def test_the_field_is_nan_beyond_the_singularity():
    """The orientation of the start tells the other side, where B is finite again."""
    system, formulation = CartesianPendulum(), VelocityElimination("x")
    y = formulation.init(system, 0.0, State([0.6, -0.8], [0.8, 0.6]))
    beyond = eqx.tree_at(lambda y: y.q, y, jnp.array([0.6, 0.8]))
    field = jax.jit(lambda y: formulation.vector_field(system, 0.0, y, None))
    rate = field(beyond)
    assert np.isnan(rate.v).all()
    assert np.isnan(rate.q).any()
    assert np.isfinite(field(y).v).all()


def test_the_choice_at_the_start_follows_the_position():
    """A level rod is eliminated along x, a hanging one along y; per lane under vmap."""
    system = CartesianPendulum()
    assert choose_independent(system, 0.0, jnp.array([0.9, -0.3])) == ("y",)
    assert choose_independent(system, 0.0, jnp.array([0.3, -0.9])) == ("x",)
    q = jnp.array([[0.9, -0.3], [0.3, -0.9]])
    v = jnp.array([[0.3, 0.9], [0.9, 0.3]])
    start = lambda q, v: VelocityElimination().init(system, 0.0, State(q, v))  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.vmap(start))(q, v).order, [[1, 0], [0, 1]])


def test_choice_does_not_depend_on_the_units_of_coordinates_or_constraints(rng):
    """Scaling columns with the inverse of their sizes, and rows by anything, changes nothing."""
    matrix = rng.normal(size=(3, 7))
    columns, rows = 10.0 ** rng.uniform(-3, 3, 7), 10.0 ** rng.uniform(-3, 3, 3)
    free, basic = split_columns(jnp.asarray(matrix))
    scaled = jnp.asarray(rows[:, None] * matrix * columns)
    other = split_columns(scaled, jnp.asarray(1 / columns))
    np.testing.assert_array_equal(other[0], free)
    np.testing.assert_array_equal(other[1], basic)
    assert sorted([*free, *basic]) == list(range(7))
