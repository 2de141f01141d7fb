"""Sparse Jacobians from few directional derivatives."""

import numpy as np


def color_columns(rows: np.ndarray, columns: np.ndarray, count: int) -> np.ndarray:
    """Colour the columns of a sparse matrix so that no row has two entries of one colour.

    The derivative along the sum of all columns of one colour then holds each of them by itself, so
    that a Jacobian takes as many directional derivatives as there are colours [Curtis1974]. Greedy,
    in the order of the columns: for a banded matrix as many as its bandwidth.

    Args:
        rows: row of each entry that may be nonzero.
        columns: its column.
        count: number of columns.

    Returns:
        The colour of each column, numbered from 0, shape `(count,)`.
    """
    used: dict[int, set[int]] = {}
    members: list[list[int]] = [[] for _ in range(count)]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        members[column].append(row)
    colors = np.zeros(count, int)
    for column, result in enumerate(members):
        taken = set().union(*(used.setdefault(row, set()) for row in result))
        color = 0
        while color in taken:
            color += 1
        colors[column] = color
        for row in result:
            used[row].add(color)
    return colors
