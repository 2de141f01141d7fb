"""Functions as native kernels that JAX can batch and differentiate."""

from collections.abc import Callable
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from jaxdae.derivatives.functions import evaluate, Function
from jaxdae.derivatives.primitives import (
    Axes,
    moving,
    primitive,
    pushed,
    replaced,
    results,
    summed,
    varying_together,
)
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.emission.instructions import elementary_calls, emit
from jaxdae.kernels.launch.platforms import on_platforms, Platform, Work
from jaxdae.kernels.llvm.batch_loops import Buffer, Lanes
from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Integer
from jaxdae.kernels.tracing.subprograms import ScalarProgram
from jaxdae.kernels.tracing.trace import scalarize, UnsupportedOperationError


class _Kernel:
    """A function of arrays as a scalar program, and the kernels of its derivatives.

    Args:
        function: takes and returns arrays.
        shapes: of its arguments.
        strict: whether a derivative that cannot be made a kernel is refused; it is JAX's otherwise.
    """

    def __init__(self, function: Callable, shapes, strict: bool = True):
        self.function, self.shapes, self.strict = function, tuple(shapes), strict
        self.program = scalarize(function, *self.shapes)
        self.dtype = _dtype(self.program)
        self.depends = self.program.depends()
        self._derivatives: dict[tuple, _Kernel | Function] = {}

    def work(self, axes: Axes, lanes: Lanes) -> Work:
        """What is launched for a batch."""
        content = f"{axes.batched}\n{self.program.content()}"
        return Work(definitions(self.program, lanes, axes), axes, content, 8 * lanes.width)

    def __call__(self, *arguments) -> list:
        """Results for one member."""
        axes = Axes((), (False,) * len(arguments))
        return _call.bind(*varying_together(arguments), kernel=self, axes=axes)

    def tangent(self, by: tuple[int, ...]) -> "_Kernel | Function":
        """The kernel of the derivative by some arguments along one direction.

        It takes all arguments and then the direction.
        """

        def function(*arguments):
            primals, moves = arguments[: len(self.shapes)], arguments[len(self.shapes) :]
            varied, points = self._varied(primals, by)
            return jax.jvp(varied, points, moves)[1]

        return self._derived(("tangent", by), function, [self.shapes[i] for i in by])

    def cotangent(self, by: tuple[int, ...], of: tuple[int, ...]) -> "_Kernel | Function":
        """The transpose of `tangent`, of some of the results."""

        def function(*arguments):
            primals, bars = arguments[: len(self.shapes)], arguments[len(self.shapes) :]
            varied, points = self._varied(primals, by)
            return jax.vjp(lambda *x: tuple(varied(*x)[i] for i in of), *points)[1](bars)

        more = [self.program.results[i] for i in of]
        return self._derived(("cotangent", by, of), function, more)

    def _varied(self, primals, by):
        def varied(*some):
            return tuple(self.function(*replaced(primals, by, some)))

        return varied, tuple(primals[i] for i in by)

    def _derived(self, key, function, more) -> "_Kernel | Function":
        if key not in self._derivatives:
            self._derivatives[key] = self._made(function, (*self.shapes, *more))
        return self._derivatives[key]

    def _made(self, function, shapes) -> "_Kernel | Function":
        try:
            return _Kernel(function, shapes, self.strict)
        except UnsupportedOperationError as error:
            if self.strict:
                raise UnsupportedOperationError(
                    f"the function has a native kernel, but not its derivative: {error} Use it "
                    "without jaxdae.kernels.native, or simulate(..., backend='plain')."
                ) from None
        entries = tuple(jax.tree.leaves(jax.eval_shape(function, *shapes)))
        return Function(lambda mode, *arguments: jax.tree.leaves(function(*arguments)), entries)  # noqa: ARG005


def definitions(program: ScalarProgram, lanes: Lanes, axes: Axes) -> list[Definition]:
    """The function of a program for members of a batch, and what it calls."""
    names, kind = elementary_calls(program), (lanes.width, lanes.dtype)
    elementary = [x for name in names for x in elementary_functions.function(name, *kind)]
    return [*elementary, _run(program, lanes, axes)]


def _run(program: ScalarProgram, lanes: Lanes, axes: Axes) -> Definition:
    """`@run(arguments, results, begin, end)`: members `begin` to `end - 1` of the batch.

    Blocks of `width` members; the last one begins early enough to be full, and where there are
    fewer members than that, the last is taken again.
    """
    width = lanes.width
    ranks, sizes = axes.ranks(), [int(np.prod(x.shape)) for x in program.inputs]
    arguments = [
        Buffer(lanes, lanes.arguments, i, size, ranks[i], 0) for i, size in enumerate(sizes)
    ]
    results = [
        Buffer(lanes, lanes.results, i, int(np.prod(x.shape)), axes.rank or 1, 0)
        for i, x in enumerate(program.results)
    ]
    last, top = lanes.end - width, lanes.end - 1
    early = (last >= lanes.begin).choose(last, lanes.begin)
    with lanes.turns(lanes.begin, lanes.end, lanes.stride * width) as turns:
        block = Integer(lanes, turns.index)
        first = (block <= last).choose(block, early)
        members = [lanes.minimum(first + i, top) for i in range(width)]
        inputs = [
            _everywhere(lanes, x, j) if x.shared else _gathered(lanes, x, members, j)
            for x, size in zip(arguments, sizes, strict=True)
            for j in range(size)
        ]
        registers = iter(emit(lanes, program, inputs.__getitem__))
        for x in results:
            for j in range(x.size):
                register = next(registers)
                for i, member in enumerate(members):
                    x.write(lanes.entry(register, i), member, j)
    return lanes.finish()


def _gathered(lanes: Lanes, argument: Buffer, members: list[Integer], j: int) -> str:
    vector = "poison"
    for i, member in enumerate(members):
        vector = lanes.with_entry(vector, argument.read(member, j), i)
    return vector


def _everywhere(lanes: Lanes, argument: Buffer, j: int) -> str:
    """A number that all members share."""
    return lanes.repeated(argument.read(0, j))


# The kernel itself.


def _shapes(*arguments, kernel: _Kernel, axes: Axes):
    shapes = [(*axes.shape, *x.shape) for x in kernel.program.results]
    return results(shapes, kernel.dtype, arguments)


def _lowered(platform: Platform, ctx, *arguments, kernel: _Kernel, axes: Axes):
    lanes = platform.writer(kernel.dtype, axes, ctx)
    return platform.launch(ctx, arguments, kernel.work(axes, lanes))


_call = primitive("native_kernel", _shapes, lowerings=on_platforms(_lowered))


def _jvp(primals, tangents, *, kernel: _Kernel, axes: Axes):
    result = _call.bind(*primals, kernel=kernel, axes=axes)
    # No derivative is computed by arguments that do not change, or do not matter.
    by = tuple(i for i in moving(tangents) if kernel.depends[i])
    if not by:
        return result, [ad.Zero(jax.typeof(x).to_tangent_aval()) for x in result]
    more = Axes(axes.shape, (*axes.batched, *(axes.batched[i] for i in by)))
    moves = (tangents[i] for i in by)
    return result, _along.bind(*primals, *moves, kernel=kernel, axes=more, by=by)


ad.primitive_jvps[_call] = _jvp

# Its derivative along a direction: linear in it.


def _along_shapes(*arguments, kernel: _Kernel, axes: Axes, by):
    del by
    return _shapes(*arguments, kernel=kernel, axes=axes)


def _by_kernel(*arguments, kernel: _Kernel, axes: Axes, by):
    return _value(kernel.tangent(by), arguments, axes)


def _value(derivative: _Kernel | Function, arguments, axes: Axes) -> list:
    if isinstance(derivative, Function):
        return evaluate(derivative, arguments, axes)
    return _call.bind(*arguments, kernel=derivative, axes=axes)


def _along_jvp(primals, tangents, **parameters):
    return pushed(lambda *x: _by_kernel(*x, **parameters), primals, tangents)


def _along_transposed(bars, *arguments, kernel: _Kernel, axes: Axes, by):
    primal_count = len(kernel.shapes)
    of = moving(bars)
    more = Axes(axes.shape, (*axes.batched[:primal_count], *(True for _ in of)))
    operands = (*arguments[:primal_count], *(bars[i] for i in of))
    entries = _value(kernel.cotangent(by, of), operands, more)
    # What nothing depends on has no derivative, also where that of the function is not finite.
    within = lambda x: tuple(range(axes.rank, x.ndim))  # noqa: E731
    wanted = reduce(jnp.logical_or, (jnp.any(bars[i] != 0, within(bars[i])) for i in of))
    entries = [
        jnp.where(wanted.reshape(*wanted.shape, *(1 for _ in within(x))), x, jnp.zeros_like(x))
        for x in entries
    ]
    moves = zip(entries, axes.batched[primal_count:], strict=True)
    return [None] * primal_count + [summed(x, has, axes) for x, has in moves]


_along = primitive("native_kernel_tangents", _along_shapes, computed=_by_kernel)
ad.primitive_jvps[_along] = _along_jvp
ad.primitive_transposes[_along] = _along_transposed


def native(function: Callable, *examples, strict: bool = True) -> Callable:
    """A function of small arrays as machine code, for use inside JAX.

    It can be compiled, batched and differentiated like the function itself, in both modes and to
    every order: derivatives along directions, and their transposes, are kernels of their own. The
    sign of a zero is kept where the function reads it, not in its results.

    Args:
        function: traceable by JAX; takes and returns floating-point arrays, in any pytrees.
        examples: its arguments, or their shapes.
        strict: whether a derivative that cannot be made a kernel is refused when it is wanted;
            otherwise that of JAX takes its place.

    Returns:
        A function of the same arguments.

    Raises:
        UnsupportedOperationError: for an operation that cannot be made part of a kernel.
        TypeError: for arguments or results that are not all of one floating-point type.
        ImportError: where llvmlite is not installed.
    """
    leaves, structure = jax.tree.flatten(examples)
    results: list[Any] = []

    def flat(*leaves):
        out, result = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
        results[:] = [result]
        return out

    shapes = [jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)) for x in leaves]
    kernel = _Kernel(flat, shapes, strict)

    def call(*arguments):
        operands, tree = jax.tree.flatten(arguments)
        if tree != structure:
            raise ValueError(f"the kernel takes {structure}, got {tree}.")
        for x, shape in zip(operands, shapes, strict=True):
            if np.shape(x) != shape.shape or jnp.result_type(x) != shape.dtype:
                raise ValueError(
                    f"the kernel was made for {shape.dtype}{list(shape.shape)}, got "
                    f"{jnp.result_type(x)}{list(np.shape(x))}; make one for these, or use jax.vmap."
                )
        return jax.tree.unflatten(results[0], kernel(*operands))

    return call


def _dtype(program: ScalarProgram) -> np.dtype:
    """The one type of all arguments and results."""
    if not program.inputs or not program.results:
        raise TypeError("a kernel needs one argument and one result at least.")
    entries = {np.dtype(x.dtype) for x in (*program.inputs, *program.results)}
    if len(entries) != 1 or entries.pop() not in (np.float64, np.float32):
        arguments, results = (
            [str(x.dtype) for x in part] for part in (program.inputs, program.results)
        )
        raise TypeError(
            f"a kernel takes and returns arrays of one type, float64 or float32; got {arguments} "
            f"and {results}."
        )
    return np.dtype(program.inputs[0].dtype)
