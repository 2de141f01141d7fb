"""Times, steps and tolerances that are no numbers, and states of runs that failed."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import HarmonicOscillator
from jaxdae import State
from jaxdae.solvers import RK4

NAN, INF = np.nan, np.inf


START = State(jnp.array([1.0]), jnp.zeros(1))


def exact(t):
    return np.cos(2 * t)


def control(x, name):
    settings: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-8, name: x}
    return diffrax.PIDController(**settings)


# What is traced; the value that is right, and those that are not.
CASES = {
    "t1": (lambda x: {"t1": x}, 0.5, [NAN, INF, -INF]),
    "t0": (lambda x: {"t0": x}, 0.0, [NAN, INF, -INF]),
    "rtol": (lambda x: {"stepsize_controller": control(x, "rtol")}, 1e-8, [NAN, INF, -1.0]),
    "atol": (lambda x: {"stepsize_controller": control(x, "atol")}, 1e-8, [NAN, INF, -1.0]),
    "dtmax": (lambda x: {"stepsize_controller": control(x, "dtmax")}, INF, [NAN]),
    "saved": (lambda x: {"saveat": diffrax.SaveAt(ts=jnp.stack([0.1, x]))}, 0.5, [NAN, 0.05, 0.6]),
    "first step": (lambda x: {"dt": x, "stepsize_controller": control(1e-8, "rtol")}, 0.01,
                   [NAN, INF, 0.0, -0.01]),
    "step": (lambda x: {"dt": x, "solver": RK4()}, 0.005, [NAN, INF, 0.0, -0.005]),
}  # fmt: skip


QUICK = ("t0", "atol", "saved")


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        *((x, "auto") for x in QUICK),
        *(pytest.param(x, "auto", marks=pytest.mark.slow) for x in CASES if x not in QUICK),
        pytest.param("t1", "plain", marks=pytest.mark.slow),
    ],
)
def test_a_member_with_such_a_number_fails_alone(name, backend):
    settings, good, bad = CASES[name]

    def run(x):
        made = jaxdae.simulate(
            HarmonicOscillator(), jaxdae.Multipliers(), START,
            **{"t1": 0.5, "throw": False, "backend": backend} | settings(x),
        )  # fmt: skip
        return made.success, made.final_time, made.final_state.q[0], made.q[-1, 0]

    found = jax.vmap(run)(jnp.array([good, *bad, good]))
    success, time, end, row = (np.asarray(x) for x in found)
    assert success.tolist() == [True] + [False] * len(bad) + [True]
    assert np.isnan(time[1:-1]).all()
    assert not np.isfinite(end[1:-1]).any()
    assert not np.isfinite(row[1:-1]).any()
    np.testing.assert_allclose(end[[0, -1]], exact(0.5), atol=1e-6)
    assert end[0] == end[-1]


CONCRETE = [
    ({"t1": NAN}, "t1 is not finite: nan"),
    ({"t1": np.float64(INF)}, "t1 is not finite: inf"),
    ({"t0": -INF}, "t0 is not finite: -inf"),
    ({"dt": NAN, "solver": RK4()}, "dt is not finite: nan"),
    ({"saveat": diffrax.SaveAt(ts=[0.1, NAN])}, "asks for times from nan"),
    ({"stepsize_controller": control(INF, "rtol")}, "rtol of PIDController must be a finite"),
    ({"stepsize_controller": control(NAN, "atol")}, "atol of PIDController must be a finite"),
    ({"stepsize_controller": control(NAN, "dtmax")}, "dtmax of PIDController must be a positive"),
]


@pytest.mark.parametrize(("settings", "words"), CONCRETE)
def test_where_it_is_known_it_is_an_error_in_words(settings, words):
    with pytest.raises(ValueError, match=words):
        jaxdae.simulate(HarmonicOscillator(), jaxdae.Multipliers(), START, **{"t1": 0.5} | settings)


class Exploding(HarmonicOscillator):
    """`q'' = q^3 k` from 1: infinite after a finite time for `k = 50`, and not for `k = -4`."""

    def potential_energy(self, t, q):
        return -0.25 * self.stiffness * jnp.sum(q**4)


@pytest.mark.slow
def test_the_final_state_of_a_failed_run_is_none():
    def run(k):
        return jaxdae.simulate(
            Exploding(k), jaxdae.Multipliers(), START, t1=1.0, throw=False, max_steps=64,
            saveat=diffrax.SaveAt(t1=True),
        )  # fmt: skip

    made = run(50.0)
    assert not made.success
    assert np.isnan(made.final_state.q).all()
    assert np.isfinite(made.last_state.q).all()
    assert 0 < made.final_time < 1
    assert made.last_state.q[0] > 1

    def loss(k, masked):
        runs = jax.vmap(lambda x: run(x * k))(jnp.array([-4.0, 50.0]))
        # The mask comes first: the square of NaN has no derivative, whatever it is multiplied by.
        ends = jnp.where(runs.success | ~masked, runs.final_state.q[:, 0], 0.0)
        return jnp.sum(ends**2)

    one = lambda k: run(-4.0 * k).final_state.q[0] ** 2  # noqa: E731
    gradient = jax.jit(jax.grad(loss))
    assert np.isnan(gradient(1.0, False))
    # A cost that leaves the failed member out has the gradient of the other.
    np.testing.assert_allclose(gradient(1.0, True), jax.grad(one)(1.0), rtol=1e-10)
    slope = (one(1 + 1e-5) - one(1 - 1e-5)) / 2e-5
    np.testing.assert_allclose(gradient(1.0, True), slope, rtol=1e-3)  # tolerance 1e-8 over 1e-5

    def masked_later(k):
        runs = jax.vmap(lambda x: run(x * k))(jnp.array([-4.0, 50.0]))
        return jnp.sum(jnp.where(runs.success, runs.last_state.q[:, 0] ** 2, 0.0))

    np.testing.assert_allclose(jax.jit(jax.grad(masked_later))(1.0), gradient(1.0, True))


@pytest.mark.slow
def test_dense_output_behind_a_failure_is_none():
    run = jaxdae.simulate(
        Exploding(50.0), jaxdae.Multipliers(), START, t1=1.0, throw=False, max_steps=100,
        saveat=diffrax.SaveAt(dense=True), backend="plain",
    )  # fmt: skip
    early, late = (run.evaluate(x * float(run.final_time)) for x in (0.5, 1.5))
    assert np.isfinite(early.q).all()
    assert np.isnan(late.q).all()


def test_stored_runs_keep_both_states(tmp_path):
    run = jaxdae.simulate(
        Exploding(50.0), jaxdae.Multipliers(), START, t1=1.0, throw=False, max_steps=100
    )
    read = jaxdae.Trajectory.load(run.save(tmp_path / "run.npz"))
    assert np.isnan(read.final_state.q).all()
    np.testing.assert_array_equal(read.last_state.q, run.last_state.q)


def test_batches_without_members_can_be_read(tmp_path):
    one = lambda t1: jaxdae.simulate(  # noqa: E731
        HarmonicOscillator(), jaxdae.Multipliers(), START, t1=t1, throw=False
    )
    run = jax.vmap(one)(jnp.zeros(0))
    assert run.success.shape == np.shape(run.result) == (0,)
    assert run.final_state.q.shape == (0, 1)
    assert "0" in repr(run)
    assert "[]" in repr(run.result)
    read = jaxdae.Trajectory.load(run.save(tmp_path / "none.npz"))
    assert read.success.shape == (0,)
