"""Runs backward in time: what stabilizes acts in the direction of integration."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from helpers.systems import UnitMass
from jaxdae import Baumgarte, LinearStabilization, State
from jaxdae.control import StabilizedIntegrals
from jaxdae.formulations import DelayedLaw, LinearLaw
from jaxdae.models.kepler import Kepler
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import RK4

G = 9.81
GAINS = Baumgarte(K_D=20.0, K_P=120.0, Gamma=15.0)


class Pendulum(UnitMass):
    """A unit mass on a rod of unit length, in redundant coordinates."""

    damping: Any = 0.0

    def potential_energy(self, t, q):
        return G * q[1]

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * v @ v

    def position_constraints(self, t, q):
        return jnp.array([q @ q - 1])


START = State(jnp.array([1.0, 0.0]), jnp.zeros(2))
REST = State(jnp.array([0.0, -1.0]), jnp.zeros(2))


def angle(t1: float, damping: float = 0.0) -> np.ndarray:
    """End of the same motion from its equation for the angle, by SciPy."""
    rate = lambda _, y: [y[1], -G * np.cos(y[0]) - damping * y[1]]  # noqa: E731
    run = solve_ivp(rate, (0, t1), [0.0, 0.0], rtol=1e-12, atol=1e-12, method="DOP853")
    return np.array([np.cos(run.y[0, -1]), np.sin(run.y[0, -1])])


def nonlinear(t, q, v, phi, phi_dot):
    return -20 * phi_dot - 100 * phi - 50 * phi**3


FORMULATIONS = {
    "blocks": jaxdae.Multipliers(LinearStabilization(-120.0, -20.0, K22=-15.0)),
    "callable": jaxdae.Multipliers(nonlinear),
    "augmented": jaxdae.AugmentedLagrangian(50.0, GAINS, iterations=2),
    "hamiltonian": jaxdae.Hamiltonian(GAINS),
    "null space": jaxdae.NullSpace(GAINS),
    "elimination": jaxdae.VelocityElimination("q1", decay=15.0),
}
# Off the constraint by 0.02 to 0.03: what stabilizes decides on the motion.
OFF = State(jnp.array([0.3, -0.97]), jnp.array([0.2, 0.05]))


# One of them for the quick tests; each compiles for a second.
NAMES = [x if x == "null space" else pytest.param(x, marks=pytest.mark.slow) for x in FORMULATIONS]


@pytest.mark.parametrize("name", NAMES)
def test_a_backward_run_is_the_mirror_of_a_forward_one(name):
    """Without dissipation `q(-t)` from `(q, v)` is `q(t)` from `(q, -v)`, violations included."""
    settings: Any = {"solver": RK4(), "start_tolerance": 0.1}
    back = jaxdae.simulate(Pendulum(), FORMULATIONS[name], OFF, t1=-0.3, dt=-0.01, **settings)
    turned = State(OFF.q, -OFF.v)
    forth = jaxdae.simulate(Pendulum(), FORMULATIONS[name], turned, t1=0.3, dt=0.01, **settings)
    # Round-off of 30 steps, amplified by gains of 120.
    np.testing.assert_allclose(back.q, forth.q, atol=1e-12)
    np.testing.assert_allclose(back.v, -np.asarray(forth.v), atol=1e-12)
    np.testing.assert_allclose(back.multipliers, forth.multipliers, atol=1e-10)
    assert abs(back.violation.phi[-1, 0]) < 0.2 * abs(back.violation.phi[0, 0])


@pytest.mark.slow
def test_stabilized_integrals_return_backward_in_time():
    kepler = Kepler()
    start = State(*kepler.start())
    values = np.asarray(kepler.energy_and_momentum(0.0, start.q, start.v)) + 1e-3
    formulation = StabilizedIntegrals(
        jaxdae.Multipliers(), kepler.energy_and_momentum, jnp.asarray(values), 10.0
    )
    run = jaxdae.simulate(kepler, formulation, start, t1=-0.5, dt=-0.01, solver=RK4())
    end = kepler.energy_and_momentum(0.0, run.q[-1], run.v[-1])
    np.testing.assert_allclose((end - values) / -1e-3, np.exp(-5.0), rtol=1e-2)


def test_adaptive_runs_end_where_the_angle_does():
    run = jaxdae.simulate(Pendulum(), jaxdae.Multipliers(Baumgarte.critical(20.0)), START, t1=-2.0)
    np.testing.assert_allclose(run.q[-1], angle(-2.0), atol=1e-7)  # ten times the tolerance
    assert np.abs(run.violation.phi).max() < 1e-6


@pytest.mark.slow
def test_the_direction_of_each_member_is_its_own():
    """End times that are traced; gradients by them, by gains and by the start."""

    def end(t1, K_D, x):
        start = State(jnp.array([1.0, x]), jnp.zeros(2))
        run = jaxdae.simulate(
            Pendulum(), jaxdae.Multipliers(Baumgarte(K_D, 100.0)), start, t1=t1,
            saveat=diffrax.SaveAt(t1=True), start_tolerance=1.0, throw=False,
        )  # fmt: skip
        return run.final_state.q

    t1 = jnp.array([-0.8, 0.8, -2.0])
    ends = jax.vmap(lambda t: end(t, 20.0, 0.0))(t1)
    np.testing.assert_allclose(ends, [angle(float(t)) for t in t1], atol=1e-7)
    point = (jnp.array(-0.4), jnp.array(20.0), jnp.array(1e-2))
    gradient = jax.jit(jax.jacrev(end, argnums=(0, 1, 2)))(*point)
    value = jax.jit(end)
    for i, slope in enumerate(gradient):
        h = 1e-4
        up, down = ([x + s * h * (k == i) for k, x in enumerate(point)] for s in (1, -1))
        difference = (value(*up) - value(*down)) / (2 * h)
        # The tolerance of the runs over the difference, 1e-8 / 1e-4, is the larger error.
        np.testing.assert_allclose(slope, difference, atol=2e-4 + 1e-3 * np.abs(difference).max())


def test_a_backward_run_of_the_result_forward_again_is_stabilized():
    """The formulation of a result, in a run of the other direction."""
    gains = jaxdae.Multipliers(Baumgarte.critical(20.0))
    back = jaxdae.simulate(Pendulum(), gains, START, t1=-0.5)
    for t1 in (0.0, -1.0):
        run = jaxdae.simulate(
            Pendulum(), back.formulation, back.final_state, t0=-0.5, t1=t1, start_tolerance=1e-3
        )
        np.testing.assert_allclose(run.q[-1], angle(t1), atol=2e-7)


@pytest.mark.parametrize("settings", [{}, {"solver": RK4()}], ids=["adaptive", "fixed"])
def test_what_is_damped_and_integrated_backward_is_warned_of(settings):
    """Velocities of a pendulum with the friction `c v` decay by `c`."""

    def run(c, t1):
        step = {"dt": t1 * 1e-3} if settings else {}
        method = jaxdae.Multipliers(GAINS)
        return jaxdae.simulate(Pendulum(c), method, REST, t1=t1, **settings, **step)

    with pytest.warns(RuntimeWarning, match=r"damped grows.* factor of up to about 1e\+9 in 1 s"):
        run(20.0, -1.0)  # exp(20) = 5e8
    run(2.0, -1.0)  # exp(2): no warning, warnings are errors
    run(20.0, 1.0)


@pytest.mark.slow
def test_growth_is_that_of_friction_at_any_speed_and_of_each_member():
    """In redundant coordinates the roots of a motion that turns say nothing of its friction."""

    def growth(c, t1, speed):
        start = State(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]) * speed)
        run = jaxdae.simulate(
            Pendulum(c), jaxdae.Multipliers(GAINS), start, t1=t1,
            stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5), throw=False,
        )  # fmt: skip
        return run.backward_growth

    c, t1 = jnp.array([3.0, 3.0, 0.0, 1.0]), jnp.array([-0.5, 0.5, -0.5, -0.2])
    found = jax.vmap(growth)(c, t1, jnp.array([5.0, 5.0, 9.0, 0.0]))
    np.testing.assert_allclose(found, np.exp(np.maximum(-c * t1, 0)), rtol=1e-6)


@pytest.mark.slow
def test_friction_that_the_start_does_not_show_is_warned_of_after_the_run():
    """Of a mass that friction `k v^3` brakes: `v^-2 = v_0^-2 + 2 k t`, `int 3 k v^2 dt`."""

    class Braked(Pendulum):
        def potential_energy(self, t, q):
            return 0.0

        def dissipation(self, t, q, v):
            return 0.25 * self.damping * jnp.sum(v * v) ** 2

    k, speed, t1 = 0.5, 1.0, -0.9
    start = State(jnp.array([1.0, 0.0]), jnp.array([0.0, speed]))
    # 3 k v^2 at the start gives exp(1.35) = 4; the run sqrt(1 + 2 k t)^-3 = 32.
    with pytest.warns(RuntimeWarning, match=r"1/s at t = -0\.9 s.* factor of up to about 1e\+2"):
        run = jaxdae.simulate(Braked(k), jaxdae.Multipliers(GAINS), start, t1=t1)
    # Trapezoids over 201 rows.
    np.testing.assert_allclose(run.backward_growth, (1 + 2 * k * t1) ** -1.5, rtol=1e-2)


@pytest.mark.slow
def test_a_function_with_the_signs_of_a_backward_run_is_warned_of():
    """Stabilizations that were written for runs in which nothing was turned."""
    wrong = lambda t, q, v, phi, phi_dot: 20 * phi_dot - 100 * phi  # noqa: E731
    for law in (wrong, LinearStabilization(-100.0, 20.0)):
        with pytest.warns(
            RuntimeWarning, match=r"root 10\S* 1/s.* the same is given as for a run f"
        ):
            jaxdae.simulate(
                Pendulum(), jaxdae.Multipliers(law), REST, t1=-0.1, dt=-0.01, solver=RK4()
            )
    with pytest.raises(ValueError, match="K_D"):
        Baumgarte(-20.0, 100.0)


@pytest.mark.slow
def test_realizing_forces_and_controllers_backward_are_warned_of():
    sleigh = ChaplyginSleigh()
    start = State(jnp.zeros(3), jnp.array([1.0, 0.0, 0.0]))
    with pytest.warns(RuntimeWarning, match=r"root -33\.33 1/s at the start"):
        jaxdae.simulate(
            sleigh, jaxdae.RealizingForces(LinearLaw(50.0)), start, t1=-1.0, dt=-1e-3, solver=RK4()
        )


@pytest.mark.slow
def test_laws_that_forget_forward_are_warned_of_backward():
    """The largest root of Pade's denominator for one term is `-1 / delay`."""
    start = State(jnp.zeros(3), jnp.array([1.0, 0.0, 0.0]))
    law = DelayedLaw(LinearLaw(5.0), 0.05, terms=1)
    with pytest.warns(RuntimeWarning, match=r"root -20 1/s at the start.* about 1e\+3 in 0\.4"):
        jaxdae.simulate(
            ChaplyginSleigh(), jaxdae.RealizingForces(law), start, t1=-0.4, dt=-1e-2, solver=RK4()
        )


def test_controllers_that_damp_are_warned_of():
    class Pushed(Pendulum):
        def force(self, t, q, v, w, u):
            return u

    with pytest.warns(RuntimeWarning, match=r"root -20 1/s at the start"):
        jaxdae.simulate(
            Pushed(), jaxdae.Multipliers(GAINS), REST, t1=-1.0, dt=-1e-3, solver=RK4(),
            controller=lambda t, q, v, w: -20.0 * v,
        )  # fmt: skip
