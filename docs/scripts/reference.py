"""Pages of the public names: one for each, one for each package, from docstrings."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from names import PACKAGE, Room, rooms


def pages() -> Iterator[tuple[str, str]]:
    """Paths below `docs/` and contents."""
    yield "api/index.md", _index()
    for room in rooms():
        yield f"api/{slug(room)}/index.md", _room(room)
    for path, names in by_page().items():
        yield path, _names(names)


def slug(room: Room) -> str:
    """Folder of the pages of a package."""
    return room.name.replace(".", "-")


@cache
def homes() -> dict[str, str]:
    """The package whose pages have a name, by its full name in every package that exports it.

    What the top package exports has its page there.
    """
    top = rooms()[0]
    return {
        f"{room.name}.{name}": f"{top.name if name in top.names else room.name}.{name}"
        for room in rooms()
        for name in room.names
    }


@cache
def by_page() -> dict[str, list[str]]:
    """Full names by page. Names that differ by their case alone share one: so do some disks."""
    found: dict[str, list[str]] = {}
    for full in dict.fromkeys(homes().values()):
        found.setdefault(page_of(full), []).append(full)
    return found


def page_of(full: str) -> str:
    """Page of a full name."""
    package, _, name = full.rpartition(".")
    return f"api/{package.replace('.', '-')}/{name.lower()}.md"


def _index() -> str:
    rows = [f"| [`{x.name}`]({slug(x)}/index.md) | {x.summary} | {len(x.names)} |" for x in rooms()]
    return "\n".join(
        [
            "# Public names",
            "",
            "Every name that a package exports has an entry, made from its docstring. What is not "
            "listed here may change without notice.",
            "",
            "| package | what | names |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _room(room: Room) -> str:
    rows = [_row(room, name) for name in room.names]
    head = [f"# `{room.name}`", "", room.summary, "", "| name | what |", "|---|---|"]
    return "\n".join([*head, *rows, ""])


def _row(room: Room, name: str) -> str:
    page = page_of(homes()[f"{room.name}.{name}"]).removeprefix("api/")
    return f"| [`{name}`](../{page}) | {summary(room.name, name)} |"


def _names(names: list[str]) -> str:
    title = " and ".join(f"`{x.rpartition('.')[2]}`" for x in names)
    package = names[0].rpartition(".")[0]
    head = [
        f"---\ntitle: {names[0].rpartition('.')[2]}\n---",
        "",
        f"Part of [`{package}`](index.md).",
    ]
    if len(names) > 1:
        head = [head[0], "", f"# {title}", "", head[2]]
    level = 2 if len(names) > 1 else 1
    entries = [f"::: {x}\n    options:\n      heading_level: {level}\n" for x in names]
    return "\n".join([*head, "", *entries])


def summary(package: str, name: str) -> str:
    """First line of the docstring of an exported name; empty for a value without one."""
    node = _definition(package, name)
    parts = (ast.get_docstring(node) or "").partition("\n")[0].split("`") if node else [""]
    # A bar ends a cell of a table, but not in code.
    return "`".join(x if i % 2 else x.replace("|", "\\|") for i, x in enumerate(parts))


def _definition(package: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
    """Where it is defined, along the imports."""
    folder = PACKAGE.parent / Path(*package.split("."))
    stub, module = folder / "__init__.pyi", folder.with_suffix(".py")
    file = stub if stub.exists() else module if module.exists() else folder / "__init__.py"
    for node in _tree(file).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and any(x.name == name for x in node.names):
            return _definition(_absolute(package, node), name)
    return None


def _absolute(package: str, node: ast.ImportFrom) -> str:
    return f"{package}.{node.module}" if node.level else str(node.module)


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())
