"""Mechanisms that are closed from rough guesses, or cannot be, against geometry by hand."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from helpers.bricard import AXES, bricard, CORNERS, EDGES
from jaxdae.multibody import (
    assemble,
    AssemblyError,
    Ball,
    Body,
    Connection,
    cylindrical,
    CylindricalLoop,
    Hinge,
    HingeLoop,
    Multibody,
    PlanarLoop,
    PointOnSurface,
    ScrewLoop,
    Slide,
    SlideLoop,
    Weld,
)

UP = (0.0, 0.0, 1.0)


def four_bar(crank, coupler, rocker, ground, axes="xy") -> Multibody:
    def bar(name, length, parent=None, place=0.0):
        return Body(name, Hinge(name, UP), parent, (place, 0, 0), mass=1.0,
                    inertia=(0.1, 0.1, 0.1), centre=(length / 2, 0, 0))  # fmt: skip

    return Multibody(
        [bar("crank", crank), bar("coupler", coupler, "crank", crank),
         bar("rocker", rocker, None, ground)],
        [Connection("pin", "coupler", "rocker", (coupler, 0, 0), (rocker, 0, 0), axes)],
    )  # fmt: skip


@pytest.mark.parametrize("axes", ["xy", "xyz"])
def test_a_held_crank_closes_where_two_circles_meet(axes):
    """From a guess in which the pin is a metre open."""
    state = assemble(four_bar(0.4, 1.1, 0.8, 1.0, axes), [0.9, 2.0, -1.0], fixed="crank")
    assert float(state.q[0]) == pytest.approx(0.9, abs=1e-12)
    knee = 0.4 * np.array([np.cos(0.9), np.sin(0.9)])
    pin = np.array([1.0, 0.0]) + 0.8 * np.array([np.cos(state.q[2]), np.sin(state.q[2])])
    assert np.linalg.norm(pin - knee) == pytest.approx(1.1, rel=1e-9)
    along = (pin - knee) / 1.1
    np.testing.assert_allclose(
        [np.cos(state.q[0] + state.q[1]), np.sin(state.q[0] + state.q[1])], along, atol=1e-9
    )


def test_bars_that_do_not_reach_each_other_leave_the_gap():
    """Three bars of 3 m in all between pivots at 5 m: 2 m are left, whatever is tried."""
    words = "in the best of 3 places that were tried loop 'pin' is open by 2 m. Correct lengths"
    with pytest.raises(AssemblyError, match=re.escape(words)):
        assemble(four_bar(1.0, 1.0, 1.0, 5.0), [0.3, 0.2, 2.5], starts=3)
    words = "loop 'pin' is open by 0.5 m. The joints rocker were held; hold fewer."
    with pytest.raises(AssemblyError, match=re.escape(words)):
        # Held upright, its end is 1.5 m above that of a crank and a coupler that reach 1 m.
        assemble(four_bar(0.5, 0.5, 1.5, 0.0), [0.3, 0.2, np.pi / 2], fixed=("rocker",), starts=2)


def test_bricards_linkage_closes_from_far_away():
    """One redundant constraint, half a radian off in all hinges; its axis is not reversed."""
    system = bricard()
    state = assemble(system, np.random.default_rng(3).normal(size=5) * 0.5)
    pose = system.poses(state.q)["rod 5"]
    np.testing.assert_allclose(pose.turn @ AXES[5], AXES[5], atol=1e-9)
    np.testing.assert_allclose(pose.point(jnp.asarray(EDGES[4])), CORNERS[5], atol=1e-9)
    assert jaxdae.analysis.mobility(system, state).degrees_of_freedom == 1


def test_balls_and_slides_move_to_where_a_weld_has_them():
    """A body on three slides and a ball takes the place and rotation of a weld."""
    slides = [Slide(x, axis) for x, axis in zip("xyz", np.eye(3), strict=True)]
    body = Body("body", (*slides, Ball("ball")), mass=1.0, inertia=(1.0, 1.0, 1.0))
    turn = Rotation.from_rotvec([0.9, -1.2, 1.7])
    weld = Weld("weld", None, "body", (1, 2, 3), (0.5, 0, 0), turn.as_quat(scalar_first=True))
    system = Multibody([body], [weld])
    state = assemble(system)
    pose = system.poses(state.q)["body"]
    np.testing.assert_allclose(pose.turn, turn.as_matrix(), atol=1e-9)
    np.testing.assert_allclose(pose.point(jnp.array([0.5, 0, 0])), [1, 2, 3], atol=1e-9)


def test_half_a_turn_is_not_closed():
    """Two hinges with crossed axes cannot turn a body by half a turn about the third one."""
    body = Body("body", (Hinge("h", (1, 0, 0)),), mass=1.0, inertia=(1.0, 1.0, 1.0))
    system = Multibody([body], [Weld("weld", "body", orientation=(0, 1, 0, 0))])
    assert abs(float(assemble(system, [0.1]).q[0])) == pytest.approx(np.pi, abs=1e-9)
    system = Multibody([body], [Weld("weld", "body", orientation=(0, 0, 0, 1))])
    words = (
        r"not finite in any of the 2 .* tried\. 'weld' is half a turn away from where it is to be"
    )
    with pytest.raises(AssemblyError, match=words):
        assemble(system, starts=2)


def test_a_mechanism_of_other_sizes_is_assembled_without_compiling_anew(caplog):
    assemble(four_bar(0.4, 1.1, 0.8, 1.0), [0.9, 2.0, -1.0])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        assemble(four_bar(0.45, 1.05, 0.85, 1.1), [0.9, 2.0, -1.0])
    assert [x for x in caplog.messages if x.startswith(("Compiling", "Finished XLA"))] == []


@pytest.mark.parametrize("kind", [HingeLoop, CylindricalLoop, PlanarLoop, SlideLoop, ScrewLoop])
def test_a_reversed_axis_is_not_closed(kind):
    """From three radians the residuals of a hinge about x vanish at half a turn first."""
    body = Body("body", Hinge("h", (1, 0, 0)), mass=1.0, inertia=(1.0, 1.0, 1.0))
    state = assemble(Multibody([body], [kind("loop", None, "body")]), [3.0])
    turns = float(state.q[0]) / (2 * np.pi)
    assert turns == pytest.approx(round(turns), abs=1e-9)


def test_closed_mechanisms_stay_and_what_is_wrong_is_refused():
    system = four_bar(1.0, 2.0, 1.0, 2.0)
    q = jnp.array([1.0, -1.0, 1.0])
    np.testing.assert_allclose(assemble(system, q).q, q, atol=1e-12)
    single = assemble(system, jnp.array([0.9, -0.8, 1.1], jnp.float32)).q
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single[0] + single[1], 0.0, atol=1e-5)
    free = Multibody(system.bodies)
    np.testing.assert_array_equal(assemble(free).q, free.start().q)
    with pytest.raises(ValueError, match=re.escape("no joint is called 'knee'; there are: crank")):
        assemble(system, q, fixed="knee")
    with pytest.raises(ValueError, match=re.escape("call it outside of jax.jit")):
        jax.jit(lambda q: assemble(system, q).q)(q)
    with pytest.raises(ValueError, match="nan"):
        assemble(system, q * jnp.nan)


def test_two_cylindrical_joints_close_on_a_sphere():
    """One equation on four velocities, of whose derivatives XLA made no program but an abort."""
    one, two = (cylindrical(x, axis=(0.3, 0.4, 1.0)) for x in ("one", "two"))
    bodies = [
        Body("arm", one, None, (0.3, 0.0, 0.1), mass=1.0, inertia=(0.1, 0.1, 0.1)),
        Body("tip", two, "arm", (0.5, 0.2, 0.0), mass=1.0, inertia=(0.1, 0.1, 0.1)),
    ]
    ball = PointOnSurface(
        "ball", None, "tip", other=(0.2, 0.1, 0.0), function=lambda x: jnp.sqrt(x @ x) - 1.0
    )
    state = assemble(Multibody(bodies, [ball]), [0.1, 0.2, -0.1, 0.3])
    pose = Multibody(bodies).poses(state.q)["tip"]
    place = pose.place + pose.turn @ np.array([0.2, 0.1, 0.0])
    np.testing.assert_allclose(np.linalg.norm(place), 1.0, atol=1e-14)
