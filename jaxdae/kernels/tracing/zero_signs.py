"""Where the sign of a zero is read: there a program keeps it, elsewhere zeros cost nothing.

A division by zero is positive or negative, and `atan2` lies on one side of its cut or on the other.
From these an analysis goes back through a program, to all that it is made of. Pivots of
linear solves are compared with zero, and have no reader here.
"""

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.linear_algebra import SOLVES
from jaxdae.kernels.tracing.parameters import CALLED

# Arguments whose sign they read where these are zero; the others hand it on, if there are any.
_READ: dict[str, tuple[int, ...]] = {
    **{name: x.signs for name, x in OPERATIONS.items() if x.signs},
    "rsqrt": (0,), "lt_to": (0, 1), "le_to": (0, 1), "eq_to": (0, 1),
}  # fmt: skip
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
    wanted: set[Any] = set()

    def want(atoms, flags) -> None:
        for atom, flag in zip(atoms, flags, strict=True):
            if flag and not isinstance(atom, jex.Literal):
                wanted.add(atom)

    want(jaxpr.outvars, results)
    for equation in reversed(jaxpr.eqns):
        asked = [x in wanted for x in equation.outvars]
        want(equation.invars, _of_equation(equations, equation, asked))
    return [x in wanted for x in jaxpr.invars]


def _of_equation(equations: dict[int, Any], equation, asked: list[bool]) -> list[bool]:
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
        equations[id(equation)] = equation
    read = _READ.get(name, ())
    if name == "integer_pow" and equation.params["y"] < 0:
        read = (0,) if equation.params["y"] % 2 else ()
    return [any(asked) or i in read for i in range(len(equation.invars))]


_BODIES = {"scan": "jaxpr", "while": "body_jaxpr"}


def _repeated(equations, body, count: int, asked: list[bool]) -> list[bool]:
    """What is handed from turn to turn is read if any turn reads it."""
    # All of the state that is handed on is taken for one: loops are few, and their states small.
    reads = _wanted(equations, body, [True] * len(asked) if any(asked) else asked)
    if any(reads) and not any(asked):
        reads = _wanted(equations, body, [True] * len(asked))
    return reads if len(reads) == count else [any(reads)] * count
