"""Conditions that an objective averages over: starts, steps and variations."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxdae.checks import are_known, fails
from jaxdae.reprs import Module
from jaxdae.systems import consistent_state, State, System
from jaxdae.systems.calls import check_instance


def _numbers(values: Any) -> Any:
    """One number or several as a tuple of floats."""
    if values is None:
        return None
    if not are_known(values):
        raise TypeError(
            "Conditions: dt decides how many steps are made, and cannot be traced; make the "
            "conditions outside of jit, grad and vmap."
        )
    try:
        numbers = np.ravel(np.asarray(values))
    except (TypeError, ValueError):
        numbers = np.array([None])
    # Texts that read like numbers are none, nor are booleans.
    if numbers.size and numbers.dtype.kind not in "iuf":
        raise TypeError(f"Conditions: dt is one number or several; got {values!r}.")
    return tuple(float(x) for x in numbers)


class Conditions(Module):
    """Steps and variations under which every start is run, all with all.

    Gains that are made for one step are made for that step alone; an objective over several asks
    for gains that serve all of them. A value that is given twice counts twice.

    Args:
        dt: fixed steps [s], a number or several, in place of the objective's `dt`.
        variations: pytree whose arrays have a leading axis of variations, such as masses of several
            payloads; one of them is the second argument of the objective's `build`.

    Raises:
        TypeError: for steps that are not numbers, or are being traced.
        ValueError: for steps that are not finite or none at all, and variations without arrays or
            of different numbers.
    """

    dt: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_numbers)
    variations: PyTree = None

    def __check_init__(self):
        if self.dt is not None and not (self.dt and np.isfinite(self.dt).all()):
            what = "are no values" if not self.dt else f"is one that is not finite: {self.dt}"
            raise ValueError(f"Conditions: of dt there {what}; give times [s].")
        if self.variations is not None:
            _ = self.variation_count

    @property
    def variation_count(self) -> int:
        """Number of variations; 1 without any."""
        if self.variations is None:
            return 1
        arrays = [x for x in jax.tree.leaves(self.variations) if eqx.is_array_like(x)]
        sizes = {jnp.shape(x)[:1] for x in arrays}
        if len(sizes) != 1 or sizes & {(), (0,)}:
            shapes = ", ".join(str(jnp.shape(x)) for x in arrays) or "none"
            raise ValueError(
                "Conditions: arrays of variations need one leading axis of the same length, at "
                f"least 1, as of jnp.array([0.9, 1.0, 1.1]); their shapes are: {shapes}."
            )
        return int(*sizes.pop())

    def variation(self, index) -> PyTree:
        """One of the variations; `index` may be traced."""
        return jax.tree.map(
            lambda x: jnp.asarray(x)[index] if eqx.is_array_like(x) else x, self.variations
        )


class Members(NamedTuple):
    """The batch of an objective: every start under all conditions.

    Args:
        shape: numbers of steps, variations and starts; costs can be reshaped to it.
        dt: fixed step of each member as it was given [s], shape (members,); NaN of adaptive runs.
        variation: number of its variation, shape (members,).
        start: number of its start, shape (members,).
    """

    shape: tuple[int, int, int]
    dt: Float[np.ndarray, " members"]
    variation: Int[np.ndarray, " members"]
    start: Int[np.ndarray, " members"]

    @classmethod
    def of(cls, shape: tuple[int, int, int], dt) -> "Members":
        """All steps with all variations and starts; starts change fastest."""
        step, variation, start = (x.ravel() for x in np.indices(shape))
        return cls(shape, np.array(dt)[step], variation, start)

    def name(self, index: int) -> str:
        """Conditions of a member in words, those that differ among members and its start."""
        steps, variations, _ = self.shape
        parts = [f"dt = {self.dt[index]:g} s"] if steps > 1 else []
        parts += [f"variation {self.variation[index]}"] if variations > 1 else []
        return ", ".join([*parts, f"start {self.start[index]}"])


class Member(NamedTuple):
    """One run of the batch, of arrays that may be traced."""

    start: Int[Array, ""]  # number of its start
    variation: Int[Array, ""]  # number of its variation
    # Ends of its fixed steps, shape (steps + 1,); `None` where all have the same.
    grid: Float[Array, " ends"] | None = None


def ends_of_steps(grids: list[np.ndarray], rows: int = 0) -> np.ndarray:
    """Ends of the steps of several runs, one row each: the last one repeated in shorter ones.

    Repeated ends are steps of no length, which change nothing.
    """
    most = max(rows, *(x.size for x in grids))
    return np.stack([np.pad(x, (0, most - x.size), mode="edge") for x in grids])


def perturbed_states(
    state: State,
    key: Array,
    count: int,
    position: Any = 1e-3,
    velocity: Any = 1e-3,
    *,
    system: System | None = None,
    t: float = 0.0,
) -> State:
    """A batch of normally perturbed starts, off the constraints unless a system is given.

    Off the constraints, as they are after round-off, truncation or an imprecise start, they are
    what stabilization has to work on.

    Args:
        state: the start to perturb.
        key: random key.
        count: number of starts.
        position: standard deviation of the coordinates [m or rad], scalar or (n,).
        velocity: standard deviation of the velocities [m/s or rad/s], scalar or (n,).
        system: if given, every start is projected onto its constraints, as `random_starts` does.
        t: time of the projection [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or a perturbed start cannot be projected.
    """
    states = _drawn("perturbed_states", state, key, count, position, velocity)
    return states if system is None else _projected("perturbed_states", system, states, t)


def random_starts(
    system: System,
    state: State,
    key: Array,
    count: int,
    *,
    position: Any,
    velocity: Any,
    t: float = 0.0,
) -> State:
    """A batch of random starts on the constraints, for draws inside of a `Stochastic` objective.

    Coordinates and velocities are normal around a state, independent of each other, and then moved
    to the nearest consistent state in the mass metric, as `consistent_state` does: what is normal
    is the part along the constraints, to first order. Coordinates that are to be spread over all of
    a circle are drawn by angle instead, and given to `jax.vmap` of `consistent_state`.

    Inside of `jax.jit` a start that cannot be projected is NaN, and a run from it fails.

    Args:
        system: whose constraints the starts are on.
        state: the mean, before the projection.
        key: random key.
        count: number of starts.
        position: standard deviation of the coordinates [m or rad], scalar or (n,).
        velocity: standard deviation of the velocities [m/s or rad/s], scalar or (n,).
        t: time of the starts [s].

    Returns:
        A `State` with leading axis `count`.

    Raises:
        TypeError: for a start that is no `State`, a key that is none, or a count not an integer.
        ValueError: if `count` is not positive, or outside of `jax.jit` a start cannot be projected.
    """
    check_instance("system", system, System, "the system that moves, then the state")
    states = _drawn("random_starts", state, key, count, position, velocity)
    return _projected("random_starts", system, states, t)


def _drawn(caller: str, state: State, key: Array, count: int, position, velocity) -> State:
    """Normally perturbed states, not on the constraints."""
    check_instance("state", state, State, "jaxdae.State(q, v)")
    check_key(key)
    if not isinstance(count, int | np.integer):
        raise TypeError(f"{caller}: count is {count!r}, must be an integer.")
    if count < 1:
        raise ValueError(f"{caller}: count is {count}, must be at least 1.")
    first, second = jax.random.split(key)
    shape = (count, *state.q.shape)
    q = state.q + position * jax.random.normal(first, shape, state.q.dtype)
    v = state.v + velocity * jax.random.normal(second, shape, state.v.dtype)
    w = jnp.broadcast_to(state.w, (count, *state.w.shape))
    return jax.vmap(State)(q, v, w)


def _projected(caller: str, system: System, states: State, t) -> State:
    """The nearest states on the constraints, each of them there where the numbers are known."""
    on = jax.vmap(lambda x: consistent_state(system, x.q, x.v, t, w=x.w))(states)
    good = jnp.isfinite(on.q + on.v).all(axis=1)
    if fails(np.all, good):
        raise ValueError(
            f"{caller}: {np.sum(~good)} of {good.size} starts (the first is number "
            f"{np.argmin(good)}) could not be projected onto the constraints; perturb less, or "
            "take `perturbed_states` without `system` to start off the constraints."
        )
    return on


def check_key(key: Any) -> None:
    """Require one random key of JAX, of the new kind or the old."""
    check_instance("key", key, jax.Array | np.ndarray, "jax.random.key(0)")
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not (key.shape == () if typed else key.dtype == np.uint32 and key.ndim == 1):
        raise TypeError(
            f"key is an array {key.dtype}{list(key.shape)}; give one key, jax.random.key(0)."
        )
