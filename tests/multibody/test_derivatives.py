"""Derivatives of motions of a closed mechanism by all its numbers, in two sets of coordinates.

A crank pushes a slider through a rod without mass, against a spring and a damper.
"""

import functools

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import (
    Body,
    Distance,
    Free,
    Hinge,
    HingeLoop,
    Marker,
    Multibody,
    Rod,
    Slide,
    SlideLoop,
    SpringDamper,
)
from jaxdae.solvers import RK4

DOWN, PHI, OMEGA = (0.0, -1.0, 0.0), 0.8, 3.0
# Height of the bearing, place of the rod's pin on the crank, length of the rod, mass, place of the
# centre of mass and inertia of the crank, mass of the slider, stiffness, relaxed length and damping
# of the spring.
NUMBERS = {
    "bearing": 0.1, "pin": 0.2, "rod": 0.5, "mass": 1.3, "centre": 0.05, "inertia": 0.03,
    "slider": 0.7, "stiffness": 40.0, "relaxed": 0.6, "damping": 0.8,
}  # fmt: skip
POINT = jnp.array([*NUMBERS.values()])
# The rod is shorter than the height of the pin: the slider is nowhere.
NOWHERE = POINT.at[2].set(0.1)


class Relative:
    """One coordinate each for crank and slider, and one equation of the rod."""

    @staticmethod
    def system(p):
        return Multibody([_crank(p, Hinge("crank", DOWN), p["bearing"]), _slider(p, Slide("x"))],
                         [_rod(p)], forces=[_spring(p)])  # fmt: skip

    @staticmethod
    def start(p):
        return jaxdae.State(*jax.jvp(functools.partial(_closed, p), (PHI,), (OMEGA,)))

    @staticmethod
    def end(run):
        return jnp.stack([run.q[-1, 1], run.v[-1, 0], run.v[-1, 1]])


class Absolute:
    """Place and quaternion of both, and eleven equations."""

    @staticmethod
    def system(p):
        place = jnp.stack([0.0, 0.0, p["bearing"]])
        bearing = HingeLoop("bearing", None, "crank", place, axis=DOWN)
        return Multibody([_crank(p, Free("crank")), _slider(p, Free("slider"))],
                         [bearing, SlideLoop("guide", None, "slider"), _rod(p)],
                         forces=[_spring(p)])  # fmt: skip

    @staticmethod
    def start(p):
        (_, x), (_, speed) = jax.jvp(functools.partial(_closed, p), (PHI,), (OMEGA,))
        crank = [0.0, 0.0, p["bearing"], jnp.cos(PHI / 2), 0.0, -jnp.sin(PHI / 2), 0.0]
        q = jnp.stack([*crank, x, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
        return jaxdae.State(q, jnp.zeros(12).at[4].set(-OMEGA).at[6].set(speed))

    @staticmethod
    def end(run):
        return jnp.stack([run.q[-1, 7], -run.v[-1, 4], run.v[-1, 6]])


def _crank(p, joint, height=0.0):
    across = p["inertia"] * jnp.array([0.5, 1.0, 0.5])
    place, centre = (jnp.stack(x) for x in ((0.0, 0.0, height), (p["centre"], 0.0, 0.0)))
    return Body("crank", joint, None, place, mass=p["mass"], centre=centre, inertia=across)


def _slider(p, joint):
    return Body("slider", joint, mass=p["slider"], inertia=(0.01, 0.01, 0.01))


def _rod(p):
    return Rod("rod", "crank", "slider", jnp.stack([p["pin"], 0.0, 0.0]), length=p["rod"])


def _spring(p):
    wall = Distance(Marker(None, (1.3, 0.0, 0.0)), Marker("slider"))
    return SpringDamper("spring", wall, p["stiffness"], p["relaxed"], p["damping"])


def _closed(p, phi):
    """Angle and slide, by the triangle that the rod closes."""
    height = p["bearing"] + p["pin"] * jnp.sin(phi)
    reach = p["pin"] * jnp.cos(phi) + jnp.sqrt(p["rod"] ** 2 - height**2)
    return jnp.stack([phi, reach])


def moved(numbers, coordinates, backend, adjoint=None):
    """Slide, rate of the angle and of the slide after a fifth of a second."""
    p = dict(zip(NUMBERS, numbers, strict=True))
    run = jaxdae.simulate(
        coordinates.system(p), jaxdae.Multipliers(), coordinates.start(p), t1=0.2, dt=0.01,
        solver=RK4(), backend=backend, adjoint=adjoint, throw=False,
    )  # fmt: skip
    return coordinates.end(run)


@pytest.fixture(scope="module")
def differences():
    """Central ones of fourth order of the native runs in relative coordinates."""
    h = 1e-3 * np.diag(POINT)
    sides = jnp.stack([POINT + k * x for k in (-2, -1, 1, 2) for x in h])
    values = jax.jit(jax.vmap(lambda x: moved(x, Relative, "native")))(sides)
    back, behind, before, ahead = np.split(np.asarray(values), 4)
    return (8 * (before - behind) - (ahead - back)).T / (12 * np.diag(h))


CASES = [
    pytest.param(Relative, "native"),
    pytest.param(Absolute, "native", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("coordinates", "backend"), CASES)
def test_gradients_of_a_batch_are_those_of_differences_beside_a_failed_member(
    coordinates, backend, differences
):
    weights = jnp.array([1.0, 0.3, -0.5])
    one = jax.value_and_grad(lambda x: moved(x, coordinates, backend) @ weights)
    values, slopes = jax.jit(jax.vmap(one))(jnp.stack([NOWHERE, POINT]))
    assert np.isnan(values[0])
    # Of fourth order at a thousandth of each number, and of the steps of two sets of coordinates.
    np.testing.assert_allclose(slopes[1], weights @ differences, rtol=1e-5, atol=1e-6)
    assert np.abs(slopes[1]).min() > 1e-5  # each number counts


@pytest.mark.parametrize(("coordinates", "backend"), CASES)
def test_forward_derivatives_of_a_batch_are_those_of_differences(coordinates, backend, differences):
    way = np.random.default_rng(0).normal(size=POINT.size) * POINT
    one = lambda x: moved(x, coordinates, backend, diffrax.ForwardMode())  # noqa: E731
    along = jax.jit(jax.vmap(lambda x: jax.jvp(one, (x,), (way,))))
    values, slopes = along(jnp.stack([POINT, NOWHERE]))
    assert np.isnan(values[1]).all()
    np.testing.assert_allclose(slopes[0], differences @ way, rtol=1e-5, atol=1e-6)
