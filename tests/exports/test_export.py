"""Exported runs: programs without Python give the numbers of `simulate`."""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.exported import (
    BAUMGARTE,
    executed,
    export_pendulum,
    Filtered,
    FIXED,
    HANGING,
    HERE,
    MEMBERS,
    PENDULUM,
    VECTORS,
    with_compiler,
)
from jaxdae.solvers import RK4


def members(system, state, field, run):
    """`simulate` of the members that the program makes."""
    return [
        run(
            dataclasses.replace(system, **{field: getattr(system, field) * (1 + 0.25 * i)}),
            jaxdae.State(state.q, state.v.at[0].add(0.125 * i), state.w),
        )
        for i in range(MEMBERS)
    ]


def assert_same(outputs, run, atol):
    """All numbers of a run, to round-off of its steps."""
    states = np.concatenate([run.q, run.v, run.w], axis=1)
    end = run.last_state
    assert outputs.result == int(run.result._value)
    assert outputs.steps == int(run.stats["num_steps"])
    assert outputs.accepted == int(run.stats["num_accepted_steps"])
    np.testing.assert_allclose(outputs.ts, run.ts, rtol=0, atol=atol)
    reached = np.isfinite(run.ts)
    assert outputs.rows == reached.sum()
    assert np.isinf(outputs.states[~reached]).all()
    np.testing.assert_allclose(outputs.states[reached], states[reached], rtol=0, atol=atol)
    final = np.concatenate([end.q, end.v, end.w])
    np.testing.assert_allclose(outputs.final, final, rtol=0, atol=atol)


@with_compiler
@pytest.mark.parametrize(
    ("target", "dtype"),
    [(HERE, np.float64), pytest.param(VECTORS, np.float32, marks=pytest.mark.slow)],
)
def test_a_c_program_gives_the_numbers_of_simulate(tmp_path, dtype, target):
    """Fixed steps, one run and a batch: 25 steps of numbers of about one, a rounding each."""
    start = jaxdae.State(HANGING.q.astype(dtype), HANGING.v.astype(dtype))
    files = jaxdae.export(
        PENDULUM, BAUMGARTE, start, directory=tmp_path, name="step", target=target, **FIXED
    )
    result = executed(files, "system_mass", 0.0, 0.5, dtype)
    assert (result.status, result.failed) == (0, 0)
    atol = 200 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(result.one.states, result.members[0].states, rtol=0, atol=atol)

    def run(system, state):
        return jaxdae.simulate(system, BAUMGARTE, state, **FIXED)

    for outputs, one in zip(result.members, members(PENDULUM, start, "mass", run), strict=True):
        assert_same(outputs, one, atol)
        assert outputs.time == 0.5


@with_compiler
@pytest.mark.slow
def test_adaptive_steps_and_angles(tmp_path, double_pendulum):
    """Sines, steps that are chosen, times between them; each member has steps of its own."""
    start = jaxdae.State([0.7, 1.9], [0.1, -0.2])
    formulation, asked = jaxdae.Multipliers(), diffrax.SaveAt(t0=True, ts=jnp.linspace(0.1, 1, 7))
    settings = {"t1": 1.0, "solver": diffrax.Dopri5(), "saveat": asked}
    files = jaxdae.export(
        double_pendulum, formulation, start, directory=tmp_path, name="double_pendulum",
        target=VECTORS, **settings,
    )  # fmt: skip
    result = executed(files, "system_m2", 0.0, 1.0)

    def run(system, state):
        return jaxdae.simulate(system, formulation, state, **settings)

    # Round-off in the lengths of steps moves rows by as much of their errors, 1e-8.
    for outputs, one in zip(
        result.members, members(double_pendulum, start, "m2", run), strict=True
    ):
        assert_same(outputs, one, 1e-11)


class Network(eqx.Module):
    """A force by a network, whose weights go through memory."""

    layers: eqx.nn.MLP

    def __init__(self):
        self.layers = eqx.nn.MLP(4, "scalar", 20, 2, jnp.tanh, key=jax.random.key(0))

    def __call__(self, t, q, v, w):
        return self.layers(jnp.concatenate([q, v]))


@with_compiler
@pytest.mark.parametrize(
    ("formulation", "settings", "more"),
    [
        pytest.param(jaxdae.Hamiltonian(BAUMGARTE.stabilization), FIXED, 0, marks=pytest.mark.slow),
        (BAUMGARTE, {**FIXED, "controller": Filtered()}, 1),
        pytest.param(BAUMGARTE, {**FIXED, "controller": Network()}, 0, marks=pytest.mark.slow),
    ],
    ids=["momenta", "controller", "network"],
)
def test_what_surrounds_an_integration(tmp_path, formulation, settings, more):
    """Own states of formulations and controllers."""
    files = jaxdae.export(
        PENDULUM, formulation, HANGING, directory=tmp_path, name="run", target=VECTORS, **settings
    )
    result = executed(files, "system_mass", 0.0, settings["t1"])

    def run(system, state):
        return jaxdae.simulate(system, formulation, state, **settings)

    expected = members(PENDULUM, HANGING, "mass", run)
    assert_same(result.one, expected[0], 1e-12)
    for outputs, one in zip(result.members, expected, strict=True):
        assert_same(outputs, one, 1e-12)
        assert outputs.final.size == 4 + more
    text = files.header.read_text()
    assert text.count("controller_gain") == more


@with_compiler
def test_a_failed_run_has_a_status(tmp_path):
    """Steps that are too long break; the end is the last row that was reached."""
    settings = {"t1": 40.0, "dt": 0.4, "solver": RK4()}
    with pytest.warns(RuntimeWarning, match="step"):
        files = jaxdae.export(
            PENDULUM, BAUMGARTE, HANGING, directory=tmp_path, name="far", target=HERE, **settings
        )
    result = executed(files, "system_mass", 0.0, 40.0)
    with pytest.warns(RuntimeWarning, match="step"):
        run = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, throw=False, **settings)
    assert result.status == result.one.result == int(run.result._value) == 9
    assert result.failed == MEMBERS
    reached = int(np.isfinite(run.ts).sum())
    assert result.one.rows == reached < 100
    assert result.one.time == run.ts[reached - 1]
    np.testing.assert_array_equal(result.one.final, result.one.states[reached - 1])
    assert np.isinf(result.one.states[reached:]).all()
    assert "FAR_NONFINITE = 9" in files.header.read_text()


@with_compiler
@pytest.mark.slow
def test_too_few_steps_have_a_status(tmp_path):
    settings = {"t1": 1.0, "max_steps": 3, "solver": diffrax.Dopri5()}
    files = jaxdae.export(
        PENDULUM, BAUMGARTE, HANGING, directory=tmp_path, name="few", target=HERE, **settings
    )
    result = executed(files, "system_mass", 0.0, 1.0)
    run = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, throw=False, **settings)
    assert result.status == int(run.result._value) == 1
    assert_same(result.one, run, 1e-10)


NAN, INF = "(0.0 / 0.0)", "(1.0 / 0.0)"
# Times from which the example's are made: of a run forward in time.
WRONG = [("0.0", NAN), (NAN, "0.5"), ("0.0", INF), ("0.0", f"-{INF}"), ("0.0", "-0.5")]
STEPS = {
    "rows": {"saveat": diffrax.SaveAt(ts=[0.0, 0.2, 0.3, 0.5])},
    "adaptive": {"dt": None, "solver": diffrax.Dopri5(), "saveat": diffrax.SaveAt(ts=[0.1, 0.5])},
}


@with_compiler
@pytest.mark.parametrize("name", STEPS)
def test_times_that_are_none_or_lead_the_other_way_have_a_status(tmp_path, name):
    files = export_pendulum(tmp_path, target=HERE, **STEPS[name])
    assert "PENDULUM_INVALID_TIMES = -1, /* a time is no finite number" in files.header.read_text()
    for t0, t1 in WRONG:
        result = executed(files, "system_mass", t0, t1)
        assert (result.status, result.failed) == (-1, 5)
        for one in (result.one, *result.members):
            assert (one.result, one.steps, one.rows) == (-1, 0, 0)
            assert np.isinf(one.states).all()
            assert np.isinf(one.ts).all()
    good = executed(files, "system_mass", "0.0", "0.5")
    assert (good.status, good.failed) == (0, 0)
    at_once = executed(files, "system_mass", "0.25", "0.25")
    assert at_once.status == 0
    np.testing.assert_allclose(at_once.one.final[:2], HANGING.q)
