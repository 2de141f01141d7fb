"""Kernels for GPUs of six systems, executed instruction by instruction: the numbers of processors.

The same operations are executed in the same order, each exact but for one rounding. Where both
fuse the same products and sums, which is what is seen on processors that have fused instructions,
all bits are equal; another choice costs a unit in the last place of a term, and a few hundred terms
of a step may add up. Numbers are compared with the largest of their array.
"""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.gpu import Gpu, lowered
from jaxdae import State
from jaxdae.models import (
    AndrewsMechanism,
    CartesianPendulum,
    FourBar,
    RollingDisk,
    SliderCrank,
    TwoLinkManipulator,
)
from jaxdae.solvers import RK4

GPU = Gpu()
ROUND_OFF = {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-3}
STABLE = jaxdae.Baumgarte(K_D=20.0, K_P=100.0)
ROLLING = jaxdae.Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
# System, formulation, length of a step.
CASES = {
    "two-link": (TwoLinkManipulator(), jaxdae.Multipliers(STABLE), 1e-3),
    "andrews": (AndrewsMechanism(), jaxdae.Multipliers(), 1e-4),
    "four-bar": (FourBar(), jaxdae.Multipliers(STABLE), 5e-3),
    "slider-crank": (SliderCrank(), jaxdae.AugmentedLagrangian(1e3), 1e-3),
    "rolling disk": (RollingDisk(), jaxdae.Multipliers(ROLLING), 1e-2),
    "pendulum": (CartesianPendulum(), jaxdae.Hamiltonian(), 1e-2),
}
STEPS = 3


def fixed(dt: float) -> dict:
    return {"solver": RK4(), "dt": dt}


def adaptive(dt: float) -> dict:
    """Steps of other lengths in each member."""
    del dt
    control = diffrax.PIDController(rtol=1e-5, atol=1e-7, pcoeff=0.2, icoeff=0.5)
    return {"solver": diffrax.Tsit5(), "stepsize_controller": control, "max_steps": 64}


def motion(name: str, method, dtype=jnp.float64):
    """The end of a run as a function of its start, and two starts in the middle of each other."""
    system, formulation, dt = CASES[name]
    system, formulation = jax.tree.map(lambda x: jnp.asarray(x, dtype), (system, formulation))

    def end(q, v):
        found = jaxdae.simulate(
            system, formulation, State(q, v), t1=STEPS * dt, saveat=diffrax.SaveAt(t1=True),
            throw=False, start_tolerance=None, backend="native", **method(dt),
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


# What is computed with fixed and with adaptive steps. Each system has both and both derivatives;
# together they have all, and the smallest has all by itself.
PARTS = {
    "two-link": (both, both),
    "andrews": (back, along),
    "four-bar": (along, back),
    "slider-crank": (back, along),
    "rolling disk": (along, back),
    "pendulum": (both, both),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("method", [fixed, adaptive])
def test_runs_tangents_and_adjoints_of_six_systems(name, method):
    end, start = motion(name, method)
    part = PARTS[name][method is adaptive]
    import time

    t = time.process_time()
    found, launched = agree(jax.vmap(lambda q, v: part(end, q, v)), *spread(start, 3))
    print("CPU", name, method.__name__, time.process_time() - t)
    assert {x.words[-1] for x in launched} == {3}
    assert len(launched) >= 2
    # Members differ, and nothing is zero everywhere.
    assert all(np.ptp(x, 0).max() > 0 for x in jax.tree.leaves(found[-2:]))
