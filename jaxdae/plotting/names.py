"""Names of points beside them, where they cover neither links nor each other."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# Names within this part of the picture's size of each other are written together.
_CLOSE = 0.02
# Directions that are tried, and distances of the text from its point [pt].
_DIRECTIONS = 16
_DISTANCES = (6.0, 12.0, 20.0)
# Of letters, as parts of the size of the font; the room around a text [pt].
_WIDE, _HIGH, _ROOM = 0.56, 1.15, 1.5
# Distance of the places on links at which texts are looked for [pt].
_STEP = 3.0
# What a text costs: on one place of a link, of an outline or of another time, on a point, on
# another text, outside of the axes; and in a direction against the one wanted, or the one it had in
# the frame before, and farther away.
_ON_LINK, _ON_EDGE, _ON_OTHER, _ON_POINT, _ON_TEXT, _OUTSIDE = 1.0, 0.4, 0.15, 3.0, 20.0, 50.0
_AGAINST, _TURNED, _FARTHER = 0.8, 4.0, 0.6


class Name(NamedTuple):
    """A text beside a point.

    Args:
        text: names of the points of one place.
        names: the same one by one.
        place: their position, shape `(d,)`.
        offset: from there to the middle of the text on paper [pt].
        direction: unit vector of the side that was chosen.
    """

    text: str
    names: list[str]
    place: np.ndarray
    offset: np.ndarray
    direction: np.ndarray


class Obstacles(NamedTuple):
    """What texts should leave free, on paper [pt].

    Args:
        links: places on links and lines, shape `(k, 2)`.
        edges: places on bodies and outlines, shape `(k, 2)`.
        others: places on links and bodies at other times, shape `(k, 2)`.
        points: shape `(k, 2)`.
        low: lower left corner of the axes, shape `(2,)`.
        high: upper right corner.
    """

    links: np.ndarray
    edges: np.ndarray
    others: np.ndarray
    points: np.ndarray
    low: np.ndarray
    high: np.ndarray


def arranged(
    scene: Any, i: int, size: float, before: Mapping[str, np.ndarray], others: Sequence[int]
) -> list[Name]:
    """Names of all points at time `i` with places for their texts.

    Args:
        scene: of `jaxdae.plotting.scene`.
        i: number of the time.
        size: of the font [pt].
        before: directions in the frame before, by text, to which texts keep if they can.
        others: numbers of further times that are drawn.
    """
    obstacles = _obstacles(scene, i, others)
    boxes: list[np.ndarray] = []
    found = []
    for place, names in _places(scene, i):
        text = ", ".join(names)
        at = scene.on_paper(place[None])[0]
        half = 0.5 * size * np.array([_WIDE * len(text), _HIGH]) + _ROOM
        wanted = _away(obstacles, at)
        directions, offsets = _candidates(half)
        costs = _costs(obstacles, boxes, at + offsets, half)
        costs += _AGAINST * (1.0 - directions @ wanted)
        costs += _FARTHER * np.repeat(np.arange(len(_DISTANCES)), _DIRECTIONS)
        if text in before:
            costs += _TURNED * (1.0 - directions @ before[text])
        best = int(np.argmin(costs))
        boxes.append(np.stack([at + offsets[best] - half, at + offsets[best] + half]))
        found.append(Name(text, names, place, offsets[best], directions[best]))
    return found


def _places(scene: Any, i: int) -> Iterator[tuple[np.ndarray, list[str]]]:
    """Places with names, those of one place together; not names that begin with `_`."""
    found: list[tuple[np.ndarray, list[str]]] = []
    for name, rows in scene.shapes.places.items():
        if name.startswith("_"):
            continue
        near = [x for x in found if np.linalg.norm(x[0] - rows[i]) < _CLOSE * scene.diagonal]
        if near:
            near[0][1].append(name)
        else:
            found.append((rows[i], [name]))
    yield from found


def _obstacles(scene: Any, i: int, others: Sequence[int]) -> Obstacles:
    shapes = scene.shapes
    links = [shapes.links(i), shapes.lines(i)]
    faint = [curve for k in others for curve in (shapes.links(k), shapes.edges(k))]
    everywhere = np.stack([rows[i] for rows in shapes.places.values()])
    low, high = scene.corners
    return Obstacles(
        np.concatenate([_along(scene, x) for x in links]),
        _along(scene, shapes.edges(i)),
        np.concatenate([np.zeros((0, 2)), *(_along(scene, x) for x in faint)]),
        scene.on_paper(everywhere),
        low,
        high,
    )


def _along(scene: Any, curve: np.ndarray) -> np.ndarray:
    """Places along a curve with gaps at NaN, a step apart on paper, shape `(k, 2)`."""
    if len(curve) < 2:
        return np.zeros((0, 2))
    corners = scene.on_paper(curve)
    one, other = corners[:-1], corners[1:]
    known = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    one, other = one[known], other[known]
    counts = np.ceil(np.linalg.norm(other - one, axis=1) / _STEP).astype(int) + 1
    parts = [np.linspace(a, b, k) for a, b, k in zip(one, other, counts, strict=True)]
    return np.concatenate(parts) if parts else np.zeros((0, 2))


def _away(obstacles: Obstacles, at: np.ndarray) -> np.ndarray:
    """The middle of the widest angle between the links at a point; up and right without any."""
    beside = np.concatenate([obstacles.links, obstacles.edges]) - at
    sizes = np.linalg.norm(beside, axis=1)
    near = (sizes > 0.5 * _STEP) & (sizes < 4.0 * _STEP)
    if not near.any():
        return np.sqrt([0.5, 0.5])
    angles = np.sort(np.arctan2(beside[near, 1], beside[near, 0]))
    gaps = np.diff(np.append(angles, angles[0] + 2.0 * np.pi))
    widest = int(np.argmax(gaps))
    middle = angles[widest] + 0.5 * gaps[widest]
    return np.array([np.cos(middle), np.sin(middle)])


def _candidates(half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Directions and offsets of the middle of a text, near ones first, shape `(k, 2)` both."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(_DIRECTIONS) / _DIRECTIONS
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    sides = np.clip(1.5 * directions, -1.0, 1.0) * half
    offsets = [distance * directions + sides for distance in _DISTANCES]
    return np.tile(directions, (len(_DISTANCES), 1)), np.concatenate(offsets)


def _costs(
    obstacles: Obstacles, boxes: list[np.ndarray], middles: np.ndarray, half: np.ndarray
) -> np.ndarray:
    def inside(places: np.ndarray) -> np.ndarray:
        apart = np.abs(places[None] - middles[:, None])
        return (apart < half).all(axis=-1).sum(axis=1).astype(float)

    costs = _ON_LINK * inside(obstacles.links) + _ON_EDGE * inside(obstacles.edges)
    costs += _ON_OTHER * inside(obstacles.others)
    costs += _ON_POINT * inside(obstacles.points)
    for low, high in boxes:
        gaps = np.abs(middles - 0.5 * (low + high)) - (half + 0.5 * (high - low))
        costs += _ON_TEXT * (gaps < 0.0).all(axis=1)
    beyond = np.maximum(obstacles.low - (middles - half), middles + half - obstacles.high)
    return costs + _OUTSIDE * (beyond > 0.0).any(axis=1)
