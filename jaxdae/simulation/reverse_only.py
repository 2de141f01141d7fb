"""Plain runs that have a derivative in reverse mode alone, and say so.

What diffrax checkpoints is, for JAX, a function with a rule for the reverse mode alone. Asked for
another derivative, JAX names neither the run nor the remedy.
"""

from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.extend.core as jex
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad, batching, mlir

_REMEDY = (
    "Give simulate(..., adjoint=diffrax.DirectAdjoint()) for derivatives in both modes and for "
    "second ones{}."
)


class _Words(NamedTuple):
    """What is said of a forward derivative, and of a second one; `None` where that is known."""

    forward: str
    second: str | None


def reverse_only(values: Any, solver: Any, why_plain: str | None) -> Any:
    """What a run depends on, so that other derivatives by it than the run has raise an error.

    Args:
        values: arrays in any pytree.
        solver: the method of the run, not one that projects.
        why_plain: why no kernel makes the run; `None` where none was asked for.

    Returns:
        The same.

    Raises:
        NotImplementedError: when the derivative is made.
    """
    because = "" if why_plain is None else f", as it is plain ({why_plain})"
    forward = f"the run has no derivative in forward mode{because}. " + _REMEDY.format(
        ", or adjoint=diffrax.ForwardMode()"
    )
    second = f"the run has no second derivatives{because}. {_REMEDY.format('')}"
    # The steps of others have no loop over stages inside of the checkpoints.
    while isinstance(solver, diffrax.AbstractWrappedSolver):
        solver = solver.solver
    staged = isinstance(solver, diffrax.AbstractRungeKutta) and solver.scan_kind is None
    arrays, rest = eqx.partition(values, eqx.is_inexact_array)
    return eqx.combine(_once(_Words(forward, second if staged else None), arrays), rest)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _once(words: _Words, x):
    return x


@partial(_once.defjvp, symbolic_zeros=True)
def _once_jvp(words: _Words, primals, tangents):
    (x,), (move,) = primals, tangents

    def marked(at, along):
        # What does not move is left out, as programs made by `jax.checkpoint` compute it.
        still = isinstance(along, SymbolicZero)
        return along if still else _transposed_only.bind(at, along, words=words.forward)

    return _twice(words, x), jax.tree.map(marked, x, move)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _twice(words: _Words, x):
    return x


@_twice.defjvp
def _twice_jvp(words: _Words, primals, tangents):
    if words.second is not None:
        raise NotImplementedError(words.second)
    return primals[0], tangents[0]


# A direction beside what it is of, and nothing that can be computed until it has been transposed.
_transposed_only = jex.Primitive("transposed_only")


def _refused(*arguments, words: str):
    raise NotImplementedError(words)


def _batched(values, axes, *, words: str):
    at, along = axes
    if at is None:  # several directions of one run, as `jax.jacfwd` has them
        _refused(words=words)
    return _transposed_only.bind(*values, words=words), along


def _jvp(primals, tangents, *, words: str):
    result = _transposed_only.bind(*primals, words=words)
    still = type(tangents[1]) is ad.Zero
    more = tangents[1] if still else _transposed_only.bind(primals[0], tangents[1], words=words)
    return result, more


_transposed_only.def_impl(_refused)
_transposed_only.def_abstract_eval(lambda x, along, words: along)
mlir.register_lowering(_transposed_only, lambda ctx, *given, words: _refused(words=words))
batching.primitive_batchers[_transposed_only] = _batched
ad.primitive_jvps[_transposed_only] = _jvp
ad.primitive_transposes[_transposed_only] = lambda bar, x, along, words: [None, bar]
