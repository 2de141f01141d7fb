r"""Relative degree of program constraints: after how many derivatives the controls appear.

Along `dx/dt = X(t, x, u)` the constraint `f_i` has relative degree `rho_i` when its derivatives
below the `rho_i`-th do not depend on `u`, and the `rho_i`-th does [Mukharlyamov2019, eqs. 2.6-2.9],
where all are 2 or 3; any number here. Found by differentiation, decided at sample states.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import ArrayLike

from jaxdae.checks import are_known
from jaxdae.compiled import jit
from jaxdae.control.plant import decouple, flow_derivatives, Plant, Program
from jaxdae.formulations import AbstractFormulation
from jaxdae.linalg.rank import numerical_rank
from jaxdae.reprs import shown
from jaxdae.systems import State, System
from jaxdae.systems.calls import call_with_shapes, check_parameters, describe_shape
from jaxdae.systems.checks import check_functions
from jaxdae.systems.precision import in_dtype

# Controls at which the dependence on u is examined: zero, and others to see what is not affine.
_INPUTS = 3
# Neighbours of each sample, at which no entry of a Jacobian is zero by accident.
_NEIGHBOURS = 3


class RelativeDegree(NamedTuple):
    """What `relative_degree` found.

    Args:
        degrees: relative degree of each program constraint.
        matrices: decoupling matrices at the samples, shape `(samples, r, s)`.
    """

    degrees: tuple[int, ...]
    matrices: np.ndarray

    def __repr__(self) -> str:
        return shown(self)


def relative_degree(
    system: System,
    formulation: AbstractFormulation,
    program: Program,
    sample: State,
    t: ArrayLike = 0.0,
    *,
    controls: int,
    names: Sequence[str] = (),
) -> RelativeDegree:
    """Vector relative degree of program constraints, and whether a control can enforce them.

    Args:
        system: the plant.
        formulation: how the plant's own constraints are enforced.
        program: residuals `(t, q, v) -> (r,)`.
        sample: states to decide at: one, or a batch with a leading axis.
        t: their times [s], scalar or one for each.
        controls: number `s` of controls; `u` is a vector of that length.
        names: names of the program constraints, for messages.

    Returns:
        `RelativeDegree`.

    Raises:
        ValueError: when there are fewer controls than constraints; a constraint is out of reach of
            every control; the relative degree differs between samples; the controls do not enter
            affinely; or the decoupling matrix is singular at a sample.
    """
    if not are_known(system, formulation, sample, t):
        raise ValueError(
            "the relative degree is decided by numbers, and these are being traced; find it "
            "outside of jit and grad, and pass degrees=…"
        )
    # As arrays: numbers of another value would be compiled anew.
    system, formulation, program = in_dtype((system, formulation, program), sample.q.dtype)
    plant = Plant(system, formulation, controls)
    ts, states = _batch(sample, t)
    r = check_program(plant, program, ts[0], _row(states, 0))
    names = constraint_names(names, r)
    least = _least_degrees(plant, program, ts, states, names)
    # Beyond the dimension of the state no control can appear.
    largest = ravel_pytree(plant.init(ts[0], _row(states, 0)))[0].size
    degrees = _search(plant, program, ts, states, names, least, largest)
    deviation, matrices = map(np.asarray, _highest(plant, program, degrees, ts, states))
    _check_affine(deviation, degrees, ts, states, names)
    _check_independent(matrices, ts, states, degrees)
    return RelativeDegree(degrees, matrices)


def check_program(plant: Plant, program: Program, t, state: State) -> int:
    """Number `r` of program constraints, after a check of shapes and of the number of controls."""
    s, names = plant.controls, ("t", "q", "v")
    check_parameters("the program", program, names)
    values = (jnp.asarray(t, state.q.dtype), state.q, state.v)
    out = call_with_shapes("the program", program, values, names)
    if len(getattr(out, "shape", ())) != 1 or out.size == 0:
        raise ValueError(
            f"the program returned {describe_shape(out)}; it must return the residuals of its "
            "constraints as a vector: jnp.stack([...])."
        )
    if s < out.size:
        raise ValueError(
            f"{out.size} program constraints need at least as many controls, but controls = {s}; "
            "drop a constraint, or add an actuator."
        )
    u = jax.ShapeDtypeStruct((s,), state.q.dtype)
    check_functions(plant.system, state, u, t)
    plant.formulation.check(plant.system, state)
    return out.size


def constraint_names(names: Sequence[str], r: int) -> tuple[str, ...]:
    """The given names, the rest numbered."""
    return tuple(names[i] if i < len(names) else f"f{i + 1}" for i in range(r))


def _batch(sample: State, t) -> tuple[jax.Array, State]:
    if sample.q.ndim == 1:
        sample = jax.tree.map(lambda x: x[None], sample)
    ts = jnp.broadcast_to(jnp.asarray(t, sample.q.dtype), sample.q.shape[:1])
    return ts, sample


def _row(states: State, j: int) -> State:
    return jax.tree.map(lambda x: x[j], states)


def _inputs(plant: Plant, dtype) -> jax.Array:
    """Zero and random controls, shape `(inputs, s)`."""
    random = jax.random.normal(jax.random.key(0), (_INPUTS - 1, plant.controls), dtype)
    return jnp.concatenate([jnp.zeros((1, plant.controls), dtype), random])


def _flat(plant: Plant, program: Program, order: int, t, state: State):
    """State, rate `(x, u)` and highest uncontrolled derivative `(x)` of flat vectors."""
    x, unravel = ravel_pytree(plant.init(t, state))

    def rate(x, u):
        return ravel_pytree(plant.rate(t, unravel(x), u))[0]

    def top(x):
        return flow_derivatives(plant, program, order)(t, unravel(x))[-1]

    return x, rate, top


@jit
def _patterns(plant: Plant, program: Program, ts, states):
    """Largest entries of dX/dx, dX/du and df/dx over states near the samples."""

    def at(t, state, key):
        x, rate, top = _flat(plant, program, 1, t, state)
        x = x + 0.1 * (1 + jnp.abs(x)) * jax.random.normal(key, x.shape, x.dtype)
        u = jax.random.normal(key, (plant.controls,), x.dtype)
        return jax.jacfwd(rate)(x, u), jax.jacfwd(rate, 1)(x, u), jax.jacfwd(top)(x)

    def near(t, state):
        keys = jax.random.split(jax.random.key(0), _NEIGHBOURS)
        return jax.vmap(at, (None, None, 0))(t, state, keys)

    return jax.tree.map(lambda x: jnp.abs(x).max((0, 1)), jax.vmap(near)(ts, states))


def _least_degrees(plant, program, ts, states, names) -> list[int]:
    """Lengths of the shortest chains of dependences from a control to each constraint.

    No derivative below that order can depend on a control, so none of them needs to be formed.
    """
    patterns = _patterns(plant, program, ts, states)
    # Not finite somewhere near: say that there may be a dependence.
    a, b, c = (np.nan_to_num(np.asarray(x), nan=1.0) != 0 for x in patterns)
    reached, least = b.any(axis=1), [0] * len(names)
    for order in range(1, reached.size + 1):
        for i, row in enumerate(c):
            least[i] = least[i] or (order if (row & reached).any() else 0)
        reached = reached | (a & reached).any(axis=1)
    if 0 in least:
        raise ValueError(_uncontrollable(names[least.index(0)], reached.size))
    return least


def _uncontrollable(name: str, order: int) -> str:
    return (
        f"program constraint {name!r} is uncontrollable: no control appears in its derivatives up "
        f"to order {order}, the dimension of the state. Check where force and actuator_rate use u, "
        "or choose a constraint that the actuators act upon."
    )


@jit
def _dependence(plant: Plant, program: Program, order: int, ts, states):
    """Whether the `order`-th derivative of each constraint depends on u, shape `(samples, r)`.

    An entry of `df/dx dX/du` counts as zero when it is at round-off of the sum of the sizes of its
    terms, which have the same unit each.
    """
    eps = jnp.finfo(ts.dtype).eps

    def at(t, state):
        x, rate, top = _flat(plant, program, order, t, state)
        gradient = jax.jacfwd(top)(x)

        def dependent(u):
            push = jax.jacfwd(rate, 1)(x, u)
            size = jnp.maximum(jnp.abs(push).max(), jnp.abs(rate(x, u)).max())
            push = jnp.where(jnp.abs(push) > 64 * eps * size, push, 0.0)
            scale = jnp.abs(gradient) @ jnp.abs(push)
            return (jnp.abs(gradient @ push) > jnp.sqrt(eps) * scale).any(axis=1)

        return jax.vmap(dependent)(_inputs(plant, x.dtype)).any(axis=0)

    return jax.vmap(at)(ts, states)


def _search(plant, program, ts, states, names, least, limit: int) -> tuple[int, ...]:
    degrees: dict[int, int] = {}
    for order in range(min(least), limit + 1):
        if not any(least[i] <= order for i in range(len(names)) if i not in degrees):
            continue
        result = np.asarray(_dependence(plant, program, order, ts, states))
        for i, name in enumerate(names):
            if i in degrees or not result[:, i].any():
                continue
            if not result[:, i].all():
                j = int(np.argmin(result[:, i]))
                raise ValueError(
                    f"the relative degree of program constraint {name!r} is not constant: the "
                    f"controls appear in its derivative of order {order}, but not at "
                    f"{_place(ts, states, j)}. That state is singular for this program; keep away "
                    "from it, or leave it out of the samples."
                )
            degrees[i] = order
        if len(degrees) == len(names):
            return tuple(degrees[i] for i in range(len(names)))
    missing = next(i for i in range(len(names)) if i not in degrees)
    raise ValueError(_uncontrollable(names[missing], limit))


@jit
def _highest(plant: Plant, program: Program, degrees: tuple[int, ...], ts, states):
    """Deviation of the highest derivatives from affine in u, relative, and decoupling matrices."""

    def at(t, state):
        d = decouple(plant, program, degrees, t, state)
        x = plant.init(t, state)
        levels = flow_derivatives(plant, program, max(degrees))

        def deviation(u):
            rates = jax.jvp(levels, (t, x), (jnp.ones_like(t), plant.rate(t, x, u)))[1]
            exact = jnp.stack([rates[rho - 1][i] for i, rho in enumerate(degrees)])
            size = jnp.abs(d.drift) + jnp.abs(exact) + jnp.abs(d.matrix) @ jnp.abs(u)
            return jnp.abs(exact - d.drift - d.matrix @ u) / jnp.maximum(
                size, jnp.finfo(t.dtype).tiny
            )

        return jax.vmap(deviation)(_inputs(plant, t.dtype)).max(axis=0), d.matrix

    return jax.vmap(at)(ts, states)


def _check_affine(deviation: np.ndarray, degrees, ts, states, names) -> None:
    # Round-off of a derivative of order rho grows with rho; half the digits are beyond any of it.
    if not (deviation <= np.sqrt(np.finfo(deviation.dtype).eps)).all():
        j, i = np.unravel_index(np.argmax(deviation), deviation.shape)
        raise ValueError(
            f"the controls do not enter affinely: the derivative of order {degrees[i]} of program "
            f"constraint {names[i]!r} deviates by {deviation[j, i]:.2g} of its size from drift + "
            f"matrix u at {_place(ts, states, int(j))}. Make the nonlinear input an actuator state "
            "whose rate is the control."
        )


def _check_independent(matrices, ts, states, degrees) -> None:
    for j, matrix in enumerate(matrices):
        result = numerical_rank(matrix, float(np.sqrt(np.finfo(matrix.dtype).eps)))
        if result.rank < matrix.shape[0]:
            raise ValueError(
                f"the decoupling matrix is singular at {_place(ts, states, j)}: rank {result.rank} "
                f"of {matrix.shape[0]} for relative degrees {degrees}. The controls move these "
                "constraints only together; delay the control that appears first by an actuator "
                "state (dynamic extension), or choose other constraints."
            )


def _place(ts, states: State, j: int) -> str:
    state = _row(states, j)
    return describe_place(ts[j], state)


def describe_place(t, state: State) -> str:
    """Time and state in words."""
    parts = [
        f"{name} = {_numbers(x)}" for name, x in (("q", state.q), ("v", state.v), ("w", state.w))
    ]
    return f"t = {float(t):.6g} s, " + ", ".join(parts[: 3 if state.w.size else 2])


def _numbers(x) -> str:
    return "[" + ", ".join(f"{value:.6g}" for value in np.asarray(x)) + "]"
