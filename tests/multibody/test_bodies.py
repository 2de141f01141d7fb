"""Mechanisms of bodies, joints and loops, against those declared by formulas."""

import re

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.models import FourBar
from jaxdae.multibody import Ball, Body, Connection, Coupling, Free, Hinge, Motor, Multibody, Slide
from jaxdae.solvers import RK4

UP = (0.0, 0.0, 1.0)


def linkage(of: FourBar, axes: str = "xyz") -> Multibody:
    """The same in space: crank and coupler in a row, the rocker on its own pivot."""
    a, b, c, d = of.lengths
    pivot = d * np.array([np.cos(of.tilt), np.sin(of.tilt), 0.0])
    mass, spot = of.masses[1] + of.load, np.asarray(of.point)
    centre = (of.masses[1] * np.asarray(of.centres[1]) + of.load * spot) / mass
    apart = [np.asarray(x) - centre for x in (of.centres[1], spot)]
    inertia = of.inertias[1] + of.masses[1] * apart[0] @ apart[0] + of.load * apart[1] @ apart[1]
    parts = [
        ("crank", None, (0, 0, 0), of.masses[0], of.centres[0], of.inertias[0]),
        ("coupler", "crank", (a, 0, 0), mass, centre, inertia),
        ("rocker", None, pivot, of.masses[2], of.centres[2], of.inertias[2]),
    ]
    return Multibody(
        [
            Body(name, Hinge(f"{name}'s", UP), parent, place, mass=float(m),
                 centre=(*s, 0.0), inertia=(1.0, 1.0, i))
            for name, parent, place, m, s, i in parts
        ],
        [Connection("pin", "coupler", "rocker", (b, 0, 0), (c, 0, 0), axes)],
        [Motor("torque", "crank's")],
        gravity=(0.0, -of.gravity, 0.0),
    )  # fmt: skip


def _accelerations(system, q, v, u):
    terms = jaxdae.evaluate(system, 0.0, q, v, u=u)
    zero = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, zero]])
    return np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: len(v)]


@pytest.mark.slow
def test_a_four_bar_of_bodies_moves_as_the_declared_one():
    """A loop in space has a residual that is always zero in a plane: its rank is found.

    The coupler's angle is counted from the crank.
    """
    declared = FourBar()
    q, _ = declared.start()
    bodies, rates = linkage(declared), jnp.array([q[0], q[1] - q[0], q[2]])
    short = {"t1": 0.1, "dt": 0.01, "solver": RK4(), "backend": "plain"}
    rest = jnp.zeros(3)
    run = jaxdae.simulate(bodies, jaxdae.Multipliers(), jaxdae.State(rates, rest), **short)
    same = jaxdae.simulate(declared, jaxdae.Multipliers(), jaxdae.State(q, rest), **short)
    assert run.held_rank == 2
    assert linkage(declared, "yx").labels().constraints == ("pin y", "pin x")
    np.testing.assert_allclose(run.q[:, 0], same.q[:, 0], rtol=0, atol=1e-11)


def test_a_free_body_spins_with_constant_momentum():
    """Euler's equations: I omega' = (I omega) x omega, and nothing pulls at its place."""
    moments = np.array([1.0, 2.0, 3.0])
    system = Multibody([Body("top", Free("top"), mass=2.0, inertia=moments)], gravity=(0, 0, 0))
    q = jnp.asarray(system.start().q).at[3:].set(jnp.array([0.5, -0.5, 0.5, 0.5]))
    omega = np.array([0.3, -0.2, 0.9])
    v = jnp.asarray([0.4, -0.1, 0.2, *omega])
    a = _accelerations(system, q, v, jnp.zeros(0))
    np.testing.assert_allclose(a[:3], 0.0, atol=1e-13)
    np.testing.assert_allclose(moments * a[3:], np.cross(moments * omega, omega), rtol=1e-12)


ROD = Body("rod", Hinge("angle"), mass=1.0, inertia=(1.0, 1.0, 1.0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Multibody([ROD, ROD]), "two bodies are called 'rod'"),
        (
            lambda: Multibody([ROD, Body("arm", Hinge("angle"), "rod")]),
            "two joints are called 'angle'",
        ),
        (lambda: Multibody([Body("arm", (), "leg")]), "the parent of 'arm' is 'leg'; there are: "),
        (
            lambda: Multibody([ROD], motors=[Motor("u", "knee")]),
            "the joint of motor 'u' is 'knee'; there are: angle.",
        ),
        (lambda: Multibody([ROD], [Connection("pin", "bar")]), "first of 'pin' is 'bar'"),
        (lambda: Multibody([ROD], [Coupling("c", "angle", "x")]), "by of 'c' is 'x'"),
        (
            lambda: Multibody([Body("top", (Free("f"), Hinge("h")))]),
            "the body 'top' is free; then it has no other joint",
        ),
        (lambda: Body("a", Hinge("h"), position=(1.0, 2.0)), "has 3 components; got shape (2,)"),
        (lambda: Body("a", Hinge("h"), orientation=(1.0, 0.0)), "has 4 components"),
        (lambda: Hinge("h", axis=(0, 0, 0)), "an axis has a direction; got [0.0, 0.0, 0.0]: give"),
        (lambda: Body("a", orientation=(0, 0, 0, 0)), "a quaternion has a direction; got [0.0"),
        (lambda: Coupling("c", "x", coefficients=()), "the coefficients are one number or several"),
        (
            lambda: Multibody([Body("a", Ball("b")), Body("c", Hinge("b e0"))]),
            "two coordinates are called 'b e0'",
        ),
        (lambda: Connection("pin", "a", axes="xx"), "axes are some of 'xyz', each once; got 'xx'"),
        (lambda: Body("a", Hinge("h"), inertia=1.0), "the inertia has shape (3, 3), or (3,)"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


@pytest.mark.parametrize("joint", [Hinge("x", (0, 3, 4)), Slide("x", (0, 3, 4))])
def test_the_length_of_an_axis_never_matters(joint):
    """Also of one that an optimizer changes, or that is differentiated by."""
    longer = eqx.tree_at(lambda x: x.axis, joint, 7.0 * joint.axis)
    q = jnp.array([0.3])
    for one, same in zip((*joint.pose(q), *joint.twist(q, q)),
                         (*longer.pose(q), *longer.twist(q, q)), strict=True):  # fmt: skip
        np.testing.assert_allclose(one, same, rtol=0, atol=1e-15)


def test_without_joints_or_motors_it_is_fixed_and_still():
    system = Multibody([ROD, Body("flag", (), "rod", position=(0.0, 0.0, 1.0), mass=1.0)])
    state = system.start()
    jaxdae.check_system(system, state)
    terms = jaxdae.evaluate(system, 0.0, state.q, state.v)
    np.testing.assert_allclose(terms.mass, [[1.0]])
    assert system.points(0.0, state.q).links == (
        ("ground", "rod"),
        ("rod", "flag"),
        ("flag", "_centre of flag"),
    )
