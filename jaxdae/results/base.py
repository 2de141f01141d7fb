"""What results of systems and of differential-algebraic equations have in common: files, tables."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import equinox as eqx
import numpy as np

from jaxdae.compiled import jit
from jaxdae.results import tables
from jaxdae.results.members import Varied
from jaxdae.storage import runs


class AbstractRun(eqx.Module):
    """A run, or a batch of runs, that `simulate` or `solve` has made, or from a file."""

    @abc.abstractmethod
    def stored(self) -> Any:
        """All that can be read of the run, as NumPy arrays and without its declaration."""

    @property
    @abc.abstractmethod
    def batch_shape(self) -> tuple[int, ...]:
        """Lengths of the batch axes; empty for a single run."""

    @abc.abstractmethod
    def _tabled(self) -> Any:
        """What tables need of `stored`."""

    def varying(self, axes: str | Sequence[str] | None = None, /, **values) -> Self:
        """The same batch with what was varied to make it: named, carried along, stored.

        For example, of two lengths by three angles:

            batch = jax.vmap(jax.vmap(run, (None, 0)), (0, None))(lengths, angles)
            batch = batch.varying(("length", "angle"), length=lengths, angle=angles)
            batch[1].varied.values["angle"]      # three angles

        Args:
            axes: names of the batch axes.
            values: numbers or texts by name; the first axes of each are those of the batch. Where
                there are several, values with the name of an axis go along it alone.

        Returns:
            A batch whose attribute `varied` has the values, each with all axes of the batch.

        Raises:
            ValueError: for a single run, and for axes and values that do not fit.
        """
        run: Any = self
        varied = Varied.of(self.batch_shape, axes, values)
        if run.about is None:
            return dataclasses.replace(run, varied=varied)
        known = {name: x for name, x in run.known.items() if not name.startswith("varied.")}
        known |= {name: np.asarray(x) for name, x in varied.arrays().items()}
        about = dataclasses.replace(run.about, axes=varied.axes)
        return dataclasses.replace(run, varied=varied, known=known, about=about)

    def save(self, path: str | Path) -> Path:
        """Write what can be read of the run to a file of NumPy's, without its declaration.

        The file has its rows by the names of its attributes (`numpy.load(path)["q"]`; arrays of
        pytrees by their keys, `"y.charge"`), what each member came to, events, names and units,
        parameters as far as they are arrays, the points that a system declares, and the versions of
        jaxdae and JAX. At every moment it is the old file or the new one, complete, and nothing in
        it is pickled.

        Args:
            path: the file; `.npz` is added where it is missing, `~` is the home folder, folders
                are made.

        Returns:
            The path that was written.

        Raises:
            ValueError: inside a JAX transformation, for a run that saved no states at times, or a
                suffix of files of another kind.
            OSError: if the file cannot be written, or is a folder.
        """
        run = self.stored()
        return runs.write(run.known, run.about, path)

    def to_xarray(self) -> Any:
        """All of its rows as a data set of xarray, with names, units and labels of batch members.

        Dimensions are those of the batch (`member`, or the names given to `varying`), `time`,
        `coordinate`, `constraint`, `position_constraint`, `actuator` and `input`, their coordinates
        the names; `data.multipliers.sel(constraint="rod")` is one multiplier. Variables of
        differential-algebraic equations have one for the entries of each array. Units are
        attributes where all entries share one, and coordinates `q_unit`, …, of their own. Members
        with different times have a dimension `row`, and `time` is a coordinate of both. Rows that
        no member has come to are left out, and their number is an attribute.

        Returns:
            `xarray.Dataset`.

        Raises:
            ImportError: without xarray (`pip install 'jaxdae[data]'`).
            ValueError: inside a JAX transformation, for a run that saved no states at times, or
                names of batch axes that are taken.
        """
        return tables.to_xarray(self._tabled())

    def to_dataframe(self) -> Any:
        """All of its rows as a table of pandas, one column for each number.

        Columns are what tells batch members apart, `time`, coordinates or variables by their names,
        `d(…)/dt`, actuator states, inputs, `lambda(…)`, `phi(…)`, `phi_dot(…)` by the names of the
        constraints, energies and work; `table.attrs["units"]` has the units by column. Rows that
        were not reached are left out.

        Returns:
            `pandas.DataFrame`.

        Raises:
            ImportError: without pandas (`pip install 'jaxdae[data]'`).
            ValueError: inside a JAX transformation, or for a run that saved no states at times.
        """
        return tables.to_dataframe(self._tabled())

    def to_csv(self, path: str | Path) -> Path:
        """Write the table of `to_dataframe` as text, units in its heading; needs no pandas.

        Args:
            path: the file; folders are made.

        Returns:
            The path that was written.

        Raises:
            ValueError: inside a JAX transformation, or for a run that saved no states at times.
            OSError: if it cannot be written.
        """
        return tables.write_csv(self._tabled(), path)


def of_members(function: Callable) -> Callable:
    """A function of a run as one program; of a batch, whose names change no program, of each."""

    @jit
    @functools.wraps(function)
    def each(run, *arguments):
        if run.final_time.ndim > 0:
            return eqx.filter_vmap(lambda one: each(one, *arguments))(run)
        return function(run, *arguments)

    @functools.wraps(function)
    def call(run, *arguments):
        if run.varied is not None:
            run = dataclasses.replace(run, varied=None)
        return each(run, *arguments)

    return call
