"""What a ready system is: its class, and what the commands run it with."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations import AbstractFormulation, Baumgarte, Multipliers
from jaxdae.systems import State, System


@dataclasses.dataclass(frozen=True)
class Reference:
    """Published numbers of a model, as Python floats, which lose no digit in single precision.

    Args:
        quantity: what is known.
        source: where it comes from.
        t: time the numbers belong to [s].
        q: coordinates [system's units], n numbers.
        v: velocities, n numbers.
        a: accelerations, n numbers.
        multipliers: multipliers lam of `M a + J^T lam = f`, m numbers.
    """

    quantity: str
    source: str
    t: float
    q: Sequence[float]
    v: Sequence[float]
    a: Sequence[float]
    multipliers: Sequence[float]


class AbstractModel(System):
    """A ready system."""

    @abc.abstractmethod
    def start(self) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """Consistent coordinates and velocities at t = 0, each of shape (n,)."""

    def actuators(self) -> Float[Array, " k"]:
        """Actuator state at t = 0, shape (k,); empty unless the model has actuators."""
        return jnp.zeros((0,))


class AbstractSolvedModel(AbstractModel):
    """A ready system whose motion is known in closed form."""

    @abc.abstractmethod
    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " n"]:
        """Coordinates at a time t [s], shape (n,)."""

    def exact_motion(
        self, t: Float[Array, ""] | float
    ) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
        """`exact_position` and its velocity at a time t [s], each of shape (n,)."""
        t = jnp.asarray(t, dtype=float)
        return jax.jvp(self.exact_position, (t,), (jnp.ones_like(t),))


@dataclasses.dataclass(frozen=True)
class ConstraintStudy:
    """What the stabilization of the constraints is tuned in; a thing to call, as `Model.study` is.

    Args:
        t1: end time [s].
        dt: fixed step [s]: the budget the optimum belongs to.
        deviation: size of the perturbation of the starts, in the coordinates' units.
        rate: decay rate of the first gains [1/s]; one, or one for each position constraint.
        alpha: first constraint mass, where the formulation has one.
        longer: end time of the check over a longer time [s]; `None` for a fifth more.
        beyond: end time past a place where the formulation is known to end [s], or `None`.
        time_scale: joins violations of positions and velocities [s]; `None` for two steps, the
            longest that is considered: what a rate makes of the position in one of them.
        first_gains: what the first gains are called, where somebody's.
    """

    t1: float
    dt: float
    deviation: float
    rate: float | tuple[float, ...] = 10.0
    alpha: float = 10.0
    longer: float | None = None
    beyond: float | None = None
    time_scale: float | None = None
    first_gains: str = "the first gains"


@dataclasses.dataclass(frozen=True)
class ServoStudy:
    """What the gains of a model's servo-constraint are tuned in.

    Args:
        t1: end time [s].
        dt: fixed step [s].
        deviation: size of the perturbation of the starts, in the coordinates' units.
        effort: weight of the squared control.
    """

    t1: float
    dt: float
    deviation: float
    effort: float


@dataclasses.dataclass(frozen=True)
class Rest:
    """Where a ready system rests.

    Args:
        guess: coordinates near the state of rest, from the system, shape `(n,)`; the actuator
            state starts from the system's own.
        inputs: number of control inputs; those that hold the system at rest are found with it.
        fixed: names of coordinates to hold at their guess, where states of rest form a family.
        remark: what a reader has to know about this state; empty where nothing.
        system: builds the system, where it is not the model's.
    """

    guess: Callable[[Any], Float[Array, " n"]]
    inputs: int = 0
    fixed: tuple[str, ...] = ()
    remark: str = ""
    system: Callable[[], AbstractModel] | None = None


@dataclasses.dataclass(frozen=True)
class Model:
    """A ready system and what to run it with.

    A file of this folder that ends with `MODELS`, a tuple of these, is found: see `registry`, which
    reads the first four from its text.

    Args:
        name: name on the command line.
        summary: one line.
        source: where the system, its numbers or its reference come from.
        place: in the order in which models are listed.
        system: builds the system; called without arguments it takes the default parameters.
        formulation: builds the formulation to start with.
        t1: suggested end of the simulation [s].
        study: a `ConstraintStudy`, a `ServoStudy`, or a function `(model, formulation)` of studies
            with a formulation of a given name or by default; or the reason why it has none.
        rest: where it rests, or why it never does.
        controller: builds the controller that a system built by `system` runs under, if it has one.
        departure: of a system that starts where nothing moves, or its controller has nothing to
            do: takes that start to one on the constraints that shows what happens.
    """

    name: str
    summary: str
    source: str
    place: float
    system: Callable[..., AbstractModel]
    formulation: Callable[[], AbstractFormulation]
    t1: float
    study: Any
    rest: Rest | str
    controller: Callable[[Any], Callable[..., Any]] | None = None
    departure: Callable[[State], State] | None = None

    def start(self, system: AbstractModel | None = None):
        """Consistent coordinates and velocities to start from.

        Args:
            system: a system that `self.system` built; None for the default parameters.

        Returns:
            Coordinates and velocities at t = 0, each of shape (n,).
        """
        return (self.system() if system is None else system).start()


def vector(values) -> Float[Array, "*shape"]:
    """Numbers as an array, for fields of models."""
    return jnp.asarray(values, dtype=float)


def stabilized() -> Multipliers:
    """Multipliers whose constraint violation decays at 10 1/s, critically damped."""
    return Multipliers(Baumgarte.critical(10.0))


def rolling() -> Multipliers:
    """Multipliers for velocity constraints alone, whose violation decays at 10 1/s."""
    return Multipliers(Baumgarte(Gamma=10.0))


# Of systems that nothing holds or drives, which `Model.rest` says.
COASTING = (
    "at rest it stays wherever it is put and every root is zero, which decides nothing; its steady "
    "motions are relative equilibria, which move in these coordinates"
)
