"""What every ready system must satisfy: consistent starts, labels, powers, closed forms."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from jaxdae.models import (
    AppellHamel,
    ChaplyginSleigh,
    ConstantSpeed,
    DifferentialDriveRobot,
    get_model,
    Kepler,
    KnifeEdge,
    MODELS,
    ReachableTwoLink,
    RollingDisk,
    TwoLinkManipulator,
    TwoLoopCircuit,
)
from jaxdae.systems import evaluate, State


@pytest.mark.parametrize("name", MODELS)
def test_default_start_is_consistent_and_regular_and_everything_has_a_name(name, dynamics):
    entry = get_model(name)
    system, (q, v) = entry.system(), entry.start()
    d = dynamics(system, 0.0, q, v, system.actuators())
    # residuals are sums of a few terms of order one (velocities: of order |J v|, below 10)
    assert np.max(np.abs(d.phi), initial=0.0) < 4 * np.finfo(float).eps
    assert np.max(np.abs(d.phi_dot), initial=0.0) < 40 * np.finfo(float).eps
    singular_values = np.linalg.svd(np.asarray(d.jac), compute_uv=False)
    # chain: least value of the difference operator of 4 links, 2 l 2 sin(pi/18) = 0.17;
    # andrews: lengths of centimetres, cubed in the 6 x 6 determinant; both well away from zero
    assert singular_values.min(initial=np.inf) > 0.1 * singular_values.max(initial=0.0)
    labels = system.labels()
    assert len(labels.coordinates) == len(labels.units) == q.size
    assert len(labels.constraints) == len(labels.constraint_units) == d.phi_dot.size
    assert len({*labels.coordinates, *labels.constraints}) == q.size + d.phi_dot.size
    assert len(labels.actuators) == len(labels.actuator_units) == system.actuators().size
    entry.formulation().check(system, State(q, v, system.actuators()))
    assert entry.summary
    assert entry.source
    assert entry.t1 > 0


@pytest.mark.parametrize("name", MODELS)
def test_single_precision_stays_single_precision(name):
    entry = get_model(name)
    q, v = (x.astype(jnp.float32) for x in entry.start())
    system = entry.system()
    d = jax.eval_shape(evaluate, system, 0.0, q, v, system.actuators().astype(jnp.float32))
    assert {x.dtype for x in (d.mass, d.force, d.jac, d.gamma, d.phi, d.phi_dot)} == {q.dtype}


@eqx.filter_jit
def _powers(system, q, v, w, a, lam):
    """Rate of the energy, and the powers of forces, friction and constraints."""

    def energy(q, v):
        """`v dL/dv - L`: without terms that are linear in the velocities, such as of magnets."""
        kinetic, slope = jax.value_and_grad(lambda v: system.kinetic_energy(0.0, q, v))(v)
        return slope @ v - kinetic + system.potential_energy(0.0, q)

    rate = jax.jvp(energy, (q, v), (v, a))[1]
    friction = jax.grad(lambda v: system.dissipation(0.0, q, v))(v)
    residuals = lambda q: system.position_constraints(0.0, q)  # noqa: E731
    jac = jax.jacfwd(residuals)(q)
    if (by_velocity := jax.jacfwd(lambda v: system.velocity_constraints(0.0, q, v))(v)).size:
        jac = jnp.concatenate([jac, by_velocity])
    return rate, system.force(0.0, q, v, w, None) @ v, friction @ v, lam @ jac @ v


@pytest.mark.parametrize("name", MODELS)
def test_the_rate_of_the_energy_is_the_power_of_forces_friction_and_constraints(
    name, dynamics, saddle_point, rng
):
    """Moving as the constraints allow; the mass matrix, Coriolis forces and gamma are the rest."""
    entry = get_model(name)
    system, (q, v), w = entry.system(), entry.start(), entry.system().actuators()
    free = scipy.linalg.null_space(np.asarray(dynamics(system, 0.0, q, v, w).jac))
    size = max(1.0, float(np.abs(v).max()))
    more = v + jnp.asarray(free @ rng.normal(size=free.shape[1])) * size
    if np.abs(dynamics(system, 0.0, q, more, w).phi_dot).max(initial=0.0) < 1e-12 * size:
        v = more  # else constraints are not affine in the velocities: as the start has them
    a, lam = saddle_point(system, 0.0, q, v, w)
    powers = _powers(system, q, v, w, jnp.asarray(a), jnp.asarray(lam))
    rate, force, friction, constraint = map(float, powers)
    # Sums of a few terms, through a solve whose condition is at most some ten thousand.
    scale = max(map(abs, (rate, force, friction, constraint, 1.0)))
    assert rate == pytest.approx(force - friction - constraint, abs=1e-10 * scale)
    # Ideal constraints do no work, but of a moving target and of one that carries a weight.
    moving = ("two-link", "two-link-reachable", "constant-speed", "car-axis")
    works = name in (*moving, "flexible-slider-crank")
    assert works or abs(constraint) < 1e-10 * scale


# With parameters that no symmetry hides an error in: what is known, times, control.
SLEIGH = ChaplyginSleigh(mass=1.7, offset=0.4, inertia=3 * 1.7 * 0.4**2, speed=1.3, phase=-0.8)
DISK = RollingDisk(mass=1.3, radius=0.4, spin_inertia=0.2, turn_inertia=0.07, turn_rate=1.7)
KNIFE = KnifeEdge(mass=1.4, inertia=0.3, slope=0.4, turn_rate=1.9, speed=0.7)
ROBOT = DifferentialDriveRobot()
EARLY, LATE = (0.0, 0.4, 0.9, 1.7), (0.0, 4.0, 11.0, 19.0)
CLOSED: dict[str, tuple[Any, tuple[float, ...], Any]] = {
    "sleigh": (SLEIGH, EARLY, SLEIGH.multiplier),
    "disk": (DISK, EARLY, DISK.multiplier),
    "disk, straight on": (RollingDisk(turn_rate=0.0), EARLY, RollingDisk().multiplier),
    "knife edge": (KNIFE, EARLY, KNIFE.multiplier),
    "knife edge, from rest": (KnifeEdge(), EARLY, KnifeEdge().multiplier),
    "robot": (ROBOT, EARLY, None),
    "constant speed": (ConstantSpeed(), EARLY, lambda _, v: ConstantSpeed().multiplier(v)),
    "appell-hamel": (AppellHamel(), EARLY, lambda _, v: AppellHamel().multiplier(v)),
    "kepler": (Kepler(mass=2.0, parameter=1.7, semi_major_axis=1.3, eccentricity=0.6), LATE, None),
    "circuit": (TwoLoopCircuit(source=(2.0, -0.7), charge=0.1), EARLY, None),
    "two links": (TwoLinkManipulator(), (0.0, 0.1, 0.45, 0.55, 1.5, 2.5), None),
    "two links, in reach": (ReachableTwoLink(), (0.0, 1.0, 7.0, 19.0), None),
}


@pytest.mark.parametrize("name", CLOSED)
def test_closed_forms_solve_the_equations_of_motion(name, dynamics, saddle_point):
    """From the start, on the constraints, with the accelerations and multipliers of a motion."""
    system, ts, multiplier = CLOSED[name]
    motion = jax.jit(system.exact_motion)
    acceleration = jax.jit(jax.jacfwd(lambda t: system.exact_motion(t)[1]))
    for got, expected in zip(system.start(), motion(0.0), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-15)
    u = system.steady_torques() if name == "robot" else None
    for t in ts:
        q, v = motion(t)
        d = dynamics(system, t, q, v, None, u)
        np.testing.assert_allclose(d.phi, 0.0, atol=2e-15)
        np.testing.assert_allclose(d.phi_dot, 0.0, atol=2e-14)  # of velocities up to 10 rad/s
        a, lam = saddle_point(system, t, q, v, None, u)
        # The Jacobian's condition is up to 50, and that of the robot's masses up to 2000.
        np.testing.assert_allclose(a, acceleration(t), rtol=1e-11, atol=1e-11)
        if multiplier is not None:
            np.testing.assert_allclose(np.atleast_1d(multiplier(q, v)), lam, rtol=1e-12, atol=1e-12)
        if name == "circuit":  # the voltage of the shared branch
            voltage = 0.1 * a[2] + 0.2 * v[2] + q[2] / 0.05
            np.testing.assert_allclose(lam, [voltage], rtol=1e-12)
