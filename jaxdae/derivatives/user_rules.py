"""Rules of derivatives that users have written: of `jax.custom_jvp` and `jax.custom_vjp`.

Such a rule need not be the derivative of its function: it may be smoothed, clipped or passed
straight through. Its own derivative is then not symmetric, and what is made by that symmetry is
wrong. Those of the libraries that a system is written with are derivatives.
"""

import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex

_LIBRARIES = ("jax", "jaxlib", "equinox", "diffrax", "lineax", "optimistix", "jaxdae")
_REVERSE = "custom_vjp_call"
_KINDS = {"custom_jvp_call": "jax.custom_jvp", _REVERSE: "jax.custom_vjp"}
# Parameters in which a primitive keeps what users have written.
_WRITTEN = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")


class OwnRule(NamedTuple):
    """A rule that a user has written.

    Args:
        source: the function and where it stands, as JAX knows it.
        kind: what wraps it.
        one_way: whether it has a derivative in reverse mode only.
    """

    source: str
    kind: str
    one_way: bool

    def __str__(self) -> str:
        """What the user is shown."""
        return f"{self.source} has a rule of its own ({self.kind})"


def own_rules(closed: Any) -> tuple[OwnRule, ...]:
    """Rules of users in a program of JAX, and in all programs inside of it."""
    rules: dict[OwnRule, None] = {}
    _gather(getattr(closed, "jaxpr", closed), rules)
    return tuple(rules)


def _gather(jaxpr: Any, rules: dict[OwnRule, None]) -> None:
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if is_own(equation):
            rules[OwnRule(_named(equation), _KINDS[name], name == _REVERSE)] = None
        for inner in jex.jaxprs_in_params(equation.params):
            _gather(inner, rules)


def is_own(equation: Any) -> bool:
    """Whether an equation of a program is a function with a rule that a user has written."""
    if equation.primitive.name not in _KINDS:
        return False
    params = equation.params
    function = _file(_source(params["call_jaxpr"].jaxpr))
    rules = [_file(_source(params[x])) for x in _WRITTEN if x in params]
    if not all(_is_of_library(x) for x in (function, *rules)):
        return True
    # equinox wraps functions of others: there it counts who calls them.
    return function == _wrappers() and not _is_of_library(_file(_caller(equation)))


def _named(equation) -> str:
    source = _source(equation.params["call_jaxpr"].jaxpr) or "a function"
    return f"what is called in {_caller(equation)}" if _file(source) == _wrappers() else source


def _source(written: Any) -> str | None:
    return getattr(getattr(written, "debug_info", None), "func_src_info", None)


def _file(source: str | None) -> str | None:
    """The file in `name at file:line`."""
    return None if source is None else source.rpartition(" at ")[2].rpartition(":")[0]


def _caller(equation) -> str | None:
    """From where a wrapped function was called."""
    traceback = equation.source_info.traceback
    for frame in [] if traceback is None else traceback.frames:
        if frame.file_name != _wrappers() and not _within(frame.file_name, jax):
            return f"{frame.function_name} at {frame.file_name}:{frame.line_num}"
    return None


@cache
def _wrappers() -> str:
    return str(Path(eqx.__file__).parent / "_ad.py")


def _is_of_library(file: str | None) -> bool:
    libraries = (sys.modules[x] for x in _LIBRARIES if x in sys.modules)
    return file is not None and any(_within(file, x) for x in libraries)


def _within(file: str, module: Any) -> bool:
    return Path(file).is_relative_to(Path(module.__file__).parent)
