"""Where the sign of a zero is read: there a program keeps it, elsewhere zeros cost nothing.

A division by zero is positive or negative, and `atan2` lies on one side of its cut or on the other.
From these an analysis goes back through a program, to all that hands a zero on as it is. Pivots of
linear solves are compared with zero, and have no reader here.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.linear_algebra import SOLVES
from jaxdae.primitives.parameters import CALLED

# Arguments whose sign they read where these are zero; the others hand it on, if there are any.
_READ: dict[str, tuple[int, ...]] = {
    **{name: x.signs for name, x in OPERATIONS.items() if x.signs},
    "rsqrt": (0,), "lt_to": (0, 1), "le_to": (0, 1), "eq_to": (0, 1),
}  # fmt: skip
# Their results are no zeros, or positive ones.
_POSITIVE = frozenset((
    *(name for name, x in OPERATIONS.items() if x.positive), "exp2", "logistic", "square",
))  # fmt: skip
# Positive where all arguments are.
_HANDING_ON = (
    "broadcast_in_dim", "concatenate", "convert_element_type", "copy", "max", "min", "reduce_max",
    "reduce_min", "reshape", "rev", "select_n", "slice", "sort", "split", "sqrt", "squeeze",
    "transpose",
)  # fmt: skip
# Of a linear system, or of a program that is compiled on its own, nobody reads how a zero in it
# came about.
_BARRIERS = frozenset((
    *SOLVES, "custom_linear_solve", "cholesky", "triangular_solve", "lu", "qr", "geqrf",
    "householder_product", "ormqr", "call_subprogram",
))  # fmt: skip


def readers(closed: Any, results: bool) -> dict[int, Any]:
    """Equations whose zeros are read, by their identity, of a program and of those inside of it.

    They are kept, so that no other gets the identity of one of them. It is said whether the signs
    of the program's results are read.
    """
    equations: dict[int, Any] = {}
    jaxpr = getattr(closed, "jaxpr", closed)
    _wanted(equations, closed, [results] * len(jaxpr.outvars))
    return equations


def _wanted(equations: dict[int, Any], closed: Any, results: Sequence[bool]) -> list[bool]:
    """Arguments whose signs are read, where some results are."""
    jaxpr = getattr(closed, "jaxpr", closed)
    positive = _positive(closed)
    wanted: set[Any] = set()

    def want(atoms, flags) -> None:
        for atom, flag in zip(atoms, flags, strict=True):
            if flag and not isinstance(atom, jex.Literal):
                wanted.add(atom)

    want(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        asked = [x in wanted for x in equation.outvars]
        want(equation.invars, _of_equation(equations, equation, asked, positive))
    return [x in wanted for x in jaxpr.invars]


def _of_equation(equations: dict[int, Any], equation, asked: list[bool], positive) -> list[bool]:
    """Which arguments are read, for what is asked of the results."""
    name = equation.primitive.name
    if name in _BARRIERS:
        return [False] * len(equation.invars)
    if name in CALLED:
        return _wanted(equations, equation.params[CALLED[name]], asked)
    params = equation.params
    if name == "cond":
        each = [_wanted(equations, x, asked) for x in params["branches"]]
        return [False, *(any(x) for x in zip(*each, strict=True))]
    if name == "while":
        _wanted(equations, params["cond_jaxpr"], [False])
    if name in _BODIES:
        return _repeated(equations, params[_BODIES[name]], len(equation.invars), asked)
    if any(asked):
        # Also where the result is no negative zero: it might become one.
        equations[id(equation)] = equation
    nothing = [False] * len(equation.invars)
    matter = _handed_on(equation, positive) if any(asked) else nothing
    read = _READ.get(name, ())
    if name == "integer_pow" and equation.params["y"] < 0:
        read = (0,) if equation.params["y"] % 2 else ()
    return [x or i in read for i, x in enumerate(matter)]


_BODIES = {"scan": "jaxpr", "while": "body_jaxpr"}


def _repeated(equations, body, count: int, asked: list[bool]) -> list[bool]:
    """What is handed from turn to turn is read if any turn reads it."""
    # All of the state that is handed on is taken for one: loops are few, and their states small.
    reads = _wanted(equations, body, [True] * len(asked) if any(asked) else asked)
    if any(reads) and not any(asked):
        reads = _wanted(equations, body, [True] * len(asked))
    return reads if len(reads) == count else [any(reads)] * count


def _positive(closed: Any) -> set[Any]:
    """Variables of a program that are never a negative zero."""
    jaxpr, fixed = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    constants = zip(jaxpr.constvars, fixed, strict=False)
    equations = {x for x, value in constants if not (_is_exact(x) or _has_negative_zero(value))}
    for equation in jaxpr.eqns:
        if _is_positive(equation, equations):
            equations.update(equation.outvars)
    return equations


def _is_positive(equation, positive: set[Any]) -> bool:
    """Whether results are never a negative zero, whatever zeros the arguments are."""
    return _is_born(equation) or _stays(equation, _are(equation, positive))


def _is_born(equation) -> bool:
    """Whether they are none, whatever the arguments are."""
    name, params, operands = equation.primitive.name, equation.params, equation.invars
    if name in _POSITIVE or all(map(_is_exact, equation.outvars)):
        return True
    if name in ("mul", "dot_general") and operands[0] is operands[1]:
        return True
    if name == "integer_pow":
        return params["y"] % 2 == 0
    # Sums of several terms begin with zero.
    return name in _SUMS and _SUMS[name](operands[0].aval.shape, params) > 1


def _stays(equation, are: list[bool]) -> bool:
    """Whether they are none because the arguments are none."""
    name = equation.primitive.name
    if name in ("add", "add_any"):
        return any(are)
    if name == "sub":
        return are[0]
    return name in _HANDING_ON and all(are)


def _are(equation, positive: set[Any]) -> list[bool]:
    return [_is_exact(x) or _is_known(x, positive) for x in equation.invars]


def _handed_on(equation, positive: set[Any]) -> list[bool]:
    """Arguments whose signs matter for the sign of a result."""
    if _is_born(equation):
        return [False] * len(equation.invars)
    are = _are(equation, positive)
    return are if _stays(equation, are) else [True] * len(are)


# How many terms they have.
_SUMS = {
    "cumsum": lambda shape, params: shape[params["axis"]],
    "dot_general": lambda shape, params: _size(shape, params["dimension_numbers"][0][0]),
    "reduce_sum": lambda shape, params: _size(shape, params["axes"]),
}


def _size(shape, axes) -> int:
    return int(np.prod([shape[i] for i in axes]))


def _is_known(atom, positive: set[Any]) -> bool:
    if isinstance(atom, jex.Literal):
        return not _has_negative_zero(atom.val)
    return atom in positive


def _is_exact(atom) -> bool:
    return not jnp.issubdtype(atom.aval.dtype, np.inexact)


def _has_negative_zero(value) -> bool:
    value = np.asarray(value)
    return value.dtype.kind == "f" and bool(np.any((value == 0) & np.signbit(value)))
