"""What every competitor is given, and what it gives back."""

import dataclasses
import importlib
import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


class MissingCodeError(RuntimeError):
    """A competitor cannot run here; the message says what it lacks."""


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An initial value problem of one of eight mechanisms, in plain numbers.

    Equal to itself alone, so that what is compiled for it can be kept.

    Args:
        name: name in tables.
        mechanism: "two-link", "andrews", "chain", "plate", "four-bar", "car-axis",
            "flexible-slider-crank" or "fekete".
        q: start coordinates, shape (n,); on the constraints.
        v: start velocities, shape (n,); on the constraints.
        t1: end time [s]; the start is at 0.
        K_D: damping gains of Baumgarte's stabilization [1/s], diagonal (m,).
        K_P: stiffness gains [1/s^2], diagonal (m,).
    """

    name: str
    mechanism: str
    q: np.ndarray
    v: np.ndarray
    t1: float
    K_D: np.ndarray
    K_P: np.ndarray

    @property
    def y(self) -> np.ndarray:
        """Start (q, v), shape (2n,)."""
        return np.concatenate([self.q, self.v])


@dataclasses.dataclass(frozen=True)
class Run:
    """One code with one setting, ready to be timed.

    Args:
        solve: runs the problem once and returns the final (q, v), shape (2n,).
        setup_s: time that building and compiling took [s].
        work: steps and evaluations of the right-hand side of a run, where the code counts them.
    """

    solve: Callable[[], np.ndarray]
    setup_s: float
    work: dict[str, int] | None = None


def package(name: str, distribution: str | None = None) -> Any:
    """An optional package.

    Args:
        name: name of the module.
        distribution: name to install it by, where that is another.

    Raises:
        MissingCodeError: where it is not installed, or does not load.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        wanted = distribution or name.partition(".")[0]
        reason = f"does not load ({error})" if _is_installed(wanted) else "is not installed"
        raise MissingCodeError(f"{wanted} {reason}") from error


def compiler() -> str:
    """The C compiler of this machine.

    Raises:
        MissingCodeError: where there is none.
    """
    results = shutil.which("gcc") or shutil.which("clang")
    if results is None:
        raise MissingCodeError("no C compiler (gcc, clang) on this machine")
    return results


def version_of(distribution: str) -> str:
    """Installed version of a distribution, or "not installed"."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"


def _is_installed(distribution: str) -> bool:
    return version_of(distribution) != "not installed"
