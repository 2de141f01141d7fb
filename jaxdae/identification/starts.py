"""Starts that are not known: independent coordinates of the consistent states near a guess."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.reprs import Module
from jaxdae.systems import consistent_state, State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import constraint_residuals

# Of a tangent basis: singular values of the constraints below this part of the largest are zero.
_DEPENDENT = 1e-8


class UnknownStart(Module):
    r"""A start that is estimated with the parameters.

    Consistent states near the guess are written by independent coordinates `z`: `q` is the
    projection (`consistent_state`) of `q0 + S B z`, `S` being the scales and the columns of `B` an
    orthonormal basis of the directions that the constraints allow; velocities likewise. With finite
    standard deviations the guess is itself a measurement, whose normal density, restricted to the
    constraints, joins the sum of squares.

    Args:
        guess: state to begin from, or a function of the system that returns one.
        q: standard deviation of the guess's coordinates, one number or shape `(n,)`: infinite where
            nothing is known, zero where the coordinate is known exactly.
        v: the same of velocities.
        w: the same of actuator states, shape `(k,)`.

    Raises:
        ValueError: for a standard deviation that is negative or NaN.
    """

    guess: State | Callable
    q: Any = np.inf
    v: Any = np.inf
    w: Any = np.inf

    def __check_init__(self):
        if not isinstance(self.guess, State) and not callable(self.guess):
            raise TypeError(
                f"UnknownStart: the guess is a {type(self.guess).__name__}, must be a State(q, v) "
                "or a function of the system that returns one."
            )
        for name in ("q", "v", "w"):
            values = np.asarray(getattr(self, name), float)
            if not (values >= 0).all():
                raise ValueError(
                    f"UnknownStart: {name} is {getattr(self, name)}; standard deviations are >= 0, "
                    "zero where the start is known, infinite where nothing is."
                )


class Tangent(NamedTuple):
    """Independent coordinates at a guess.

    Args:
        q: from `z` to changes of the coordinates, shape `(n, d)`.
        v: to changes of the velocities, shape `(n, d)`.
        w: to changes of the actuator state, shape `(k, d)`.
        prior: from `z` to what the guess's own noise makes of it, shape `(d, d)`.
    """

    q: Any
    v: Any
    w: Any
    prior: Any


class Freedom(NamedTuple):
    """How a start may move.

    Args:
        tangent: independent coordinates.
        names: of them.
        priors: number of independent measurements that the guess is.
    """

    tangent: Tangent
    names: tuple[str, ...] = ()
    priors: int = 0

    @property
    def sizes(self) -> np.ndarray:
        """How far one unit of each coordinate moves what it is named after."""
        moves = np.concatenate([self.tangent.q, self.tangent.v, self.tangent.w])
        return np.abs(moves).max(axis=0, initial=0.0)

    @classmethod
    def none(cls, n: int, k: int) -> "Freedom":
        """Of a start that is known."""
        zeros = np.zeros((n, 0))
        return cls(Tangent(zeros, zeros, np.zeros((k, 0)), np.zeros((0, 0))))


def freedom(system: System, t, state: State, start: UnknownStart) -> Freedom:
    """Independent coordinates of the consistent states near one.

    Args:
        system: the declaration.
        t: time [s].
        state: consistent.
        start: standard deviations of the guess.
    """
    rates = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
    m = constraint_counts(system, state)[0]
    jac = np.asarray(jax.jacfwd(rates)(state.v))
    labels = system.labels()
    n, k = state.q.size, state.w.size
    coordinates = [labels.coordinate(i) for i in range(n)]
    speeds = [f"{x}'" for x in coordinates]
    actuators = [*labels.actuators[:k], *(f"w{i + 1}" for i in range(len(labels.actuators), k))]
    parts = (
        _directions(jac[:m], start.q, np.asarray(state.q), coordinates),
        _directions(jac, start.v, np.asarray(state.v), speeds),
        _directions(np.zeros((0, k)), start.w, np.asarray(state.w), actuators),
    )
    places = np.cumsum([0, *(x.basis.shape[1] for x in parts)])
    d = int(places[-1])
    moves, prior, priors = [], np.zeros((d, d)), 0
    for part, at in zip(parts, places, strict=False):
        count = part.basis.shape[1]
        block = np.zeros((part.basis.shape[0], d))
        block[:, at : at + count] = part.basis
        moves.append(block)
        prior[at : at + count, at : at + count] = part.prior
        priors += part.priors
    q, v, w = moves
    names = tuple(name for x in parts for name in x.names)
    return Freedom(Tangent(q, v, w, prior), names, priors)


class _Directions(NamedTuple):
    basis: np.ndarray
    prior: np.ndarray
    names: tuple[str, ...]
    priors: int


def _directions(jac: np.ndarray, sigma, values: np.ndarray, labels: list[str]) -> _Directions:
    """Allowed directions, in units of the standard deviations, or of one where these are infinite.

    Coordinates that are held are further constraints.
    """
    n = values.size
    if not n:
        return _Directions(np.zeros((0, 0)), np.zeros((0, 0)), (), 0)
    sigma = np.broadcast_to(np.asarray(sigma, float), (n,))
    scale = np.where(np.isfinite(sigma) & (sigma > 0), sigma, 1.0)
    rows = np.concatenate([jac * scale, np.eye(n)[sigma == 0]])
    basis = scale[:, None] * _null_space(rows)
    known = np.isfinite(sigma) & (sigma > 0)
    inverse = np.where(known, 1.0 / np.where(known, sigma, 1.0), 0.0)
    prior = np.zeros((basis.shape[1],) * 2)
    if basis.size:
        seen = np.asarray(np.linalg.qr(inverse[:, None] * basis, mode="r"))
        prior[: seen.shape[0]] = seen
    count = int(np.linalg.matrix_rank(prior)) if prior.size else 0
    return _Directions(basis, prior, _direction_names(basis, labels), count)


def _null_space(rows: np.ndarray) -> np.ndarray:
    """Orthonormal basis of what the rows send to zero, along coordinates where that is possible."""
    n = rows.shape[1]
    if not rows.size:
        return np.eye(n)
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows / np.where(sizes > 0, sizes, 1.0))
    rank = int(np.sum(values > _DEPENDENT * max(values.max(initial=0.0), 1e-300)))
    return right[rank:].T


def _direction_names(basis: np.ndarray, labels: list[str]) -> tuple[str, ...]:
    """The coordinate that each direction moves most."""
    names = []
    for column in basis.T:
        moved = np.flatnonzero(np.abs(column) > 1e-9 * np.abs(column).max())
        most = labels[int(np.argmax(np.abs(column)))]
        names.append(most if moved.size == 1 else f"{most} and what moves with it")
    return tuple(names)


def moved(guess: State, along: Tangent, z: Float[Array, " d"]) -> State:
    """The state with independent coordinates `z`, before it is projected."""
    dtype = guess.q.dtype
    shift = lambda basis: jnp.asarray(basis, dtype) @ z  # noqa: E731
    return State(guess.q + shift(along.q), guess.v + shift(along.v), guess.w + shift(along.w))


def projected(system: System, t, state: State) -> State:
    """The nearest consistent state; NaN where there is none."""
    return consistent_state(system, state.q, state.v, t, w=state.w)
