"""Realizing forces: the laws, sliding and slipping, lags and hysteresis, claims of the paper."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm

import jaxdae
from jaxdae import Multipliers, RealizingForces, State
from jaxdae.formulations import (
    deviation_power,
    LaggedLaw,
    LinearLaw,
    LuGreLaw,
    reaching_time_bound,
    SaturatedLaw,
    SignLaw,
    TanhLaw,
)
from jaxdae.models.disk import RollingDisk
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate

# Solves of at most four unknowns with condition numbers below 1e3.
ROUND_OFF: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}
SLEIGH, DISK = ChaplyginSleigh(), RollingDisk()
START = State(*SLEIGH.start())
OFF = State(START.q, START.v + jnp.array([0.2, 0.4, 0.0]))
LAWS = [
    LinearLaw(jnp.array([[5.0, 1.0], [1.0, 3.0]])),
    SignLaw(jnp.array([2.0, 3.0]), time_constant=0.01),
    SaturatedLaw(4.0, 0.1),
    TanhLaw(jnp.array([2.0, 3.0]), jnp.array([0.1, 0.2])),
    lambda psi_dot, t, q, v: -(psi_dot**3) * (1 + t) - 0.1 * q[2] * v[:2],
]


@eqx.filter_jit
def motion(system, law, state):
    return RealizingForces(law).motion(system, jnp.asarray(0.3), state, None)


@eqx.filter_jit
def multipliers(system, law, state):
    return RealizingForces(law).multipliers(system, jnp.asarray(0.3), state, None)


@eqx.filter_jit
def dynamics(system, state):
    return evaluate(system, jnp.asarray(0.3), state.q, state.v)


@eqx.filter_jit
def constrained(system, state):
    return Multipliers().motion(system, jnp.asarray(0.3), state, None)


def disk_state(slip=(0.0, 0.0)):
    q, v = DISK.exact_motion(0.8)
    return State(q, v + jnp.asarray([*slip, 0.0, 0.0]))


def sleigh_mass():
    return float(SLEIGH.lateral_mass())


def a_priori_bound(state, eta):
    """`|r| = mu |v w| <= mu E / sqrt(m I)`, and the energy E does not grow; and the excess."""
    energy = float(SLEIGH.kinetic_energy(0.0, state.q, state.v))
    return sleigh_mass() * energy / np.sqrt(SLEIGH.mass * SLEIGH.inertia) + eta


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_every_law_satisfies_the_equations_in_the_sign_convention(law):
    state = disk_state((0.3, -0.2))
    a, force = motion(DISK, law, state)
    d = dynamics(DISK, state)
    lam = multipliers(DISK, law, state)
    np.testing.assert_allclose(d.mass @ a + d.jac.T @ lam, d.force, **ROUND_OFF)
    np.testing.assert_allclose(lam, -force, **ROUND_OFF)
    if not isinstance(law, SignLaw):
        expected = law(d.phi_dot, 0.3, state.q, state.v)
        np.testing.assert_allclose(force, expected, **ROUND_OFF)


def test_sign_law_on_the_constraint_is_the_constraint_reaction():
    """Equivalent control: same acceleration as with multipliers, whatever the time constant."""
    state = disk_state()
    a, lam = constrained(DISK, state)
    for time_constant in (1e-2, 1e-5):
        realized, force = motion(DISK, SignLaw(5.0, time_constant), state)
        # psi' is zero to 1e-16, which the smaller time constant amplifies to 1e-11.
        np.testing.assert_allclose(force, -lam, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(realized, a, rtol=1e-10, atol=1e-10)


def test_sign_law_slips_where_the_reaction_exceeds_its_bound():
    """The bound acts against the sliding that begins; the other constraint goes on holding."""
    state = disk_state()
    _, lam = constrained(DISK, state)
    reaction = -np.asarray(lam)
    bound = np.abs(reaction) * [0.5, 3.0]
    a, force = motion(DISK, SignLaw(jnp.asarray(bound)), state)
    d = dynamics(DISK, state)
    psi_ddot = np.asarray(d.jac @ a + d.gamma)
    assert abs(force[0]) == pytest.approx(bound[0], rel=1e-14)
    assert force[0] * psi_ddot[0] < 0
    assert abs(force[1]) < bound[1]
    assert psi_ddot[1] == pytest.approx(0.0, abs=1e-12)


def final_error(k):
    sol = jaxdae.simulate(SLEIGH, RealizingForces(LinearLaw(k)), START, t1=1.0)
    q, v = SLEIGH.exact_motion(1.0)
    final = sol.final_state
    return jnp.stack([jnp.abs(final.q - q).max(), jnp.abs(final.v - v).max()])


@pytest.mark.slow
def test_error_of_linear_forces_falls_as_one_over_k():
    ks = jnp.logspace(1.5, 3.5, 3)
    errors = np.asarray(jax.vmap(final_error)(ks))
    slopes = np.polyfit(np.log(ks), np.log(errors), 1)[0]
    np.testing.assert_allclose(slopes, -1.0, atol=0.1)


@pytest.fixture(scope="module")
def sliding():
    """The sleigh from off its constraint, with a bound that exceeds the reactions by 1 N."""
    law = SignLaw(a_priori_bound(OFF, eta=1.0), time_constant=1e-3)
    ts = jnp.linspace(0.0, 1.0, 1001)
    return jaxdae.simulate(
        SLEIGH,
        RealizingForces(law),
        OFF,
        t1=1.0,
        saveat=diffrax.SaveAt(ts=ts),
        start_tolerance=None,
    )


@pytest.mark.slow
def test_sign_forces_reach_the_constraint_within_the_estimate(sliding):
    psi = np.abs(np.asarray(sliding.violation.phi_dot[:, 0]))
    mu = sleigh_mass()
    estimate = reaching_time_bound(0.5 * mu * psi[0] ** 2, 1.0, np.sqrt(mu / 2))
    assert estimate == pytest.approx(mu * psi[0], rel=1e-12)
    bound = sliding.formulation.law.bound
    # Where the force leaves its bound, |psi'| = tau |psi''|, at most with twice the bound.
    layer = 1e-3 * 2 * float(bound) / mu
    reached = np.asarray(sliding.ts)[np.argmax(psi <= layer)]
    assert 0.05 < reached < estimate
    # Ten time constants later nothing is left: exp(-10) of the layer, then the solver's tolerance.
    assert psi[np.asarray(sliding.ts) >= reached + 0.01].max() < layer * np.exp(-9)
    assert psi[-1] < 1e-7


@pytest.mark.slow
def test_once_reached_the_equivalent_force_is_the_reaction(sliding):
    late = np.asarray(sliding.ts) > 0.5
    reaction = jax.vmap(SLEIGH.multiplier)(sliding.q, sliding.v)
    # psi' of 1e-8 times mu / tau = 1500.
    np.testing.assert_allclose(sliding.multipliers[late, 0], reaction[late], atol=1e-4)
    before = np.asarray(sliding.ts) < 0.05
    sizes = np.abs(sliding.multipliers[before, 0])
    np.testing.assert_allclose(sizes, sliding.formulation.law.bound)


@pytest.mark.slow
def test_a_smooth_law_stays_within_the_power_bound():
    eta = 1.0
    bound = a_priori_bound(START, eta)
    law = TanhLaw(bound, 0.05)
    sol = jaxdae.simulate(SLEIGH, RealizingForces(law), START, t1=1.0)
    psi = sol.violation.phi_dot
    power = jax.vmap(lambda psi: deviation_power(law, bound, psi))(psi)
    delta = float(law.deviation_bound(1))
    assert 0.5 * delta < float(power.max()) <= delta * (1 + 1e-12)
    # dG/dt <= -eta |psi'| + delta from G = 0.
    assert 0.5 * delta / eta < float(np.abs(psi).max()) <= delta / eta


@pytest.mark.parametrize("law_type", [TanhLaw, SaturatedLaw])
def test_deviation_bound_is_the_maximum_over_constraint_functions(law_type):
    bound, width = jnp.array([1.5, 0.7]), jnp.array([0.2, 0.1])
    law = law_type(bound, width)
    grid = jnp.linspace(-1.0, 1.0, 20001)
    separate = [
        jax.vmap(lambda x, e=e: deviation_power(law, bound, x * e))(grid) for e in jnp.eye(2)
    ]
    # Never negative: with the sign printed in the paper it could not exceed any bound.
    assert min(float(x.min()) for x in separate) >= 0.0
    # The grid misses a parabola's top by at most (1e-4)^2 of its curvature.
    largest = sum(float(x.max()) for x in separate)
    assert largest == pytest.approx(float(law.deviation_bound(2)), rel=1e-5)
    assert float(law_type(1.5, 0.2).deviation_bound(2)) == pytest.approx(
        2 * float(law_type(1.5, 0.2).deviation_bound(1)), rel=1e-15
    )


@pytest.mark.parametrize(("A", "B"), [(0.0, 0.0), (0.7, 0.4), (1e-9, 0.0)])
def test_reaching_time_is_the_integral_of_its_inequality(A, B):
    energy, eta, rho = 0.8, 2.0, 1.3
    slowness = lambda y: 2 / (eta / rho - A * y - B * y**2)  # noqa: E731
    expected, _ = quad(slowness, 0.0, np.sqrt(energy), epsabs=1e-13)
    assert reaching_time_bound(energy, eta, rho, A, B) == pytest.approx(expected, rel=1e-12)


def test_reaching_is_not_promised_from_too_far_off():
    assert reaching_time_bound(4.0, 1.0, 1.0, A=0.5) == np.inf
    assert reaching_time_bound(3.9, 1.0, 1.0, A=0.5) < np.inf


@pytest.mark.slow
def test_gradients_agree_through_sliding():
    """Through reaching and sliding: reverse mode and differences."""

    def final(point):
        law = SignLaw(point[0], time_constant=0.05)
        start = State(OFF.q, OFF.v.at[2].add(point[1]))
        options: dict[str, Any] = {"t1": 0.3, "dt": 0.02, "solver": RK4(), "start_tolerance": None}
        sol = jaxdae.simulate(SLEIGH, RealizingForces(law), start, **options)
        return sol.final_state.v @ jnp.array([1.0, -2.0, 0.5])

    point = jnp.asarray([2.9, 0.1])
    value_and_gradient = jax.jit(jax.value_and_grad(final))
    reverse = value_and_gradient(point)[1]
    h = 1e-6
    differences = [
        (value_and_gradient(point + h * e)[0] - value_and_gradient(point - h * e)[0]) / (2 * h)
        for e in np.eye(2)
    ]
    assert abs(reverse[0]) > 1e-3
    # Round-off 1e-16 / h.
    np.testing.assert_allclose(reverse, differences, rtol=1e-6)


def test_bad_laws_are_refused_by_name():
    check = lambda law: RealizingForces(law).check(DISK, disk_state())  # noqa: E731
    with pytest.raises(ValueError, match="k must be positive definite, but has a value -1"):
        LinearLaw(-1.0)
    for law_type in (SaturatedLaw, TanhLaw):
        with pytest.raises(ValueError, match="width must be positive"):
            law_type(1.0, 0.0)
    with pytest.raises(ValueError, match="bound must be positive"):
        SignLaw(0.0)
    with pytest.raises(ValueError, match="time_constant must be positive"):
        SignLaw(1.0, 0.0)
    with pytest.raises(ValueError, match=r"k has shape \(3,\), which does not fit 2 constraints"):
        check(LinearLaw(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"bound has shape \(3,\), which does not fit 2"):
        check(SignLaw(jnp.ones(3)))
    with pytest.raises(ValueError, match=r"bound must be a scalar or a vector of 2; got a matrix"):
        check(TanhLaw(jnp.eye(2), 0.1))
    with pytest.raises(ValueError, match=r"time_constant has shape \(2,\); give one number"):
        check(SignLaw(1.0, jnp.ones(2)))
    with pytest.raises(ValueError, match=r"returned shape \(1,\).*each of the 2 constraints"):
        check(lambda psi_dot, t, q, v: psi_dot[:1])


FREE: dict[str, Any] = {"start_tolerance": None}


class Block(jaxdae.System):
    """A mass on a line under a constant push, which its constraint `v = 0` ought to hold."""

    mass: float = 1.5
    push: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        return jnp.full_like(q, self.push)

    def velocity_constraints(self, t, q, v):
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


def test_force_of_sliding_falls_from_static_to_sliding_with_speed():
    law = LuGreLaw(1.0, 50.0, damping=3.0, viscosity=0.5, static=1.4, stribeck=0.1)
    for speed in (0.01, 0.1, -2.0):
        psi = jnp.array([speed])
        g = 1.0 + 0.4 * np.exp(-((speed / 0.1) ** 2))
        z = jnp.array([np.sign(speed) * g / 50.0])
        np.testing.assert_allclose(law.rate(z, psi, 0.0, None, None), 0.0, atol=1e-15)
        expected = -np.sign(speed) * g - 0.5 * speed
        np.testing.assert_allclose(law.force(z, psi, 0.0, None, None), [expected], rtol=1e-14)


def test_late_linear_forces_are_the_linear_system_of_their_lags():
    block, k, delay, stages = Block(), 2.0, 0.3, 3
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
def test_both_backends_and_both_modes_agree():
    law = LuGreLaw(2.0, 40.0, 2.0)
    options = {"t1": 0.2, "dt": 0.01, "solver": RK4(), **FREE}

    def final(scale, backend, adjoint=None):
        block = Block(push=0.4 * scale)
        scaled = RealizingForces(jax.tree.map(lambda x: x * scale, law))
        start = State(jnp.zeros(1), scale * jnp.array([0.2]))
        options_of_run = {"backend": backend, "adjoint": adjoint, **options}
        return jaxdae.simulate(block, scaled, start, **options_of_run).final_state.v[0]

    native = jax.jit(jax.value_and_grad(lambda s: final(s, "native")))
    value, reverse = native(1.1)
    plain = jax.jit(
        jax.jacfwd(lambda s: (final(s, "plain", diffrax.ForwardMode()),) * 2, has_aux=True)
    )
    forward, expected = plain(1.1)
    # Twenty steps of round-off.
    assert value == pytest.approx(float(expected), rel=1e-12)
    assert reverse == pytest.approx(float(forward), rel=1e-10)
    # Round-off 1e-16 / 1e-5, error of the differences 1e-10.
    differences = (native(1.1 + 1e-5)[0] - native(1.1 - 1e-5)[0]) / 2e-5
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
