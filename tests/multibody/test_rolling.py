"""Rolling and skating bodies, against steady motions by hand and models that are declared."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.models import KnifeEdge
from jaxdae.multibody import (
    Body,
    Free,
    Hinge,
    Motor,
    Multibody,
    planar,
    PrescribedJoint,
    RollingSphere,
    RollingWheel,
    Skate,
    Slide,
)
from jaxdae.solvers import RK4

UP = np.array([0.0, 0.0, 1.0])


def _velocities(system, q, name, velocity, spin):
    """Those of a free body that moves so, in its own axes."""
    jac = jax.jacfwd(lambda v: jnp.concatenate(system.twists(q, v)[name]))(system.start().v)
    return jnp.asarray(np.linalg.lstsq(jac, np.concatenate([velocity, spin]))[0])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["plain", "native"])
def test_a_wheel_that_leans_rolls_on_a_circle(backend):
    """Steady motion of a heavy disk, by the balance of angular momentum about its centre.

    With the lean `b` of the axle from the vertical, the rate `W` around the circle and the spin `s`
    about the axle: `(C + m r^2) s W sin b = A W^2 sin b cos b - m g r cos b`, the speed of the
    centre `r s`. The axle goes around with `W`, and the centre on a circle of radius `r s / W`.
    """
    m, r, A, C, g, lean, W = 2.0, 0.3, 0.05, 0.08, 9.81, 1.1, 2.0
    sin, cos = np.sin(lean), np.cos(lean)
    s = (A * W**2 * sin * cos - m * g * r * cos) / ((C + m * r**2) * W * sin)
    system = Multibody(
        [Body("wheel", Free("wheel"), mass=m, inertia=(A, A, C))],
        [RollingWheel("rim", "wheel", axis=UP, radius=r)],
    )
    turn = Rotation.from_rotvec([lean, 0.0, 0.0])
    centre = np.array([0.0, 0.0, r * sin])
    q = jnp.asarray([*centre, *turn.as_quat(scalar_first=True)])
    v = _velocities(system, q, "wheel", [-r * s, 0.0, 0.0], [0.0, W * sin, s])
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), jaxdae.State(q, v), t1=0.5, dt=0.01, solver=RK4(),
        backend=backend,
    )  # fmt: skip
    around = Rotation.from_rotvec(0.5 * W * UP)
    middle = centre + np.cross(UP, turn.apply([-r * s, 0.0, 0.0])) / W
    axle = Rotation.from_quat(run.q[-1, 3:], scalar_first=True).apply(UP)
    # Errors of a method of order 4 at this step.
    np.testing.assert_allclose(run.q[-1, :3], middle + around.apply(centre - middle), atol=1e-6)
    np.testing.assert_allclose(axle, around.apply(turn.apply(UP)), atol=1e-6)
    assert system.labels().constraints == ("rim height", "rim along", "rim across")


def _acceleration(system, q, v, u=None):
    terms = jaxdae.evaluate(system, 0.0, q, v, u=u)
    zero = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, zero]])
    a = np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: len(v)]
    return a, terms


def test_a_sphere_rolls_down_a_slope_with_five_sevenths_of_the_weight():
    """Whatever its orientation and velocity; the normal is not along an axis."""
    slope, g, radius = 0.4, 9.81, 0.2
    normal = np.array([np.sin(slope), 0.0, np.cos(slope)])
    down = np.array([np.cos(slope), 0.0, -np.sin(slope)])
    system = Multibody(
        [Body("ball", Free("ball"), mass=1.5, inertia=(0.4 * 1.5 * radius**2,) * 3)],
        [RollingSphere("contact", "ball", other=(0.0, 3.0, 0.0), radius=radius, normal=normal)],
    )
    turn = Rotation.from_quat([0.5, -0.5, 0.5, 0.5], scalar_first=True)
    spin = np.array([1.0, 2.0, 3.0])
    velocity = radius * np.cross(turn.apply(spin), normal)
    q = jnp.asarray([*(radius * normal), 0.5, -0.5, 0.5, 0.5])
    v = _velocities(system, q, "ball", turn.inv().apply(velocity), spin)
    a, terms = _acceleration(system, q, v)
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-15)
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-14)
    np.testing.assert_allclose(a[:3], 5 / 7 * g * np.sin(slope) * down, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ratio", "share"), [("sphere", 0.4, 2 / 7), ("disk", 0.5, 1 / 3)])
def test_what_rolls_on_a_board_lags_behind_it(kind, ratio, share):
    """With the inertia `k m r^2` it has the share `k / (1 + k)` of the board's acceleration."""
    mass, radius, board, push = 1.5, 0.2, 4.0, 3.0
    contact = {"first": kind, "second": "board", "radius": radius, "other": (0.0, 0.0, 0.1)}
    loop = (
        RollingSphere("contact", **contact)
        if kind == "sphere"
        else RollingWheel("contact", **contact)
    )
    system = Multibody(
        [Body("board", Slide("x"), mass=board),
         Body(kind, Free(kind), mass=mass, inertia=(ratio * mass * radius**2,) * 3)],
        [loop], [Motor("push", "x")],
    )  # fmt: skip
    q = jnp.asarray([0.3, -0.7, 0.2, 0.1 + radius, 1.0, 0.0, 0.0, 0.0])
    a, terms = _acceleration(system, q, jnp.zeros_like(system.start().v), jnp.array([push]))
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-15)
    expected = push / (board + share * mass)
    np.testing.assert_allclose(a[:4], [expected, share * expected, 0, 0], atol=1e-12)


def test_a_sphere_on_a_turntable_is_turned_by_two_sevenths_of_its_rate():
    """`a = (2 / 7) W ez x v`, so that it runs on circles: of a table that turns at the rate `W`."""
    rate, radius, mass = 5.0, 0.2, 1.5
    system = Multibody(
        [Body("table", Hinge("angle"), mass=1.0, inertia=(1.0, 1.0, 1.0)),
         Body("ball", Free("ball"), mass=mass, inertia=(0.4 * mass * radius**2,) * 3)],
        [RollingSphere("contact", "ball", "table", radius=radius),
         PrescribedJoint("motor", "angle", lambda t: rate * t)],
    )  # fmt: skip
    place, velocity = np.array([0.7, -0.3, radius]), np.array([0.4, 0.9, 0.0])
    # No slip: v - r w x ez is the velocity of the table there.
    slip = velocity - rate * np.cross(UP, place)
    spin = np.cross(UP, slip) / radius
    q = jnp.asarray([0.0, *place, 1.0, 0.0, 0.0, 0.0])
    a, terms = _acceleration(system, q, jnp.asarray([rate, *velocity, *spin]))
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-14)
    np.testing.assert_allclose(a[1:4], 2 / 7 * rate * np.cross(UP, velocity), atol=1e-12)
    assert np.linalg.svd(terms.jac, compute_uv=False)[-1] > 0.1


@pytest.mark.slow
def test_equations_of_a_wheel_that_joints_say_already_are_left_out():
    """A cart on two wheels with one axle, kept upright: no redundant equation, two freedoms.

    It drives on a circle whose centre is on the line of the axle.
    """
    wheels = [
        Body(name, Hinge(name, (0, 1, 0)), "cart", (0, y, 0.1), mass=0.1, inertia=(1e-3,) * 3)
        for name, y in (("left", 0.2), ("right", -0.2))
    ]
    system = Multibody(
        [Body("cart", planar("cart"), mass=1.0, inertia=(0.1,) * 3), *wheels],
        [RollingWheel("left rim", "left", radius=0.1, equations=("across", "along")),
         RollingWheel("right rim", "right", radius=0.1, equations="along")],
    )  # fmt: skip
    q = jnp.array([0.3, 0.4, 0.7, 1.1, -2.3])
    left, right = 5.0, 3.0
    ahead, turning = 0.1 * (left + right) / 2, 0.1 * (right - left) / 0.4
    v = jnp.array([ahead * np.cos(0.7), ahead * np.sin(0.7), turning, left, right])
    assert system.labels().constraints == ("left rim along", "left rim across", "right rim along")
    residual = system.velocity_constraints(0.0, q, v)
    np.testing.assert_allclose(residual, 0.0, atol=1e-15)
    jac = jax.jacfwd(lambda v: system.velocity_constraints(0.0, q, v))(v)
    assert np.linalg.svd(jac, compute_uv=False)[-1] > 0.05


def test_a_skate_is_the_declared_knife_edge():
    """Also on a body that moves itself, where it is the velocity over it that has no component."""
    declared = KnifeEdge()
    pull = declared.gravity * np.sin(declared.slope)
    inertia = declared.inertia * np.array([0.5, 0.5, 1.0])
    edge = Body("edge", planar("edge"), mass=declared.mass, inertia=inertia)
    system = Multibody([edge], [Skate("blade", "edge")], gravity=(pull, 0.0, 0.0))
    q, along = jnp.array([0.3, -0.2, 0.8]), 1.3
    v = jnp.array([along * np.cos(0.8), along * np.sin(0.8), 2.0])
    found, terms = _acceleration(system, q, v)
    expected, _ = _acceleration(declared, q, v)
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-15)
    np.testing.assert_allclose(found, expected, atol=1e-13)
    assert system.labels().constraints == ("blade",)

    ice = Body("ice", Slide("drift", (0, 1, 0)), mass=5.0)
    system = Multibody([ice, edge], [Skate("blade", "edge", "ice")])
    carried = jnp.array([0.7, v[0], v[1] + 0.7, 2.0])
    residual = system.velocity_constraints(0.0, jnp.array([0.1, *q]), carried)
    np.testing.assert_allclose(residual, 0.0, atol=1e-15)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RollingWheel("w", "a", radius=0.0), "the radius of what rolls is 0.0 m; it is"),
        (lambda: RollingSphere("w", "a", radius=np.inf), "the radius of what rolls is inf m"),
        (
            lambda: RollingWheel("w", "a", equations="up"),
            "'height', 'along' and 'across', each once",
        ),
        (lambda: RollingWheel("w", "a", equations=()), "each once; got ()"),
        (lambda: RollingWheel("w", "a", equations=("along",) * 2), "got ('along', 'along')"),
        (
            lambda: Multibody([Body("leg", Hinge("hip"))], [Skate("s", "foot")]),
            "first of 's' is 'foot'; there are: leg",
        ),
        (
            lambda: Multibody([Body("foot", Hinge("h"))], [Skate("s", "foot", "foot")]),
            "first and second of 's' are both 'foot'",
        ),
    ],
)
def test_what_does_not_roll_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()
