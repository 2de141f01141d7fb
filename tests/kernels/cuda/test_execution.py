"""Kernels for GPUs, executed thread by thread on this processor: its own numbers.

The same operations are executed in the same order, each exact but for one rounding. Where both
fuse the same products and sums, which is what is seen on processors that have fused instructions,
all bits are equal; another choice costs a unit in the last place of a term, and a few hundred terms
of a step may add up. Numbers are compared with the largest of their array.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers import gpu_process
from helpers.fake_cuda import CONTEXT
from helpers.gpu import Gpu, lowered, targets
from helpers.spring import run, Spring, START
from jaxdae import State
from jaxdae.kernels.cuda import ptx
from jaxdae.kernels.cuda.device_lanes import DeviceLanes
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import AdamsBashforth, RK4
from jaxdae.solvers.base import AbstractTracedSolver

TESTS = Path(__file__).parents[2]
GPU = Gpu()
ROUND_OFF = {np.dtype(x): 1000 * np.finfo(x).eps for x in (np.float64, np.float32)}
STABLE = jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
DT, STEPS = 1e-2, 3
FIXED = {"solver": RK4(), "dt": DT}
# Steps that go on from those before, of which the way back keeps what they hand on, too.
MULTISTEP = {"solver": AdamsBashforth(2), "dt": DT}
# Steps of other lengths in each member.
ADAPTIVE = {
    "solver": diffrax.Tsit5(), "max_steps": 64,
    "stepsize_controller": diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.2, icoeff=0.5),
}  # fmt: skip


def motion(method: dict[str, Any], dtype=jnp.float64):
    """The end of a run of a pendulum as a function of its start, and a start."""
    system = jax.tree.map(lambda x: jnp.asarray(x, dtype), CartesianPendulum())

    def end(q, v):
        found = jaxdae.simulate(
            system, jaxdae.Hamiltonian(), State(q, v), t1=STEPS * DT, throw=False,
            saveat=diffrax.SaveAt(t1=True), start_tolerance=None, backend="native", **method,
        )  # fmt: skip
        return found.final_state.q, found.final_state.v, found.stats["num_steps"]

    return end, tuple(jnp.asarray(x, dtype) for x in system.start())


def spread(start, members: int):
    """Starts of members, a little apart from each other."""
    number = jnp.arange(members, dtype=start[0].dtype)[:, None]
    return tuple(x + number * (1e-3 + 1e-2 * jnp.abs(x)) for x in start)


def along(end, q, v):
    """Its value, and its derivative along a direction."""
    return jax.jvp(lambda q, v: end(q, v)[:2], (q, v), (jnp.ones_like(q), v))


def back(end, q, v):
    """Its value, and the gradient of a sum of all of it."""
    state, pull = jax.vjp(lambda q, v: end(q, v)[:2], q, v)
    return state, pull((v, q))


def both(end, q, v):
    """The number of steps, and all of that."""
    return end(q, v)[2], along(end, q, v), back(end, q, v)


def agree(function, *arguments):
    """Run on both; the results, and what was launched on the GPU."""
    traced, before = jax.jit(function).trace(*arguments), len(GPU.cuda.launches)
    found = jax.block_until_ready(GPU.compiled(lowered(traced))(*arguments))
    launched = GPU.cuda.launches[before:]
    wanted = traced.lower().compile()(*arguments)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert one.dtype == other.dtype
        assert np.array_equal(np.isfinite(one), np.isfinite(other))
        scale = np.abs(other[np.isfinite(other)]).max(initial=0)
        tolerance = ROUND_OFF.get(one.dtype, 0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)
    return found, launched


@pytest.mark.slow
@pytest.mark.parametrize("method", [FIXED, ADAPTIVE], ids=["fixed", "adaptive"])
def test_runs_tangents_and_adjoints(method):
    end, start = motion(method)
    found, launched = agree(jax.vmap(lambda q, v: both(end, q, v)), *spread(start, 3))
    assert {x.words[-1] for x in launched} == {3}
    assert len(launched) >= 2
    # Members differ.
    assert all(np.ptp(x, 0).max() > 0 for x in jax.tree.leaves(found[-2:]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [FIXED, MULTISTEP, ADAPTIVE], ids=["fixed", "multistep", "adaptive"]
)
def test_threads_serve_several_members_each(method, monkeypatch):
    """Seven members on four threads, whose memory for checkpoints is used again.

    It has room for one state: the others are computed anew.
    """
    monkeypatch.setattr(ptx, "_BLOCK", 2)
    monkeypatch.setattr(ptx, "_MOST_THREADS", 4)
    monkeypatch.setattr(DeviceLanes, "kept_bytes", 40)
    end, start = motion(method)
    _, launched = agree(jax.vmap(lambda q, v: back(end, q, v)), *spread(start, 7))
    assert {(x.grid[0], x.block[0], x.words[-1]) for x in launched} == {(2, 2, 7)}


@pytest.mark.slow
def test_threads_ask_a_sampled_policy_at_samples_of_their_own():
    """With their own periods, and derivatives by weights that they share."""

    class Policy(eqx.Module):
        weights: jax.Array

        def __call__(self, t, q, v, w, memory):
            return self.weights @ jnp.sin(jnp.stack([q[0], memory])), memory + t

    def back(weights, q, period):
        def end(weights, q):
            controller = jaxdae.Sampled(Policy(weights), period, memory=jnp.asarray(0.5))
            found = jaxdae.simulate(
                Spring(jnp.asarray(2.0)), jaxdae.Multipliers(), State(q, 0 * q), t1=0.1,
                controller=controller, throw=False, saveat=diffrax.SaveAt(t1=True),
                backend="native", **ADAPTIVE,
            )  # fmt: skip
            return found.final_state.q[0]

        return jax.value_and_grad(end, (0, 1))(weights, q)

    q, periods = jnp.linspace(0.2, 0.6, 5)[:, None], jnp.linspace(0.02, 0.04, 5)
    every = jax.vmap(back, (None, 0, 0))
    found, _ = agree(every, jnp.array([[0.7, -0.4]]), q, periods)
    assert np.isfinite(found[0]).all()


@pytest.mark.slow
def test_a_member_that_fails_leaves_the_others_alone():
    """A start that is no number, and one that is too fast for the numbers there are."""
    end, start = motion(ADAPTIVE)
    q, v = spread(start, 5)
    failing = q.at[1, 0].set(jnp.nan), v.at[3].multiply(1e160)
    (state, slopes), _ = agree(jax.vmap(lambda q, v: back(end, q, v)), *failing)
    expected = jax.jit(jax.vmap(lambda q, v: back(end, q, v)))(q, v)
    good = np.array([0, 2, 4])
    pairs = zip(jax.tree.leaves((state, slopes)), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one[good], other[good], rtol=1e-12)
    assert np.isnan(state[0][1, 0])


@pytest.mark.slow
def test_second_derivatives_of_a_constrained_system():
    system, formulation = CartesianPendulum(), jaxdae.Multipliers(STABLE)

    def cost(q, v):
        found = jaxdae.simulate(
            system, formulation, State(q, v), t1=2 * DT, saveat=diffrax.SaveAt(t1=True),
            throw=False, start_tolerance=None, backend="native", **FIXED,
        )  # fmt: skip
        return jnp.sum(found.final_state.q**3) + found.final_state.v @ found.final_state.q

    curvature = jax.vmap(jax.jacfwd(jax.grad(cost)))
    found, _ = agree(curvature, *spread(system.start(), 2))
    # Symmetric, but for the round-off of two ways to compute each.
    np.testing.assert_allclose(found, np.swapaxes(found, 1, 2), rtol=0, atol=1e-9)


@pytest.mark.slow
def test_single_precision():
    end, start = motion(FIXED, jnp.float32)
    (_, slopes), _ = agree(jax.vmap(lambda q, v: back(end, q, v)), *spread(start, 3))
    assert {x.dtype for x in slopes} == {np.dtype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "saveat"),
    [
        (FIXED, diffrax.SaveAt(t0=True, ts=jnp.linspace(0, 0.02, 5), t1=True)),
        (ADAPTIVE, diffrax.SaveAt(steps=True)),
    ],
)
def test_rows_at_times_and_at_steps(method, saveat, monkeypatch):
    # A check of the times would call Python, which JAX refuses to write into a program for a GPU
    # where there is none.
    monkeypatch.setattr(eqx, "error_if", lambda x, *_: x)
    system = CartesianPendulum()

    def rows(q, v):
        found = jaxdae.simulate(
            system, jaxdae.AugmentedLagrangian(1e3), State(q, v), t1=3 * DT, saveat=saveat,
            throw=False, start_tolerance=None, backend="native", **method,
        )  # fmt: skip
        return found.q, found.v, found.ts

    (q, v, ts), (launched,) = agree(jax.vmap(rows), *spread(system.start(), 3))
    assert launched.words[-1] == 3
    saved = np.isfinite(ts)
    for x in (q, v):
        np.testing.assert_array_equal(np.isfinite(x).all(axis=2), saved)
    # Of a time that is the sum of three steps.
    np.testing.assert_allclose(np.where(saved, ts, 0.0).max(axis=1), 3 * DT, rtol=1e-15)
    if saveat.subs.steps:
        assert not saved.all(axis=1).any()  # rows beyond the last step
    else:
        wanted = [0.0, *np.linspace(0, 0.02, 5), 3 * DT]
        np.testing.assert_allclose(ts, np.tile(wanted, (3, 1)), rtol=1e-15)


class Implicit(diffrax.Kvaerno3, AbstractTracedSolver):
    """An implicit method whose own steps kernels trace, Newton's iterations included."""


@pytest.mark.slow
def test_iterations_of_implicit_steps_end_in_each_thread_by_themselves():
    """Steps and iterations of members differ; what each computes is what it computes alone."""
    settings = {
        "solver": Implicit(root_finder=diffrax.VeryChord(rtol=1e-4, atol=1e-6)), "dt": None,
        "stepsize_controller": diffrax.PIDController(rtol=1e-3, atol=1e-5), "t1": 0.1,
        "saveat": diffrax.SaveAt(t1=True), "backend": "native", "throw": False,
    }  # fmt: skip

    def end(stiffness):
        found = run(Spring(stiffness), **settings)
        return found.q, found.v, found.stats["num_steps"]

    (_, _, steps), _ = agree(jax.vmap(end), jnp.array([1.0, 30.0, 100.0]))
    assert np.unique(steps).size > 1


def elementary(x, y):
    """All functions of kernels."""
    of_one = (
        jnp.sin, jnp.cos, jnp.tan, jnp.exp, jnp.expm1, jnp.log, jnp.log1p, jnp.sinh, jnp.cosh,
        jnp.tanh, jnp.arcsinh, jnp.arccosh, jnp.arctanh, jnp.arcsin, jnp.arccos, jnp.arctan,
        jnp.cbrt, jnp.sqrt, jax.scipy.special.erf, jnp.abs, jnp.sign, jnp.floor, jnp.ceil,
        jnp.round, jnp.trunc, jax.lax.rsqrt, jnp.reciprocal,
    )  # fmt: skip
    of_two = (jnp.arctan2, jnp.power, jax.lax.rem, jnp.minimum, jnp.maximum, jnp.hypot)
    return [*(f(x) for f in of_one), *(f(x, y) for f in of_two), jnp.where(x < y, x, y)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_elementary_functions(dtype, rng):
    """Everywhere: at special values and at numbers of all sizes.

    But for subnormal numbers, which XLA takes for zeros on processors.
    """
    values = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 1e22, -1e300, 710.0, -740.0]
    more = [89.0, *rng.normal(size=20), *2.0 ** rng.uniform(-30, 30, 20)]
    with np.errstate(all="ignore"):
        x = np.array([*values, *more], dtype)
    found, wanted = on_both(elementary, x, np.roll(x, 5))
    for one, other in zip(found, wanted, strict=True):
        # One unit in the last place, where a product and a sum are fused on one side only.
        tolerance = {"rtol": 2 * np.finfo(dtype).eps, "atol": np.finfo(dtype).tiny}
        np.testing.assert_allclose(one, other, **tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subnormal_numbers_are_numbers_on_gpus(dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([tiny, -7 * tiny, 2.0**20 * tiny, 1.0], dtype)
    found, _ = on_both(
        lambda x, y: [jnp.log(jnp.abs(x)), x * y, jnp.sqrt(y * y + x), x + x], x, x / x
    )
    expected = [np.log(np.abs(x)), x, np.sqrt(1 + x), 2 * x]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=4 * np.finfo(dtype).eps, atol=0)


def on_both(function, x, y):
    """A function of two numbers for each entry of two arrays, on a GPU and on a processor."""
    zero = jnp.zeros((), x.dtype)
    batch = jax.vmap(jaxdae.kernels.native(function, zero, zero))
    traced = jax.jit(batch).trace(x, y)
    return GPU.compiled(lowered(traced))(x, y), traced.lower().compile()(x, y)


# Launches.

STIFFNESS = np.array([1.0, 1.5, 2.5])


def spring_end(stiffness, **settings):
    """State of a spring at the end of a run."""
    found = run(Spring(stiffness), backend="native", throw=False, **settings)
    assert found.backend == "native"
    return jnp.concatenate([found.q[-1], found.v[-1]])


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (70, 2)])
def test_a_batch_is_one_launch_with_a_thread_for_each_member(count, blocks):
    found, (launched,) = agree(jax.vmap(spring_end), jnp.linspace(1.0, 2.0, count))
    assert (launched.grid, launched.block) == ((blocks, 1, 1), (64, 1, 1))
    assert launched.words[-1] == count == np.unique(np.asarray(found)[:, 0]).size


@pytest.mark.slow
def test_two_axes_of_a_batch_are_one_launch():
    both = jax.vmap(
        jax.vmap(lambda k, q: spring_end(k, start=State(q, START.v, START.w)), (None, 0)), (0, None)
    )
    found, (launched,) = agree(both, STIFFNESS, jnp.linspace(0.0, 1.0, 8).reshape(4, 2))
    assert found.shape == (3, 4, 4)
    assert launched.words[-1] == 12


@pytest.mark.slow
def test_gradients_by_what_members_share_are_sums_over_members():
    def cost(stiffness, push):
        return jnp.sum(
            jax.vmap(lambda k: spring_end(k, start=State(START.q, push, START.w)))(stiffness) ** 2
        )

    _, launched = agree(jax.grad(cost, (0, 1)), STIFFNESS, jnp.array([0.3, 0.4]))
    assert len(launched) == 2


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            2,
            r"RESOURCE_EXHAUSTED: jaxdae: cuLaunchKernel .*: out of memory\. .* 3 MiB of 81920 MiB",
        ),
        (700, "INTERNAL: jaxdae: cuLaunchKernel .* restart the process"),
    ],
)
def test_an_error_of_the_driver_ends_the_program_with_its_words(code, words):
    program = GPU.compiled(lowered(jax.jit(spring_end).trace(0.2)))
    GPU.cuda.failures["cuLaunchKernel"] = code
    try:
        with pytest.raises(jax.errors.JaxRuntimeError, match=words):
            jax.block_until_ready(program(0.2))
    finally:
        GPU.cuda.failures.clear()
    assert np.isfinite(program(0.2)).all()


@pytest.mark.slow
def test_devices_share_a_batch_and_sum_gradients_by_what_members_share():
    settings = {"NUM_CPU_DEVICES": "2", "ENABLE_X64": "1", "DISABLE_MOST_OPTIMIZATIONS": "1"}
    environment = {**os.environ, **{f"JAX_{name}": x for name, x in settings.items()}}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    words = [sys.executable, gpu_process.__file__]
    done = subprocess.run(words, env=environment, stdout=-1, check=True)
    found = json.loads(done.stdout)
    assert max(found["differences"]) < 1e-13  # sums of 140 numbers of one sign
    # A run, and then a run and its adjoint: each device serves its own half.
    assert found["contexts"] == [CONTEXT] * 3 + [CONTEXT + 1] * 3
    assert found["members"] == [70] * 6
    assert found["loaded"].count(CONTEXT) == found["loaded"].count(CONTEXT + 1)


def test_members_are_neighbours_in_memory():
    """Layouts of the call: number i of member m lies at i times the number of members, and m."""
    rows = jax.jit(jax.vmap(lambda k: spring_end(k, saveat=diffrax.SaveAt(steps=True))))
    text = lowered(rows.trace(STIFFNESS)).as_text()
    (call,) = (x for x in text.splitlines() if "custom_call @jaxdae_" in x)
    operands, results = call.split("operand_layouts = ")[1].split("result_layouts = ")
    assert "dense<[0, 2, 1]> : tensor<3xindex>, dense<[0, 1]>" in results
    assert "dense<0> : tensor<1xindex>" in operands


def test_programs_for_gpus_and_processors_are_exported_at_once():
    function = jax.jit(jax.vmap(spring_end))
    traced = function.trace(STIFFNESS)
    names = [name for x in (lowered(traced), traced.lower()) for name in targets(x.as_text())]
    assert len(set(names)) == 2
    checks = [jax.export.DisabledSafetyCheck.custom_call(x) for x in names]
    export = jax.export.export(function, platforms=["cuda", "cpu"], disabled_checks=checks)
    made = export(STIFFNESS)
    assert made.platforms == ("cuda", "cpu")
    np.testing.assert_array_equal(made.call(STIFFNESS), function(STIFFNESS))
