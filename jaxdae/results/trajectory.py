"""The result of a simulation."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.checks import are_known
from jaxdae.events.records import GOES_ON
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.base import solves
from jaxdae.results import derived_quantities, described, stored
from jaxdae.results.base import AbstractRun
from jaxdae.results.members import checked_index, dropped_axes, Varied
from jaxdae.results.mobility_along import mobility_along, MobilityAlong
from jaxdae.simulation.problem import Method, Problem, Solution
from jaxdae.solvers.projected import between_steps
from jaxdae.storage import runs
from jaxdae.storage.runs import About, ROWS, with_head, WORKS
from jaxdae.systems import Labels, Power, State, System, Violation
from jaxdae.systems.kinematics import has_rate


class Trajectory(AbstractRun):
    """A simulated motion. Arrays have time first; batches made by `vmap` come before it.

    A run has times and states. Everything else is computed when it is asked for, by compiled code,
    from the states and the system. One from a file (`Trajectory.load`) has all its quantities as
    NumPy arrays of the precision of the run and no system; what only a system can tell is an error
    then that says so. Rows that were not reached, and rows whose state is not finite, have
    `ts = inf` and NaN values.

    Attributes:
        ts: times [s], shape `(times,)`.
        final_time: the last time reached with a finite state [s]; where fixed steps went on through
            NaN, the last such time that was saved, or else `t0`.
        result_code: diffrax's result code, as it comes out of the solver; see `result`.
        stats: solver statistics (`num_steps`, `num_accepted_steps`, `num_rejected_steps`, …). Of
            steps found by Newton's iteration also `num_iterations`, `num_factorizations` of its
            matrices and `num_unsolved_steps`, those for which it did not converge; kernels with
            fixed steps leave them out.
        saved: what `saveat` asked for, when it is not plain states.
        why_not_native: what kept the native backend from serving, in words, or what of a native
            run's derivatives is left to the plain program; `None` where nothing is.
        solver: name of the step method.
        projections: Newton iterations that take states between steps onto the constraints.
        events: events that happened, `jaxdae.events.records.Events`: names, times, states before
            and behind; `None` for a run without events.
        varied: what differs between the members of a batch, where `varying` has said it.
        known: quantities of a run from a file, by name; those with rows have time behind the batch.
        about: what the file says of it; `None` for a run.
    """

    ts: Any
    saved: PyTree
    final_time: Any
    final: PyTree
    result_code: Any
    stats: dict[str, Any]
    interpolation: Any = None
    work_integrals: Power | None = None
    plain: bool = eqx.field(static=True, default=True)
    # The arrays of (system, formulation, controller) apart from the rest, functions among it, so
    # that a trajectory may leave any JAX transformation.
    arrays: PyTree = None
    skeleton: PyTree = eqx.field(static=True, default=None)
    # The backend, by which saved states are read as well.
    made_by: Any = eqx.field(static=True, default=None)
    why_not_native: str | None = eqx.field(static=True, default=None)
    projections: int = eqx.field(static=True, default=0)
    solver: str = eqx.field(static=True, default="")
    # Start `(t0, y0)`; and, of a run that saves only its end, times and states on the way.
    start: Any = None
    monitored: Any = None
    # The end time, and the arrays of an event: what a run depends on beside `arrays` and `start`.
    given: Any = None
    # Whether the run reached its end, or an event.
    reached: Any = None
    events: Any = None
    varied: Varied | None = None
    known: Mapping[str, Any] = eqx.field(default_factory=dict)
    about: Any = eqx.field(static=True, default=None)

    @classmethod
    def of(cls, problem: Problem, method: Method, solution: Solution) -> "Trajectory":
        """The result of a run, which may be traced.

        Args:
            problem: what was simulated.
            method: how.
            solution: what the run gave.
        """
        parts = problem.system, solution.formulation, problem.controller
        arrays, skeleton = eqx.partition(parts, eqx.is_array)
        projection, events = between_steps(method.solver), solution.events
        reached = diffrax.is_okay(solution.result)
        if events is not None:
            reached &= events.ending == GOES_ON
        # Arrays of events are part of what a run depends on.
        of_events = eqx.filter((problem.event, problem.events), eqx.is_array)
        given = problem.times.end, of_events
        return cls(
            solution.ts, solution.saved, solution.final_time, solution.final, solution.result,
            solution.stats, solution.interpolation, solution.work, solution.plain, arrays, skeleton,
            solution.backend, solution.why_not, 0 if projection is None else projection.iterations,
            described.solver_name(method.solver), solution.start, solution.monitored, given,
            reached, events,
        )  # fmt: skip

    @classmethod
    def from_arrays(cls, known: Mapping[str, Any], about: About) -> "Trajectory":
        """A run of which there are arrays, and no system.

        Args:
            known: by name, as `save` writes them: `ts`, `q`, `v`, `w`, `final_time`, and what else
                there is. The axes of a batch come first, then time in what has rows.
            about: what is said of it.
        """
        has_work = WORKS[0] in known
        stats = with_head(known, "stats.")
        work: Any = Power(*(known[x] for x in WORKS)) if has_work else None
        return cls(
            known["ts"], None, known.get("final_time"), None, None, {**about.stats, **stats},
            work_integrals=work, why_not_native=about.why_not_native, solver=about.solver,
            known=known, about=about,
            events=stored.events_from(known, about.events),
            varied=Varied.from_arrays(known, about.axes),
        )  # fmt: skip

    def __repr__(self) -> str:
        return described.text(self)

    @property
    def backend(self) -> str:
        """`"native"` or `"plain"`: which backend made the run."""
        return self.about.backend if self.made_by is None else self.made_by.name

    @property
    def why_solver(self) -> str | None:
        """Why `simulate(solver="auto")` took this solver, in words.

        `None` where the user has chosen it, and of a result of a JAX transformation.
        """
        return vars(self).get("why") if self.about is None else self.about.why_solver

    @property
    def system(self) -> System:
        """The system that was simulated, or that `with_system` has given."""
        return _part(self, 0, "system")

    @property
    def formulation(self) -> AbstractFormulation:
        """The formulation that was used."""
        return _part(self, 1, "formulation")

    @property
    def controller(self) -> Callable | None:
        """The controller, or `None`."""
        return _part(self, 2, "controller")

    def with_system(self, system: System) -> "Trajectory":
        """A run from a file with a system, by which mechanisms are drawn then, exact between rows.

        Args:
            system: of the same parameters; of a batch that varies them, choose a member first.

        Raises:
            ValueError: for a parameter that is not what was stored.
        """
        stored.check_parameters(self, system)
        arrays, skeleton = eqx.partition((system, None, None), eqx.is_array)
        return dataclasses.replace(self, arrays=arrays, skeleton=skeleton)

    def _read(self, name: str, function: Callable, *, by_system: bool = False) -> Any:
        """A quantity at the saved times: computed, or known from a file."""
        if self.about is None:
            return derived_quantities.at_rows(self, function, by_system)
        return self._from_file(name)

    def _from_file(self, name: str) -> Any:
        if name not in self.known:
            raise ValueError(
                f"{name.partition('.')[0]} was not stored with this trajectory; it has: "
                f"{', '.join(x for x in ROWS if x in self.known)}."
            )
        return self.known[name]

    def _check_computable(self, name: str) -> None:
        if self.about is not None:
            raise AttributeError(
                f"a trajectory from a file has no system, from which {name} comes: read it of the "
                "run before it is saved, or compute it from `q` and `v` with a system of your own."
            )

    @property
    def labels(self) -> Labels:
        """Names and units of coordinates, constraints, actuators and inputs."""
        return self.system.labels() if self.about is None else Labels(**self.about.labels)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """Arrays of numbers of system, formulation and controller, such as `"system.length"`."""
        if self.about is None:
            return stored.parameters(self)[0]
        return with_head(self.known, "parameters.")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Lengths of the batch axes; empty for a single run."""
        return self.final_time.shape

    @property
    def success(self) -> Bool[Array, "*batch"]:
        """Whether the run reached its end, or an event; one value for each batch member."""
        if self.about is None:
            return self.reached
        if (given := self.known.get("success")) is not None:
            return given
        reached: Any = np.isin(self._from_file("result"), stored.SUCCESS)
        return reached

    @property
    def result(self) -> Any:
        """How the run ended, as diffrax says it; an empty array for a batch without members."""
        if self.about is not None:
            return stored.results_of(self._from_file("result"))
        # Results show themselves as text, which equinox makes of one at least.
        empty = 0 in self.batch_shape
        return np.empty(self.batch_shape, object) if empty else self.result_code

    @property
    def states(self) -> State:
        """States `(q, v, w)` at the saved times, leading axis `times`."""
        if self.about is None:
            return derived_quantities.states(self)
        return stored.state(*(self._from_file(x) for x in "qvw"))

    @property
    def q(self) -> Float[Array, "*batch times n"]:
        """Coordinates [m or rad], shape `(times, n)`."""
        return self.states.q if self.about is None else self._from_file("q")

    @property
    def v(self) -> Float[Array, "*batch times n"]:
        """Velocities, shape `(times, n)`."""
        return self.states.v if self.about is None else self._from_file("v")

    @property
    def velocities_are_rates(self) -> bool:
        """Whether velocities are rates of the coordinates, and not others (`System.rate`)."""
        if self.about is None:
            return not has_rate(self.system)
        return "coordinate_rates" not in self.known

    @property
    def coordinate_rates(self) -> Float[Array, "*batch times n"]:
        """Rates of the coordinates `dq/dt` at the saved times, shape `(times, n)`."""
        if self.velocities_are_rates:
            return self.v
        return self._read("coordinate_rates", derived_quantities.coordinate_rates, by_system=True)

    @property
    def w(self) -> Float[Array, "*batch times k"]:
        """Actuator states, shape `(times, k)`."""
        return self.states.w if self.about is None else self._from_file("w")

    @property
    def u(self) -> Any:
        """Control inputs at the saved times; `None` without a controller."""
        if self.about is None:
            if self.controller is None:
                return None
            return derived_quantities.at_rows(self, derived_quantities.control)
        return self.known.get("u", with_head(self.known, "u.") or None)

    @property
    def final_state(self) -> State:
        """State at the end time; NaN, with derivatives that are NaN, where the run failed.

        A cost of a batch that leaves failed members out takes `last_state` and masks the result:
        `jnp.where(runs.success, cost(runs.last_state), price)`.
        """
        if self.about is None:
            return derived_quantities.final_state(self)
        return stored.state(*(self._from_file(f"final_state.{x}") for x in "qvw"))

    @property
    def last_state(self) -> State:
        """The last state that was accepted and finite, at `final_time`; of a failed run, too."""
        if self.about is None:
            return derived_quantities.last_state(self)
        return stored.state(*(self._from_file(f"last_state.{x}") for x in "qvw"))

    @property
    def multipliers(self) -> Float[Array, "*batch times c"]:
        """Multipliers `lam`, shape `(times, m+r)`; the constraint reaction is `-J^T lam`."""
        if self.about is not None:
            return self._from_file("multipliers")
        by_system = self.controller is None
        return derived_quantities.at_rows(self, derived_quantities.multipliers, by_system)

    @property
    def violation(self) -> Violation:
        """Constraint residuals: `phi (times, m)` and `phi_dot (times, m+r)`."""
        if self.about is None:
            return derived_quantities.at_rows(self, derived_quantities.violation, True)
        return Violation(self._from_file("phi"), self._from_file("phi_dot"))

    @property
    def jacobian(self) -> Float[Array, "*batch times c n"]:
        """Constraint Jacobians, shape `(times, m+r, n)`."""
        self._check_computable("jacobian")
        return derived_quantities.at_rows(self, derived_quantities.jacobian, True)

    @property
    def constraint_rank(self) -> Float[Array, "*batch times"]:
        """Number of independent constraints next to each saved state, on the constraints."""
        self._check_computable("constraint_rank")
        return derived_quantities.at_rows(self, derived_quantities.rank)

    @property
    def held_rank(self) -> Float[Array, "*batch"] | None:
        """The rank of the constraints that the run held; `None` where it held none.

        It does for dependent constraints; `constraint_rank` says whether it was that of the motion.
        """
        if self.about is not None:
            return self.known.get("held_rank")
        policies = solves(self.formulation)
        return policies[0].held_rank if policies else None

    @property
    def kinetic_energy(self) -> Float[Array, "*batch times"]:
        """Kinetic energy `T` [J], shape `(times,)`."""
        return self._read("kinetic_energy", derived_quantities.kinetic_energy, by_system=True)

    @property
    def potential_energy(self) -> Float[Array, "*batch times"]:
        """Potential energy `V` [J], shape `(times,)`."""
        return self._read("potential_energy", derived_quantities.potential_energy, by_system=True)

    @property
    def energy(self) -> Float[Array, "*batch times"]:
        """Generalized energy `v . dT/dv - T + V` [J], shape `(times,)`.

        It is `T + V` whenever `T` is a quadratic form in the velocities.
        """
        return self._read("energy", derived_quantities.energy, by_system=True)

    @property
    def work(self) -> Power:
        """Work since `t0` of what changes the generalized energy [J], each of shape `(times,)`.

        `energy(t) - energy(t0) = force + dissipation + constraint + explicit`, to integration
        accuracy: each part is integrated along with the motion. What resets of events change is not
        among it.

        Raises:
            ValueError: unless the run was made with `work=True`.
        """
        if self.work_integrals is None:
            raise ValueError("work was not integrated; run simulate(..., work=True).")
        return self.work_integrals

    @property
    def least_singular_value(self) -> Float[Array, "*batch"]:
        """Least singular value of the constraint Jacobian met: zero at a singular position.

        Rows of the Jacobian are scaled by their largest lengths along the run. Of a mechanism whose
        constraints have rank `r` at best it is the r-th singular value. Between saved rows, which
        must follow the motion, it is searched on the cubic Hermite curve of `q` and `v`. Infinite
        without constraints.
        """
        self._check_computable("least_singular_value")
        return derived_quantities.over_run(self, derived_quantities.least_singular_value)

    @property
    def mobility(self) -> MobilityAlong:
        """Degrees of freedom along a single run, and near-singular positions that it passed.

        `jaxdae.analysis.mobility` names the redundant constraints of a single state.

        Raises:
            ValueError: for a batch, or a run without rows.
        """
        self._check_computable("mobility")
        return mobility_along(self)

    @property
    def incompatibility(self) -> Float[Array, "*batch"]:
        """Largest constraint residual at the saved rows that no motion can avoid.

        That of the point next to a row which satisfies the constraints best, at position level and,
        where there are velocity constraints, at velocity level: round-off as long as constraints
        agree, also where they depend on each other; more where they have become incompatible.
        """
        self._check_computable("incompatibility")
        return derived_quantities.over_run(self, derived_quantities.incompatibility)

    @property
    def backward_growth(self) -> Float[Array, "*batch"]:
        """Factor by which damping lets deviations grow, at most, in a run backward in time.

        Stabilizations act in the direction of integration; what damps the motion itself
        (dissipation, realizing forces, a controller) lets errors grow backward in time. It is
        the exponential of the largest rate of decay of the velocities, integrated over the saved
        rows; 1 in runs forward in time.
        """
        self._check_computable("backward_growth")
        return derived_quantities.over_run(self, derived_quantities.backward_growth)

    @property
    def energy_error(self) -> Float[Array, "*batch"]:
        """Largest error of the energy balance at the saved rows [J].

        The largest of `|h(t) - h(t0) - work|`, `h` being the generalized energy. The work is that
        of `simulate(..., work=True)`, exact to integration accuracy; without it, that of forces and
        dissipation by the trapezoidal rule over the rows, which is exact for conservative systems.
        NaN where it is not known so: where constraints do work, forces depend on the multipliers or
        stand in place of constraints, or after a start off them. What resets of events change is
        no error.
        """
        self._check_computable("energy_error")
        return derived_quantities.over_run(self, derived_quantities.energy_error)

    def __getitem__(self, index) -> "Trajectory":
        """A member of a batch, or several.

        Args:
            index: an integer, negative ones from the end; a tuple of integers for as many batch
                axes; a slice, an array of integers, or of one boolean for each member
                (`run[~run.success]`), along the first axis.

        Returns:
            A `Trajectory`, with one batch axis less for each integer.

        Raises:
            TypeError: for a single run, or an index of another kind.
            IndexError: for a member that there is not.
        """
        index = checked_index(index, self.batch_shape)
        varied = None if self.varied is None else self.varied.chosen(index)
        if self.about is not None:
            known = {name: np.asarray(x[index]) for name, x in self.known.items()}
            about = dataclasses.replace(self.about, axes=self.about.axes[dropped_axes(index) :])
            return dataclasses.replace(
                Trajectory.from_arrays(known, about), arrays=self.arrays, skeleton=self.skeleton
            )
        arrays, rest = eqx.partition(dataclasses.replace(self, varied=None), eqx.is_array)
        chosen = eqx.combine(jax.tree.map(lambda x: _picked(x, index), arrays), rest)
        return chosen if varied is None else dataclasses.replace(chosen, varied=varied)

    def member(self, index: int) -> "Trajectory":
        """One member of a batch, `run[index]`."""
        return self[index]

    def evaluate(self, t) -> State:
        """State at any time of a run made with `SaveAt(dense=True)`.

        Args:
            t: time [s], scalar or `(times,)`; the same for all batch members.

        Raises:
            ValueError: for a run without dense output.
        """
        self._check_computable("evaluate")
        if self.interpolation is None:
            raise ValueError("no dense output; run simulate(..., saveat=SaveAt(dense=True)).")
        return derived_quantities.at_time(self, jnp.asarray(t, self.final_time.dtype))

    @staticmethod
    def load(path: str | Path) -> "Trajectory":
        """Read a trajectory from a file, bit for bit as it was saved.

        It needs neither the class of the system nor a computation, and executes nothing.

        Args:
            path: what `save` has written.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it holds something else, is damaged, or is of a later format.
        """
        return Trajectory.from_arrays(*runs.read(path))

    def stored(self, *, drawn: bool = True) -> "Trajectory":
        """All that can be read of the run, as NumPy arrays and without its system.

        Args:
            drawn: whether with the positions of the points that its system declares.

        Raises:
            ValueError: inside a JAX transformation, or for a run that saved no states at times.
        """
        if self.about is not None:
            return self
        return Trajectory.from_arrays(*stored.values(self, drawn=drawn))

    def _tabled(self) -> "Trajectory":
        return self.stored(drawn=False)


def _picked(x: Array, index) -> Array:
    """Rows; of known numbers on the host, as every shape would be another program."""
    known = are_known(x) and jnp.issubdtype(x.dtype, jnp.number)
    return jnp.asarray(np.asarray(x)[index]) if known else x[index]


# A function: methods of modules take longer to reach than most of what is read.
def _part(run: Trajectory, i: int, name: str) -> Any:
    parts = vars(run).get("parts")
    if parts is None:
        parts = eqx.combine(run.arrays, run.skeleton)
        object.__setattr__(run, "parts", parts)  # beside the fields: no program sees it
    if parts is None:
        raise AttributeError(
            f"a trajectory from a file has no {name}: give it a system, "
            "run.with_system(system), or read what needs one before it is saved."
        )
    return parts[i]
