"""Servo-constraints: the promised decay, least-norm controls, singularities, gradients."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import jaxdae
from helpers.systems import Actuated, Bead, Forced
from jaxdae.control import (
    CoupledGains,
    Feedforward,
    HurwitzGains,
    motion_derivatives,
    ServoConstraint,
)
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.models.mirror import AdaptiveMirror, voltage
from jaxdae.solvers import RK4

FREE = jaxdae.Multipliers()
MIRROR = AdaptiveMirror()
ROOTS = np.array([-6.0, -5.0, -4.0, -3.0])
SECOND = HurwitzGains.repeated(1.0, 2)
GAINS = HurwitzGains(np.poly(ROOTS)[:0:-1])
START = MIRROR.program_state(0.0)


def mirror_servo(gains=GAINS, mirror=MIRROR):
    return ServoConstraint(
        mirror.program, gains, system=mirror, formulation=FREE, sample=START, degrees=(4,)
    )


def off_program(rng, size=1e-3):
    return jax.tree.map(lambda x: x + size * jnp.asarray(rng.normal(size=x.shape)), START)


@pytest.fixture(scope="module")
def servo():
    return mirror_servo()


@eqx.filter_jit
def control(servo, t, state):
    return servo(t, state.q, state.v, state.w)


@eqx.filter_jit
def residuals_of(servo, t, state):
    return servo.perturbations(t, state.q, state.v, state.w)


def test_the_law_is_the_papers_with_its_slips_corrected(servo, rng):
    for t in (0.0, 0.8):
        state = off_program(rng, 0.1)
        x = jnp.concatenate([state.q, state.v, state.w])
        s = [MIRROR.source]
        for _ in range(4):
            s.append(lambda t, f=s[-1]: jax.jvp(f, (t,), (jnp.ones(()),))[1])
        s = jax.jit(lambda t, s=s: jnp.stack([f(t) for f in s]))(jnp.asarray(t))
        wanted = servo.stabilizer(t, None, None, None, residuals_of(servo, t, state))[0]
        u = control(servo, t, state)[0]
        # sums of terms up to 1e3 times the result
        assert float(voltage(MIRROR, x, s, wanted)) == pytest.approx(float(u), rel=1e-11)
        assert abs(voltage(MIRROR, x, s, wanted, printed=True) - u) > 0.1 * abs(u)


def test_on_the_program_the_control_is_that_of_inverse_dynamics(servo):
    state = MIRROR.program_state(1.1)
    u = control(servo, 1.1, state)[0]
    assert float(u) == pytest.approx(float(MIRROR.program_voltage(1.1)), rel=1e-9)
    # third derivatives are sums of terms of order one
    np.testing.assert_allclose(residuals_of(servo, 1.1, state)[0], 0.0, atol=1e-13)
    h = np.asarray(servo.perturbation_matrix(1.1, *_parts(state)))
    np.testing.assert_allclose(np.sort(np.linalg.eigvals(h).real), ROOTS, rtol=1e-9)
    # At a singular state, sin(phi) = 0, it is not a number.
    assert np.isnan(control(servo, 0.0, jaxdae.State(jnp.zeros(1), START.v, START.w))).all()


@pytest.mark.slow
def test_residuals_obey_the_constraint_perturbation_equations():
    """`y(t) = exp(H t) y(0)`, however nonlinear the plant; here coupled, of different degrees."""
    plant = Actuated((0, 1))
    K = jnp.array([[-4.0, -3.0, 0.5, 0.0, 0.1], [0.3, 0.0, -6.0, -11.0, -6.0]])

    def program(t, q, v):
        return jnp.stack([q[0] * q[1] - jnp.sin(t), q[1] + 1.0])

    start = plant.state()
    # x y and y both see u1 or u2 first after two and three derivatives
    servo = ServoConstraint(
        program, CoupledGains(K), system=plant, formulation=FREE, sample=start, names=("xy", "y")
    )
    assert servo.degrees == (2, 3)
    run = jaxdae.simulate(plant, FREE, start, t1=0.5, controller=servo)
    y = jax.jit(jax.vmap(servo.perturbations))(run.ts, run.q, run.v, run.w)
    y = np.concatenate([np.asarray(part) for part in y], axis=1)
    h = np.asarray(servo.perturbation_matrix(0.0, *_parts(start)))
    # tolerance 1e-8 of the solver, residuals of order ten
    np.testing.assert_allclose(y[-1], expm(0.5 * h) @ y[0], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("weight", [None, "matrix"])
def test_superfluous_controls_are_of_least_weighted_norm(weight, rng):
    plant = Actuated((0, 0))
    factor = rng.normal(size=(2, 2))
    W = np.eye(2) if weight is None else factor @ factor.T + np.eye(2)
    given = None if weight is None else jnp.asarray(W)

    def build(free):
        return ServoConstraint(
            tip, HurwitzGains.repeated(2.0, 2), system=plant, formulation=FREE,
            sample=plant.state(), controls=2, degrees=(2,), weight=given, free=free,
        )  # fmt: skip

    args = (0.3, *_parts(plant.state()))
    servo = build(None)

    @jax.jit
    def parts():
        d = servo.decoupling(*args)
        return d.matrix, servo.stabilizer(*args, d.y) - d.drift, servo(*args)

    g, rhs, u = map(np.asarray, parts())
    inverse = np.linalg.solve(W, g.T) @ np.linalg.inv(g @ np.linalg.solve(W, g.T))
    np.testing.assert_allclose(u, inverse @ rhs, rtol=1e-12)
    u0 = np.array([0.7, -1.9])
    null_space = u0 - inverse @ (g @ u0)
    free = build(lambda _t, _q, _v, _w: jnp.asarray(u0))
    u = jax.jit(lambda: free(*args))()
    np.testing.assert_allclose(u, inverse @ rhs + null_space, rtol=1e-12)
    # the free part does not disturb the constraint
    np.testing.assert_allclose(g @ u, rhs, rtol=1e-12)


@pytest.mark.slow
def test_a_plant_with_constraints_of_its_own_is_led_along_them():
    """A bead on a circle pushed along x: the abscissa follows a sine, the ring holds."""

    def program(t, q, v):
        return jnp.stack([q[0] - 0.5 * jnp.sin(t)])

    bead = Bead(lambda _, u: jnp.append(u, 0.0), 9.81)
    ring = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
    start = jaxdae.State([0.0, -1.0], [0.5, 0.0])
    servo = ServoConstraint(
        program, HurwitzGains.repeated(5.0, 2), system=bead, formulation=ring, sample=start
    )
    run = jaxdae.simulate(bead, ring, start, t1=3.0, controller=servo)
    # solver tolerance 1e-8
    np.testing.assert_allclose(run.q[:, 0], 0.5 * np.sin(run.ts), atol=1e-7)
    np.testing.assert_allclose(run.violation.phi, 0.0, atol=1e-7)
    # reduced inverse dynamics: theta from the bottom, theta'' = -g sin(theta) + u cos(theta)
    theta = lambda t: jnp.arcsin(0.5 * jnp.sin(t))  # noqa: E731
    second, angle = jax.jit(jax.vmap(lambda t: (jax.grad(jax.grad(theta))(t), theta(t))))(run.ts)
    expected = (second + 9.81 * jnp.sin(angle)) / jnp.cos(angle)
    np.testing.assert_allclose(run.u[:, 0], expected, atol=1e-5)


@pytest.mark.slow
def test_an_adaptive_run_stops_where_the_program_becomes_singular():
    """The source comes to s = l c / (2c - l): there sin(phi) = 0, beyond it no angle will do."""
    mirror = AdaptiveMirror(length=1.0, source_mean=1.5, source_amplitude=-0.6)
    start = mirror.program_state(0.0)
    servo = ServoConstraint(
        mirror.program, GAINS, system=mirror, formulation=FREE, sample=start, degrees=(4,)
    )
    end = np.arcsin(0.5 / 0.6)
    run = jaxdae.simulate(
        mirror, FREE, start, t1=2.0, controller=servo, throw=False, max_steps=4000
    )
    assert not run.success
    assert float(run.final_time) == pytest.approx(end, abs=0.05)
    found = servo.singularity(run)
    assert found.t == pytest.approx(end, abs=0.05)
    assert abs(float(found.state.q[0])) < 0.3
    assert "decoupling matrix" in found.message
    assert f"t = {found.t:.6g} s, q = [" in found.message
    # The same is what a run that raises says, in place of a report on constraints it has not.
    assert describe_failure(run).endswith(found.message)


@pytest.mark.slow
def test_a_fixed_step_run_over_a_singularity_is_reported_with_its_time():
    plant = Forced(lambda t, _q, u: jnp.cos(t) * u[0])
    start = jaxdae.State([0.1], [0.0])
    servo = ServoConstraint(
        lambda _t, q, _v: q, HurwitzGains.repeated(2.0, 2),
        system=plant, formulation=FREE, sample=start, names=("place",),
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="stepped over a singularity") as caught:
        run = jaxdae.simulate(plant, FREE, start, t1=2.0, dt=0.07, solver=RK4(), controller=servo)
    found = servo.singularity(run)
    assert found.crossed
    assert found.message in str(caught[0].message)
    assert found.t == pytest.approx(np.pi / 2, abs=0.07)
    assert "changes the sign of its determinant next to t = 1.5" in found.message
    assert "between two saved times" in found.message
    assert "constraints 'place'" in found.message
    early = jaxdae.simulate(plant, FREE, start, t1=1.0, dt=0.05, solver=RK4(), controller=servo)
    found = servo.singularity(early)
    assert not found.crossed
    assert found.least == pytest.approx(np.cos(1.0), rel=1e-9)
    assert "is nearest to singular at t = 1 s" in found.message


@pytest.mark.slow
def test_gradients_of_a_run_agree_with_finite_differences():
    """By a gain, and by a mass that plant and controller share."""

    def cost(p):
        plant = Actuated((0, 0), p[1])
        servo = ServoConstraint(
            tip, HurwitzGains.repeated(p[0], 2),
            system=plant, formulation=FREE, sample=plant.state(), controls=2, degrees=(2,),
        )  # fmt: skip
        run = jaxdae.simulate(
            plant, FREE, plant.state(), t1=0.5, dt=0.05, solver=RK4(), controller=servo
        )  # fmt: skip
        return jnp.sum(run.u**2) + jnp.sum(run.q**2)

    p, h = jnp.array([3.0, 2.0]), 1e-4
    value_and_slope = jax.jit(jax.value_and_grad(cost))
    reverse = np.asarray(value_and_slope(p)[1])
    value = lambda p: value_and_slope(p)[0]  # noqa: E731
    difference = [(value(p + e) - value(p - e)) / (2 * h) for e in h * np.eye(2)]
    # central differences: h^2 of truncation, round-off / h
    np.testing.assert_allclose(difference, reverse, rtol=1e-6)
    assert np.abs(reverse).min() > 1e-3


@pytest.mark.slow
def test_single_precision_stays_single_precision(servo):
    single = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    cast = jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float32) if eqx.is_inexact_array_like(x) else x, servo
    )
    u = control(cast, jnp.float32(0.0), single)
    assert u.dtype == jnp.float32
    # sums of terms 1e3 times the result, 7 digits
    np.testing.assert_allclose(u, control(servo, 0.0, START), atol=2e-3)


@pytest.mark.slow
def test_options_that_do_not_fit_are_refused():
    plant = Actuated((0, 0))

    def build(program=lambda _t, q, _v: q[:1], gains=SECOND, **options):
        options = {"controls": 2, "degrees": (2,)} | options
        return ServoConstraint(
            program, gains, system=plant, formulation=FREE, sample=plant.state(), **options
        )

    with pytest.raises(
        ValueError, match=r"degrees = \(2, 2\) must be one positive .* of 1 program"
    ):
        build(degrees=(2, 2))
    with pytest.raises(ValueError, match=r"weight has shape \(3,\), which does not fit 2 controls"):
        build(weight=jnp.ones(3))
    with pytest.raises(ValueError, match=r"weight must be positive definite, but has a value -1"):
        build(weight=-1.0)
    with pytest.raises(ValueError, match=r"free returned shape \(3,\); there are 2 controls"):
        build(free=lambda _t, _q, _v, _w: jnp.zeros(3))
    with pytest.raises(
        ValueError, match=r"2 controls for 2 program constraints leave nothing free"
    ):
        build(lambda _t, q, _v: q, weight=2.0, degrees=(2, 2))
    with pytest.raises(ValueError, match=r"has 3 coefficients for program constraint 1"):
        build(gains=HurwitzGains.repeated(1.0, 3))
    with pytest.raises(ValueError, match=r"2 program constraints need .* but controls = 1"):
        build(lambda _t, q, _v: q, controls=1, degrees=(2, 2))


def tip(t, q, v):
    return jnp.stack([q[0] + 2 * q[1] - t])


def _parts(state):
    return state.q, state.v, state.w


class Steered(jaxdae.System):
    """A body on a quaternion, with angular velocities, turned by torques about its axes."""

    def rate(self, t, q, v):
        e, u = q[0], q[1:]
        return jnp.concatenate([-(u @ v)[None], e * v + jnp.cross(u, v)]) / 2

    def kinetic_energy(self, t, q, v):
        return 0.5 * jnp.array([1.0, 2.0, 3.5]) @ v**2

    def force(self, t, q, v, w, u):
        return jnp.zeros(3) if u is None else u


def turning(t):
    """A motion on the unit sphere."""
    x = jnp.stack([jnp.cos(t), 0.3 * jnp.sin(2 * t), 0.5 * t, jnp.sin(t)])
    return x / jnp.sqrt(x @ x)


@pytest.mark.slow
def test_a_body_is_steered_in_velocities_that_are_not_rates():
    """The error of the quaternion decays as promised, and inverse dynamics has the same torques."""
    system, (K_D, K_P) = Steered(), (9.0, 20.0)
    program = lambda t, q, v: q[1:] - turning(t)[1:]  # noqa: E731
    start = jaxdae.State([1.0, 0.05, -0.03, 0.02] / np.sqrt(1.0038), [0.1, 0.2, 0.3])
    servo = ServoConstraint(
        program, HurwitzGains(jnp.array([K_P, K_D])), system=system,
        formulation=FREE, sample=start, degrees=(2, 2, 2),
    )  # fmt: skip
    run = jaxdae.simulate(system, FREE, start, t1=1.0, dt=5e-3, solver=RK4(), controller=servo)
    y = np.stack(servo.perturbations(0.0, start.q, start.v, start.w))
    flow = np.array([[0.0, 1.0], [-K_P, -K_D]])
    for i in (50, 200):
        wanted = expm(flow * float(run.ts[i])) @ y.T
        found = np.asarray(run.q[i, 1:] - turning(run.ts[i])[1:])
        # RK4 with 200 steps.
        np.testing.assert_allclose(found, wanted[0], atol=1e-7)
    ahead = Feedforward(system, turning, controls=3)
    q, v, _ = motion_derivatives(turning, 0.4, system)
    np.testing.assert_allclose(ahead(0.4), servo(jnp.array(0.4), q, v, jnp.zeros(0)), atol=1e-11)
