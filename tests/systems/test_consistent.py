"""`consistent_state` against closed forms, another optimizer, and its own laws."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import brentq, minimize

import jaxdae
from jaxdae import consistent_state
from jaxdae.systems import consistent, constraint_residuals, evaluate


class Circle(jaxdae.System):
    """A particle with unequal inertia in x and y on a circle."""

    mass_x: float = 1.0
    mass_y: float = 4.0
    length: float = 1.3

    def kinetic_energy(self, t, q, v):
        return 0.5 * (self.mass_x * v[0] ** 2 + self.mass_y * v[1] ** 2)

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.length**2])

    def labels(self):
        return jaxdae.Labels(coordinates=("x", "y"), constraints=("rod",))


class Isokinetic(jaxdae.System):
    """Speed prescribed by a constraint that is quadratic in the velocities."""

    speed_squared: float = 4.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v @ v - self.speed_squared])


# Newton's method ends when its step is below eps^0.75 = 2e-12 of the solution; being quadratic, it
# has then reached round-off. Conditioning of the test problems is below 100.
SOLVED: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}

Q0, V0 = jnp.array([1.1, -0.4]), jnp.array([0.7, 0.9])


def _nearest_on_circle(system, q0):
    """Closed form up to one scalar: q_i = q0_i / (1 + mu / m_i), mu from the circle."""
    m, q0 = np.array([system.mass_x, system.mass_y]), np.asarray(q0)

    def point(mu):
        return q0 / (1 + mu / m)

    mu = brentq(lambda mu: point(mu) @ point(mu) - system.length**2, -0.9, 10.0, xtol=1e-15)
    return point(mu)


@pytest.mark.slow
def test_position_is_the_nearest_point_in_the_mass_metric():
    """On a circle with anisotropic mass the projection solves the secular equation."""
    out = consistent_state(Circle(), Q0, V0)
    np.testing.assert_allclose(out.q, _nearest_on_circle(Circle(), Q0), **SOLVED)
    # Not the nearest point in the Euclidean metric.
    radial = 1.3 * Q0 / jnp.linalg.norm(Q0)
    assert jnp.linalg.norm(out.q - radial) > 1e-2


@pytest.mark.slow
def test_velocity_is_the_projection_in_the_mass_metric():
    """v = v0 - M^-1 J^T (J M^-1 J^T)^-1 J v0 with J at the projected position."""
    out = consistent_state(Circle(), Q0, V0)
    jac, inverse = 2 * np.asarray(out.q)[None], np.diag([1.0, 0.25])
    weighted = inverse @ jac.T / (jac @ inverse @ jac.T)
    np.testing.assert_allclose(out.v, V0 - weighted[:, 0] * (jac @ V0), **SOLVED)


def test_a_consistent_state_is_returned_as_it_is(monkeypatch):
    """To round-off of its coordinates, whatever the units of the constraint."""

    class Small(Circle):
        def position_constraints(self, t, q):
            return 1e-9 * super().position_constraints(t, q)

    monkeypatch.setattr(consistent, "_project", None)
    for system in (Circle(), Small()):
        state, moved = consistent_state(system, [1.3, 0.0], [0.0, 0.5], report=True)
        np.testing.assert_array_equal(state.q, [1.3, 0.0])
        np.testing.assert_array_equal(moved.dv, 0.0)
        for q, v in ((1.3 + 1e-12, 0.0), (1.3, 1e-12)):
            with pytest.raises(TypeError, match="'NoneType' object is not callable"):
                consistent_state(system, [q, 0.0], [v, 0.5])


@pytest.mark.slow
def test_nearest_point_agrees_with_sequential_quadratic_programming(everything):
    """With a full, state-dependent mass matrix SLSQP finds the same position and velocity."""
    t, q0, v0 = 0.3, np.array([0.8, -1.1, 0.5]), np.array([0.4, -0.3, 0.2])
    out = consistent_state(everything, q0, v0, t, w=jnp.ones(1))
    mass = np.asarray(
        jax.jit(evaluate)(everything, t, jnp.asarray(q0), jnp.asarray(v0), out.w).mass
    )
    position = jax.jit(lambda q: everything.position_constraints(t, q))
    velocity = jax.jit(lambda v: constraint_residuals(everything, t, out.q, v).phi_dot)
    for x0, constraint, got in ((q0, position, out.q), (v0, velocity, out.v)):
        found = minimize(
            lambda x, x0=x0: 0.5 * (x - x0) @ mass @ (x - x0),
            x0,
            jac=lambda x, x0=x0: mass @ (x - x0),
            method="SLSQP",
            constraints={"type": "eq", "fun": constraint, "jac": jax.jit(jax.jacfwd(constraint))},
            options={"ftol": 1e-16, "maxiter": 200},
        )
        # At the end a change of x by 1e-7 changes the objective by 1e-14.
        np.testing.assert_allclose(got, found.x, atol=2e-7)


@pytest.mark.parametrize("fixed", ["x", 0, -2])
def test_fixed_coordinates_are_held_exactly(fixed):
    """Coordinates held by name, index or index from the end do not move by one bit."""
    out = consistent_state(Circle(), Q0, V0, fixed=[fixed])
    assert out.q[0] == Q0[0]
    assert out.v[0] == V0[0]
    y = -np.sqrt(1.3**2 - 1.1**2)
    np.testing.assert_allclose(out.q[1], y, **SOLVED)
    np.testing.assert_allclose(out.v[1], -1.1 * 0.7 / y, **SOLVED)


@pytest.mark.slow
def test_far_starts_find_the_constraints_and_not_a_maximum_of_the_distance():
    """From 200 starts anywhere in the plane, the result is on the circle and is the nearest point.

    Newton's method alone finds a stationary point that is not the nearest one for one in ten.
    """
    starts = np.random.default_rng(3).normal(size=(200, 2))
    project = jax.jit(jax.vmap(lambda q: consistent_state(Circle(), q, V0).q))
    angle = np.linspace(0, 2 * np.pi, 2001)
    circle = 1.3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = np.asarray(project(starts))
    distance = ((found - starts) ** 2) @ [1.0, 4.0]
    least = (((circle - starts[:, None]) ** 2) @ [1.0, 4.0]).min(axis=1)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.3, rtol=1e-10)
    # Another minimum may be met when it is hardly farther: allowed for one start in a hundred.
    assert np.mean(distance > least + 1e-6) <= 0.01


@pytest.mark.slow
def test_dependent_constraints_give_the_point_that_one_of_them_gives(repeated_rod):
    """Stating a constraint three times, with different weights, changes nothing."""
    one = consistent_state(repeated_rod((1.0,)), Q0, V0)
    three = consistent_state(repeated_rod((1.0, 2.0, -0.5)), Q0, V0)
    np.testing.assert_allclose(three.q, one.q, **SOLVED)
    np.testing.assert_allclose(three.v, one.v, **SOLVED)


def test_numpy_and_a_program_find_the_same_state(repeated_rod, everything):
    """Of what is known and of what JAX traces, also with entries held and dependent constraints."""
    three, full = np.array([0.8, -1.1, 0.5]), {"t": 0.3, "w": jnp.ones(1)}
    cases: tuple[tuple[Any, Any, Any, dict[str, Any]], ...] = (
        (repeated_rod((1.0, 2.0, -0.5)), Q0, V0, {}),
        (Circle(), Q0, V0, {"fixed": ["x"]}),
        (everything, three, np.array([0.4, -0.3, 0.2]), full),
    )
    for system, q, v, more in cases:
        known = consistent_state(system, q, v, **more)
        traced = jax.jit(lambda q, v, s=system, m=more: consistent_state(s, q, v, **m))(q, v)
        np.testing.assert_allclose(known.q, traced.q, rtol=0, atol=1e-12)
        np.testing.assert_allclose(known.v, traced.v, rtol=0, atol=1e-12)


def test_singular_mass_matrix_moves_only_what_has_no_inertia(massless):
    """Where moving y costs nothing, y alone moves onto y = x^2 / 2."""
    out = consistent_state(massless, Q0, V0)
    np.testing.assert_allclose(out.q, [1.1, 0.605], **SOLVED)
    np.testing.assert_allclose(out.v, [0.7, 0.77], **SOLVED)


def test_velocity_constraint_nonlinear_in_v_is_satisfied_at_the_nearest_velocity():
    """For |v| = 2 the nearest velocity has the direction of the given one."""
    out = consistent_state(Isokinetic(), Q0, V0)
    np.testing.assert_allclose(out.v, 2 * V0 / jnp.linalg.norm(V0), **SOLVED)
    np.testing.assert_array_equal(out.q, Q0)


@pytest.mark.slow
def test_rheonomic_velocity_level_includes_the_explicit_rate(led_point):
    """At t = 1 the led point moves with the target: x = 0.5, vx = 0.5, vy from the circle."""
    out = consistent_state(led_point(0.5), jnp.array([0.4, 0.8]), jnp.zeros(2), t=1.0)
    np.testing.assert_allclose(out.q, [0.5, np.sqrt(0.75)], **SOLVED)
    np.testing.assert_allclose(out.v, [0.5, -0.25 / np.sqrt(0.75)], **SOLVED)


def test_report_adds_up(everything):
    """The report's changes and residuals are those of the two states; w is kept."""
    q, v, w = jnp.array([0.8, -1.1, 0.5]), jnp.ones(3), jnp.array([0.7])
    out, moved = consistent_state(everything, q, v, 0.2, w=w, report=True)
    np.testing.assert_array_equal(q + moved.dq, out.q)
    np.testing.assert_allclose(v + moved.dv, out.v, rtol=0, atol=1e-15)
    np.testing.assert_array_equal(out.w, w)
    for state, violation in (((q, v), moved.before), ((out.q, out.v), moved.after)):
        expected = jax.jit(constraint_residuals)(everything, 0.2, *state)
        np.testing.assert_allclose(violation.phi, expected.phi, rtol=0, atol=1e-14)
        np.testing.assert_allclose(violation.phi_dot, expected.phi_dot, rtol=0, atol=1e-14)
    assert np.abs(moved.before.phi).max() > 0.1
    assert np.abs(moved.after.phi).max() < 1e-12


def _flat(out):
    return jnp.concatenate([out.q, out.v])


def _projected(params):
    system, q, v = params
    return _flat(consistent_state(system, q, v))


def _parameters():
    return jax.tree.map(jnp.asarray, (Circle(), Q0, V0))


@pytest.mark.slow
def test_derivatives_agree_in_forward_and_reverse_mode_and_with_differences():
    """d(q, v)/d(masses, length, q0, v0): two modes agree to round-off, differences to 1e-8."""
    params = _parameters()
    vector, unravel = ravel_pytree(params)
    function = lambda x: _projected(unravel(x))  # noqa: E731
    forward = jax.jit(jax.jacfwd(function))(vector)
    reverse = jax.jit(jax.jacrev(function))(vector)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9, atol=1e-11)
    h = 1e-5  # truncation h^2 = 1e-10, cancellation 1e-16 / h = 1e-11
    steps = h * jnp.eye(vector.size)
    value = jax.jit(jax.vmap(function))
    ahead, behind = (value(vector + s * steps) for s in (1, -1))
    np.testing.assert_allclose(forward, (ahead - behind).T / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_hopeless_lanes_of_a_batch_are_nan_and_the_others_right(led_point):
    """Beyond its reach the led point has no consistent state; before, it has."""
    times = jnp.array([0.0, 1.0, 3.0])
    project = lambda t: consistent_state(led_point(0.5), jnp.array([0.3, 0.9]), jnp.zeros(2), t)  # noqa: E731
    out = jax.jit(jax.vmap(project))(times)
    np.testing.assert_allclose(out.q[:2], [[0, 1], [0.5, np.sqrt(0.75)]], **SOLVED)
    assert np.isnan(out.q[2]).all()
    assert np.isnan(out.v[2]).all()


@pytest.mark.slow
def test_single_precision_stays_single():
    """float32 in, float32 out, on the circle to float32 round-off."""
    out = consistent_state(Circle(), Q0.astype(jnp.float32), V0.astype(jnp.float32))
    assert {str(x.dtype) for x in jax.tree.leaves(out)} == {"float32"}
    # eps^(2/3) = 2.4e-5 is what the function promises; round-off of the residual is 1e-7.
    np.testing.assert_allclose(out.q, _nearest_on_circle(Circle(), Q0), rtol=0, atol=1e-5)


def test_unknown_coordinate_is_named_with_those_there_are():
    """fixed=['z'] says what could have been meant."""
    with pytest.raises(ValueError, match="no coordinate is called 'z'; there are: x, y"):
        consistent_state(Circle(), Q0, V0, fixed=["z"])


@pytest.mark.parametrize("index", [2, -3])
def test_index_out_of_range_is_an_error(index):
    """fixed=[2] of two coordinates is refused with their number."""
    with pytest.raises(ValueError, match=rf"fixed coordinate {index} .*there are 2 coordinates"):
        consistent_state(Circle(), Q0, V0, fixed=[index])


def test_state_that_is_not_finite_is_refused_with_its_entry():
    """NaN in the start is found before Newton's method is tried."""
    with pytest.raises(ValueError, match=r"not finite: v\[1\] = nan"):
        consistent_state(Circle(), Q0, V0.at[1].set(jnp.nan))


def test_constraints_that_cannot_be_satisfied_are_named_with_amount_time_and_remedy(led_point):
    """At t = 3 the target x = 1.5 is off the unit circle."""
    message = (
        r"no consistent state.*constraint '(circle|leader)' still fails at position level by "
        r"\d.*allowed.*at t = 3\. Start nearer"
    )
    with pytest.raises(jaxdae.ConsistencyError, match=message):
        consistent_state(led_point(0.5), jnp.array([0.3, 0.9]), jnp.zeros(2), 3.0)


def test_velocity_level_failure_says_so():
    """No real velocity has |v|^2 = -1."""
    with pytest.raises(jaxdae.ConsistencyError, match="'f1' still fails at velocity level by"):
        consistent_state(Isokinetic(-1.0), Q0, V0)


def test_holding_every_coordinate_is_blamed_on_the_held_ones():
    """With all coordinates held an inconsistent start stays inconsistent, by a known amount."""
    amount = f"{abs(float(Q0 @ Q0) - 1.3**2):.3g}"
    message = rf"'rod' still fails at position level by {amount} .*x, y were held fixed; hold fewer"
    with pytest.raises(jaxdae.ConsistencyError, match=message):
        consistent_state(Circle(), Q0, V0, fixed=["x", "y"])


@pytest.mark.slow
def test_wrong_shapes_are_refused():
    """q and v of different lengths, or in batches, are refused with the remedy."""
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\)"):
        consistent_state(Circle(), Q0, jnp.ones(3))
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        consistent_state(Circle(), jnp.ones((4, 2)), jnp.ones((4, 2)))
