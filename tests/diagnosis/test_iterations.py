"""What Newton's iteration took is counted, and said where many steps were rejected for it."""

import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import MassOnCircle
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import GeneralizedAlpha, Projected, RadauIIA, Rattle

COUNTS = "num_iterations", "num_factorizations", "num_unsolved_steps"
START = MassOnCircle().start()
SWINGS = jaxdae.State(jnp.array([0.6, -0.8]), jnp.array([0.8, 0.6]))
END = diffrax.SaveAt(t1=True)


class Rubbing(CartesianPendulum):
    """A pendulum with dry friction that reverses within `speed` [m/s]."""

    speed: Any = 1e-6

    def force(self, t, q, v, w, u):
        return super().force(t, q, v, w, u) - 3.0 * jnp.tanh(v / self.speed)


def run(system=None, state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": RadauIIA(), "saveat": END} | options
    system = MassOnCircle() if system is None else system
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def half_way(t, q, v, w):
    return q[1] - 0.5


def unchanged(t, q, v, w):
    return q, v, w


def counts(found) -> list[int]:
    return [int(found.stats[name]) for name in COUNTS]


@pytest.mark.slow
def test_both_backends_count_the_same():
    plain, native = (run(backend=x) for x in ("plain", "native"))
    for found in (plain, native):
        iterations, factorizations, unsolved = counts(found)
        # One matrix for each step, rejected ones too, as all of them converge.
        assert (factorizations, unsolved) == (int(found.stats["num_steps"]), 0)
        assert factorizations < iterations < 40 * factorizations
    # Round-off decides about the last iteration of a step.
    np.testing.assert_allclose(counts(plain)[0], counts(native)[0], rtol=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "options", "matrices"),
    [
        (GeneralizedAlpha(), {}, 1),
        (RadauIIA(), {"dt": 0.05}, 1),
        (Rattle(4), {"dt": 0.05}, 10),
        (Projected(diffrax.Heun(), symmetric=True), {"dt": 0.05}, 1),
    ],
)
def test_every_solver_with_iterations_counts_them(solver, options, matrices):
    found = run(solver=solver, backend="plain", **options)
    iterations, factorizations, unsolved = counts(found)
    assert (factorizations, unsolved) == (matrices * int(found.stats["num_steps"]), 0)
    assert iterations >= factorizations


def test_explicit_methods_have_nothing_to_count():
    assert not set(COUNTS) & set(run(solver=diffrax.Dopri5()).stats)


@pytest.mark.slow
def test_members_of_a_batch_count_for_themselves():
    def of(speed):
        state = jaxdae.State(START.q, speed * START.v)
        return run(state=state, max_steps=200, throw=False).stats

    speeds = jnp.array([1.0, jnp.nan, 3.0])
    together = jax.vmap(of)(speeds)
    for i in (0, 2):
        alone = of(speeds[i])
        for name in COUNTS[1:]:
            assert together[name][i] == alone[name]
        np.testing.assert_allclose(together[COUNTS[0]][i], alone[COUNTS[0]], rtol=0.05)
    assert together["num_unsolved_steps"][1] == together["num_steps"][1] > 0


@pytest.mark.slow
def test_counts_go_on_across_events():
    event = jaxdae.Event(half_way, reset=unchanged)
    whole, parted = counts(run()), counts(run(events=event))
    # The step before the event is made shorter, and the one behind it begins anew.
    assert whole[1] < parted[1] < 2 * whole[1]
    assert parted[0] > whole[0]


@pytest.mark.parametrize("solver", [RadauIIA(), GeneralizedAlpha()], ids=["radau", "alpha"])
def test_many_steps_that_do_not_converge_are_pointed_out(solver):
    control = diffrax.PIDController(rtol=1e-6, atol=1e-6)
    given: dict[str, Any] = {"solver": solver, "t1": 3.0, "stepsize_controller": control}
    name = type(solver).__name__
    with pytest.warns(
        RuntimeWarning,
        match=rf"iteration of {name} did not converge in \d\d of \d+ steps, .* jump_ts",
    ):
        found = run(Rubbing(), SWINGS, backend="native", **given)
    unsolved = int(found.stats["num_unsolved_steps"])
    assert 0.1 * int(found.stats["num_steps"]) < unsolved <= int(found.stats["num_rejected_steps"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        smooth = run(Rubbing(speed=1e-2), SWINGS, backend="native", **given)
    assert int(smooth.stats["num_unsolved_steps"]) < 10


def test_an_error_says_that_newton_did_not_converge():
    control = diffrax.PIDController(rtol=1e-6, atol=1e-6, dtmin=1e-4, force_dtmin=False)
    with pytest.raises(
        jaxdae.SimulationError, match=r"stopped at t = .* did not converge in \d+ of \d+ steps"
    ):
        run(Rubbing(), SWINGS, t1=3.0, backend="native", stepsize_controller=control)
