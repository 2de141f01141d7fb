"""Functions as native kernels that JAX can batch and differentiate."""

from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.interpreters import batching, mlir

from jaxdae.kernels import machine_code
from jaxdae.kernels.assembly import module
from jaxdae.kernels.trace import scalarize, ScalarProgram


class _Kernel:
    """A scalar program and the machine code that was made of it, for one function and shapes."""

    def __init__(self, program: ScalarProgram, dtype):
        self.program, self.dtype = program, np.dtype(dtype)
        # For calls outside of any transformation: one compiled program for all of them.
        self.eager = jax.jit(lambda *arguments: _call.bind(*arguments, kernel=self))

    def target(self, rank: int, members: int, threads: int) -> str:
        """Name of the compiled code for batches of a rank and a size."""
        width = machine_code.host_width(8 * self.dtype.itemsize) if members > 1 else 1
        text = module(self.program, width, self.dtype, rank, threads)
        return machine_code.register(text, self.program.content())


_call = jex.Primitive("native_kernel")
_call.multiple_results = True


def _batch_shape(kernel: _Kernel, shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[: len(shape) - len(kernel.program.inputs[0].shape)]


@_call.def_abstract_eval
def _shapes(*arguments, kernel: _Kernel):
    batch = _batch_shape(kernel, arguments[0].shape)
    return [ShapedArray((*batch, *x.shape), kernel.dtype) for x in kernel.program.results]


def _lowered(ctx, *arguments, kernel: _Kernel):
    batch = _batch_shape(kernel, ctx.avals_in[0].shape)
    members = int(np.prod(batch))
    name = kernel.target(len(batch), members, machine_code.default_threads())
    return jax.ffi.ffi_lowering(name)(ctx, *arguments)


def _batched(arguments, axes, *, kernel: _Kernel):
    sizes = (x.shape[a] for x, a in zip(arguments, axes, strict=True) if a is not None)
    size = next(sizes)
    moved = [
        jnp.broadcast_to(x, (size, *x.shape)) if a is None else jnp.moveaxis(x, a, 0)
        for x, a in zip(arguments, axes, strict=True)
    ]
    found = _call.bind(*moved, kernel=kernel)
    return found, [0] * len(found)


mlir.register_lowering(_call, _lowered, platform="cpu")
batching.primitive_batchers[_call] = _batched
_call.def_impl(lambda *arguments, kernel: kernel.eager(*arguments))


def native(function: Callable, *examples) -> Callable:
    """A function of small arrays as machine code, for use inside JAX.

    It can be compiled, batched and differentiated like the function itself, in both modes and to
    every order: its derivative is the kernel of its Jacobian matrices, times the tangents.

    Args:
        function: traceable by JAX; takes and returns floating-point arrays, in any pytrees.
        examples: its arguments, or their shapes.

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
        out, found = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
        results[:] = [found]
        return out

    shapes = [jax.ShapeDtypeStruct(np.shape(x), jnp.result_type(x)) for x in leaves]
    kernel = _differentiable(flat, shapes)

    def call(*arguments):
        given, own = jax.tree.flatten(arguments)
        if own != structure:
            raise ValueError(f"the kernel takes {structure}, got {own}.")
        for x, shape in zip(given, shapes, strict=True):
            if np.shape(x) != shape.shape or jnp.result_type(x) != shape.dtype:
                raise ValueError(
                    f"the kernel was made for {shape.dtype}{list(shape.shape)}, got "
                    f"{jnp.result_type(x)}{list(np.shape(x))}; make one for these, or use jax.vmap."
                )
        return jax.tree.unflatten(results[0], kernel(*given))

    return call


def _jacobians(flat: Callable, shapes) -> Callable:
    """Derivatives of each result by each argument, one after the other."""
    every = tuple(range(len(shapes)))

    def function(*arguments):
        rows = jax.jacfwd(lambda *x: tuple(flat(*x)), argnums=every)(*arguments)
        return [block for row in rows for block in row]

    return function


def _dtype(program: ScalarProgram) -> np.dtype:
    """The one type of all arguments and results."""
    if not program.inputs or not program.results:
        raise TypeError("a kernel needs one argument and one result at least.")
    found = {np.dtype(x.dtype) for x in (*program.inputs, *program.results)}
    if len(found) != 1 or found.pop() not in (np.float64, np.float32):
        given, results = (
            [str(x.dtype) for x in part] for part in (program.inputs, program.results)
        )
        raise TypeError(
            f"a kernel takes and returns arrays of one type, float64 or float32; got {given} and "
            f"{results}."
        )
    return np.dtype(program.inputs[0].dtype)


def _differentiable(flat: Callable, shapes) -> Callable:
    """A kernel whose derivative is another, made when it is asked for."""
    program = scalarize(flat, *shapes)
    made = _Kernel(program, _dtype(program))
    jacobians: list[Callable] = []

    @jax.custom_jvp
    def call(*arguments):
        return tuple(_call.bind(*arguments, kernel=made))

    @call.defjvp
    def _(primals, tangents):
        if not jacobians:
            jacobians.append(_differentiable(_jacobians(flat, shapes), shapes))
        rows = jacobians[0](*primals)
        n = len(primals)
        found = [
            sum(
                jnp.tensordot(rows[n * i + j], tangent, tangent.ndim)
                for j, tangent in enumerate(tangents)
            )
            for i in range(len(program.results))
        ]
        return call(*primals), tuple(found)

    return call
