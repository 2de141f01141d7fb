"""Realizing laws with memory: lags, delay and hysteresis, against closed forms."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaxdae
from jaxdae import RealizingForces, State
from jaxdae.formulations import LaggedLaw, LinearLaw, LuGreLaw, SignLaw, TanhLaw
from jaxdae.models.disk import RollingDisk
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import RK4

SLEIGH, DISK = ChaplyginSleigh(), RollingDisk()
START = State(*SLEIGH.start())
FREE: dict[str, Any] = {"start_tolerance": None}


class Block(jaxdae.System):
    """A mass on a line under a constant push, which its constraint `v = 0` ought to hold."""

    mass: float = 1.5
    push: float = 0.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w, u
        return jnp.full_like(q, self.push)

    def velocity_constraints(self, t, q, v):
        del t, q
        return v


@pytest.mark.slow
def test_dahl_friction_takes_the_work_of_its_closed_form():
    """While v > 0, `stiffness z = F (1 - exp(-stiffness x / F))`, so v(x) follows from energy."""
    block, bound, stiffness = Block(push=0.4), 1.0, 20.0
    law = LuGreLaw(bound, stiffness)
    run = jaxdae.simulate(block, RealizingForces(law), State([0.0], [1.2]), t1=0.8, **FREE)
    x, v = (np.asarray(a)[:, 0] for a in (run.q, run.v))
    assert v.min() > 0.5
    deflection = 1 - np.exp(-stiffness * x / bound)
    work = bound * (x - bound / stiffness * deflection)
    # The tolerance of the run, 1e-8.
    np.testing.assert_allclose(
        0.5 * 1.5 * v**2, 0.5 * 1.5 * 1.2**2 + 0.4 * x - work, rtol=0, atol=1e-7
    )
    np.testing.assert_allclose(run.saved.memory[:, 0], bound / stiffness * deflection, atol=1e-7)
    np.testing.assert_allclose(run.multipliers[:, 0], bound * deflection, atol=1e-6)


def test_friction_holds_a_push_below_its_bound_and_slips_above():
    """It creeps into the deflection that carries the push, and stays; the bound cannot carry."""
    law = LuGreLaw(1.0, 100.0, damping=20.0)
    held, slipping = (
        jaxdae.simulate(Block(push=p), RealizingForces(law), State([0.0], [0.0]), t1=4.0)
        for p in (0.9, 1.1)
    )
    # Damped with ratio sqrt-ish one: four seconds are tens of its time constants.
    assert abs(held.v[-1, 0]) < 1e-6
    assert held.multipliers[-1, 0] == pytest.approx(0.9, abs=1e-5)
    assert slipping.v[-1, 0] > 0.1


def test_force_of_sliding_falls_from_static_to_sliding_with_speed():
    law = LuGreLaw(1.0, 50.0, damping=3.0, viscosity=0.5, static=1.4, stribeck=0.1)
    for speed in (0.01, 0.1, -2.0):
        psi = jnp.array([speed])
        g = 1.0 + 0.4 * np.exp(-((speed / 0.1) ** 2))
        z = jnp.array([np.sign(speed) * g / 50.0])
        np.testing.assert_allclose(law.rate(z, psi, 0.0, None, None), 0.0, atol=1e-15)
        expected = -np.sign(speed) * g - 0.5 * speed
        np.testing.assert_allclose(law.force(z, psi, 0.0, None, None), [expected], rtol=1e-14)


@pytest.mark.parametrize("stages", [1, 3])
def test_late_linear_forces_are_the_linear_system_of_their_lags(stages):
    block, k, delay = Block(), 2.0, 0.3
    law = LaggedLaw(LinearLaw(k), delay, stages)
    run = jaxdae.simulate(block, RealizingForces(law), State([0.0], [0.7]), t1=2.0, **FREE)
    matrix, rate = np.zeros((stages + 1, stages + 1)), stages / delay
    matrix[0, -1] = 1 / block.mass
    matrix[1, 0] = -k * rate
    matrix[1:, 1:] = rate * (np.eye(stages, k=-1) - np.eye(stages))
    exact = expm(2.0 * matrix) @ np.array([0.7, *[-k * 0.7] * stages])
    # The tolerance of the run, 1e-8, over some ten rates.
    np.testing.assert_allclose(run.v[-1, 0], exact[0], atol=1e-7)
    np.testing.assert_allclose(run.saved.memory[-1], exact[1:], atol=1e-6)


@pytest.mark.slow
def test_a_small_delay_moves_the_motion_by_its_size():
    """Footnote 5: what dies out soon does not spoil the realization."""
    options = {"t1": 1.0, "dt": 2.5e-3, "solver": RK4(), **FREE}
    law = TanhLaw(2.0, 0.1)
    prompt = jaxdae.simulate(SLEIGH, RealizingForces(law), START, **options).final_state.q

    def error(delay):
        late = RealizingForces(LaggedLaw(law, delay, 2))
        return jnp.abs(jaxdae.simulate(SLEIGH, late, START, **options).final_state.q - prompt).max()

    delays = np.array([0.005, 0.01, 0.02])
    errors = np.asarray(jax.vmap(error)(jnp.asarray(delays)))
    slope = np.polyfit(np.log(delays), np.log(errors), 1)[0]
    assert slope == pytest.approx(1.0, abs=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("law", [LaggedLaw(TanhLaw(2.0, 0.1), 0.05, 2), LuGreLaw(2.0, 40.0, 2.0)])
def test_both_backends_and_both_modes_agree(law):
    options = {"t1": 0.2, "dt": 0.01, "solver": RK4(), **FREE}

    def final(scale, backend, adjoint=None):
        block = Block(push=0.4 * scale)
        scaled = RealizingForces(jax.tree.map(lambda x: x * scale, law))
        start = State(jnp.zeros(1), scale * jnp.array([0.2]))
        options_of_run = {"backend": backend, "adjoint": adjoint, **options}
        return jaxdae.simulate(block, scaled, start, **options_of_run).final_state.v[0]

    value, reverse = jax.jit(jax.value_and_grad(lambda s: final(s, "native")))(1.1)
    plain = jax.jit(lambda s: final(s, "plain"))
    forward = jax.jit(jax.jacfwd(lambda s: final(s, "plain", diffrax.ForwardMode())))(1.1)
    # Twenty steps of round-off.
    assert value == pytest.approx(float(plain(1.1)), rel=1e-12)
    assert reverse == pytest.approx(float(forward), rel=1e-10)
    # Round-off 1e-16 / 1e-5, error of the differences 1e-10.
    differences = (plain(1.1 + 1e-5) - plain(1.1 - 1e-5)) / 2e-5
    assert reverse == pytest.approx(float(differences), rel=1e-6)
    assert abs(reverse) > 1e-3


@pytest.mark.slow
def test_bad_laws_with_memory_are_refused_by_name():
    check = lambda law: RealizingForces(law).check(DISK, State(*DISK.start()))  # noqa: E731
    with pytest.raises(ValueError, match="delay must be positive"):
        LaggedLaw(LinearLaw(1.0), 0.0)
    with pytest.raises(ValueError, match="stages must be an integer, at least 1; got 0"):
        LaggedLaw(LinearLaw(1.0), 0.1, 0)
    wrong: list[Any] = [SignLaw(1.0), LuGreLaw(1.0, 1.0)]
    for law in wrong:
        with pytest.raises(TypeError, match=r"gives no force that could be late.*Use TanhLaw"):
            LaggedLaw(law, 0.1)
    with pytest.raises(ValueError, match="stiffness must be positive"):
        LuGreLaw(1.0, -1.0)
    with pytest.raises(ValueError, match=r"damping must not be negative; got -1"):
        LuGreLaw(1.0, 1.0, damping=-1.0)
    with pytest.raises(ValueError, match="static must be positive"):
        LuGreLaw(1.0, 1.0, static=0.0)
    with pytest.raises(ValueError, match=r"bound has shape \(3,\), which does not fit 2"):
        check(LuGreLaw(jnp.ones(3), 1.0))
    with pytest.raises(ValueError, match=r"delay has shape \(2,\); give one number"):
        check(LaggedLaw(LinearLaw(1.0), jnp.ones(2)))
    with pytest.raises(ValueError, match=r"k has shape \(3,\), which does not fit 2 constraints"):
        check(LaggedLaw(LinearLaw(jnp.ones(3)), 0.1))
