"""What a traced function depends on, read off its program."""

from collections.abc import Callable

import jax
from jax.extend.core import ClosedJaxpr
from jax.interpreters.partial_eval import dce_jaxpr


def depends_on(function: Callable, argument: int, *args) -> bool:
    """Whether the program of `function` uses one of its arguments, an index. Computes no values.

    Dead code is removed first, so a derivative that is constant is seen to be constant where the
    chain rule makes it so: `v @ M @ v` has a Hessian that does not depend on `v`. The answer is on
    the safe side: `jnp.linalg.norm(v) ** 2` counts as dependent, though its Hessian is constant.
    """
    return used_leaves(function, *args)[argument]


def depends_on_any(function: Callable, *args) -> bool:
    """Whether the program of a function of pytrees uses any of its arguments."""
    return any(used_leaves(function, *args))


def used_leaves(function: Callable, *args) -> list[bool]:
    """Whether each leaf of the arguments is used."""
    return used_inputs(jax.make_jaxpr(function)(*args))


def used_inputs(program: ClosedJaxpr) -> list[bool]:
    """Whether each input of a program is used."""
    jaxpr = program.jaxpr
    return dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[1]
