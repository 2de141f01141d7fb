"""What a declaration says besides its functions: the names in a class, parameters, labels."""

import difflib
import inspect
import warnings
from typing import Any

import equinox as eqx
import jax
import numpy as np

from jaxdae.systems.base import Labels, System
from jaxdae.systems.calls import call_in_words, check_parameters, unwrapped


def check_class(declared: type, kind: type = System) -> None:
    """Names in a declaration that would be left out in silence.

    A `ValueError` names a function whose name is nearly one of the contract, a `UserWarning` a
    number without an annotation, which is no parameter.
    """
    contract = [name for name in vars(kind) if not name.startswith("_")]
    written = [base for base in declared.__mro__ if issubclass(base, kind) and base is not kind]
    fields = {name for base in written for name in inspect.get_annotations(base)}
    for owner, name in ((base, name) for base in written for name in vars(base)):
        if name.startswith("_") or name in contract:
            continue
        close = difflib.get_close_matches(name, contract, n=1, cutoff=0.92)
        if close:
            raise ValueError(
                f"{declared.__name__}.{name} is not a function of the declaration, and would be "
                f"ignored; {close[0]!r} is probably meant. Otherwise give it another name."
            )
        value = vars(owner)[name]
        if name not in inspect.get_annotations(owner) and _is_parameter(value):
            warnings.warn(_unannotated(owner.__name__, name, value, name in fields), stacklevel=2)


def _is_parameter(value) -> bool:
    number = isinstance(value, int | float | np.ndarray | jax.Array)
    return (number and not isinstance(value, bool)) or _stands_for_value(value)


def _unannotated(declared: str, name: str, value, inherited: bool) -> str:
    if _stands_for_value(value):
        return (
            f"{declared}.{name} is a {type(value).__name__} in the body of the class, without an "
            f"annotation: no parameter, so nothing tunes it. Write {name}: float = … with a "
            f"number, and tune it from outside, jaxdae.tune(objective, {declared}({name}="
            f"{type(value).__name__}(…)))."
        )
    what = f"{declared}.{name} = {value!r} has no annotation"
    if inherited:
        return f"{what}, and the inherited default stays; write {name}: float = {value!r}."
    return (
        f"{what}, and is therefore a constant and no parameter: nothing differentiates, batches or "
        f"tunes it. Write {name}: float = {value!r}, or, for a constant, "
        f"{name}: typing.ClassVar[float] = {value!r}."
    )


def _stands_for_value(x: Any) -> bool:
    """Whether it is a parametrization, such as `Positive`: a raw array and its value."""
    derived = isinstance(getattr(type(x), "value", None), property)
    return isinstance(x, eqx.Module) and derived and hasattr(x, "raw")


def check_resolved(system: Any) -> None:
    """Parameters are numbers; a parametrization stands for one only while it is tuned."""
    result, _ = jax.tree_util.tree_flatten_with_path(system, is_leaf=_stands_for_value)
    for path, value in result:
        if _stands_for_value(value):
            name, kind = type(system).__name__, type(value).__name__
            raise TypeError(
                f"{name}{jax.tree_util.keystr(path)} is a {kind}, not a number: jaxdae.tune puts "
                f"the values of parametrizations in their places, in the parameters it is given, "
                "and hands them to the objective. Anywhere else give numbers, or "
                "jaxdae.tuning.resolve(system)."
            )


def check_labels(system: System) -> None:
    """Labels come from a function, which fails nowhere."""
    name = f"{type(system).__name__}.labels"
    how, labels = "is", system.labels
    if callable(labels):
        written = unwrapped(getattr(type(system), "labels", None))
        check_parameters(name, *((written, ("self",)) if written else (labels, ())))
        how, labels = "returned", call_in_words(name, labels)
    if how == "is" or not isinstance(labels, Labels):
        raise TypeError(
            f"{name} {how} {labels!r}; it must be a function that returns "
            'jaxdae.Labels(coordinates=("x", "y"), …).'
        )


def check_label_counts(system: System, n: int, velocities: int, constraints: int) -> None:
    """Fewer names than things are numbered; more of them belong to something else."""
    labels = system.labels()
    for field, most, what in (
        ("coordinates", n, "coordinate"),
        ("units", n, "coordinate"),
        ("velocities", velocities, "velocity"),
        ("velocity_units", velocities, "velocity"),
        ("constraints", constraints, "constraint"),
        ("constraint_units", constraints, "constraint"),
    ):
        names = getattr(labels, field)
        if len(names) > most:
            raise ValueError(
                f"{type(system).__name__}.labels gives {len(names)} {field.replace('_', ' ')} "
                f"({', '.join(names)}), but the system has {most} {what}{'s'[: most != 1]}; name "
                "position constraints first, then velocity constraints, each once."
            )
