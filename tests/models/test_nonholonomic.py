"""Sleigh, disk, knife edge and robot against their closed forms."""

import dataclasses

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, State
from jaxdae.models.disk import RollingDisk
from jaxdae.models.knife_edge import KnifeEdge
from jaxdae.models.robot import DifferentialDriveRobot
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.systems import constraint_residuals

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
FORMULATION = Multipliers(Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0))
ROBOT = DifferentialDriveRobot()

# Models with parameters that no symmetry hides an error in.
MODELS = [
    ChaplyginSleigh(mass=1.7, offset=0.4, inertia=3 * 1.7 * 0.4**2, speed=1.3, phase=-0.8),
    RollingDisk(mass=1.3, radius=0.4, spin_inertia=0.2, turn_inertia=0.07, turn_rate=1.7),
    RollingDisk(turn_rate=0.0),
    KnifeEdge(mass=1.4, inertia=0.3, slope=0.4, turn_rate=1.9, speed=0.7),
    KnifeEdge(),
    ROBOT,
]


class Torques(jaxdae.System):
    """Not a system of its own: the robot with constant torques as part of its forces."""

    robot: DifferentialDriveRobot
    torques: tuple[float, float]

    def kinetic_energy(self, t, q, v):
        return self.robot.kinetic_energy(t, q, v)

    def dissipation(self, t, q, v):
        return self.robot.dissipation(t, q, v)

    def velocity_constraints(self, t, q, v):
        return self.robot.velocity_constraints(t, q, v)

    def force(self, t, q, v, w, u):
        del u
        return self.robot.force(t, q, v, w, jnp.asarray(self.torques, q.dtype))


def driven(model, t, q, v, w):
    del t, q, v, w
    return model.steady_torques()


def run(model, t1=2.0, **options):
    controller = None
    if isinstance(model, DifferentialDriveRobot) and not options.pop("coast", False):
        controller = jax.tree_util.Partial(driven, model)
    state = options.pop("state", State(*model.start()))
    return jaxdae.simulate(
        model,
        FORMULATION,
        state,
        t1=t1,
        stepsize_controller=TIGHT,
        # The ends of steps: values between them are interpolated to a lower order.
        saveat=diffrax.SaveAt(t0=True, steps=True),
        max_steps=512,
        controller=controller,
        **options,
    )


def rows(sol):
    reached = np.isfinite(sol.ts)
    return tuple(jnp.asarray(x)[reached] for x in (sol.ts, sol.q, sol.v, sol.multipliers))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_motion_is_the_closed_form(model):
    ts, q, v, lam = rows(run(model))
    exact_q, exact_v = jax.vmap(model.exact_motion)(ts)
    # Local errors of 1e-12 over some hundred steps.
    np.testing.assert_allclose(q, exact_q, atol=1e-9)
    np.testing.assert_allclose(v, exact_v, atol=1e-9)
    if not isinstance(model, DifferentialDriveRobot):
        expected = jax.vmap(model.multiplier)(exact_q, exact_v).reshape(lam.shape)
        # Stabilization adds Gamma times the residual of 1e-12 to the accelerations.
        np.testing.assert_allclose(lam, expected, atol=1e-9)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_start_is_consistent_and_on_the_closed_form(model):
    q, v = model.start()
    residual = constraint_residuals(model, 0.0, q, v)
    assert residual.phi.shape == (0,)
    np.testing.assert_allclose(residual.phi_dot, 0.0, atol=1e-15)
    exact_q, exact_v = model.exact_motion(0.0)
    np.testing.assert_allclose(q, exact_q, atol=1e-15)
    np.testing.assert_allclose(v, exact_v, atol=1e-15)
    labels = model.labels()
    assert len(labels.coordinates) == len(labels.units) == q.size
    assert len(labels.constraints) == len(labels.constraint_units) == residual.phi_dot.size
    assert all(reference.source for reference in model.references())


@pytest.mark.parametrize("model", MODELS[:-1], ids=lambda model: type(model).__name__)
def test_reactions_do_no_work(model):
    sol = run(model, t1=1.0)
    energy = np.asarray(sol.energy)[np.isfinite(sol.ts)]
    # Energies of order one, integrated to 1e-12.
    np.testing.assert_allclose(energy, energy[0], rtol=1e-10)


@pytest.mark.slow
def test_sleigh_keeps_its_heading_and_speed_laws_for_any_inertia():
    """The positions have no elementary form then, and say so; heading and speeds do."""
    model = ChaplyginSleigh(inertia=0.9)
    assert np.isnan(model.exact_position(1.0)[:2]).all()
    ts, q, v, lam = rows(run(model))
    k = np.sqrt(model.offset**2 + model.inertia / model.mass)
    s = model.phase + model.offset * model.speed * ts / k**2
    along = v[:, 0] * np.cos(q[:, 2]) + v[:, 1] * np.sin(q[:, 2])
    np.testing.assert_allclose(along, model.speed * np.tanh(s), atol=1e-9)
    np.testing.assert_allclose(v[:, 2], model.speed / k / np.cosh(s), atol=1e-9)
    heading = jax.vmap(model.exact_position)(ts)[:, 2]
    np.testing.assert_allclose(q[:, 2], heading, atol=1e-9)
    np.testing.assert_allclose(lam[:, 0], jax.vmap(model.multiplier)(q, v), atol=1e-9)


def test_knife_edge_drifts_across_the_slope_and_not_down():
    """After each half turn it is back at its height, `pi g sin(alpha) / (2 w^2)` to the side."""
    model = KnifeEdge()
    half_turn = np.pi / model.turn_rate
    drift = np.pi * model.gravity * np.sin(model.slope) / (2 * model.turn_rate**2)
    # sin(pi) is 1e-16
    expected = [0.0, drift, np.pi]
    np.testing.assert_allclose(model.exact_position(half_turn), expected, atol=1e-14)


@pytest.mark.slow
def test_robot_coasts_straight_on_with_its_time_constant():
    model = DifferentialDriveRobot(turn_rate=0.0)
    ts, q, v, _ = rows(run(model, coast=True))
    mass = model.mass + 2 * model.wheel_inertia / model.wheel_radius**2
    constant = mass * model.wheel_radius**2 / (2 * model.friction)
    decay = np.exp(-ts / constant)
    np.testing.assert_allclose(v[:, 0], model.speed * decay, atol=1e-9)
    np.testing.assert_allclose(q[:, 0], model.speed * constant * (1 - decay), atol=1e-9)
    np.testing.assert_allclose(q[:, 1:3], 0.0, atol=1e-12)


@pytest.mark.parametrize("torques", [(0.3, -0.1), (0.0, 0.0)])
def test_robot_accelerates_by_the_balances_of_momentum(torques, saddle_point):
    model, (right, left) = ROBOT, torques
    heading, speed, rate = 0.7, 0.9, -1.3
    q = jnp.asarray([0.1, 0.2, heading, 0.3, 0.4])
    r, b, c, d = model.wheel_radius, model.half_track, model.friction, model.offset
    wheels = [(speed + b * rate) / r, (speed - b * rate) / r]
    v = jnp.asarray([speed * np.cos(heading), speed * np.sin(heading), rate, *wheels])
    a, _ = saddle_point(Torques(model, torques), 0.0, q, v)
    wheel = 2 * model.wheel_inertia / r**2
    forward = (right + left) / r - 2 * c * speed / r**2 + model.mass * d * rate**2
    turning = b * (right - left) / r - 2 * c * b**2 * rate / r**2 - model.mass * d * speed * rate
    moment = model.inertia + model.mass * d**2 + wheel * b**2
    along = a[0] * np.cos(heading) + a[1] * np.sin(heading)
    # 8 unknowns, wheels of 0.004 kg m^2 beside a body of 8 kg
    assert along == pytest.approx(forward / (model.mass + wheel), rel=1e-10)
    assert a[2] == pytest.approx(turning / moment, rel=1e-10)


@pytest.mark.parametrize("model", MODELS[:-1], ids=lambda model: type(model).__name__)
def test_multiplier_is_the_solution_of_the_saddle_point_system(model, saddle_point):
    q, v = (jnp.asarray(x) for x in model.exact_motion(0.9))
    _, lam = saddle_point(model, 0.0, q, v)
    np.testing.assert_allclose(jnp.atleast_1d(model.multiplier(q, v)), lam, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_parameters_are_leaves_that_gradients_reach():
    """Sensitivity of the closed form to mass and turning rate against a difference of runs."""
    model = KnifeEdge(speed=0.3)
    gradient = jax.grad(lambda model: model.exact_position(1.0)[1])(model)
    h = 1e-5
    ends = [
        run(dataclasses.replace(model, turn_rate=model.turn_rate + s * h), t1=1.0).final_state.q[1]
        for s in (1, -1)
    ]
    # Central differences of runs with errors of 1e-12: truncation and noise about 1e-7.
    assert float(gradient.turn_rate) == pytest.approx(float(ends[0] - ends[1]) / (2 * h), rel=1e-6)
    assert float(gradient.mass) == 0.0
