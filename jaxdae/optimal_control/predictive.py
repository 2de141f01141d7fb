"""Model predictive control: at each sample the inputs of a horizon anew, of which one is given."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known, fails
from jaxdae.formulations import AbstractFormulation
from jaxdae.optimal_control.box_descent import GaussNewton, minimize, ProjectedGradient
from jaxdae.optimal_control.prediction import HeldInputs, LaterSystem, Prediction
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import prepare
from jaxdae.solvers import RK4
from jaxdae.systems import State, System
from jaxdae.systems.calls import check_instance, check_parameters

_METHODS = {"gauss-newton": GaussNewton(), "projected-gradient": ProjectedGradient()}


class Plan(NamedTuple):
    """The memory of a predictive policy: what it intends, and what it foresees of that.

    Args:
        inputs: at the nodes, the first one given to the plant, shape `(nodes, s)`.
        time: of the sample at which they were found [s].
        samples: how many there were.
        step_size: with which the next search begins.
        cost: foreseen; the largest number there is where no prediction was finite.
        violation: the largest excess over the limits that is foreseen at a node.
        failed: 1 where no prediction of this sample was finite, so that inputs are those of before;
            0 otherwise.
    """

    inputs: Any
    time: Any
    samples: Any
    step_size: Any
    cost: Any
    violation: Any
    failed: Any


class PredictivePolicy(Module):
    """A policy that predicts; made by `mpc`.

    Attributes:
        prediction: the model and what its motions cost.
        lower: lower bounds, shape `(s,)`.
        upper: upper bounds, shape `(s,)`.
        guess: inputs with which the first search begins, shape `(nodes, s)`.
        iterations: predictions with derivatives at each sample.
        method: of descent.
    """

    prediction: Prediction
    lower: Float[Array, " s"]
    upper: Float[Array, " s"]
    guess: Float[Array, "nodes s"]
    iterations: int = eqx.field(static=True)
    method: str = eqx.field(static=True)

    @property
    def memory(self) -> Plan:
        """What the first sample is given."""
        zero = jnp.zeros((), self.guess.dtype)
        return Plan(self.guess, zero, zero, zero, zero, zero, zero)

    def __call__(self, t, q, v, w, memory: Plan) -> tuple[Float[Array, " s"], Plan]:
        """The input from a sample on, and the plan that it is the first part of.

        Args:
            t: time of the sample [s].
            q: coordinates [m or rad], shape `(n,)`.
            v: velocities, shape `(n,)`.
            w: actuator states, shape `(k,)`.
            memory: the plan of the last sample.

        Returns:
            Input, shape `(s,)`, and plan.

        Raises:
            ValueError: for costs and limits of the wrong shape, or that do not fit the method.

        Warns:
            RuntimeWarning: as `simulate` does before a run, of gains that the steps are too long
                for; where numbers are known, so not inside of `jax.jit`.
        """
        if are_known(self, q, v, w):
            self._warn(State(q, v, w), stacklevel=3)
        return _asked(self, t, q, v, w, memory)

    def predict(self, t, q, v, w, inputs: Float[Array, "nodes s"]) -> Trajectory:
        """The motion that the model makes of inputs; its times begin at zero.

        Arguments as of a sample; `inputs` have shape `(nodes, s)`.
        """
        state = State(q, v, w)
        return self.prediction.motion(t, state, self._inputs(inputs, state.q.dtype))

    def predicted_cost(self, t, q, v, w, inputs: Float[Array, "nodes s"]) -> Float[Array, ""]:
        """What is minimized, the penalty of limits included; arguments as of `predict`."""
        state = State(q, v, w)
        found = self.prediction.foreseen(t, state, self._inputs(inputs, state.q.dtype))
        return jnp.sum(found.residuals**2) if found.residuals.ndim else found.residuals

    def plans(self, w: Float[Array, "*rows m"]) -> Plan:
        """The plans of a run, from its actuator states, of which the memory is the last part.

        Args:
            w: `Trajectory.w` of a run whose controller is `Sampled(policy, …)`.
        """
        shapes = [x.shape for x in self.memory]
        sizes = [int(np.prod(x)) for x in shapes]
        if w.shape[-1] < sum(sizes):
            raise ValueError(
                f"w has {w.shape[-1]} columns, and the plan of this policy {sum(sizes)} numbers; "
                "give Trajectory.w of a run whose controller is Sampled(policy, …)."
            )
        parts = jnp.split(w[..., w.shape[-1] - sum(sizes) :], np.cumsum(sizes)[:-1], axis=-1)
        rows = w.shape[:-1]
        return Plan(*(x.reshape(*rows, *shape) for x, shape in zip(parts, shapes, strict=True)))

    def compile(self, state: State) -> "CompiledPolicy":
        """This policy as a function of NumPy arrays, compiled for states of one kind.

        Args:
            state: an example, of which shapes and precision count; checked as by `simulate`.

        Returns:
            `CompiledPolicy`.

        Warns:
            RuntimeWarning: as a call does.
        """
        self._warn(state, stacklevel=3)
        return CompiledPolicy(self, state)

    def _inputs(self, inputs, dtype):
        inputs = jnp.asarray(inputs, dtype)
        if inputs.shape != self.guess.shape:
            raise ValueError(
                f"inputs have shape {inputs.shape}, must be (nodes, s) = {self.guess.shape}."
            )
        return inputs

    def _warn(self, state: State, stacklevel: int) -> None:
        """What `simulate` says before a run of the model."""
        model = self.prediction
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            prepare(
                LaterSystem(model.system, jnp.zeros((), state.q.dtype)), model.formulation, state,
                t0=0.0, t1=model.horizon, dt=model.dt, solver=model.solver,
                stepsize_controller=None, saveat=None, adjoint=None, backend="plain",
                controller=HeldInputs(
                    values=jnp.asarray(self.guess, state.q.dtype), period=model.interval
                ),
                progress=False, throw=False, work=False, start_tolerance=None, max_steps=2**16,
            )  # fmt: skip
        for one in found:
            warnings.warn(str(one.message), one.category, stacklevel=stacklevel)


@eqx.filter_jit
def _asked(policy: PredictivePolicy, t, q, v, w, memory: Plan):
    """A sample, as one program."""
    model, dtype = policy.prediction, q.dtype
    t = jnp.asarray(t, dtype)
    state = State(q, v, w)
    plan = jax.tree.map(lambda x: jnp.asarray(x, dtype), memory)
    guess, lower, upper = (
        jnp.broadcast_to(jnp.asarray(x, dtype), policy.guess.shape)
        for x in (policy.guess, policy.lower, policy.upper)
    )
    rank = model.check(t, state, guess)
    least_squares = policy.method == "gauss-newton"
    if least_squares and rank == 0:
        raise ValueError(
            "cost returned a scalar, of which Gauss-Newton knows no residuals: return a vector "
            "whose squares are summed, or give method='projected-gradient'."
        )

    def function(point):
        if least_squares:
            found, rows = model.linearized(t, state, point.reshape(guess.shape))
            return (found.residuals, rows), found.violation
        found = model.foreseen(t, state, point.reshape(guess.shape))
        if rank == 0:
            return found.residuals, found.violation
        return found.residuals @ found.residuals, found.violation

    begun = jnp.where(plan.samples > 0, t - plan.time, 0.0)
    start = jnp.clip(_shifted(plan.inputs, begun / model.interval), lower, upper)
    found = minimize(
        _METHODS[policy.method],
        function,
        start.ravel(),
        jnp.clip(guess, lower, upper).ravel(),
        (lower.ravel(), upper.ravel()),
        plan.step_size if policy.method == "projected-gradient" else jnp.zeros((), dtype),
        policy.iterations,
    )
    inputs = found.point.reshape(guess.shape)
    failed = ~jnp.isfinite(found.value)
    after = Plan(
        inputs,
        t,
        plan.samples + 1,
        found.step_size,
        jnp.where(failed, jnp.finfo(dtype).max, found.value),
        found.aux,
        failed.astype(dtype),
    )
    return inputs[0], after


def _shifted(inputs, by):
    """Inputs so many nodes later, on straight lines between them; the last one stays."""
    last = inputs.shape[0] - 1
    place = jnp.clip(jnp.arange(inputs.shape[0]) + by, 0, last)
    before = jnp.floor(place)
    i = before.astype(int)
    rest = (place - before)[:, None]
    return (1 - rest) * inputs[i] + rest * inputs[jnp.minimum(i + 1, last)]


class CompiledPolicy:
    """A predictive policy as a function of NumPy arrays; made by `PredictivePolicy.compile`.

    One program of XLA with one argument and one result, compiled ahead; the runs in it are kernels
    where the backend is native. It may be called by several threads at once.

    Attributes:
        memory: what the first sample is given, as NumPy arrays.
    """

    def __init__(self, policy: PredictivePolicy, state: State):
        dtype = np.dtype(state.q.dtype)
        self.memory = Plan(*(np.asarray(x, dtype) for x in policy.memory))
        given = (np.zeros((), dtype), *map(np.asarray, (state.q, state.v, state.w)), *self.memory)
        self._given: list[tuple[int, ...]] = [x.shape for x in given]
        self._inputs = policy.guess.shape[1]
        ends = np.cumsum([x.size for x in given])
        self._places = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
        self._dtype, self._size = dtype, int(ends[-1])

        def flat(numbers):
            each = [numbers[p].reshape(x) for p, x in zip(self._places, self._given, strict=True)]
            t, q, v, w, *memory = each
            u, plan = _asked(policy, t, q, v, w, Plan(*memory))
            return jnp.concatenate([u, *(x.ravel() for x in plan)])

        self._program = jax.jit(flat).lower(jax.ShapeDtypeStruct((self._size,), dtype)).compile()

    def __call__(self, t, q, v, w=(), memory: Plan | None = None) -> tuple[np.ndarray, Plan]:
        """The input from a sample on, and the plan; arguments as of the policy, NumPy arrays.

        Raises:
            ValueError: for shapes that do not fit.
        """
        numbers = np.empty(self._size, self._dtype)
        plan = self.memory if memory is None else memory
        for value, place, shape in zip((t, q, v, w, *plan), self._places, self._given, strict=True):
            if np.shape(value) != shape:
                raise ValueError(f"an argument has shape {np.shape(value)}, must be {shape}.")
            numbers[place] = np.ravel(value)
        result = np.asarray(self._program(numbers))
        first = self._inputs - self._places[4].start
        after = [
            result[p.start + first : p.stop + first].reshape(x)
            for p, x in zip(self._places[4:], self._given[4:], strict=True)
        ]
        return result[: self._inputs], Plan(*after)

    def __repr__(self) -> str:
        return f"CompiledPolicy({self._given[4][0]} nodes, {self._inputs} inputs)"


def mpc(
    system: System,
    formulation: AbstractFormulation,
    cost: Callable,
    *,
    horizon: float,
    nodes: int,
    bounds: tuple[Any, Any] | None = None,
    terminal: Callable | None = None,
    limits: Callable | None = None,
    penalty: Any = 1e3,
    iterations: int = 5,
    method: Literal["gauss-newton", "projected-gradient"] = "gauss-newton",
    guess: Any = None,
    dt: float | None = None,
    solver: diffrax.AbstractSolver | None = None,
) -> PredictivePolicy:
    r"""Model predictive control as a policy of `jaxdae.control.Sampled` [RawlingsMayneDiehl2017].

        minimize over u_0, …, u_{N-1}:
            sum_k h |cost(t_k, q_k, v_k, w_k, u_k)|^2 + |terminal(t_N, q_N, v_N, w_N)|^2
        subject to  lower <= u_k <= upper  and the equations of motion,    h = horizon / N

    with inputs held from node to node. At each sample the plan of the last one, moved by the time
    between them, is improved by a fixed number of iterations, each one prediction with its
    derivatives: the time of a sample is always the same. The first input of the plan is given.

        policy = jaxdae.mpc(system, formulation, cost, horizon=1.0, nodes=20, bounds=(-10.0, 10.0))
        controller = jaxdae.control.Sampled(policy, 0.05, memory=policy.memory)

    The system is the policy's own and may differ from the one that is simulated. A state beside its
    constraints is stabilized by the formulation. Bounds are never exceeded. Where no prediction of
    a sample is finite, the plan stays as it was, moved, and says so (`Plan.failed`).

    Args:
        system: the model.
        formulation: its equations. Laws of its own that depend on time are given the time since the
            sample.
        cost: `cost(t, q, v, w, u)`, a vector of residuals, whose squares are summed; or a scalar,
            with `method="projected-gradient"`, which is summed as it is.
        horizon: how far is looked ahead [s].
        nodes: number `N` of inputs on the horizon.
        bounds: lower and upper ones of the inputs, each a number or of shape `(s,)`; by default
            none.
        terminal: `terminal(t, q, v, w)`, of the kind of `cost`; by default none.
        limits: `limits(t, q, v, w) -> (l,)`, of states, kept where not negative. What is beyond
            them at the ends of the intervals is penalized by `penalty * h |min(limits, 0)|^2` and
            said in `Plan.violation`.
        penalty: its weight.
        iterations: predictions with derivatives at each sample.
        method: `"gauss-newton"`, with Levenberg's damping and the box by projection;
            `"projected-gradient"`, cheaper by iteration, of which it takes more.
        guess: inputs to begin with, shape `(s,)` or `(nodes, s)`; by default zero, or the bound
            nearest to it. Says the number of inputs where bounds do not.
        dt: longest step of predictions [s]; by default from node to node.
        solver: their step method, as of `simulate`; by default `jaxdae.solvers.RK4()`.

    Returns:
        `PredictivePolicy`.

    Raises:
        ValueError: for bounds that cross or are not of one length, a horizon or step that is not
            positive, fewer than one node or iteration, a method that there is not, and a guess that
            does not fit.
        TypeError: for arguments of the wrong kind.
    """
    check_instance("system", system, System, "an instance of your jaxdae.System")
    example = "jaxdae.Multipliers(Baumgarte(...))"
    check_instance("formulation", formulation, AbstractFormulation, example)
    solver = RK4() if solver is None else solver
    check_instance("solver", solver, diffrax.AbstractSolver, "jaxdae.solvers.RK4()")
    check_parameters("cost", cost, ("t", "q", "v", "w", "u"))
    for name, function in (("terminal", terminal), ("limits", limits)):
        if function is not None:
            check_parameters(name, function, ("t", "q", "v", "w"))
    _check_counts(nodes=nodes, iterations=iterations)
    dt = horizon / nodes if dt is None else dt
    _check_times(horizon=horizon, dt=dt)
    if method not in _METHODS:
        known = " or ".join(map(repr, _METHODS))
        raise ValueError(f"method is {method!r}; give {known}.")
    if fails(lambda x: np.ndim(x) == 0 and 0 <= x < np.inf, penalty):
        raise ValueError(f"penalty is {penalty}; it must be a number, not negative.")
    lower, upper, inputs = _bounds_and_guess(bounds, guess, nodes)
    model = Prediction(
        system, formulation, cost, terminal, limits, penalty, float(horizon), int(nodes),
        float(dt), solver,
    )  # fmt: skip
    return PredictivePolicy(model, lower, upper, inputs, int(iterations), method)


def _check_counts(**counts) -> None:
    for name, count in counts.items():
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise ValueError(f"{name} is {count!r}; it must be an integer, one at least.")


def _check_times(**times) -> None:
    for name, time in times.items():
        if not are_known(time):
            raise ValueError(f"{name} must be a plain number: it says how many steps there are.")
        if np.ndim(time) or not 0 < time < np.inf:
            raise ValueError(f"{name} is {time}; it must be a positive number of seconds.")


def _bounds_and_guess(bounds, guess, nodes: int):
    """Bounds of shape `(s,)`, and a guess of shape `(nodes, s)`.

    Raises:
        ValueError: for such that do not fit each other.
    """
    if bounds is None and guess is None:
        raise ValueError(
            "the number of inputs is not known: give bounds, each of shape (s,), or "
            "guess=jnp.zeros(s)."
        )
    if bounds is not None and not (isinstance(bounds, tuple | list) and len(bounds) == 2):
        raise ValueError(f"bounds is {bounds!r}; give (lower, upper).")
    lower, upper = (-jnp.inf, jnp.inf) if bounds is None else bounds
    shapes: list[tuple[int, ...]] = [np.shape(x) for x in (lower, upper)]
    if guess is not None:
        shape = np.shape(guess)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != nodes):
            raise ValueError(f"guess has shape {shape}; give (s,) or (nodes, s), {nodes} nodes.")
        shapes.append(shape[-1:])
    lengths = {x for x in shapes if x != ()} or {(1,)}
    if len(lengths) > 1 or any(len(x) != 1 for x in lengths):
        said = ", ".join(map(str, shapes))
        raise ValueError(
            f"lower bounds, upper bounds and guess are of shapes {said}; each must be a number or "
            "have one entry for each input."
        )
    (length,) = lengths
    dtype = jnp.result_type(float)
    lower, upper = (jnp.broadcast_to(jnp.asarray(x, dtype), length) for x in (lower, upper))
    if fails(lambda a, b: (a <= b).all(), lower, upper):
        raise ValueError(
            f"bounds cross, or are no numbers: lower {np.asarray(lower)}, upper "
            f"{np.asarray(upper)}."
        )
    inputs = jnp.zeros(length, dtype) if guess is None else jnp.asarray(guess, dtype)
    if fails(lambda x: np.isfinite(x).all(), inputs):
        raise ValueError("guess is not finite.")
    return lower, upper, jnp.clip(jnp.broadcast_to(inputs, (nodes, *length)), lower, upper)
