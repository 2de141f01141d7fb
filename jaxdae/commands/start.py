"""The state that a command starts from: the model's, with values that are given by name."""

import difflib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.models import AbstractModel, Model
from jaxdae.systems import constraint_residuals, Labels, State

# Points about the start from which a consistent one is looked for, beside it.
_GUESSES = 8
# How far it may be from it, in units of its size: beyond, a constraint that hardly depends on what
# is free, as at a dead centre, would be met by absurd velocities.
_REACH = 1e3


def chosen_start(
    model: Model, system: AbstractModel, given: dict[str, float] | None, dtype
) -> State:
    """Where the model starts, with the given values, which hold exactly, made consistent."""
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
    # What is held is held at both levels: coordinates come first, by themselves.
    q = _consistent_part(system, changed["q"], placed, given)
    v = _consistent_part(system, changed["v"], thrown, given, q)
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


def _consistent_part(
    system: AbstractModel,
    x: np.ndarray,
    held: list[int],
    given: dict[str, float],
    q: np.ndarray | None = None,
) -> np.ndarray:
    """Coordinates that meet the constraints; velocities where these are given."""
    t = jnp.zeros(())
    constraint: Callable = lambda q: system.position_constraints(t, q)  # noqa: E731
    if q is not None:
        constraint = lambda v: constraint_residuals(system, t, q, v).phi_dot  # noqa: E731
    found, left, allowed = near(constraint, x, held)
    if (np.abs(left) <= allowed).all():
        return found
    sizes = np.where(np.isfinite(left), np.abs(left), np.inf)
    worst, level = int(np.argmax(sizes)), "position" if q is None else "velocity"
    values = ", ".join(f"{name} = {value:g}" for name, value in given.items())
    raise ValueError(
        f"--start: the values {values} do not fit the constraints near the model's start: "
        f"constraint {system.labels().constraint(worst)!r} fails at {level} level by at least "
        f"{sizes[worst]:.3g} (allowed {allowed:.1g}). Give other values, or fewer."
    )


def near(
    function: Callable, start: np.ndarray, held: list[int]
) -> tuple[np.ndarray, np.ndarray, float]:
    """A point near to a start with `function(x) = 0`, by least squares, some entries held.

    Also what is left of the function there, and how much a consistent state may leave.
    """
    # Loaded for this alone: SciPy's optimizers take as long to load as this takes.
    from scipy import optimize

    free, size = np.setdiff1d(np.arange(start.size), held), float(np.abs(start).max())
    value, jacobian = jax.jit(function), jax.jit(jax.jacfwd(function))
    eps = float(np.finfo(np.asarray(value(start)).dtype).eps)
    first, reach = start[free], _REACH * (1.0 + size)

    def full(x):
        result = start.copy()
        result[free] = x
        return result

    def residuals(x):
        return np.asarray(value(full(x)), np.float64)

    def slope(x):
        return np.asarray(jacobian(full(x)), np.float64)[:, free]

    def allowed(x):
        return eps ** (2 / 3) * (1.0 + float(np.abs(full(x)).max()))

    def met(x):
        return bool((np.abs(residuals(x)) <= allowed(x)).all())

    def solved(x):
        # The gradient's size is no end: where the values that are held are the last that the
        # constraints allow, as y = -1 on a circle, it is tiny before that is reached.
        ends: Any = {"ftol": 2.3e-16, "xtol": 2.3e-16, "gtol": None, "max_nfev": 200}
        ends |= {"jac": slope, "bounds": (first - reach, first + reach)}
        with np.errstate(invalid="ignore", divide="ignore"):  # of derivatives that are zero
            return optimize.least_squares(residuals, x, **ends).x

    ends = [first]
    if free.size and not met(first):
        # From others about the start, too: there constraints may not depend on what is free.
        noise = np.random.default_rng(0).normal(size=(_GUESSES, free.size))
        guesses = [first, *(first + 0.1 * (1.0 + size) * noise)]
        ends = [solved(x) for x in guesses if np.isfinite(residuals(x)).all()] or ends
    points = [x for x in ends if met(x)]
    if points:
        x = min(points, key=lambda x: float(np.linalg.norm(x - first)))
    else:
        x = min(ends, key=lambda x: float(np.linalg.norm(residuals(x))))
    return full(x), residuals(x), allowed(x)


def _names(labels: Labels, start: State) -> dict[str, list[str]]:
    """Names of coordinates, velocities and actuator states, as pictures have them."""
    coordinates = [labels.coordinate(i) for i in range(start.q.size)]
    numbered = [f"w{i + 1}" for i in range(start.w.size)]
    actuators = [*labels.actuators, *numbered[len(labels.actuators) :]]
    return {"q": coordinates, "v": [f"d({x})/dt" for x in coordinates], "w": actuators}


def _changed(values, names: list[str], given: dict[str, float]) -> np.ndarray:
    pairs = zip(names, np.asarray(values), strict=True)
    return np.array([given.get(name, x) for name, x in pairs], np.float64)
