"""Rooms of the library: imports run downwards only."""

import ast
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "jaxdae"
MODULES = {
    ".".join(["jaxdae", *path.relative_to(ROOT).with_suffix("").parts]): path
    for path in ROOT.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}
# From the lowest; each may import those before it.
ROOMS = (
    "storage", "interruptions", "names", "tables", "checks", "reprs", "version", "references",
    "errors", "memory", "derivatives", "linalg", "primitives", "compiled", "kernels", "systems",
    "stability",
    "formulations", "solvers", "events", "control", "analysis", "simulation", "diagnosis",
    "results", "runs", "dae_runs", "exports", "certification", "tuning", "optimal_control",
    "environments", "parallel", "identification", "multibody", "models", "plotting", "commands",
    "cli",
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
    assert rooms == {*KERNELS}
    assert from_above(ROOT / "kernels", "jaxdae.kernels", KERNELS) == []


def test_no_module_imports_itself_in_a_circle():
    """Imports inside of functions, and those for types alone, included."""
    graph = {name: imported(path) - {name} for name, path in MODULES.items()}
    order = graphlib.TopologicalSorter(graph)
    assert len([*order.static_order()]) == len(MODULES)  # raises where there is a circle


def test_a_name_of_a_class_has_one_meaning():
    """No two files of the library have a class of the same name."""
    homes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


# What tells values that are known from those that JAX traces.
TRACING = {"Tracer", "get_opaque_trace_state", "is_eager", "is_outside"}


def test_rooms_ask_one_file_whether_values_are_known():
    """Beside it the two shells know of transformations: they choose what is said of a run."""
    found = []
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            names = {getattr(node, x, None) for x in ("id", "attr", "name")} & TRACING
            found += [f"{module}: {x}" for x in names]
    shells = ("jaxdae.checks:", "jaxdae.runs:", "jaxdae.dae_runs:")
    assert [x for x in found if not x.startswith(shells)] == []


# A pendulum on the plain backend, in a process of its own: the files that were called, and what was
# loaded of a compiler, also when the run is read.
PATH = """
import sys, jax.numpy as jnp, jaxdae
class Pendulum(jaxdae.System):
    def kinetic_energy(self, t, q, v): return 0.5 * v @ v
    def position_constraints(self, t, q): return jnp.array([q @ q - 1.0])
root, seen = jaxdae.__file__.removesuffix("__init__.py"), set()
def called(frame, event, _):
    file = frame.f_code.co_filename
    if event == "call" and file.startswith(root): seen.add(file.removeprefix(root))
law = jaxdae.Multipliers(jaxdae.Baumgarte(20.0, 100.0))
start, simulate = jaxdae.State([1.0, 0.0], [0.0, 0.5]), jaxdae.simulate
sys.setprofile(called)
run = simulate(Pendulum(), law, start, t1=0.1, dt=0.01, backend="plain")
sys.setprofile(None)
run.energy, run.multipliers, run.final_state
print(*seen)
print(*(x for x in sys.modules if x.startswith(("jaxdae.kernels", "llvmlite"))))
"""
# What a reader of one run has to open at most.
MOST_FILES = 52


@pytest.fixture(scope="module")
def plain_run():
    """Files that a run calls, and modules of a compiler."""
    done = subprocess.run([sys.executable, "-c", PATH], capture_output=True, text=True)
    assert done.stderr == ""
    seen, compilers = done.stdout.splitlines()
    return {*seen.split()}, compilers.split()


@pytest.mark.slow
def test_the_plain_backend_loads_no_compiler(plain_run):
    assert plain_run[1] == []


@pytest.mark.slow
def test_one_run_takes_the_path_of_the_page_and_passes_through_few_files(plain_run):
    page = (ROOT.parent / "docs" / "structure.md").read_text()
    path = re.findall(r"^    (\w+(?:/\w+)*\.py) ", page.partition("One run takes")[2], re.MULTILINE)
    assert path[0] == "runs.py"
    assert [x for x in path if not (ROOT / x).exists()] == []
    seen, _ = plain_run
    assert {*path} - seen == {"simulation/native.py"}
    assert len(seen) <= MOST_FILES
