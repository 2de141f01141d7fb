"""`Trajectory`: every way of saving, and what is computed from the saved states."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import SaveAt, SubSaveAt

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

SYSTEM = CartesianPendulum()


def _run(t1=1.0, dt=0.125, **how):
    """Eight Runge-Kutta steps of a pendulum; the step is exact in binary."""
    formulation = Multipliers(Baumgarte(10.0, 25.0))
    return simulate(SYSTEM, formulation, State(*SYSTEM.start()), t1=t1, dt=dt, solver=RK4(), **how)


@pytest.fixture(scope="module")
def every_step():
    return _run()


@pytest.mark.slow
def test_fixed_step_runs_save_every_step_by_default(every_step):
    """Nine rows for eight steps, the first of them the start."""
    np.testing.assert_array_equal(every_step.ts, 0.125 * np.arange(9))
    np.testing.assert_array_equal(every_step.q[0], SYSTEM.start()[0])
    assert every_step.stats["num_steps"] == 8


def test_steps_that_do_not_divide_the_interval_are_saved_where_the_solver_makes_them():
    """The rows saved by default are the solver's own steps, the last of them t1 itself."""
    run = _run(t1=0.3)
    steps = _run(t1=0.3, saveat=SaveAt(t0=True, steps=True), max_steps=3)
    np.testing.assert_allclose(run.ts, steps.ts, rtol=1e-15)
    np.testing.assert_allclose(run.q, steps.q, rtol=1e-14, atol=1e-14)
    assert run.ts[-1] == 0.3
    assert run.success


@pytest.mark.slow
def test_given_times_are_interpolated_between_steps(every_step):
    """SaveAt(ts=…): rows at steps are the steps, rows between are good to cubic interpolation."""
    times = [0.25, 0.3, 1.0]
    run = _run(saveat=SaveAt(ts=times))
    np.testing.assert_array_equal(run.ts, times)
    np.testing.assert_allclose(run.q[0], every_step.q[2], rtol=1e-14)
    np.testing.assert_allclose(run.q[2], every_step.q[8], rtol=1e-13)
    # Halving the step twice divides the error of steps and interpolant by 4^4.
    coarse, fine, exact = (_run(dt=1 / n, saveat=SaveAt(ts=times)).q[1] for n in (32, 128, 1024))
    assert np.abs(coarse - exact).max() < 1e-4
    assert np.abs(fine - exact).max() < np.abs(coarse - exact).max() / 4**3.5


@pytest.mark.slow
def test_steps_of_the_solver_with_padding_marked(every_step):
    """SaveAt(steps=True): the accepted steps; rows beyond are ts = inf and NaN values."""
    run = _run(saveat=SaveAt(steps=True), max_steps=12, work=True)
    np.testing.assert_array_equal(run.ts[:8], 0.125 * np.arange(1, 9))
    np.testing.assert_allclose(run.q[:8], every_step.q[1:], rtol=1e-13, atol=1e-14)
    assert np.isinf(run.ts[8:]).all()
    work = run.work.constraint
    for values in (run.q, run.v, run.multipliers, run.violation.phi, run.energy, work):
        assert np.isfinite(values[:8]).all()
        assert np.isnan(values[8:]).all()
    assert run.success


@pytest.mark.slow
def test_dense_output_gives_any_time(every_step):
    """SaveAt(dense=True): evaluate(t) is the interpolant, and no rows are saved."""
    run = _run(saveat=SaveAt(dense=True))
    for row in (0, 3, 8):
        state = run.evaluate(float(every_step.ts[row]))
        np.testing.assert_allclose(state.q, every_step.q[row], atol=1e-14)
        np.testing.assert_allclose(state.v, every_step.v[row], atol=1e-14)
    assert run.ts is None
    with pytest.raises(ValueError, match="call `evaluate`"):
        _ = run.q


@pytest.mark.slow
def test_several_rules_at_once(every_step):
    """SaveAt(subs=…): a pytree of rules gives a pytree of results."""
    subs = {
        "height": SubSaveAt(ts=jnp.array([0.5, 1.0]), fn=lambda t, y, args: y.q[1]),
        "end": SubSaveAt(t1=True, fn=lambda t, y, args: y.v),
    }
    run = _run(saveat=SaveAt(subs=subs))
    heights = every_step.q[np.array([4, 8]), 1]
    np.testing.assert_allclose(run.saved["height"], heights, rtol=1e-12)
    np.testing.assert_allclose(run.saved["end"], every_step.v[8:], rtol=1e-12)
    np.testing.assert_array_equal(run.ts["height"], [0.5, 1.0])
    with pytest.raises(ValueError, match=r"SaveAt\(fn=…\), .* asked for: read `saved`"):
        _ = run.multipliers


def test_derived_quantities_are_those_of_the_saved_states(every_step):
    """Energies, residuals, Jacobian and multipliers, written out for the pendulum."""
    run = every_step
    q, v = np.asarray(run.q), np.asarray(run.v)
    kinetic, potential = 0.5 * (v**2).sum(1), 9.81 * q[:, 1]
    exact: dict[str, Any] = {"rtol": 1e-13, "atol": 1e-13}
    np.testing.assert_allclose(run.kinetic_energy, kinetic, **exact)
    np.testing.assert_allclose(run.potential_energy, potential, **exact)
    np.testing.assert_allclose(run.energy, kinetic + potential, **exact)
    phi, phi_dot = (q**2).sum(1) - 1, 2 * (q * v).sum(1)
    np.testing.assert_allclose(run.violation.phi[:, 0], phi, **exact)
    np.testing.assert_allclose(run.violation.phi_dot[:, 0], phi_dot, **exact)
    np.testing.assert_allclose(run.jacobian, 2 * q[:, None], **exact)
    # 2 q.a + 2 v.v = -10 phi_dot - 25 phi with a = -g e_y - 2 lam q.
    gravity = -9.81 * q[:, 1]
    lam = (2 * gravity + 2 * (v**2).sum(1) + 10 * phi_dot + 25 * phi) / (4 * (q**2).sum(1))
    np.testing.assert_allclose(run.multipliers[:, 0], lam, rtol=1e-11)


def test_what_a_run_was_not_asked_for_says_how_to_get_it(every_step):
    with pytest.raises(ValueError, match=r"no dense output; run .*SaveAt\(dense=True\)"):
        every_step.evaluate(0.5)
    with pytest.raises(ValueError, match=r"work was not integrated; run .*\(\.\.\., work=True"):
        _ = every_step.work
    assert every_step.u is None


def test_adaptive_statistics_count_rejections():
    """Steps are the sum of accepted and rejected ones."""
    run = simulate(
        SYSTEM,
        Multipliers(),
        State(*SYSTEM.start()),
        t1=1.0,
        dt=0.5,
        solver=diffrax.Dopri5(),
        stepsize_controller=diffrax.PIDController(rtol=1e-8, atol=1e-8),
    )
    stats = run.stats
    assert stats["num_rejected_steps"] > 0
    assert stats["num_steps"] == stats["num_accepted_steps"] + stats["num_rejected_steps"]


ANGLES, TIMES = jnp.array([0.3, 1.0, 2.0]), jnp.array([0.25, 0.3, 0.7, 1.0])


def _release(length, angle):
    """A pendulum of any length let go at any angle: four rows, and dense output."""
    system = CartesianPendulum(length=length)
    saveat = SaveAt(ts=TIMES, dense=True)
    how: dict[str, Any] = {"t1": 1.0, "dt": 0.125, "solver": RK4(), "max_steps": 8}
    formulation, state = Multipliers(Baumgarte(10.0, 25.0)), State(*system.released_from(angle))
    return simulate(system, formulation, state, saveat=saveat, **how)


@pytest.mark.slow
def test_a_lane_of_a_batch_is_the_run_alone():
    """States, what follows from them, the end, dense output, and what was simulated."""
    batch = jax.vmap(_release, (None, 0))(1.5, ANGLES)
    assert batch.q.shape == (3, 4, 2)
    lane, alone = batch[2], _release(1.5, ANGLES[2])
    for read in (
        lambda run: (run.ts, run.q, run.v, run.multipliers, run.energy, run.violation),
        lambda run: (run.final_time, run.final_state, run.success, run.stats),
        lambda run: (run.system.length, run.evaluate(TIMES)),
    ):
        # Eight steps of the same operations in another order.
        equal = lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)  # noqa: E731
        jax.tree.map(equal, read(lane), read(alone))
    # Times are the same for all lanes, and come behind the axes of the batch.
    np.testing.assert_allclose(batch.evaluate(TIMES).q, batch.q, rtol=1e-12, atol=1e-12)
