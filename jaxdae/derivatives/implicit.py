"""Roots that are differentiated by the implicit function theorem."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def implicit_root(function: Callable, guess, solve: Callable, tangent: Callable) -> tuple[Any, Any]:
    """A root as `jax.lax.custom_root` has it, whose derivative is traced only where it is needed.

    Derivatives are exact to every order, in both modes:

        function(x; p) = 0:    dx = -(dfunction/dx)^-1 (dfunction/dp) dp

    Args:
        function: of an array, gives one of its shape.
        guess: where to begin.
        solve: `solve(function, guess)`, the root and what else there is to say of it.
        tangent: a pytree, `tangent(linear, right)` the solution of `linear(x) = right`.
    """
    function = eqx.filter_closure_convert(jax.jit(function), guess)
    found_by = eqx.filter_closure_convert(lambda guess: solve(function, guess), guess)
    return _found(function, found_by, guess, tangent)


@eqx.filter_custom_jvp
def _found(function, found_by, guess, tangent):
    del function, tangent
    return found_by(guess)


@_found.def_jvp
def _found_jvp(primals, tangents):
    function, _, _, tangent = primals
    x, more = _found(*primals)
    _, right = eqx.filter_jvp(lambda function: function(x), (function,), (tangents[0],))
    _, linear = jax.linearize(function, x)
    none = jax.tree.map(lambda _: None, more)
    return (x, more), (tangent(linear, -right), none)
