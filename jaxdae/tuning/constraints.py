"""Conditions that tuned parameters must meet, as functions of them."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxdae.reprs import Module
from jaxdae.systems.calls import array_in_words


class Equality(Module):
    """`function(params) = 0`, entry by entry.

    Args:
        function: maps the resolved parameters to an array of any shape; traceable.
        name: what messages call it; with a number behind it where several have the same.
    """

    function: Callable
    name: str = eqx.field(static=True, default="equality")


class Inequality(Module):
    """`function(params) >= 0`, entry by entry.

    Args:
        function: maps the resolved parameters to an array of any shape; traceable.
        name: what messages call it; with a number behind it where several have the same.
    """

    function: Callable
    name: str = eqx.field(static=True, default="inequality")


Constraint = Equality | Inequality


def check_constraints(constraints: Any) -> tuple[Constraint, ...]:
    """One constraint or a sequence of them, as a tuple, those of one name numbered."""
    several = tuple(constraints) if isinstance(constraints, Sequence) else (constraints,)
    for x in several:
        if not isinstance(x, Constraint):
            raise ValueError(
                f"tune: a constraint is a {type(x).__name__}, must be Equality(function, name) or "
                "Inequality(function, name), functions of the parameters that are 0, or at least 0."
            )
    return tuple(_numbered(several))


def _numbered(constraints: tuple[Constraint, ...]) -> Iterator[Constraint]:
    """With numbers behind names that several have, from 1: messages must say which it is."""
    names, seen = [x.name for x in constraints], Counter()
    for x in constraints:
        seen[x.name] += 1
        several = names.count(x.name) > 1
        yield dataclasses.replace(x, name=f"{x.name} {seen[x.name]}") if several else x


def constraint_values(constraint: Constraint, params: PyTree) -> Float[Array, " c"]:
    """Values of a constraint as a vector."""
    what = f"the constraint {constraint.name!r}"
    values = jnp.ravel(array_in_words(what, constraint.function, params))
    if values.size == 0 or not jnp.issubdtype(values.dtype, jnp.floating):
        raise ValueError(
            f"tune: {what} returned {values.dtype}[{values.size}], needs at least one real "
            "floating-point number; of a condition that is true or false give what must not be "
            "negative."
        )
    return values
