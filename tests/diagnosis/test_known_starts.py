"""Starts are checked wherever their numbers are known: batches, gradients, compiled programs."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.dependent_mechanisms import on_curve, Table
from helpers.systems import UnitMass
from jaxdae import (
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    QuasiVelocities,
    simulate,
    State,
)
from jaxdae.formulations import FullRankSolve
from jaxdae.multibody import assemble, Body, Hinge, HingeLoop, Multibody
from jaxdae.simulation.native import kernel_of
from jaxdae.solvers import RK4
from jaxdae.systems.independence import are_dependent, constraint_rank

STEPS = {"t1": 0.1, "dt": 0.02, "solver": RK4(), "saveat": diffrax.SaveAt(t1=True)}
GAINS = Baumgarte.critical(10.0)


@pytest.fixture(scope="module")
def table():
    """`table(length, off)`: system and start, four constraints of rank three where they hold."""

    def case(length=0.7, off=0.0):
        system = Table(length=length)
        return system, on_curve(system, 0.9, 0.4, off)

    return case


@pytest.mark.slow
def test_members_of_an_eager_batch_are_right_by_default(table):
    """As alone, from starts on and off the constraints, beside one that is no number; nested."""
    system, _ = table()

    def run(off):
        found = simulate(system, Multipliers(GAINS), table(off=off)[1], throw=False, **STEPS)
        return found.q[-1], found.success, found.held_rank

    offs = jnp.array([0.0, 1e-6, jnp.nan])
    q, success, held = jax.vmap(run)(offs)
    np.testing.assert_array_equal(success, [True, True, False])
    np.testing.assert_array_equal(np.asarray(held)[:2], 3.0)
    for i in range(2):
        # Sums of a batch are rounded in another order; off the constraints by 1e-6.
        np.testing.assert_allclose(q[i], run(float(offs[i]))[0], rtol=0, atol=1e-12)
    nested = jax.vmap(jax.vmap(run))(offs[None])
    np.testing.assert_allclose(nested[0][0, :2], q[:2], rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_batch_of_independent_constraints_keeps_the_fast_solve(table):
    def held(off):
        system, state = table(off=off)
        system = type(system)(rods=1, length=0.7)
        return simulate(system, Multipliers(GAINS), state, **STEPS).held_rank

    assert jax.vmap(held)(jnp.array([0.0, 1e-6])) is None


@pytest.mark.slow
def test_gradients_by_lengths_and_gains_agree_three_ways(table):
    """Eager batches of gradients, gradients of batches, and compiled with `MinimumNormSolve()`."""

    def end(x, solve=None):
        system, state = table(length=x[0])
        how = Multipliers(Baumgarte.critical(x[1]), solve or Multipliers().solve)
        # Faster than consistent, so that gains matter.
        state = State(state.q, state.v + 0.01)
        return simulate(system, how, state, start_tolerance=None, **STEPS).q[-1, 0]

    at = jnp.array([[0.7, 10.0], [0.75, 8.0]])
    h = jnp.array([1e-3, 1e-2])
    moved = at[:, None, None] + jnp.array([1.0, -1.0])[:, None, None] * jnp.diag(h)
    batch = jax.jit(jax.vmap(jax.value_and_grad(lambda x: end(x, MinimumNormSolve()))))
    ends, slopes = batch(jnp.concatenate([moved.reshape(-1, 2), at]))
    ahead, behind = ends[:8].reshape(2, 2, 2).swapaxes(0, 1)
    difference = (ahead - behind) / (2 * h)
    found = [
        slopes[8:],
        jax.vmap(jax.grad(end))(at),
        jax.grad(lambda x: jnp.sum(jax.vmap(end)(x)))(at),
        jax.vmap(jax.jacfwd(end))(at),
    ]
    for gradient in found:
        # Truncation h^2 of the difference, 3e-6 of the slopes; and choices of pivots, off the
        # constraints by d = 1e-3 along the run, change ends by less than d^2 / 1e4.
        np.testing.assert_allclose(gradient, difference, rtol=1e-5, atol=4e-9)


@pytest.mark.slow
def test_a_compiled_program_over_gains_knows_the_start(table):
    """As eager: the rank is found, gradients are right, and refusals are in words."""
    system, state = table(off=1e-6)

    def run(rate, solve=None):
        how = Multipliers(Baumgarte.critical(rate), solve or Multipliers().solve)
        found = simulate(system, how, state, **STEPS)
        return found.q[-1, 0], found.held_rank

    (end, held), slope = jax.jit(jax.value_and_grad(run, has_aux=True))(10.0)
    assert held == 3
    np.testing.assert_allclose(end, run(10.0)[0], rtol=0, atol=1e-14)
    difference = (run(10.1)[0] - run(9.9)[0]) / 0.2
    np.testing.assert_allclose(slope, difference, rtol=1e-3)  # h^2
    with pytest.raises(ValueError, match=r"rank 3 of 4 .*solve=MinimumNormSolve\(\)"):
        jax.jit(lambda rate: run(rate, FullRankSolve()))(10.0)


def test_lists_in_a_compiled_program_are_known_as_well(table):
    system, _ = table()

    @jax.jit
    def held(rate):
        tip = 0.7 * np.array([np.cos(0.9), np.sin(0.9)])
        state = State([*tip, 0.0, 0.9], [0.0] * 4)
        return simulate(system, Multipliers(Baumgarte.critical(rate)), state, **STEPS).held_rank

    assert held(10.0) == 3


@pytest.mark.slow
def test_a_formulation_that_needs_independence_fails_in_batches_too(table):
    """Alone it refuses the start."""
    system, state = table()
    how = QuasiVelocities()
    with pytest.raises(ValueError, match="dependent"):
        simulate(system, how, state, **STEPS)
    run = lambda off: simulate(system, how, table(off=off)[1], throw=False, **STEPS).success  # noqa: E731
    assert not jax.vmap(run)(jnp.array([0.0, 1e-6])).any()


class Doubled(UnitMass):
    """A point on a circle and a line; its velocity constraint is the circle's, but for an angle."""

    angle: float

    def position_constraints(self, t, q):
        return jnp.stack([q[:2] @ q[:2] - 1])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([q[:2] @ v[:2] + self.angle * v[2]])


# Squares of singular values that single precision resolves are larger.
@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, kernel_of], ids=["plain", "native"])
@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-5), ("float32", 2e-2)])
def test_starts_that_vary_in_a_program_are_checked_on_the_constraints(dtype, least, kernel):
    """By the rank there, known by hand: off them the rows differ by the distance."""
    off = jnp.array([0.0, 1e-7, 1e-6, 1e-5, 1e-4], dtype)
    q = jnp.array([0.6, 0.8, 0.3], dtype) + off[:, None] * jnp.array([0.3, -0.7, 0.5], dtype)
    v = jnp.broadcast_to(jnp.array([0.8, -0.6, 0.0], dtype), q.shape)

    @jax.jit
    def dependent(angle, q, v):
        one = lambda q, v: are_dependent(Doubled(angle), 0.0, State(q, v), kernel)  # noqa: E731
        return jax.vmap(one)(q, v)

    assert dependent(0.0, q, v).all()
    assert not dependent(1.0, q, v).any()
    assert not dependent(least, q, v).any()


def test_ranks_of_members_are_found_by_kernels(table):
    """Three of four, on the constraints and off them, beside a member that is no number."""
    system, _ = table()
    offs = (0.0, 1e-6, 1e-3, np.nan)
    starts = jax.tree.map(lambda *x: jnp.stack(x), *(table(off=x)[1] for x in offs))
    calls = []

    def kernel(function, *examples):
        calls.append(kernel_of(function, *examples))
        return calls[-1]

    found = jax.jit(jax.vmap(lambda x: constraint_rank(system, 0.0, x, kernel)))(starts)
    assert len(calls) == 2
    assert None not in calls
    np.testing.assert_array_equal(found.rank[:3], 3)
    assert found.regular[:3].all()
    # Nothing of a member that is no number counts as known.
    assert np.isnan(found.held()[3])


def test_a_kernel_says_where_a_rank_holds_at_one_position_only():
    """A flat parallelogram, where one more equation has no derivative at all."""
    system = four_bar((1.0, 2.0, 1.0), 2.0)
    angles = jnp.array([[0.0, 0.0, 0.0], [0.7, -0.7, 0.7]])
    state = State(angles, jnp.zeros((2, 3)))
    found = jax.jit(jax.vmap(lambda x: constraint_rank(system, 0.0, x, kernel_of)))(state)
    np.testing.assert_array_equal(found.rank, [1, 2])
    np.testing.assert_array_equal(found.regular, [False, True])


def four_bar(lengths, base):
    """A planar four-bar of spatial hinges: of five equations three depend on the others."""

    def bar(name, before, place, length):
        inertia, middle = (0.01, 0.1, 0.1), (length / 2, 0, 0)
        hinge = Hinge(name, (0.0, 1.0, 0.0))
        return Body(name, hinge, before, place, (1, 0, 0, 0), 1.0, middle, inertia)

    crank, coupler, rocker = lengths
    bodies = [
        bar("crank", None, (0, 0, 0), crank),
        bar("coupler", "crank", (crank, 0, 0), coupler),
        bar("rocker", None, (base, 0, 0), rocker),
    ]
    ends, axis = ((coupler, 0, 0), (rocker, 0, 0)), (0, 1.0, 0)
    return Multibody(bodies, [HingeLoop("end", "coupler", "rocker", *ends, axis)])


@pytest.mark.slow
def test_derivatives_of_a_batch_of_loops_with_dependent_equations():
    """Both modes agree with differences, by masses and starts, beside a member that fails."""
    system = four_bar((0.3, 1.0, 0.7), 0.9)
    start = assemble(system, jnp.array([1.0, -0.5, 2.0]))
    start = jaxdae.consistent_state(system, start.q, start.v.at[0].set(3.0))
    solve = Multipliers(Baumgarte.critical(30.0), solve=MinimumNormSolve())

    def loss(masses, v):
        bodies = [
            eqx.tree_at(lambda x: x.mass, *x) for x in zip(system.bodies, masses, strict=True)
        ]
        varied = eqx.tree_at(lambda x: x.bodies, system, tuple(bodies))
        how = STEPS | {"backend": "native", "throw": False}
        return jnp.sum(simulate(varied, solve, State(start.q, v, start.w), **how).q[-1] ** 2)

    masses = jnp.array([[1.0, 1.0, 1.0], [1.2, 0.9, 1.0], [jnp.nan, 1.0, 1.0]])
    speeds = jnp.outer(jnp.array([1.0, 0.5, 1.0]), start.v)
    each = lambda f: jax.jit(jax.vmap(f))(masses, speeds)  # noqa: E731
    forward, reverse = (each(x(loss, (0, 1))) for x in (jax.jacfwd, jax.grad))
    value = jax.jit(jax.vmap(loss))
    step = 1e-5
    for i in range(3):
        move = step * jnp.eye(3)[i]
        by_mass = value(masses + move, speeds) - value(masses - move, speeds)
        by_speed = value(masses, speeds + move) - value(masses, speeds - move)
        for number, difference in enumerate((by_mass, by_speed)):
            # Central differences of values of some five: round-off 1e-10, curvature less.
            expected = difference[:2] / (2 * step)
            np.testing.assert_allclose(forward[number][:2, i], expected, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(
                reverse[number][:2, i], forward[number][:2, i], rtol=1e-9, atol=1e-12
            )
    assert np.isnan(value(masses, speeds)[2])
