"""Radau IIA on equations of motion: order, constraints, stiffness, redundancy, derivatives."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import DrivenPendulum, MassOnCircle, UnitMass
from jaxdae.models.slider_crank import SliderCrank
from jaxdae.solvers import Projected, radau_stages as coefficients, RadauIIA, Rodas5P

END = diffrax.SaveAt(t1=True)


START = MassOnCircle().start()


def run(system: Any, state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": RadauIIA(), "saveat": END} | options
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def angle(t):
    return 2 * (1 - np.exp(-0.5 * t))


def test_coefficients_satisfy_the_simplifying_assumptions():
    nodes, matrix = coefficients.NODES, coefficients.MATRIX
    for k in range(1, 4):
        np.testing.assert_allclose(matrix @ nodes ** (k - 1), nodes**k / k, rtol=1e-13)
    for k in range(1, 6):  # of the weights, which make the order 5
        np.testing.assert_allclose(matrix[-1] @ nodes ** (k - 1), 1 / k, rtol=1e-13)
    # The estimate does not see polynomials that the embedded method integrates exactly.
    for k in range(1, 4):
        changes, rate = nodes**k, float(k == 1)
        np.testing.assert_allclose(coefficients.ESTIMATE @ changes + rate, 0, atol=1e-13)


SWINGING = DrivenPendulum().start()


def test_constraints_that_depend_on_time_hold_at_steps_and_between():
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 23))
    found = run(DrivenPendulum(), SWINGING, saveat=saveat)
    exact = run(
        DrivenPendulum(), SWINGING, saveat=saveat, solver=Projected(diffrax.Dopri8()),
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
    )  # fmt: skip
    violation = found.violation
    assert max(np.abs(violation.phi).max(), np.abs(violation.phi_dot).max()) < 1e-14
    # The tolerance is 1e-8 for each step, and what dense output adds is of its order.
    np.testing.assert_allclose(found.q, exact.q, atol=3e-8)


class Rod(UnitMass):
    """Two masses on a stiff, damped rod, the first on a circle."""

    def potential_energy(self, t, q):
        stretch = jnp.linalg.norm(q[2:] - q[:2]) - 0.5
        return 9.81 * (q[1] + q[3]) + 0.5 * 1e7 * stretch**2

    def dissipation(self, t, q, v):
        along = (q[2:] - q[:2]) / jnp.linalg.norm(q[2:] - q[:2])
        return 0.5 * 1e4 * (along @ (v[2:] - v[:2])) ** 2

    def position_constraints(self, t, q):
        return jnp.stack([q[:2] @ q[:2] - 1.0])


@pytest.mark.slow
def test_stiff_vibrations_do_not_shorten_its_steps():
    state = jaxdae.State(jnp.array([1.0, 0.0, 1.5, 0.0]), jnp.zeros(4))
    found = run(Rod(), state)
    other = run(Rod(), state, solver=Projected(Rodas5P()))
    # Tolerances of 1e-8 in each of a thousand steps.
    np.testing.assert_allclose(found.q[-1], other.q[-1], atol=1e-6)
    assert int(found.stats["num_steps"]) < 0.5 * int(other.stats["num_steps"])


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "tolerance"), [("plain", 1e-5), ("native", 1e-9)])
@pytest.mark.filterwarnings("ignore:the run passed 6 near-singular")
def test_the_slider_crank_passes_its_singular_positions_on_its_branch(backend, tolerance):
    """Three turns; the links and the slider move on smoothly, and the energy says so."""
    crank = SliderCrank()
    control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    options: dict[str, Any] = {"saveat": None, "backend": backend, "stepsize_controller": control}
    found = run(crank, jaxdae.State(*crank.start()), t1=4.0, **options)
    assert float(found.q[-1, 0]) > 6 * np.pi
    np.testing.assert_allclose(found.q[:, 0], -found.q[:, 1], atol=1e-12)
    # The tolerance in each of some hundred steps, of energies of about 50 J.
    np.testing.assert_allclose(found.energy, found.energy[0], atol=1e3 * tolerance)
    assert np.abs(found.violation.phi).max() < 1e-13


class Accompanied(SliderCrank):
    """A slider-crank, and two masses on springs that make it fourteen rows."""

    def kinetic_energy(self, t, q, v):
        return super().kinetic_energy(t, q[:3], v[:3]) + 0.5 * v[3:] @ v[3:]

    def potential_energy(self, t, q):
        return super().potential_energy(t, q[:3]) + 0.5 * q[3:] @ q[3:]

    def position_constraints(self, t, q):
        return super().position_constraints(t, q[:3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the run passed 1 near-singular")
def test_kernels_of_large_mechanisms_say_that_they_do_not_pass_singular_positions():
    q, v = SliderCrank().start()
    zero = jnp.zeros(2)
    state = jaxdae.State(jnp.append(q, zero), jnp.append(v, zero + 1.0))
    found = run(Accompanied(), state, t1=0.5, backend="plain")
    alone = run(SliderCrank(), jaxdae.State(q, v), t1=0.5, backend="plain")
    # The tolerance of 1e-8 in each of some eighty steps.
    np.testing.assert_allclose(found.q[-1, :3], alone.q[-1], atol=1e-6)
    with pytest.raises(jaxdae.SimulationError, match=r'singular position.*backend="plain"'):
        run(Accompanied(), state, t1=0.5, backend="native", max_steps=2000)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the run passed 1 near-singular")
def test_derivatives_across_a_singular_position():
    """The other branch, and the jump of the Jacobian's sign, leave them as they are."""
    base = SliderCrank()
    control = diffrax.PIDController(rtol=1e-9, atol=1e-9)

    def end(mass, adjoint=None, backend="native"):
        system = eqx.tree_at(lambda x: x.slider_mass, base, mass)
        start = jaxdae.State(*base.start())
        options: dict[str, Any] = {"stepsize_controller": control, "adjoint": adjoint}
        return run(system, start, t1=0.5, backend=backend, **options).q[-1, 0]

    h = 1e-3
    near, far = (end(1 + x, backend="plain") - end(1 - x, backend="plain") for x in (h, 2 * h))
    # Differences of errors of 1e-9 in some 150 steps, over steps of 1e-3.
    np.testing.assert_allclose(jax.grad(end)(1.0), (8 * near - far) / (12 * h), atol=1e-6)


@pytest.mark.slow
def test_derivatives_of_adaptive_steps_in_both_modes():
    """By a length, which the start depends on, too; of positions, velocities and multipliers."""
    base = SliderCrank()

    def end(length, adjoint=None, backend="native"):
        system = eqx.tree_at(lambda x: x.crank_length, base, length * base.crank_length)
        start = jaxdae.consistent_state(system, *base.start())
        made = run(system, start, t1=0.2, backend=backend, adjoint=adjoint)
        return jnp.sum(made.q[-1] * jnp.arange(1.0, 4.0)) + made.v[-1, 0] + made.multipliers[-1, 0]

    reverse = jax.grad(end)(1.0)
    forward = jax.jvp(lambda x: end(x, diffrax.ForwardMode()), (1.0,), (1.0,))[1]
    # Adaptive steps begin anew in the derivatives of kernels, where others are chosen.
    np.testing.assert_allclose(forward, reverse, rtol=1e-6)
    h = 1e-4
    near, far = (end(1 + x, backend="plain") - end(1 - x, backend="plain") for x in (h, 2 * h))
    np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-5)


@pytest.mark.slow
def test_kernels_have_derivatives_along_several_directions_at_once():
    """In forward mode, each of which iterates until its own equations are solved."""

    def at(speed):
        state = eqx.tree_at(lambda s: s.v, START, START.v * speed[0] + jnp.array([0.0, speed[1]]))
        return run(MassOnCircle(), state, t1=0.2, dt=0.1, backend="native").q[-1]

    speeds = jnp.array([0.7, 0.3])
    np.testing.assert_allclose(jax.jacfwd(at)(speeds), jax.jacrev(at)(speeds), rtol=1e-10)


def test_it_runs_by_itself_in_diffrax_and_projected_a_second_time():
    term = jaxdae.solvers.ConstrainedTerm(lambda controller, t, state: None)
    made = diffrax.diffeqsolve(
        term, RadauIIA(), 0.0, 1.0, 0.1, (START, None), args=(MassOnCircle(), None, None)
    )
    assert made.ys is not None
    exact = [np.cos(angle(1.0)), np.sin(angle(1.0))]
    np.testing.assert_allclose(made.ys[0].q[-1], exact, atol=1e-8)  # 0.1^5 over a thousand
    again = run(MassOnCircle(), dt=0.1, solver=Projected(RadauIIA()))
    np.testing.assert_allclose(again.q[-1], exact, atol=1e-8)
