"""Starts that are no position: quaternions without a length, rotations off by half a turn."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.analysis import mobility
from jaxdae.multibody import (
    assemble,
    Ball,
    Body,
    CylindricalLoop,
    Free,
    Hinge,
    HingeLoop,
    Multibody,
    PlanarLoop,
    ScrewLoop,
    Slide,
    SlideLoop,
    Weld,
)

ROUND = (1.0, 1.0, 1.0)
ARM = Multibody(
    [
        Body("arm", Hinge("shoulder", (0, 1, 0)), mass=1.0, inertia=ROUND),
        Body("hand", Ball("wrist"), parent="arm", mass=1.0, inertia=ROUND, centre=(0, 0, 0.1)),
    ]
)
DOES = {
    "simulate": lambda system, state: jaxdae.simulate(
        system, jaxdae.Multipliers(), state, t1=0.1, dt=0.01
    ),
    "consistent_state": lambda system, state: jaxdae.consistent_state(system, state.q, state.v),
    "equilibrium": lambda system, state: jaxdae.equilibrium(system, state.q),
    "mobility": mobility,
    "assemble": lambda system, state: assemble(system, state.q),
    "check_system": jaxdae.check_system,
}


@pytest.mark.parametrize("does", DOES)
def test_a_quaternion_of_length_zero_is_named_with_its_joint(does):
    words = "the quaternion of the joint 'wrist' has the length 0, and is no rotation: give it"
    with pytest.raises(ValueError, match=words):
        DOES[does](ARM, jaxdae.State(np.zeros(5), np.zeros(4)))


def test_so_is_one_whose_square_is_zero_in_floating_point():
    """The quaternion of a free body follows its place; a small one is a rotation like any other."""
    system = Multibody([Body("b", Free("flight"), mass=1.0, inertia=ROUND)])
    q = jnp.asarray([1.0, 2.0, 3.0, 0.0, 1e-200, 0.0, 0.0])
    with pytest.raises(ValueError, match=r"'flight' has the length 1e-200, and is no rotation"):
        jaxdae.consistent_state(system, q, np.zeros(6))
    state = jaxdae.consistent_state(system, q.at[4].set(1e-100), np.zeros(6))
    np.testing.assert_allclose(system.poses(state.q)["b"].turn, np.diag([1.0, -1, -1]), atol=1e-15)


def welded(turn=(1, 0, 0, 0), axis=(1, 2, 3)):
    body = Body("b", Hinge("h", axis), mass=1.0, inertia=ROUND)
    return Multibody([body], [Weld("weld", None, "b", orientation=turn)])


def test_a_weld_has_twice_the_tangent_of_half_the_angle_along_its_axis():
    """Against rotation vectors of SciPy, up to almost half a turn."""
    wanted = Rotation.from_rotvec([0.3, -0.2, 0.5])
    system = Multibody(
        [Body("b", Ball("ball"), mass=1.0, inertia=ROUND)],
        [Weld("weld", None, "b", orientation=wanted.as_quat(scalar_first=True))],
    )
    residual = jax.jit(lambda t, q: system.position_constraints(t, q))
    for angle in (0.0, 1e-3, 1.0, 2.0, 3.1):
        off = angle * np.array([2.0, -1.0, 2.0]) / 3
        q = (wanted * Rotation.from_rotvec(off)).as_quat(scalar_first=True)
        tangent = 2 * np.tan(angle / 2) * np.array([2.0, -1.0, 2.0]) / 3
        # Round-off of matrices, as much larger as the tangent's slope.
        tolerance = 1e-14 * (1 + np.tan(angle / 2) ** 2)
        np.testing.assert_allclose(residual(0.0, q)[3:], tangent, rtol=0, atol=tolerance)


@pytest.mark.parametrize("angle", [2.0, 3.0])
def test_a_weld_that_is_almost_half_a_turn_off_is_closed_by_turning_back(angle):
    """Its residual grows up to half a turn: the other zero, of a sine, is none."""
    state = jaxdae.consistent_state(welded(), [angle], [0.0])
    assert float(state.q[0]) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("angle", "said"), [(np.pi, "180"), (np.pi - 1e-3, "179.94")])
def test_half_a_turn_is_refused_with_the_angle(angle, said):
    words = f"the loop 'weld' is {said} degrees away from where it is closed, .* Start nearer"
    for does in ("consistent_state", "simulate", "mobility"):
        with pytest.raises(ValueError, match=words):
            DOES[does](welded(), jaxdae.State([angle], [0.0]))
    assert float(assemble(welded(), [angle]).q[0]) / (2 * np.pi) % 1 == pytest.approx(0, abs=1e-9)


def test_a_weld_in_a_batch_fails_where_it_is_half_a_turn_off_alone():
    close = jax.vmap(lambda q: jaxdae.consistent_state(welded(), q, jnp.zeros(1)).q)
    found = np.asarray(close(jnp.array([[2.0], [np.pi], [0.5]])))[:, 0]
    np.testing.assert_allclose(found[[0, 2]], 0.0, atol=1e-9)
    assert np.isnan(found[1])


@pytest.mark.parametrize("kind", [HingeLoop, CylindricalLoop, PlanarLoop, SlideLoop, ScrewLoop])
def test_an_axis_that_is_reversed_is_refused_with_the_angle(kind):
    body = Body("body", Hinge("h", (1, 0, 0)), mass=1.0, inertia=ROUND)
    system = Multibody([body], [kind("loop", None, "body")])
    words = "the loop 'loop' is 180 degrees away from where it is closed"
    with pytest.raises(ValueError, match=words):
        jaxdae.consistent_state(system, [np.pi], [0.0])


@pytest.mark.parametrize(
    ("joint", "armature", "words"),
    [
        (Hinge, -0.1, "Hinge 'h': the armature is -0.1; it is an inertia, finite and not negative"),
        (Slide, np.inf, "Slide 'h': the armature is inf;"),
        (Ball, (0.1, -0.2, 0.1), "Ball 'h': the armature is (0.1, -0.2, 0.1);"),
        (Free, float("nan"), "Free 'h': the armature is nan;"),
    ],
)
def test_an_armature_that_is_no_inertia_is_refused_where_it_is_declared(joint, armature, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        joint("h", armature=armature)


@pytest.mark.parametrize(
    ("joint", "field", "shape", "count"),
    [(Hinge, "damping", (3,), 1), (Ball, "damping", (2,), 3), (Free, "armature", (3,), 6)],
)
def test_numbers_of_velocities_are_as_many_as_these(joint, field, shape, count):
    words = f"{joint.__name__} 'h': the {field} has the shape {shape}; it is one number, or one "
    with pytest.raises(ValueError, match=re.escape(f"{words}for each velocity, shape ({count},)")):
        joint("h", **{field: jnp.ones(shape)})


def test_an_armature_that_is_traced_passes():
    def mass(armature):
        body = Body("b", Hinge("h", armature=armature), mass=1.0, inertia=ROUND)
        return Multibody([body]).mass_matrix(0.0, jnp.zeros(1))[0, 0]

    assert float(jax.jit(mass)(2.0)) == pytest.approx(3.0)
    assert float(jax.grad(mass)(2.0)) == pytest.approx(1.0)


def test_velocities_have_names_and_units_in_tables_and_pictures():
    state = jaxdae.State([0.1, 1, 0, 0, 0], np.zeros(4))
    run = jaxdae.simulate(ARM, jaxdae.Multipliers(), state, t1=0.02, dt=0.01)
    named = ["shoulder", "wrist about x", "wrist about y", "wrist about z"]
    assert ARM.labels().velocities == tuple(named)
    table = run.to_dataframe()
    assert {*named} - {"shoulder"} < {*table.columns}
    assert table.attrs["units"]["wrist about x"] == "rad/s"
    figure = jaxdae.plotting.plot_histories(run, quantities=("v",))
    legends = [x.get_legend() for x in figure.axes]
    texts = [x.get_text() for legend in legends if legend is not None for x in legend.get_texts()]
    assert texts == named
    rates = Multibody([Body("b", Hinge("h"), mass=1.0, inertia=ROUND)]).labels()
    assert rates.velocities == ()


def test_more_names_of_velocities_than_velocities_are_refused():
    class Named(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ v

        def labels(self):
            return jaxdae.Labels(velocities=("a", "b"))

    with pytest.raises(ValueError, match=r"gives 2 velocities \(a, b\), .* has 1 velocity"):
        jaxdae.check_system(Named(), jaxdae.State([0.0], [0.0]))
