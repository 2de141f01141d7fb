"""The problems of the benchmarks: as a declaration of this library, and in plain numbers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from competitors.base import Problem

from jaxdae import Baumgarte, Multipliers, State
from jaxdae.formulations import SparseMultipliers
from jaxdae.models.andrews import AndrewsMechanism
from jaxdae.models.base import AbstractModel
from jaxdae.models.chain import Chain
from jaxdae.models.two_link import TwoLinkManipulator

# Decay rate of violations of the chains [1/s]; critically damped.
CHAIN_RATE = 20.0


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
    system: AbstractModel
    formulation: Multipliers | SparseMultipliers
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


def _case(mechanism, system: AbstractModel, t1, K_D, K_P, name=None, given=None) -> Case:
    q, v = given or system.start()
    start, gains = [np.array(q), np.array(v)], [np.array(K_D), np.array(K_P)]
    problem = Problem(name or mechanism, mechanism, start[0], start[1], t1, gains[0], gains[1])
    formulation = Multipliers(Baumgarte(K_D=jnp.array(K_D), K_P=jnp.array(K_P)))
    return Case(problem, system, formulation, State(q, v))
