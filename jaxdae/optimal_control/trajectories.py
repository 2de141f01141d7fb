"""Motions to order: inputs that take a system to a goal at least cost, within bounds."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, get_args, Literal, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import AbstractDynamicController
from jaxdae.control.inputs import Held, Interpolated
from jaxdae.formulations import AbstractFormulation
from jaxdae.optimal_control.nonlinear_programs import (
    LagrangeMultipliers,
    minimize,
    multipliers,
    NonlinearProgram,
    Optimizer,
    ProgramValues,
)
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import simulate
from jaxdae.solvers.grid import Grid
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance, check_parameters
from jaxdae.systems.consistent import consistent_state
from jaxdae.systems.dynamics import constraint_residuals, evaluate

Kind = Literal["held", "linear"]
# Largest residual of the constraints at the start and the goal, relative to 1 + max |q|, |v|.
_TOLERANCE = 1e-6
# Largest residual of a condition, and of stationarity, of what is called an optimum.
_FEASIBLE, _STATIONARY = 1e-7, 1e-3
# How far one adaptive run under the inputs may end from where the planned steps do, relative.
_SAME_END = 1e-3
# How far the end may be beside the goal's branch of the constraints, of the largest coordinate.
_BRANCH = 0.1
# Points of the first way from the start to the goal, and how often they are pulled tight.
_POINTS, _PULLS = 20, 200


class Bounds(NamedTuple):
    """Bounds of inputs and of the state, each a pair of lower and upper ones.

    A number stands for all components, `-inf` and `inf` for none; `None` bounds nothing. Inputs
    keep theirs to the last bit. Those of the state hold at the ends of all intervals.

    Args:
        u: of the inputs, each shape (s,).
        q: of the coordinates, each shape (n,) [m or rad].
        v: of the velocities, each shape (n,).
        w: of the actuator state, each shape (k,).
    """

    u: Any = None
    q: Any = None
    v: Any = None
    w: Any = None


_UNBOUNDED = Bounds()


class OptimalTrajectory(Module):
    """What `optimize_trajectory` has found.

    Args:
        times: ends of the intervals [s], shape (intervals + 1,).
        states: of the system there, rows (intervals + 1, …).
        inputs: shape (intervals, s) where they are held, (intervals + 1, s) where linear.
        cost: integral of the running cost, and the terminal one.
        trajectory: one run of `simulate` under these inputs, with adaptive steps.
        goal_residual: largest residual of what is asked of the end; of a goal that is a state,
            along the constraints.
        gap: largest jump of the state between two segments.
        excess: by how much bounds of the state and limits are exceeded at most, at the ends of
            intervals; zero where they hold.
        violation: largest constraint residual, at position and velocity level.
        end_error: how far the run of `trajectory` ends from the planned end, relative to
            `1 + max |q|, |v|`: errors of the planned steps, as the motion lets them grow.
        multipliers: of the conditions and bounds, and what is left of stationarity.
        active: how many bounds of inputs and conditions on the state are active.
        optimal: whether it is feasible and stationary.
        message: what the optimizer said.
        iterations: of the optimizer.
        evaluations: of the motion.
    """

    times: Float[Array, " nodes"]
    states: State
    inputs: Float[Array, "rows s"]
    cost: float
    trajectory: Trajectory
    goal_residual: float
    gap: float
    excess: float
    violation: float
    end_error: float
    multipliers: LagrangeMultipliers
    active: int
    optimal: bool
    message: str = eqx.field(static=True)
    iterations: int
    evaluations: int

    @property
    def t1(self) -> float:
        """The end time [s]."""
        return float(self.times[-1])

    @property
    def controller(self) -> Held | Interpolated:
        """The inputs as a controller of `simulate`."""
        return _controller(self.times, self.inputs)

    def report(self) -> str:
        """Cost, residuals and multipliers, in a few lines."""
        stationarity = f"{self.multipliers.residual:.1e} of the gradient left"
        goal = self.multipliers.equal[-max(self._goal_size, 0) :] if self._goal_size else ()
        rows = [
            f"cost {self.cost:.6g} at t1 = {self.t1:.6g} s; "
            + ("optimal" if self.optimal else "NOT optimal"),
            f"{self.message}; {self.iterations} iterations, {self.evaluations} motions",
            f"goal {self.goal_residual:.1e}, gaps {self.gap:.1e}, limits exceeded by "
            f"{self.excess:.1e}, constraints {self.violation:.1e}",
            f"stationarity: {stationarity}; {self.active} bounds and limits are active",
            f"an adaptive run under these inputs ends {self.end_error:.1e} away",
        ]
        if len(goal):
            found = ", ".join(f"{x:.4g}" for x in goal)
            rows.append(f"multipliers of the goal: {found}")
        return "\n".join(rows)

    _goal_size: int = eqx.field(static=True, default=0)


def optimize_trajectory(
    system: System,
    formulation: AbstractFormulation,
    start: State,
    *,
    t1,
    t0=0.0,
    inputs: int | Float[Array, "rows s"],
    intervals: int,
    segments: int | None = None,
    kind: Kind = "held",
    cost: Callable | None = None,
    terminal: Callable | None = None,
    goal: State | Callable | None = None,
    bounds: Bounds = _UNBOUNDED,
    limits: Callable | None = None,
    guess: State | None = None,
    steps: int = 4,
    solver: diffrax.AbstractSolver | None = None,
    optimizer: Optimizer = "slsqp",
    iterations: int = 500,
    tolerance: float = 1e-13,
    progress: bool = False,
    backend: Literal["auto", "plain", "native"] = "auto",
) -> OptimalTrajectory:
    r"""Inputs that take a system to a goal at least cost, by multiple shooting [BockPlitt1984].

        min  int_{t0}^{t1} cost(t, q, v, w, u) dt + terminal(t1, q, v, w)
        s.t. the motion begins at `start` and ends at `goal`, within `bounds` and `limits`.

    The time is divided into intervals of equal length, in which the input is constant or linear,
    and these into segments, whose first states are unknowns beside the inputs: motions that leave
    an equilibrium, or are long, are then found where one shot from the start diverges. Each
    interval is integrated by fixed steps, all segments at once, in kernels where these can; all
    derivatives are those of the steps. Between segments all of the state has to agree, so that the
    constraints hold there as they do along one run; of a goal that is a state only what lies along
    the constraints is asked for, since the rest follows from them.

    Args:
        system: what moves.
        formulation: how its constraints are enforced.
        start: where it begins.
        t1: end time [s]; a pair `(shortest, longest)` where it is free.
        t0: start time [s].
        inputs: number `s` of inputs, or a first guess of them: shape (s,), or one for each
            interval (each node where they are linear).
        intervals: number of intervals of the input.
        segments: number of segments, a divisor of `intervals`: with more of them hard problems
            converge from farther away; by default all for IPOPT, and about 5 for SLSQP, which is
            dense.
        kind: `"held"`, or `"linear"` between the ends of the intervals.
        cost: running cost; by default the sum of the squares of the inputs.
        terminal: cost of the end; none by default.
        goal: a consistent state at which the motion ends, or `(t, q, v, w) -> (g,)`, what is zero
            there: as many independent conditions as are meant; or `None`.
        bounds: of inputs and state.
        limits: `(t, q, v, w, u) -> (l,)`, what is at least zero at the ends of the intervals.
        guess: states to begin with at the ends of the segments, rows (segments, …); by default
            between start and goal, brought to the constraints, or, without a state as goal, those
            of the motion under the first inputs.
        steps: steps of an interval.
        solver: step method; by default `diffrax.Dopri5()`.
        optimizer: `"slsqp"`, SciPy's, for up to some hundred unknowns, or `"ipopt"`, which
            `pip install 'jaxdae[optimize]'` brings.
        iterations: of the optimizer, at most.
        tolerance: of the optimizer's conditions.
        progress: show a bar with cost and residuals.
        backend: as `simulate` has it.

    Returns:
        `OptimalTrajectory`, with residuals and multipliers; `report()` puts them in words.

    Warns:
        RuntimeWarning: when what was found is not feasible or not stationary, or an adaptive run
            under its inputs ends elsewhere, with the amounts.

    Raises:
        ValueError: before any work, for numbers, shapes, bounds or a goal that do not fit, and for
            a start that is not in double precision.
        TypeError: for arguments of the wrong kind.
        ImportError: when IPOPT is asked for and is not installed.
    """
    shooting = _Transcription.declared(
        system, formulation, start, t0, t1, inputs, intervals, segments, kind, cost, terminal,
        goal, bounds, limits, steps, solver, backend, optimizer,
    )  # fmt: skip
    x = shooting.first(guess)
    program = shooting.program()
    _check_first(shooting, program, x)
    from tqdm import tqdm

    with tqdm(total=iterations, disable=not progress, desc="optimize") as bar:

        def after(found: ProgramValues) -> None:
            worst = max(np.abs(found.equal).max(initial=0.0), -found.positive.min(initial=0.0))
            bar.set_postfix_str(f"cost {float(found.objective):.5g}, residual {worst:.1e}")
            bar.update()

        done = minimize(program, x, optimizer, iterations, tolerance, after)
    return shooting.result(program, done)


def _square(t, q, v, w, u):
    """The running cost where none is given."""
    del t, q, v, w
    return jnp.sum(u * u)


class _HeldOrLinear(AbstractDynamicController):
    """Inputs of one interval, with the integral of the running cost as internal state.

    Args:
        cost: the running cost.
        first: input at the interval's start, shape (s,).
        last: at its end; the same where inputs are held.
        start: of the interval [s].
        end: of the interval [s].
    """

    cost: Callable
    first: Float[Array, " s"]
    last: Float[Array, " s"]
    start: Any
    end: Any

    def initial(self, t, state):
        del t
        return jnp.zeros(1, state.q.dtype)

    def rate(self, t, q, v, w, c):
        return jnp.reshape(self.cost(t, q, v, w, self.output(t, q, v, w, c)), 1)

    def output(self, t, q, v, w, c):
        del q, v, w, c
        part = (t - self.start) / (self.end - self.start)
        return self.first + part * (self.last - self.first)


class _Transcription(Module):
    """A trajectory to be found, as unknowns `x` and functions of them.

    The unknowns are the states at the starts of all segments but the first, one after the other,
    the inputs, and the end time where it is free.
    """

    system: System
    formulation: AbstractFormulation
    start: State
    t0: Any
    times: tuple[float, float]
    first_inputs: Float[Array, "rows s"]
    cost: Callable
    terminal: Callable | None
    goal: Any
    bounds: Bounds
    limits: Callable | None
    intervals: int = eqx.field(static=True)
    segments: int = eqx.field(static=True)
    linear: bool = eqx.field(static=True)
    steps: int = eqx.field(static=True)
    solver: diffrax.AbstractSolver = eqx.field(static=True)
    backend: Any = eqx.field(static=True)
    # Conditions on a goal that is a state: bases of what moves along the constraints.
    along_q: Any = None
    along_v: Any = None

    @classmethod
    def declared(
        cls, system, formulation, start, t0, t1, inputs, intervals, segments, kind, cost, terminal,
        goal, bounds, limits, steps, solver, backend, optimizer,
    ) -> "_Transcription":  # fmt: skip
        """Checked and completed."""
        check_instance("system", system, System, "an instance of your jaxdae.System")
        example = "jaxdae.Multipliers(Baumgarte(...))"
        check_instance("formulation", formulation, AbstractFormulation, example)
        check_instance("start", start, State, "jaxdae.consistent_state(system, q, v)")
        check_instance("bounds", bounds, Bounds, "Bounds(u=(-1.0, 1.0))")
        functions = {"cost": cost, "terminal": terminal, "limits": limits}
        functions |= {} if isinstance(goal, State) else {"goal": goal}
        for name, function in functions.items():
            with_input = ("u",) if name in ("cost", "limits") else ()
            if function is not None:
                check_parameters(name, function, ("t", "q", "v", "w", *with_input))
        dtype = start.q.dtype
        if dtype != jnp.float64:
            raise ValueError(
                f"optimize_trajectory needs double precision, and start is {dtype}: set "
                "jax.config.update('jax_enable_x64', True)."
            )
        for name, value in (("intervals", intervals), ("steps", steps)):
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a positive integer, not {value}.")
        if segments is None and optimizer == "ipopt":
            segments = intervals
        if segments is None:
            divisors = [x for x in range(1, intervals + 1) if intervals % x == 0]
            segments = min(divisors, key=lambda x: abs(x - 5))
        if segments < 1 or intervals % segments:
            raise ValueError(f"segments ({segments}) must divide intervals ({intervals}).")
        if optimizer not in get_args(Optimizer):
            raise ValueError(f"optimizer must be 'slsqp' or 'ipopt', not {optimizer!r}.")
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be 'held' or 'linear', not {kind!r}.")
        times = tuple(float(x) for x in (t1 if isinstance(t1, tuple | list) else (t1, t1)))
        if len(times) != 2 or not np.isfinite(times).all() or not float(t0) < times[0] <= times[1]:
            raise ValueError(
                f"t1 must be an end time behind t0 = {float(t0):g} s, or a pair of the shortest "
                f"and the longest; it is {t1}."
            )
        rows = intervals + (kind == "linear")
        number = isinstance(inputs, int | np.integer)
        given = jnp.zeros(int(inputs), dtype) if number else jnp.asarray(inputs, dtype)
        if given.ndim == 1:
            given = jnp.broadcast_to(given, (rows, given.size))
        if given.shape[-1:] == (0,):
            raise ValueError("inputs says that there are none: nothing can be ordered.")
        if given.ndim != 2 or given.shape[0] != rows:
            raise ValueError(
                f"inputs has shape {given.shape}; a guess has one row for each of the {rows} "
                f"{'nodes' if kind == 'linear' else 'intervals'}."
            )
        if not bool(jnp.isfinite(given).all()):
            raise ValueError("inputs, the first guess, is not finite.")
        sizes = Bounds(given.shape[1], start.q.size, start.v.size, start.w.size)
        paired = [
            _pair(x, pair, n) for x, pair, n in zip(Bounds._fields, bounds, sizes, strict=True)
        ]
        plan = cls(
            system, formulation, start, jnp.asarray(t0, dtype), times, given, cost or _square,
            terminal, goal, Bounds(*paired), limits, intervals, segments, kind == "linear", steps,
            solver or diffrax.Dopri5(), backend,
        )  # fmt: skip
        _check_on_constraints("start", "begins", system, plan.t0, start)
        return plan._with_goal() if isinstance(goal, State) else plan

    def _with_goal(self) -> "_Transcription":
        goal, system = self.goal, self.system
        shapes = [jnp.shape(x) for x in _parts(goal)], [jnp.shape(x) for x in _parts(self.start)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"goal has shapes {shapes[0]} of q, v, w, and start {shapes[1]}.")
        t = self.times[1]
        _check_on_constraints("goal", "ends", system, t, goal)
        of_q = jax.jacfwd(lambda q: system.position_constraints(t, q))(goal.q)
        of_v = evaluate(system, t, goal.q, goal.v, goal.w, self.first_inputs[-1]).jac
        return eqx.tree_at(
            lambda x: (x.along_q, x.along_v),
            self,
            (_null_space(of_q, goal.q.size), _null_space(of_v, goal.v.size)),
            is_leaf=lambda x: x is None,
        )

    # The unknowns.

    @property
    def free_end(self) -> bool:
        """Whether the end time is an unknown."""
        return self.times[0] < self.times[1]

    @property
    def state_size(self) -> int:
        """Length of `(q, v, w)`."""
        return sum(x.size for x in _parts(self.start))

    def parts(self, x) -> tuple[Any, Any, Any]:
        """States at the starts of all segments, shape (segments, …), inputs, and the end time."""
        inner = (self.segments - 1) * self.state_size
        states = jnp.concatenate(
            [self._flat(self.start)[None], x[:inner].reshape(-1, self.state_size)]
        )
        inputs = x[inner : inner + self.first_inputs.size].reshape(self.first_inputs.shape)
        return states, inputs, x[-1] if self.free_end else jnp.asarray(self.times[1], x.dtype)

    def first(self, guess: State | None) -> np.ndarray:
        """Unknowns to begin with."""
        end = 0.5 * sum(self.times) if self.free_end else self.times[1]
        states = self._guessed(guess, end)
        low, high = (np.broadcast_to(x, self.first_inputs.shape) for x in self.bounds.u)
        inputs = np.clip(np.asarray(self.first_inputs), low, high).ravel()
        parts = [np.ravel(states), inputs, np.full(int(self.free_end), end)]
        return np.concatenate(parts).astype(float)

    def _guessed(self, guess: State | None, end: float) -> np.ndarray:
        """States at the starts of all segments but the first."""
        inner, fractions = self.segments - 1, np.arange(1, self.segments) / self.segments
        if inner == 0:
            return np.zeros(0)
        if guess is not None:
            given = [np.asarray(x) for x in _parts(guess)]
            shapes = [(inner, x.size) for x in _parts(self.start)]
            finite = all(np.isfinite(x).all() for x in given)
            if [x.shape for x in given] != shapes or not finite:
                raise ValueError(
                    f"guess must have {inner} finite rows of q, v, w, one for each start of a "
                    "segment but the first."
                )
            return np.concatenate(given, axis=1)
        if isinstance(self.goal, State):
            return np.asarray(_way(self, jnp.asarray(fractions), jnp.asarray(end)))
        states, inputs, end_time = self.parts(self._along(np.zeros(0), end))
        del states
        return np.asarray(_rollout(self, inputs, end_time))

    def _along(self, states, end: float):
        inner = np.zeros((self.segments - 1) * self.state_size)
        inner[: states.size] = states
        inputs = np.asarray(self.first_inputs).ravel()
        return jnp.asarray(np.concatenate([inner, inputs, np.full(int(self.free_end), end)]))

    def _flat(self, state: State):
        return jnp.concatenate(_parts(state))

    def _state(self, x) -> State:
        n, k = self.start.q.size, self.start.v.size
        return State(x[:n], x[n : n + k], x[n + k :])

    # What is computed of them.

    def segment(self, local):
        """The motion of one segment.

        Args:
            local: its first state, its inputs, the end time, and the number of its first interval.

        Returns:
            The cost, and the states at the ends of its intervals.
        """
        x, inputs, end, number = local
        count = self.intervals // self.segments
        last = inputs[1:] if self.linear else inputs
        pairs = jnp.stack([inputs[:count], last], axis=1)
        step = (end - self.t0) / self.intervals

        def interval(carry, given):
            x, cost = carry
            pair, i = given
            begin = self.t0 + step * (number + i)
            grid = begin + step * jnp.linspace(0.0, 1.0, self.steps + 1, dtype=x.dtype)
            controller = _HeldOrLinear(self.cost, pair[0], pair[1], grid[0], grid[-1])
            run = simulate(
                self.system, self.formulation, self._state(x),
                t0=grid[0], t1=grid[-1], stepsize_controller=Grid(grid, 1), solver=self.solver,
                saveat=diffrax.SaveAt(t1=True), controller=controller, throw=False,
                start_tolerance=None, max_steps=self.steps + 1, backend=self.backend,
            )  # fmt: skip
            x = jnp.concatenate([run.q[-1], run.v[-1], run.w[-1][:-1]])
            return (x, cost + run.w[-1][-1]), x

        carry = (x, jnp.zeros((), x.dtype))
        (_, cost), rows = jax.lax.scan(interval, carry, (pairs, jnp.arange(count)))
        return cost, rows

    def local(self, x):
        """What each segment is given."""
        states, inputs, end = self.parts(x)
        count = self.intervals // self.segments
        number = count * np.arange(self.segments)
        rows = number[:, None] + np.arange(count + self.linear)
        return (
            states,
            inputs[rows],
            jnp.broadcast_to(end, self.segments),
            jnp.asarray(number, x.dtype),
        )

    def conditions(self, x, costs, rows) -> ProgramValues:
        """Objective and conditions, of the motions of all segments."""
        states, inputs, end = self.parts(x)
        last = self._state(rows[-1, -1])
        objective = jnp.sum(costs)
        if self.terminal is not None:
            objective = objective + jnp.reshape(self.terminal(end, *_parts(last)), ())
        gaps = (rows[:-1, -1] - states[1:]).ravel()
        equal = jnp.concatenate([gaps, self.missed(end, last)])
        flat = rows.reshape(self.intervals, -1)
        times = self.t0 + (end - self.t0) * jnp.arange(1, self.intervals + 1) / self.intervals
        used = inputs[1:] if self.linear else inputs
        positive = [jax.vmap(self.within)(times, flat, used).ravel(), self.beside(last)]
        return ProgramValues(objective, equal, jnp.concatenate(positive))

    def missed(self, t, last: State):
        """What is to be zero at the end."""
        if self.goal is None:
            return jnp.zeros(0, last.q.dtype)
        if not isinstance(self.goal, State):
            return jnp.ravel(self.goal(t, *_parts(last)))
        q, v = self.along_q.T @ (last.q - self.goal.q), self.along_v.T @ (last.v - self.goal.v)
        return jnp.concatenate([q, v, last.w - self.goal.w])

    def beside(self, last: State):
        """What keeps the end on the goal's branch of the constraints, where a goal is a state.

        Across them it may be off by a tenth of the way: what lies along them does not tell a
        pendulum that stands from one that hangs.
        """
        if self.along_q is None:
            return jnp.zeros(0, last.q.dtype)
        off = last.q - self.goal.q
        off = off - self.along_q @ (self.along_q.T @ off)
        return jnp.reshape((_BRANCH * self.reach) ** 2 - off @ off, 1) / self.reach

    @property
    def reach(self):
        """Largest coordinate of the goal, or of the way to it [m or rad]."""
        sizes = jnp.abs(jnp.stack([self.goal.q, self.goal.q - self.start.q]))
        return jnp.max(sizes, initial=jnp.finfo(sizes.dtype).tiny)

    def within(self, t, x, u):
        """What is to be at least zero at the end of an interval."""
        state = self._state(x)
        found = []
        for values, (low, high) in zip(_parts(state), self.bounds[1:], strict=True):
            low, high = np.array(low), np.array(high)
            below, above = (np.flatnonzero(np.isfinite(y)) for y in (low, high))
            found += [values[below] - low[below], high[above] - values[above]]
        if self.limits is not None:
            found.append(jnp.ravel(self.limits(t, *_parts(state), u)))
        return jnp.concatenate(found)

    def program(self) -> NonlinearProgram:
        """The nonlinear program."""
        values, derivatives = partial(_values, self), partial(_derivatives, self)
        inner = (self.segments - 1) * self.state_size
        sides = []
        for i, infinite in enumerate((-np.inf, np.inf)):
            inputs = np.broadcast_to(self.bounds.u[i], self.first_inputs.shape).ravel()
            end = [self.times[i]] if self.free_end else []
            sides.append(np.concatenate([np.full(inner, infinite), inputs, end]))
        host = lambda found: ProgramValues(*(np.asarray(x, float) for x in found))  # noqa: E731
        dtype = self.start.q.dtype
        return NonlinearProgram(
            lambda x: host(values(jnp.asarray(x, dtype))),
            lambda x: host(derivatives(jnp.asarray(x, dtype))),
            lambda x, weights: np.asarray(
                _curvature(self, *(jnp.asarray(y, dtype) for y in (x, *weights))), float
            ),
            *sides,
        )

    def result(self, program: NonlinearProgram, done) -> OptimalTrajectory:
        """What was found, and how good it is."""
        x = jnp.asarray(done.x, self.start.q.dtype)
        found = program.values(done.x)
        _, inputs, end = self.parts(x)
        _, rows = _motions(self, x)
        flat = jnp.concatenate([self._flat(self.start)[None], rows.reshape(self.intervals, -1)])
        states = jax.vmap(self._state)(flat)
        times = self.t0 + (end - self.t0) * jnp.arange(self.intervals + 1) / self.intervals
        gaps = (self.segments - 1) * self.state_size
        excess = max(0.0, -float(found.positive.min(initial=0.0)))
        about = multipliers(program, done.x, active=1e-6)
        residual = jax.vmap(partial(constraint_residuals, self.system))(times, states.q, states.v)
        run = simulate(
            self.system, self.formulation, self.start, t0=self.t0, t1=times[-1], throw=False,
            controller=_controller(times, inputs), saveat=diffrax.SaveAt(ts=times),
            stepsize_controller=diffrax.PIDController(rtol=1e-10, atol=1e-10),
            backend=self.backend, start_tolerance=None,
        )  # fmt: skip
        end_state = self._flat(State(run.q[-1], run.v[-1], run.w[-1][: self.start.w.size]))
        scale = 1 + float(jnp.abs(flat[-1]).max())
        goal = float(np.abs(found.equal[gaps:]).max(initial=0.0))
        gap = np.abs(found.equal[:gaps]).max(initial=0.0)
        feasible = max(goal, gap, excess) <= _FEASIBLE
        active = sum(int(np.count_nonzero(y)) for y in (about.positive, about.lower, about.upper))
        out = OptimalTrajectory(
            times, states, inputs, float(found.objective), run, goal, float(gap), excess,
            max(float(jnp.abs(y).max(initial=0.0)) for y in (residual.phi, residual.phi_dot)),
            float(jnp.abs(end_state - flat[-1]).max()) / scale, about, active,
            bool(feasible and about.residual <= _STATIONARY), done.message, done.iterations,
            done.evaluations, found.equal.size - gaps,
        )  # fmt: skip
        _warn(out)
        return out


def _controller(times, inputs) -> Held | Interpolated:
    """Inputs that are held, or linear, between times."""
    if inputs.shape[0] == times.size:
        return Interpolated(times, inputs, "linear")
    return Held(times[:-1], inputs)


def _warn(found: OptimalTrajectory) -> None:
    if not found.optimal:
        warnings.warn(
            f"optimize_trajectory has found no optimum: the goal is missed by "
            f"{found.goal_residual:.2g}, segments by {found.gap:.2g}, limits are exceeded by "
            f"{found.excess:.2g}, and {found.multipliers.residual:.2g} of the gradient is left. "
            f"({found.message}) More iterations, a better guess, more segments or a longer time "
            "may help.",
            RuntimeWarning,
            stacklevel=4,
        )
    elif not found.end_error <= _SAME_END:
        warnings.warn(
            f"An adaptive run under the inputs found ends {found.end_error:.2g} away from the "
            "planned end: take more steps in an interval, or follow the plan by feedback.",
            RuntimeWarning,
            stacklevel=4,
        )


def _parts(state: State) -> tuple[Array, Array, Array]:
    return state.q, state.v, state.w


def _pair(name: str, pair, size: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """A lower and an upper bound of each component."""
    if pair is None:
        pair = (-np.inf, np.inf)
    try:
        low, high = (np.broadcast_to(np.asarray(x, float), size) for x in pair)
    except ValueError as error:
        raise ValueError(
            f"bounds.{name} must be a pair of numbers, or of vectors of length {size}."
        ) from error
    bad = np.flatnonzero(~(low <= high))
    if bad.size:
        i = int(bad[0])
        raise ValueError(f"bounds.{name}[{i}] cross: from {low[i]:g} to {high[i]:g}.")
    return tuple(low.tolist()), tuple(high.tolist())


def _check_on_constraints(name: str, verb: str, system: System, t, state: State) -> None:
    """Refuse a start or a goal beside the constraints."""
    residuals = constraint_residuals(system, t, state.q, state.v)
    size = 1 + max(float(jnp.abs(x).max(initial=0.0)) for x in (state.q, state.v))
    worst = max(float(jnp.abs(x).max(initial=0.0)) for x in (residuals.phi, residuals.phi_dot))
    if not worst <= _TOLERANCE * size:
        raise ValueError(
            f"{name} violates the constraints by {worst:.3g}, and no motion {verb} there: take "
            "jaxdae.consistent_state(system, q, v)."
        )


def _null_space(jac, size: int) -> Float[Array, "n f"]:
    """An orthonormal basis of what constraints leave, shape (n, free)."""
    matrix = np.asarray(jac, float).reshape(-1, size)
    _, values, rows = np.linalg.svd(matrix)
    largest = values.max(initial=0.0)
    rank = int(np.sum(values > 1e-9 * largest)) if largest > 0 else 0
    return jnp.asarray(rows[rank:].T, jac.dtype)


def _check_first(shooting: _Transcription, program: NonlinearProgram, x: np.ndarray) -> None:
    state, u = shooting.start, shooting.first_inputs[0]
    value = jnp.shape(shooting.cost(shooting.t0, *_parts(state), u))
    if value not in ((), (1,)):
        raise ValueError(f"cost must return a number; it returns shape {value}.")
    found = program.values(x)
    for name, what in (("objective", "The cost"), ("equal", "The goal"), ("positive", "A limit")):
        if not np.isfinite(getattr(found, name)).all():
            raise ValueError(
                f"{what} is not finite for the first guess, of which the motion may not reach "
                "the end: give other inputs, states (`guess`), more segments or more steps."
            )


@jit(options=BRIEFLY)
def _way(shooting: _Transcription, fractions, end):
    """States along a short way from the start to the goal on the constraints, rows (segments, …).

    A string of points is pulled tight: each is brought to the middle of its neighbours, and from
    there to the constraints. It begins beside the straight way, which may pass where the
    constraints are singular (from a pendulum that hangs to one that stands).
    """
    start, goal, system = shooting.start, shooting.goal, shooting.system
    parts = jnp.linspace(0.0, 1.0, _POINTS + 1, dtype=start.q.dtype)[1:-1, None]
    aside = np.random.default_rng(0).uniform(-1.0, 1.0, start.q.size)
    aside = _BRANCH * shooting.reach * jnp.asarray(aside, start.q.dtype) * jnp.sin(jnp.pi * parts)
    straight = start.q + parts * (goal.q - start.q)

    def near(q, otherwise):
        found = consistent_state(system, q, jnp.zeros_like(start.v), shooting.t0, w=start.w).q
        return jnp.where(jnp.isfinite(found).all(), found, otherwise)

    def pulled(q, _):
        ends = jnp.concatenate([start.q[None], q, goal.q[None]])
        return jax.vmap(near)(0.5 * (ends[:-2] + ends[2:]), q), None

    first = jax.vmap(near)(straight + aside, straight + aside)
    tight, _ = jax.lax.scan(pulled, first, length=_PULLS)
    points = jnp.concatenate([start.q[None], tight, goal.q[None]])
    at = jnp.linspace(0.0, 1.0, _POINTS + 1, dtype=start.q.dtype)

    def state(fraction):
        q = jax.vmap(lambda x: jnp.interp(fraction, at, x), in_axes=1)(points)
        i = jnp.clip(jnp.searchsorted(at, fraction) - 1, 0, _POINTS - 1)
        rate = (points[i + 1] - points[i]) * _POINTS / (end - shooting.t0)
        v = rate if start.v.size == start.q.size else jnp.zeros_like(start.v)
        w = start.w + fraction * (goal.w - start.w)
        found = shooting._flat(consistent_state(system, q, v, shooting.t0, w=w))
        return jnp.where(jnp.isfinite(found).all(), found, jnp.concatenate([q, v, w]))

    return jax.vmap(state)(fractions)


@jit(options=BRIEFLY)
def _rollout(shooting: _Transcription, inputs, end):
    """States at the starts of all segments but the first, of one motion under the first inputs."""
    count = shooting.intervals // shooting.segments
    x, found = shooting._flat(shooting.start), []
    for i in range(shooting.segments - 1):
        part = inputs[i * count : (i + 1) * count + shooting.linear]
        _, rows = shooting.segment((x, part, end, jnp.asarray(i * count, x.dtype)))
        x = rows[-1]
        found.append(x)
    return jnp.stack(found)


@jit(options=BRIEFLY)
def _motions(shooting: _Transcription, x):
    return jax.vmap(shooting.segment)(shooting.local(x))


@jit(options=BRIEFLY)
def _values(shooting: _Transcription, x) -> ProgramValues:
    return shooting.conditions(x, *jax.vmap(shooting.segment)(shooting.local(x)))


@jit(options=BRIEFLY)
def _derivatives(shooting: _Transcription, x) -> ProgramValues:
    """Gradients: those of each segment by what it is given alone, then along the unknowns."""
    *given, end, number = shooting.local(x)
    costs, rows = jax.vmap(shooting.segment)((*given, end, number))
    # Derivatives by times are asked for only where the end is free: kernels have none of them.
    varied = [*given, end] if shooting.free_end else given

    def slopes(varied, end, number):
        def run(varied):
            return shooting.segment((*varied[:2], varied[2] if shooting.free_end else end, number))

        return jax.jacfwd(run)(varied)

    jacobians = jax.vmap(slopes)(varied, end, number)

    def along(direction):
        moved = jax.jvp(lambda x: shooting.local(x)[: len(varied)], (x,), (direction,))[1]

        def tangent(jacobian):
            return sum(
                jax.vmap(lambda j, d: jnp.tensordot(j, d, axes=d.ndim))(j, d)
                for j, d in zip(jacobian, moved, strict=True)
            )

        tangents = (direction, tangent(jacobians[0]), tangent(jacobians[1]))
        return jax.jvp(shooting.conditions, (x, costs, rows), tangents)[1]

    found = jax.vmap(along, out_axes=-1)(jnp.eye(x.size, dtype=x.dtype))
    return ProgramValues(*found)


@jit(options=BRIEFLY)
def _curvature(shooting: _Transcription, x, objective, equal, positive):
    """Second derivatives of a weighted sum of objective and conditions, shape (n, n)."""

    def weighted(x):
        found = shooting.conditions(x, *jax.vmap(shooting.segment)(shooting.local(x)))
        return objective * found.objective + equal @ found.equal + positive @ found.positive

    return jax.vmap(lambda d: jax.jvp(jax.grad(weighted), (x,), (d,))[1])(jnp.eye(x.size))
