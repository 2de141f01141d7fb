"""What the ready systems look like: lengths, loops, rolling, reflection, against the declarations.

Positions are taken at random, off the constraints as well: identities that hold there hold along
every motion, and gaps of loops are the residuals themselves.
"""

import functools
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.models import MODELS
from jaxdae.models.arm import Plane, SurfaceArm
from jaxdae.models.ball_beam import BallBeam
from jaxdae.models.motor import ChargeDrive

# Sums and products of some ten numbers of size one.
ROUND_OFF: Any = {"rtol": 1e-13, "atol": 1e-14}
T = 0.4


@functools.cache
def model(name) -> Any:
    return MODELS[name].system()


def position(name, seed=7):
    """Coordinates near the start, off the constraints."""
    q = np.asarray(model(name).start()[0])
    return jnp.asarray(q + 0.3 * np.random.default_rng(seed).normal(size=q.size))


def drawn(name, q=None) -> Any:
    return model(name).points(T, position(name) if q is None else q)


def places(name, q=None) -> dict[str, Any]:
    return {x: np.asarray(y) for x, y in drawn(name, q).places.items()}


def rates(system, q, v, t=T):
    """Velocities of the points at a state."""
    return jax.jvp(lambda q: system.points(t, q).places, (q,), (v,))[1]


def test_a_circuit_says_that_it_has_no_shape():
    circuit = model("circuit")
    assert circuit.points(T, position("circuit")) is None
    assert circuit.points.__doc__ == "None: charges have no places."


@pytest.mark.parametrize("name", [x for x in MODELS if x != "circuit"])
def test_every_other_model_is_drawn(name):
    """Traceable, in single precision too; what is named exists; the ground does not move."""
    system, q = model(name), position(name)
    points = system.points(T, q)
    assert points is not None
    shapes = jax.eval_shape(lambda q: system.points(jnp.float32(T), q), q.astype(jnp.float32))
    assert {x.shape for x in shapes.places.values()} in ({(2,)}, {(3,)})
    assert points.trace
    later = system.points(T + 1.0, q + 0.2)
    for x in points.fixed:
        np.testing.assert_array_equal(points.places[x], later.places[x])


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("two-link", {("base", "elbow"): 1.0, ("elbow", "tip"): 0.5}),
        ("ball-beam", {("pivot", "end"): 0.42545, ("wheel", "joint"): 0.0254}),
        ("disk", {("contact", "_centre"): 0.5, ("_centre", "rim"): 0.5}),
        ("robot", {("left", "right"): 0.36, ("axle", "centre of mass"): 0.05}),
        ("sleigh", {("blade", "centre of mass"): 0.5}),
        ("knife-edge", {("_heel", "toe"): 2 * np.sqrt(0.2)}),
        ("mirror", {("O", "mirror"): 0.4}),
    ],
)
def test_links_are_as_long_as_the_parameters_say(name, lengths):
    at = places(name)
    found = {pair: np.linalg.norm(at[pair[1]] - at[pair[0]]) for pair in lengths}
    assert found == pytest.approx(lengths, rel=1e-13)


@pytest.mark.parametrize(
    ("name", "gaps"),
    [
        ("slider-crank", [("_rod's end", "slider")]),
        ("four-bar", [("_coupler's end", "rocker's pin")]),
        ("five-bar", [("tip", "_tip by the right")]),
        ("andrews", [("P", "_P of K3"), ("P", "_P of K4"), ("P", "_P of K6")]),
    ],
)
def test_gaps_of_loops_are_the_residuals(name, gaps):
    q = position(name)
    at = places(name, q)
    found = np.concatenate([at[x] - at[y] for x, y in gaps])
    np.testing.assert_allclose(found, model(name).position_constraints(T, q), **ROUND_OFF)


@pytest.mark.parametrize("name", ["two-link", "two-link-reachable"])
def test_the_tip_misses_its_target_by_the_residual(name):
    q = position(name)
    at = places(name, q)
    residual = np.asarray(model(name).position_constraints(T, q))
    np.testing.assert_allclose((at["tip"] - at["target"])[::-1], residual, **ROUND_OFF)


@pytest.mark.parametrize("name", ["pendulum", "chain", "arm", "surface-arm"])
def test_squared_lengths_of_links_are_off_by_the_residuals(name):
    q, system = position(name), model(name)
    at, (chain,) = places(name, q), system.points(T, q).links
    found = [np.sum((at[y] - at[x]) ** 2) for x, y in pairwise(chain)]
    wanted = {
        "pendulum": [1.0],
        "chain": [0.0625] * 4,
        "arm": [1.0, 0.64],
        "surface-arm": [1.0, 1.0],
    }[name]
    residual = np.asarray(system.position_constraints(T, q))[: len(found)]
    np.testing.assert_allclose(np.subtract(found, wanted), residual, **ROUND_OFF)


def test_the_rod_of_the_ball_and_beam_is_off_by_the_residual():
    q = position("ball-beam")
    at = places("ball-beam", q)
    found = np.sum((at["end"] - at["joint"]) ** 2) - 0.1**2
    np.testing.assert_allclose(found, model("ball-beam").position_constraints(T, q)[0], **ROUND_OFF)


@pytest.mark.parametrize("name", ["constant-speed", "appell-hamel", "kepler"])
def test_points_are_where_their_coordinates_say(name):
    q = position(name)
    np.testing.assert_array_equal(places(name, q)["point"], q)


def test_the_rim_of_a_rolling_disk_rests_where_it_touches():
    """The instantaneous centre: a point of the rim at the ground has no velocity."""
    system = model("disk")
    for theta, turns in ((0.0, 0.0), (0.7, 1.0), (-2.0, 3.0)):
        phi = 2 * np.pi * turns
        q = jnp.array([0.3, 0.2, theta, phi])
        v = jnp.array([1.5 * np.cos(theta), 1.5 * np.sin(theta), 0.4, 3.0])  # R phi' = 1.5
        np.testing.assert_allclose(system.velocity_constraints(T, q, v), 0.0, atol=1e-15)
        at, rate = system.points(T, q).places, rates(system, q, v)
        np.testing.assert_allclose(at["rim"], at["contact"], atol=1e-14)
        # Products of the rates with sin(2 pi k), some 1e-15.
        np.testing.assert_allclose(rate["rim"], 0.0, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "heel", "toe", "point"),
    [("sleigh", "_heel", "_toe", "blade"), ("knife-edge", "_heel", "toe", "contact")],
)
def test_blades_move_along_themselves(name, heel, toe, point):
    """On the constraint, after a time of the exact motion."""
    system = model(name)
    q, v = system.exact_motion(0.9)
    at, rate = system.points(T, q).places, rates(system, q, v)
    along = np.asarray(at[toe] - at[heel])
    along = along / np.linalg.norm(along)
    sideways = rate[point] - along * (along @ rate[point])
    assert np.linalg.norm(rate[point]) > 0.1
    np.testing.assert_allclose(sideways, 0.0, atol=1e-14)


def test_the_knife_edge_runs_down_its_slope():
    """Weight by the height of the contact: V = m g z."""
    system, q = model("knife-edge"), position("knife-edge")
    height = system.points(T, q).places["contact"][2]
    np.testing.assert_allclose(9.81 * height, system.potential_energy(T, q), rtol=1e-14)


def test_wheels_of_the_robot_move_along_themselves_at_the_speed_of_rolling():
    system = model("robot")
    q, v = system.exact_motion(0.7)
    at, rate = system.points(T, q).places, rates(system, q, v)
    for side, turning in (("right", v[3]), ("left", v[4])):
        along = (at[f"_{side} front"] - at[f"_{side} back"]) / 0.16
        np.testing.assert_allclose(rate[side], 0.08 * turning * along, **ROUND_OFF)


def test_the_ball_rolls_on_the_beam():
    """The ball's point at the contact moves with the beam's, where its centre is a radius above."""
    system = BallBeam(centre_height=0.0127)
    q, v = jnp.array([0.21, 0.3, 0.4]), jnp.array([0.5, -0.7, 0.2])
    at, rate = system.points(T, q).places, rates(system, q, v)
    spoke, turned = (np.asarray(x["_mark"] - x["ball"]) for x in (at, rate))
    spin = (spoke[0] * turned[1] - spoke[1] * turned[0]) / 0.0127**2
    across = np.array([-np.sin(0.3), np.cos(0.3)])
    touching = np.asarray(rate["ball"]) + spin * -0.0127 * np.array([-across[1], across[0]])
    np.testing.assert_allclose(touching, 0.21 * -0.7 * across, **ROUND_OFF)


@pytest.mark.parametrize("t", [0.0, 0.6, 2.5])
def test_the_mirror_sends_the_beam_to_its_target_where_the_program_holds(t):
    """Its law is that of reflection: the drawn ray hits C."""
    system = model("mirror")
    at = system.points(t, system.program_angle(t)[None]).places
    np.testing.assert_allclose(at["beam"], at["C"], rtol=1e-12, atol=1e-12)
    off = system.points(t, system.program_angle(t)[None] + 0.02).places
    assert np.linalg.norm(off["beam"] - off["C"]) > 0.02


def test_motors_are_drawn_as_their_mechanisms():
    system: Any = ChargeDrive(mechanism=MODELS["pendulum"].system(), driven=0)
    at = system.points(T, jnp.array([9.0, 8.0, 0.6, -0.8])).places
    np.testing.assert_array_equal(at["mass"], [0.6, -0.8])
    assert "pin" in places("motor")
    assert "pin" in places("motor-actuator")


def test_sections_of_the_ellipsoid_lie_on_it():
    outlines = drawn("surface-arm").outlines
    assert {*outlines} == {"surface xy", "surface xz", "surface yz"}
    surface = model("surface-arm").surface
    for curve in outlines.values():
        np.testing.assert_allclose(jax.vmap(surface)(curve), 0.0, atol=1e-14)
    plane = SurfaceArm(Plane(offset=0.5))
    assert plane.points(T, jnp.arange(6.0)).outlines == {}
