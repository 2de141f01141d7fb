"""Records of measurements: files, arrays and tables as experiments."""

import csv
import dataclasses
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxdae.checks import as_number
from jaxdae.control.recorded import KINDS, Recorded
from jaxdae.identification.data import Channel, Experiment, Measurement, UnknownStart
from jaxdae.identification.units import factor, split
from jaxdae.names import unknown_name
from jaxdae.reprs import shown
from jaxdae.systems import State, Variables

_MISSING = {"", "nan", "na", "n/a", "null", "none", "-"}
RECEIVERS = ("controller", "build")


@dataclasses.dataclass(frozen=True)
class Record:
    """What was measured in one motion: samples of channels, and inputs at the same times.

    Args:
        ts: times of the samples [s], increasing, shape `(times,)`.
        outputs: samples in the units of their channels, by the channels' names, NaN where one is
            missing.
        inputs: in units of SI, shape `(times, inputs)`; NaN where one is missing.
        kind: `"linear"` where inputs are interpolated, `"held"` where each holds until the next.
        name: for messages and plots.
    """

    ts: Float[np.ndarray, " times"]
    outputs: Mapping[str, Float[np.ndarray, " times"]]
    inputs: Float[np.ndarray, "times inputs"]
    kind: str = "linear"
    name: str = ""

    def __repr__(self) -> str:
        return shown(self)

    @property
    def input(self) -> Recorded | None:
        """The inputs, `u(t)`, as a controller; `None` where the record has none."""
        if not self.inputs.shape[1]:
            return None
        return Recorded(self.ts, _filled(self.ts, self.inputs, self.kind), self.kind)

    def between(self, begin: float, end: float) -> "Record":
        """The part from one time to another [s].

        Args:
            begin: [s].
            end: [s].

        Raises:
            ValueError: where fewer than two samples are left.
        """
        part = (self.ts >= begin) & (self.ts <= end)
        if part.sum() < 2:
            raise ValueError(
                f"Record {self.name!r} has {part.sum()} samples between {begin:g} and {end:g} s; "
                f"it goes from {self.ts[0]:.6g} to {self.ts[-1]:.6g} s."
            )
        outputs = {name: x[part] for name, x in self.outputs.items()}
        # An input goes on from samples that are before the part.
        inputs = _filled(self.ts, self.inputs, self.kind)[part]
        return dataclasses.replace(self, ts=self.ts[part], outputs=outputs, inputs=inputs)

    def windows(self, length: float) -> "list[Record]":
        """The record in parts of equal length, for motions that soon forget their start.

        Of a pendulum that goes over the top, or of any motion whose perturbations grow, the end of
        a long record says little of its beginning, and a fit from one start ends far from the best.
        Parts, each from its own `UnknownStart`, keep what they say of the parameters.

        Args:
            length: of a part [s], about: the record is divided into as many as fit best. Those with
                fewer than two samples, in a gap, are left out.

        Raises:
            ValueError: for a length that is not positive, or below two samples everywhere.
        """
        if not (np.isfinite(length) and length > 0):
            raise ValueError(f"Record: the length of windows is {length!r}, must be positive [s].")
        count = max(1, round((self.ts[-1] - self.ts[0]) / length))
        edges = np.linspace(self.ts[0], self.ts[-1], count + 1)
        edges[-1] = np.inf
        found = []
        for begin, end in itertools.pairwise(edges):
            part = (self.ts >= begin) & (self.ts < end)
            if part.sum() > 1:
                first, last = self.ts[part][[0, -1]]
                one = self.between(first, last)
                found.append(dataclasses.replace(one, name=f"{self.name} from {first:.6g} s"))
        if not found:
            raise ValueError(
                f"Record {self.name!r} has fewer than two samples in each part of {length:g} s; "
                "give longer ones."
            )
        return found

    def experiment(
        self,
        start: State | Variables | UnknownStart | Callable,
        *,
        every: int = 1,
        sigma: float | Mapping[str, float] | None = None,
        input_to: str = "controller",
    ) -> Experiment:
        """The record as `identify` takes it, from its first time on.

        Args:
            start: state at its first time, as of an `Experiment`.
            every: which samples of the outputs are taken, 10 for every tenth one; inputs are taken
                as they are.
            sigma: standard deviation of the noise, one number or by channel; `None` where it is
                estimated.
            input_to: `"controller"`, or `"build"`, which then is `build(params, input)` and returns
                the controller, `input.delayed(params["lag"])` with a lag that is estimated.

        Raises:
            ValueError: for another receiver, a number of samples that is below one, or standard
                deviations of other channels.
        """
        if input_to not in RECEIVERS:
            raise ValueError(unknown_name("receiver of inputs", input_to, RECEIVERS))
        if isinstance(every, bool) or not isinstance(every, int | np.integer) or every < 1:
            raise ValueError(
                f"Record: every is {every!r}, must be a number of samples, at least 1."
            )
        levels = sigma if isinstance(sigma, Mapping) else dict.fromkeys(self.outputs, sigma)
        for name in levels.keys() - self.outputs.keys():
            raise ValueError(
                f"Record: sigma of {name!r} is given, but there are {', '.join(self.outputs)}."
            )
        part = slice(None, None, every)
        return Experiment(
            self.ts[part],
            {n: Measurement(x[part], levels.get(n)) for n, x in self.outputs.items()},
            start,
            t0=float(self.ts[0]),
            controller=self.input if input_to == "controller" else None,
            conditions=self.input if input_to == "build" else None,
            name=self.name,
        )


def read_record(
    source: Any,
    channels: Mapping[str, Channel],
    *,
    outputs: Mapping[str, str] | None = None,
    inputs: Sequence[str] = (),
    time: str = "time",
    units: Mapping[str, str] | None = None,
    kind: str = "linear",
    name: str | None = None,
) -> Record:
    """Read a record of measurements: from a file of comma-separated values, arrays, or a table.

    Columns are found by their names. A heading may state a unit, as in `angle [deg]`, and is then
    found by its name alone, too; numbers are converted to the unit of their channel, times to
    seconds and inputs to units of SI. Where nothing states a unit they are taken as they are.

    Args:
        source: path of a text file with one line of headings, whose columns are separated by
            commas, semicolons or tabulators, lines that begin with `#`, or in which no field has a
            number, left out; or a mapping of
            names to vectors, a structured array, a pandas `DataFrame`, or an xarray `Dataset`. Of
            these the index, or a coordinate, may be the time, in numbers or as dates.
        channels: what the instruments show.
        outputs: columns by the names of their channels; by default those of the same names.
        inputs: columns of the inputs, in the order of the control input `u`.
        time: column of the time.
        units: units by column, where headings, or attributes `units`, do not state them.
        kind: `"linear"` where inputs are interpolated between their samples, `"held"` where each
            holds until the next.
        name: of the record; by default that of the file, without its ending.

    Warns:
        RuntimeWarning: where samples of an input are missing, and it goes from those before to
            those behind.

    Raises:
        ValueError: for columns that there are not, fields that are no numbers, times that are
            missing or do not increase, units that are not known or of another quantity: with file,
            column and line; and for an input without samples.
        TypeError: for a source of another kind.
    """
    if kind not in KINDS:
        raise ValueError(unknown_name("interpolation", kind, KINDS))
    table = _table_of(source, name)
    pairs = {c: c for c in channels if table.has(c)} if outputs is None else dict(outputs)
    for channel in pairs:
        if channel not in channels:
            raise ValueError(
                f"{table}: outputs name the channel {channel!r}; there are {', '.join(channels)}."
            )
    if not pairs:
        raise ValueError(
            f"{table}: no column has the name of a channel ({', '.join(channels)}); there are "
            f'{", ".join(table.names)}. Give outputs={{"channel": "column"}}.'
        )
    if isinstance(inputs, str):
        inputs = (inputs,)
    stated = dict(units or {})
    for column in stated:
        table.place(column)
    ts = table.numbers(time, stated.get(time), "s")
    _check_times(table, time, ts)

    def read(column: str, unit: str) -> np.ndarray:
        found = table.numbers(column, stated.get(column), unit)
        if found.shape != ts.shape:
            raise ValueError(
                f"{table}, column {column!r}: it has {found.size} samples, where {time!r} has "
                f"{ts.size}; the columns of a record are along one dimension."
            )
        return found

    values = {channel: read(column, channels[channel].unit) for channel, column in pairs.items()}
    for channel, column in pairs.items():
        if np.isnan(values[channel]).all():
            raise ValueError(f"{table}: column {column!r} has no sample; leave it out.")
    columns = [read(column, "") for column in inputs]
    for column, x in zip(inputs, columns, strict=True):
        _check_input(table, column, ts, x)
    given = np.stack(columns, axis=1) if columns else np.zeros((ts.size, 0))
    return Record(ts, values, given, kind, table.name)


def _filled(ts: np.ndarray, inputs: np.ndarray, kind: str) -> np.ndarray:
    """Inputs at all times, each from its own samples; of a column without one as it is."""
    filled = inputs.copy()
    for column in filled.T:
        known = np.isfinite(column)
        if not known.any():
            continue
        if kind == "held":
            places = np.searchsorted(ts[known], ts, side="right") - 1
            column[:] = column[known][np.maximum(places, 0)]
        else:
            column[~known] = np.interp(ts[~known], ts[known], column[known])
    return filled


class _Table(NamedTuple):
    """Columns with their names and units."""

    name: str
    columns: dict[str, Any]  # by heading
    units: dict[str, str]  # which headings do not state
    lines: Any = None  # of the rows of a file

    def __str__(self) -> str:
        return f"read_record: {self.name or 'the record'}"

    @property
    def names(self) -> list[str]:
        return [*self.columns]

    def row(self, i: int) -> str:
        """A row in words."""
        return f"row {i}" if self.lines is None else f"line {self.lines[i]}"

    def has(self, column: str) -> bool:
        return column in self.columns or column in [split(x)[0] for x in self.columns]

    def place(self, column: str) -> str:
        """The heading of a column."""
        if column in self.columns:
            return column
        found = [x for x in self.columns if split(x)[0] == column]
        if len(found) != 1:
            raise ValueError(
                f"{self}: no column is named {column!r}; there are {', '.join(self.names)}."
                if not found
                else f"{self}: {len(found)} columns are named {column!r}; give one with its unit, "
                f"{' or '.join(map(repr, found))}."
            )
        return found[0]

    def numbers(self, column: str, stated: str | None, wanted: str) -> np.ndarray:
        """A column in the unit that is wanted."""
        place = self.place(column)
        unit = self.units.get(place) or split(place)[1] if stated is None else stated
        try:
            scale = factor(unit, wanted)
        except ValueError as error:
            raise ValueError(f"{self}, column {place!r}: {error}.") from None
        values = _as_numbers(self, place, self.columns[place])
        if np.isinf(values).any():
            where = self.row(int(np.argmax(np.isinf(values))))
            raise ValueError(
                f"{self}, column {place!r}, {where}: the value is infinite; leave it out, or write "
                "NaN, where a sample is missing."
            )
        return values * scale


def _as_numbers(table: _Table, column: str, values: Any) -> Float[np.ndarray, " rows"]:
    """A column as numbers, NaN where nothing stands; dates in seconds from the first one."""
    array = values if isinstance(values, np.ma.MaskedArray) else np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{table}, column {column!r}: shape {array.shape}, must be (times,).")
    if array.dtype.kind == "M":
        since = array - array[0]
        return np.where(np.isnat(since), np.nan, since / np.timedelta64(1, "s"))
    if array.dtype.kind == "m":
        return np.where(np.isnat(array), np.nan, array / np.timedelta64(1, "s"))
    if array.dtype.kind in "fiu":
        return np.ma.filled(array.astype(float), np.nan)
    if array.dtype.kind == "c":
        raise ValueError(
            f"{table}, column {column!r}: the numbers are complex; give their real or imaginary "
            "parts."
        )
    found = np.full(array.shape, np.nan)
    for i, x in enumerate(array):
        try:
            if x is not None and str(x).strip().lower() not in _MISSING:
                found[i] = as_number(x) if isinstance(x, str) else float(x)
        except (TypeError, ValueError):
            raise ValueError(
                f"{table}, column {column!r}, {table.row(i)}: {str(x)!r} is no number; leave the "
                "field empty, or write NaN, where a sample is missing."
            ) from None
    return found


def _check_times(table: _Table, column: str, ts: np.ndarray) -> None:
    if ts.size < 2:
        raise ValueError(f"{table}: {ts.size} rows; a record has two samples or more.")
    missing = np.flatnonzero(np.isnan(ts))
    if missing.size:
        raise ValueError(
            f"{table}, column {column!r}, {table.row(int(missing[0]))}: the time is missing, in "
            f"{missing.size} of {ts.size} rows; leave these rows out."
        )
    late = np.flatnonzero(np.diff(ts) <= 0)
    if late.size:
        i = int(late[0])
        raise ValueError(
            f"{table}, column {column!r}, {table.row(i + 1)}: the time {ts[i + 1]:.9g} s is not "
            f"behind {ts[i]:.9g} s, that of the row before, in {late.size} of {ts.size} rows; sort "
            "the rows by time, each time once."
        )


def _check_input(table: _Table, column: str, ts: np.ndarray, values: np.ndarray) -> None:
    known = np.flatnonzero(np.isfinite(values))
    if not known.size:
        raise ValueError(f"{table}: input {column!r} has no sample.")
    missing = values.size - known.size
    if missing:
        edges = np.r_[ts[0], ts[known], ts[-1]]
        i = int(np.argmax(np.diff(edges)))
        warnings.warn(
            f"{table}, column {column!r}: {missing} of {values.size} samples of the input are "
            f"missing, at most from {edges[i]:.6g} to {edges[i + 1]:.6g} s; it goes from the "
            "samples before to those behind.",
            RuntimeWarning,
            stacklevel=3,
        )


def _table_of(source: Any, name: str | None) -> _Table:
    """What a source holds; tables of pandas and xarray are known by where their types are."""
    if isinstance(source, str | Path):
        return _of_file(Path(source), name)
    given, package = name or "", type(source).__module__.partition(".")[0]
    if package == "pandas" and hasattr(source, "columns"):
        columns = {str(x): _of_pandas(source[x]) for x in source.columns}
        # An index that nobody gave counts the rows.
        if source.index.name is None and type(source.index).__name__ == "RangeIndex":
            return _Table(given, columns, {})
        index = str(source.index.name or "time")
        return _Table(given, {index: _of_pandas(source.index)} | columns, {})
    if package == "xarray" and hasattr(source, "data_vars"):
        found = {str(x): source[x] for x in source.variables if source[x].ndim == 1}
        units = {x: str(y.attrs["units"]) for x, y in found.items() if "units" in y.attrs}
        return _Table(given, {x: y.values for x, y in found.items()}, units)
    if isinstance(source, Mapping):
        columns = {str(x): np.ma.asanyarray(y) for x, y in source.items()}
        return _same_lengths(_Table(given, columns, {}))
    names = getattr(getattr(source, "dtype", None), "names", None)
    if names:
        return _Table(given, {x: source[x] for x in names}, {})
    raise TypeError(
        f"read_record: the source is a {type(source).__name__}, must be the path of a file, a "
        'mapping of names to vectors, such as {"time": ts, "angle": values}, a structured array, a '
        "DataFrame or a Dataset."
    )


def _of_pandas(column: Any) -> np.ndarray:
    """A column or an index; dates that know their zone as those of Greenwich."""
    zone = getattr(column.dtype, "tz", None)
    return column.to_numpy() if zone is None else column.to_numpy("datetime64[ns]")


def _same_lengths(table: _Table) -> _Table:
    sizes = {x: y.shape for x, y in table.columns.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{x!r} {y}" for x, y in sizes.items())
        raise ValueError(f"{table}: columns have different shapes, {listed}.")
    return table


def _of_file(path: Path, name: str | None) -> _Table:
    """Columns of a text file."""
    title = path.stem if name is None else name
    table = _Table(title or str(path), {}, {})
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            begin = list(itertools.islice(file, 100))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{table}: the file is no text in UTF-8 ({error.reason} at byte {error.start}); "
                "save it in that encoding, or give its columns as a mapping."
            ) from None
        file.seek(0)
        headings = next((x for x in begin if x.strip() and not x.startswith("#")), "")
        separator = max(",;\t", key=headings.count)
        rows = _rows(csv.reader(file, delimiter=separator, skipinitialspace=True))
        try:
            _, names = next(rows)
        except StopIteration:
            raise ValueError(f"{table}: the file is empty.") from None
        names = [x.strip() for x in names]
        _check_headings(table, names)
        columns, lines = [[] for _ in names], []
        for line, row in rows:
            if len(row) != len(names):
                raise ValueError(
                    f"{table}, line {line}: {len(row)} fields, where the headings are "
                    f"{len(names)}; leave fields empty where samples are missing."
                )
            # A row in which nothing was measured, its time not either, says nothing.
            if all(x.strip().lower() in _MISSING for x in row):
                continue
            lines.append(line)
            for column, x in zip(columns, row, strict=True):
                column.append(x.replace(",", ".") if separator == ";" else x)
    arrays = {n: np.array(x, dtype=object) for n, x in zip(names, columns, strict=True)}
    return _Table(title, arrays, {}, lines)


def _rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Rows with their lines, those that are empty and comments left out."""
    for row in reader:
        if any(x.strip() for x in row) and not row[0].startswith("#"):
            yield reader.line_num, row


def _check_headings(table: _Table, names: list[str]) -> None:
    twice = sorted({x for x in names if names.count(x) > 1})
    if twice:
        raise ValueError(f"{table}: {', '.join(map(repr, twice))} head more than one column.")
    try:
        [as_number(x) for x in names]
    except ValueError:
        return
    raise ValueError(
        f"{table}: the first line is one of numbers; write the names of the columns above it."
    )
