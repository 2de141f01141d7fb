"""Motions that inputs on a horizon lead to, and what they cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.control.base import AbstractSampledController
from jaxdae.formulations import AbstractFormulation
from jaxdae.reprs import Module
from jaxdae.results.trajectory import Trajectory
from jaxdae.runs import simulate
from jaxdae.systems import State, System
from jaxdae.systems.calls import call_with_shapes, describe_shape
from jaxdae.systems.wrapped import AbstractWrappedSystem


class HeldInputs(AbstractSampledController):
    """Inputs that are held from node to node, the first from time zero on.

    Args:
        values: shape `(nodes, s)`.
        period: time from node to node [s].
    """

    values: Float[Array, "nodes s"]
    period: float = eqx.field(static=True)

    def memory(self, t, state):
        del t, state
        return self.values[0]

    def sample(self, t, q, v, w, c):
        del q, v, w, c
        last = self.values.shape[0] - 1
        return self.values[jnp.clip(jnp.round(t / self.period), 0, last).astype(int)]

    def output(self, t, q, v, w, c):
        del t, q, v, w
        return c


class LaterSystem(AbstractWrappedSystem):
    """A system whose clock begins at another time: `t` of the inner one is `begin + t`.

    Args:
        inner: the system.
        begin: [s].
    """

    begin: Any

    def rate(self, t, q, v):
        return self.inner.rate(self.begin + t, q, v)

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(self.begin + t, q, v)

    def potential_energy(self, t, q):
        return self.inner.potential_energy(self.begin + t, q)

    def dissipation(self, t, q, v):
        return self.inner.dissipation(self.begin + t, q, v)

    def position_constraints(self, t, q):
        return self.inner.position_constraints(self.begin + t, q)

    def velocity_constraints(self, t, q, v):
        return self.inner.velocity_constraints(self.begin + t, q, v)

    def mass_matrix(self, t, q):
        return self.inner.mass_matrix(self.begin + t, q)

    def bias_force(self, t, q, v):
        return self.inner.bias_force(self.begin + t, q, v)

    def forward_dynamics(self, t, q, v, force):
        return self.inner.forward_dynamics(self.begin + t, q, v, force)

    def force(self, t, q, v, w, u):
        return self.inner.force(self.begin + t, q, v, w, u)

    def stiff_force(self, t, q, v, w, u):
        return self.inner.stiff_force(self.begin + t, q, v, w, u)

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        return self.inner.reaction_dependent_force(self.begin + t, q, v, w, u, lam)

    def actuator_rate(self, t, q, v, w, u):
        return self.inner.actuator_rate(self.begin + t, q, v, w, u)

    def points(self, t, q):
        return self.inner.points(self.begin + t, q)


class Foreseen(NamedTuple):
    """What a prediction says.

    Args:
        residuals: whose squares are the cost; the cost itself, shape `()`, where costs are scalar.
        violation: the largest excess over a limit at a node.
    """

    residuals: Float[Array, " k"] | Float[Array, ""]
    violation: Float[Array, ""]


class Linearized(NamedTuple):
    """A prediction with its derivatives.

    Args:
        foreseen: what it says.
        rows: derivatives of its residuals by each input, shape `(nodes s, k)`.
    """

    foreseen: Foreseen
    rows: Float[Array, "n k"]


class Prediction(Module):
    """A model, and what its motions cost.

        sum over nodes of  h |cost(t, q, v, w, u)|^2  +  |terminal(t, q, v, w)|^2
        + penalty * sum over the ends of intervals of  h |min(limits(t, q, v, w), 0)|^2

    with the states at the beginnings of the intervals, of length `h = horizon / nodes`, in the
    first sum. Scalar costs are summed as they are.

    Args:
        system: the model.
        formulation: its equations.
        cost: of time and state, `(t, q, v, w, u)`.
        terminal: of the end, `(t, q, v, w)`, or `None`.
        limits: of states, `(t, q, v, w) -> (l,)`, kept where not negative, or `None`.
        penalty: weight of the squares of their excess.
        horizon: [s].
        nodes: number of inputs.
        dt: longest step [s].
        solver: step method.
    """

    system: System
    formulation: AbstractFormulation
    cost: Callable
    terminal: Callable | None
    limits: Callable | None
    penalty: Any
    horizon: float = eqx.field(static=True)
    nodes: int = eqx.field(static=True)
    dt: float = eqx.field(static=True)
    solver: diffrax.AbstractSolver

    @property
    def interval(self) -> float:
        """Time from node to node [s]."""
        return self.horizon / self.nodes

    def motion(self, t, state: State, inputs: Float[Array, "nodes s"]) -> Trajectory:
        """The motion from a time on; its times begin at zero."""
        return simulate(
            LaterSystem(self.system, t),
            self.formulation,
            state,
            t1=self.horizon,
            dt=self.dt,
            solver=self.solver,
            controller=HeldInputs(values=inputs, period=self.interval),
            adjoint=diffrax.DirectAdjoint(),
            start_tolerance=None,
            throw=False,
        )

    def foreseen(self, t, state: State, inputs: Float[Array, "nodes s"]) -> Foreseen:
        """Residuals, or the cost, of inputs.

        Raises:
            ValueError: for costs and limits of the wrong shape.
        """
        self.check(t, state, inputs)
        run = self.motion(t, state, inputs)
        each = (run.ts.shape[0] - 1) // self.nodes
        rows = t + run.ts[::each], run.q[::each], run.v[::each], run.w[::each, : state.w.size]
        begins, ends = [x[:-1] for x in rows], [x[1:] for x in rows]
        running = jax.vmap(self.cost)(*begins, inputs)
        last = None if self.terminal is None else self.terminal(*(x[-1] for x in rows))
        beyond = None
        if self.limits is not None:
            beyond = jnp.maximum(-jax.vmap(self.limits)(*ends), 0.0)
        violation = jnp.zeros((), inputs.dtype) if beyond is None else jnp.max(beyond)
        h = self.interval
        if running.ndim == 1:
            total = h * jnp.sum(running) + (0.0 if last is None else last)
            if beyond is not None:
                total = total + self.penalty * h * jnp.sum(beyond**2)
            return Foreseen(total, violation)
        parts = [h**0.5 * running.ravel()]
        if last is not None:
            parts.append(last)
        if beyond is not None:
            parts.append((jnp.asarray(self.penalty * h) ** 0.5 * beyond).ravel())
        return Foreseen(jnp.concatenate([x.astype(inputs.dtype) for x in parts]), violation)

    def linearized(self, t, state: State, inputs: Float[Array, "nodes s"]) -> Linearized:
        """Residuals of inputs, and their derivatives, of costs that are vectors.

        The motion is differentiated along all inputs, and what stands at the nodes by the states
        and inputs there: it does not depend on others.
        """
        sizes = [x.size for x in (state.q, state.v, state.w)]

        def states(inputs):
            run = self.motion(t, state, inputs)
            each = (run.ts.shape[0] - 1) // self.nodes
            rows = jnp.concatenate([run.q, run.v, run.w[:, : sizes[2]]], 1)
            return rows[::each], t + run.ts[::each]

        def parts(row):
            return jnp.split(row, np.cumsum(sizes)[:-1])

        h, directions = self.interval, jnp.eye(inputs.size, dtype=inputs.dtype)
        directions = directions.reshape(-1, *inputs.shape)
        along = lambda d: jax.jvp(states, (inputs,), (d,), has_aux=True)  # noqa: E731
        rows, moves, times = jax.vmap(along, out_axes=(None, 0, None))(directions)

        def running(t, both):
            row, u = both[: sum(sizes)], both[sum(sizes) :]
            return h**0.5 * self.cost(t, *parts(row), u)

        def last(t, row):
            assert self.terminal is not None
            return self.terminal(t, *parts(row))

        def beyond(t, row):
            assert self.limits is not None
            return jnp.maximum(-self.limits(t, *parts(row)), 0.0)

        found = [
            _at_nodes(
                running,
                times[:-1],
                jnp.concatenate([rows[:-1], inputs], 1),
                jnp.concatenate([moves[:, :-1], directions], 2),
            )
        ]
        if self.terminal is not None:
            found.append(_at_nodes(last, times[-1:], rows[-1:], moves[:, -1:]))
        violation = jnp.zeros((), inputs.dtype)
        if self.limits is not None:
            excess, pushed = _at_nodes(beyond, times[1:], rows[1:], moves[:, 1:])
            weight = (jnp.asarray(self.penalty * h) ** 0.5).astype(inputs.dtype)
            found.append((weight * excess, weight * pushed))
            violation = jnp.max(excess)
        residuals, pushed = zip(*found, strict=True)
        foreseen = Foreseen(jnp.concatenate(residuals), violation)
        return Linearized(foreseen, jnp.concatenate(pushed, 1))

    def check(self, t, state: State, inputs) -> int:
        """Costs and limits of the right shapes; 1 where costs are residuals, 0 for scalars.

        Raises:
            ValueError: for others.
        """
        at = (jnp.asarray(t, state.q.dtype), state.q, state.v, state.w)
        names = ("t", "q", "v", "w", "u")
        cost = call_with_shapes("cost", self.cost, (*at, inputs[0]), names)
        rank = _rank("cost", cost, (0, 1), "a vector of residuals, or a scalar")
        if self.terminal is not None:
            last = call_with_shapes("terminal", self.terminal, at, names[:4])
            wanted = ("a scalar, as cost does", "a vector of residuals, as cost does")[rank]
            _rank("terminal", last, (rank,), wanted)
        if self.limits is not None:
            beyond = call_with_shapes("limits", self.limits, at, names[:4])
            _rank("limits", beyond, (1,), "a vector, negative where a limit is exceeded")
        return rank


def _at_nodes(function: Callable, times, points, moves):
    """Values of `function(t, point)` at all nodes, one after the other, and their derivatives.

    Args:
        function: of shape `(r,)`.
        times: shape `(nodes,)`.
        points: shape `(nodes, n)`.
        moves: of the points along directions, shape `(directions, nodes, n)`.
    """

    def values(points):
        return jax.vmap(function)(times, points).astype(points.dtype).ravel()

    found, along = jax.linearize(values, points)
    return found, jax.vmap(along)(moves)


def _rank(name: str, found, wanted: tuple[int, ...], words: str) -> int:
    rank = getattr(found, "ndim", 0 if isinstance(found, int | float) else -1)
    if rank not in wanted:
        raise ValueError(f"{name} returned {describe_shape(found)}; it must return {words}.")
    return rank
