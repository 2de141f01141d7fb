"""Simulations on a GPU under JAX's transformations: each launch is executed, instruction by
instruction, and agrees with the native kernel on processors.

Where both round in the same order numbers are equal; sums of a compiler that contracts products and
sums on one side only differ by a few units in the last place of terms of the order of 1.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers import gpu_process
from helpers.fake_cuda import CONTEXT
from helpers.gpu import Gpu, lowered, targets
from helpers.spring import run, Spring, START
from jaxdae import Multipliers, simulate, State
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

GPU = Gpu()
TESTS = Path(__file__).parents[2]
ROUND_OFF = {"rtol": 1e-13, "atol": 1e-15}
STIFFNESS = np.array([1.0, 1.5, 2.5])


def end(stiffness, **settings):
    """State of a spring at the end of a run."""
    found = run(Spring(stiffness), backend="native", throw=False, **settings)
    assert found.backend == "native"
    return jnp.concatenate([found.q[-1], found.v[-1]])


def swing(push, **settings):
    """Positions of a pendulum in Cartesian coordinates, which has a constraint."""
    q, v = CartesianPendulum().start()
    state = State(q, v + push * jnp.array([q[1], -q[0]]))
    settings = {"t1": 0.2, "dt": 0.05, "solver": RK4(), "backend": "native", **settings}
    settings = {**settings, "throw": False, "start_tolerance": None}
    return simulate(CartesianPendulum(), Multipliers(), state, **settings).q


def agree(function, *arguments, **tolerance):
    """A function launches as many kernels and gives the same on GPUs and on processors."""
    traced, before = jax.jit(function).trace(*arguments), len(GPU.cuda.launches)
    here, there = traced.lower(), lowered(traced)
    found = jax.block_until_ready(GPU.compiled(there)(*arguments))
    launched = GPU.cuda.launches[before:]
    # XLA leaves out what nobody reads.
    kernels = [len(targets(x.as_text())) for x in (here, there)]
    assert kernels[0] == kernels[1] >= len(launched)
    wanted = here.compile()(*arguments)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, **{**ROUND_OFF, **tolerance})
    return found, launched


def test_one_run_is_a_launch_of_one_member():
    _, (launched,) = agree(swing, 0.3)
    assert (launched.grid, launched.block, launched.words[-1]) == ((1, 1, 1), (64, 1, 1), 1)


def test_a_batch_is_one_launch_with_a_thread_for_each_member():
    found, (launched,) = agree(jax.vmap(swing), jnp.linspace(0.1, 0.9, 70))
    assert launched.grid == (2, 1, 1)
    assert np.unique(np.asarray(found)[:, -1, 0]).size == 70


@pytest.mark.slow
def test_two_axes_of_a_batch_are_one_launch():
    both = jax.vmap(
        jax.vmap(lambda k, q: end(k, start=State(q, START.v, START.w)), (None, 0)), (0, None)
    )
    found, (launched,) = agree(both, STIFFNESS, jnp.linspace(0.0, 1.0, 8).reshape(4, 2))
    assert found.shape == (3, 4, 4)
    assert launched.words[-1] == 12


def test_an_empty_batch_launches_nothing():
    found, launched = agree(jax.vmap(end), jnp.zeros(0))
    assert (found.shape, launched) == ((0, 4), [])


@pytest.mark.slow
def test_adaptive_steps_end_at_known_times():
    control = diffrax.ClipStepSizeController(
        diffrax.PIDController(rtol=1e-6, atol=1e-8), step_ts=jnp.array([0.31]),
        jump_ts=jnp.array([0.17, 0.5]),
    )  # fmt: skip
    saveat = diffrax.SaveAt(ts=jnp.array([0.1, 0.17, 0.4, 0.5, 0.6]))

    def rows(stiffness):
        return run(
            Spring(stiffness), backend="native", throw=False, stepsize_controller=control, dt=None,
            t1=0.7, solver=diffrax.Dopri5(), saveat=saveat,
        ).q  # fmt: skip

    def exact(stiffness):
        t, frequency = saveat.subs.ts[:, None], jnp.sqrt(stiffness)
        return START.q * jnp.cos(frequency * t) + START.v / frequency * jnp.sin(frequency * t)

    total = lambda made: jax.vmap(jax.value_and_grad(lambda k: jnp.sum(made(k))))  # noqa: E731
    found, launched = agree(total(rows), STIFFNESS)
    assert len(launched) == 2
    # Ten numbers, each with errors of the order of the tolerance.
    for one, other in zip(found, total(exact)(STIFFNESS), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_gradients_by_what_members_share_are_sums_over_members():
    def cost(stiffness, push):
        return jnp.sum(
            jax.vmap(lambda k: end(k, start=State(START.q, push, START.w)))(stiffness) ** 2
        )

    _, launched = agree(jax.grad(cost, (0, 1)), STIFFNESS, jnp.array([0.3, 0.4]))
    assert len(launched) == 2


@pytest.mark.slow
def test_jacobians_in_both_modes():
    pushes = jnp.array([0.1, 0.4, 0.5])
    forward, backward = (
        agree(jax.vmap(mode(swing)), pushes)[0] for mode in (jax.jacfwd, jax.jacrev)
    )
    # Both are derivatives of the discrete motion; numbers are of the order of 1.
    np.testing.assert_allclose(forward, backward, rtol=0, atol=1e-13)
    assert np.abs(forward).max() > 0.1


def test_a_member_that_fails_does_not_touch_the_others():
    found, _ = agree(jax.vmap(end), jnp.array([1.0, np.nan, np.inf, 2.0]))
    assert np.isfinite(np.asarray(found)).all(axis=1).tolist() == [True, False, False, True]


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
    program = GPU.compiled(lowered(jax.jit(swing).trace(0.2)))
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


# Programs for GPUs, made where there are none.


def test_members_are_neighbours_in_memory():
    """Layouts of the call: number i of member m lies at i times the number of members, and m."""
    rows = jax.jit(jax.vmap(lambda k: end(k, saveat=diffrax.SaveAt(steps=True))))
    text = lowered(rows.trace(STIFFNESS)).as_text()
    (call,) = (x for x in text.splitlines() if "custom_call @jaxdae_" in x)
    operands, results = call.split("operand_layouts = ")[1].split("result_layouts = ")
    assert "dense<[0, 2, 1]> : tensor<3xindex>, dense<[0, 1]>" in results
    assert "dense<0> : tensor<1xindex>" in operands


def test_programs_for_gpus_and_processors_are_exported_at_once():
    function = jax.jit(jax.vmap(end))
    traced = function.trace(STIFFNESS)
    names = [name for x in (lowered(traced), traced.lower()) for name in targets(x.as_text())]
    assert len(set(names)) == 2
    checks = [jax.export.DisabledSafetyCheck.custom_call(x) for x in names]
    export = jax.export.export(function, platforms=["cuda", "cpu"], disabled_checks=checks)
    made = export(STIFFNESS)
    assert made.platforms == ("cuda", "cpu")
    np.testing.assert_array_equal(made.call(STIFFNESS), function(STIFFNESS))
