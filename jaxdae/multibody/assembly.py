"""Assembly: coordinates that close the loops of a mechanism, from a rough guess."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

from jaxdae.checks import are_known
from jaxdae.compiled import BRIEFLY, jit
from jaxdae.multibody.system import HALF_A_TURN, Multibody
from jaxdae.systems import ConsistencyError, consistent_state, State
from jaxdae.systems.checks import check_finite
from jaxdae.systems.consistent import check_once
from jaxdae.systems.kinematics import moved
from jaxdae.systems.precision import as_floats, in_dtype


class AssemblyError(ConsistencyError):
    """A mechanism does not close."""


def assemble(
    system: Multibody,
    q: Any = None,
    t=0.0,
    *,
    fixed: str | Sequence[str] = (),
    starts: int = 8,
    seed: int = 0,
) -> State:
    r"""A state at rest in which all loops are closed, from a rough guess.

    The sum of the squares of the residuals of the loops is made least over displacements of the
    joints, by SciPy's trust-region method, first from the guess, then from places around it at
    random, until one closes; a rotation or an axis that is half a turn away from where it is to be
    does not. `jaxdae.consistent_state` finds the nearest consistent state instead;
    it needs a guess that is nearly one. Not for use inside of JAX's transformations: take
    `consistent_state` from the result on, whose derivatives are those of the constraints.

    Args:
        system: the mechanism.
        q: guess of the coordinates, shape `(n,)`; by default as declared.
        t: time [s].
        fixed: names of joints that are held where the guess has them.
        starts: how many places are tried; those at random differ from the guess by rotations of up
            to half a turn, and displacements of up to the extent of the mechanism.
        seed: of the places at random.

    Returns:
        `State`; its velocities are zero, or those that constraints ask for that depend on time.

    Raises:
        AssemblyError: naming the loops that remain open in the best of all places that were found,
            and by how much.
        ValueError: for unknown names, wrong shapes or numbers, or inside of a transformation.
    """
    if not are_known(system, q, t):
        raise ValueError("assemble: a search needs numbers; call it outside of jax.jit.")
    start = system.start()
    (q,) = as_floats(start.q if q is None else q)
    state = State(q, start.v.astype(q.dtype), start.w.astype(q.dtype))
    system = in_dtype(system, state.q.dtype)
    check_once(system, state, t)
    check_finite(state)
    problem = system.without_rotation(np.asarray(q))
    if problem is not None:
        raise ValueError(problem)
    t, free = jnp.asarray(t, state.q.dtype), _free(system, fixed)
    limit = float(np.finfo(state.q.dtype).eps) ** (2 / 3)
    sizes = _sizes(system, t, state)[free]
    rng, best, away = np.random.default_rng(seed), None, list[str]()
    for number in range(starts):
        first = sizes * rng.uniform(-1.0, 1.0, sizes.size) * (number > 0)
        begins, place = _residuals(system, t, state.q, _spread(first, free, state.q.dtype))
        away = [x for x, cosine in system.alignments(place).items() if cosine < HALF_A_TURN]
        if away or not np.isfinite(begins).all():
            continue
        place, residual = _closest(system, t, state.q, free, first)
        turned = [x for x, cosine in system.alignments(place).items() if cosine < 0]
        closed = np.abs(residual).max(initial=0.0) <= limit * (1 + np.abs(place).max(initial=0.0))
        if closed and not turned:
            return consistent_state(system, place, state.v, float(t), w=state.w)
        left = (np.inf if closed else np.linalg.norm(residual)), residual, turned
        best = left if best is None or left[0] < best[0] else best
    if best is None:
        raise AssemblyError(
            f"assemble: residuals of loops are not finite in any of the {starts} places that were "
            "tried. "
            + (f"{_names(away)} half a turn away from where it is to be. " if away else "")
            + "Begin elsewhere, or with more starts."
        )
    raise AssemblyError(_message(system, best[1], best[2], starts, fixed))


def _closest(system: Multibody, t, q, free: np.ndarray, first: np.ndarray):
    """Coordinates with the least sum of squares next to a place, and the residuals there."""
    all_of = lambda x: _spread(x, free, q.dtype)  # noqa: E731
    solve: Any = least_squares
    found = solve(
        lambda x: np.asarray(_residuals(system, t, q, all_of(x))[0], float),
        first,
        lambda x: np.asarray(_slopes(system, t, q, all_of(x)), float)[:, free],
        ftol=1e-15,
        xtol=1e-15,
        gtol=1e-15,
        max_nfev=200,
    )
    residual, place = map(np.asarray, _residuals(system, t, q, all_of(found.x)))
    # The search ends at a part of the first residual; a step of Newton's method at round-off.
    slopes = np.asarray(_slopes(system, t, q, all_of(found.x)))[:, free]
    if not (np.isfinite(slopes).all() and np.isfinite(residual).all()):
        return place, residual
    step = np.linalg.lstsq(slopes, residual, np.finfo(q.dtype).eps ** (2 / 3))[0]
    nearer, there = map(np.asarray, _residuals(system, t, q, all_of(found.x - step)))
    better = np.linalg.norm(nearer) < np.linalg.norm(residual)
    return (there, nearer) if better else (place, residual)


def _spread(x: np.ndarray, free: np.ndarray, dtype) -> np.ndarray:
    change = np.zeros(free.size, dtype)
    change[free] = x
    return change


@jit(options=BRIEFLY)
def _residuals(system: Multibody, t, q, change):
    place = moved(system, t, q, change)
    return system.position_constraints(t, place), place


@jit(options=BRIEFLY)
def _slopes(system: Multibody, t, q, change):
    return jax.jacfwd(lambda x: system.position_constraints(t, moved(system, t, q, x)))(change)


def _free(system: Multibody, fixed) -> np.ndarray:
    """Which velocities are not those of joints that are held."""
    held = (fixed,) if isinstance(fixed, str) else tuple(fixed)
    names = [x.name for x in system.joints()]
    for name in held:
        if name not in names:
            raise ValueError(
                f"assemble: no joint is called {name!r}; there are: {', '.join(names)}."
            )
    return np.array([x.name not in held for x in system.joints() for _ in range(x.freedoms)], bool)


@jit(options=BRIEFLY)
def _places(system: Multibody, t, q):
    return jnp.stack([*system.points(t, q).places.values()])


def _sizes(system: Multibody, t, state: State) -> np.ndarray:
    """How far the places differ: half a turn, or the extent of the mechanism."""
    places = np.asarray(_places(system, t, state.q))
    extent = float(np.abs(places - places.mean(axis=0)).max()) or 1.0
    units = [unit for x in system.joints() for _, unit in x.velocities()]
    return np.array([extent if unit == "m/s" else np.pi for unit in units])


def _names(loops: list[str]) -> str:
    return f"{', '.join(map(repr, loops))} {'is' if len(loops) == 1 else 'are'}"


def _message(system: Multibody, residual, turned: list[str], starts: int, fixed) -> str:
    """What remains open, by loop."""
    units = {x.name: x.coordinates()[0][1] for x in system.joints()}
    rows = [x.name for x in system.loops for _ in x.constraints(units)]
    of_unit = [unit for x in system.loops for _, unit in x.constraints(units)]
    amounts = {}
    for name, unit, left in zip(rows, of_unit, residual, strict=True):
        amounts.setdefault(name, {}).setdefault(unit, []).append(left)
    largest = np.abs(residual).max(initial=0.0)
    open_loops = [
        f"loop {name!r} is open by "
        + " and ".join(
            f"{size:.3g} {unit}"
            for unit, x in by_unit.items()
            if (size := float(np.linalg.norm(x))) > 1e-3 * largest
        )
        for name, by_unit in amounts.items()
        if np.abs(np.concatenate([*by_unit.values()])).max() > 1e-3 * largest
    ]
    held = (fixed,) if isinstance(fixed, str) else tuple(fixed)
    what = "; ".join(open_loops)
    if turned:
        closed = f"{_names(turned)} half a turn away from where it is to be"
        what = closed if largest < 1e-6 else f"{what}; {closed}"
    return (
        f"the mechanism does not close: in the best of {starts} places that were tried {what}. "
        + (f"The joints {', '.join(held)} were held; hold fewer. " if held else "")
        + "Correct lengths, anchors or axes, or begin nearer to where it closes."
    )
