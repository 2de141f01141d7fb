"""The state that a command starts from: the model's, with values that are given by name."""

import difflib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.models import AbstractModel, Model
from jaxdae.systems import constraint_residuals, Labels, State
from jaxdae.systems.dynamics import mass_and_jacobian


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
    _refuse_unknown(names, given)
    changed = {x: _changed(getattr(start, x), names[x], given) for x in names}
    placed, thrown = ([i for i, name in enumerate(names[x]) if name in given] for x in ("q", "v"))
    metric = np.asarray(mass_and_jacobian(system, _now(), start.q, start.v)[0], np.float64)
    # What is held is held at both levels: coordinates come first, by themselves.
    q = _nearest(system, metric, changed["q"], placed, given)
    v = _nearest(system, metric, changed["v"], thrown, given, q)
    return State(q, v, changed["w"])


def _refuse_unknown(names: dict[str, list[str]], given: dict[str, float]) -> None:
    every = names["q"] + names["v"] + names["w"]
    unknown = [name for name in given if name not in every]
    if not unknown:
        return
    close = difflib.get_close_matches(unknown[0], every, n=1)
    meant = f" Did you mean {close[0]!r}?" if close else ""
    coordinates, actuators = ", ".join(names["q"]), ", ".join(names["w"])
    also = f"; or an actuator state: {actuators}" * bool(actuators)
    raise ValueError(
        f"--start: nothing is named {unknown[0]!r}.{meant} Give a coordinate: {coordinates}; the "
        f"velocity of one, such as '{names['v'][0]}'{also}."
    )


def _now() -> jax.Array:
    return jnp.zeros(())


def _nearest(
    system: AbstractModel,
    metric: np.ndarray,
    x: np.ndarray,
    held: list[int],
    given: dict[str, float],
    q: np.ndarray | None = None,
) -> np.ndarray:
    """The nearest coordinates that meet the constraints; velocities where these are given."""
    # Loaded for this alone: SciPy's optimizers take as long to load as this takes.
    from jaxdae.commands.nearest import nearest

    constraint: Callable = lambda q: system.position_constraints(_now(), q)  # noqa: E731
    if q is not None:
        constraint = lambda v: constraint_residuals(system, _now(), q, v).phi_dot  # noqa: E731
    result = nearest(constraint, metric, x, held)
    if result.there:
        return result.x
    sizes = np.where(np.isfinite(result.left), np.abs(result.left), np.inf)
    worst, level = int(np.argmax(sizes)), "position" if q is None else "velocity"
    values = ", ".join(f"{name} = {value:g}" for name, value in given.items())
    raise ValueError(
        f"--start: the values {values} do not fit the constraints near the model's start: "
        f"constraint {system.labels().constraint(worst)!r} fails at {level} level by at least "
        f"{sizes[worst]:.3g} (allowed {result.allowed:.1g}). Give other values, or fewer."
    )


def _names(labels: Labels, start: State) -> dict[str, list[str]]:
    """Names of coordinates, velocities and actuator states, as pictures have them."""
    coordinates = [labels.coordinate(i) for i in range(start.q.size)]
    numbered = [f"w{i + 1}" for i in range(start.w.size)]
    actuators = [*labels.actuators, *numbered[len(labels.actuators) :]]
    return {"q": coordinates, "v": [f"d({x})/dt" for x in coordinates], "w": actuators}


def _changed(values, names: list[str], given: dict[str, float]) -> np.ndarray:
    pairs = zip(names, np.asarray(values), strict=True)
    return np.array([given.get(name, x) for name, x in pairs], np.float64)
