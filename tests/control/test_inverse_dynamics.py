"""Inverse dynamics of more or fewer inputs than degrees of freedom, and redundant constraints."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import lsq_linear

import jaxdae
from jaxdae.control import inverse_dynamics
from jaxdae.multibody import Body, Connection, Hinge, Motor, Multibody

UP = (0.0, 0.0, 1.0)


def parallelogram(motors, axes="xyz") -> Multibody:
    """Uniform bars in the plane of x and y; along z its pin says nothing."""

    def bar(name, length, parent=None, place=0.0):
        inertia = (0, length**3 / 12, length**3 / 12)
        return Body(
            name,
            Hinge(name, UP),
            parent,
            (place, 0, 0),
            mass=length,
            centre=(length / 2, 0, 0),
            inertia=inertia,
        )

    return Multibody(
        [bar("crank", 1.0), bar("coupler", 2.0, "crank", 1.0), bar("rocker", 1.0, None, 2.0)],
        [Connection("pin", "coupler", "rocker", (2, 0, 0), (1, 0, 0), axes)],
        [Motor(f"motor {x}", x, gear=g) for x, g in motors],
        gravity=(0.0, -9.81, 0.0),
    )


# On the parallelogram both cranks turn by one angle, and the coupler stays parallel.
ANGLE, RATE, TURN = 0.7, 2.0, 3.0
ALONG = np.array([1.0, -1.0, 1.0])
MOTION = ANGLE * ALONG, RATE * ALONG, TURN * ALONG
# One equation of motion: T = (1/3 + 1/3 + 2) angle'^2 / 2, V = g (1/2 + 1/2 + 2) sin(angle).
TORQUE = (2 / 3 + 2) * TURN + 3 * 9.81 * np.cos(ANGLE)


def test_one_motor_has_all_of_it_whatever_equations_are_redundant():
    for axes in ("xy", "xyz"):
        found = inverse_dynamics(parallelogram([("crank", 1.0)], axes), 0.0, *MOTION)
        np.testing.assert_allclose(found.u, [TORQUE], rtol=1e-12)
        assert np.isfinite(found.multipliers).all()


def test_two_motors_share_it_by_least_norm():
    """`u1 + 3 u2 = torque` with the least `u1^2 + u2^2`, by hand; and the equations hold."""
    system = parallelogram([("crank", 1.0), ("rocker", 3.0)])
    found = inverse_dynamics(system, 0.0, *MOTION)
    np.testing.assert_allclose(found.u, TORQUE * np.array([1.0, 3.0]) / 10, rtol=1e-12)
    q, v, a = map(jnp.asarray, MOTION)
    d = jaxdae.evaluate(system, 0.0, q, v, u=found.u)
    np.testing.assert_allclose(d.mass @ a + d.jac.T @ found.multipliers, d.force, atol=1e-12)


def test_terms_that_cancel_each_other_are_no_contradiction():
    """At constant rates all that is left of `J a + gamma` is round-off of its terms."""
    found = inverse_dynamics(parallelogram([("crank", 1.0)]), 0.0, *MOTION[:2], 0.0 * ALONG)
    np.testing.assert_allclose(found.u, [3 * 9.81 * np.cos(ANGLE)], rtol=1e-12)
    with pytest.raises(ValueError, match="do not admit this motion: J a"):
        inverse_dynamics(parallelogram([("crank", 1.0)]), 0.0, *MOTION[:2], [0.0, 1e-5, 0.0])


def test_a_tree_with_more_motors_than_joints():
    arm = Multibody(
        [Body("arm", Hinge("h", UP), mass=1.0, centre=(1, 0, 0), inertia=(0.1, 0.1, 0.1))],
        motors=[Motor("a", "h"), Motor("b", "h", gear=2.0)],
    )
    found = inverse_dynamics(arm, 0.0, [0.3], [1.0], [2.0])
    best = lsq_linear(np.array([[1.0, 2.0]]), [1.1 * 2.0]).x
    np.testing.assert_allclose(found.u, best, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_agree_in_both_modes_and_in_batches():
    """With the angular acceleration the torque grows by the inertia of the one equation.

    A member whose motion the constraints do not allow leaves the others as they are.
    """
    system = parallelogram([("crank", 1.0), ("rocker", 1.0)])
    q, v, _ = map(jnp.asarray, MOTION)

    def total(turn):
        return jnp.sum(inverse_dynamics(system, 0.0, q, v, turn * jnp.asarray(ALONG)).u)

    for derivative in (jax.jacfwd, jax.jacrev):
        np.testing.assert_allclose(derivative(total)(TURN), 2 / 3 + 2, rtol=1e-10)
    sums = jax.vmap(total)(jnp.array([TURN, jnp.nan, 0.0]))
    np.testing.assert_allclose(sums[::2], [TORQUE, 3 * 9.81 * np.cos(ANGLE)], rtol=1e-12)
    assert np.isnan(sums[1])


def test_motions_without_enough_motors():
    """A double pendulum with one motor: only what its second joint does by itself."""
    arm = Multibody(
        [
            Body("one", Hinge("h", UP), mass=1.0, centre=(1, 0, 0), inertia=(0.1, 0.1, 0.1)),
            Body("two", Hinge("k", UP), "one", (1, 0, 0), mass=1.0, centre=(1, 0, 0)),
        ],
        motors=[Motor("a", "h")],
        gravity=(0.0, 0.0, 0.0),
    )
    q, v = jnp.array([0.3, 0.0]), jnp.zeros(2)
    d = jaxdae.evaluate(arm, 0.0, q, v)
    a = np.linalg.solve(d.mass, [5.0, 0.0])
    np.testing.assert_allclose(inverse_dynamics(arm, 0.0, q, v, a).u, [5.0], rtol=1e-12)
    words = "2 degrees of freedom here, and its inputs (1) act on 1 of them"
    with pytest.raises(ValueError, match=re.escape(words)):
        inverse_dynamics(arm, 0.0, q, v, [1.0, 0.0])
    traced = jax.jit(lambda a: inverse_dynamics(arm, 0.0, q, v, a).u)
    assert np.isnan(traced(jnp.array([1.0, 0.0]))).all()
    np.testing.assert_allclose(traced(jnp.asarray(a)), [5.0], rtol=1e-12)


def test_what_is_missing_is_refused():
    with pytest.raises(ValueError, match="Multibody names no inputs; give their number"):
        inverse_dynamics(parallelogram([]), 0.0, *MOTION)
    with pytest.raises(ValueError, match=re.escape("have shape (2,) and the velocities (3,)")):
        inverse_dynamics(parallelogram([("crank", 1.0)]), 0.0, *MOTION[:2], [0.0, 0.0])
