"""The motor from one Lagrangian, as an actuator, and in equations by hand: one and the same."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate

import jaxdae
from jaxdae import Baumgarte, Multipliers, NullSpace, SingularMassSolve, State
from jaxdae.models.base import AbstractModel
from jaxdae.models.motor import ChargeDrive, CurrentDrive
from jaxdae.systems import Labels

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=200.0)
FORM = Multipliers(GAINS)
SINGULAR = Multipliers(GAINS, solve=SingularMassSolve())
TIGHT: Any = {"stepsize_controller": diffrax.PIDController(rtol=1e-12, atol=1e-13)}


class Lever(AbstractModel):
    """A rigid pendulum in its angle from the downward vertical, with friction of its own."""

    inertia: float = 2e-3
    weight: float = 0.25
    friction: float = 1e-3

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.inertia * v[0] ** 2

    def potential_energy(self, t, q):
        return -self.weight * jnp.cos(q[0])

    def dissipation(self, t, q, v):
        return 0.5 * self.friction * v[0] ** 2

    def labels(self):
        return Labels(coordinates=("swing",), units=("rad",))

    def start(self):
        return jnp.array([0.4]), jnp.array([1.5])


def both(**options):
    """The same motor written twice."""
    return ChargeDrive(**options), CurrentDrive(**options)


def start(drive):
    """The model's own start, actuators included."""
    q, v = drive.start()
    return State(q, v, drive.actuators())


def run(drive, formulation: Any = FORM, t1=0.05, rows=6, **options):
    """A tight run, saved at equal times."""
    return jaxdae.simulate(
        drive, formulation, start(drive), t1=t1, work=True,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, t1, rows)), **(TIGHT | options),
    )  # fmt: skip


def currents(drive, sol):
    return jax.vmap(drive.current)(sol.ts, sol.q, sol.v, sol.w)


def lever_by_hand(drive, ts):
    """(n^2 J_r + J_g + J) a'' = n eta k i - (b + c) a' - W sin a, with the circuit.

    Returns a, a', i and the torque of the gear on the lever, `n (eta k i - J_r n a'')`.
    """
    lever, n, k = drive.mechanism, drive.gear_ratio, drive.motor_constant
    inertia = n**2 * drive.rotor_inertia + drive.gear_inertia + lever.inertia
    no_coil = drive.inductance is None

    def current(t, a_dot, i):
        steady = (6 * np.cos(drive.frequency * t) - n * k * a_dot) / drive.resistance
        return steady if no_coil else i

    def swing(a, a_dot, i):
        drive_torque = n * drive.efficiency * k * i
        friction = (drive.damping + lever.friction) * a_dot
        return (drive_torque - friction - lever.weight * np.sin(a)) / inertia

    def rate(t, y):
        a, a_dot, i = y
        voltage = 6 * np.cos(drive.frequency * t)
        drop = drive.resistance * i + n * k * a_dot
        i_dot = 0.0 if no_coil else (voltage - drop) / drive.inductance
        return [a_dot, swing(a, a_dot, current(t, a_dot, i)), i_dot]

    solution = scipy.integrate.solve_ivp(
        rate, (0, ts[-1]), [0.4, 1.5, 0.0], method="DOP853", rtol=1e-12, atol=1e-13, t_eval=ts
    )
    a, a_dot, i = solution.y
    i = current(ts, a_dot, i)
    torque = n * (drive.efficiency * k * i - drive.rotor_inertia * n * swing(a, a_dot, i))
    return a, a_dot, i, torque


LEVER: Any = {"mechanism": Lever(), "frequency": 60.0}


@pytest.mark.slow
@pytest.mark.parametrize("drive", both(**LEVER), ids=["charge", "current"])
def test_the_motion_is_that_of_the_equations_by_hand(drive):
    sol = run(drive)
    a, a_dot, i, torque = lever_by_hand(drive, np.asarray(sol.ts))
    # Two codes at 1e-12, some 500 stiff but damped steps; the angle of the motor reaches 50 rad.
    np.testing.assert_allclose(jax.vmap(drive.driven_angle)(sol.q), a, atol=1e-9)
    np.testing.assert_allclose(jax.vmap(drive.driven_angle)(sol.v), a_dot, atol=1e-8)
    np.testing.assert_allclose(jax.vmap(drive.shaft)(sol.q), 70 * a, atol=1e-8)
    np.testing.assert_allclose(currents(drive, sol), i, atol=1e-9)
    np.testing.assert_allclose(sol.multipliers[:, 0], torque, atol=1e-8)
    # The voltage has changed its sign, and so has the current.
    assert i.min() < -0.5 < 0.5 < i.max()


@eqx.filter_jit
def _flow(drive, formulation, state, u=None):
    y = formulation.init(drive, 0.0, state)
    rate = formulation.vector_field(drive, 0.0, y, u)
    return jax.jvp(lambda y: formulation.recover(drive, 0.0, y), (y,), (rate,))[1]


@pytest.mark.parametrize("kind", [ChargeDrive, CurrentDrive])
@pytest.mark.parametrize("value", [0.0, -1e-3, 0])
def test_an_inductance_that_is_not_positive_is_refused(kind, value):
    message = rf"inductance must be positive, but is {value} H: .*give inductance=None"
    with pytest.raises(ValueError, match=message):
        kind(inductance=value)


def test_a_charge_without_inertia_is_refused_before_any_work():
    """An inductance that became zero on the way: nothing would determine di/dt."""
    drive = eqx.tree_at(lambda d: d.inductance, ChargeDrive(), 0.0)
    with pytest.raises(ValueError, match="the mass matrix is not positive definite: eigenvalues"):
        jaxdae.simulate(drive, FORM, start(drive), t1=0.01)
    message = "the acceleration is not determined: the mass matrix has the eigenvalue"
    for formulation in (SINGULAR, NullSpace(GAINS)):
        with pytest.raises(ValueError, match=message):
            jaxdae.simulate(drive, formulation, start(drive), t1=0.01)


@pytest.mark.slow
def test_without_inductance_the_law_is_a_constraint_whose_multiplier_is_zero():
    """Both forms follow the equations by hand, in which the current is algebraic."""
    charge, current = both(**LEVER, inductance=None)
    assert charge.labels().constraints == ("gear", "Kirchhoff")
    for drive, formulation in ((charge, SINGULAR), (current, FORM)):
        sol = run(drive, formulation)
        a, a_dot, i, torque = lever_by_hand(drive, np.asarray(sol.ts))
        np.testing.assert_allclose(jax.vmap(drive.driven_angle)(sol.q), a, atol=1e-9)
        np.testing.assert_allclose(jax.vmap(drive.driven_angle)(sol.v), a_dot, atol=1e-8)
        np.testing.assert_allclose(currents(drive, sol), i, atol=1e-9)
        np.testing.assert_allclose(sol.multipliers[:, 0], torque, atol=1e-8)
        # Voltages of 6 V cancel: the law takes no part in the balance of torques.
        np.testing.assert_allclose(sol.multipliers[:, 1:], 0.0, atol=1e-10)


def constant(t, q, v, w):
    """A controller that gives 4 V."""
    return jnp.full(1, 4.0, q.dtype)


@pytest.mark.slow
def test_a_control_input_replaces_the_voltage():
    """As in a declared source of 4 V; where the law is a constraint it is refused, in words."""
    for kind, inductance in ((ChargeDrive, 2e-3), (CurrentDrive, 2e-3), (CurrentDrive, None)):
        drive = kind(mechanism=Lever(), inductance=inductance)
        state = start(drive)
        declared = _flow(eqx.tree_at(lambda d: d.voltage, drive, 4.0), FORM, state)
        driven = _flow(drive, FORM, state, jnp.full(1, 4.0))
        # Its own are 6 V.
        jax.tree.map(np.testing.assert_array_equal, driven, declared)
    drive = ChargeDrive(inductance=None)
    with pytest.raises(ValueError, match="velocity constraint, which no control input can enter"):
        run(drive, SINGULAR, controller=constant)


def test_the_driven_coordinate_may_be_named():
    by_name, by_index = ChargeDrive(driven="slider"), ChargeDrive(driven=2)
    q, _ = by_index.start()
    np.testing.assert_array_equal(
        by_name.position_constraints(0.0, q), by_index.position_constraints(0.0, q)
    )
    with pytest.raises(ValueError, match="no coordinate is called 'wheel'; there are: crank, rod"):
        ChargeDrive(driven="wheel").start()
