"""Gibbs-Appell equations against Lagrange's with multipliers, and by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, State
from jaxdae.formulations.quasi_velocities import energy_of_accelerations, QuasiVelocities
from jaxdae.models.disk import RollingDisk
from jaxdae.models.knife_edge import KnifeEdge
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate
from jaxdae.systems.dynamics import applied_force

# Solves of at most seven unknowns with condition numbers below 1e3.
ROUND_OFF: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}
GAINS = Baumgarte(K_D=3.0, K_P=7.0, Gamma=2.0)


class Rheonomic(jaxdae.System):
    """Everything at once that is affine in the velocities, with explicit time everywhere."""

    def kinetic_energy(self, t, q, v):
        quadratic = v[0] ** 2 + (1 + q[0] ** 2) * v[1] ** 2 + 2 * v[2] ** 2 + v[3] ** 2
        return 0.5 * quadratic + 0.3 * jnp.cos(q[2] + t) * v[0] * v[1] + jnp.sin(t) * q[1] * v[3]

    def potential_energy(self, t, q):
        return jnp.cos(t) * q[0] * q[1] + q[3] ** 2

    def dissipation(self, t, q, v):
        return 0.1 * (1 + t) * (v @ v)

    def force(self, t, q, v, w, u):
        return jnp.stack([w[0], 0.0 * t, v[0] * q[1], jnp.sin(t)])

    def actuator_rate(self, t, q, v, w, u):
        return jnp.stack([v[1] - w[0]])

    def position_constraints(self, t, q):
        return jnp.stack([q[0] ** 2 + q[1] ** 2 + 0.5 * q[3] - 1 - 0.3 * jnp.sin(t)])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[2] - jnp.cos(q[0] + t) * v[3] + 0.4 * jnp.cos(t)])


class RheonomicForms(eqx.Module):
    """Free quasi-velocities that depend on time and place, with a part of degree zero."""

    slope: float = 0.5

    def __call__(self, t, q, v):
        return jnp.stack([v[0] - self.slope * q[1] * v[1] + jnp.sin(t), v[3] + t * v[1] + q[2]])


STATES = {
    "rheonomic": (Rheonomic(), State([0.8, 0.3, 0.4, 0.5], [0.2, -0.6, 0.9, 0.7], [0.3])),
    "sleigh": (ChaplyginSleigh(), State([0.1, 0.2, 0.7], [0.5, 0.3, 1.1])),
    "disk": (RollingDisk(), State([0.1, 0.2, 0.7, 0.4], [0.5, 0.3, 1.1, 2.0])),
}


@eqx.filter_jit
def motion(system, formulation, state, t):
    """Velocity and acceleration, from the formulation's own rate by the chain rule; multipliers."""
    y = formulation.init(system, t, state)
    rate = formulation.vector_field(system, t, y, None)
    back = formulation.recover(system, t, y)
    _, rates = jax.jvp(
        lambda t, y: formulation.recover(system, t, y), (t, y), (jnp.ones_like(t), rate)
    )
    return back, rates, formulation.multipliers(system, t, y, None)


@eqx.filter_jit
def consistent(system, state, t):
    """The state with velocities that satisfy the constraints."""
    d = evaluate(system, t, state.q, state.v, state.w)
    v = state.v - jnp.linalg.pinv(d.jac) @ d.phi_dot
    return State(state.q, v, state.w)


@pytest.mark.slow
def test_gradient_of_the_energy_of_accelerations_is_inertia(everything):
    q, v, a = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3)))
    t, w = jnp.asarray(0.4), jnp.asarray([0.2])
    gradient = jax.jit(jax.grad(lambda a: energy_of_accelerations(everything, t, q, v, a)))(a)
    d = jax.jit(evaluate)(everything, t, q, v, w)
    inertial = d.force - jax.jit(applied_force)(everything, t, q, v, w, None)
    np.testing.assert_allclose(gradient, d.mass @ a - inertial, **ROUND_OFF)


@pytest.mark.slow
@pytest.mark.parametrize("forms", [None, RheonomicForms()])
def test_same_motion_as_multipliers_from_any_state_when_stabilized(forms):
    system, state = STATES["rheonomic"]
    t = jnp.asarray(0.6)
    back, rates, lam = motion(system, QuasiVelocities(forms, GAINS), state, t)
    _, wanted, lam_expected = motion(system, Multipliers(GAINS), state, t)
    np.testing.assert_allclose(back.v, state.v, **ROUND_OFF)
    np.testing.assert_allclose(rates.q, state.v, **ROUND_OFF)
    np.testing.assert_allclose(rates.v, wanted.v, **ROUND_OFF)
    np.testing.assert_allclose(rates.w, wanted.w, **ROUND_OFF)
    np.testing.assert_allclose(lam, lam_expected, **ROUND_OFF)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "forms"), [("rheonomic", RheonomicForms()), ("disk", None)])
def test_without_stabilization_the_constraint_functions_are_no_variables(name, forms):
    system, state = STATES[name]
    t = jnp.asarray(0.6)
    state = consistent(system, state, t)
    formulation = QuasiVelocities(forms)
    back, rates, lam = motion(system, formulation, state, t)
    _, wanted, lam_expected = motion(system, Multipliers(), state, t)
    count = lam.size
    assert formulation.init(system, t, state).pi.shape == (state.q.size - count,)
    np.testing.assert_allclose(back.v, state.v, **ROUND_OFF)
    np.testing.assert_allclose(rates.v, wanted.v, **ROUND_OFF)
    np.testing.assert_allclose(lam, lam_expected, **ROUND_OFF)


@pytest.mark.slow
def test_sleigh_in_its_own_quasi_velocities_has_the_textbook_equations():
    """With speed and turning rate, `v' = a w^2`, `(I + m a^2) w' = -m a v w` (Chaplygin)."""
    system = ChaplyginSleigh()

    def forms(t, q, v):
        return jnp.stack([v[0] * jnp.cos(q[2]) + v[1] * jnp.sin(q[2]), v[2]])

    formulation = QuasiVelocities(forms)
    state = State([0.3, 0.1, 0.8], [1.3 * np.cos(0.8), 1.3 * np.sin(0.8), 0.9])
    y = formulation.init(system, 0.0, state)
    rate = formulation.vector_field(system, 0.0, y, None)
    np.testing.assert_allclose(y.pi, [1.3, 0.9], **ROUND_OFF)
    moment = system.inertia + system.mass * system.offset**2
    turning = -system.mass * system.offset * 1.3 * 0.9 / moment
    np.testing.assert_allclose(rate.pi, [system.offset * 0.9**2, turning], **ROUND_OFF)


@pytest.mark.slow
def test_frame_stays_a_basis_through_full_turns():
    """A frame of fixed vectors, or one by reflections, would break down within a turn."""
    system = KnifeEdge(turn_rate=9.0)
    state = State(*system.start())
    sol = jaxdae.simulate(system, QuasiVelocities(), state, t1=3.0)
    assert float(sol.q[-1, 2]) > 4 * 2 * np.pi
    # The solver's tolerance of 1e-8, some hundred steps.
    np.testing.assert_allclose(sol.q, jax.vmap(system.exact_position)(sol.ts), atol=1e-6)
    # Not integrated, but recovered: round-off of speeds of order one.
    np.testing.assert_allclose(sol.violation.phi_dot, 0.0, atol=1e-13)
    frame = np.asarray(sol.saved.frame)
    gram = np.einsum("tni,tnj->tij", frame, frame)
    # Interpolated between steps, to a lower order than the steps themselves.
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(2), gram.shape), atol=1e-5)


@pytest.mark.slow
def test_gradients_agree_through_a_simulation():
    """The frame is held fixed in differentiation; the motion does not depend on it."""
    state = State(*ChaplyginSleigh().start())

    def final(point):
        system = ChaplyginSleigh(inertia=point[0])
        start = State(state.q, state.v.at[2].set(point[1]))
        options: dict[str, Any] = {"t1": 0.4, "dt": 0.1, "solver": RK4()}
        sol = jaxdae.simulate(system, QuasiVelocities(), start, **options)
        return sol.final_state.q @ jnp.array([1.0, -2.0, 0.5])

    point = jnp.asarray([1.4, 0.6])
    value_and_gradient = jax.jit(jax.value_and_grad(final))
    reverse = value_and_gradient(point)[1]
    h = 1e-5
    differences = [
        (value_and_gradient(point + h * e)[0] - value_and_gradient(point - h * e)[0]) / (2 * h)
        for e in np.eye(2)
    ]
    # Truncation h^2 and round-off 1e-16 / h, both about 1e-10.
    np.testing.assert_allclose(reverse, differences, rtol=1e-7)


def test_bad_declarations_are_refused_by_name(repeated_rod):
    sleigh, state = STATES["sleigh"]
    check = lambda system, formulation, state: formulation.check(system, state)  # noqa: E731
    with pytest.raises(ValueError, match=r"forms returned shape \(1,\).*have 2 free"):
        check(sleigh, QuasiVelocities(lambda t, q, v: v[:1]), state)
    with pytest.raises(ValueError, match=r"dependent at the start: rank 2 of 3; involved: form 1"):
        check(sleigh, QuasiVelocities(lambda t, q, v: jnp.stack([v[2], 2 * v[2]])), state)
    with pytest.raises(ValueError, match=r"takes the 3 constraint functions.*only 2 velocities"):
        check(repeated_rod((1.0, 2.0, 3.0)), QuasiVelocities(), State([1.0, 0.0], [0.0, 1.0]))
