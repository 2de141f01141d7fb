"""The policy for singular positions: right energies and branches, at any tolerance."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from helpers.equal_links import branch, branch_energy
from helpers.rhombus import Rhombus
from helpers.rubbing_crank import rubbing_motion, RubbingCrank
from jaxdae import Multipliers, Projected, simulate, SingularityRobust, SingularMassSolve
from jaxdae.formulations import FullRankSolve
from jaxdae.models import ReachableTwoLink, SliderCrank
from jaxdae.solvers import RK4
from jaxdae.systems import State

ROBUST = Multipliers(solve=SingularityRobust())
END = diffrax.SaveAt(t1=True)


def _adaptive(tolerance):
    # Arrays: another tolerance compiles nothing.
    return diffrax.PIDController(rtol=jnp.asarray(tolerance), atol=jnp.asarray(tolerance))


# Largest error of q [m, rad]; the solver's own on a regular motion is about ten times less than
# each of these, the best that any other formulation reached on this one is 1e-6.
@pytest.mark.slow
@pytest.mark.parametrize(("tolerance", "error"), [(1e-6, 1e-5), (1e-10, 1e-9)])
def test_a_rhombus_passes_its_flat_positions(tolerance, error):
    """Past twelve of them, the branch and the energy stay those of the parallelogram."""
    rhombus = Rhombus()
    run = simulate(
        rhombus,
        ROBUST,
        State(*rhombus.parallelogram(0.5, 6.0)),
        t1=4.0,
        stepsize_controller=_adaptive(tolerance),
        saveat=END,
    )
    assert_allclose(run.q[-1], rhombus.exact(0.5, 6.0, 4.0), atol=error)


@pytest.mark.parametrize("start", [0.0, 1e-6])
def test_given_steps_and_starts_off_the_constraints_keep_the_branch(start):
    """Once and a half round a slider-crank of equal links, past three in-line positions."""
    crank = SliderCrank()
    q, v = crank.start()
    q = q + start * jnp.array([0.3, -1.0, 0.5])
    run = simulate(crank, ROBUST, State(q, v), t1=2.0, dt=2e-3, solver=RK4(), saveat=END)
    theta, rate = run.q[-1, 0], run.v[-1, 0]
    assert float(theta) > 3 * np.pi
    # Errors of RK4 in the fast part of the turn.
    assert_allclose(run.q[-1], branch(crank, theta, rate)[0], atol=1e-10)
    energy = branch_energy(crank, *(x[0] for x in crank.start()))
    assert_allclose(branch_energy(crank, theta, rate), energy, atol=1e-4 + 50 * start)


@pytest.mark.slow
def test_batches_and_gradients_pass_too():
    """The arm's motion is prescribed: each member ends where the closed form does."""

    def end(amplitude):
        arm = ReachableTwoLink(target_amplitude=amplitude)
        state = State(*arm.start())
        run = simulate(arm, ROBUST, state, t1=3.0, dt=0.01, solver=RK4(), saveat=END, throw=False)
        return run.q[-1]

    def exact(amplitude):
        return ReachableTwoLink(target_amplitude=amplitude).exact_position(3.0)

    amplitudes = jnp.array([0.7, 1.0])
    slope = lambda f: jax.vmap(lambda x: (f(x), jax.jvp(f, (x,), (1.0,))[1]))(amplitudes)  # noqa: E731
    for found, expected in zip(slope(end), slope(exact), strict=True):
        assert_allclose(found, expected, atol=1e-8)


@pytest.mark.slow
def test_derivatives_through_the_position_are_those_of_one_coordinate():
    """Forward and reverse, beside a member that fails, against differences of SciPy's motion."""

    def end(parameters):
        crank = RubbingCrank(*parameters)
        run = simulate(crank, ROBUST, State(*crank.start()), t1=0.6, saveat=END, throw=False)
        return run.v[-1, 0], run.success

    def rate(length, damping):
        return rubbing_motion([0.6], length=length, damping=damping)[1, -1]

    members = jnp.array([[1.0, 0.5], [-1.0, jnp.nan], [1.1, 0.4]])
    slopes = lambda way: jax.vmap(way(end, has_aux=True))(members)  # noqa: E731
    for way in (jax.jacfwd, jax.jacrev):
        found, success = slopes(way)
        np.testing.assert_array_equal(success, [True, False, True])
        for (length, damping), slope in zip(members[::2], found[::2], strict=True):
            h = 1e-3
            by_length = (rate(length + h, damping) - rate(length - h, damping)) / (2 * h)
            by_damping = (rate(length, damping + h) - rate(length, damping - h)) / (2 * h)
            # Differences of second order.
            assert_allclose(slope, [by_length, by_damping], rtol=1e-5)


def test_steps_are_projected_whoever_solves_inside():
    assert Multipliers(
        solve=SingularMassSolve(SingularityRobust())
    ).capabilities.passes_singular_positions
    assert not Multipliers(
        solve=SingularMassSolve(FullRankSolve())
    ).capabilities.passes_singular_positions
    crank = SliderCrank()
    state = State(*crank.start())
    run = simulate(crank, ROBUST, state, t1=0.1, dt=0.02, solver=RK4())
    again = simulate(crank, ROBUST, state, t1=0.1, dt=0.02, solver=Projected(RK4()))
    assert float(abs(run.violation.phi).max()) < 1e-14
    np.testing.assert_array_equal(run.q, again.q)


@pytest.mark.slow
def test_the_solve_is_exact_where_constraints_are_independent():
    mass = jnp.diag(jnp.array([1.0, 2.0, 0.5]))
    jac = jnp.array([[1.0, 0.3, 0.0], [0.0, 1.0, -0.7]])
    force, rhs = jnp.array([0.2, -1.0, 3.0]), jnp.array([0.4, 0.1])
    matrix = np.block([[np.asarray(mass), np.asarray(jac).T], [np.asarray(jac), np.zeros((2, 2))]])
    exact = np.linalg.solve(matrix, np.concatenate([force, rhs]))
    assert_allclose(np.concatenate(SingularityRobust()(mass, force, jac, rhs)), exact, atol=1e-14)
    # A constraint that acts on nothing changes nothing, nor does none at all.
    free = SingularityRobust()(mass, force, jnp.zeros((1, 3)), jnp.zeros(1))[0]
    assert_allclose(free, force / jnp.diagonal(mass), rtol=1e-14)
    none = SingularityRobust()(mass, force, jnp.zeros((0, 3)), jnp.zeros(0))[0]
    assert_allclose(none, force / jnp.diagonal(mass), rtol=1e-14)


def test_projections_fade_out_before_round_off_is_divided_by_powers_of_the_singular_value():
    mass = jnp.diag(jnp.array([1.0, 2.0, 0.5]))
    jac = jnp.array([[1.0, 0.3, 0.0], [0.0, 1.0, -0.7]])
    residual = jnp.array([0.4, 0.1])
    inverse = 1 / jnp.diagonal(mass)

    def exact(jac, residual):
        return -inverse * (jac.T @ jnp.linalg.solve((jac * inverse) @ jac.T, residual))

    change = SingularityRobust().least_change
    # What is left is `(damping / sigma^2)^3`, of the order of 1e-12, in any units of the rows.
    for unit in (1.0, 1e-3):
        units = jnp.array([1.0, unit])
        rows = units[:, None] * jac
        found = change(mass, rows, units * residual)
        assert_allclose(found, exact(jac, residual), rtol=1e-9)
    # Two rows that differ by 1e-5: their difference, round-off, is not divided by that.
    near = jnp.array([[1.0, 0.0, 0.0], [1.0, 1e-5, 0.0]])
    noise = jnp.array([0.0, 1e-16])
    assert float(abs(exact(near, noise)).max()) > 9e-12
    assert float(abs(change(mass, near, noise)).max()) < 1e-15
    # A singular mass matrix changes nothing of it.
    light = SingularMassSolve(SingularityRobust()).least_change
    assert_allclose(light(mass, jac, residual), exact(jac, residual), rtol=1e-9)
    none = change(mass, jnp.zeros((0, 3)), jnp.zeros(0))
    assert_allclose(none, jnp.zeros(3), atol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"damping": 0.0}, r"damping is 0\.0, must lie between 0 and 1"),
        ({"damping": 1.5}, r"damping is 1\.5, must lie between 0 and 1"),
        ({"iterations": 0}, "iterations is 0, must be a positive integer"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SingularityRobust(**settings)
