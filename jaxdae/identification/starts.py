"""Starts that are not known: independent coordinates of the consistent states near a guess."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from jaxdae.identification.data import UnknownStart
from jaxdae.systems import State, System
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import constraint_residuals

# Of a tangent basis: singular values of the constraints below this part of the largest are zero.
_DEPENDENT = 1e-8


class Freedom(NamedTuple):
    """How a start may move.

    Args:
        moves: from independent coordinates `z` to changes of `(q, v, w)`, shape `(2n+k, d)`.
        prior: from `z` to what the guess's own noise makes of it, shape `(d, d)`.
        names: of the coordinates.
    """

    moves: Any
    prior: Any
    names: tuple[str, ...] = ()

    @property
    def priors(self) -> int:
        """Number of independent measurements that the guess is."""
        return int(np.linalg.matrix_rank(self.prior)) if self.prior.size else 0

    @property
    def sizes(self) -> np.ndarray:
        """How far one unit of each coordinate moves what it is named after."""
        return np.abs(self.moves).max(axis=0, initial=0.0)


def no_freedom(state: State) -> Freedom:
    """Of a start that is known."""
    return Freedom(np.zeros((2 * state.q.size + state.w.size, 0)), np.zeros((0, 0)))


def freedom(system: System, t, state: State, start: UnknownStart) -> Freedom:
    """Independent coordinates of the consistent states near a consistent one."""
    rates = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
    m = constraint_counts(system, state)[0]
    jac = np.asarray(jax.jacfwd(rates)(state.v))
    labels = system.labels()
    n, k = state.q.size, state.w.size
    coordinates = [labels.coordinate(i) for i in range(n)]
    actuators = [*labels.actuators[:k], *(f"w{i + 1}" for i in range(len(labels.actuators), k))]
    moves, priors, names = zip(
        _directions(jac[:m], start.q, n, coordinates),
        _directions(jac, start.v, n, [f"{x}'" for x in coordinates]),
        _directions(np.zeros((0, k)), start.w, k, actuators),
        strict=True,
    )
    block = scipy.linalg.block_diag
    return Freedom(block(*moves), block(*priors), tuple(x for part in names for x in part))


def _directions(
    jac: np.ndarray, sigma, n: int, labels: list[str]
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Allowed directions, what the guess's noise makes of them, and their names.

    Directions are in units of the standard deviations, or of one where these are infinite;
    coordinates that are held are further constraints.
    """
    if not n:
        return np.zeros((0, 0)), np.zeros((0, 0)), []
    sigma = np.broadcast_to(np.asarray(sigma, float), (n,))
    known = np.isfinite(sigma) & (sigma > 0)
    scale = np.where(known, sigma, 1.0)
    rows = np.concatenate([jac * scale, np.eye(n)[sigma == 0]])
    basis = scale[:, None] * _null_space(rows)
    prior = np.zeros((basis.shape[1],) * 2)
    if basis.size:
        seen = np.asarray(
            np.linalg.qr(np.where(known, 1.0 / scale, 0.0)[:, None] * basis, mode="r")
        )
        prior[: seen.shape[0]] = seen
    return basis, prior, [_direction_name(column, labels) for column in basis.T]


def _null_space(rows: np.ndarray) -> np.ndarray:
    """Orthonormal basis of what the rows send to zero, along coordinates where that is possible."""
    if not rows.size:
        return np.eye(rows.shape[1])
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows / np.where(sizes > 0, sizes, 1.0))
    rank = int(np.sum(values > _DEPENDENT * max(values.max(initial=0.0), 1e-300)))
    return right[rank:].T


def _direction_name(column: np.ndarray, labels: list[str]) -> str:
    """The coordinate that a direction moves most."""
    moved = np.flatnonzero(np.abs(column) > 1e-9 * np.abs(column).max())
    most = labels[int(np.argmax(np.abs(column)))]
    return most if moved.size == 1 else f"{most} and what moves with it"


def moved(guess: State, moves: Float[Array, "2n+k d"], z: Float[Array, " d"]) -> State:
    """The state with independent coordinates `z`, before it is projected."""
    n = guess.q.size
    shift = jnp.asarray(moves, guess.q.dtype) @ z
    return State(guess.q + shift[:n], guess.v + shift[n : 2 * n], guess.w + shift[2 * n :])
