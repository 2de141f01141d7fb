"""The problems of the benchmarks: as a declaration of this library, and in plain numbers."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from competitors.base import Problem

from jaxdae import Baumgarte, Multipliers, State, System
from jaxdae.models.andrews import AndrewsMechanism
from jaxdae.models.car_axis import CarAxis
from jaxdae.models.chain import Chain
from jaxdae.models.flexible_slider_crank import FlexibleSliderCrank
from jaxdae.models.four_bar import FourBar
from jaxdae.models.two_link import TwoLinkManipulator

# Decay rate of violations of the chains [1/s]; critically damped.
CHAIN_RATE = 20.0


# Where the suspended plate hangs, and its corners at the start [m]; nothing of it is symmetric.
ANCHORS = ((0.0, 0.0, 0.0), (1.0, 0.1, 0.05), (0.3, 0.9, -0.1))
CORNERS = ((0.25, -0.1, -0.8), (1.1, 0.3, -0.9), (0.2, 1.0, -0.7))


class SuspendedPlate(System):
    """A triangular plate on three rods of unlike length: a spatial mechanism of three freedoms.

    The coordinates are those of its corners, `q = (r_1, r_2, r_3)`, nine; the z axis points up. The
    points of the plate are `sum L_i r_i` with `sum L_i = 1`, so that its mass matrix is constant:

        T = m (sum |v_i|^2 + |sum v_i|^2) / 24,    V = m g sum z_i / 3

    Six constraints: the lengths of its sides and of its rods are those of the start.
    """

    mass: float = 1.0
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        del t, q
        each = v.reshape(3, 3)
        total = each.sum(0)
        return self.mass / 24 * (v @ v + total @ total)

    def potential_energy(self, t, q):
        del t
        return self.mass * self.gravity * (q[2] + q[5] + q[8]) / 3

    def position_constraints(self, t, q):
        del t
        return squared_lengths(q.reshape(3, 3), jnp.array(ANCHORS)) - squared_lengths(
            jnp.array(CORNERS), jnp.array(ANCHORS)
        )


def squared_lengths(corners, anchors):
    """Of three sides and three rods, shape (6,) [m^2]."""
    sides, rods = corners - jnp.roll(corners, -1, axis=0), corners - anchors
    return jnp.concatenate([jnp.sum(sides**2, axis=1), jnp.sum(rods**2, axis=1)])


# Of the Fekete problem: how many particles in a row, latitude, longitude before the first [rad].
ROWS = (
    (3, 3 * np.pi / 8, np.pi / 13),
    (7, np.pi / 8, np.pi / 29),
    (6, -2 * np.pi / 15, np.pi / 7),
    (4, -3 * np.pi / 10, np.pi / 17 - np.pi / 2),
)


class Particles(System):
    """Unit masses on the unit sphere that repel each other, in a medium of viscous friction.

    `V = -sum_(i<j) log |p_i - p_j|`, `D = |v|^2 / 4`: the Fekete problem of the test set.
    """

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def mass_matrix(self, t, q):
        del t
        return jnp.eye(q.size, dtype=q.dtype)

    def potential_energy(self, t, q):
        del t
        first, second = np.triu_indices(q.size // 3, 1)
        apart = q.reshape(-1, 3)[first] - q.reshape(-1, 3)[second]
        return -0.5 * jnp.sum(jnp.log(jnp.sum(apart**2, axis=1)))

    def dissipation(self, t, q, v):
        del t, q
        return 0.25 * v @ v

    def position_constraints(self, t, q):
        del t
        return jnp.sum(q.reshape(-1, 3) ** 2, axis=1) - 1.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, and the same problem for this library.

    Args:
        problem: in plain numbers.
        system: its declaration.
        formulation: multipliers with Baumgarte's stabilization, with matrices or for many bodies.
        state: start.
    """

    problem: Problem
    system: System
    formulation: Multipliers
    state: State


def two_link() -> Case:
    """Two-link manipulator from an exact start, stopped before its singular position (0.4933 s).

    The printed start is off the constraints by 1.25e-5 m, and codes that enforce the constraints
    exactly cannot take it; on the constraints every code has the same solution, known in closed
    form.
    """
    return _case("two-link", TwoLinkManipulator(), 0.4, [20.0, 10.0], [100.0, 25.0])


def andrews() -> Case:
    """Andrews' squeezing mechanism over the horizon of the test set."""
    return _case("andrews", AndrewsMechanism(), 0.03, [20.0] * 6, [100.0] * 6)


def chain(links: int, t1: float = 1.0, angle: float = 0.5 * np.pi) -> Case:
    """A chain of 1 m and 1 kg, let go from rest.

    Args:
        links: N.
        t1: end time [s].
        angle: of the straight chain at the start, from the downward vertical [rad].
    """
    K_D, K_P = [2 * CHAIN_RATE] * links, [CHAIN_RATE**2] * links
    system = Chain.uniform(links)
    start = system.straight(angle)
    return _case("chain", system, t1, K_D, K_P, f"chain of {links}", start)


def four_bar() -> Case:
    """The four-bar linkage of the ready models, critically damped."""
    K_D, K_P = [2 * CHAIN_RATE] * 2, [CHAIN_RATE**2] * 2
    return _case("four-bar", FourBar(), 1.0, K_D, K_P)


def car_axis() -> Case:
    """The car axis over the horizon of the test set, critically damped."""
    gains = [2 * CHAIN_RATE] * 2, [CHAIN_RATE**2] * 2
    return _case("car-axis", CarAxis(), 3.0, *gains)


def flexible_slider_crank() -> Case:
    """The slider-crank with an elastic rod over the horizon of the test set, critically damped."""
    gains = [2 * CHAIN_RATE] * 3, [CHAIN_RATE**2] * 3
    return _case("flexible-slider-crank", FlexibleSliderCrank(), 0.1, *gains)


def fekete() -> Case:
    """Twenty particles that come to rest on a sphere, over the horizon of the test set."""
    places = []
    for count, latitude, first in ROWS:
        angles = 2 * np.pi * np.arange(1, count + 1) / count + first
        flat = np.cos(latitude) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        places.append(np.column_stack([flat, np.full(count, np.sin(latitude))]))
    start = jnp.asarray(np.concatenate(places).ravel()), jnp.zeros(60)
    # As slow as the motion, so that violations do not shorten the steps of explicit methods.
    gains = [2.0] * 20, [1.0] * 20
    return _case("fekete", Particles(), 1000.0, *gains, given=start)


def plate() -> Case:
    """The suspended plate let go from rest, far from its equilibrium."""
    gains = [2 * CHAIN_RATE] * 6, [CHAIN_RATE**2] * 6
    start = jnp.array(CORNERS).ravel(), jnp.zeros(9)
    return _case("plate", SuspendedPlate(), 1.0, *gains, "suspended plate", start)


def _case(mechanism, system: Any, t1, K_D, K_P, name=None, given=None) -> Case:
    q, v = given or system.start()
    start, gains = [np.array(q), np.array(v)], [np.array(K_D), np.array(K_P)]
    problem = Problem(name or mechanism, mechanism, start[0], start[1], t1, gains[0], gains[1])
    formulation = Multipliers(Baumgarte(K_D=jnp.array(K_D), K_P=jnp.array(K_P)))
    return Case(problem, system, formulation, State(q, v))
