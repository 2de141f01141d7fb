"""Compiled runs: numbers of `simulate`, other starts, parameters and times, batches, threads."""

from concurrent.futures import ThreadPoolExecutor

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.exported import BAUMGARTE, HANGING, PENDULUM, Pendulum
from jaxdae.solvers import RK4

Q, V = np.array([0.6, -0.8]), np.array([0.4, 0.3])
FIXED = {"t1": 0.5, "dt": 0.02, "solver": RK4()}
WAYS = {
    "fixed": FIXED,
    "adaptive": {"t1": 0.5},
    "times": {"t1": 0.5, "saveat": diffrax.SaveAt(ts=jnp.linspace(0.1, 0.5, 4))},
    "backward": {"t1": -0.5, "dt": 0.02 * -1},
    "projected": {
        "t1": 0.5,
        "dt": 0.05,
        "solver": jaxdae.Projected(RK4()),
        "saveat": diffrax.SaveAt(ts=jnp.array([0.11, 0.5])),
    },
    "end": {**FIXED, "saveat": diffrax.SaveAt(t1=True)},
}
QUICK = ("fixed", "end")
BACKENDS = ("native", pytest.param("plain", marks=pytest.mark.slow))
# The same operations, which LLVM and XLA order as they like, over some 25 steps.
ROUND_OFF = 1e-12


@pytest.fixture(scope="module", params=BACKENDS)
def run(request):
    return jaxdae.compile_run(PENDULUM, BAUMGARTE, HANGING, backend=request.param, **FIXED)


@pytest.mark.parametrize(
    ("way", "backend"),
    [
        *((x, "native") for x in QUICK),
        *(pytest.param(x, "native", marks=pytest.mark.slow) for x in WAYS if x not in QUICK),
        pytest.param("end", "plain", marks=pytest.mark.slow),
    ],
)
def test_the_numbers_are_those_of_simulate(way, backend):
    energies = ("energy", "kinetic_energy", "potential_energy")
    more = (*energies, "multipliers", "phi", "phi_dot")
    run = jaxdae.compile_run(
        PENDULUM, BAUMGARTE, HANGING, backend=backend, quantities=more, **WAYS[way]
    )
    found = run(Q, V)
    known = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, backend=backend, **WAYS[way])
    assert (run.backend, bool(found.success), int(found.status)) == (backend, True, 0)
    assert int(found.num_steps) == int(known.stats["num_steps"])
    rows = slice(0, 0) if way == "end" else slice(None)
    for name, values in {
        "ts": found.ts, **{x: found[x] for x in ("q", "v", "w", *energies, "multipliers")},
    }.items():  # fmt: skip
        np.testing.assert_allclose(values, getattr(known, name)[rows], rtol=0, atol=30 * ROUND_OFF)
    for name in ("phi", "phi_dot"):
        expected = getattr(known.violation, name)[rows]
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=ROUND_OFF)
    np.testing.assert_allclose(found.final("q"), known.final_state.q, atol=ROUND_OFF)
    np.testing.assert_allclose(found.final_time, WAYS[way]["t1"])


def test_start_parameters_and_times_are_those_of_the_call(run):
    assert set(run.parameters) == {
        "system_length", "system_mass", "system_ceiling", "formulation_stabilization_K_D",
        "formulation_stabilization_K_P",
    }  # fmt: skip
    q, v = np.array([0.0, -1.5]), np.array([0.5, 0.0])
    found = run(q, v, times=(1.0, 1.25), system_length=1.5, formulation_stabilization_K_D=5.0)
    known = jaxdae.simulate(
        Pendulum(length=1.5), jaxdae.Multipliers(jaxdae.Baumgarte(5.0, 100.0)),
        jaxdae.State(q, v), t0=1.0, t1=1.25, dt=0.01, solver=RK4(),
    )  # fmt: skip
    np.testing.assert_allclose(found.ts, known.ts, rtol=1e-15)
    np.testing.assert_allclose(found.q, known.q, atol=ROUND_OFF)
    again = run([0.6, -0.8], [0.4, 0.3])  # what one call was given, the next has forgotten
    np.testing.assert_array_equal(again.q, run(Q, V).q)
    np.testing.assert_allclose(again.ts[-1], 0.5)


def test_batches_have_starts_and_parameters_of_their_own(run):
    lengths = np.linspace(1.0, 2.0, 9)
    q = np.stack([0 * lengths, -lengths], axis=1)
    v = np.stack([np.full(9, 0.3), 0 * lengths], axis=1)
    v[4] = np.nan
    found = run.batch(q, v, system_length=lengths)
    assert found.success.tolist() == [True] * 4 + [False] + [True] * 4
    for i in (0, 3, 8):
        one = run(q[i], v[i], system_length=lengths[i])
        np.testing.assert_allclose(found.q[i], one.q, atol=ROUND_OFF)
    shared = run.batch(q, v[0], times=(0.0, 0.1), system_mass=2.0)
    assert shared.q.shape == (9, 26, 2)


def test_threads_and_kept_results_do_not_disturb_each_other(run):
    starts = [np.array([np.sin(x), -np.cos(x)]) for x in np.linspace(0.0, 1.0, 40)]
    alone = [run(q, 0 * q) for q in starts]
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda q: run(q, 0 * q), starts)]
    for one, other, q in zip(alone, together, starts, strict=True):
        np.testing.assert_array_equal(one.q, other.q)
        np.testing.assert_array_equal(one.q[0], q)


def test_actuators_and_controllers_with_a_state_of_their_own():

    class Driven(Pendulum):
        def actuator_rate(self, t, q, v, w, u):
            return u - w

        def force(self, t, q, v, w, u):
            return jnp.stack([w[0], 0 * v[0]])

    law = jaxdae.PID(lambda t, q: q[:1] - 0.5 * (t > -1), K_P=2.0, K_I=1.0, K_D=0.1)
    start = jaxdae.State(Q, V, [0.25])
    for backend in ("native", "plain"):
        run = jaxdae.compile_run(
            Driven(), BAUMGARTE, start, controller=law, backend=backend, quantities=["u"], **FIXED
        )
        found = run(Q, V, [0.75])
        known = jaxdae.simulate(
            Driven(), BAUMGARTE, jaxdae.State(Q, V, [0.75]), controller=law, **FIXED
        )
        np.testing.assert_allclose(found.w[:, 0], known.w[:, 0], atol=ROUND_OFF)
        np.testing.assert_allclose(found["u"], known.u, atol=ROUND_OFF)
        np.testing.assert_array_equal(run(Q, V).w[0, :1], [0.25])


@pytest.mark.slow
def test_single_precision_and_what_no_kernel_has():
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), HANGING)
    assert jaxdae.compile_run(PENDULUM, BAUMGARTE, single, **FIXED)(Q, V).q.dtype == np.float32
    stepper = diffrax.PIDController(rtol=1e-6, atol=1e-6, pcoeff=0.1, icoeff=0.4)
    implicit = {"t1": 0.1, "solver": diffrax.ImplicitEuler(), "stepsize_controller": stepper}
    run = jaxdae.compile_run(PENDULUM, BAUMGARTE, HANGING, **implicit)
    assert run.backend == "plain"
    assert "ImplicitEuler" in str(run.why_not_native)
    known = jaxdae.simulate(PENDULUM, BAUMGARTE, HANGING, **implicit)
    np.testing.assert_allclose(run(Q, V).final("q"), known.final_state.q, atol=ROUND_OFF)
    with pytest.raises(jaxdae.BackendError, match="ImplicitEuler"):
        jaxdae.compile_run(PENDULUM, BAUMGARTE, HANGING, backend="native", **implicit)


def test_failures_and_mistakes_are_named(run):
    with pytest.raises(jaxdae.SimulationError, match=r"stopped at t = 0 s \(nonfinite\)"):
        run(Q, V * np.nan)
    assert not run(Q, V * np.nan, throw=False).success
    for words, call in {
        "q has shape (3,), must be (2,)": lambda: run(np.zeros(3), np.zeros(3)),
        "v has shape (1,), must be (2,)": lambda: run(Q, [0.0]),
        "w has shape (1,), must be (0,)": lambda: run(Q, V, [0.0]),
        "q has shape (2,), must be (members, 2)": lambda: run.batch(Q, V),
        "system_mass has shape (2,), must be ()": lambda: run(Q, V, system_mass=[1.0, 2.0]),
    }.items():
        with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")):
            call()
    with pytest.raises(TypeError, match="system_length"):
        run(Q, V, system_lenght=1.0)
    with pytest.raises(KeyError, match="quantity"):
        run(Q, V)["energi"]
    with pytest.raises(ValueError, match="saves states at times"):
        jaxdae.compile_run(PENDULUM, BAUMGARTE, HANGING, t1=0.5, saveat=diffrax.SaveAt(dense=True))
    with pytest.raises(ValueError, match="quantity"):
        jaxdae.compile_run(PENDULUM, BAUMGARTE, HANGING, t1=0.5, quantities=["heat"])
    with pytest.raises(ValueError, match="inconsistent"):
        jaxdae.compile_run(PENDULUM, BAUMGARTE, jaxdae.State([2.0, 0.0], [0.0, 0.0]), **FIXED)
    assert "reached t = 0.5 s" in repr(run(Q, V))
    assert "1 failed" in repr(run.batch(np.stack([Q, Q * np.nan]), V))


def test_events_are_refused_by_name(tmp_path):
    """With the way to have them; none are none."""
    event = jaxdae.Event(lambda t, q, v, w: q[0], name="middle")
    arguments = (PENDULUM, BAUMGARTE, HANGING)
    words = r"makes no runs with events.* Use jax\.jit of simulate\(\.\.\., events="
    for given in (event, [event]):
        with pytest.raises(jaxdae.BackendError, match=f"compile_run {words}"):
            jaxdae.compile_run(*arguments, **FIXED, events=given)
        with pytest.raises(jaxdae.BackendError, match=f"export {words}"):
            jaxdae.export(*arguments, directory=tmp_path, name="run", **FIXED, events=given)
    assert not list(tmp_path.iterdir())
    assert jaxdae.compile_run(*arguments, **FIXED, events=[])(Q, V).success
