"""The contract of a backend, and the choice between them."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from jaxdae.compiled import ORDINARY
from jaxdae.errors import BackendError as BackendError
from jaxdae.reprs import Module
from jaxdae.simulation.problem import Integration, Method

Backend = Literal["auto", "plain", "native"]
_REFUSAL = "the native backend cannot serve this simulation:"


class UnsuitedError(Exception):
    """Why a backend cannot make a run, found where it was made."""


class AbstractBackend(Module):
    """What integrates a run, and reads what it has saved."""

    name: ClassVar[str]
    # Of the compiler of its programs.
    options: ClassVar[dict[str, Any]] = ORDINARY

    @property
    def kernel(self) -> Callable | None:
        """Makes a kernel of a function and examples of its arguments; `None` without kernels."""
        return None

    @abc.abstractmethod
    def obstacle(self, formulation, method: Method) -> str | None:
        """Why settings do not suit it, in words; `None` where they do."""

    @abc.abstractmethod
    def solve(self, problem: Any, method: Method, y0) -> Integration:
        """Integrate a run from the formulation's own state and works `y0`.

        Args:
            problem: a `Problem`, or what has its times, parts, controller, event, rate and term.
            method: how.
            y0: start.

        Raises:
            UnsuitedError: when it finds out here that it cannot.
        """

    @abc.abstractmethod
    def reader(self, function: Callable, row, parts, *, by_system: bool) -> Callable:
        """`function(t, y, arrays)` of a saved row as a function to be mapped over all of them.

        Args:
            function: of a time, the formulation's own state, and `parts`.
            row: an example of the first two.
            parts: arrays of system, formulation and controller.
            by_system: whether it depends on the first two alone.
        """


def check_name(backend: Any) -> None:
    """Raise `ValueError` for a backend that does not exist."""
    if backend not in ("auto", "plain", "native"):
        raise ValueError(f"backend is {backend!r}; give 'auto', 'plain' or 'native'.")


def choose(backend: Backend, why_not: str | None) -> str:
    """Name of the backend to try.

    Args:
        backend: what was asked for.
        why_not: an obstacle to the native backend, or `None`.

    Raises:
        BackendError: when the native backend is asked for and cannot serve.
        ValueError: for a backend that does not exist.

    Warns:
        RuntimeWarning: once, when this machine keeps the native backend from being taken.
    """
    check_name(backend)
    if backend == "auto" and why_not is not None:
        from jaxdae.kernels.launch import obstacles  # loaded with the native backend alone

        if obstacles.can_be_removed(why_not):
            obstacles.warn(why_not)
    if backend == "plain" or (backend == "auto" and why_not is not None):
        return "plain"
    if why_not is not None:
        raise refused(f"{why_not}.")
    return "native"


def refused(reason: Any) -> BackendError:
    """The error where the native backend was asked for by name."""
    return BackendError(f"{_REFUSAL} {reason} Use backend='auto' or 'plain'.")
