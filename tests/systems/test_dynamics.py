"""`evaluate` against derivations by hand, and against the identities of Lagrangian mechanics."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.systems import (
    constraint_residuals,
    evaluate,
    generalized_energy,
    power_balance,
)

# A few hundred operations on numbers of order one to a hundred, each with error 1e-16.
ROUND_OFF: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}

_evaluate = eqx.filter_jit(evaluate)


def _all(system, t, q, v):
    """`evaluate` at many states at once."""
    return jax.jit(jax.vmap(lambda t, q, v: evaluate(system, t, q, v)))(t, q, v)


class Scalar(jaxdae.System):
    """One coordinate; energies that depend on time."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * (1 + t**2 + q[0] ** 2) * v[0] ** 2 + jnp.sin(t) * q[0] * v[0] + t * q[0]

    def potential_energy(self, t, q):
        return 0.5 * jnp.exp(t) * q[0] ** 2


class Forced(jaxdae.System):
    """Dissipation, and forces from state, actuator and input."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def dissipation(self, t, q, v):
        return 0.5 * (1 + t) * (3 * v[0] ** 2 + q[1] ** 2 * v[1] ** 2)

    def force(self, t, q, v, w, u):
        return jnp.stack([t * q[0] * v[1] + 5 * w[0], u[0] * w[1]])


class MovingCircle(jaxdae.System):
    """`|q - c(t)| = l(t)` with `c = (sin 3t, t^2)`, `l = 2 + cos t`."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def position_constraints(self, t, q):
        arm = q - jnp.stack([jnp.sin(3 * t), t**2])
        return jnp.stack([arm @ arm - (2 + jnp.cos(t)) ** 2])


class Edges(jaxdae.System):
    """One velocity constraint affine in `v` (a knife edge), and one cubic in `v`."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def velocity_constraints(self, t, q, v):
        x, y, angle = v
        edge = -jnp.sin(q[2]) * x + jnp.cos(q[2]) * y
        return jnp.stack([edge, q[0] * x**2 * y + angle - t**2])


class Declared(jaxdae.System):
    """Declares a mass matrix; `factor` differs from one when it is wrong."""

    factor: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * ((2 + q[1] ** 2) * v[0] ** 2 + 3 * v[1] ** 2)

    def mass_matrix(self, t, q):
        return jnp.diag(jnp.stack([2 + q[1] ** 2, 3.0 * self.factor]))


def test_double_pendulum_has_the_textbook_mass_matrix_and_forces(double_pendulum, rng):
    """M and f of the double pendulum are those of the textbook at random states."""
    p = double_pendulum
    t, q, v = np.zeros(20), rng.normal(size=(20, 2)), 5 * rng.normal(size=(20, 2))
    d = _all(p, t, q, v)

    def expected(q, v):
        coupling = p.m2 * p.l1 * p.l2
        c, s = np.cos(q[0] - q[1]), np.sin(q[0] - q[1])
        total = p.m1 + p.m2
        mass = [[total * p.l1**2, coupling * c], [coupling * c, p.m2 * p.l2**2]]
        f1 = -coupling * s * v[1] ** 2 - total * p.gravity * p.l1 * np.sin(q[0])
        f2 = coupling * s * v[0] ** 2 - p.m2 * p.gravity * p.l2 * np.sin(q[1])
        return np.array(mass), np.array([f1, f2])

    mass, force = (np.stack(x) for x in zip(*map(expected, q, v), strict=True))
    np.testing.assert_allclose(d.mass, mass, **ROUND_OFF)
    np.testing.assert_allclose(d.force, force, **ROUND_OFF)


def test_energies_that_depend_on_time_give_the_forces_derived_by_hand():
    """Lagrange's equation with dT/dt terms: f = dT/dq - d/dt(dT/dv)|a=0 - dV/dq."""
    t, q, v = 0.7, 1.3, -2.1
    d = _evaluate(Scalar(), t, jnp.array([q]), jnp.array([v]))
    # p = (1 + t^2 + q^2) v + q sin t; T_q = q v^2 + v sin t + t.
    p_dot = (2 * t + 2 * q * v) * v + v * np.sin(t) + q * np.cos(t)
    force = q * v**2 + v * np.sin(t) + t - p_dot - np.exp(t) * q
    np.testing.assert_allclose(d.mass, [[1 + t**2 + q**2]], **ROUND_OFF)
    np.testing.assert_allclose(d.force, [force], **ROUND_OFF)


def test_dissipation_and_forces_enter_with_their_signs():
    """The force is F(t, q, v, w, u) - dD/dv."""
    q, v = jnp.array([0.4, 0.5]), jnp.array([-2.0, 3.0])
    w, u = jnp.array([1.5, -0.7]), jnp.array([11.0])
    d = _evaluate(Forced(), 2.0, q, v, w, u)
    first = 2.0 * 0.4 * 3.0 + 5 * 1.5 - 3.0 * 3 * (-2.0)
    second = 11.0 * (-0.7) - 3.0 * 0.25 * 3.0
    np.testing.assert_allclose(d.force, [first, second], **ROUND_OFF)


def test_moving_constraint_has_the_residuals_jacobian_and_gamma_derived_by_hand(rng):
    """J, gamma, phi and phi_dot of a circle that moves and grows."""
    q, v, t = rng.normal(size=2), 30 * rng.normal(size=2), 0.9
    d = _evaluate(MovingCircle(), t, jnp.asarray(q), jnp.asarray(v))
    c, c1, c2 = (
        np.array(x)
        for x in (
            [np.sin(3 * t), t**2],
            [3 * np.cos(3 * t), 2 * t],
            [-9 * np.sin(3 * t), 2.0],
        )
    )
    l, l1, l2 = 2 + np.cos(t), -np.sin(t), -np.cos(t)  # noqa: E741
    np.testing.assert_allclose(d.phi, [(q - c) @ (q - c) - l**2], **ROUND_OFF)
    np.testing.assert_allclose(d.phi_dot, [2 * (q - c) @ (v - c1) - 2 * l * l1], **ROUND_OFF)
    np.testing.assert_allclose(d.jac, [2 * (q - c)], **ROUND_OFF)
    gamma = 2 * (v - c1) @ (v - c1) - 2 * (q - c) @ c2 - 2 * l1**2 - 2 * l * l2
    np.testing.assert_allclose(d.gamma, [gamma], **ROUND_OFF)


def test_velocity_constraints_have_the_jacobian_and_gamma_derived_by_hand(rng):
    """With r only: J = dg/dv, gamma = (dg/dq) v + dg/dt, affine in v or not."""
    q, v, t = rng.normal(size=3), 10 * rng.normal(size=3), 1.7
    d = _evaluate(Edges(), t, jnp.asarray(q), jnp.asarray(v))
    s, c = np.sin(q[2]), np.cos(q[2])
    jac = [[-s, c, 0], [2 * q[0] * v[0] * v[1], q[0] * v[0] ** 2, 1]]
    gamma = [-(c * v[0] + s * v[1]) * v[2], v[0] ** 3 * v[1] - 2 * t]
    residual = [-s * v[0] + c * v[1], q[0] * v[0] ** 2 * v[1] + v[2] - t**2]
    np.testing.assert_allclose(d.jac, jac, **ROUND_OFF)
    np.testing.assert_allclose(d.gamma, gamma, **ROUND_OFF)
    np.testing.assert_allclose(d.phi_dot, residual, **ROUND_OFF)
    assert d.phi.shape == (0,)


def test_gamma_is_exact_at_high_speed(everything):
    """Along any motion, J a + gamma is the time derivative of phi_dot, at speeds of 100 too."""
    t0, q0 = 0.3, jnp.array([0.8, -1.1, 0.5])
    v0, a0 = jnp.array([100.0, -70.0, 90.0]), jnp.array([3.0, 40.0, -20.0])

    def phi_dot(t):
        q = q0 + v0 * (t - t0) + 0.5 * a0 * (t - t0) ** 2
        return constraint_residuals(everything, t, q, v0 + a0 * (t - t0)).phi_dot

    # Central differences with Richardson extrapolation: error h^4 times the fifth derivative of a
    # polynomial part of size 1e4 and of sines of frequency 1, below 1e-9 relative.
    h = 1e-4
    residual = jax.jit(phi_dot)
    coarse = (residual(t0 + 2 * h) - residual(t0 - 2 * h)) / (4 * h)
    fine = (residual(t0 + h) - residual(t0 - h)) / (2 * h)
    d = _evaluate(everything, t0, q0, v0, jnp.zeros(1))
    np.testing.assert_allclose(d.jac @ a0 + d.gamma, (4 * fine - coarse) / 3, rtol=1e-7)
    # The part that comes from the velocities is not small: dropping gamma would fail.
    assert np.all(np.abs(d.gamma) > 10 * np.abs(d.jac @ a0))


def test_declared_mass_matrix_is_used_and_the_force_is_unchanged():
    """A declared mass matrix replaces M only; Coriolis forces come from the energy all the same."""
    q, v = jnp.array([0.3, 0.8]), jnp.array([2.0, -1.0])
    right, wrong = (_evaluate(Declared(f), 0.0, q, v) for f in (1.0, 10.0))
    np.testing.assert_allclose(right.mass, np.diag([2.64, 3.0]), **ROUND_OFF)
    np.testing.assert_allclose(wrong.mass, np.diag([2.64, 30.0]), **ROUND_OFF)
    # T_q = (0, q2 v1^2), d/dt(T_v) = (2 q2 v2 v1, 0).
    for d in (right, wrong):
        np.testing.assert_allclose(d.force, [-2 * 0.8 * -1.0 * 2.0, 0.8 * 4.0], **ROUND_OFF)


@pytest.mark.slow
def test_a_declared_mass_matrix_is_compared_with_the_energy():
    """check_system passes in silence, or says which entry differs, both values, and why."""
    state = jaxdae.State(jnp.array([0.3, 0.8]), jnp.array([2.0, -1.0]))
    assert jaxdae.check_system(Declared(), state) is None
    message = r"Declared\.mass_matrix\[1, 1\] = 3.3, but the energies give 3 .*delete"
    with pytest.raises(ValueError, match=message):
        jaxdae.check_system(Declared(1.1), state)
    # Also where both are computed in single precision, to its round-off.
    single = jax.tree.map(lambda x: x.astype(jnp.float32), state)
    assert jaxdae.check_system(Declared(), single) is None
    with pytest.raises(ValueError, match=r"= 3\.00146484, but"):
        jaxdae.check_system(Declared(1 + 2.0**-11), single)


def test_a_declared_mass_matrix_that_is_not_finite_is_found():
    """A NaN entry is an error as well."""
    with pytest.raises(ValueError, match=r"mass_matrix\[1, 1\] = nan"):
        jaxdae.check_system(Declared(jnp.nan), jaxdae.State(jnp.ones(2), jnp.ones(2)))


def test_generalized_energy_is_the_jacobi_integral():
    """h = v dT/dv - T + V: terms of T linear in v drop out, those without v change sign."""
    t, q, v = 0.7, 1.3, -2.1
    h = generalized_energy(Scalar(), t, jnp.array([q]), jnp.array([v]))
    expected = 0.5 * (1 + t**2 + q**2) * v**2 - t * q + 0.5 * np.exp(t) * q**2
    np.testing.assert_allclose(h, expected, **ROUND_OFF)


@pytest.mark.slow
def test_power_balance_is_the_rate_of_the_generalized_energy(everything, rng):
    """dh/dt along M a + J^T lam = f is the sum of the four powers, for any lam and any state."""
    t = jnp.asarray(0.4)
    q, v, lam = (jnp.asarray(rng.normal(size=k)) for k in (3, 3, 2))
    w = jnp.array([0.6])
    d = _evaluate(everything, t, q, v, w)
    a = jnp.linalg.solve(d.mass, d.force - d.jac.T @ lam)
    h = lambda t, q, v: generalized_energy(everything, t, q, v)  # noqa: E731
    _, rate = jax.jit(lambda *x: jax.jvp(h, x, (jnp.ones(()), v, a)))(t, q, v)
    power = power_balance(everything, t, q, v, w, None, lam)
    np.testing.assert_allclose(sum(power), rate, **ROUND_OFF)
    assert np.all(np.abs(np.array(power)) > 1e-3)


def test_single_precision_stays_single(everything):
    """float32 in, float32 out, in every field, while double precision is enabled."""
    q = jnp.array([0.8, -1.1, 0.5], jnp.float32)
    d = _evaluate(everything, 0.3, q, 2 * q, jnp.ones(1, jnp.float32))
    assert {str(x.dtype) for x in jax.tree.leaves(d)} == {"float32"}
    double = _evaluate(everything, 0.3, q.astype(float), 2 * q.astype(float), jnp.ones(1))
    # A few hundred operations with error 6e-8 each.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4), d, double)


def test_state_keeps_single_precision_and_makes_integers_floating():
    """State(q, v) is floating point, of the precision it was given."""
    assert jaxdae.State([1, 2], [0, 0]).q.dtype == jnp.float64
    single = jaxdae.State(jnp.ones(2, jnp.float32), jnp.ones(2, jnp.float32))
    assert {str(x.dtype) for x in jax.tree.leaves(single)} == {"float32"}
    assert single.w.shape == (0,)


def test_labels_number_what_has_no_name():
    """Coordinates and constraints without names are q1, q2, …, f1, f2, …"""
    labels = jaxdae.Labels(coordinates=("x",), constraints=("rod",))
    assert (labels.coordinate(0), labels.coordinate(1)) == ("x", "q2")
    assert (labels.constraint(0), labels.constraint(1)) == ("rod", "f2")
    assert labels.coordinate_index("q2", 2) == 1


class ByNumPy(jaxdae.System):
    """A potential energy that JAX cannot trace."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return np.sin(q[0])


@pytest.mark.slow
def test_what_jax_cannot_trace_is_named_with_its_line():
    words = r"^ByNumPy cannot be traced by JAX \(line \d+ of test_dynamics.py, .*jnp.sin for np.sin"
    with pytest.raises(ValueError, match=words):
        jaxdae.evaluate(ByNumPy(), 0.0, jnp.ones(1), jnp.ones(1))
