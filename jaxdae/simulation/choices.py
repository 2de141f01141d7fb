"""What a run can be made of, by name: formulations, their linear solves, and step methods.

There is no list to edit. What the packages export can be chosen, by the name of its class in small
letters: `NullSpace` as `null-space`, `MinimumNormSolve` as `minimum-norm`, `Dopri8` as `dopri8`.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import diffrax
import optimistix as optx

from jaxdae import formulations, solvers
from jaxdae.formulations import AbstractFormulation, LinearLaw
from jaxdae.linalg.saddle_point import AbstractSolve
from jaxdae.names import unknown_name

# What a formulation is given where it asks for more than a stabilization: a constraint mass, and a
# coefficient of linear realizing forces.
ALPHA, K = 10.0, 1e3


def spelled(name: str) -> str:
    """The name of a class in small letters, its words joined by hyphens; letters are no words.

    Without the word at its end that says what kind of class it is.
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "-", name).lower()
    return words.removesuffix("-lagrangian").removesuffix("-solve")


def _exported(base: type, *packages: ModuleType) -> dict[str, Any]:
    """Classes of a kind that packages have, but for the abstract ones."""
    kinds = [getattr(package, name) for package in packages for name in dir(package)]
    return {
        spelled(kind.__name__): kind
        for kind in kinds
        if inspect.isclass(kind) and issubclass(kind, base)
        if not kind.__name__.startswith("Abstract")
    }


def _steps_alone(kind: type) -> bool:
    """Whether a step method takes one vector field and nothing else.

    Others of diffrax split it in two, or need noise.
    """
    return kind.__module__.startswith("jaxdae.") or (
        getattr(kind, "term_structure", None) is diffrax.AbstractTerm
    )


FORMULATIONS: dict[str, type[AbstractFormulation]] = _exported(AbstractFormulation, formulations)
LINEAR_SOLVES: dict[str, type[AbstractSolve]] = _exported(AbstractSolve, formulations)
_METHODS = _exported(diffrax.AbstractSolver, diffrax, solvers)
# Methods around others: `projected-rk4`.
WRAPPERS: dict[str, Any] = {
    x: y for x, y in _METHODS.items() if issubclass(y, diffrax.AbstractWrappedSolver)
}
SOLVERS: dict[str, type[diffrax.AbstractSolver]] = {
    x: y for x, y in _METHODS.items() if x not in WRAPPERS and _steps_alone(y)
}

# All of them, by what they are.
CHOICES: dict[str, dict[str, type]] = {
    "formulations": FORMULATIONS,
    "solves": LINEAR_SOLVES,
    "solvers": SOLVERS | {f"{x}-NAME": y for x, y in WRAPPERS.items()},
}


def name_of(formulation: AbstractFormulation) -> str:
    """The name in `FORMULATIONS` of a formulation."""
    return spelled(type(formulation).__name__)


def fields_of(kind: type) -> set[str]:
    """What a formulation can be given: names of its fields."""
    return {field.name for field in dataclasses.fields(kind)}  # pyright: ignore[reportArgumentType]


def find_formulation(name: str) -> type[AbstractFormulation]:
    """The class of a formulation.

    Args:
        name: a key of `FORMULATIONS`.

    Raises:
        ValueError: for another name, with the closest one and all of them.
    """
    return _find("formulation", name, FORMULATIONS)


def find_linear_solve(name: str) -> AbstractSolve:
    """How a formulation solves its linear equations, with its own defaults.

    Args:
        name: a key of `LINEAR_SOLVES`.

    Raises:
        ValueError: for another name, with the closest one and all of them.
    """
    return _find("solve", name, LINEAR_SOLVES)()


def make_formulation(name: str, **parts: Any) -> Any:
    """A formulation by name.

    Args:
        name: a key of `FORMULATIONS`.
        **parts: fields by name, such as `stabilization` and `alpha`; those that the formulation
            does not have are left out; a constraint mass and a law are not required.

    Raises:
        ValueError: for a name that does not exist, with the closest one and all of them.
    """
    kind = find_formulation(name)
    fields, values = fields_of(kind), {"alpha": ALPHA, "law": LinearLaw(K)} | parts
    return kind(**{x: value for x, value in values.items() if x in fields})


def make_solver(name: str, tolerance: float | None = None) -> diffrax.AbstractSolver:
    """A step method by name.

    Args:
        name: a key of `SOLVERS`, or one behind a key of `WRAPPERS`: `projected-dopri8`.
        tolerance: to which an implicit method solves for its stages, by Newton's method; `None`
            leaves it to the step control, which fixed steps have none of.

    Raises:
        ValueError: for a name that does not exist, with the closest one and all of them.
    """
    for outer, wrapper in WRAPPERS.items():
        if name.startswith(f"{outer}-"):
            return wrapper(make_solver(name.removeprefix(f"{outer}-"), tolerance))
    kind: Any = _find("solver", name, SOLVERS, CHOICES["solvers"])
    if tolerance is None or not issubclass(kind, diffrax.AbstractImplicitSolver):
        return kind()
    # diffrax's own iteration keeps one Jacobian, and fails where a fixed step is long for it.
    implicit: Any = kind
    return implicit(root_finder=optx.Newton(rtol=tolerance, atol=tolerance))


def _find(kind: str, name: str, table: dict[str, Any], known: Iterable[str] = ()) -> Any:
    if name in table:
        return table[name]
    raise ValueError(unknown_name(kind, name, known or table))
