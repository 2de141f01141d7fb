"""The optimization loop: one evaluation after another until there is a reason to end."""

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.certification.certificate import GradientCertificate
from jaxdae.certification.evaluations import Evaluator
from jaxdae.certification.examination import DIGITS, GradientExamination
from jaxdae.formulations.structure import used_inputs
from jaxdae.interruptions import heard
from jaxdae.reprs import shown
from jaxdae.stability.arguments import check_counts, check_least, is_real
from jaxdae.storage import checkpoints
from jaxdae.systems.calls import check_parameters, described
from jaxdae.systems.random_states import check_key
from jaxdae.tuning import resumption
from jaxdae.tuning.constraints import Constraint
from jaxdae.tuning.descent import DESCENT, validate
from jaxdae.tuning.endings import (
    after_all_steps,
    after_draws,
    findings_of_draws,
    in_words,
    require_a_start,
)
from jaxdae.tuning.optimizers import choose, Mode
from jaxdae.tuning.parametrizations import resolve
from jaxdae.tuning.problem import Chosen, HistoryRow, split, strongly_typed, TuningProblem
from jaxdae.tuning.result import TuningHistory, TuningResult
from jaxdae.tuning.scipy_minimizers import ScipyRun
from jaxdae.tuning.stochastic import Stochastic

# Both are imported where they are used: many programs that import the package never tune.
if TYPE_CHECKING:
    import optax
    import optimistix as optx

    Optimizer = (
        str
        | optax.GradientTransformation
        | optx.AbstractLeastSquaresSolver
        | optx.AbstractMinimiser
        | None
    )


# Steps between two examinations of the gradient.
_CERTIFY_EVERY = 10


class OffersResiduals(Protocol):
    """An objective that is the sum of the squares of residuals."""

    def residuals(self, params: PyTree, /) -> Float[Array, " m"]:
        """Residuals as a function of the resolved parameters, as a vector."""
        ...


class TuningStep(NamedTuple):
    """What `tune` passes to a callback after each evaluation.

    Attributes:
        step: number of the optimizer step; 0 is the evaluation of the initial parameters.
        loss: objective of every start, shape (starts,); NaN of those that are not running, as are
            all but one of SciPy's optimizers, which take them in turn.
        gradient_norm: norm of every start's gradient, shape (starts,).
        skipped: which starts had their step refused, shape (starts,).
        best_loss: `TuningResult.loss` if the run ended here.
        params: the parameters it belongs to, resolved.
        validation: of every start, shape (starts,), NaN where it was not asked; `None` without one.
    """

    step: int
    loss: Float[np.ndarray, " starts"]
    gradient_norm: Float[np.ndarray, " starts"]
    skipped: Bool[np.ndarray, " starts"]
    best_loss: float
    params: PyTree
    validation: Float[np.ndarray, " starts"] | None = None

    def __repr__(self) -> str:
        return shown(self)


def tune(
    objective: "Callable[[PyTree], Float[Array, '']] | Stochastic | OffersResiduals",
    params: PyTree,
    *,
    optimizer: "Optimizer" = None,
    constraints: "Constraint | Sequence[Constraint]" = (),
    steps: int = 100,
    tolerance: float | None = None,
    mode: Mode = "auto",
    starts: int = 1,
    spread: float = 0.5,
    key: Array | None = None,
    validation: Callable[[PyTree], Float[Array, ""]] | Stochastic | None = None,
    validation_every: int = 10,
    patience: int | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 10,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    callback: Callable[[TuningStep], bool | None] | None = None,
    certify: bool = False,
) -> TuningResult:
    """Minimize an objective over the arrays of a pytree.

    Trained are the parametrizations (`Positive`, `PositiveDefinite`, `Interval`,
    `HurwitzPolynomial`) and all other floating-point arrays in `params`; Python numbers are held
    fixed. The result holds the best parameters at which the objective was evaluated.

    By default the kind of objective decides how, and `TuningResult.method` says it: least squares
    by Levenberg-Marquardt where the objective has residuals of few parameters, Adam elsewhere.
    An objective that is a sum of squares gives them by a method `residuals(params)`, a vector; it
    need not be callable then. `LeastSquares(function)` makes such an objective of a function.

    Adam bears objectives that are noisy or steep, and makes all `steps` whether they are enough or
    not: of a smooth objective "l-bfgs" needs far fewer. `TuningResult.ending`, in `summary()`, says
    how much the loss still fell and how large the gradient still is, and what to do.

    A `Stochastic` objective is drawn anew in each step, for the training of controllers on fresh
    starts, plants and noise. Of its losses none is the best: the last parameters are returned, or
    those that `validation` chooses; with `parameter_average` or a schedule-free optimizer of optax
    their average.

    A step whose loss or gradient is not finite is not taken. Levenberg-Marquardt damps the next one
    more, line searches shorten it; with an optimizer of optax, which has no such means, the run
    returns to the last finite point and tries half of the step from it. Where loss and gradient
    are finite but the step the optimizer makes of them is not, a step of length 0.05 at most
    against the gradient is taken instead. In each case the row counts as skipped.

    Args:
        objective: maps the resolved parameters (parametrizations replaced by their values) to a
            scalar, or has `residuals`; traceable. Its attribute `mode`, if any, says how to
            differentiate it. `Stochastic(function)` is drawn by `key`.
        params: pytree of parameters.
        optimizer: a name in `jaxdae.tuning.optimizers.OPTIMIZERS` ("lm", "gauss-newton", "l-bfgs",
            "adam", "slsqp", "trust-constr"), any optax optimizer, a solver of optimistix that
            minimizes or makes least squares; by default one that suits the objective: SLSQP where
            there are constraints.
        constraints: `Equality` and `Inequality`, functions of the resolved parameters, for
            optimizers that take them; bounds are parametrizations, which every optimizer keeps.
        steps: largest number of steps; the objective is evaluated `steps + 1` times at most.
        tolerance: at which an optimizer has converged, relative; by default the root of the
            round-off of the parameters' precision, or `rtol` of a solver of optimistix. Those of
            optax make all `steps`.
        mode: "forward" (one tangent for each parameter; for up to about 16 of them), "reverse"
            (one backward pass), or "auto": the objective's own `mode`, else reverse; for least
            squares forward unless there are more parameters than residuals.
        starts: number of starts, run at once, or by SciPy's optimizers in turn. The first is
            `params` itself, the others are normal perturbations of its unconstrained arrays.
        spread: standard deviation of these perturbations; for `Positive`, of the logarithm.
        key: random key of the perturbations and of draws; by default `jax.random.key(0)`.
        validation: objective that the best parameters are chosen by, where an optimizer of optax
            makes the steps; of a `Stochastic` one the same draws, and the last horizon, each time.
        validation_every: steps between two validations; the initial parameters are the first.
        patience: validations without a new best of any start after which the run ends.
        checkpoint: file to save the run in, so that it can be continued. Saved after the first
            evaluation, every `checkpoint_every` steps, on interruption and at the end. Not for
            SciPy's optimizers, which keep their state to themselves.
        checkpoint_every: steps between two saves.
        resume: continue from `checkpoint`; the numbers are those of an uninterrupted run, bit for
            bit on the same machine and software. Without such a file the run starts afresh.
            `steps` and `callback` may differ from the interrupted call. Arrays, numbers
            and budget of the objective are compared, and, where the run goes on, what it computes:
            its first evaluation is made once more. A run that had ended is read and not compared.
        overwrite: allow a fresh run to replace the file `checkpoint`.
        progress: show a progress bar.
        callback: called after each evaluation with a `TuningStep`; `True` stops the run.
        certify: examine the gradient, as `jaxdae.certify` does but for the other backend, at the
            initial parameters and every ten steps at the best ones, and stop with the reason where
            it may not be followed (`TuningResult.gradient_certificate`). Each costs 12 evaluations
            at most, and the first some time to compile.

    Returns:
        `TuningResult`.

    Raises:
        ValueError: if nothing is trainable, a setting does not make sense, the objective is not
            a real scalar, it is not finite at any start, there is no such optimizer, it needs
            residuals and there are none, it has no use for draws or a validation, a `Stochastic`
            objective does not use its key, or a run of SciPy's is to be saved.
        TypeError: for a key that is none.
        IsADirectoryError: if `checkpoint` is a folder.
        FileExistsError: if `checkpoint` exists and neither `resume` nor `overwrite` is set.
        CheckpointError: if the file to resume from is damaged, belongs to another run, or the
            objective has become another function; if another run writes the file.
    """
    began = time.perf_counter()
    _check_callable(objective, callback)
    every = {"checkpoint_every": (checkpoint_every, 1), "validation_every": (validation_every, 1)}
    check_counts("tune", steps=(steps, 0), starts=(starts, 1), **every)
    _check_validation(validation, patience)
    check_least("tune", spread=(spread, 0))
    _check_tolerance(tolerance)
    file = _File(checkpoint, resume, overwrite, checkpoint_every)
    key = jax.random.key(0) if key is None else key
    check_key(key)
    chosen = choose(objective, params, optimizer, mode, tolerance, constraints, validation, key)
    if chosen.method is None:
        if checkpoint is not None:
            raise ValueError(
                f"tune: of {chosen.words.split(',')[0]} no run can be saved or resumed: SciPy "
                "keeps its state to itself; leave `checkpoint` out, or choose an optimizer whose "
                'state is in arrays, such as "l-bfgs" or "adam".'
            )
        run = ScipyRun(chosen, starts, spread, key, steps)
    else:
        state = chosen.method.initial_state(chosen.problem, starts, spread, key)
        run = TuningLoop(chosen, state, steps, validation_every, patience)
    seed = np.asarray(jax.random.key_data(key)).tolist()
    search = {"mode": run.problem.mode, "starts": int(starts), "spread": float(spread), "key": seed}
    search |= {} if validation is None else {"validation_every": int(validation_every)}
    with heard(), file.alone():
        file.open(run, chosen, params, search)
        before = run.evaluations
        if run.rows <= steps and not run.ended:
            run.compile()
            file.compare(run)
        certifier = _Certifier(run.problem) if certify else None
        reason = _loop(run, file, progress, callback, certifier)
        last = None if certifier is None else certifier.last
        result = _result(run, chosen, params, _in_words(run, reason, last), began, before, last)
    if result.stop_reason in ("stalled", "infeasible", "uncertified"):
        warnings.warn(f"tune: {result.ending.rstrip('.')}.", stacklevel=2)
    if not np.isfinite(result.loss):
        text = "tune: no validation was finite: the initial parameters are returned"
        warnings.warn(f"{text}; validate by runs that they survive.", stacklevel=2)
    if chosen.problem.key is not None:
        for text in findings_of_draws(result.history.gradient_norm, result.history.skipped):
            warnings.warn(f"tune: {text}.", stacklevel=2)
    return result


class TuningLoop:
    """All starts at once, one evaluation of each at a time."""

    def __init__(
        self, chosen: Chosen, state: Any, steps: int, every: int = 1, patience: int | None = None
    ):
        assert chosen.method is not None  # SciPy's minimizers have a run of their own
        self.problem, self.method, self.steps = chosen.problem, chosen.method, steps
        self.every, self.patience = every, patience
        self.compile_seconds, self._begin = 0.0, state
        # The arrays of the problem are arguments of the compiled step, not constants in it.
        self._arrays, self._static = eqx.partition(self.problem, eqx.is_array)
        # One assignment publishes a finished row: an interruption leaves the run consistent.
        self._done = (0, state)
        self._history = self.like(steps + 1)[1]

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
        return self._history.until(self.rows)

    @property
    def ended(self) -> bool:
        """Whether no start goes on."""
        return bool(np.all(np.asarray(self.state.progress.status))) or self.out_of_patience

    @property
    def out_of_patience(self) -> bool:
        """Whether so many validations in a row had no new best."""
        if self.patience is None or self.rows == 0:
            return False
        asked, _, best = self._validated()
        return bool(np.all(asked.size - 1 - best >= self.patience))

    def _validated(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps that were validated, what that gave, and of every start which of them is best."""
        asked, column = np.arange(0, self.rows, self.every), self._history.validation
        assert column is not None  # there is a validation where it is asked for
        losses = column[asked]
        return asked, losses, np.argmin(np.where(np.isfinite(losses), losses, np.inf), axis=0)

    def validation_in_words(self, start: int) -> str:
        """When the best validation of a start was, and what the last one says."""
        asked, losses, best = self._validated()
        return (
            f"the best validation was {losses[best[start], start]:.4g} at step "
            f"{asked[best[start]]}, the last of {asked.size} is {losses[-1, start]:.4g}"
        )

    @property
    def evaluations(self) -> int:
        """Of the objective, all starts together."""
        return int(np.sum(np.asarray(self.state.progress.evaluations)))

    def compile(self) -> None:
        """Make the programs of a step and of a validation."""
        began = time.perf_counter()
        if self.problem.validation is not None:
            self._validate = self._traced(validate).lower().compile()
        step = self._traced(self.method.step)
        if self.problem.key is not None:
            _require_draws(self._arrays, step.jaxpr)
        self._step = step.lower().compile()
        self.compile_seconds = time.perf_counter() - began

    def _traced(self, function: Callable) -> Any:
        """The program of all starts of a function of one."""
        one = partial(function, self._static)
        return jax.jit(partial(_of_all, one)).trace(self._arrays, self.state)

    def first_again(self) -> HistoryRow:
        """The first evaluation once more, by the objective as it is now."""
        return jax.tree.map(np.asarray, self._step(self._arrays, self._begin)[1])

    def go_on(self, after: Callable[[], str | None]) -> str:
        """Evaluate until `after` one of them there is a reason to stop, or nothing left to do."""
        reason = None
        while self.rows <= self.steps and not self.ended and reason is None:
            row, state = self._done
            state, record = self._step(self._arrays, state)
            for name, value in record._asdict().items():
                getattr(self._history, name)[row] = value
            column = self._history.validation
            if column is not None and row % self.every == 0:
                state, column[row] = self._validate(self._arrays, state)
            if row == 0:
                require_a_start(self._history.loss[0], self._history.gradient_norm[0])
            self._done = (row + 1, state)
            reason = after()
        return reason or ("patience" if self.out_of_patience else "steps")

    def last(self) -> tuple[int, HistoryRow]:
        """Number of the last evaluation, and what it was."""
        return self.rows - 1, HistoryRow(*(x[self.rows - 1] for x in self._history[:3]))

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

    def like(self, rows: int) -> tuple[Any, TuningHistory]:
        """Shapes and dtypes of what a checkpoint stores after so many rows."""
        starts, validated = self.state.progress.best_loss.size, self.problem.validation is not None
        return self.state, TuningHistory.empty(rows, starts, validated=validated)

    def restore(self, rows: int, state: Any, stored: TuningHistory) -> None:
        """Go on from the contents of a checkpoint."""
        _, self._history = self.like(max(rows, self.steps + 1))
        pairs = zip(jax.tree.leaves(self._history), jax.tree.leaves(stored), strict=True)
        for column, part in pairs:
            column[:rows] = part
        self._done = (rows, strongly_typed(state))


def _of_all(function: Callable, arrays: PyTree, states: PyTree) -> Any:
    """A function of one start for all of them.

    A single one takes no axis of its own: the runs of an objective are often a batch already, and
    are slower with another axis.
    """
    if jax.tree.leaves(states)[0].shape[0] > 1:
        return jax.vmap(function, in_axes=(None, 0))(arrays, states)
    out = function(arrays, jax.tree.map(lambda x: x[0], states))
    return jax.tree.map(lambda x: x[None], out)


class _File:
    """The checkpoint of a run, or nothing."""

    def __init__(self, path: str | Path | None, resume: bool, overwrite: bool, every: int):
        if path is None and (resume or overwrite):
            raise ValueError("tune: `resume` and `overwrite` need the file: give `checkpoint`.")
        if resume and overwrite:
            raise ValueError("tune: `resume` and `overwrite` contradict each other; choose one.")
        self.path = None if path is None else Path(path)
        self.resume, self.every = resume, every
        if self.path is not None and self.path.is_dir():
            raise IsADirectoryError(
                f"tune: the checkpoint {self.path} is a folder; give the name of a file in it, "
                f"e.g. {self.path / 'run.ckpt'}."
            )
        if self.path is not None and self.path.exists() and not (resume or overwrite):
            raise FileExistsError(
                f"tune: the checkpoint {self.path} exists; continue it with `resume=True`, "
                "replace it with `overwrite=True`, or give another path."
            )
        self._fingerprint: dict[str, Any] = {}
        self._saved = 0

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Keep other runs from the file."""
        if self.path is None:
            return contextlib.nullcontext()
        return checkpoints.alone(self.path, "tune")

    def open(self, run: Any, chosen: Chosen, params: PyTree, search: dict[str, Any]) -> None:
        """Restore a run if asked to; know what to write in the header."""
        if self.path is None:
            return
        self._fingerprint = resumption.fingerprint(params, chosen, run.state, search)
        if self.resume and self.path.exists():
            self._saved, contents = checkpoints.load(self.path, self._fingerprint, run.like)
            run.restore(self._saved, *contents)

    def compare(self, run: Any) -> None:
        """Require the objective that the rows of the file are of."""
        if self.path is not None and self._saved:
            again, epsilon = run.first_again(), run.problem.epsilon
            resumption.require_same_objective(self.path, run.history, again, epsilon)

    def save(self, run: Any, *, due_only: bool) -> None:
        """Save rows that are not saved yet; with `due_only`, at the regular intervals."""
        due = (run.rows - 1) % self.every == 0
        if self.path is None or run.rows == self._saved or (due_only and not due):
            return
        checkpoints.save(self.path, self._fingerprint, run.rows, (run.state, run.history))
        self._saved = run.rows


class _Certifier:
    """Examines the gradient of an objective every so many steps.

    Args:
        problem: of the run.
    """

    def __init__(self, problem: TuningProblem):
        self._evaluator = Evaluator(lambda x: problem.loss(x)[0], problem.trained)
        self.last: GradientCertificate | None = None

    def stops(self, row: int, params: PyTree) -> bool:
        """Whether the gradient at parameters may not be followed, where it is due to ask."""
        if row % _CERTIFY_EVERY:
            return False
        point = self._evaluator.flat(split(params)[0])
        self.last = GradientExamination(
            self._evaluator, point, DIGITS, backends=False
        ).certificate()
        return not self.last.passed


def _loop(
    run: TuningLoop | ScipyRun, file: _File, progress: bool, callback, certifier: _Certifier | None
) -> str:
    """Evaluate until a reason to stop, and return it."""
    from tqdm import tqdm

    taken = max(run.rows - 1, 0)
    with tqdm(total=run.steps, initial=taken, disable=not progress, unit="step") as bar:

        def after() -> str | None:
            file.save(run, due_only=True)
            if callback is None and not progress and certifier is None:
                return None
            start, loss, params = run.best()
            if progress:
                skipped = int(run.history.skipped[:, start].sum())
                said: dict[str, Any] = {"loss": f"{loss:.4g}", "skipped": skipped}
                if run.problem.validation is not None:
                    last = run.last()[1].loss[start]
                    said |= {"loss": f"{last:.4g}", "validation": f"{loss:.4g}"}
                bar.set_postfix(said, refresh=False)
                bar.update(run.rows - 1 - bar.n)
            row, record = run.last()
            if certifier is not None and certifier.stops(row, params):
                return "uncertified"
            if callback is None:
                return None
            asked = run.history.validation
            validation = None if asked is None else asked[row]
            stops = callback(TuningStep(row, *record, loss, resolve(params), validation))
            return "callback" if stops else None

        try:
            return run.go_on(after)
        finally:
            # Also on interruption and on an error of the callback: what is finished is kept.
            file.save(run, due_only=False)


def _in_words(
    run: TuningLoop | ScipyRun, reason: str, last: GradientCertificate | None
) -> tuple[str, str]:
    """Why the run stopped, in a word and in words."""
    if reason == "uncertified" and last is not None:
        return reason, str(last)
    start = run.best()[0]
    reached, words = run.ending(start)
    loop = run if isinstance(run, TuningLoop) else None
    if loop is not None and loop.method is DESCENT and reached == reason == "steps":
        history, after = run.history.of_start(start), after_all_steps
        if run.problem.key is not None:
            after = after_draws
        words = after(history.loss, history.gradient_norm) if run.rows > 1 else words
    if loop is not None and run.problem.validation is not None:
        validated = loop.validation_in_words(start)
        if reason == "patience":
            return reason, validated
        words = f"{words}; {validated}"
    if reason == "steps" or reached == "infeasible":
        # The best start may have ended while others went on.
        return reached, words
    return reason, "the callback returned True"


def _result(
    run: TuningLoop | ScipyRun,
    chosen: Chosen,
    params: PyTree,
    stop: tuple[str, str],
    began: float,
    before: int,
    last: GradientCertificate | None,
) -> TuningResult:
    start, loss, raw = run.best()
    histories, objective = run.history, run.problem.objective
    history = histories.of_start(start).until(run.rows_of(start))
    first = histories.loss if histories.validation is None else histories.validation
    residuals, jacobian = run.fit(start)
    return TuningResult(
        params=resolve(raw),
        raw=raw,
        initial_params=resolve(params),
        loss=loss,
        initial_loss=float(first[0, 0]),
        history=history,
        histories=histories,
        best_start=start,
        steps=run.rows - 1,
        evaluations=run.evaluations - before,
        skipped=int(history.skipped.sum()),
        stop_reason=stop[0],
        ending=stop[1],
        method=chosen.words,
        residuals=residuals,
        jacobian=jacobian,
        violations=run.violations(),
        certificate=_certificate(objective, resolve(raw), residuals),
        budget=str(getattr(objective, "budget", "")),
        wall_seconds=time.perf_counter() - began,
        compile_seconds=run.compile_seconds,
        gradient_certificate=last,
    )


def _certificate(objective: Any, params: PyTree, residuals: np.ndarray | None) -> Any:
    """What the objective guarantees; a run is not lost because that fails."""
    certify = getattr(objective, "certificate", None)
    if not callable(certify):
        return None
    by_fit = getattr(objective, "certificate_of_fit", None)
    try:
        # To run all members once more takes a program, which compiles longer than many steps take.
        if residuals is None or by_fit is None:
            return certify(params)
        return by_fit(params, residuals)
    except Exception as error:
        warnings.warn(f"tune: there is no certificate: {error}", stacklevel=4)
        return None


def _check_callable(objective: Any, callback: Any) -> None:
    if not callable(objective) and not callable(getattr(objective, "residuals", None)):
        raise ValueError(
            f"tune: the objective is a {type(objective).__name__}, must be a function of the "
            "parameters; did its arguments come in another order? tune(objective, params)."
        )
    if callback is not None and not callable(callback):
        raise ValueError(
            f"tune: callback is a {type(callback).__name__}, must be a function of a TuningStep."
        )


def _check_validation(validation: Any, patience: Any) -> None:
    if validation is not None and not callable(validation):
        raise ValueError(
            f"tune: validation is {described(validation)}, must be a function of the parameters, "
            "such as a SimulationObjective of starts that are not tuned on."
        )
    if validation is not None and not isinstance(validation, Stochastic):
        check_parameters("tune: validation", validation, ("params",))
    if patience is None:
        return
    check_counts("tune", patience=(patience, 1))
    if validation is None:
        raise ValueError("tune: `patience` counts validations: give `validation`.")


def _require_draws(arrays: TuningProblem, program: ClosedJaxpr) -> None:
    """Refuse an objective whose program, of these arrays and a state, does not use the key."""
    used = used_inputs(program)[: len(jax.tree.leaves(arrays))]
    if not jax.tree.unflatten(jax.tree.structure(arrays), used).key:
        raise ValueError(
            "tune: the Stochastic objective does not use its key, so that all steps would be the "
            "same; draw by it, with jax.random or random_starts, or leave `Stochastic` out."
        )


def _check_tolerance(tolerance: Any) -> None:
    if tolerance is not None and not (is_real(tolerance) and 0 < tolerance < 1):
        raise ValueError(
            f"tune: tolerance is {tolerance!r}, must be between 0 and 1: it is relative; leave it "
            "out for the root of the round-off."
        )
