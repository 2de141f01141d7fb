"""A run in arrays and words: all that its report and its pictures show, without JAX."""

from importlib.metadata import version
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from jaxdae.diagnosis.passages import Passage
from jaxdae.results.about import About, PLACES, RATES, ROWS, WORKS
from jaxdae.results.trajectory import Trajectory
from jaxdae.version import __version__


class Words(NamedTuple):
    """What is said of a run, and the names in it.

    Args:
        formulation: its name.
        settings: the formulation with all its numbers.
        controller: its name, `None` without one.
        uncontrolled: whether the model's own controller was left out.
        departs: whether the model starts where its program does not hold, on purpose.
        program: names of what a servo-constraint keeps, `None` without one.
        labels: fields of `jaxdae.Labels` by name.
        success: whether the run reached its end.
        finite: whether its state stayed finite.
        failure: why it did not reach its end.
        announced: what the library warned of, before and after the run.
        diagnosed: warnings of near-singular passages and of an energy that is off.
        result: name of diffrax's result code.
        passages: near-singular positions that the run passed.
        drawing: names of the system's points and what joins them, `None` where it declares none.
    """

    formulation: str
    settings: str
    controller: str | None
    uncontrolled: bool
    departs: bool
    program: tuple[str, ...] | None
    labels: dict[str, tuple[str, ...]]
    success: bool
    finite: bool
    failure: str | None
    announced: tuple[str, ...]
    diagnosed: tuple[str, ...]
    result: str = "successful"
    passages: tuple[Passage, ...] = ()
    drawing: dict[str, Any] | None = None

    def constraint(self, i: int) -> str:
        """Name of constraint `i`."""
        names = self.labels["constraints"]
        return names[i] if i < len(names) else f"f{i + 1}"


class Record(NamedTuple):
    """A run.

    Args:
        rows: by name, time first; NaN where the run did not come: `ts`, `q`, `v`, `u` (under a
            controller), `w`, `phi`, `phi_dot`, `energy`, `kinetic_energy`, `potential_energy`,
            `multipliers`, `work` (shape `(times, 4)`), `program` (of a servo-constraint),
            `drawing.places` and `drawing.rates` (of a system with points).
        end: `t`, `q`, `v`, `w` where it ended, and `steps`.
        words: what is said of it.
    """

    rows: dict[str, np.ndarray]
    end: dict[str, np.ndarray]
    words: Words

    @classmethod
    def of(cls, read: dict[str, np.ndarray], words: Words) -> "Record":
        """A run from arrays whose names begin with `rows.` and `end.`."""
        part = lambda head: {  # noqa: E731
            name.removeprefix(head): np.asarray(x) for name, x in read.items() if head in name
        }
        return cls(part("rows."), part("end."), words)

    def drawn(self) -> Any:
        """The run as `jaxdae.plotting` takes it."""
        labels = SimpleNamespace(**self.words.labels)
        rows = {"u": None, **self.rows}
        work = tuple(rows.pop("work").T)
        violation = SimpleNamespace(phi=rows["phi"], phi_dot=rows["phi_dot"])
        return SimpleNamespace(
            **rows,
            work=work,
            violation=violation,
            success=self.words.success,
            passages=self.words.passages,
            system=SimpleNamespace(labels=lambda: labels),
        )

    def stored(self, model: str) -> Trajectory:
        """The run for files that others read.

        Args:
            model: its name.
        """
        rows, words = dict(self.rows), self.words
        rows |= dict(zip(WORKS, rows.pop("work").T, strict=True))
        ends = {f"last_state.{name}": self.end[name] for name in "qvw"}
        kept = 1.0 if words.success else np.nan
        ends |= {f"final_state.{name}": kept * self.end[name] for name in "qvw"}
        ends |= {"final_time": self.end["t"], "stats.num_steps": self.end["steps"]}
        about = About(
            model=model,
            formulation=words.formulation,
            settings=words.settings,
            controller=words.controller,
            labels=words.labels,
            failure=words.failure,
            versions={"jaxdae": __version__, "jax": version("jax")},
            drawing=words.drawing,
        )
        kept = {name: rows[name] for name in (*ROWS, PLACES, RATES) if name in rows}
        return Trajectory.from_arrays(
            {**kept, **ends, "result": np.array(words.result, "U32")}, about
        )
