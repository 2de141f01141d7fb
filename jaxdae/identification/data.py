"""What was measured, and what is known beforehand: channels, samples, starts, priors."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from jaxdae.identification.sensors import Calibration
from jaxdae.reprs import Module
from jaxdae.systems import State, Variables


class Channel(Module):
    """What an instrument shows: a function of the motion.

        y = scale * reading(run) + offset

    Args:
        reading: maps a `Trajectory`, of a `DAE` a `DAETrajectory`, to one number at each of its
            times, shape `(times,)`; such as `lambda run: run.q[:, 0]`. Traceable.
        unit: of these numbers, for tables and plots.
        offset: of the sensor, a number in the channel's unit; or a `Calibration`, which is
            estimated, one for all records or one for each.
        scale: of the sensor, likewise.

    Raises:
        ValueError: for an offset or a scale that is neither a finite number nor a `Calibration`.
    """

    reading: Callable[[Any], Float[Array, " times"]]
    unit: str = eqx.field(static=True, default="")
    offset: float | Calibration = eqx.field(static=True, default=0.0)
    scale: float | Calibration = eqx.field(static=True, default=1.0)

    def __init__(
        self,
        reading: Callable[[Any], Float[Array, " times"]],
        unit: str = "",
        offset: float | Calibration = 0.0,
        scale: float | Calibration = 1.0,
    ):
        self.reading, self.unit = reading, unit
        self.offset, self.scale = _line("offset", offset), _line("scale", scale)


class Measurement:
    """Samples of a channel and their noise.

    Args:
        values: samples at the experiment's times, shape `(times,)`; NaN where one is missing.
        sigma: standard deviation of the noise in the channel's unit, one number or one for each
            sample. `None` where it is not known: it is then estimated from what the fit leaves, one
            for each channel over all experiments.

    Raises:
        ValueError: for values that are no vector of real numbers, or infinite, and for a noise
            level that is not positive and finite.
    """

    values: Float[np.ndarray, " times"]
    sigma: Float[np.ndarray, " times"] | None

    def __init__(self, values, sigma=None):
        self.values = _vector("Measurement: values", values)
        if np.isinf(self.values).any():
            raise ValueError(
                f"Measurement: value {int(np.argmax(np.isinf(self.values)))} is infinite; write "
                "NaN for a sample that is missing."
            )
        self.sigma = None if sigma is None else _noise(sigma, self.values)


class UnknownStart(Module):
    r"""A start that is estimated with the parameters.

    Consistent states near the guess are written by independent coordinates `z`: `q` is the
    projection (`consistent_state`) of `q0 + S B z`, `S` being the scales and the columns of `B` an
    orthonormal basis of the directions that the constraints allow; velocities likewise. With finite
    standard deviations the guess is itself a measurement, whose normal density, restricted to the
    constraints, joins the sum of squares. Of a `DAE` it is `y` that is written so, by
    `consistent_start`, and `z` follows.

    Args:
        guess: state to begin from, of a `DAE` `Variables`; or a function of the system or `DAE`
            that returns one.
        q: standard deviation of the guess's coordinates, one number or shape `(n,)`: infinite where
            nothing is known, zero where the coordinate is known exactly.
        v: the same of velocities.
        w: the same of actuator states, shape `(k,)`.
        y: the same of the differential variables of a `DAE`, one number or a pytree like them.

    Raises:
        ValueError: for a standard deviation that is negative or NaN.
    """

    guess: State | Variables | Callable
    q: Any = np.inf
    v: Any = np.inf
    w: Any = np.inf
    y: Any = np.inf

    def __check_init__(self):
        if not isinstance(self.guess, State | Variables) and not callable(self.guess):
            raise TypeError(
                f"UnknownStart: the guess is a {type(self.guess).__name__}, must be a State(q, v), "
                "of a DAE Variables(y, z), or a function of the system that returns one."
            )
        for name in ("q", "v", "w", "y"):
            values = [np.asarray(x, float) for x in jax.tree.leaves(getattr(self, name))]
            if not all((x >= 0).all() for x in values):
                raise ValueError(
                    f"UnknownStart: {name} is {getattr(self, name)}; standard deviations are >= 0, "
                    "zero where the start is known, infinite where nothing is."
                )


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One record: when and what was measured, and how the motion began.

    Args:
        ts: times of the samples [s], increasing, shape `(times,)`.
        measurements: samples by the name of their channel.
        start: state at `t0`: a `State`, of a `DAE` `Variables`, which is known; a function of the
            system or `DAE` that returns one; or `UnknownStart`, which is estimated. Where a
            parameter moves the constraints, a known one goes to the nearest consistent one; of a
            `DAE` what follows from `y` is always computed, and what is given for it a guess.
        t0: time of the start [s], not after the first sample.
        controller: input of this record, `u = controller(t, q, v, w)`, unless the model has one.
        conditions: what was different in this record, any pytree of numbers; where given, the model
            is `build(params, conditions)`. Integers and Booleans may decide what is built: records
            that differ in one are simulated apart, which is slower where floats would do.
        guess: states at the samples as far as they are guessed, a `State` or `Variables` with
            leading axis `times`: where intervals of a divided record begin. Without it the first
            guess of the parameters says.
        name: for messages and plots.

    Raises:
        ValueError: for times that are out of order or not finite, measurements that do not fit
            them, or a record without any sample.
        TypeError: for a start or measurements of another kind.
    """

    ts: Any
    measurements: Mapping[str, Measurement]
    start: State | Variables | UnknownStart | Callable
    _: dataclasses.KW_ONLY
    t0: float = 0.0
    controller: Callable | None = None
    conditions: Any = None
    guess: State | Variables | None = None
    name: str = ""

    def __post_init__(self):
        ts = _vector("Experiment: ts", self.ts)
        object.__setattr__(self, "ts", ts)
        self._check_times(ts)
        if not isinstance(self.start, State | Variables | UnknownStart) and not callable(
            self.start
        ):
            raise TypeError(
                f"Experiment: start is a {type(self.start).__name__}, must be a State(q, v), of a "
                "DAE Variables(y, z), a function of the system that returns one, or an "
                "UnknownStart."
            )
        for path, x in jax.tree_util.tree_leaves_with_path(self.guess):
            if np.shape(x)[:1] != ts.shape:
                raise ValueError(
                    f"Experiment: guess{jax.tree_util.keystr(path)} has shape {np.shape(x)}, needs "
                    f"one state for each of the {ts.size} times."
                )
        self._check_measurements(ts)

    def _check_times(self, ts: np.ndarray) -> None:
        if ts.size == 0 or not np.isfinite(ts).all():
            raise ValueError("Experiment: ts must hold at least one time, and finite ones only.")
        late = np.flatnonzero(np.diff(ts) <= 0)
        if late.size:
            i = int(late[0])
            raise ValueError(
                f"Experiment: times are out of order, ts[{i + 1}] = {ts[i + 1]:.6g} s comes after "
                f"ts[{i}] = {ts[i]:.6g} s; sort the samples by time, each time once."
            )
        if not self.t0 <= ts[0]:
            raise ValueError(
                f"Experiment: it starts at t0 = {self.t0:g} s, after its first sample at "
                f"{ts[0]:.6g} s; give the time of the start as t0."
            )

    def _check_measurements(self, ts: np.ndarray) -> None:
        if not isinstance(self.measurements, Mapping) or not self.measurements:
            raise TypeError(
                "Experiment: measurements must map names of channels to samples, such as "
                '{"angle": Measurement(values, sigma=0.01)}.'
            )
        for name, x in self.measurements.items():
            if not isinstance(x, Measurement):
                raise TypeError(
                    f"Experiment: {name!r} is a {type(x).__name__}; wrap the samples, "
                    "Measurement(values, sigma=…)."
                )
            if x.values.shape != ts.shape:
                raise ValueError(
                    f"Experiment: {name!r} has {x.values.size} samples at {ts.size} times; give "
                    "one for each time, NaN where one is missing."
                )
        if all(np.isnan(x.values).all() for x in self.measurements.values()):
            raise ValueError(
                f"Experiment{f' {self.name!r}' if self.name else ''}: all samples are missing "
                "(NaN); leave the experiment out."
            )


class Prior:
    """A parameter as it is known from elsewhere: normal, in the parameter's own unit.

    It counts as one more measurement, `(x - mean) / sigma`, of the value itself: of a `Positive`
    not of the logarithm.

    Args:
        mean: where the parameter is expected.
        sigma: standard deviation.

    Raises:
        ValueError: unless both are finite numbers, and the standard deviation is positive.
    """

    mean: float
    sigma: float

    def __init__(self, mean: float, sigma: float):
        self.mean, self.sigma = _number("mean", mean), _number("sigma", sigma)
        if self.sigma <= 0:
            raise ValueError(
                f"Prior: sigma is {self.sigma:g}, must be > 0; to hold a parameter write a Python "
                "number in place of the array."
            )


def _line(name: str, value: Any) -> float | Calibration:
    if isinstance(value, Calibration):
        return value
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "fiu" or not np.isfinite(value):
        raise ValueError(
            f"Channel: {name} is {value!r}, must be one finite number, or a Calibration(guess), "
            "which is estimated."
        )
    return float(value)


def _number(name: str, value: Any) -> float:
    if np.ndim(value) != 0 or np.asarray(value).dtype.kind not in "fiu" or not np.isfinite(value):
        raise ValueError(f"Prior: {name} is {value!r}, must be one finite number.")
    return float(value)


def check_data(channels: Mapping[str, Channel], experiments) -> None:
    """Refuse channels and experiments that do not fit each other."""
    if not isinstance(channels, Mapping) or not channels:
        raise TypeError(
            'identify: channels must map names to Channel, such as {"angle": Channel(lambda run: '
            'run.q[:, 0], unit="rad")}.'
        )
    for name, channel in channels.items():
        if not isinstance(channel, Channel):
            raise TypeError(
                f"identify: channel {name!r} is a {type(channel).__name__}; wrap the function of "
                "the trajectory, Channel(reading, unit=…)."
            )
    if not experiments or not all(isinstance(x, Experiment) for x in experiments):
        raise TypeError("identify: experiments must be a sequence of Experiment, at least one.")
    for name in {name for x in experiments for name in x.measurements} - channels.keys():
        raise ValueError(
            f"identify: {name!r} is measured, but no channel has that name; there are: "
            f"{', '.join(channels)}."
        )
    for name in channels:
        found = [x.measurements[name] for x in experiments if name in x.measurements]
        if all(np.isnan(x.values).all() for x in found):
            raise ValueError(
                f"identify: nobody measures the channel {name!r}: no experiment has a sample of "
                "it; leave it out, or check the names of the measurements."
            )
        if len({x.sigma is None for x in found}) > 1:
            raise ValueError(
                f"identify: the noise of {name!r} is known in some experiments and not in others; "
                "give sigma in all of them or in none."
            )


def label(i: int, experiment: Experiment) -> str:
    """An experiment's name, or its number counted from one."""
    return repr(experiment.name) if experiment.name else str(i + 1)


def _vector(name: str, values) -> np.ndarray:
    try:
        if isinstance(values, np.ma.MaskedArray):  # of which asarray forgets what is masked
            values = np.ma.filled(values.astype(float), np.nan)
        array = np.asarray(values)
        if np.iscomplexobj(array) or array.dtype == bool:
            raise TypeError
        array = np.array(array, float)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a vector of real numbers.") from None
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, must be a vector (times,).")
    return array


def _noise(sigma, values: np.ndarray) -> np.ndarray:
    noise = np.asarray(sigma, float)
    if noise.shape not in {(), values.shape}:
        raise ValueError(
            f"Measurement: sigma has shape {noise.shape} for {values.size} samples; give one "
            "number, or one for each sample."
        )
    noise = np.broadcast_to(noise, values.shape)
    if not ((noise > 0) & np.isfinite(noise)).all():
        bad = noise[~((noise > 0) & np.isfinite(noise))][0]
        raise ValueError(
            f"Measurement: sigma is {bad:g}, must be > 0 and finite; leave it out where the noise "
            "is not known, and write NaN for a sample that is missing."
        )
    return noise
