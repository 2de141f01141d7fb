"""The motion of a mechanism with exact loops."""

from typing import NamedTuple

import diffrax
import jax.numpy as jnp
import numpy as np

from jaxdae.formulations import Multipliers
from jaxdae.linalg.saddle_point import SingularityRobust
from jaxdae.multibody.system import Multibody
from jaxdae.reprs import shown
from jaxdae.results.mobility_along import MobilityAlong
from jaxdae.runs import simulate
from jaxdae.solvers.projected import Projected
from jaxdae.systems import State


class ExactMotion(NamedTuple):
    """A motion with exact loops.

    Args:
        q: coordinates, shape `(times, n)`.
        violation: largest residual of a loop [m or rad].
        mobility: degrees of freedom along it, and near-singular positions that it passes.
    """

    q: np.ndarray
    violation: float
    mobility: MobilityAlong

    def __repr__(self) -> str:
        return shown(self)


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
    inputs = jnp.asarray(ctrl, float)
    motion = simulate(
        system,
        Multipliers(solve=SingularityRobust()),
        state,
        t1=float(ts[-1]),
        solver=Projected(diffrax.Dopri8()),
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts, float)),
        controller=(lambda t, q, v, w: inputs) if inputs.size else None,
    )
    phi = np.asarray(motion.violation.phi)
    return ExactMotion(np.asarray(motion.q), float(np.abs(phi).max(initial=0.0)), motion.mobility)
