"""Gears: against the velocities of their teeth, Willis' formula and couplings of coordinates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import (
    Body,
    Coupling,
    GearPair,
    Hinge,
    Motor,
    Multibody,
    RackAndPinion,
    Slide,
)


def test_gears_turn_as_their_teeth():
    """Against Willis' formula for planets; after many turns, as teeth are integers."""
    teeth = {"sun": 20, "planet": 15, "ring": -50}
    wheels = [
        Body("arm", Hinge("arm"), mass=1.0, inertia=(1.0, 1.0, 1.0)),
        Body("sun", Hinge("sun"), mass=1.0, inertia=(1.0, 1.0, 1.0)),
        Body("planet", Hinge("planet"), "arm", (0.35, 0, 0), mass=1.0, inertia=(1.0, 1.0, 1.0)),
    ]
    system = Multibody(
        wheels,
        [GearPair("inner", "sun", "planet", "arm", teeth=(teeth["sun"], teeth["planet"])),
         GearPair("outer", None, "planet", "arm", teeth=(teeth["ring"], teeth["planet"]))],
    )  # fmt: skip
    arm = 31.7
    sun = arm * (1 + 50 / 20)  # the ring is still: (sun - arm) / (ring - arm) = -50 / 20
    planet = -(sun - arm) * 20 / 15  # relative to the arm
    q = jnp.array([arm, sun, planet])
    np.testing.assert_allclose(system.position_constraints(0.0, q), 0.0, atol=1e-13)
    jac = jax.jacfwd(lambda q: system.position_constraints(0.0, q))(q)
    np.testing.assert_allclose(jac @ (q / arm), 0.0, atol=1e-12)
    assert np.linalg.svd(jac, compute_uv=False)[-1] > 0.1


@pytest.mark.parametrize("other_axis", [(0, 0, 1), (1, 0, 0)])
def test_teeth_that_mesh_move_together(other_axis):
    """Of spur gears and of bevel gears: both have one velocity where their pitch circles touch."""
    first, second = np.array([0.0, 0.0, 1.0]), np.array(other_axis, float)
    # Radii 2 and 3: the point of contact seen from a point of each axis.
    from_first = np.array([2.0, 0.0, 0.0])
    from_second = np.array([0.0, 0.0, 3.0] if other_axis == (1, 0, 0) else [-3.0, 0.0, 0.0])
    speeds = np.array([3.0, -2.0])
    velocities = np.cross(3.0 * first, from_first), np.cross(-2.0 * second, from_second)
    np.testing.assert_allclose(*velocities)
    system = Multibody(
        [Body("a", Hinge("a"), inertia=(1.0, 1.0, 1.0)),
         Body("b", Hinge("b", other_axis), inertia=(1.0, 1.0, 1.0))],
        [GearPair("mesh", "a", "b", other_axis=other_axis, teeth=(2, 3))],
    )  # fmt: skip
    jac = jax.jacfwd(lambda q: system.position_constraints(0.0, q))(jnp.zeros(2))
    np.testing.assert_allclose(jac @ speeds, 0.0, atol=1e-14)


@pytest.mark.slow
def test_gears_and_racks_are_the_couplings_of_their_joints():
    """Accelerations of bodies that are coupled by teeth and by coordinates agree."""

    def mechanism(*loops):
        return Multibody(
            [Body("a", Hinge("a"), mass=1.0, inertia=(1.0, 1.0, 2.0)),
             Body("b", Hinge("b"), None, (0.5, 0, 0), mass=1.0, inertia=(1.0, 1.0, 1.0)),
             Body("rack", Slide("s", (-1, 0, 0)), None, (0, 1.0, 0), mass=0.7)],
            loops, [Motor("torque", "a")],
        )  # fmt: skip

    teeth = mechanism(
        GearPair("gears", "a", "b", teeth=(40, 20)),
        # Seen from the rack, the pinion goes along +x where it turns about z; it is below.
        RackAndPinion("rack", "rack", "a", anchor=(0, -1.0, 0), radius=0.2),
    )
    coordinates = mechanism(
        Coupling("gears", "b", "a", (0.0, -2.0)), Coupling("rack", "s", "a", (0.0, 0.2))
    )
    q, v = jnp.array([7.0, -14.0, 1.4]), jnp.array([1.0, -2.0, 0.2])
    found = []
    for system in (teeth, coordinates):
        terms = jaxdae.evaluate(system, 0.0, q, v, u=jnp.ones(1))
        np.testing.assert_allclose(terms.phi, 0.0, atol=1e-14)
        np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-14)
        matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, np.zeros((2, 2))]])
        found.append(np.linalg.solve(matrix, [*terms.force, *-terms.gamma])[:3])
    np.testing.assert_allclose(*found, atol=1e-13)
