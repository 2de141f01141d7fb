"""Whole integrations as native kernels: the numbers of diffrax, whatever is saved and batched."""

from types import SimpleNamespace

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.oscillator import (
    ADAPTIVE,
    AT_STEPS,
    AT_TIMES,
    FIXED,
    LOOSE,
    PID,
    QUICK,
    run,
    SAME_STEPS,
    SaveAt,
    START,
    TIMES,
)


def both(**settings):
    return run("plain", **settings), run("native", **settings)


def assert_same(plain, native, rtol, atol):
    """The same times, states, statistics and fate."""
    for name in ("ts", "q", "v", "w", "final_time"):
        expected, found = getattr(plain, name), getattr(native, name)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=name)
    for expected, found in zip(
        jax.tree.leaves(plain.final_state), jax.tree.leaves(native.final_state), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    assert jax.tree.map(np.asarray, native.stats).keys() == plain.stats.keys()
    for name, expected in plain.stats.items():
        np.testing.assert_array_equal(native.stats[name], expected, err_msg=name)
    np.testing.assert_array_equal(native.result._value, plain.result._value)
    np.testing.assert_array_equal(native.success, plain.success)


# What is saved.


def of_each(saveats, **settings):
    """Runs of diffrax, from one program that saves for each of them."""
    plain = run("plain", saveat=SaveAt(subs=[x.subs for x in saveats]), **settings)
    common = ("final_time", "final_state", "stats", "result", "success")
    shared = {name: getattr(plain, name) for name in common}

    def one(ts, state):
        """Rows that were not reached are no numbers, as a trajectory says it."""
        rows = {x: np.where(np.isfinite(ts)[:, None], getattr(state, x), np.nan) for x in "qvw"}
        return SimpleNamespace(ts=ts, **rows, **shared)

    return [one(ts, state) for ts, (state, _) in zip(plain.ts, plain.saved, strict=True)]


AT_GIVEN = [
    SaveAt(t0=True, steps=True),
    SaveAt(t1=True),
    SaveAt(t0=True, t1=True, steps=3),
    SaveAt(steps=11, t0=True),
    # Ends of steps, and the same one twice.
    SaveAt(ts=jnp.array([0.0, 0.0, 0.1, 0.5, 0.5, 1.0]), t0=True, t1=True),
    SaveAt(ts=jnp.zeros(1)),
    SaveAt(ts=jnp.zeros(0), t1=True),
]


@pytest.mark.slow
@QUICK
def test_given_steps_save_what_diffrax_saves():
    expected = of_each(AT_GIVEN, **FIXED)
    for saveat, plain in zip(AT_GIVEN, expected, strict=True):
        assert_same(plain, run("native", saveat=saveat, **FIXED), **SAME_STEPS)
    # By default all steps; integers may be times.
    assert_same(expected[0], run("native", **FIXED), **SAME_STEPS)
    ends = run("native", saveat=SaveAt(ts=[0, 1]), **FIXED)
    np.testing.assert_array_equal(ends.ts, [0.0, 1.0])
    np.testing.assert_allclose(ends.q, expected[0].q[:: expected[0].q.shape[0] - 1], **SAME_STEPS)


AT_CONTROLLED = [
    SaveAt(steps=True, t0=True, t1=True),
    SaveAt(steps=4),
    SaveAt(ts=jnp.zeros(1)),
    SaveAt(ts=jnp.zeros(0), t1=True),
]


@pytest.mark.slow
@QUICK
def test_controlled_steps_save_what_diffrax_saves():
    settings = {"max_steps": 32, **ADAPTIVE}
    for saveat, plain in zip(AT_CONTROLLED, of_each(AT_CONTROLLED, **settings), strict=True):
        assert_same(plain, run("native", saveat=saveat, **settings), **AT_STEPS)


@pytest.mark.slow
@QUICK
def test_given_steps_run_backward_in_time():
    """Those of adaptive steps are among the members of a batch below."""
    saveat = SaveAt(ts=TIMES[::-1], t0=True)
    settings = FIXED | {"dt": -0.1, "t0": 1.0, "t1": 0.0}
    assert_same(*both(saveat=saveat, **settings), **AT_TIMES)


@QUICK
def test_a_run_there_and_back_ends_where_it_began():
    """Independent of diffrax: to the error of the method at these tolerances, some 1e-5."""
    there = run("native", saveat=SaveAt(t1=True), **ADAPTIVE)
    settings = ADAPTIVE | {"t0": 1.0, "t1": 0.0, "dt": -0.05}
    back = run("native", start=there.final_state, saveat=SaveAt(t1=True), **settings)
    assert back.final_time == 0
    np.testing.assert_allclose(back.final_state.q, START.q, atol=1e-4)


# Methods and step control.


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize(
    ("solver", "atol"),
    # The error estimate of Dopri8 on this motion is near round-off, and so is what it decides.
    [(diffrax.Dopri5(), 1e-11), (diffrax.Dopri8(), 1e-6)],
)
def test_controlled_steps_of_methods_are_those_of_diffrax(solver, atol):
    """Within the tolerance of the control."""
    plain, native = both(solver=solver, stepsize_controller=LOOSE, saveat=SaveAt(ts=TIMES))
    np.testing.assert_allclose(native.q, plain.q, rtol=0, atol=atol)


CONTROL = {"rtol": 1e-5, "atol": 1e-7}
CONTROLLERS = {
    "PID": CONTROL | {"pcoeff": 0.1, "icoeff": 0.3, "dcoeff": 0.1},
    "dtmin": {"rtol": 1e-9, "atol": 1e-9, "dtmin": 0.1},
    "dt_min_reached": {"rtol": 1e-9, "atol": 1e-9, "dtmin": 0.1, "force_dtmin": False},
}


@pytest.fixture(scope="module")
def by_plain_control():
    """Runs of diffrax under those of the controllers that one program serves."""

    def one(numbers):
        return run_with("plain", PID(**numbers))

    usual = CONTROL | {
        "pcoeff": 0.0, "icoeff": 1.0, "dcoeff": 0.0, "factormin": 0.2, "factormax": 10.0,
        "safety": 0.9, "dtmin": 1e-300, "dtmax": 1e300,
    }  # fmt: skip
    names = [name for name in CONTROLLERS if name != "dt_min_reached"]
    every = [usual | CONTROLLERS[name] for name in names]
    runs = jax.jit(jax.vmap(one))({k: jnp.array([x[k] for x in every]) for k in usual})
    return {name: jax.tree.map(lambda x, i=i: x[i], runs) for i, name in enumerate(names)}


def run_with(backend, controller):
    saveat = SaveAt(steps=True, t1=True)
    solver = diffrax.Bosh3()
    found = run(backend, solver=solver, stepsize_controller=controller, saveat=saveat, max_steps=64)
    stats = {k: v for k, v in found.stats.items() if k != "max_steps"}
    parts = (found.ts, found.q, found.v, found.w, found.final_time, found.final_state)
    return *parts, stats, found.result._value, found.success


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize("name", CONTROLLERS)
def test_step_control_is_that_of_diffrax(name, by_plain_control):
    controller = PID(**CONTROLLERS[name])
    expected = by_plain_control.get(name) or run_with("plain", controller)
    found = run_with("native", controller)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, **AT_STEPS)


@QUICK
@pytest.mark.parametrize("dt", [0.01, 10.0])
def test_the_first_step_may_be_given(dt):
    saveat = SaveAt(steps=True, t1=True)
    plain, native = both(dt=dt, saveat=saveat, max_steps=64, **ADAPTIVE)
    if dt < 1:
        assert native.ts[0] == dt
    assert_same(plain, native, **AT_STEPS)


# The estimated error of a first step of 0.01 s would be round-off, and decide on the second one.
SINGLE = ADAPTIVE | {"stepsize_controller": PID(1e-3, 1e-4), "dt": 0.4}


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize(
    ("settings", "atol"),
    # A few roundings of 1.2e-7, in numbers of size 1; steps to the round-off of the estimate.
    [(FIXED, 2e-6), (SINGLE, 2e-5)],
    ids=["fixed", "adaptive"],
)
def test_single_precision_stays_single(settings, atol):
    start = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    ts = TIMES.astype(jnp.float32)
    plain, native = both(start=start, saveat=SaveAt(ts=ts, t1=True), **settings)
    assert native.q.dtype == native.ts.dtype == jnp.float32
    assert_same(plain, native, rtol=0, atol=atol)
