"""What a system looks like along a run, as arrays and words that outlive its class."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.results import readings
from jaxdae.systems import Points
from jaxdae.systems.kinematics import along_motion

# Numbers of all positions and rates together: half a gigabyte.
_MOST_VALUES = 2**26
_JOINED = ("links", "lines", "bodies")
_NAMED = ("trace", "fixed")


class Drawing(NamedTuple):
    """Positions of points and corners of outlines at the rows of a run, one behind the other.

    Args:
        places: shape `(*batch, times, k, d)` [m].
        rates: their velocities, of the same shape.
        words: their names, how many corners an outline has, and what is joined, as JSON has it.
    """

    places: np.ndarray
    rates: np.ndarray
    words: dict[str, Any]


def drawing_of(run: Any) -> Drawing | None:
    """The drawing of a run at its saved rows; `None` where its system declares none.

    Args:
        run: a `Trajectory` of saved states, batches included.

    Warns:
        RuntimeWarning: where `System.points` fails, or positions would fill too much of memory.
    """
    try:
        points, rates = jax.device_get(readings.at_rows(run, _points_and_rates))
    except Exception as error:  # of a user's method, after a run that may have taken hours
        name = type(run.system).__name__
        _warn(f"{name}.points failed ({type(error).__name__}: {error})")
        return None
    if points is None:
        return None
    if not isinstance(points, Points):
        _warn(f"{type(run.system).__name__}.points returned {type(points).__name__}")
        return None
    values = 2 * sum(np.size(x) for x in jax.tree.leaves(points))
    if values > _MOST_VALUES:
        _warn(f"positions and their rates are {values} numbers, more than {_MOST_VALUES}")
        return None
    rows = run.ts.ndim
    return Drawing(_joined(points, rows), _joined(rates, rows), _words(points))


def _warn(reason: str) -> None:
    warnings.warn(
        f"{reason}: the run is stored without a drawing of its mechanism; draw it with "
        "run.with_system(system).",
        RuntimeWarning,
        stacklevel=2,
    )


def _points_and_rates(run: Any, t, y):
    """Positions and their velocities, as two trees of one structure; `(None, None)` for none."""
    state = readings.state_of(run, t, y)
    return _moving(run.system, t, state.q, state.v)


def _moving(system: Any, t, q, v):
    points = lambda t, q: _in_floats(system.points(t, q), q.dtype)  # noqa: E731
    return jax.jvp(points, (t, q), along_motion(system, t, q, v))


def _in_floats(tree: Any, dtype: Any) -> Any:
    """Constants among places may be integers, which have no rates."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), tree)


def _joined(points: Points, rows: int, xp: Any = np) -> Any:
    places = [xp.expand_dims(x, rows) for x in points.places.values()]
    return xp.concatenate([*places, *points.outlines.values()], axis=rows)


def _words(points: Points) -> dict[str, Any]:
    joined = {name: [list(x) for x in getattr(points, name)] for name in _JOINED}
    named = {name: list(getattr(points, name)) for name in _NAMED}
    return {
        "places": list(points.places),
        "outlines": {name: int(x.shape[-2]) for name, x in points.outlines.items()},
        "unit": points.unit,
        **joined,
        **named,
    }


def points_of(places: np.ndarray, words: Mapping[str, Any]) -> Points:
    """The points of a drawing again.

    Args:
        places: positions, shape `(..., k, d)`.
        words: of `Drawing`.

    Returns:
        `Points` whose arrays have shapes `(..., d)` and `(..., corners, d)`.
    """
    names = words["places"]
    by_name = {name: places[..., i, :] for i, name in enumerate(names)}
    ends = np.cumsum([len(names), *words["outlines"].values()])
    parts = np.split(places, ends, axis=-2)[1:-1]
    outlines = dict(zip(words["outlines"], parts, strict=True))
    joined = {name: tuple(map(tuple, words[name])) for name in _JOINED}
    named = {name: tuple(words[name]) for name in _NAMED}
    # One position first, for the checks of names: arrays with rows are put in afterwards.
    first = {name: np.zeros(places.shape[-1]) for name in names}
    parts_of: Any = {**joined, **named}
    points = Points(first, unit=words["unit"], **parts_of)  # pyright: ignore[reportArgumentType]
    return eqx.tree_at(lambda x: (x.places, x.outlines), points, (by_name, outlines))
