"""Functions that users write, called with shapes alone, and what is wrong with them in words."""

import inspect
import linecache
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.systems.indices import clipped_index

# Whose frames are not the user's.
_LIBRARIES = tuple(str(Path(x.__file__).parent) for x in (jax, eqx, np) if x.__file__)

_REMEDIES: tuple[tuple[type[Exception], str], ...] = (
    (
        jax.errors.TracerArrayConversionError,
        "it gives a traced array to NumPy; use jax.numpy instead, jnp.sin for np.sin",
    ),
    (
        jax.errors.TracerBoolConversionError,
        "it decides on a value that is known only when the program runs; write "
        "jnp.where(condition, a, b) for `a if condition else b`",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "it selects by a condition, which has no fixed shape; write jnp.where(condition, x, 0.0)",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "it uses a traced value as an integer of Python; index by jnp.take, and repeat by "
        "jax.lax.fori_loop",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "it makes a Python number of a traced array, by float(), .item() or the module math; keep "
        "the array, and use jnp.sin for math.sin",
    ),
)


def call_with_shapes(name: str, function: Callable, args: tuple, names: tuple[str, ...]) -> Any:
    """What a user's function returns, as shapes; nothing is computed.

    A failure names the function, the line, and the remedy; reading past the end of an array is one.
    """
    try:
        # The function is an argument as well: its parameters are traced as they are in a run.
        call = eqx.filter_make_jaxpr(_call)
        program, arrays, others = traced_in_words(name, call, function, *args)
    except UntraceableError:
        raise
    except Exception as error:
        place = _place(error)
        values = ", ".join(
            f"{key}: {describe_shape(x)}" for key, x in zip(names, args, strict=False)
        )
        needs = " Actuators need a State(q, v, w), control inputs a controller."
        raise ValueError(
            f"{name} failed with {type(error).__name__}: {error}{place}. It was given {values}."
            + needs * ("w" in names)
        ) from error
    outside = clipped_index(program)
    if outside is not None:
        raise ValueError(
            f"{name} {outside}{_line(outside.traceback)}. Correct the index, or what is given"
            + (
                ": q and v have one entry for each coordinate, w one for each actuator state, u is "
                "what the controller returns."
                if "q" in names
                else "."
            )
        )
    return eqx.combine(arrays, others)


class UntraceableError(ValueError):
    """A function that decides on traced values, or gives them to what is not JAX."""


def traced_in_words(name: str, function: Callable, *args) -> Any:
    """What a function returns that may be given traced values; other errors are its own."""
    try:
        return function(*args)
    except Exception as error:
        known = next((text for kind, text in _REMEDIES if isinstance(error, kind)), None)
        if known is None:
            raise
        text = f"{name} cannot be traced by JAX{_place(error)}: {known}."
        raise UntraceableError(text) from error


def array_in_words(name: str, function: Callable, *args) -> Any:
    """What a user's function returns that may be given traced values, as an array."""
    returned = traced_in_words(name, function, *args)
    if returned is None:
        raise ValueError(f"{name} returned nothing; end it with `return …`.")
    return jnp.asarray(returned)


def check_instance(name: str, value: Any, kind: Any, example: str) -> None:
    """An argument of the right kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {described(value)}; give {example}.")


def described(value: Any) -> str:
    """A value as it is written, or which class it is."""
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)


def call_in_words(name: str, function: Callable) -> Any:
    """What a user's function of no arguments returns."""
    try:
        return function()
    except Exception as error:
        text = f"{name} failed with {type(error).__name__}: {error}{_place(error)}."
        raise ValueError(text) from error


def _call(function, *args):
    return function(*args)


def check_parameters(name: str, function: Any, names: tuple[str, ...]) -> None:
    """A Python function that can be called with given arguments by position."""
    wanted = ", ".join(names)
    if not callable(function):
        raise ValueError(f"{name} is {function!r}; it must be a function of ({wanted}).")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of builtins, which do not tell
        return
    try:
        signature.bind(*names)
    except TypeError:
        parameters = ", ".join(map(str, signature.parameters.values()))
        raise ValueError(
            f"{name} is declared with the parameters ({parameters}); it must take ({wanted})."
        ) from None


def check_real(name: str, out: Any, *, differentiated: bool) -> None:
    """Numbers that are real, and of floating point where they are differentiated."""
    dtype = jnp.result_type(out) if isinstance(out, int | float | complex) else out.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise ValueError(
            f"{name} returned complex numbers ({dtype}); energies, forces and constraints are "
            "real: return jnp.real(…) of what is meant."
        )
    if jnp.issubdtype(dtype, jnp.bool_) or (differentiated and jnp.issubdtype(dtype, jnp.integer)):
        kind = "booleans" if jnp.issubdtype(dtype, jnp.bool_) else "integers"
        raise ValueError(
            f"{name} returned {kind} ({dtype}), which have no derivatives; return floating-point "
            "numbers: 0.0 for 0, jnp.where(condition, a, b) for a condition."
        )


def describe_shape(x) -> str:
    """The shape of an array in words, or what it is instead."""
    if x is None:
        return "nothing"
    if isinstance(x, int | float | complex):
        return "shape ()"
    shape = getattr(x, "shape", None)
    return f"a {type(x).__name__}" if shape is None else f"shape {shape}"


def _place(error: Exception) -> str:
    """The last line that is not of a library."""
    return _named([(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)])


def _line(traced) -> str:
    """The line that an operation comes from, if JAX kept it; its frames begin with the last."""
    frames = [] if traced is None else traced.frames
    return _named([(f.file_name, f.line_num) for f in reversed(frames)])


def _named(frames: list[tuple]) -> str:
    frames = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)]
    if not frames or frames[-1][0] == __file__:
        return ""
    file, line = frames[-1]
    text = linecache.getline(file, line).strip()
    return f" (line {line} of {Path(file).name}" + f", `{text}`" * bool(text) + ")"


def unwrapped(function: Any) -> Any:
    """A method as it was written, with its `self`."""
    return function if isinstance(function, FunctionType) else getattr(function, "__func__", None)
