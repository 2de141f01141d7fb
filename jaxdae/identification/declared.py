"""What runs are made of: a mechanism, or differential-algebraic equations, behind one contract."""

from collections.abc import Callable
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.flatten_util import ravel_pytree

from jaxdae import dae_runs
from jaxdae.control.base import AbstractController, AbstractDynamicController
from jaxdae.diagnosis import observation
from jaxdae.formulations.base import AbstractFormulation
from jaxdae.formulations.structure import depends_on
from jaxdae.identification.data import UnknownStart
from jaxdae.memory import Memory
from jaxdae.reprs import Module
from jaxdae.results.dae_trajectory import DAETrajectory
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.simulation.dae_run import run_dae
from jaxdae.simulation.problem import START_TOLERANCE
from jaxdae.simulation.run import run
from jaxdae.systems import consistent_state, DAE, State, System, Variables
from jaxdae.systems.calls import check_instance
from jaxdae.systems.checks import check_position, constraint_counts
from jaxdae.systems.consistent import check_once
from jaxdae.systems.dae_checks import as_variables, check_shapes, implicit_ranks, index_of
from jaxdae.systems.dae_equations import DAEEquations, dtype_of
from jaxdae.systems.dae_names import entry_names
from jaxdae.systems.dae_start import consistent, violation
from jaxdae.systems.dynamics import constraint_residuals
from jaxdae.systems.precision import in_dtype

# Of a tangent basis: singular values of the constraints below this part of the largest are zero.
_DEPENDENT = 1e-8
# What was found of declarations.
_FOUND = Memory(256)


class Settings(Module):
    """How runs are made; as for `simulate` and `solve`."""

    dt: float | None
    solver: diffrax.AbstractSolver | None
    stepsize_controller: diffrax.AbstractStepSizeController | None
    max_steps: int = eqx.field(static=True)
    backend: Any = eqx.field(static=True)

    @property
    def fixed_step(self) -> float | None:
        """Length of fixed steps; of adaptive ones `dt` is the first."""
        asked = self.stepsize_controller
        return self.dt if asked is None or isinstance(asked, diffrax.ConstantStepSize) else None

    @property
    def of_steps(self) -> dict[str, Any]:
        """What a run is given of them beside its times."""
        return {x: getattr(self, x) for x in ("solver", "stepsize_controller", "max_steps")}


class _Later(Module):
    """A controller whose time counts from another origin [s]."""

    controller: Callable
    origin: Any

    def __call__(self, t, *rest):
        return self.controller(t + self.origin, *rest)


def _is_function(controller: Any) -> bool:
    """Whether a controller is a function of the time and the state, and nothing more."""
    more = AbstractController | AbstractDynamicController
    return callable(controller) and not isinstance(controller, more)


def _counted_from(controller: Any, origin: Any) -> Any:
    return _Later(controller, origin) if _is_function(controller) else controller


def _with_times_of_rows(problem: Any) -> Any:
    """With the controller as rows have it, whose times count from zero again."""
    controller = problem.controller
    return (
        problem._replace(controller=controller.controller)
        if type(controller) is _Later
        else problem
    )


# Directions in which a start may move, what the noise of its guess makes of them, their names.
Directions = tuple[Any, Any, list[str]]


class Mechanism(Module):
    """A system, its formulation and the input, or `None`."""

    system: System
    formulation: AbstractFormulation
    controller: Any
    # Whether known starts, too, are always made consistent.
    always_projects: ClassVar[bool] = False

    @property
    def declaration(self) -> System:
        """What starts that are functions are given."""
        return self.system

    def as_state(self, value: Any, what: str) -> State:
        """A start as it was given; `TypeError` for another kind, with `what` before it."""
        if not isinstance(value, State):
            raise TypeError(f"{what} a {type(value).__name__}, must be a State(q, v).")
        return value

    def check(self, t: float, state: State) -> None:
        """Refuse equations that runs would not refuse in a batch: none, `prepare` has done it."""

    def check_start(self, t: float, state: State, name: str, *, moves: bool) -> None:
        """Refuse a known start that is off the constraints, unless parameters move these."""
        worst = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in self.residuals(t, state))
        size = max(float(np.abs(np.asarray(x)).max(initial=0.0)) for x in (state.q, state.v))
        if not (moves or worst <= START_TOLERANCE * (1 + size)):
            raise ValueError(
                f"identify: the start of experiment {name} is off the constraints by {worst:.3g}; "
                "make it consistent, jaxdae.consistent_state(system, q, v), or give "
                "UnknownStart(state)."
            )

    def consistent(self, t, state: State) -> State:
        """The consistent state next to another."""
        if self.is_constrained(t, state):
            return consistent_state(self.system, state.q, state.v, t, w=state.w)
        system = in_dtype(self.system, state.q.dtype)
        check_once(system, state, t)
        check_position(system, state)
        return state

    def residuals(self, t, state: State) -> tuple:
        """What is zero of a consistent start that is known, arrays."""
        system = in_dtype(self.system, state.q.dtype)
        found = constraint_residuals(system, t, state.q, state.v)
        return found.phi, found.phi_dot

    def is_constrained(self, t: float, state: State) -> bool:
        """Whether starts have to be made consistent."""
        del t
        return sum(_counts(self.system, state)) > 0

    def directions(self, t: float, state: State, start: UnknownStart) -> Directions:
        """Directions in which a consistent start may move, in the order of `ravel_pytree`."""
        _refuse_others(start, ("y",), "a System has q, v and w")
        system = self.system
        rates = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
        m, r = _counts(system, state)
        n = state.q.size
        jac = np.asarray(jax.jacfwd(rates)(state.v)) if m + r else np.zeros((0, n))
        labels = system.labels()
        k = state.w.size
        coordinates = [labels.coordinate(i) for i in range(n)]
        more = range(len(labels.actuators), k)
        actuators = [*labels.actuators[:k], *(f"w{i + 1}" for i in more)]
        moves, priors, names = zip(
            _directions(jac[:m], start.q, coordinates),
            _directions(jac, start.v, [f"{x}'" for x in coordinates]),
            _directions(np.zeros((0, k)), start.w, actuators),
            strict=True,
        )
        block = scipy.linalg.block_diag
        return block(*moves), block(*priors), [x for part in names for x in part]

    def counted_from(self, origin: Any) -> "Mechanism":
        """With an input whose time counts from `origin` [s], where it is a function alone."""
        controller = _counted_from(self.controller, origin)
        return Mechanism(self.system, self.formulation, controller)

    def depends_on_time(self, state: State) -> bool:
        """Whether time itself enters the equations, or an input that has but one origin of time."""
        controller = self.controller
        system = in_dtype(self.system, state.q.dtype)
        if controller is not None and not callable(controller):
            return True
        fixed = _is_function(controller)

        def everything(t, q, v, w):
            origin = jnp.zeros_like(t) if fixed else t
            u = None if controller is None else controller(origin, q, v, w)
            result = constraint_residuals(system, t, q, v)
            lam = jnp.zeros_like(result.phi_dot)
            return (
                result,
                system.kinetic_energy(t, q, v),
                system.potential_energy(t, q),
                system.dissipation(t, q, v),
                system.force(t, q, v, w, u),
                system.reaction_dependent_force(t, q, v, w, u, lam),
                system.actuator_rate(t, q, v, w, u),
                system.mass_matrix(t, q),
            )

        zero = jnp.zeros((), state.q.dtype)
        find = lambda: depends_on(everything, 0, zero, state.q, state.v, state.w)  # noqa: E731
        return of_declaration("time", (system, controller), state, find)

    def prepared(self, state: State, t0: float, t1: float, dt, ts, settings: Settings) -> tuple:
        """The problem of a run, and the method."""
        return prepare(
            self.system, self.formulation, state, t0=t0, t1=t1, dt=dt,
            saveat=diffrax.SaveAt(ts=jnp.asarray(ts)), controller=self.controller,
            adjoint=diffrax.ForwardMode(), backend=settings.backend, progress=False, throw=False,
            work=False, start_tolerance=None, **settings.of_steps,
        )  # fmt: skip

    def trajectory(self, problem: Any, method: Any) -> Trajectory:
        """A run, by what `prepared` has made."""
        found = Trajectory.of(_with_times_of_rows(problem), method, run(problem, method))
        observation.hand_over(problem, method, found)
        return found

    def states_of(self, trajectory: Trajectory) -> State:
        """States at the times of a run."""
        return trajectory.states


class DeclaredEquations(Module):
    """Differential-algebraic equations and the input, or `None`; methods as of `Mechanism`."""

    dae: DAE
    controller: Any
    # What follows from y is given for Newton's method to begin at.
    always_projects: ClassVar[bool] = True

    @property
    def declaration(self) -> DAE:
        return self.dae

    def _equations(self, state: Variables) -> DAEEquations:
        return DAEEquations(*in_dtype((self.dae, self.controller), dtype_of(state)))

    def _at(self, t, state: Variables) -> tuple[DAEEquations, int, Any]:
        """Equations, their index, and the time in their precision."""
        equations, t = self._equations(state), jnp.asarray(t, dtype_of(state))
        return equations, equations.index(t, state), t

    def as_state(self, value: Any, what: str) -> Variables:
        if not isinstance(value, Variables):
            raise TypeError(f"{what} a {type(value).__name__}, must be jaxdae.Variables(y, z).")
        return in_dtype(as_variables(self.dae, *value), jnp.result_type(float))

    def check(self, t: float, state: Variables) -> None:
        equations, time = self._equations(state), jnp.asarray(t, dtype_of(state))
        check_shapes(equations, time, state)
        index_of(equations, time, self.consistent(time, state))

    def check_start(self, t: float, state: Variables, name: str, *, moves: bool) -> None:
        near = self.consistent(t, state)
        before, after = (np.asarray(ravel_pytree(x.y)[0]) for x in (state, near))
        worst = float(np.abs(after - before).max(initial=0.0))
        if not (moves or worst <= START_TOLERANCE * (1 + np.abs(before).max(initial=0.0))):
            raise ValueError(
                f"identify: the start of experiment {name} is off the constraints: consistent "
                f"variables y are {worst:.3g} away. Make it consistent, "
                "jaxdae.consistent_start(dae, y, z), or give UnknownStart(Variables(y, z))."
            )

    def consistent(self, t, state: Variables) -> Variables:
        equations, index, t = self._at(t, state)
        return consistent(equations, index, t, state)

    def residuals(self, t, state: Variables) -> tuple:
        equations, index, t = self._at(t, state)
        return (violation(equations, index, t, state).residual,)

    def is_constrained(self, t: float, state: Variables) -> bool:
        return self._at(t, state)[1] > 0

    def directions(self, t: float, state: Variables, start: UnknownStart) -> Directions:
        _refuse_others(start, ("q", "v", "w"), "a DAE has y")
        equations, index, t_ = self._at(t, state)
        y, of_y = ravel_pytree(state.y)
        with_y = lambda y: state._replace(y=of_y(y))  # noqa: E731
        jac = np.zeros((0, y.size))
        if equations.implicit:
            z, of_z = ravel_pytree(state.z)
            with_z = lambda z: state._replace(z=of_z(z))  # noqa: E731
            by_rates = jax.jacfwd(lambda z: equations.residual(t_, with_z(z)))(z)
            by_y = jax.jacfwd(lambda y: equations.residual(t_, with_y(y)))(y)
            jac = algebraic_part(np.asarray(by_rates, float), np.asarray(by_y, float), y.dtype)
        elif index == 2:
            jac = np.asarray(jax.jacfwd(lambda y: equations.constraints(t_, with_y(y)))(y))
        moves, prior, names = _directions(
            jac, _entries(start.y, state.y), entry_names("y", state.y)
        )
        rest = ravel_pytree(state.z)[0].size  # which follows from y
        return np.concatenate([moves, np.zeros((rest, moves.shape[1]))]), prior, names

    def counted_from(self, origin: Any) -> "DeclaredEquations":
        return DeclaredEquations(self.dae, _counted_from(self.controller, origin))

    def depends_on_time(self, state: Variables) -> bool:
        equations = self._equations(state)
        if _is_function(self.controller):
            at_zero = lambda t, *rest: self.controller(jnp.zeros_like(t), *rest)  # noqa: E731
            equations = DeclaredEquations(self.dae, at_zero)._equations(state)

        def everything(t, state):
            if equations.implicit:
                return equations.residual(t, state)
            parts = equations.rate(t, state), equations.constraints(t, state)
            return *parts, equations.mass(t, state)

        return depends_on(everything, 0, jnp.zeros((), dtype_of(state)), state)

    def prepared(self, state: Variables, t0, t1, dt, ts, settings: Settings) -> tuple:
        return dae_runs.prepare(
            self.dae, state, t0=t0, t1=t1, dt=dt, saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
            controller=self.controller, adjoint=diffrax.ForwardMode(), backend=settings.backend,
            progress=False, throw=False, start_tolerance=None, **settings.of_steps,
        )  # fmt: skip

    def trajectory(self, problem: Any, method: Any) -> DAETrajectory:
        return DAETrajectory.of(_with_times_of_rows(problem), run_dae(problem, method))

    def states_of(self, trajectory: DAETrajectory) -> Variables:
        return trajectory.saved


Declared = Mechanism | DeclaredEquations


def _counts(system: System, state: State) -> tuple[int, int]:
    """Numbers of position and velocity constraints."""
    find = lambda: constraint_counts(system, state)  # noqa: E731
    return of_declaration("counts", system, state, find)


def of_declaration(what: str, declaration: Any, state: State, find: Callable[[], Any]) -> Any:
    """What follows from a declaration and not from its numbers, once for all records."""
    leaves, structure = jax.tree.flatten((declaration, state))
    key = (what, structure, *((x.shape, x.dtype) if eqx.is_array(x) else x for x in leaves))
    return _FOUND.get(key, declaration, find)


def declared(made: Any, controller: Any) -> Declared:
    """What `build` has returned, with the controller of a record."""
    parts = [*made] if isinstance(made, tuple) else [made]
    if parts and isinstance(parts[0], DAE):
        if len(parts) > 2:
            raise TypeError(
                f"identify: build returned {len(parts)} things, must return a DAE, or (dae, "
                "controller)."
            )
        return DeclaredEquations(parts[0], _controller(parts[1] if parts[1:] else None, controller))
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise TypeError(
            f"identify: build returned a {type(made).__name__}, must return (system, formulation), "
            "(system, formulation, controller), a DAE, or (dae, controller)."
        )
    system, formulation, own = [*parts, None][:3]
    check_instance("identify: build returned a system that", system, System, "a System first")
    check_instance(
        "identify: build returned a formulation that", formulation, AbstractFormulation,
        "a formulation, such as jaxdae.Multipliers(), second",
    )  # fmt: skip
    return Mechanism(system, formulation, _controller(own, controller))


def _controller(own: Any, given: Any) -> Any:
    if own is not None and given is not None:
        raise ValueError(
            "identify: build returns a controller and an experiment has one as well; keep one."
        )
    return given if own is None else own


def algebraic_part(by_rates: np.ndarray, by_y: np.ndarray, dtype) -> np.ndarray:
    """Derivatives by `y` of the equations of a residual that have no rates."""
    tolerance = float(jnp.finfo(dtype).eps) ** 0.75
    rank, _ = implicit_ranks(by_rates, by_y, tolerance)
    rows = np.linalg.norm(by_rates, axis=1, keepdims=True)
    rows = np.where(rows > 0, rows, 1.0)
    left = np.linalg.svd(by_rates / rows)[0]
    return left[:, rank:].T @ (by_y / rows)


def _refuse_others(start: UnknownStart, names: tuple[str, ...], words: str) -> None:
    """Standard deviations of variables that there are not."""
    for name in names:
        given = getattr(start, name)
        if not all(np.all(np.isinf(np.asarray(x, float))) for x in jax.tree.leaves(given)):
            raise ValueError(f"UnknownStart: {name} is {given}, but {words}; leave {name} out.")


def _entries(sigma: Any, y: Any) -> np.ndarray:
    """Standard deviations of the numbers in `y`, from one number or a pytree like it."""
    if np.ndim(sigma) == 0 and not isinstance(sigma, dict | list | tuple):
        sigma = jax.tree.map(lambda _: sigma, y)
    if jax.tree.structure(sigma) != jax.tree.structure(y):
        raise ValueError(
            "UnknownStart: y has another structure than the variables; give one number, or one for "
            f"each of {', '.join(entry_names('y', y))}."
        )
    full = jax.tree.map(lambda s, x: np.broadcast_to(np.asarray(s, float), np.shape(x)), sigma, y)
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(full)])


def _directions(jac: np.ndarray, sigma, labels: list[str]) -> Directions:
    """Allowed directions, what the guess's noise makes of them, and their names.

    Directions are in units of the standard deviations, or of one where these are infinite;
    coordinates that are held are further constraints.
    """
    n = len(labels)
    if not n:
        return np.zeros((0, 0)), np.zeros((0, 0)), []
    sigma = np.broadcast_to(np.asarray(sigma, float), (n,))
    known = np.isfinite(sigma) & (sigma > 0)
    scale = np.where(known, sigma, 1.0)
    rows = np.concatenate([jac * scale, np.eye(n)[sigma == 0]])
    basis = scale[:, None] * _null_space(rows)
    prior = np.zeros((basis.shape[1],) * 2)
    if basis.size:
        seen = np.asarray(
            np.linalg.qr(np.where(known, 1.0 / scale, 0.0)[:, None] * basis, mode="r")
        )
        prior[: seen.shape[0]] = seen
    return basis, prior, [_direction_name(column, labels) for column in basis.T]


def _null_space(rows: np.ndarray) -> np.ndarray:
    """Orthonormal basis of what the rows send to zero, along coordinates where that is possible."""
    if not rows.size:
        return np.eye(rows.shape[1])
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    _, values, right = np.linalg.svd(rows / np.where(sizes > 0, sizes, 1.0))
    rank = int(np.sum(values > _DEPENDENT * max(values.max(initial=0.0), 1e-300)))
    return right[rank:].T


def _direction_name(column: np.ndarray, labels: list[str]) -> str:
    """The coordinate that a direction moves most."""
    moved = np.flatnonzero(np.abs(column) > 1e-9 * np.abs(column).max())
    most = labels[int(np.argmax(np.abs(column)))]
    return most if moved.size == 1 else f"{most} and what moves with it"
