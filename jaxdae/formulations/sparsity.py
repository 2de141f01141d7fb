"""Which entries of the mass matrix and of the constraint Jacobian of a system may be nonzero."""

from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.linalg.sparse_saddle_point import SparseSaddlePoint
from jaxdae.memory import Memory
from jaxdae.systems import momentum, State, System
from jaxdae.systems.precision import in_dtype


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


class Sparsity:
    """Pattern of the mass matrix and of the constraint Jacobian, at every state.

    What is zero at one state only must count as nonzero. Equal ones are equal and have one hash.

    Args:
        mass: what may be nonzero in `M`: true, or not zero, shape `(n, n)`.
        jac: the same for `J`, position constraints first, shape `(m+r, n)`.

    Raises:
        ValueError: for shapes that do not fit.
    """

    def __init__(self, mass, jac):
        mass, jac = (np.asarray(x) != 0 for x in (mass, jac))
        if mass.ndim != 2 or mass.shape[0] != mass.shape[1] or jac.shape[1:] != mass.shape[1:]:
            raise ValueError(
                "a sparsity needs patterns (n, n) of the mass matrix and (m+r, n) of the "
                f"Jacobian; got {mass.shape} and {jac.shape}."
            )
        self.jac_shape: tuple[int, int] = jac.shape
        # Every coordinate has an inertia, and the matrix is symmetric.
        mass = mass | mass.T | np.eye(mass.shape[0], dtype=bool)
        self.mass, self.jac = np.stack(np.nonzero(mass)), np.stack(np.nonzero(jac))
        self._key = (self.jac_shape, self.mass.tobytes(), self.jac.tobytes())

    def __eq__(self, other):
        return isinstance(other, Sparsity) and self._key == other._key

    def __hash__(self):
        return self._hash

    def __repr__(self):
        n = self.jac_shape[1]
        return f"Sparsity({self.mass.shape[1]} of {n}x{n}, {self.jac.shape[1]} of {self.jac_shape})"

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    @cached_property
    def mass_colors(self) -> np.ndarray:
        """Coordinates whose columns of `M` one directional derivative tells apart, `(n,)`."""
        rows, columns = self.mass
        return color_columns(rows, columns, self.jac_shape[1])

    @cached_property
    def solver(self) -> SparseSaddlePoint:
        """The solve that the pattern allows."""
        c, n = self.jac_shape
        return SparseSaddlePoint(self.mass, self.jac, n, c)

    def jac_rows(self, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows (counted from the first), columns and colours of the columns of some rows of `J`."""
        chosen = (self.jac[0] >= first) & (self.jac[0] < last)
        rows, columns = self.jac[0, chosen] - first, self.jac[1, chosen]
        return rows, columns, color_columns(rows, columns, self.jac_shape[1])


def find_sparsity(system: System, state: State) -> Sparsity:
    """Find what may be nonzero by tracing the declaration; computes no values.

    An entry counts as zero only where the traced program shows that it does not depend on that
    coordinate or velocity, whatever the parameters and the state are.

    Args:
        system: the declaration.
        state: any state, for its shapes.

    Returns:
        `Sparsity`, found once for each declaration and shape.

    Raises:
        ValueError: when the declaration does something that cannot be followed entry by entry.
    """
    arrays, rest = eqx.partition(in_dtype(system, state.q.dtype), eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    others, frame = jax.tree.flatten(rest)
    key = (structure, shapes, tuple(others), frame, state.q.shape, state.q.dtype)
    return _FOUND.get(key, rest, lambda: _found(*key))


_FOUND = Memory(16)


def _found(structure, shapes, others, frame, shape, dtype) -> Sparsity:
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError  # for SparseSolve alone

    rest = jax.tree.unflatten(frame, others)
    t, q = jax.ShapeDtypeStruct((), dtype), jax.ShapeDtypeStruct(shape, dtype)

    def of(leaves) -> System:
        return eqx.combine(jax.tree.unflatten(structure, leaves), rest)

    try:
        mass = dependence(lambda t, q, v, *x: momentum(of(x), t, q, v), 2, t, q, q, *shapes)
        f = dependence(lambda t, q, *x: of(x).position_constraints(t, q), 1, t, q, *shapes)
        g = dependence(lambda t, q, v, *x: of(x).velocity_constraints(t, q, v), 2, t, q, q, *shapes)
    except UnsupportedOperationError as refused:
        raise ValueError(
            f"the sparsity of the system cannot be found: {refused} Declare it instead: "
            "SparseSolve(sparsity=Sparsity(mass, jac))."
        ) from None
    return Sparsity(mass, np.concatenate([f, g]))


def dependence(function, argument: int, *args) -> np.ndarray:
    """Which entries of a result depend on which entries of an argument.

    Args:
        function: traceable function of arrays with one array as its result.
        argument: which argument is asked for, an index into `args`.
        *args: arrays the function can be called with, or their shapes.

    Returns:
        Booleans, shape `(result, argument)`, both flat. False only where the value does not
        depend on the entry.

    Raises:
        UnsupportedOperationError: naming the operation that cannot be followed.
    """
    from jaxdae.kernels.graph.expressions import CONSTANT, INPUT  # for SparseSolve alone
    from jaxdae.kernels.tracing.trace import scalarize

    program = scalarize(function, *args)
    sizes = [int(np.prod(x.shape)) for x in program.inputs]
    first, count = sum(sizes[:argument]), sizes[argument]
    # Sets of entries as the bits of an integer.
    depends: dict[int, int] = {}
    for number in program.graph.needed(program.outputs):
        operation, arguments = program.graph.nodes[number]
        if operation == INPUT:
            place = arguments[0] - first
            depends[number] = 1 << place if 0 <= place < count else 0
        elif operation == CONSTANT:
            depends[number] = 0
        else:
            bits = 0
            for x in arguments:
                bits |= depends[x]
            depends[number] = bits
    width = (count + 7) // 8
    packed = b"".join(depends[int(x)].to_bytes(width, "little") for x in program.outputs)
    table = np.frombuffer(packed, np.uint8).reshape(len(program.outputs), width)
    return np.unpackbits(table, axis=1, bitorder="little", count=count).astype(bool)


def compressed(tangent, colors: np.ndarray, rows: np.ndarray, columns: np.ndarray, dtype) -> Any:
    """Entries of a sparse matrix from one directional derivative for each colour.

    Args:
        tangent: the matrix as a linear map.
        colors: colour of each column.
        rows: row of each entry.
        columns: its column.
        dtype: floating-point type of the directions.

    Returns:
        The entries, in the order of `rows`.
    """
    if not rows.size:
        return jnp.zeros(0, dtype)
    every = np.arange(colors.max() + 1)
    seeds = jnp.asarray(colors[None] == every[:, None], dtype)
    table = jax.vmap(tangent)(seeds)
    index = colors[columns] * table.shape[1] + rows
    return table.reshape(-1).at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)
