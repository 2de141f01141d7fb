"""Relative degree: found where theory puts it, refused where there is none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import Actuated, Bead, Forced
from jaxdae.control import relative_degree
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.models.pendulum import CartesianPendulum

FREE = jaxdae.Multipliers()


def point(t, q, v):
    return jnp.stack([q[0] - jnp.sin(t), q[1] - q[0] ** 2])


def line(t, q, v):
    return q


@pytest.mark.slow
def test_every_integrator_adds_one_to_the_relative_degree():
    """And velocity constraints count one less."""
    plant = Actuated((1, 2))
    program = lambda t, q, v: jnp.stack([v[0] - jnp.cos(t), q[1]])  # noqa: E731
    found = relative_degree(plant, FREE, program, plant.state(), controls=2)
    assert found.degrees == (2, 4)
    # a = f / m, and the force along y is (2 + cos x) times the control
    expected = np.diag([1.0, 2 + np.cos(0.4)]) / 2.0
    np.testing.assert_allclose(found.matrices[0], expected, rtol=1e-13, atol=1e-14)


@pytest.mark.slow
def test_relative_degree_of_the_mirror_is_four():
    mirror = AdaptiveMirror()
    states = jax.vmap(mirror.program_state)(jnp.array([0.0, 1.0, 2.5]))
    found = relative_degree(
        mirror, FREE, mirror.program, states, jnp.array([0.0, 1.0, 2.5]), controls=1
    )
    assert found.degrees == (4,)
    # decoupling 2 c s sin(phi) k_M k_a / L, derived by hand
    s, sin = np.asarray(jax.vmap(mirror.source)(jnp.array([0.0, 1.0, 2.5]))), np.sin(states.q[:, 0])
    expected = 2 * s * sin / (0.5 * 0.4**2) / 0.1
    np.testing.assert_allclose(found.matrices[:, 0, 0], expected, rtol=1e-12)


@pytest.mark.slow
def test_reactions_of_the_plants_own_constraints_are_part_of_the_flow():
    """A force along the rod moves nothing, one across it moves the mass."""

    across = Bead(lambda q, u: u[0] * jnp.stack([-q[1], q[0]]))
    along = Bead(lambda q, u: u[0] * q)
    state = jaxdae.State([0.6, 0.8], [-0.4, 0.3])
    stabilized = jaxdae.Multipliers(jaxdae.Baumgarte.critical(5.0))

    def abscissa(t, q, v):
        return q[:1]

    found = relative_degree(across, stabilized, abscissa, state, controls=1)
    assert found.degrees == (2,)
    np.testing.assert_allclose(found.matrices, [[[-0.8]]], rtol=1e-14)
    with pytest.raises(ValueError, match=r"'f1' is uncontrollable: no control appears.*order 4"):
        relative_degree(along, stabilized, abscissa, state, controls=1)


def test_a_constraint_out_of_reach_of_every_control_is_refused():
    state = jaxdae.State([0.3], [0.1])
    message = (
        r"program constraint 'level' is uncontrollable: no control appears in its derivatives "
        r"up to order 2, the dimension of the state\. Check where force"
    )
    with pytest.raises(ValueError, match=message):
        relative_degree(
            Forced(lambda _t, q, _u: -q[0]), FREE, line, state, controls=1, names=("level",)
        )
    with pytest.raises(ValueError, match="uncontrollable"):
        relative_degree(
            CartesianPendulum(),
            jaxdae.Multipliers(jaxdae.Baumgarte.critical(1.0)),
            lambda _t, q, _v: q[:1],
            jaxdae.State([1.0, 0.0], [0.0, 0.0]),
            controls=1,
        )


@pytest.mark.slow
def test_a_relative_degree_that_is_not_constant_is_refused():
    states = jaxdae.State([[0.5], [0.0]], [[1.0], [1.0]])
    message = r"'f1' is not constant: the controls appear in its derivative of order 2, but not at "
    with pytest.raises(ValueError, match=message + r"t = 3 s, q = \[0\], v = \[1\]"):
        relative_degree(
            Forced(lambda _t, q, u: q[0] * u[0]),
            FREE,
            line,
            states,
            jnp.array([0.0, 3.0]),
            controls=1,
        )


@pytest.mark.slow
def test_controls_that_do_not_enter_affinely_are_refused():
    law = lambda _t, _q, u: u[0] ** 2  # noqa: E731
    message = r"do not enter affinely: the derivative of order 2 .*'f1' deviates by .* of its size"
    with pytest.raises(ValueError, match=message + ".*whose rate is the control"):
        relative_degree(Forced(law), FREE, line, jaxdae.State([0.5], [0.0]), controls=1)


@pytest.mark.slow
def test_controls_that_move_constraints_only_together_are_refused():
    plant = Actuated((0, 2))

    def program(t, q, v):
        # both see u1 after two derivatives, long before u2
        return jnp.stack([q[0], q[0] + q[1]])

    message = (
        r"decoupling matrix is singular at t = 0 s, .*: rank 1 of 2 for relative degrees \(2, 2\)"
    )
    with pytest.raises(ValueError, match=message + ".*dynamic extension"):
        relative_degree(plant, FREE, program, plant.state(), controls=2)


def test_bad_programs_are_refused():
    plant = Actuated((0, 0))
    with pytest.raises(ValueError, match=r"2 program constraints need .* but controls = 1; drop"):
        relative_degree(plant, FREE, point, plant.state(), controls=1)
    with pytest.raises(
        ValueError, match=r"returned shape \(\); it must .* as a vector: jnp\.stack"
    ):
        relative_degree(plant, FREE, lambda _t, q, _v: q[0], plant.state(), controls=2)
    several = Forced(lambda _t, _q, u: u)
    with pytest.raises(ValueError, match=r"Forced\.force returned"):
        relative_degree(several, FREE, line, jaxdae.State([0.0], [0.0]), controls=3)

    def traced(mass):
        system = type(plant)((0, 0), mass)
        return relative_degree(system, FREE, point, plant.state(), controls=2)

    with pytest.raises(
        ValueError, match=r"being traced; find it outside of jit and grad, and pass"
    ):
        jax.jit(traced)(1.0)
