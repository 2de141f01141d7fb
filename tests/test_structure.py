"""Rooms of the library: imports run downwards only."""

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[1] / "jaxdae"
MODULES = {
    ".".join(["jaxdae", *path.relative_to(ROOT).with_suffix("").parts]): path
    for path in ROOT.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}
# From the lowest; each may import those before it.
ROOMS = (
    "files", "interruptions", "names", "tables", "reprs", "version", "references", "compiled",
    "linalg", "kernels", "systems", "stability", "formulations", "solvers", "control", "analysis",
    "simulation", "diagnosis", "results", "runs", "exports", "tuning", "parallel", "identification",
    "multibody", "models", "plotting", "commands", "cli",
)  # fmt: skip
KERNELS = ("llvm", "graph", "tracing", "emission", "cuda", "launch", "integration", "export")


def imported(path: Path) -> set[str]:
    """Modules of the library that a file imports, inside of functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {x.name for x in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return found & MODULES.keys()


def from_above(folder: Path, package: str, rooms: tuple[str, ...]) -> list[str]:
    """What modules of a package's rooms import from rooms above their own."""
    found = []
    for i, room in enumerate(rooms):
        above = tuple(f"{package}.{x}." for x in rooms[i + 1 :])
        # Rooms are folders, or single files.
        for path in [*(folder / room).rglob("*.py"), folder / f"{room}.py"]:
            if path.exists():
                names = (
                    x for x in imported(path) if f"{x}.".startswith(tuple(f"{y}." for y in above))
                )
                found += [f"{path.relative_to(folder)} imports {x}" for x in names]
    return found


def test_imports_run_downwards():
    assert {x.split(".")[1] for x in MODULES} == {*ROOMS}
    assert from_above(ROOT, "jaxdae", ROOMS) == []


def test_imports_of_kernels_run_downwards():
    rooms = {x.split(".")[2] for x in MODULES if x.startswith("jaxdae.kernels.")}
    assert rooms == {*KERNELS, "memory"}
    assert from_above(ROOT / "kernels", "jaxdae.kernels", KERNELS) == []


def test_no_module_imports_itself_in_a_circle():
    """Imports at the top of files; those inside of functions wait for a reason."""
    order = graphlib.TopologicalSorter({x: at_top(path) for x, path in MODULES.items()})
    assert len([*order.static_order()]) == len(MODULES)  # raises where there is a circle


def at_top(path: Path) -> set[str]:
    """Modules of the library that a file imports when it is imported."""
    tree = ast.parse(path.read_text())
    tree.body = [x for x in tree.body if isinstance(x, ast.Import | ast.ImportFrom)]
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{x.name}" for x in node.names)}
    return found & MODULES.keys()
