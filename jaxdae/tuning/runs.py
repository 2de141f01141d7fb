"""A tuning run on the host: state, history, and the compiled step."""

import time
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.tuning.endings import in_words
from jaxdae.tuning.problem import Chosen, Record, strongly_typed
from jaxdae.tuning.result import TuningHistory


class Run:
    """All starts at once, one evaluation of each at a time."""

    def __init__(self, chosen: Chosen, state: Any, steps: int):
        self.problem, self.method, self.steps = chosen.problem, chosen.method, steps
        self.compile_seconds, self._begin = 0.0, state
        # The arrays of the problem are arguments of the compiled step, not constants in it.
        self._arrays, self._static = eqx.partition(self.problem, eqx.is_array)
        self._history = TuningHistory.empty(steps + 1, state.progress.best_loss.size)
        # One assignment publishes a finished row: an interruption leaves the run consistent.
        self._done = (0, state)

    @property
    def rows(self) -> int:
        """Evaluations of every start."""
        return self._done[0]

    @property
    def state(self) -> Any:
        """Of all starts."""
        return self._done[1]

    @property
    def history(self) -> TuningHistory:
        """Finished rows."""
        return TuningHistory(*(x[: self.rows] for x in self._history))

    @property
    def ended(self) -> bool:
        """Whether no start goes on."""
        return bool(np.all(np.asarray(self.state.progress.status)))

    @property
    def evaluations(self) -> int:
        """Of the objective, all starts together."""
        return int(np.sum(np.asarray(self.state.progress.evaluations)))

    def compile(self) -> None:
        """Make the program of a step."""
        began = time.perf_counter()
        step = jax.jit(jax.vmap(partial(self.method.step, self._static), in_axes=(None, 0)))
        self._step = step.lower(self._arrays, self.state).compile()
        self.compile_seconds = time.perf_counter() - began

    def first_again(self) -> Record:
        """The first evaluation once more, by the objective as it is now."""
        return jax.tree.map(np.asarray, self._step(self._arrays, self._begin)[1])

    def advance(self) -> None:
        """Evaluate once more."""
        row, state = self._done
        state, record = self._step(self._arrays, state)
        for column, value in zip(self._history, record, strict=True):
            column[row] = value
        if row == 0:
            require_a_start(self._history.loss[0], self._history.gradient_norm[0])
        self._done = (row + 1, state)

    def best(self) -> tuple[int, float, PyTree]:
        """Best start, its loss, and its parameters with parametrizations."""
        losses = np.asarray(self.state.progress.best_loss)
        start = int(np.argmin(losses))
        # On the host: every shape would be another program.
        point = jax.tree.map(lambda x: np.asarray(x)[start], self.state.progress.best)
        params = self.problem.params(jax.tree.map(jnp.asarray, point))
        return start, float(losses[start]), params

    def ending(self, start: int) -> tuple[str, str]:
        """Why a start ended, and that in words; "steps" if it has not."""
        progress = self.state.progress
        status, number = (np.asarray(x)[start] for x in (progress.status, progress.number))
        return in_words(int(status), float(number), self.problem.tolerance)

    def rows_of(self, start: int) -> int:
        """Evaluations until a start ended."""
        progress = self.state.progress
        evaluations, ended = (np.asarray(x)[start] for x in (progress.evaluations, progress.status))
        return int(evaluations) if ended else self.rows

    def fit(self, start: int) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Residuals and Jacobian at the best point of a start."""
        fit = getattr(self.state, "fit", None)
        if fit is None:
            return None, None
        return np.asarray(fit[0])[start], np.asarray(fit[1])[start]

    def violations(self) -> dict[str, float]:
        """None, there are no constraints."""
        return {}

    def close(self) -> None:
        """Nothing is open."""

    def like(self, rows: int) -> tuple[Any, TuningHistory]:
        """Shapes and dtypes of what a checkpoint stores after so many rows."""
        return self.state, TuningHistory.empty(rows, self.state.progress.best_loss.size)

    def restore(self, rows: int, state: Any, stored: TuningHistory) -> None:
        """Go on from the contents of a checkpoint."""
        _, self._history = self.like(max(rows, self.steps + 1))
        for column, part in zip(self._history, stored, strict=True):
            column[:rows] = part
        self._done = (rows, strongly_typed(state))


def require_a_start(loss: np.ndarray, norm: np.ndarray) -> None:
    """Refuse starts that all fail.

    Raises:
        ValueError: if so.
    """
    if np.any(np.isfinite(loss) & np.isfinite(norm)):
        return
    raise ValueError(
        f"tune: the first evaluation failed at all {loss.size} starts (loss {loss[0]:.6g}, "
        f"gradient norm {norm[0]:.6g} at the first); start from parameters at which the objective "
        "and its gradient are finite: smaller gains, a smaller step, or a shorter time span."
    )
