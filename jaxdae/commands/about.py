"""`jaxdae --version`, and `jaxdae --print-completion SHELL`: what completes words in a shell."""

import argparse
import platform
from collections.abc import Iterator
from importlib.metadata import version

from jaxdae.models.registry import catalogue


def versions() -> str:
    """Versions of jaxdae, JAX and Python, without loading JAX."""
    names = [f"{name} {version(name)}" for name in ("jaxdae", "jax")]
    return ", ".join([*names, f"Python {platform.python_version()}"])


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script of a shell, by shtab."""
    try:
        import shtab
    except ImportError:
        parser.error(
            "completion needs the package shtab, which is not installed; "
            "pip install 'jaxdae[completion]' installs it."
        )
    _name_words(parser)
    return shtab.complete(parser, shell)


def _name_words(parser: argparse.ArgumentParser) -> None:
    """Words that are taken by name. Commands refuse others themselves, and say the nearest."""
    # Loaded here: these names are those of classes, which need JAX.
    from jaxdae.simulation.choices import CHOICES

    words = {name.removesuffix("s"): [*kinds] for name, kinds in CHOICES.items()}
    words["model"] = [*catalogue()]
    for action in _actions(parser):
        if action.choices is None and action.dest in words:
            action.choices = words[action.dest]


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action.choices, dict):  # parsers of the verbs
            for command in action.choices.values():
                yield from _actions(command)
