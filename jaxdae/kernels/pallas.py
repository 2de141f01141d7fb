"""A whole integration as one GPU kernel: each program holds a block of trajectories in registers.

Fixed steps of an explicit Runge–Kutta method, by Pallas and Triton. Every entry of the state is a
vector of its own with one element for each trajectory of the block, so that nothing but elementwise
operations is left; between two saved rows nothing goes to memory.
"""

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, PyTree

from jaxdae.kernels.graph import CONSTANT, INPUT
from jaxdae.kernels.portable import OWN, results
from jaxdae.kernels.trace import scalarize, ScalarProgram, UnsupportedOperationError

_WARP = 32  # threads of a GPU that work in step


def pallas_integrate(
    rhs: Callable[[Any, PyTree, PyTree], PyTree],
    y0: PyTree,
    parameters: PyTree,
    *,
    tableau: diffrax.ButcherTableau,
    t0: Any,
    dt: Any,
    steps: int,
    save_every: int = 1,
    parameters_axes: PyTree = None,
    block: int = 128,
    interpret: bool | None = None,
) -> tuple[Float[Array, " rows"], PyTree]:
    """Integrate a batch of trajectories with equal steps, in one kernel.

    `y[k + 1] = y[k] + dt sum_i b_i f_i`, `f_i = rhs(t[k] + c_i dt, y[k] + dt sum_j a_ij f_j, p)`,
    with `t[k] = t0 + k dt` (Kutta 1901; Butcher 2016, section 23). A trajectory of which an entry
    is no longer finite is NaN from there on; the others do not notice. Call it inside `jax.jit`:
    outside, every call takes `rhs` apart anew. `jax.vmap` of it is a kernel too.

    Args:
        rhs: `rhs(t, y, parameters)`, for one trajectory; traceable by JAX, arrays of small fixed
            shapes; returns the derivative of `y`, in the same structure.
        y0: states at `t0`, any pytree of arrays whose first axis is the batch.
        parameters: any pytree of numbers and arrays.
        tableau: of an explicit Runge–Kutta method, for example `diffrax.Tsit5.tableau`.
        t0: start time [s], a scalar.
        dt: step [s], a scalar; negative runs back.
        steps: number of steps.
        save_every: number of steps from one saved row to the next; divides `steps`.
        parameters_axes: `None` where all trajectories share a leaf of the parameters, 0 where its
            first axis is the batch; for all of them, or a tree that is a prefix of theirs.
        block: trajectories of one program of the GPU, a power of two.
        interpret: run on whatever device there is, slowly, for tests; by default so where the
            device is not a GPU.

    Returns:
        Times of the rows, shape `(steps / save_every,)`, and the states there: each leaf has the
        batch first, then the rows, then its own axes. The start is not among them.

    Raises:
        TypeError: for a tableau or numbers of the wrong kind.
        ValueError: for an implicit method, or for counts, shapes or axes that do not fit.
        UnsupportedOperationError: for an operation that cannot be made part of the kernel.
        NotImplementedError: when it is differentiated.
    """
    _check_tableau(tableau)
    _check_counts(steps, save_every, block)
    lanes, y, dtype = _states(y0)
    task = _task(rhs, y0, y, parameters, parameters_axes, dtype, lanes.shape[1])
    t0, dt = (_scalar(name, x, dtype) for name, x in (("t0", t0), ("dt", dt)))
    interpret = jax.default_backend() != "gpu" if interpret is None else interpret
    call = _without_derivative(_kernel_call(task, tableau, steps, save_every, block, interpret))
    rows = call(
        jnp.concatenate([jnp.stack([t0, dt]), task.shared]), jnp.concatenate([lanes, task.own])
    )
    ts = t0 + dt * (save_every * jnp.arange(1, steps // save_every + 1)).astype(dtype)
    return ts, _unpacked(rows, y0, y)


def _without_derivative(call: Callable) -> Callable:
    """The same function, with a plain word to those who differentiate it."""
    primal = jax.custom_jvp(call)

    @primal.defjvp
    def _(primals, tangents):
        raise NotImplementedError(
            "pallas_integrate cannot be differentiated; use jaxdae.simulate, or diffrax with "
            "jaxdae.kernels.native, which can."
        )

    return primal


class _Task(NamedTuple):
    """What one trajectory's program is, and where its inputs come from.

    Args:
        program: entries of the derivative, of the time, the state's entries, the parameters'.
        size: entries of the state.
        shared: parameters that all trajectories share, shape `(count,)`.
        own: those of each trajectory, shape `(count, batch)`.
        sources: for each entry of the parameters, whether it is shared, and its number there.
    """

    program: ScalarProgram
    size: int
    shared: Array
    own: Array
    sources: list[tuple[bool, int]]


def _kernel_call(task, tableau, steps, save_every, block, interpret) -> Callable:
    """The kernel on arrays of shared numbers, and of entries by trajectories."""
    rows = steps // save_every
    body = partial(_body, task, tableau, rows, save_every)

    def call(shared, lanes):
        entries, batch = lanes.shape
        blocks = -(-batch // block)
        # Lanes that fill the last block repeat the last trajectory, and are cut off again.
        lanes = jnp.pad(lanes, ((0, 0), (0, blocks * block - batch)), mode="edge")
        found = pl.pallas_call(
            body,
            grid=(blocks,),
            in_specs=[
                pl.BlockSpec(shared.shape, lambda _: (0,)),
                pl.BlockSpec((entries, block), lambda i: (0, i)),
            ],
            out_specs=pl.BlockSpec((rows, task.size, block), lambda i: (0, 0, i)),
            out_shape=jax.ShapeDtypeStruct((rows, task.size, blocks * block), lanes.dtype),
            compiler_params=triton.CompilerParams(num_warps=_warps(block), num_stages=1),
            interpret=interpret,
            name="runge_kutta",
        )(shared, lanes)
        return found[:, :, :batch]

    return call


def _warps(block: int) -> int:
    """Groups of threads of a program: a thread for each trajectory, as far as a GPU has so many."""
    return min(32, max(1, block // _WARP))


def _body(task: _Task, tableau, rows: int, save_every: int, shared, lanes, out) -> None:
    """What one program does, on references to its blocks."""
    t0, dt, *common = (shared[i] for i in range(2 + task.shared.size))
    own = [lanes[task.size + i, :] for i in range(task.own.shape[0])]
    parameters = [(common if is_shared else own)[i] for is_shared, i in task.sources]
    # Compiled apart it is traced once for all stages.
    field = jax.jit(lambda t, y: results(task.program, [t, *y, *parameters], _OPERATIONS))

    def step(row, k, y):
        t = t0 + dt * (row * np.int32(save_every) + k).astype(t0.dtype)
        return _finite_or_nan(_runge_kutta(tableau, field, t, dt, y))

    def save(row, y):
        y = jax.lax.fori_loop(np.int32(0), np.int32(save_every), partial(step, row), y)
        for i, entry in enumerate(y):
            out[row, i, :] = entry
        return y

    start = tuple(lanes[i, :] for i in range(task.size))
    jax.lax.fori_loop(np.int32(0), np.int32(rows), save, start)


def _runge_kutta(tableau, field: Callable, t, dt, y: tuple) -> tuple:
    """One step, without the stages that only an error estimate would need."""
    needed = stages(tableau)
    fields: dict[int, list] = {}
    for i in needed:
        weights = tableau.a_lower[i - 1] if i else ()
        time = t + dt.dtype.type(tableau.c[i - 1]) * dt if i else t
        fields[i] = field(time, _moved(y, dt, weights, fields))
    return _moved(y, dt, tableau.b_sol, fields)


def _moved(y: tuple, dt, weights, fields: dict[int, list]) -> tuple:
    """`y + dt sum_j weights_j fields_j`."""
    terms = [(dt.dtype.type(w), fields[j]) for j, w in enumerate(weights) if w != 0]
    if not terms:
        return y
    return tuple(
        entry + dt * sum((w * f[i] for w, f in terms[1:]), terms[0][0] * terms[0][1][i])
        for i, entry in enumerate(y)
    )


def _finite_or_nan(y: tuple) -> tuple:
    """All entries of a trajectory, or NaN for all where one is not finite."""
    finite = jnp.isfinite(y[0])
    for entry in y[1:]:
        finite = finite & jnp.isfinite(entry)
    return tuple(jnp.where(finite, entry, entry.dtype.type(np.nan)) for entry in y)


def stages(tableau: diffrax.ButcherTableau) -> list[int]:
    """Stages of a Runge–Kutta method that its result depends on.

    Args:
        tableau: of an explicit method.

    Returns:
        Their numbers, from 0.
    """
    needed = {i for i, b in enumerate(tableau.b_sol) if b != 0}
    for i in range(len(tableau.b_sol) - 1, 0, -1):
        if i in needed:
            needed |= {j for j, a in enumerate(tableau.a_lower[i - 1]) if a != 0}
    return sorted(needed)


def count_operations(program: ScalarProgram) -> Counter[str]:
    """How often each operation is in a program.

    Args:
        program: from `scalarize`.

    Returns:
        Counts by the names of `jaxdae.kernels.operations.OPERATIONS`.
    """
    nodes = (program.graph.nodes[x] for x in program.graph.needed(program.outputs))
    return Counter(node.operation for node in nodes if node.operation not in (CONSTANT, INPUT))


def _rint(x):
    """The nearest whole number, the even one of two; Triton has no such operation."""
    below = jnp.floor(x)
    rest, half = x - below, x.dtype.type(0.5)
    odd = below - 2 * jnp.floor(below * half) != 0
    rounded = jnp.where((rest > half) | ((rest == half) & odd), below + 1, below)
    rounded = jnp.where(rounded == 0, 0 * x, rounded)  # zeros have a sign
    # What is not finite is its own, since the rest is NaN.
    return jnp.where((rest == 0) | (rest != rest), x, rounded)


_OPERATIONS = {**OWN, "rint": _rint}


def _states(y0: PyTree) -> tuple[Array, list[tuple[int, ...]], np.dtype]:
    """Entries by trajectories, shape of each leaf for one trajectory, and their type."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(y0)]
    dtypes = {x.dtype for x in leaves}
    if len(dtypes) != 1 or dtypes.pop() not in (np.float32, np.float64):
        found = ", ".join(sorted({str(x.dtype) for x in leaves})) or "nothing"
        raise TypeError(f"states are of one type, float32 or float64; got {found}. Convert them.")
    sizes = {x.shape[:1] for x in leaves}
    if len(sizes) != 1 or () in sizes or (0,) in sizes:
        shapes = ", ".join(str(x.shape) for x in leaves)
        raise ValueError(
            f"the first axis of every leaf of y0 is the batch; got shapes {shapes}. Give each leaf "
            "that axis, of one and the same positive size."
        )
    return (
        jnp.concatenate([_entries(x) for x in leaves]),
        [x.shape[1:] for x in leaves],
        leaves[0].dtype,
    )


def _entries(x: Array) -> Array:
    """An array with the batch first, as entries by trajectories."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:])).T


def _task(rhs, y0, shapes, parameters, axes, dtype, batch: int) -> _Task:
    """Take the derivative apart; sort the parameters by whether they are shared."""
    structure = jax.tree.structure(y0)
    leaves, form = jax.tree.flatten(parameters)
    axes = _axes(axes, parameters)
    pairs = [(_parameter(x, dtype), axis is None) for x, axis in zip(leaves, axes, strict=True)]
    _check_lanes(pairs, batch)
    single = [x.shape if is_shared else x.shape[1:] for x, is_shared in pairs]

    def flat(t, *entries):
        y = jax.tree.unflatten(structure, entries[: len(shapes)])
        rate = rhs(t, y, jax.tree.unflatten(form, entries[len(shapes) :]))
        return _checked_rate(rate, structure, shapes)

    examples = [jax.ShapeDtypeStruct(s, dtype) for s in [(), *shapes, *single]]
    program = scalarize(flat, *examples)
    _check_operations(program)
    return _Task(
        program,
        size=sum(math.prod(s) for s in shapes),
        shared=_joined([x.ravel() for x, is_shared in pairs if is_shared], (), dtype),
        own=_joined([_entries(x) for x, is_shared in pairs if not is_shared], (batch,), dtype),
        sources=_sources(single, [is_shared for _, is_shared in pairs]),
    )


def _check_lanes(pairs, batch: int) -> None:
    for x, is_shared in pairs:
        if not is_shared and x.shape[:1] != (batch,):
            raise ValueError(
                f"a parameter of shape {x.shape} has no axis of {batch} trajectories in front; "
                "make it so, or share it: parameters_axes=None."
            )


def _joined(parts: list[Array], rest: tuple[int, ...], dtype) -> Array:
    return jnp.concatenate([jnp.zeros((0, *rest), dtype), *parts])


def _parameter(x, dtype) -> Array:
    try:
        return jnp.asarray(x, dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"parameters are numbers and arrays; got {x!r}. Keep other things out of them, for "
            "example in the closure of rhs."
        ) from error


def _axes(axes: PyTree, parameters: PyTree) -> list[int | None]:
    """The axis of each leaf of the parameters."""
    # A number in place of `None`, which in the parameters is no leaf.
    numbers = jax.tree.map(lambda x: -1 if x is None else x, axes, is_leaf=lambda x: x is None)
    found = jax.tree.leaves(jax.tree.broadcast(numbers, parameters))
    if any(x not in (-1, 0) for x in found):
        raise ValueError(f"parameters_axes are None or 0; got {axes}. Move the batch to the front.")
    return [None if x else 0 for x in found]


def _sources(shapes, shared: list[bool]) -> list[tuple[bool, int]]:
    found, counts = [], {True: 0, False: 0}
    for shape, is_shared in zip(shapes, shared, strict=True):
        found += [(is_shared, counts[is_shared] + i) for i in range(math.prod(shape))]
        counts[is_shared] += math.prod(shape)
    return found


def _checked_rate(rate: PyTree, structure, shapes) -> list[Array]:
    leaves, found = jax.tree.flatten(rate)
    if found != structure or [jnp.shape(x) for x in leaves] != shapes:
        raise ValueError(
            f"rhs returns {found} of shapes {[jnp.shape(x) for x in leaves]}, the state is "
            f"{structure} of shapes {shapes} for one trajectory; return the rate of each leaf."
        )
    return leaves


def _check_tableau(tableau) -> None:
    if not isinstance(tableau, diffrax.ButcherTableau):
        raise TypeError(
            f"tableau is {tableau!r}; give that of an explicit Runge–Kutta method, for example "
            "diffrax.Tsit5.tableau."
        )
    if tableau.implicit:
        raise ValueError(
            "the tableau is of an implicit method, whose stages are solved for; a kernel takes "
            "explicit ones: diffrax.Tsit5.tableau, diffrax.Dopri8.tableau."
        )


def _check_counts(steps, save_every, block) -> None:
    for name, value in (("steps", steps), ("save_every", save_every), ("block", block)):
        if not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name} must be a positive whole number; got {value!r}.")
    if steps % save_every:
        raise ValueError(
            f"steps = {steps} is not a multiple of save_every = {save_every}; take "
            f"{-(-steps // save_every) * save_every} steps."
        )
    if block & (block - 1):
        raise ValueError(f"block = {block} is not a power of two, which Triton wants; take 128.")


def _check_operations(program: ScalarProgram) -> None:
    if "erf" in count_operations(program):
        raise UnsupportedOperationError(
            "erf cannot be made part of a kernel for GPUs: Triton has no such operation. Write it "
            "otherwise, or leave the integration to simulate."
        )


def _scalar(name: str, value, dtype) -> Array:
    if jnp.shape(value) != ():
        raise ValueError(
            f"{name} has shape {jnp.shape(value)}; give a scalar for all trajectories."
        )
    return jnp.asarray(value, dtype)


def _unpacked(rows: Array, y0: PyTree, shapes) -> PyTree:
    """Rows by entries by trajectories, as the leaves of the state with the batch first."""
    sizes = [math.prod(s) for s in shapes]
    parts = jnp.split(jnp.moveaxis(rows, -1, 0), np.cumsum(sizes)[:-1], axis=-1)
    leaves = [x.reshape(*x.shape[:2], *s) for x, s in zip(parts, shapes, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(y0), leaves)
