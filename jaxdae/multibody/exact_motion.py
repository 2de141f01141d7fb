"""A mechanism with exact loops: its rank and degrees of freedom, and its motion."""

from typing import NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxdae.diagnosis.failure import RANK_TOLERANCE
from jaxdae.diagnosis.findings import NearSingularity
from jaxdae.diagnosis.singularities import near_singularities_along
from jaxdae.diagnosis.starts import start_rank
from jaxdae.formulations import Multipliers
from jaxdae.linalg.rank import numerical_rank
from jaxdae.linalg.saddle_point import SingularityRobust
from jaxdae.multibody.system import Multibody
from jaxdae.reprs import shown
from jaxdae.runs import simulate
from jaxdae.solvers.projected import Projected
from jaxdae.systems import State


class Mobility(NamedTuple):
    """Degrees of freedom of a mechanism where it starts.

    Args:
        degrees_of_freedom: velocities that the loops leave independent.
        rank: number of independent equations of loops.
        equations: number of equations of loops.
        redundant: sets of equations that depend on each other, by name; one of each set is
            superfluous. An equation by itself says nothing.
        singular: whether the rank is larger around the start.
    """

    degrees_of_freedom: int
    rank: int
    equations: int
    redundant: tuple[tuple[str, ...], ...]
    singular: bool

    def __repr__(self) -> str:
        return shown(self)


class ExactMotion(NamedTuple):
    """A motion with exact loops.

    Args:
        qpos: coordinates, shape `(times, n)`.
        violation: largest residual of a loop [m or rad].
        near_singular: near-singular positions that it passes.
        typical: median of the least singular value of the constraint Jacobian along it.
    """

    qpos: np.ndarray
    violation: float
    near_singular: tuple[NearSingularity, ...]
    typical: float

    def __repr__(self) -> str:
        return shown(self)


def mobility(system: Multibody, state: State) -> Mobility:
    """Rank and degrees of freedom at a state on the constraints."""
    start = start_rank(system, 0.0, state)
    count, n = start.jac.shape
    labels = system.labels()
    closed = sum(len(x) for x in _loop_names(system))
    result = numerical_rank(start.jac, RANK_TOLERANCE)
    sets = tuple(tuple(map(labels.constraint, x)) for x in result.dependent_sets)
    # Beside loops there are lengths of Euler parameters, which are independent of all.
    rank = start.rank - (count - closed)
    return Mobility(n - start.rank, rank, closed, sets, not start.regular)


def _loop_names(system: Multibody) -> list[tuple]:
    units = {x.name: x.coordinates()[0][1] for x in system.joints()}
    return [x.constraints(units) for x in system.loops]


def exact_motion(system: Multibody, state: State, ctrl: np.ndarray, ts: np.ndarray) -> ExactMotion:
    """The motion with exact loops under held inputs, to the tolerance of adaptive steps.

    Every step and every row is projected onto the loops, and singular positions are stepped across.

    Args:
        system: as read from a file.
        state: on the loops.
        ctrl: inputs, shape `(nu,)`.
        ts: times of the rows [s], the first is that of the state.

    Raises:
        SimulationError: where the motion cannot go on, which says why.
    """
    formulation, inputs = Multipliers(solve=SingularityRobust()), jnp.asarray(ctrl, float)
    motion = simulate(
        system,
        formulation,
        state,
        t1=float(ts[-1]),
        solver=Projected(diffrax.Dopri8()),
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts, float)),
        controller=(lambda t, q, v, w: inputs) if inputs.size else None,  # noqa: ARG005
    )
    rates = State(np.asarray(motion.q), np.asarray(motion.coordinate_rates))
    passed, typical = near_singularities_along(system, formulation, np.asarray(motion.ts), rates)
    phi = np.asarray(motion.violation.phi)
    return ExactMotion(
        np.asarray(motion.q), float(np.abs(phi).max(initial=0.0)), tuple(passed), float(typical)
    )
