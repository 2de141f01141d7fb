"""Joints that close loops, against the same joints in a tree, and against known motions."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.multibody import (
    AbstractLoop,
    assemble,
    AssemblyError,
    Ball,
    Body,
    Connection,
    cylindrical,
    CylindricalLoop,
    Free,
    Hinge,
    HingeLoop,
    Multibody,
    planar,
    PlanarLoop,
    reactions_at,
    Screw,
    ScrewLoop,
    Slide,
    SlideLoop,
    universal,
    UniversalLoop,
    Weld,
)

# Of each pair: the second body's pose in the first, and its axis and anchor in its own axes.
PLACE, TURN = np.array([0.3, -0.2, 0.5]), Rotation.from_rotvec([0.4, -0.9, 0.3])
QUATERNION = TURN.as_quat(scalar_first=True)
AXIS, PIN, ANCHOR = np.array([0.36, 0.48, 0.8]), np.array([0.8, -0.6, 0.0]), np.array([0.1, 0.2, 0])
SPOT = PLACE + TURN.apply(ANCHOR)
PITCH = 0.3
POINTS = {"anchor": SPOT, "other": ANCHOR}
THERE = {"axis": TURN.apply(AXIS)}
AXES = {"axis": TURN.apply(AXIS), "other_axis": AXIS}
NORMALS = {"normal": TURN.apply(AXIS), "other_normal": AXIS}
# Name, joints in the tree, the joint that closes a loop, its number of equations.
PAIRS = [
    ("hinge", Hinge("hinge", AXIS, anchor=ANCHOR),
     HingeLoop("hinge", "base", "hinge", **POINTS, **AXES), 5),
    ("slide", Slide("slide", AXIS),
     SlideLoop("slide", "base", "slide", **POINTS, **THERE, orientation=QUATERNION), 5),
    ("shaft", cylindrical("shaft", AXIS, ANCHOR),
     CylindricalLoop("shaft", "base", "shaft", **POINTS, **AXES), 4),
    ("cross", universal("cross", AXIS, PIN, ANCHOR),
     UniversalLoop("cross", "base", "cross", **POINTS, **THERE, other_axis=PIN), 4),
    ("plane", planar("plane", AXIS), PlanarLoop("plane", "base", "plane", **POINTS, **NORMALS), 3),
    ("ball", Ball("ball", ANCHOR), Connection("ball", "base", "ball", **POINTS), 3),
    ("screw", Screw("screw", AXIS, anchor=ANCHOR, pitch=PITCH),
     ScrewLoop("screw", "base", "screw", **POINTS, **THERE, pitch=PITCH,
               orientation=QUATERNION), 5),
    ("fixed", (), Weld("fixed", "base", "fixed", **POINTS, orientation=QUATERNION), 6),
]  # fmt: skip


def _body(name, joints, parent=None, place=(0, 0, 0), orientation=(1, 0, 0, 0)):
    return Body(name, joints, parent, place, orientation, 1.3, (0.1, -0.2, 0.05), (0.2, 0.3, 0.4))


TREE = Multibody(
    [_body("base", Free("base")),
     *(_body(name, joints, "base", PLACE, QUATERNION) for name, joints, _, _ in PAIRS)],
)  # fmt: skip
SPACE = Multibody(
    [_body(name, Free(name)) for name in ("base", *(x[0] for x in PAIRS))], [x[2] for x in PAIRS]
)


def _state_of_tree():
    """Large angles; the screw has made two turns."""
    rng = np.random.default_rng(3)
    q = np.asarray(TREE.start().q) + rng.normal(size=TREE.start().q.shape)
    v = rng.normal(size=TREE.start().v.shape)
    q[TREE.labels().coordinates.index("screw")] = 13.0
    return jnp.asarray(q), jnp.asarray(v)


@jax.jit
def _motion(q, v):
    """Poses and twists of the bodies of the tree."""
    poses, twists = TREE.poses(q), TREE.twists(q, v)
    names = [x.name for x in SPACE.bodies]
    return [poses[x] for x in names], [twists[x] for x in names]


def _in_space(q, v):
    """The same motion in coordinates of free bodies."""
    poses, twists = _motion(q, v)
    turns = [Rotation.from_matrix(x.turn) for x in poses]
    own = [[*x.place, *y.as_quat(scalar_first=True)] for x, y in zip(poses, turns, strict=True)]
    moving = [[*x.turn @ y.velocity, *y.spin] for x, y in zip(poses, twists, strict=True)]
    return jnp.asarray(np.concatenate(own)), jnp.asarray(np.concatenate(moving))


def _twists(system, q, v):
    twists = system.twists(q, v)
    return jnp.concatenate([jnp.concatenate(twists[x.name]) for x in SPACE.bodies])


def _accelerations(system, q, v):
    """Of all bodies, from Gauss's principle, and the Jacobian of all constraints."""
    terms = jaxdae.evaluate(system, 0.0, q, v)
    zero = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, zero]])
    a = np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: len(v)]

    @jax.jit
    def of_bodies(q, v, a):
        motion = system.rate(0.0, q, v), a
        return jax.jvp(lambda q, v: _twists(system, q, v), (q, v), motion)[1]

    return of_bodies(q, v, jnp.asarray(a)), terms


@pytest.fixture(scope="module")
def star():
    """A free base with a body on each joint: in relative and in absolute coordinates."""
    state = _state_of_tree()
    return state, _in_space(*state)


@pytest.mark.slow
def test_joints_that_close_loops_are_those_of_a_tree(star):
    """The same accelerations; with as many equations as the joints take freedoms, independent."""
    (q, v), (own, own_v) = star
    expected, _ = _accelerations(TREE, q, v)
    found, terms = _accelerations(SPACE, own, own_v)
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-14)
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-13)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_each_joint_has_as_many_independent_equations_as_it_takes_freedoms(star):
    _, (own, _) = star
    at = 0

    @jax.jit
    def jacobian(v):
        """Of the rates of all residuals, by velocities."""
        return jax.jacfwd(
            lambda v: jax.jvp(
                lambda q: SPACE.position_constraints(0.0, q), (own,), (SPACE.rate(0.0, own, v),)
            )[1]
        )(v)

    jac = jacobian(SPACE.start().v)
    for name, _, loop, count in PAIRS:
        rows = loop.constraints({})
        assert len(rows) == len({*rows}) == count
        singular = np.linalg.svd(jac[at : at + count], compute_uv=False)
        assert singular[-1] > 0.1 * min(1.0, PITCH), (name, singular)
        at += count


@pytest.mark.parametrize(
    ("loop", "apart", "angle"),
    [
        (HingeLoop("hinge", None, "two", axis=AXIS), 0.0, np.pi * PIN),
        (PlanarLoop("plane", None, "two", normal=AXIS), 0.0, np.pi * PIN),
        (SlideLoop("slide", None, "two", axis=AXIS), 0.0, np.pi * AXIS),
        (SlideLoop("slide", None, "two", axis=AXIS), 0.0, np.pi * PIN),
        (ScrewLoop("screw", None, "two", axis=AXIS, pitch=PITCH), 0.0, np.pi * AXIS),
        (ScrewLoop("screw", None, "two", axis=AXIS, pitch=PITCH), 1.5 * PITCH, 0.0 * AXIS),
    ],
)
def test_half_a_turn_is_no_assembly(loop, apart, angle):
    """Residuals grow up to there, where sines would vanish again."""
    sizes = []
    for fraction in (0.5, 0.8, 0.999):
        turn = Rotation.from_rotvec(fraction * angle).as_quat(scalar_first=True)
        # A screw is displaced from one pitch, where another thread fits.
        place = (1.0 if apart else 0.0) * PITCH + fraction * (apart - PITCH if apart else 0.0)
        system = Multibody([_body("two", Free("two"))], [loop])
        q = jnp.asarray([*(place * AXIS), *turn])
        sizes.append(np.linalg.norm(system.position_constraints(0.0, q)))
    assert 0.1 * PITCH < sizes[0] < sizes[1] < sizes[2]
    assert sizes[2] > 10


def test_a_guide_is_assembled_from_half_a_turn_away():
    """Where its residual has no value; nowhere near, with a single place to begin from."""
    guide = SlideLoop("guide", None, "two", axis=(1, 0, 0))
    system = Multibody([_body("two", Free("two"))], [guide])
    guess = [0.3, 1.0, 2.0, 0.0, 1.0, 0.0, 0.0]
    closed = assemble(system, guess)
    # Anywhere along the guide; the length of a quaternion does not matter.
    np.testing.assert_allclose([*closed.q[1:3], *closed.q[4:]], 0.0, atol=1e-9)
    with pytest.raises(AssemblyError, match="not finite in any of the 1 places"):
        assemble(system, guess, starts=1)


def test_a_nut_turns_as_it_falls():
    """`s'' = -m g / (m + I (2 pi / p)^2)`, and its energies are those of its dynamics."""
    mass, moment, pitch = 1.3, 0.02, -0.2
    nut = Body("nut", Screw("angle", pitch=pitch), mass=mass, inertia=(moment,) * 3)
    system = Multibody([nut])
    state = jaxdae.State([40.0], [-3.0])
    jaxdae.check_system(system, state)
    np.testing.assert_allclose(system.poses(state.q)["nut"].place, [0, 0, pitch * 40 / (2 * np.pi)])
    terms = jaxdae.evaluate(system, 0.0, state.q, state.v)
    falling = pitch / (2 * np.pi) * terms.force / terms.mass[0]
    expected = -9.81 * mass / (mass + moment * (2 * np.pi / pitch) ** 2)
    np.testing.assert_allclose(falling, expected, rtol=1e-14)


def test_rows_of_joints_have_directions():
    """A plane's second direction completes a right-handed frame; both are in the plane."""
    one, two, turn = planar("table", (0, -2, 0), (3, 0, 0))
    np.testing.assert_allclose([one.axis, two.axis, turn.axis], [[1, 0, 0], [0, 0, 1], [0, -1, 0]])
    one, two, _ = planar("table", AXIS)
    np.testing.assert_allclose(np.cross(one.axis, two.axis), AXIS, atol=1e-15)
    names = [x.name for x in (*cylindrical("a"), *universal("b"), *planar("c"))]
    assert names == ["a along", "a about", "b 1", "b 2", "c 1", "c 2", "c about"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: universal("u", AXIS, (1, 0, 0)), "the directions of universal('u') are 1.203 rad"),
        (lambda: planar("p", AXIS, AXIS), "planar('p') are 0 rad apart; they are perpendicular"),
        (lambda: Screw("s", pitch=np.nan), "the pitch of a screw is nan m each turn"),
        (lambda: SlideLoop("s", "a", orientation=(0, 0, 0, 0)), "a quaternion has a direction"),
        (lambda: HingeLoop("h", "a", other_axis=(0, 0, 0)), "an axis has a direction"),
        (
            lambda: Multibody([Body("a", Hinge("x"))], [HingeLoop("h", None)]),
            "first and second of 'h' are both the gro",
        ),
    ],
)
def test_joints_without_directions_are_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


@pytest.mark.slow
def test_reactions_in_closing_joints_are_those_in_a_tree(star):
    """On the base, and back on the bodies; what needs less than six equations is unique."""
    (q, v), (own, own_v) = star

    def found(system, q, v):
        terms = jaxdae.evaluate(system, 0.0, q, v)
        c, n = terms.jac.shape
        matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, np.zeros((c, c))]])
        x = np.linalg.solve(matrix, np.concatenate([terms.force, -terms.gamma]))
        return reactions_at(system, 0.0, q, v, x[:n], x[n:])

    tree, space = found(TREE, q, v), found(SPACE, own, own_v)
    assert space.indeterminate == tree.indeterminate == ()
    poses = SPACE.poses(own)
    last = {x.name: x.joints[-1].name for x in TREE.bodies if x.joints}
    for name, joint in [(k, x) for k, x in last.items() if k != "base"]:
        one, other = tree.joints[joint], space.loops[name]
        np.testing.assert_allclose(one.force, -other.force, atol=1e-9)
        # About the same point: of a slide the body's origin, which is where the anchor is not.
        at = next(x for x in TREE.joints() if x.name == joint).at
        place = poses[name].point(jnp.zeros(3) if at is None else at)
        shift = poses["base"].point(jnp.asarray(SPOT)) - place
        moment = other.moment + np.cross(shift, other.force)
        np.testing.assert_allclose(one.moment, -moment, atol=1e-9)


class LevelPoints(AbstractLoop):
    """Two bodies have the same height."""

    name: str = eqx.field(static=True)
    first: str = eqx.field(static=True)
    second: str = eqx.field(static=True)

    def residuals(self, t, poses, values):
        return (poses[self.first].place - poses[self.second].place)[2:]

    def constraints(self, units):
        return ((self.name, "m"),)


def test_a_loop_may_be_declared():
    """By its residuals and their names; bodies that it names must exist."""
    bodies = [Body("one", Slide("x", (0, 0, 1)), mass=1.0)]
    bodies += [Body("two", Slide("y", (0.6, 0, 0.8)), mass=2.0)]
    system = Multibody(bodies, [LevelPoints("level", "one", "two")])
    jaxdae.check_system(system, jaxdae.State([0.8, 1.0], [0.8, 1.0]))
    terms = jaxdae.evaluate(system, 0.0, jnp.array([0.8, 1.0]), jnp.array([0.8, 1.0]))
    np.testing.assert_allclose([*terms.phi, *terms.phi_dot], 0.0, atol=1e-15)
    np.testing.assert_allclose(terms.jac, [[1.0, -0.8]], atol=1e-15)
    assert system.labels().constraints == ("level",)
    with pytest.raises(ValueError, match="second of 'level' is 'three'; there are: one, two"):
        Multibody(bodies, [LevelPoints("level", "one", "three")])
