"""Points held at a distance, on lines, surfaces and curves; gears; prescribed motions."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from jaxdae.multibody import (
    Body,
    Free,
    GearPair,
    Hinge,
    HingeLoop,
    Multibody,
    Perpendicular,
    PointOnCurve,
    PointOnLine,
    PointOnPlane,
    PointOnSurface,
    PrescribedJoint,
    PrescribedPoint,
    RackAndPinion,
    Rod,
    RollingSphere,
    RollingWheel,
    ScrewLoop,
    Skate,
    Slide,
    SlideLoop,
    UniversalLoop,
)

TURN = Rotation.from_rotvec([0.4, -0.9, 0.3])
QUATERNION = TURN.as_quat(scalar_first=True)
AXIS, SPOT, END = np.array([0.36, 0.48, 0.8]), np.array([0.3, -0.2, 0.5]), np.array([0.1, 0.2, 0.4])


class Ellipsoid(eqx.Module):
    """A surface with parameters."""

    radii: jax.Array

    def __call__(self, x):
        return jnp.sum((x / self.radii) ** 2) - 1.0


def helix(x):
    """Radius 0.3, pitch `2 pi / 5`, along z."""
    return jnp.stack([x[0] - 0.3 * jnp.cos(5 * x[2]), x[1] - 0.3 * jnp.sin(5 * x[2])])


BETWEEN = {"first": "one", "second": "two", "anchor": SPOT, "other": END}
LOOPS = [
    Rod("rod", **BETWEEN, length=0.7),
    PointOnLine("line", **BETWEEN, axis=AXIS),
    PointOnPlane("plane", **BETWEEN, normal=AXIS),
    PointOnSurface("surface", **BETWEEN, function=Ellipsoid(jnp.array([1.0, 2.0, 3.0]))),
    PointOnCurve("curve", **BETWEEN, function=helix),
    Perpendicular("square", "one", "two", AXIS, SPOT),
    HingeLoop("hinge", **BETWEEN, axis=AXIS, other_axis=SPOT),
    SlideLoop("slide", **BETWEEN, axis=AXIS, orientation=QUATERNION),
    UniversalLoop("cross", **BETWEEN, axis=AXIS, other_axis=END),
    ScrewLoop("screw", **BETWEEN, axis=AXIS, pitch=-0.4, orientation=QUATERNION),
    GearPair("gears", "one", "two", axis=AXIS, other_axis=END, teeth=(3, -5), phase=0.3),
    RackAndPinion("rack", **BETWEEN, axis=AXIS, along=(0.8, -0.6, 0.0), radius=0.2),
    PrescribedPoint("path", "one", lambda t: jnp.stack([t, t**2, 0.0]), END, "zx"),
    PrescribedJoint("drive", "x", jnp.sin),
    RollingWheel("wheel", "one", "two", SPOT, END, 0.3, AXIS, axis=END),
    RollingSphere("sphere", "one", "two", SPOT, END, 0.3, AXIS),
    Skate("skate", "one", "two", SPOT, AXIS),
]  # fmt: skip
BODIES = [
    Body("one", Free("one"), mass=1.0, inertia=(1.0, 1.0, 1.0)),
    Body("two", Free("two"), mass=1.0, inertia=(1.0, 1.0, 1.0)),
    Body("car", Slide("x"), mass=1.0),
]
ALL = Multibody(BODIES, LOOPS)


def _residuals(numbers, rest, t, q, v):
    system = eqx.combine(numbers, rest)
    at = system.position_constraints(t, q), system.velocity_constraints(t, q, v)
    return jnp.concatenate(at)


def test_residuals_are_smooth_functions_of_time_positions_velocities_and_parameters():
    """Derivatives in both modes agree with central differences of order 4."""
    rng = np.random.default_rng(5)
    numbers, rest = eqx.partition(ALL, lambda x: eqx.is_inexact_array(x) or type(x) is float)
    numbers = jax.tree.map(jnp.asarray, numbers)
    q = np.asarray(ALL.start().q) + 0.5 * rng.normal(size=ALL.start().q.shape)
    v = rng.normal(size=ALL.start().v.shape)
    point = (numbers, jnp.asarray(0.7), jnp.asarray(q), jnp.asarray(v))
    way = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), point)

    def f(numbers, t, q, v):
        return _residuals(numbers, rest, t, q, v)

    def at(h):
        return jax.tree.map(lambda x, d: x + h * d, point, way)

    @jax.jit
    def both():
        values, forward = jax.jvp(f, point, way)
        weights = jnp.cos(jnp.arange(values.size))
        reverse = jax.grad(lambda x: f(*x) @ weights)(point)
        along = sum(
            jnp.sum(a * b) for a, b in zip(*map(jax.tree.leaves, (reverse, way)), strict=True)
        )
        return forward, forward @ weights, along

    forward, one, other = both()
    f, h = jax.jit(f), 1e-4
    near, far = (f(*at(x)) - f(*at(-x)) for x in (h, 2 * h))
    assert len(ALL.labels().constraints) == forward.size
    np.testing.assert_allclose(forward, (8 * near - far) / (12 * h), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(one, other, rtol=1e-11)


def _pose(place, turn):
    return jnp.asarray([*place, *turn.as_quat(scalar_first=True)])


def _places():
    """Of the point in the first body's axes, where each guide is met, by hand; and one beside."""
    side = np.array([0.8, -0.6, 0.0])
    return [
        (LOOPS[0], 0.7 * AXIS, 0.71 * AXIS, [0.01]),
        (LOOPS[1], 2.0 * AXIS, 2.0 * AXIS + 0.01 * side, None),
        (LOOPS[2], 2.0 * side, 2.0 * side + 0.01 * AXIS, [0.01]),
        (LOOPS[3], [0.0, 1.2, 2.4], [0.0, 1.2, 2.41], [(2.41**2 - 2.4**2) / 9]),
        (LOOPS[4], [0.3 * np.cos(2.0), 0.3 * np.sin(2.0), 0.4],
         [0.3 * np.cos(2.0), 0.3 * np.sin(2.0) - 0.01, 0.4], [0.0, -0.01]),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(5))
def test_points_are_where_they_are_held(case):
    """Zero there, independent, and of the size of the distance beside it."""
    loop, met, beside, expected = _places()[case]
    system = Multibody(BODIES[:2], [loop])
    one, two = Rotation.from_rotvec([0.3, 1.2, -0.5]), Rotation.from_rotvec([2.0, -0.2, 0.6])
    place = np.array([0.5, 0.6, -0.7])

    def residual(apart):
        origin = place + one.apply(SPOT + apart) - two.apply(END)
        q = jnp.concatenate([_pose(place, one), _pose(origin, two)])
        return system.position_constraints(0.0, q)[: len(loop.constraints({}))], q

    found, q = residual(np.asarray(met))
    np.testing.assert_allclose(found, 0.0, atol=1e-14)
    rows = jax.jacfwd(lambda q: system.position_constraints(0.0, q)[: len(found)])(q)
    assert np.linalg.svd(rows, compute_uv=False)[-1] > 0.1
    wrong = residual(np.asarray(beside))[0]
    if expected is None:
        np.testing.assert_allclose(np.linalg.norm(wrong), 0.01, rtol=1e-12)
    else:
        # The rod's residual is the wrong distance to first order.
        np.testing.assert_allclose(wrong, expected, rtol=0.01, atol=1e-15)


ROD = Body("rod", Hinge("angle"), mass=1.0, inertia=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Rod("r", "rod", length=0.0), "Rod: the length is 0.0 m; it is positive."),
        (lambda: ScrewLoop("s", "rod", pitch=0.0), "the pitch of a screw is 0.0 m each turn"),
        (lambda: RackAndPinion("r", "rod", radius=-1.0), "RackAndPinion: the radius is -1.0 m"),
        (lambda: GearPair("g", "rod", None, teeth=(1.5, 2)), "GearPair: teeth are two integers"),
        (lambda: GearPair("g", "rod", None, teeth=(0, 2)), "not zero, that of an internal gear"),
        (
            lambda: Multibody([ROD], [GearPair("g", "rod", None)]),
            "second and housing of 'g' are both the ground: it constrains nothing",
        ),
        (
            lambda: Multibody([ROD], [GearPair("g", "rod", None, "box")]),
            "housing of 'g' is 'box'; there are: rod.",
        ),
        (lambda: PrescribedPoint("p", None, jnp.sin), "PrescribedPoint 'p': the ground does not"),
        (
            lambda: Multibody([ROD], [PrescribedJoint("p", "knee", jnp.sin)]),
            "joint of 'p' is 'knee'; there are: angle.",
        ),
        (
            lambda: _start(PrescribedJoint("p", "angle", lambda t: jnp.zeros(2))),
            "the function of 'p' returned shape (2,); of the time it returns one number.",
        ),
        (
            lambda: _start(PrescribedPoint("p", "rod", lambda t: t)),
            "the function of 'p' returned shape (); of the time it returns a place, shape (3,).",
        ),
        (
            lambda: _start(PointOnSurface("s", "rod", function=lambda x: x)),
            "the function of 's' returned shape (3,); from a point of shape (3,) it returns one",
        ),
        (
            lambda: _start(PointOnCurve("c", "rod", function=lambda x: x[0])),
            "the function of 'c' returned shape (); from a point of shape (3,) it returns shape",
        ),
    ],
)
def test_what_holds_nothing_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def _start(loop):
    system = Multibody([ROD], [loop])
    return system.position_constraints(0.0, system.start().q)
