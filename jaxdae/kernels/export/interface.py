"""What an exported run takes and gives: structures of numbers of one type."""

import re
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.integration.arguments import StepSummary


class StructureField(NamedTuple):
    """An array in a structure.

    Args:
        name: in C and JavaScript.
        about: what it is, in words.
        shape: of its numbers; empty for one number.
        value: what it was where the run was exported; `None` where there is none.
    """

    name: str
    about: str
    shape: tuple[int, ...]
    value: Any = None

    @property
    def size(self) -> int:
        """How many numbers."""
        return int(np.prod(self.shape))


class StructureType(NamedTuple):
    """Arrays of numbers that lie one after the other."""

    name: str
    fields: tuple[StructureField, ...]

    @property
    def size(self) -> int:
        """Numbers in all."""
        return sum(x.size for x in self.fields)

    @property
    def names(self) -> list[str]:
        """Of the fields."""
        return [x.name for x in self.fields]

    def length(self, name: str) -> int:
        """Numbers of a field; zero where there is none."""
        return next((x.size for x in self.fields if x.name == name), 0)

    def offset(self, name: str) -> int:
        """Numbers before a field."""
        return sum(x.size for x in self.fields[: self.names.index(name)])

    def part(self, numbers: np.ndarray, name: str) -> np.ndarray:
        """A field of numbers along the last axis; an empty array where there is none."""
        if name not in self.names:
            return numbers[..., :0]
        first, field = self.offset(name), self.fields[self.names.index(name)]
        part = numbers[..., first : first + field.size]
        return part.reshape(*part.shape[:-1], *field.shape)

    def values(self, dtype: Any) -> np.ndarray:
        """Numbers with which the run was exported."""
        return np.concatenate([np.ravel(np.asarray(x.value, dtype)) for x in self.fields])


def structure(name: str, fields) -> StructureType:
    """A structure of the fields that are not empty."""
    return StructureType(name, tuple(x for x in fields if x.size))


class Interface(NamedTuple):
    """The structures of a run.

    Args:
        name: of its function.
        dtype: of all numbers.
        inputs: start and parameters, of each member of a batch.
        times: for all members.
        state: coordinates, velocities and actuator states, as they come out.
        rows: states that are saved.
    """

    name: str
    dtype: Any
    inputs: StructureType
    times: StructureType
    state: StructureType
    rows: int

    @property
    def outputs(self) -> StructureType:
        """What a run gives; `final` and `rows` are states."""
        n = self.state.size
        about = (
            "time that was reached", "status, as above", "steps that were made",
            "of them those that were kept", "rows that were reached, the first ones",
        )  # fmt: skip
        return structure(
            "outputs",
            [
                *(
                    StructureField(x, words, ())
                    for x, words in zip(StepSummary._fields, about, strict=True)
                ),
                StructureField("final", "state at that time", (n,)),
                StructureField(
                    "ts", "times of the rows, infinite where one was not reached", (self.rows,)
                ),
                StructureField("states", "saved states", (self.rows, n)),
            ],
        )

    @property
    def ends(self) -> tuple[Any, Any]:
        """First and last time with which the run was exported."""
        values = {x.name: np.asarray(x.value) for x in self.times.fields}
        grid = values.get("grid")
        return (values["t0"], values["t1"]) if grid is None else (grid[0], grid[-1])

    def fractions(self, times) -> np.ndarray:
        """Where times are between these ends."""
        (start, end), times = self.ends, np.asarray(times)
        return (times - start) / (end - start) if end - start else np.zeros_like(times)


def identifiers(labels) -> list[str]:
    """Names in C of what is called, for example, `system.masses[0]`; all different."""
    made: list[str] = []
    for label in labels:
        name = plain = re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_")
        count = 1
        while name in made:
            count += 1
            name = f"{plain}_{count}"
        made.append(name)
    return made
