"""Whether the value of a traceable function depends on its arguments."""

from collections.abc import Callable

import jax
from jax.extend.core import Literal


def depends_on_arguments(function: Callable, *args) -> bool:
    """Whether anything that a function returns depends on its arguments, as it is traced.

    `False` is sure. `True` may be said of a value that does not, where a program inside of the
    function mixes what does with what does not.

    Args:
        function: of arrays, returns arrays in any pytree.
        *args: pytrees of arrays.
    """
    program = jax.make_jaxpr(function)(*args).jaxpr
    reached = set(program.invars)
    for equation in program.eqns:
        if any(not isinstance(x, Literal) and x in reached for x in equation.invars):
            reached |= set(equation.outvars)
    return any(not isinstance(x, Literal) and x in reached for x in program.outvars)
