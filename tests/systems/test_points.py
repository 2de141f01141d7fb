"""The record of named points, links and outlines."""

import re
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.systems import circle
from jaxdae.systems.base import System

PLACES = {"a": jnp.zeros(2), "b": jnp.ones(2), "c": jnp.array([0.0, 1.0])}


class Nothing(System):
    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


def test_a_system_has_no_points_unless_it_declares_them():
    assert Nothing().points(0.0, jnp.zeros(2)) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"links": (("a", "z"),)}, "links name 'z', which no place has; there are: a, b, c."),
        ({"lines": (("b",),)}, "one of lines needs 2 names; got ('b',)."),
        ({"trace": ("y", "z")}, "trace name 'y', 'z'"),
        ({"bodies": (("a", "b"),)}, "one of bodies needs 3 names; got ('a', 'b')."),
        ({"places": {}}, "Points needs at least one place; got none."),
        (
            {"places": {"a": jnp.zeros(2), "b": jnp.zeros(3)}},
            "the place 'b' has shape (3,); all are of shape (2,) in the plane, or all of shape "
            "(3,) in space.",
        ),
        (
            {"outlines": {"rim": jnp.zeros((5, 3))}},
            "the outline 'rim' has shape (5, 3); beside places of shape (2,) it is (corners, 2).",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        jaxdae.Points(**{"places": PLACES, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"links": ("ab",)}, "links, lines and bodies are tuples of names"),
        ({"bodies": ("abc",)}, "got the text 'abc' for one of them."),
        ({"trace": "b"}, 'trace and fixed are tuples of names, such as ("b",); got the text'),
    ],
)
def test_a_text_is_not_taken_for_names(fields, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        jaxdae.Points(PLACES, **fields)


def test_a_circle_keeps_its_distance():
    """In the plane, and in a plane of space: corners at the radius, their mean the centre."""
    flat = np.asarray(circle(np.array([1.0, 2.0]), 3.0))
    np.testing.assert_allclose(np.hypot(*(flat - [1.0, 2.0]).T), 3.0, rtol=1e-15)
    along, up = np.array([0.6, 0.8, 0.0]), np.array([0.0, 0.0, 1.0])
    round_ = np.asarray(circle(np.array([1.0, 2.0, 3.0]), 0.5, along, up))
    np.testing.assert_allclose(round_[0], [1.3, 2.4, 3.0], rtol=1e-15)
    offsets = round_ - [1.0, 2.0, 3.0]
    np.testing.assert_allclose(np.linalg.norm(offsets, axis=1), 0.5, rtol=1e-15)
    # Sums of 32 round-off errors.
    np.testing.assert_allclose(offsets.mean(axis=0), 0.0, atol=1e-15)
    np.testing.assert_allclose(offsets @ np.cross(along, up), 0.0, atol=1e-15)


class Drawn(System):
    """A pendulum whose drawing is the argument's."""

    draw: Callable = eqx.field(static=True)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def points(self, t, q):
        return self.draw(t, q)


def checked(draw, q=(1.0, 0.0)):
    jaxdae.check_system(Drawn(draw), jaxdae.State(jnp.array(q), jnp.zeros(2)))


def mass_at(x):
    return jaxdae.Points({"pivot": jnp.zeros(2), "mass": x}, links=(("pivot", "mass"),))


def test_a_declaration_with_points_is_checked_with_them():
    checked(lambda _, q: mass_at(q))
    checked(lambda *_: None)
    # Where they are traced, there is nothing to look at.
    jax.jit(lambda x: checked(lambda _, q: mass_at(q / x)) or x)(0.0)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda _, q: jaxdae.Points({"mass": q}, links=(("mass", "top"),)),
            "Drawn.points failed with ValueError: Points: links name 'top', which no place has; "
            "there are: mass. (line ",
        ),
        (
            lambda _, q: jaxdae.Points({"pivot": jnp.zeros(3), "mass": q}),
            "the place 'mass' has shape (2,); all are of shape (2,) in the plane, or all of shape "
            "(3,) in space.",
        ),
        (lambda _, q: mass_at(q if q[0] > 0 else -q), "write jnp.where(condition, a, b)"),
        (lambda _, q: mass_at(q * 1j), "Drawn.points: the place 'mass' returned complex numbers"),
        (
            lambda _, q: mass_at(q / q[1]),
            "Drawn.points: the place 'mass' is [inf nan] at q = [1. 0.] and t = 0, which cannot be "
            "drawn",
        ),
        (lambda _, q: mass_at(jnp.stack([q[0], q[2]])), "Drawn.points "),
    ],
)
def test_a_drawing_that_does_not_fit_is_found_by_the_check(draw, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        checked(draw)


def test_a_drawing_of_another_kind_is_refused_by_the_check():
    with pytest.raises(TypeError, match=re.escape("Drawn.points returned a dict; return jaxdae.P")):
        checked(lambda _, q: {"mass": q})
