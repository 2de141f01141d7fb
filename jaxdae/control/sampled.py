"""Controllers as computers run them: asked at samples, their output held, perhaps late."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.checks import are_known, fails
from jaxdae.control.base import AbstractHybridController
from jaxdae.formulations.gains import is_number
from jaxdae.solvers.clocks import Listed, Multiples, time_tolerance
from jaxdae.systems.calls import check_parameters


class Sampled(AbstractHybridController):
    r"""A digital controller: a policy that is asked at samples, with a memory that it keeps.

        u_k, m_k = policy(t_k, q, v, w, m_{k-1})        at t_k = k period,
        u(t) = u_k                                      from t_k + delay to t_{k+1} + delay

    The policy is asked at the start of the run, too; with a delay, or at given times, only if the
    start is a sample. Until the first output takes effect, the control input is `initial`. Steps
    end at the samples and where outputs take effect, for all solvers, fixed and adaptive; a row
    there has what holds behind it. The output, those on their way and the memory are the last
    columns of `Trajectory.w`.

    Sensors are between the motion and the policy: with `measure` it is asked
    `policy(t_k, measure(t_k, q, v, w), m_{k-1})`. With `noise`, one row for each sample from the
    start of the run on, `measure(t_k, q, v, w, noise[k])`: drawn before the run, the same numbers
    on both backends, and each member of a batch its own by its key. A run of more samples than rows
    ends as one that is not finite.

    Args:
        policy: `policy(t, q, v, w, memory) -> (u, memory)`; an `eqx.Module` if it has weights.
        period: of samples [s], or their times [s], increasing, shape (samples,).
        memory: what the first sample is given, any pytree of numbers and arrays; by default the
            `memory` of a policy that has one, else `()`. Integers and booleans are kept as
            floating-point numbers, exactly up to `2^53` in double precision and `2^24` in single
            precision; what begins as an integer stays one.
        delay: from a sample to where its output takes effect [s]; of any length.
        measure: what the policy is given in place of `q, v, w`.
        noise: an array of as many rows as samples, or a pytree of such arrays.
        initial: control input until the first output takes effect, of the output's shape, or a
            number for all of it.
        pending: outputs that may be on their way at once; by default as many as `delay` asks for,
            and one where a delay or a period is known only when the program runs.

    Raises:
        TypeError: for a memory that is not numbers and arrays.
        ValueError: for a policy that takes other arguments, or is made for another `period`, and
            for a period, a delay or a number of `pending` outputs that cannot be.
    """

    policy: Callable
    period: Any
    memory: Any
    delay: Any
    measure: Callable | None
    noise: Any
    initial_output: Any
    pending: int = eqx.field(static=True)

    def __init__(
        self,
        policy: Callable,
        period,
        *,
        memory: Any = None,
        delay: Any = 0.0,
        measure: Callable | None = None,
        noise: Any = None,
        initial: Any = 0.0,
        pending: int | None = None,
    ):
        names = ("t", "q", "v", "w", "memory") if measure is None else ("t", "y", "memory")
        check_parameters("the policy", policy, names)
        if measure is not None:
            more = () if noise is None else ("noise",)
            check_parameters("the function measure", measure, ("t", "q", "v", "w", *more))
        elif noise is not None:
            raise ValueError(
                "noise is what measure(t, q, v, w, noise) is given; give measure, too."
            )
        memory = getattr(policy, "memory", ()) if memory is None else memory
        _check_memory_kinds(memory)
        _check_own_period(policy, period)
        self.policy, self.period, self.memory = policy, period, memory
        self.delay, self.measure, self.noise, self.initial_output = delay, measure, noise, initial
        _check_pending(pending, delay)
        self.pending = _most_pending(period, delay) if pending is None else pending

    @property
    def takes_rates(self) -> bool:
        """Whether its policy is one for velocities that need not be rates of coordinates."""
        return getattr(self.policy, "takes_rates", True)

    def prepared(self, t, state):
        """Without the memory of the start, which is in the state: what it is, is enough."""
        del t
        memory = jax.tree.map(lambda x: _Kind(_shape_in(x, state.q.dtype)), self.memory)
        return eqx.tree_at(lambda x: x.memory, self, memory)

    @property
    def clocks(self):
        listed = jnp.ndim(self.period) > 0
        kind: Any = Listed if listed else Multiples
        asked = kind(self.period)
        return (asked, kind(self.period, self.delay)) if self._is_late else (asked,)

    def initial(self, t, state):
        layout = self._layout(t, state.q, state.v, state.w)
        t = jnp.asarray(t, layout.dtype)
        held = jnp.broadcast_to(
            jnp.asarray(self.initial_output, layout.dtype).ravel(), (layout.output,)
        )
        kept = _PackedMemory(
            held,
            jnp.broadcast_to(held, (self.pending, layout.output)),
            jnp.full(self.pending, t),
            jnp.zeros((), layout.dtype),
            layout.flat(self.memory),
        )
        asked = self._asked(t, state.q, state.v, state.w, kept, layout)
        clock, *_ = self.clocks
        if isinstance(clock, Multiples) and not self._is_late:
            return asked.packed()
        due = clock.is_due(t)
        return jnp.where(due, self._taken(t, asked).packed(), kept.packed())

    def renew(self, t, q, v, w, c):
        layout = self._layout(t, q, v, w)
        kept = layout.unpacked(c, self.pending)
        kept = self._taken(t, kept)
        # A delay that turns out to be zero lets an output take effect at its own sample.
        asked = self._taken(t, self._asked(t, q, v, w, kept, layout))
        clock, *_ = self.clocks
        return jnp.where(clock.is_due(t), asked.packed(), kept.packed())

    def moving(self, t, state):
        del t, state
        return 0

    def rate(self, t, q, v, w, c):
        del t, q, v, w
        return jnp.zeros_like(c)

    def output(self, t, q, v, w, c):
        layout = self._layout(t, q, v, w)
        return layout.unravel(c[: layout.output])

    @property
    def _is_late(self) -> bool:
        return self.pending > 0

    def _taken(self, t, kept: "_PackedMemory") -> "_PackedMemory":
        """With the output held that is due, the latest of those on their way."""
        held, tolerance = kept.output, time_tolerance(t, jnp.asarray(self.delay, t.dtype))
        for output, due in zip(kept.outputs[::-1], kept.dues[::-1], strict=True):
            held = jnp.where(due <= t + tolerance, output, held)
        return kept._replace(output=held)

    def _asked(self, t, q, v, w, kept: "_PackedMemory", layout: "_Layout") -> "_PackedMemory":
        """What is kept after a sample."""
        output, memory = self._policy(t, q, v, w, layout.memory_of(kept.memory), kept.count)
        output, memory = layout.flat_output(output), layout.flat(memory)
        following = kept._replace(count=kept.count + 1, memory=memory)
        if not self._is_late:
            return following._replace(output=output)
        # One that is pushed out before it took effect was one too many to be kept.
        tolerance = time_tolerance(t, jnp.asarray(self.delay, t.dtype))
        lost = kept.dues[-1] > t + tolerance
        output = jnp.where(lost, jnp.nan, output)
        outputs = jnp.concatenate([output[None], kept.outputs[:-1]])
        dues = jnp.concatenate([(t + jnp.asarray(self.delay, t.dtype))[None], kept.dues[:-1]])
        return following._replace(outputs=outputs, dues=dues)

    def _policy(self, t, q, v, w, memory, count):
        if self.measure is None:
            return self.policy(t, q, v, w, memory)
        if self.noise is None:
            return self.policy(t, self.measure(t, q, v, w), memory)
        noise = jax.tree.map(lambda x: _row(x, count), self.noise)
        return self.policy(t, self.measure(t, q, v, w, noise), memory)

    def _layout(self, t, q, v, w) -> "_Layout":
        """What the policy gives, and how it is kept as one vector.

        Raises:
            ValueError: for one that gives something else, or changes the shape of its memory.
        """
        dtype = q.dtype
        t, count = jnp.asarray(t, dtype), jnp.zeros((), dtype)
        memory = jax.tree.map(lambda x: _shape_in(x, dtype), self.memory)
        found = eqx.filter_eval_shape(self._policy, t, q, v, w, memory, count)
        if not isinstance(found, tuple) or len(found) != 2:
            raise ValueError(
                "the policy of Sampled must return (u, memory), a pair; (u, ()) where it has no "
                "memory."
            )
        output, after = found
        for one in jax.tree.leaves(output):
            if not hasattr(one, "shape"):
                raise ValueError(
                    f"the policy of Sampled returned {one!r} in its output; it must be arrays."
                )
        _check_same(memory, after)
        return _Layout(dtype, output, memory)


class _PackedMemory(eqx.Module):
    """What a digital controller keeps.

    Args:
        output: that is held.
        outputs: those on their way, the newest first.
        dues: when they take effect [s].
        count: of samples.
        memory: of the policy, as one vector.
    """

    output: Any
    outputs: Any
    dues: Any
    count: Any
    memory: Any

    def packed(self):
        """All of it as one vector."""
        parts = (self.output, self.outputs, self.dues, self.count, self.memory)
        return jnp.concatenate([jnp.ravel(x) for x in parts])

    def _replace(self, **changes) -> "_PackedMemory":
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _PackedMemory(**{**parts, **changes})


class _Layout:
    """How output and memory of a policy become one vector.

    Args:
        dtype: of the vector.
        output: shapes of the output.
        memory: shapes of the memory.
    """

    def __init__(self, dtype, output, memory):
        self.dtype, self._memory = dtype, memory
        shapes = jax.tree.map(lambda x: jnp.zeros(x.shape, dtype), output)
        flat, self.unravel = _zeros_unravel(shapes)
        self.output = flat

    def flat_output(self, output):
        """An output as one vector."""
        return _flat(output, self.dtype)

    def flat(self, memory):
        """A memory as one vector."""
        return _flat(memory, self.dtype)

    def memory_of(self, vector):
        """The memory that a vector holds."""
        leaves, structure = jax.tree.flatten(self._memory)
        found, at = [], 0
        for one in leaves:
            part = vector[at : at + one.size].reshape(one.shape)
            found.append(_as_kind(part, one.dtype))
            at += one.size
        return jax.tree.unflatten(structure, found)

    def unpacked(self, c, pending: int) -> _PackedMemory:
        """What a vector holds."""
        sizes = np.cumsum([self.output, self.output * pending, pending, 1])
        output, outputs, dues, count, memory = jnp.split(c, sizes)
        return _PackedMemory(output, outputs.reshape(pending, self.output), dues, count[0], memory)


def _zeros_unravel(shapes):
    flat, unravel = ravel_pytree(shapes)
    return flat.size, unravel


def _flat(tree, dtype):
    parts = [jnp.ravel(jnp.asarray(x)).astype(dtype) for x in jax.tree.leaves(tree)]
    return jnp.concatenate(parts) if parts else jnp.zeros(0, dtype)


class _Kind:
    """What a leaf of a memory is, which JAX does not take for an array.

    Solvers that close over their arguments would.
    """

    def __init__(self, shape: jax.ShapeDtypeStruct):
        self.shape, self.dtype = shape.shape, shape.dtype

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Kind)
        return same and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


def _shape_in(x, dtype) -> jax.ShapeDtypeStruct:
    """What a leaf of a memory is; floating-point numbers are of the precision of the run."""
    kind = jnp.result_type(x.dtype if hasattr(x, "dtype") else x)
    kind = dtype if jnp.issubdtype(kind, jnp.floating) else kind
    return jax.ShapeDtypeStruct(x.shape if hasattr(x, "shape") else jnp.shape(x), kind)


def _as_kind(x, dtype):
    """Numbers that were kept as floating-point ones, as what they are."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return x != 0
    return x if jnp.issubdtype(dtype, jnp.floating) else jnp.round(x).astype(dtype)


def _row(rows, count):
    """The row of a count, not a number behind the last one."""
    last = rows.shape[0] - 1
    row = rows[jnp.clip(count, 0, last).astype(int)]
    return jnp.where(count <= last, row, jnp.nan)


def _most_pending(period, delay) -> int:
    """How many outputs are on their way at once."""
    if not are_known(delay):
        return 1
    delay = np.asarray(delay, float)
    if delay.ndim or not 0 <= delay < np.inf:
        raise ValueError(
            f"the delay of Sampled must be zero or a positive number of seconds; got {delay}."
        )
    if delay == 0:
        return 0
    if not are_known(period):
        return 1
    period = np.asarray(period, float)
    if period.ndim:
        # An output that takes effect at a sample makes room for that one.
        behind = np.searchsorted(period, period + delay * (1 - 1e-12), side="left")
        return max(int(np.max(behind - np.arange(period.size), initial=1)), 1)
    ratio = delay / period
    return int(np.ceil(ratio * (1 - 1e-12))) if 0 < ratio < np.inf else 1


def _check_pending(pending, delay) -> None:
    if pending is None:
        return
    integral = isinstance(pending, int | np.integer) and not isinstance(pending, bool)
    if not integral or pending < 0 or (pending == 0 and not _is_none(delay)):
        raise ValueError(
            f"pending is {pending!r}: it must be how many outputs may be on their way at once, an "
            "integer, one at least where there is a delay."
        )


def _is_none(delay) -> bool:
    """Whether it is known that there is no delay."""
    return are_known(delay) and not np.any(delay)


def _check_own_period(policy, period) -> None:
    """Refuse a policy that is made for one period, as `DigitalPID` is, at another one."""
    own = getattr(policy, "period", None)
    # Also a parametrization while it is tuned.
    if not (is_number(own) and is_number(period)):
        return

    def agree(own, period):
        steps = np.diff(period) if np.ndim(period) else period
        # A period in single precision is the same one.
        return np.allclose(steps, own, rtol=1e-6, atol=0)

    if fails(agree, own, period):
        raise ValueError(
            f"the policy {type(policy).__name__} is made for samples every {own} s; it would be "
            f"asked with the period {period}. Give both the same one."
        )


def _check_memory_kinds(memory) -> None:
    for one in jax.tree.leaves(memory):
        dtype = getattr(one, "dtype", None)
        number = isinstance(one, bool | int | float) or (
            dtype is not None
            and any(jnp.issubdtype(dtype, x) for x in (jnp.floating, jnp.integer, jnp.bool_))
        )
        if not number:
            raise TypeError(
                f"the memory of Sampled has {one!r} in it; it must be numbers and arrays, no "
                "complex ones and no keys: noise is drawn before the run, noise=…."
            )


def _check_same(before, after) -> None:
    """A memory that keeps its structure and shapes."""
    old, new = jax.tree.structure(before), jax.tree.structure(after)
    if old != new:
        raise ValueError(
            f"the policy of Sampled was given a memory {old} and returned {new}; a memory keeps "
            "its structure. The first one is Sampled(…, memory=…)."
        )
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        shape = jnp.shape(other)
        if shape != one.shape:
            raise ValueError(
                f"the policy of Sampled was given a memory of shape {one.shape} and returned "
                f"{shape}; a memory keeps its shape."
            )
        rounded = jnp.issubdtype(jnp.result_type(other), jnp.floating)
        if rounded and not jnp.issubdtype(one.dtype, jnp.floating):
            raise ValueError(
                f"the policy of Sampled was given a memory of {one.dtype} and returned one of "
                f"{jnp.result_type(other)}, which would be rounded; begin with a floating-point "
                "number, such as 0.0."
            )
