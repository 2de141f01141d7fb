"""The project's folders, and its public names, read from export lists: nothing is imported."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jaxdae"
DATA = ROOT / "docs" / "data"


class Room(NamedTuple):
    """A package and what it exports.

    Args:
        name: such as "jaxdae.tuning".
        summary: first line of its docstring.
        names: exported, in alphabetical order.
    """

    name: str
    summary: str
    names: tuple[str, ...]


def rooms() -> list[Room]:
    """Every package that exports names, the top one first."""
    found = [_room(PACKAGE), *map(_room, sorted(x.parent for x in PACKAGE.glob("*/__init__.py")))]
    return [x for x in found if x.names]


def _room(folder: Path) -> Room:
    stub = folder / "__init__.pyi"
    tree = ast.parse((stub if stub.exists() else folder / "__init__.py").read_text())
    names = sorted(set(_exported(tree)), key=str.lower)
    dotted = ".".join(folder.relative_to(ROOT).parts)
    own = tuple(x for x in names if not (folder / x / "__init__.py").exists())
    return Room(dotted, _summary(tree), own)


def first_line(script: Path) -> str:
    """What a script says of itself, in a line."""
    return _summary(ast.parse(script.read_text()))


def _summary(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def _exported(tree: ast.Module) -> Iterator[str]:
    """Names imported as themselves: `from .a import B as B`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield from (x.name for x in node.names if x.asname == x.name and x.name[0] != "_")
