"""Multipliers without dense matrices, for systems of many bodies."""

import itertools
from collections.abc import Callable
from functools import cached_property, partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import jit
from jaxdae.formulations.base import Examination
from jaxdae.linalg.saddle_point import AbstractSolve, Capabilities
from jaxdae.linalg.sparse_saddle_point import SparseSaddlePoint
from jaxdae.memory import Memory
from jaxdae.reprs import Module
from jaxdae.systems import momentum, State, System
from jaxdae.systems.dynamics import (
    applied_force,
    constraint_bias,
    inertia_map,
    position_rate,
)
from jaxdae.systems.kinematics import has_rate
from jaxdae.systems.precision import as_floats, in_dtype


class SparseSolve(AbstractSolve):
    r"""No dense matrices, for many bodies: regular mass matrix, independent constraints.

    The equations of `FullRankSolve()`, to round-off, at a cost linear in the number of bodies for
    chains, trees and closed loops of them; that of `FullRankSolve()` grows with the cube. The
    entries of `M` and `J` that may be nonzero are found from the declaration, and come from few
    directional derivatives [Curtis1974]; `J M^-1 J^T` is eliminated along a tree of blocks. `M`
    must be block-diagonal, as it is in coordinates of each body by itself; a `mass_matrix` that the
    system declares is not used. So must `N^T N` be where velocities are not rates of coordinates.

    For `Multipliers(stabilization, SparseSolve())`. Gains that are full matrices are dense.
    """

    @property
    def capabilities(self):
        obstacle = "SparseSolve() is for more bodies than a kernel can hold entry by entry"
        return Capabilities(arrays=False, obstacle=obstacle)

    @property
    def examination(self):
        return Examination(declaration=_check, holds=_holds)

    def dynamics(self, evaluate, system, t, y, u, lam):
        return entries(system, find_sparsity(system, y), t, y.q, y.v, y.w, u)

    def accelerate(self, dynamics: "SparseDynamics", rhs):
        d = dynamics
        return d.pattern.solver.solve(d.mass, d.jac, d.force, rhs)


def _check(system, state) -> None:
    # They refuse what they cannot solve.
    pattern = find_sparsity(system, state)
    _ = pattern.solver, pattern.metric_solver


def _holds(system, t, state) -> bool:
    # Elimination reveals the rank: a pivot at round-off counts as zero.
    return bool(_is_regular(system, find_sparsity(system, state), t, state))


@jit
def _is_regular(system: System, pattern: "Sparsity", t, state: State):
    """Whether mass matrix and `J M^-1 J^T` are positive definite beyond round-off."""
    q, v = state.q, state.v
    system, t = in_dtype(system, q.dtype), jnp.asarray(t, q.dtype)
    mass, jac, _ = _matrices(system, pattern, t, q, v)
    rhs = jnp.zeros(pattern.jac_shape[0], q.dtype)
    a, lam = pattern.solver.solve(mass, jac, jnp.zeros_like(v), rhs)
    return jnp.all(jnp.isfinite(a)) & jnp.all(jnp.isfinite(lam))


class Sparsity:
    """What may be nonzero in the mass matrix and in the constraint Jacobian, at every state.

    Booleans: `mass` `(n, n)`, rows of `J` of `positions` `(m, n)` and `velocities` `(r, n)`, and
    `frame` of `N(t, q)`, a column for each velocity, where velocities are not rates of coordinates.
    Equal ones are equal and have one hash, so that programs know them.
    """

    def __init__(
        self,
        mass: np.ndarray,
        positions: np.ndarray,
        velocities: np.ndarray,
        frame: np.ndarray | None = None,
    ):
        # Every coordinate has an inertia, and the matrix is symmetric.
        mass = mass | mass.T | np.eye(len(mass), dtype=bool)
        jac = np.concatenate([positions, velocities])
        self.jac_shape: tuple[int, int] = jac.shape
        self.mass, self.jac = np.stack(np.nonzero(mass)), np.stack(np.nonzero(jac))
        self.parts = tuple(map(Columns.of, (mass, positions, velocities)))
        metric = None if frame is None else frame.T.astype(np.float32) @ frame > 0
        self.metric = None if metric is None else np.stack(np.nonzero(metric))
        self.metric_columns = None if metric is None else Columns.of(metric)
        frames = () if self.metric is None else (self.metric.tobytes(),)
        self._key = (jac.shape, len(positions), self.mass.tobytes(), self.jac.tobytes(), frames)
        self._hash = hash(self._key)

    def __eq__(self, other):
        return isinstance(other, Sparsity) and self._key == other._key

    def __hash__(self):
        return self._hash

    @cached_property
    def solver(self) -> SparseSaddlePoint:
        """The solve that the pattern allows."""
        c, n = self.jac_shape
        return SparseSaddlePoint(self.mass, self.jac, n, c)

    @cached_property
    def metric_solver(self) -> SparseSaddlePoint | None:
        """The solve with `N^T N`; `None` where velocities are rates of coordinates."""
        if self.metric is None:
            return None
        none = np.zeros((2, 0), int)
        name = "N^T N of the rates (System.rate)"
        return SparseSaddlePoint(self.metric, none, self.jac_shape[1], 0, name)


class Columns(NamedTuple):
    """A sparse matrix whose columns of one colour share no row.

    The derivative along the sum of all columns of one colour then holds each of them by itself, so
    that a Jacobian takes as many directional derivatives as there are colours [Curtis1974].

    Args:
        rows: row of each entry that may be nonzero.
        columns: its column.
        colors: of each column, numbered from 0.
    """

    rows: np.ndarray
    columns: np.ndarray
    colors: np.ndarray

    @classmethod
    def of(cls, pattern: np.ndarray) -> "Columns":
        """Greedily, in the order of the columns: for a banded matrix as many as its bandwidth."""
        rows, columns = np.nonzero(pattern)
        used: list[set[int]] = [set() for _ in pattern]
        colors = np.zeros(pattern.shape[1], int)
        for column, members in enumerate(pattern.T):
            members = np.flatnonzero(members)
            taken = set().union(*(used[row] for row in members))
            colors[column] = color = next(x for x in itertools.count() if x not in taken)
            for row in members:
                used[row].add(color)
        return cls(rows, columns, colors)

    def entries(self, tangent: Callable, dtype) -> Float[Array, " k"]:
        """The entries, by one directional derivative of `tangent`, the matrix, for each colour."""
        if not self.rows.size:
            return jnp.zeros(0, dtype)
        every = np.arange(self.colors.max() + 1)
        table = jax.vmap(tangent)(jnp.asarray(self.colors[None] == every[:, None], dtype))
        index = self.colors[self.columns] * table.shape[1] + self.rows
        flat = table.reshape(-1)
        return flat.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


class SparseDynamics(Module):
    """What `evaluate` gives, with `mass` and `jac` by the entries that may be nonzero."""

    mass: Float[Array, " k"]
    force: Float[Array, " n"]
    jac: Float[Array, " l"]
    gamma: Float[Array, " c"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]
    pattern: Sparsity = eqx.field(static=True)


def entries(system: System, pattern: Sparsity, t, q, v, w=None, u=None) -> SparseDynamics:
    """What `evaluate` gives, by the entries that may be nonzero."""
    q, v, w = as_floats(q, v, w)
    t = jnp.asarray(t, q.dtype)
    system = in_dtype(system, q.dtype)
    w = jnp.zeros((0,), q.dtype) if w is None else w
    mass, jac, inertial = _matrices(system, pattern, t, q, v)
    force = inertial + applied_force(system, t, q, v, w, u)
    gamma, phi, phi_dot = constraint_bias(system, t, q, v)
    return SparseDynamics(mass, force, jac, gamma, phi, phi_dot, pattern)


def _matrices(system: System, pattern: Sparsity, t, q, v):
    """Entries of `M` and of `J`, and the inertial force."""
    times, inertial = inertia_map(system, t, q, v, _lifted(system, pattern, t, q, v))
    maps = (
        times,
        lambda e: position_rate(system, t, q, e),
        lambda e: jax.jvp(lambda v: system.velocity_constraints(t, q, v), (v,), (e,))[1],
    )
    mass, *jac = (x.entries(f, q.dtype) for x, f in zip(pattern.parts, maps, strict=True))
    return mass, jnp.concatenate(jac), inertial


def _lifted(system: System, pattern: Sparsity, t, q, v) -> Callable | None:
    """The map `p -> N (N^T N)^-1 p`; `None` where velocities are rates of coordinates."""
    columns, solver = pattern.metric_columns, pattern.metric_solver
    if columns is None or solver is None:
        return None
    rate = partial(system.rate, t, q)
    back = jax.linear_transpose(rate, v)
    metric = columns.entries(lambda e: back(rate(e))[0], q.dtype)
    none = jnp.zeros(0, q.dtype)
    return lambda p: rate(solver.solve(metric, none, p, none)[0])


def find_sparsity(system: System, state: State) -> Sparsity:
    """Find what may be nonzero by tracing the declaration; once for each declaration and shape.

    An entry counts as zero only where the traced program shows that it does not depend on that
    coordinate or velocity, whatever the parameters and the state are.
    """
    arrays, rest = eqx.partition(in_dtype(system, state.q.dtype), eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in leaves)
    others, frame = jax.tree.flatten(rest)
    key = (structure, shapes, tuple(others), frame, state.q.shape, state.v.shape, state.q.dtype)
    return _FOUND.get(key, rest, lambda: _found(*key))


_FOUND = Memory(16)


def _found(structure, shapes, others, frame, q_shape, v_shape, dtype) -> Sparsity:
    from jaxdae.kernels.tracing.trace import UnsupportedOperationError  # for SparseSolve alone

    rest = jax.tree.unflatten(frame, others)
    t, q, v = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((), q_shape, v_shape))

    def of(leaves) -> System:
        return eqx.combine(jax.tree.unflatten(structure, leaves), rest)

    rates = has_rate(rest)

    try:
        mass = dependence(lambda t, q, v, *x: momentum(of(x), t, q, v), 2, t, q, v, *shapes)
        f = dependence(lambda t, q, *x: of(x).position_constraints(t, q), 1, t, q, *shapes)
        g = dependence(lambda t, q, v, *x: of(x).velocity_constraints(t, q, v), 2, t, q, v, *shapes)
        N = None
        if rates:
            N = dependence(lambda t, q, v, *x: of(x).rate(t, q, v), 2, t, q, v, *shapes)
            f = f.astype(np.float32) @ N > 0
    except UnsupportedOperationError as refused:
        raise ValueError(
            f"the sparsity of the system cannot be found: {refused} Leave SparseSolve() out."
        ) from None
    return Sparsity(mass, f, g, N)


def dependence(function, argument: int, *args) -> np.ndarray:
    """Which entries of a function's result depend on which of one of its arguments, an index.

    Booleans, shape `(result, argument)`, both flat. False only where the value does not depend.
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
