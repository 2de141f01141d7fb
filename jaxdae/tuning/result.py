"""What `tune` returns: the best parameters, the way there, and a summary to print."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, PyTree

from jaxdae.reprs import shown
from jaxdae.tables import array_text


class TuningHistory(NamedTuple):
    """One row per evaluation of the objective; row 0 is that of the initial parameters.

    Attributes:
        loss: objective, also where it was not finite; NaN after a start has ended.
        gradient_norm: Euclidean norm of the gradient with respect to the unconstrained arrays.
        skipped: whether the row was refused because its loss or gradient was not finite, or the
            optimizer's step from it was not.
        validation: the validation of the last point that was not refused, NaN in rows that it was
            not asked in; `None` without a validation.
    """

    loss: Float[np.ndarray, "rows *starts"]
    gradient_norm: Float[np.ndarray, "rows *starts"]
    skipped: Bool[np.ndarray, "rows *starts"]
    validation: Float[np.ndarray, "rows *starts"] | None = None

    def __repr__(self) -> str:
        return shown(self)

    @classmethod
    def empty(cls, rows: int, starts: int, *, validated: bool = False) -> "TuningHistory":
        """Rows that are still to be filled."""
        shape = (rows, starts)
        asked = np.full(shape, np.nan) if validated else None
        return cls(np.zeros(shape), np.zeros(shape), np.zeros(shape, bool), asked)

    def until(self, rows: int) -> "TuningHistory":
        """The first rows."""
        return jax.tree.map(lambda x: x[:rows], self)

    def of_start(self, start: int) -> "TuningHistory":
        """The columns of one start.

        Args:
            start: index of the start; 0 is the unperturbed one.

        Returns:
            A history of arrays with shape (rows,).
        """
        return jax.tree.map(lambda x: x[:, start], self)


@dataclass(frozen=True)
class TuningResult:
    """The best parameters seen by `tune`, and how they were found.

    Best are those of the smallest loss; with a validation, of its smallest value; of a `Stochastic`
    objective without one, the last.

    Attributes:
        params: best parameters, every parametrization replaced by its value.
        raw: best parameters with their parametrizations; pass them to `tune` to go on.
        initial_params: the initial parameters, resolved.
        loss: objective at `params`; with a validation, what that says of them; of a `Stochastic`
            objective without one, the draw of the last step.
        initial_loss: the same at `initial_params` (not finite if that start failed).
        history: rows of the best start, until it ended, arrays of shape (rows,).
        histories: rows of all starts, arrays of shape (steps + 1, starts).
        best_start: index of the best start.
        steps: optimizer steps taken or refused, evaluations less one.
        evaluations: of the objective with its derivatives in this call, all starts together, those
            that line searches make included; none after a start has ended.
        skipped: refused rows of the best start.
        stop_reason: "converged", "stalled", "infeasible", "steps", "patience", "callback" or
            "uncertified".
        ending: the same in words, with the number that was compared with a tolerance.
        method: which optimizer it was, and why.
        residuals: at `params`, shape (m,), from an optimizer of least squares; else `None`.
        jacobian: their derivative with respect to the unconstrained arrays, shape (m, p), in the
            order of `jax.flatten_util.ravel_pytree` of the trained part of `raw`; else `None`.
        violations: by how much each constraint is violated at `params`, by name.
        certificate: what the objective's `certificate(params)` says, if it has one.
        budget: step or work budget of the objective the optimum belongs to, "" if not stated.
        wall_seconds: duration of this call [s], compilation included.
        compile_seconds: tracing and compiling in this call [s]; 0 if nothing was left to run.
        gradient_certificate: the last examination of the gradient, by `tune(..., certify=True)`;
            `None` without one.
    """

    params: PyTree
    raw: PyTree
    initial_params: PyTree
    loss: float
    initial_loss: float
    history: TuningHistory
    histories: TuningHistory
    best_start: int
    steps: int
    evaluations: int
    skipped: int
    stop_reason: str
    ending: str
    method: str
    residuals: Float[np.ndarray, " m"] | None
    jacobian: Float[np.ndarray, "m p"] | None
    violations: dict[str, float]
    certificate: Any
    budget: str
    wall_seconds: float
    compile_seconds: float
    gradient_certificate: Any = None

    def __repr__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """Losses, counts, times and the tuned parameters, one line each, ready to print."""
        starts = self.histories.loss.shape[1]
        lines = [
            f"loss        {self.initial_loss:.6g} -> {self.loss:.6g}",
            f"method      {self.method}",
            f"steps       {self.steps} ({self.skipped} skipped), {self.evaluations} evaluations",
            f"stopped     {self.stop_reason}: {self.ending}",
            f"start       {self.best_start} of {starts} (0 is the unperturbed one)",
            f"time        {self.wall_seconds:.2f} s, compiling {self.compile_seconds:.2f} s of it",
        ]
        lines += [f"budget      {self.budget}"] if self.budget else []
        if self.violations:
            amounts = ", ".join(f"{name} {x:.2g}" for name, x in self.violations.items())
            lines += [f"violated by {amounts}"]
        if self.certificate is not None:
            lines += [f"certificate {self.certificate}"]
        if self.gradient_certificate is not None:
            lines += [str(self.gradient_certificate)]
        return "\n".join([*lines, "parameters", *self._changes()])

    def _changes(self) -> list[str]:
        before = jax.tree_util.tree_leaves_with_path(self.initial_params)
        after = jax.tree.leaves(self.params)
        return [
            f"  {jax.tree_util.keystr(path) or 'value'}: {_short(x)} -> {_short(y)}"
            for (path, x), y in zip(before, after, strict=True)
            if not _same(x, y)
        ]


def _same(x, y) -> bool:
    return x is y or bool(np.array_equal(np.asarray(x), np.asarray(y)))


def _short(x) -> str:
    return array_text(x, digits=6, most=20)
