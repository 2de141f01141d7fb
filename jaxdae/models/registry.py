"""The ready systems by name, found in the files of this folder.

A file is a model's one place: one that ends with `MODELS = (Model(...), ...)` is found. Name,
summary and source are read from that text, so that models can be listed without loading JAX; the
file is loaded when one of its models is asked for.
"""

import ast
import functools
import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TYPE_CHECKING

from jaxdae.names import unknown_name

if TYPE_CHECKING:
    from jaxdae.models.base import Model, Rest

_RECORD = "\nMODELS = "


class UnknownModelError(ValueError):
    """No ready system has the name that was asked for."""


class NoRestError(ValueError):
    """A ready system has no state of rest that could be analyzed."""


class Entry(NamedTuple):
    """What is said of a ready system before it is loaded.

    Args:
        place: in the order of the list.
        name: name on the command line.
        summary: one line.
        source: where the system, its numbers or its reference come from.
        module: its file.
    """

    place: float
    name: str
    summary: str
    source: str
    module: str


@functools.cache
def catalogue() -> dict[str, Entry]:
    """What the files of this folder say of their models, by name, in the order of their places."""
    results = []
    for module in pkgutil.iter_modules(import_module("jaxdae.models").__path__):
        spec: Any = module.module_finder.find_spec(module.name, None)
        results += _entries(module.name, spec.loader.get_source(module.name))
    return {entry.name: entry for entry in sorted(results)}


def _entries(module: str, text: str) -> Iterator[Entry]:
    """The records of a file. Only the text from `MODELS` on is parsed, a tenth of all."""
    _, result, record = text.partition(_RECORD)
    if not result:
        return
    (statement, *_) = ast.parse(_RECORD + record).body
    for call in statement.value.elts:  # pyright: ignore[reportAttributeAccessIssue]
        words = {x.arg: x.value for x in call.keywords}
        fields = (x for x in Entry._fields if x != "module")
        yield Entry(**{x: ast.literal_eval(words[x]) for x in fields}, module=module)


class _Models(Mapping[str, "Model"]):
    """The ready systems by name; one is loaded when it is taken."""

    def __getitem__(self, name: str) -> "Model":
        models = import_module(f"jaxdae.models.{catalogue()[name].module}").MODELS
        return next(model for model in models if model.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue())

    def __len__(self) -> int:
        return len(catalogue())


MODELS: Mapping[str, "Model"] = _Models()


def get_model(name: str) -> "Model":
    """The ready system of a given name.

    Args:
        name: one of the keys of `MODELS`.

    Returns:
        Its entry.

    Raises:
        UnknownModelError: if there is none; the message lists the names and the closest one.
    """
    if name in catalogue():
        return MODELS[name]
    raise UnknownModelError(unknown_name("model", name, MODELS))


def rest_of(model_name: str) -> "Rest":
    """Where a ready system rests.

    Args:
        model_name: a name of the registry.

    Returns:
        Its `Rest`.

    Raises:
        UnknownModelError: for a name that is not registered.
        NoRestError: for a system without a state of rest, with the reason and those that have one.
    """
    rest = get_model(model_name).rest
    if not isinstance(rest, str):
        return rest
    known = ", ".join(name for name, model in MODELS.items() if not isinstance(model.rest, str))
    raise NoRestError(
        f"the model {model_name!r} has no state of rest to analyze: {rest}. Models that have "
        f"one: {known}."
    )
