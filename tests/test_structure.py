"""Rooms of the library: imports run downwards only."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxdae"
MODULES = {
    ".".join(["jaxdae", *path.relative_to(ROOT).with_suffix("").parts]): path
    for path in ROOT.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}
# From the lowest; each may import those before it.
KERNELS = ("graph", "tracing", "llvm", "launch", "integration")


def imported(path: Path) -> set[str]:
    """Modules of the library that a file imports, inside of functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {x.name for x in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return found & MODULES.keys()


@pytest.mark.parametrize("room", KERNELS)
def test_imports_of_kernels_run_downwards(room):
    above = KERNELS[KERNELS.index(room) + 1 :]
    for path in (ROOT / "kernels" / room).rglob("*.py"):
        wrong = [
            x for x in imported(path) if x.startswith(tuple(f"jaxdae.kernels.{y}." for y in above))
        ]
        assert not wrong, f"{path} imports {wrong}"


def test_no_module_imports_itself_in_a_circle():
    """Imports at the top of files; those inside of functions wait for a reason."""
    order = graphlib.TopologicalSorter({x: at_top(path) for x, path in MODULES.items()})
    order.prepare()


def at_top(path: Path) -> set[str]:
    """Modules of the library that a file imports when it is imported."""
    tree = ast.parse(path.read_text())
    tree.body = [x for x in tree.body if isinstance(x, ast.Import | ast.ImportFrom)]
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return found & MODULES.keys()
