"""Kernels are remembered by what they are made of, and serve nothing else."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import run, Spring, START
from jaxdae import State
from jaxdae.kernels.llvm import machine_code
from jaxdae.memory import Memory
from jaxdae.simulation import native
from jaxdae.solvers import RK4

# Each stage begins so far along the slope of the one before.
STAGES = {
    RK4: ((0.0, 1 / 2, 1 / 2, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)),
    diffrax.Bosh3: ((0.0, 1 / 2, 3 / 4), (2 / 9, 1 / 3, 4 / 9)),
}


def by_hand(stiffness: Any = 2.0, gain=0.0, start=START, solver: Any = RK4):
    """Coordinates at all steps, by the formulas of the method."""
    q, v, w = (np.asarray(x) for x in (start.q, start.v, start.w))
    n, y, rows = q.size, np.concatenate([q, v, w]), [q]

    def rate(y):
        q, v, w = np.split(y, (n, 2 * n))
        return np.concatenate([v, -stiffness * q + w.sum() + gain * q[0], -2 * w])

    nodes, weights = STAGES[solver]
    for _ in range(3):
        k, total = np.zeros_like(y), np.zeros_like(y)
        for node, weight in zip(nodes, weights, strict=True):
            k = rate(y + 0.1 * node * k)
            total = total + weight * k
        y = y + 0.1 * total
        rows.append(y[:n])
    return np.stack(rows)


def agree(expected, system=None, start=START, backends=("native",), **settings):
    runs = [run(system, start, backend=x, **settings).q for x in backends]
    for q in runs:
        eps = float(jnp.finfo(q.dtype).eps)
        np.testing.assert_allclose(q, expected, rtol=0, atol=20 * eps)  # a few roundings
    return float(runs[-1][-1, 0])


@pytest.mark.slow
def test_nothing_remembered_serves_another_system():
    """One class, one field function: what else differs must make another kernel."""
    twice: dict[str, Any] = {"backends": ("plain", "native")}
    other = State([0.1], [0.3], jnp.array([0.2, 0.4]))  # four numbers, divided otherwise
    single = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    ends = [
        agree(by_hand(), **twice),
        agree(by_hand(3.0), Spring(3.0)),
        agree(by_hand(np.array([1.0, 5.0])), Spring(jnp.array([1.0, 5.0]))),
        agree(by_hand(-2.0), Spring(sign=-1), **twice),
        agree(by_hand(start=other), start=other),
        agree(by_hand(solver=diffrax.Bosh3), solver=diffrax.Bosh3()),
        agree(by_hand(gain=0.5), controller=lambda t, q, v, w: 0.5 * q[0]),
        agree(by_hand(gain=0.7), controller=lambda t, q, v, w: 0.7 * q[0], **twice),
        agree(by_hand(start=single), start=single),
    ]
    assert len(set(ends)) == len(ends)


def test_runs_with_other_numbers_compile_nothing(caplog):
    made = lambda k, x: run(Spring(k), State([x, 0.2], [0.3, 0.4], jnp.zeros(0)), t0=x, t1=0.3 + x)  # noqa: E731
    jax.block_until_ready(made(1.0, 0.1).ts)
    codes, runs = set(machine_code._REGISTERED), len(native._INTEGRATIONS)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        jax.block_until_ready(made(2.5, 0.7).ts)
    assert not [x for x in caplog.records if "Compiling" in x.getMessage()]
    assert set(machine_code._REGISTERED) == codes
    assert len(native._INTEGRATIONS) == runs


def test_the_kernel_is_remembered_across_programs():
    run(Spring(1.0))
    codes = set(machine_code._REGISTERED)
    for scale in (1.0, 2.0):  # two programs of JAX
        jax.jit(lambda k, scale=scale: scale * run(Spring(k)).q)(1.0)
    assert set(machine_code._REGISTERED) == codes


def test_only_so_many_kernels_are_remembered(monkeypatch):
    monkeypatch.setattr(native, "_INTEGRATIONS", Memory(2))
    for steps in (1, 2, 3):
        run(t1=0.05 * steps, dt=0.05)
        assert len(native._INTEGRATIONS) <= 2


@pytest.mark.slow
def test_kernels_run_where_jit_is_switched_off():
    compiled = run(backend="native").q
    with jax.disable_jit():
        np.testing.assert_array_equal(run(backend="native").q, compiled)


def test_numbers_of_steps_may_be_those_of_numpy():
    found = run(dt=None, solver=diffrax.Tsit5(), max_steps=np.int64(100))
    assert bool(found.success)
