"""A trajectory in plain arrays and words: what remains of a run where there is no system.

JAX is loaded where something of its own is asked for: reading, drawing and writing need none.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Integer

if TYPE_CHECKING:
    import diffrax

    from jaxdae.results.members import Varied
    from jaxdae.systems import Labels, Power, State, System, Violation

# Fields of `Power`.
WORKS = ("work.force", "work.dissipation", "work.constraint", "work.explicit")
# Quantities that have a row for each time.
ROWS = (
    "ts", "q", "v", "w", "u", "multipliers", "phi", "phi_dot", "energy", "kinetic_energy",
    "potential_energy", *WORKS,
)  # fmt: skip
# Fields of `Labels`.
LABELS = (
    "coordinates", "units", "constraints", "constraint_units", "actuators", "actuator_units",
    "inputs", "input_units",
)  # fmt: skip
# Positions of points, and their velocities: rows as well.
PLACES, RATES = "drawing.places", "drawing.rates"
# What a live trajectory computes from its system.
_OF_SYSTEM = (
    "formulation", "controller", "jacobian", "constraint_rank", "least_singular_value",
    "incompatibility", "backward_growth", "energy_error", "evaluate", "interpolation", "arrays",
    "skeleton",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class About:
    """What is said of a run.

    Args:
        model: class of the system.
        formulation: class of the formulation.
        settings: the formulation with what it was made of, as text.
        controller: class of the controller, `None` without one.
        backend: `"native"` or `"plain"`.
        why_not_native: what kept the native backend from serving, or `None`.
        labels: fields of `jaxdae.Labels` by name.
        axes: names of the batch axes, as far as they have some.
        stats: statistics that are no arrays.
        failure: why a single run did not reach its end, in words.
        left_out: parameters that are no arrays of numbers.
        versions: releases of `jaxdae` and `jax` that made the run.
        drawing: names of the points and what joins them, where the system declares points.
    """

    model: str = ""
    formulation: str = ""
    settings: str = ""
    controller: str | None = None
    backend: str = ""
    why_not_native: str | None = None
    labels: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    axes: tuple[str, ...] = ()
    stats: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failure: str | None = None
    left_out: tuple[str, ...] = ()
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    drawing: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class StoredTrajectory:
    """A simulated motion without its system: what `Trajectory.load` gives.

    It has what a `Trajectory` has, under the same names and with the same shapes, as NumPy arrays
    of the precision of the run, whatever JAX is set to: `ts`, `q`, `v`, `w`, `u`, `multipliers`,
    `violation`, the energies, `work` where it was integrated, `final_state`, `result`, `success`,
    `stats`, `labels`. Pictures and exports take either; mechanisms are drawn from the positions of
    their points at the rows, and in between by cubics through these and their velocities. What has
    to be computed from the system (`jacobian`, `constraint_rank`, `least_singular_value`,
    `incompatibility`, `backward_growth`, `energy_error`, `evaluate`) is not there, and says so.

    Args:
        arrays: by name; the axes of a batch come first, then time in those of `ROWS`.
        about: what is said of the run.
        attached: the system that `with_system` has given it.
    """

    arrays: Mapping[str, np.ndarray]
    about: About
    attached: Any = None

    def _array(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise ValueError(
                f"{name.partition('.')[0]} was not stored with this trajectory; it has: "
                f"{', '.join(x for x in ROWS if x in self.arrays)}."
            )
        return self.arrays[name]

    def tree(self, head: str) -> dict[str, np.ndarray]:
        """Arrays whose names begin with `head.`, by what follows."""
        return {
            name.removeprefix(f"{head}."): x
            for name, x in self.arrays.items()
            if name.startswith(f"{head}.")
        }

    @property
    def system(self) -> "System":
        """The system that `with_system` has given it; without one `__getattr__` says so."""
        if self.attached is None:
            raise AttributeError
        return self.attached

    def with_system(self, system: "System") -> "StoredTrajectory":
        """The same with a system, by which mechanisms are drawn then, and exact between rows.

        Args:
            system: of the same parameters; of a batch that varies them, choose a member first.

        Raises:
            ValueError: for a parameter that is not what was stored.
        """
        from jaxdae.results import snapshot

        snapshot.check_parameters(self, system)
        return dataclasses.replace(self, attached=system)

    def __getattr__(self, name: str) -> Any:
        if name == "system":
            raise AttributeError(
                "a stored trajectory has no system: give it one, run.with_system(system)."
            )
        if name in _OF_SYSTEM:
            raise AttributeError(
                f"a stored trajectory has no system, from which {name} comes: read it of the run "
                "before it is saved, or compute it from `q` and `v` with a system of your own."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        from jaxdae.results import described

        return described.of_stored(self)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Lengths of the batch axes; empty for a single run."""
        return self.final_time.shape

    @property
    def ts(self) -> Float[np.ndarray, "*batch times"]:
        """Times [s]; `inf` in rows that were not reached."""
        return self._array("ts")

    @property
    def q(self) -> Float[np.ndarray, "*batch times n"]:
        """Coordinates [m or rad], shape `(times, n)`."""
        return self._array("q")

    @property
    def v(self) -> Float[np.ndarray, "*batch times n"]:
        """Velocities, shape `(times, n)`."""
        return self._array("v")

    @property
    def w(self) -> Float[np.ndarray, "*batch times k"]:
        """Actuator states, shape `(times, k)`."""
        return self._array("w")

    @property
    def u(self) -> Any:
        """Control inputs; `None` without a controller, by name where it returned a tree."""
        return self.arrays.get("u", self.tree("u") or None)

    @property
    def states(self) -> "State":
        """States `(q, v, w)` at the saved times."""
        return _state(self.q, self.v, self.w)

    @property
    def final_state(self) -> "State":
        """State at the end time; NaN where the run failed."""
        return _state(*(self._array(f"final_state.{x}") for x in "qvw"))

    @property
    def last_state(self) -> "State":
        """The last state that was accepted and finite, at `final_time`; of a failed run, too."""
        return _state(*(self._array(f"last_state.{x}") for x in "qvw"))

    @property
    def final_time(self) -> Float[np.ndarray, "*batch"]:
        """The last time reached with a finite state [s]."""
        return self._array("final_time")

    @property
    def multipliers(self) -> Float[np.ndarray, "*batch times c"]:
        """Multipliers `lam`, shape `(times, m+r)`; the constraint reaction is `-J^T lam`."""
        return self._array("multipliers")

    @property
    def violation(self) -> "Violation":
        """Constraint residuals: `phi (times, m)` and `phi_dot (times, m+r)`."""
        from jaxdae.systems import Violation

        return Violation(self._array("phi"), self._array("phi_dot"))  # pyright: ignore

    @property
    def kinetic_energy(self) -> Float[np.ndarray, "*batch times"]:
        """Kinetic energy `T` [J]."""
        return self._array("kinetic_energy")

    @property
    def potential_energy(self) -> Float[np.ndarray, "*batch times"]:
        """Potential energy `V` [J]."""
        return self._array("potential_energy")

    @property
    def energy(self) -> Float[np.ndarray, "*batch times"]:
        """Generalized energy `v . dT/dv - T + V` [J]."""
        return self._array("energy")

    @property
    def work(self) -> "Power":
        """Work since `t0` of what changes the generalized energy [J].

        Raises:
            ValueError: unless the run was made with `work=True`.
        """
        if WORKS[0] not in self.arrays:
            raise ValueError("work was not integrated; run simulate(..., work=True).")
        from jaxdae.systems import Power

        return Power(*(self.arrays[name] for name in WORKS))  # pyright: ignore

    @property
    def result(self) -> "diffrax.RESULTS":
        """Diffrax's result code; see `success`."""
        import diffrax
        import jax

        names = self._array("result")
        items = [getattr(diffrax.RESULTS, name) for name in np.ravel(names).tolist()]
        return jax.tree.map(lambda *x: np.stack(x).reshape(names.shape), *items)

    @property
    def success(self) -> Bool[np.ndarray, "*batch"]:
        """Whether the run reached its end; one value for each batch member."""
        known = self.arrays.get("success")
        return np.asarray(self._array("result") == "successful") if known is None else known

    @property
    def stats(self) -> dict[str, Any]:
        """Solver statistics (`num_steps`, …)."""
        return {**self.about.stats, **self.tree("stats")}

    @property
    def held_rank(self) -> Integer[np.ndarray, "*batch"] | None:
        """The rank of the constraints that the run held; `None` where it held none."""
        return self.arrays.get("held_rank")

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Arrays of system, formulation and controller, such as `"system.length"`."""
        return self.tree("parameters")

    @property
    def labels(self) -> "Labels":
        """Names and units of coordinates, constraints, actuators and inputs."""
        from jaxdae.systems import Labels

        return Labels(**self.about.labels)

    @property
    def backend(self) -> str:
        """`"native"` or `"plain"`: which backend made the run."""
        return self.about.backend

    @property
    def why_not_native(self) -> str | None:
        """What kept the native backend from serving, in words; `None` where nothing did."""
        return self.about.why_not_native

    @property
    def varied(self) -> "Varied | None":
        """What differs between the members of a batch, where it was said."""
        from jaxdae.results.members import Varied

        values = self.tree("varied")
        return Varied(values, self.about.axes) if values or self.about.axes else None

    def varying(self, axes: str | Sequence[str] | None = None, /, **values) -> "StoredTrajectory":
        """The same batch with names: see `Trajectory.varying`."""
        from jaxdae.results.members import Varied

        varied = Varied.of(self.batch_shape, axes, values)
        others = {k: x for k, x in self.arrays.items() if not k.startswith("varied.")}
        named = {f"varied.{name}": np.asarray(x) for name, x in varied.values.items()}
        about = dataclasses.replace(self.about, axes=varied.axes)
        return dataclasses.replace(self, arrays={**others, **named}, about=about)

    def __getitem__(self, index) -> "StoredTrajectory":
        """A member of a batch, or several: see `Trajectory.__getitem__`."""
        from jaxdae.results.members import checked_index

        index = checked_index(index, self.batch_shape)
        dropped = len(index) if isinstance(index, tuple) else int(isinstance(index, int))
        arrays = {name: np.asarray(x[index]) for name, x in self.arrays.items()}
        about = dataclasses.replace(self.about, axes=self.about.axes[dropped:])
        return dataclasses.replace(self, arrays=arrays, about=about)

    def member(self, index: int) -> "StoredTrajectory":
        """One member of a batch."""
        return self[index]

    def stored(self) -> "StoredTrajectory":
        """Itself."""
        return self

    def save(self, path: str | Path) -> Path:
        """Write it to a file: see `Trajectory.save`."""
        from jaxdae.results import trajectory_file

        return trajectory_file.write(self, path)

    def to_xarray(self) -> Any:
        """A data set of xarray: see `Trajectory.to_xarray`."""
        from jaxdae.results import tables

        return tables.to_xarray(self)

    def to_dataframe(self) -> Any:
        """A table of pandas: see `Trajectory.to_dataframe`."""
        from jaxdae.results import tables

        return tables.to_dataframe(self)

    def to_csv(self, path: str | Path) -> Path:
        """The table as text: see `Trajectory.to_csv`."""
        from jaxdae.results import columns

        return columns.write_csv(self, path)


def _state(*parts) -> "State":
    """Without JAX's conversion, which knows no double precision unless it is switched on."""
    import jax

    from jaxdae.systems import State

    empty = State(np.zeros(0), np.zeros(0))
    return jax.tree.unflatten(jax.tree.structure(empty), parts)
