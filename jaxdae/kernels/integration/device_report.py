"""Reports on the kernels that integrations have on GPUs, which need none."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from jaxdae.derivatives.primitives import Axes
from jaxdae.kernels.integration.run import KernelRun, lowered, native_integration
from jaxdae.kernels.launch.platforms import CUDA, device_kernel

# What runs with adaptive steps are taken to have, whose number is known when they have run.
ASSUMED_STEPS = 100


class NoKernelError(ValueError):
    """A function has no integration that is a kernel."""


def kernel_report(
    function: Callable,
    *arguments: Any,
    architecture: str = "sm_90",
    members: int = 2**16,
) -> Any:
    """What the kernel of a simulation takes of a GPU and does there, without a GPU.

    Registers and spills are those of NVIDIA's assembler (`pip install 'jaxdae[gpu-test]'`); a
    roofline of steps per second follows from counted operations and published peaks, and nothing is
    measured.

    Args:
        function: of one member of a batch, which calls `jaxdae.simulate` once; derivatives have
            kernels of their own, which are not reported.
        arguments: arrays that each member has its own of, as of one member.
        architecture: what the kernel is assembled for, `sm_70` or later.
        members: of the batch.

    Returns:
        A `jaxdae.kernels.cuda.report.KernelReport`.

    Raises:
        ValueError: without arguments or members, or where the function has several integrations or
            derivatives of one.
        NoKernelError: where nothing in the function is the kernel of an integration.
        BackendError: with `backend="native"`, where there is none, with the reason.
        AssemblerError: for an architecture that the assembler does not know, or too old a one.
    """
    from jaxdae.kernels.cuda.report import report

    if not arguments or members < 1:
        raise ValueError(
            f"a batch has arguments of which each member has its own, and members; got "
            f"{len(arguments)} and {members}."
        )
    shapes = [jax.ShapeDtypeStruct((members, *jnp.shape(x)), jnp.result_type(x)) for x in arguments]
    traced = jax.make_jaxpr(jax.vmap(function))(*shapes)
    equation = _only(list(_integrations(traced.jaxpr, set())))
    run, axes = equation.params["run"], equation.params["axes"]
    ctx: Any = SimpleNamespace(
        avals_in=[x.aval for x in equation.invars], avals_out=[x.aval for x in equation.outvars]
    )
    as_is = CUDA._replace(launch=lambda _, __, work: work)
    work = lowered(as_is, ctx, run=run, axes=axes)
    step = next(x for x in run.programs() if x.name in ("step", "advance"))
    return report(
        device_kernel(work, ctx.avals_out[0].dtype),
        step,
        architecture=architecture,
        dtype=run.problem.dtype,
        members=axes.members,
        steps=_steps(run, ctx),
        bytes_per_member=_bytes(ctx, axes),
    )


def _only(equations: list[Any]) -> Any:
    """The one integration of a function."""
    if not equations:
        raise NoKernelError(
            "nothing in this function is integrated by a kernel; simulate(..., backend='native') "
            "says why."
        )
    first, *more = equations
    if more or first.primitive is not native_integration:
        names = ", ".join(x.primitive.name for x in equations)
        raise ValueError(
            f"a report is of one integration, and this function has {names}; give a function that "
            "calls simulate once, without a derivative."
        )
    return first


def _integrations(jaxpr: Any, seen: set[int]) -> Iterator[Any]:
    """Integrations and derivatives of them; no program is searched twice."""
    seen.add(id(jaxpr))
    for equation in jaxpr.eqns:
        if equation.primitive.name.startswith(native_integration.name):
            yield equation
        for value in equation.params.values():
            for one in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(one, "jaxpr", one)
                if hasattr(inner, "eqns") and id(inner) not in seen:
                    yield from _integrations(inner, seen)


def _steps(run: KernelRun, ctx: Any) -> int:
    if run.adaptive:
        return ASSUMED_STEPS
    ends = ctx.avals_in[1 + len(run.problem.parameters)]
    return max(ends.shape[-1] - 1, 1)


def _bytes(ctx: Any, axes: Axes) -> int:
    """Of a member's own arguments and results."""
    own = [x for x, has in zip(ctx.avals_in, axes.batched, strict=True) if has] + ctx.avals_out
    return sum(x.size * x.dtype.itemsize for x in own) // max(axes.members, 1)
