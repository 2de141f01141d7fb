"""How well a model predicts records that it was not fitted to: nothing is estimated but starts."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PyTree

from jaxdae.identification.data import Channel, check_data, Experiment, label, UnknownStart
from jaxdae.identification.fit import Batch, MeasurementModel, Settings, Unknowns
from jaxdae.identification.identify import measurement_model
from jaxdae.identification.preparation import batch_of, Freedom, node, Piece, samples_of
from jaxdae.reprs import shown
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.problem import MAX_STEPS
from jaxdae.systems.precision import in_dtype
from jaxdae.tuning.parametrizations import resolve

# Of the estimation of a start: largest number of steps, and a step that is the last, in units of
# what the samples say of the start.
_STEPS = 30
_SMALL = 1e-3
_DAMPING = 1e-3


class PredictedChannel(NamedTuple):
    """Windows of a record beside their predictions, each row from one start.

    Args:
        ts: times of the samples [s], shape `(windows, samples)`.
        since: the same since the last sample that the start was estimated from [s]; negative for
            those before.
        measured: samples, NaN where one is missing.
        predicted: what the model says; NaN where a run failed.
        unit: of the channel.
    """

    ts: Float[np.ndarray, "windows samples"]
    since: Float[np.ndarray, "windows samples"]
    measured: Float[np.ndarray, "windows samples"]
    predicted: Float[np.ndarray, "windows samples"]
    unit: str

    def __repr__(self) -> str:
        return shown(self)

    @property
    def errors(self) -> Float[np.ndarray, "windows samples"]:
        """Predicted less measured where that is ahead of the start; infinite for failed runs."""
        known = np.isfinite(self.measured) & (self.since > 0)
        failed = np.where(np.isfinite(self.predicted), self.predicted - self.measured, np.inf)
        return np.where(known, failed, np.nan)


@dataclasses.dataclass(frozen=True)
class Validation:
    """Predictions of records from starts along them.

    Args:
        horizon: time ahead [s].
        past: time from whose samples each start is estimated [s].
        records: names of the records.
        data: channels of each record, by name.
        sensors: of each record offsets and scales of its own that were estimated, by name.
    """

    horizon: float
    past: float
    records: tuple[str, ...]
    data: tuple[Mapping[str, PredictedChannel], ...]
    sensors: tuple[Mapping[str, float], ...]

    def __repr__(self) -> str:
        return self.summary()

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels that are measured in a record."""
        return tuple(dict.fromkeys(name for one in self.data for name in one))

    def rms(self, channel: str) -> Float[np.ndarray, " records"]:
        """Root mean square of the errors of each record up to the horizon, in the channel's unit.

        NaN for records that do not have the channel.

        Args:
            channel: its name.
        """
        return np.array(
            [_rms(self._errors(x[channel])) if channel in x else np.nan for x in self.data]
        )

    def _errors(self, one: PredictedChannel) -> Float[np.ndarray, "windows samples"]:
        """Up to the horizon: behind a gap samples are later than their number says."""
        most = self.horizon + np.median(np.diff(one.since)) / 2
        return np.where(one.since <= most, one.errors, np.nan)

    def by_horizon(
        self, channel: str, count: int = 20
    ) -> tuple[Float[np.ndarray, " count"], Float[np.ndarray, " count"]]:
        """Root mean square of the errors of all records against the time ahead.

        Args:
            channel: its name.
            count: number of intervals into which the horizon is divided.

        Returns:
            Middles of these intervals [s], and the errors in them.
        """
        rows = [x[channel] for x in self.data if channel in x]
        since = np.concatenate([x.since.ravel() for x in rows])
        errors = np.concatenate([self._errors(x).ravel() for x in rows])
        edges = np.linspace(0.0, self.horizon, count + 1)
        places = np.clip(np.searchsorted(edges, since, side="left") - 1, 0, count - 1)
        ahead = np.isfinite(errors) | np.isinf(errors)
        found = [_rms(errors[ahead & (places == k)]) for k in range(count)]
        return (edges[1:] + edges[:-1]) / 2, np.array(found)

    def summary(self) -> str:
        """Errors by record and channel, ready to print."""
        lines = [
            f"predictions of {self.horizon:g} s, starts from the {self.past:g} s before: root mean "
            "square of the errors"
        ]
        for name in self.channels:
            values, unit = self.rms(name), next(x[name].unit for x in self.data if name in x)
            if np.isnan(values).all():
                lines.append(f"  {name}: no sample is predicted")
                continue
            listed = values if len(values) <= 10 else np.array([])
            each = " (" + ", ".join(f"{x:.3g}" for x in listed) + ")" if listed.size > 1 else ""
            worst = int(np.nanargmax(values))
            lines.append(
                f"  {name}: {np.sqrt(np.nanmean(values**2)):.3g} {unit}{each}, at most "
                f"{values[worst]:.3g} in record {self.records[worst]}"
            )
        return "\n".join(lines)


def validate(
    build: Callable,
    params: PyTree,
    experiments: Sequence[Experiment] | Experiment,
    *,
    channels: Mapping[str, Channel],
    horizon: float,
    past: float,
    every: float | None = None,
    noise: Mapping[str, float] | None = None,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    max_steps: int = MAX_STEPS,
    backend: Backend = "auto",
) -> Validation:
    """Predict records that a model was not fitted to, from starts along them.

    Each record is divided into windows. In each the state at the beginning is estimated from the
    samples of the first `past` seconds alone, by least squares; from there the model predicts the
    next `horizon` seconds, whose samples it does not know. Parameters stay as they are. Offsets and
    scales that every record has for itself, `Calibration(…, per_record=True)`, are estimated from
    all windows of the record before, since they are of the sensor and not of the motion.

    The search for a start begins where the prediction of the window before ends, or at the
    experiment's `guess`.

    Args:
        build: as for `identify`.
        params: parameters, such as those of a fit, `identified.params`.
        experiments: records, other ones than those of the fit.
        channels: what the instruments show, as for `identify`; of offsets and scales that all
            records share the numbers.
        horizon: how far is predicted [s].
        past: from which time a start is estimated [s], in which at least two samples have to be.
        every: from the beginning of one window to that of the next [s]; by default the horizon.
        noise: noise levels by channel, such as `identified.noise`, by which channels are weighted
            whose samples have none; by default all samples count alone.
        dt: as for `identify`, as are the following.
        solver: as for `simulate`.
        stepsize_controller: as for `simulate`.
        max_steps: as for `simulate`.
        backend: as for `simulate`.

    Returns:
        `Validation`.

    Raises:
        ValueError: for data that do not fit each other, times and noise levels that are not
            positive, noise of other channels, a record that is shorter than a window, and a
            calibration that all records share.
    """
    experiments = (experiments,) if isinstance(experiments, Experiment) else tuple(experiments)
    check_data(channels, experiments)
    every = horizon if every is None else every
    for name, x in {"horizon": horizon, "past": past, "every": every}.items():
        if not (np.ndim(x) == 0 and 0 < x < np.inf):
            raise ValueError(f"validate: {name} is {x!r}, must be a positive number of seconds.")
    for name, x in (noise or {}).items():
        if name not in channels:
            raise ValueError(
                f"validate: noise of {name!r} is given, but there are {', '.join(channels)}."
            )
        if not (np.ndim(x) == 0 and 0 < x < np.inf):
            raise ValueError(f"validate: the noise of {name!r} is {x!r}, must be > 0 and finite.")
    settings = Settings(dt, solver, stepsize_controller, max_steps, backend)
    model = measurement_model(build, channels, settings)
    for name in model.sensors.shared:
        raise ValueError(
            f"validate: the {name} is a Calibration that all records share; give its number, such "
            f"as identified[{name!r}]."
        )
    # Of weak types, as `jnp.array(0.1)` has, a program of its own would be made.
    typed = lambda x: jnp.asarray(x, x.dtype) if eqx.is_array(x) else x  # noqa: E731
    unknowns = Unknowns(jax.tree.map(typed, resolve(params)), {})
    windows = _Windows(
        model, unknowns, experiments, channels, noise or {}, past, horizon,
        [_parts_of(i, x, past, horizon, every) for i, x in enumerate(experiments)],
    )  # fmt: skip
    own = [model.sensors.first_own() for _ in experiments]
    if own[0].size:
        own = windows.calibrated(own)
    predicted = windows.predicted(own)
    return Validation(
        horizon,
        past,
        tuple(x.name or str(i + 1) for i, x in enumerate(experiments)),
        tuple(windows.beside(i, x) for i, x in enumerate(predicted)),
        tuple(dict(zip(model.sensors.own, map(float, x), strict=True)) for x in own),
    )


def _rms(errors: np.ndarray) -> float:
    known = errors[~np.isnan(errors)]
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(known**2))) if known.size else float("nan")


def _parts_of(i: int, one: Experiment, past: float, horizon: float, every: float) -> np.ndarray:
    """Numbers of the samples of each window, shape `(windows, samples)`."""
    spacing = float(np.median(np.diff(one.ts))) if one.ts.size > 1 else np.inf
    before, step = (max(1, round(x / spacing)) for x in (past, every))
    length = before + max(1, round(horizon / spacing)) + 1
    if before < 1 or past < spacing * (1 - 1e-9):
        raise ValueError(
            f"validate: past is {past:g} s, less than the {spacing:.3g} s between samples of "
            f"experiment {label(i, one)}; a start is estimated from two of them at least."
        )
    if length > one.ts.size:
        raise ValueError(
            f"validate: experiment {label(i, one)} has {one.ts.size} samples, a window of {past:g} "
            f"and {horizon:g} s takes {length}."
        )
    begins = np.arange(0, one.ts.size - length + 1, step)
    return begins[:, None] + np.arange(length)


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Windows of all records, one after the other, those of all records at once."""

    model: MeasurementModel
    unknowns: Unknowns
    experiments: tuple[Experiment, ...]
    channels: Mapping[str, Channel]
    noise: Mapping[str, float]
    past: float
    horizon: float
    parts: list[np.ndarray]  # numbers of samples, by experiment

    def _before(self, i: int) -> int:
        """How many samples of a window say where it starts."""
        one = self.experiments[i]
        return max(1, round(self.past / float(np.median(np.diff(one.ts))))) + 1

    def _piece(self, i: int, k: int, guess: Any, own: np.ndarray, *, with_own: bool) -> Piece:
        """A window of an experiment as an interval whose start is not known."""
        one = self.experiments[i]
        at = self.parts[i][k]
        given = in_dtype((one.controller, one.conditions), jnp.result_type(float))
        parts, t = self.model.parts(self.unknowns, given), float(one.ts[at[0]])
        near, free, _, project, origin = node(parts, t, guess)
        if with_own:
            moves: Any = scipy.linalg.block_diag(free.moves, np.eye(own.size))
            prior = np.zeros((moves.shape[1],) * 2)
        else:
            moves = np.concatenate([free.moves, np.zeros((own.size, free.moves.shape[1]))])
            prior = np.zeros_like(free.prior)
        values, weights = samples_of(one, at, tuple(self.channels))
        scale = np.array([self.noise.get(name, 1.0) for name in self.channels])
        known = [
            name in one.measurements and one.measurements[name].sigma is not None
            for name in self.channels
        ]
        weights = weights / np.where(known, 1.0, scale)[:, None]
        free = Freedom(np.asarray(moves), prior)
        return Piece(
            i, 0, t, at, one.ts[at], values, weights, given, near, own, free, None, project, origin
        )

    def _batches(self, pieces: list[Piece]) -> list[tuple[list[int], Batch]]:
        """Windows of records with one number of samples are one batch, for one program."""
        found = []
        for size in sorted({x.ts.size for x in pieces}):
            places = [j for j, x in enumerate(pieces) if x.ts.size == size]
            group = [pieces[j] for j in places]
            longest = max(float(np.ptp(e.ts[p], axis=-1).max()) for e, p in self._of_size(size))
            dt = self.model.settings.dt
            steps = None if dt is None else max(1, int(np.ceil(longest / dt * (1 - 1e-9))))
            step = None if steps is None else longest / steps * (1 + 1e-9)
            start = group[0].start - group[0].origin
            batch = dataclasses.replace(
                batch_of(group, dt),
                members=tuple((j, 0) for j in range(len(group))),
                longest=(start, start + longest, step),
            )
            found.append((places, batch))
        return found

    def _of_size(self, size: int):
        pairs = zip(self.experiments, self.parts, strict=True)
        return [(e, p) for e, p in pairs if p.shape[1] == size]

    def _first_guess(self, i: int) -> Any:
        one = self.experiments[i]
        start = one.start.guess if isinstance(one.start, UnknownStart) else one.start
        given = in_dtype((one.controller, one.conditions), jnp.result_type(float))
        parts = self.model.parts(self.unknowns, given)
        what = f"validate: the start of experiment {label(i, one)} is"
        return parts.as_state(start(parts.declaration) if callable(start) else start, what)

    def _walk(
        self, own: list[np.ndarray], *, with_own: bool
    ) -> Iterator[tuple[int, Batch, int, Any]]:
        """All windows in turn: records, batch, fitted coordinates, Jacobian, predictions."""
        guesses = [self._first_guess(i) for i in range(len(self.experiments))]
        for k in range(max(len(x) for x in self.parts)):
            # Records that have ended go along, so that the program stays the same.
            numbers = [min(k, len(x) - 1) for x in self.parts]
            for i, (one, number) in enumerate(zip(self.experiments, numbers, strict=True)):
                if one.guess is not None:
                    begin = int(self.parts[i][number][0])
                    guesses[i] = jax.tree.map(lambda x, at=begin: x[at], one.guess)
            pieces = [
                self._piece(i, number, guesses[i], own[i], with_own=with_own)
                for i, number in enumerate(numbers)
            ]
            for places, batch in self._batches(pieces):
                before = max(self._before(i) for i in places)
                ahead = jnp.arange(batch.values.shape[2]) >= before
                weights = batch.weights if with_own else jnp.where(ahead, 0.0, batch.weights)
                fitted = _fitted(self.model, self.unknowns, batch, weights)
                for j, i in enumerate(places):
                    if k < len(self.parts[i]):
                        yield i, batch, j, fitted
                        following = self.parts[i][min(k + 1, len(self.parts[i]) - 1)][0]
                        row = int(following - self.parts[i][k][0])
                        at = min(row, batch.values.shape[2] - 1)
                        state = jax.tree.map(lambda x, j=j, at=at: x[j, at], fitted.states)
                        if all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state)):
                            guesses[i] = state

    def calibrated(self, own: list[np.ndarray]) -> list[np.ndarray]:
        """Offsets and scales of each record, from all its windows, by what each says of them."""
        s = own[0].size
        total = [np.diag([x.sigma**-2.0 for x in self.model.sensors.own.values()]) for _ in own]
        right = [a @ x for a, x in zip(total, own, strict=True)]
        for i, _, j, fitted in self._walk(own, with_own=True):
            jac = fitted.jac[j]
            if not np.isfinite(jac).all():
                continue
            start, line = jac[:, :-s], jac[:, -s:]
            line = line - start @ np.linalg.pinv(start) @ line
            total[i] += line.T @ line
            right[i] += line.T @ line @ (own[i] + fitted.z[j, -s:])
        return [np.linalg.pinv(a) @ b for a, b in zip(total, right, strict=True)]

    def predicted(self, own: list[np.ndarray]) -> list[list[np.ndarray]]:
        """What the model says of each window, by experiment, shape `(channels, samples)`."""
        found: list[list[np.ndarray]] = [[] for _ in self.experiments]
        for i, batch, j, fitted in self._walk(own, with_own=False):
            rows = np.full((len(self.channels), batch.values.shape[2]), np.nan)
            rows[list(batch.channels)] = fitted.values[j]
            found[i].append(rows)
        return found

    def beside(self, i: int, rows: list[np.ndarray]) -> dict[str, PredictedChannel]:
        """Samples and predictions of a record."""
        one, parts = self.experiments[i], self.parts[i]
        ts, found = one.ts[parts], {}
        since = ts - ts[:, self._before(i) - 1][:, None]
        for c, (name, channel) in enumerate(self.channels.items()):
            if name in one.measurements:
                measured = one.measurements[name].values[parts]
                predicted = np.stack([x[c] for x in rows])
                found[name] = PredictedChannel(ts, since, measured, predicted, channel.unit)
        return found


class _Fitted(NamedTuple):
    z: np.ndarray  # coordinates of the starts, shape `(runs, d)`
    jac: np.ndarray  # of the residuals by these, shape `(runs, residuals, d)`
    values: np.ndarray  # of the channels, shape `(runs, channels, times)`
    states: Any  # at the samples


def _fitted(model: MeasurementModel, unknowns: Unknowns, batch: Batch, weights) -> _Fitted:
    """Starts of all runs by the method of Levenberg and Marquardt, each for itself."""
    runs, d = batch.runs.moves.shape[0], batch.runs.moves.shape[2]
    damping: np.ndarray = np.full(runs, _DAMPING)
    z: Any = np.zeros((runs, d))
    residuals, jac, values, states = _at(model, unknowns, batch, weights, z)
    for _ in range(_STEPS):
        squares = np.einsum("rmi,rmj->rij", jac, jac)
        sizes = np.einsum("rii->ri", squares)
        lifted = squares + np.stack([np.diag(x) for x in damping[:, None] * sizes + 1e-300])
        slopes = np.einsum("rmi,rm->ri", jac, residuals)
        steps = -np.einsum("rij,rj->ri", np.linalg.pinv(lifted, hermitian=True), slopes)
        trial = _at(model, unknowns, batch, weights, z + steps)
        with np.errstate(over="ignore"):
            cost, new = (np.sum(np.asarray(x) ** 2, axis=1) for x in (residuals, trial[0]))
        better = np.isfinite(new) & ((new < cost) | ~np.isfinite(cost))
        kept, tried = (z, residuals, jac, values, states), (z + steps, *trial)
        z, residuals, jac, values, states = jax.tree.map(partial(_chosen, better), kept, tried)
        damping = np.where(better, damping / 10, damping * 10)
        moved = np.einsum("ri,rij,rj->r", steps, squares, steps)
        small = moved <= _SMALL**2 * np.maximum(cost / max(residuals.shape[1], 1), 1e-300)
        if np.all(small | (damping > 1e8)):
            break
    return _Fitted(z, jac, values, states)


def _chosen(better: np.ndarray, kept, tried) -> np.ndarray:
    """Of each run what was tried where that is better, else what it had."""
    return np.where(better.reshape(-1, *[1] * (np.ndim(kept) - 1)), tried, kept)


def _at(model, unknowns, batch, weights, z) -> tuple[Any, Any, Any, Any]:
    residuals, jac, values, states = _linearized(model, unknowns, batch, weights, jnp.asarray(z))
    finite: Any = np.isfinite(np.asarray(residuals)).all(axis=1)
    residuals = np.where(finite[:, None], residuals, np.inf)
    jac = np.where(finite[:, None, None] & np.isfinite(jac), jac, 0.0)
    return residuals, jac, np.asarray(values), jax.tree.map(np.asarray, states)


@eqx.filter_jit
def _linearized(model: MeasurementModel, unknowns, batch: Batch, weights, z: Array):
    """Residuals of all runs and their derivatives by the coordinates of each start."""

    def residuals(z):
        found = model.predictions(unknowns, batch, z)
        differences = (found.values - batch.values) * weights
        # What has no weight need not be finite.
        rows = jnp.where(weights > 0, differences, 0.0).reshape(z.shape[0], -1)
        return rows, (found.values, found.states)

    d = z.shape[1]
    tangents = [jnp.zeros_like(z).at[:, k].set(1.0) for k in range(d)]
    rows, (values, states) = residuals(z)
    push = lambda tangent: jax.jvp(lambda z: residuals(z)[0], (z,), (tangent,))[1]  # noqa: E731
    columns = jax.vmap(push)(jnp.stack(tangents)) if d else jnp.zeros((0, *rows.shape))
    return rows, jnp.moveaxis(columns, 0, -1), values, states
