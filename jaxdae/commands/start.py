"""The state that a command starts from: the model's, with values that are given by name."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.models import AbstractModel, Model
from jaxdae.systems import ConsistencyError, consistent_state, Labels, State

# Beside the model's own start.
_GUESSES = 8


def chosen_start(
    model: Model, system: AbstractModel, given: dict[str, float] | None, dtype
) -> State:
    """Where a run starts: where the model does, changed as little as the given values need.

    Args:
        model: entry of the registry.
        system: what it built.
        given: values of coordinates, of velocities as `d(NAME)/dt`, and of actuator states, which
            hold exactly; others give way so that the constraints hold. `None` for none.
        dtype: of the numbers.

    Raises:
        ValueError: for a name that nothing has, and for values that no consistent state has.
    """
    start = State(*system.start(), system.actuators())
    start = start if model.departure is None else model.departure(start)
    if given:
        start = _consistent(system, start, given)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), start)


def _consistent(system: AbstractModel, start: State, given: dict[str, float]) -> State:
    names = _names(system.labels(), start)
    unknown = [name for name in given if name not in names["q"] + names["v"] + names["w"]]
    if unknown:
        coordinates, actuators = ", ".join(names["q"]), ", ".join(names["w"])
        also = f", or an actuator state: {actuators}" * bool(actuators)
        raise ValueError(
            f"--start: nothing is named {unknown[0]!r}; give a coordinate: {coordinates}; a "
            f"velocity, such as '{names['v'][0]}'{also}."
        )
    changed = {x: _changed(getattr(start, x), names[x], given) for x in names}
    placed, thrown = ([i for i, name in enumerate(names[x]) if name in given] for x in ("q", "v"))
    failures: list[ConsistencyError] = []
    for q in _guesses(changed["q"], placed):
        try:
            # What is held is held at both levels: coordinates come first, by themselves.
            q = consistent_state(system, q, start.v, fixed=placed).q
            return consistent_state(system, q, changed["v"], w=changed["w"], fixed=thrown)
        except ConsistencyError as error:
            failures.append(error)
    values = ", ".join(f"{name} = {x:g}" for name, x in given.items())
    # What it advises are arguments of the function, not options of the command.
    finding, _, _ = str(failures[0]).partition(". The coordinates")
    raise ValueError(
        f"--start: the values {values} do not fit the constraints near the model's start: "
        f"{finding}. Give other values, or fewer."
    ) from failures[0]


def _guesses(q: np.ndarray, held: list[int]) -> Iterator[np.ndarray]:
    """A guess and others about it: at the first, constraints may not depend on what is free."""
    yield q
    rng, size = np.random.default_rng(0), 0.1 * (1.0 + np.max(np.abs(q)))
    for _ in range(_GUESSES):
        nudge = size * rng.normal(size=q.size)
        nudge[held] = 0.0
        yield q + nudge


def _names(labels: Labels, start: State) -> dict[str, list[str]]:
    """Names of coordinates, velocities and actuator states, as pictures have them."""
    coordinates = [labels.coordinate(i) for i in range(start.q.size)]
    numbered = [f"w{i + 1}" for i in range(start.w.size)]
    actuators = [*labels.actuators, *numbered[len(labels.actuators) :]]
    return {"q": coordinates, "v": [f"d({x})/dt" for x in coordinates], "w": actuators}


def _changed(values, names: list[str], given: dict[str, float]) -> np.ndarray:
    pairs = zip(names, np.asarray(values), strict=True)
    return np.array([given.get(name, x) for name, x in pairs], np.float64)
