"""Steps of least squares, damped, in work that grows with the number of records."""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from jaxdae.identification.linearization import (
    Directions,
    directions,
    Group,
    LinearizedFit,
    moved_along,
    triangle,
)

# Damping, beside columns of length one, that leaves directions with smaller singular values where
# they are.
_UNDAMPED = 1e-12


class DampedStep(NamedTuple):
    """A change of the unknowns, and what it promises."""

    change: np.ndarray  # shape `(unknowns,)`
    decrease: float  # of the sum of squares, were models linear


class _Block(NamedTuple):
    """What elimination needs of the records of a group."""

    group: Group
    rows: np.ndarray  # `[B A r]`, triangular, its first rows, shape `(records, d, d + p + 1)`
    along: Directions | None  # what the columns of `B` and `A` change


class Compressed(NamedTuple):
    r"""A linearization in as few rows as it has columns, from which damped steps follow.

        minimize |r + A a + B z|^2 + d (|a|^2 + |z|^2)

    over what all records share, `a`, and what each has alone, `z`, with scaled columns. `B` has a
    block for each record: its QR factorization, with the rows of the damping, eliminates `z`
    record by record [Bjorck1996, section 6.3]; what is left is a problem of `a` alone.
    """

    unknowns: int
    blocks: list[_Block]
    rest: np.ndarray  # `[A r]`, all rows that no start is in

    @classmethod
    def of(cls, found: LinearizedFit) -> "Compressed":
        """Along directions that keep gaps closed."""
        p = found.prior_slopes.shape[1]
        blocks, rest = [], [np.column_stack([found.prior_slopes, found.priors])]
        for g, moved in zip(found.groups, moved_along(found).groups, strict=True):
            columns = np.concatenate([moved.own, moved.shared, moved.value[..., None]], axis=2)
            rows = triangle(columns)
            d = g.entries.shape[1]
            blocks.append(_Block(g, rows[:, :d], directions(g)))
            rest.append(rows[:, d:, d:].reshape(-1, p + 1))
        return cls(found.unknowns, blocks, triangle(np.concatenate(rest)))

    def step(self, scale: np.ndarray, damping: float = _UNDAMPED) -> DampedStep:
        """The step that is best, damped.

        Args:
            scale: by which columns are multiplied, zero where an unknown is held.
            damping: beside the scaled columns.
        """
        p, root = self.rest.shape[1] - 1, np.sqrt(damping)
        of_shared = np.append(scale[:p], 1.0)
        rest, upper = self.rest * of_shared, []
        lower = [rest, np.eye(p, p + 1) * root]
        for block in self.blocks:
            records, d = block.group.entries.shape
            rows = (
                block.rows
                * np.concatenate(
                    [scale[block.group.entries], np.tile(of_shared, (records, 1))], axis=1
                )[:, None]
            )
            damped = np.tile(np.eye(d, d + p + 1) * root, (records, 1, 1))
            both = np.concatenate([rows, damped], axis=1)
            reduced = triangle(both) if d else both
            upper.append((rows, reduced[:, :d]))
            lower.append(reduced[:, d:, d:].reshape(-1, p + 1))
        last = triangle(np.concatenate(lower))
        shared = -scipy.linalg.solve_triangular(last[:p, :p], last[:p, p])
        change = np.zeros(self.unknowns)
        change[:p] = shared * scale[:p]
        decrease = _decrease(rest[:, -1], rest[:, :p] @ shared)
        for block, (rows, top) in zip(self.blocks, upper, strict=True):
            entries = block.group.entries
            d = entries.shape[1]
            right = top[:, :, d:-1] @ shared + top[:, :, -1]
            own = -np.linalg.solve(top[:, :, :d], right[..., None])[..., 0] if d else right
            moved = rows[:, :, d:-1] @ shared + np.einsum("ekd,ed->ek", rows[:, :, :d], own)
            decrease += _decrease(rows[:, :, -1], moved)
            own = own * scale[entries]
            if block.along is not None:
                own = np.einsum("edj,ej->ed", block.along.by_own, own)
                own = own + block.along.by_shared @ change[:p]
            change[entries] = own
        return DampedStep(change, decrease)


def _decrease(residuals: np.ndarray, moved: np.ndarray) -> float:
    """By how much the sum of squares falls where residuals move."""
    with np.errstate(over="ignore", invalid="ignore"):  # of a fit that is beyond help
        return -float(np.sum(moved * (2 * residuals + moved)))
