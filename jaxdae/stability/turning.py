"""Gains for a step on constraints that bend: by how much the motion may turn in a step."""

import warnings
from functools import lru_cache
from typing import Unpack

import numpy as np

from jaxdae.stability.arguments import checked_tableau
from jaxdae.stability.stability_functions import is_multistep
from jaxdae.stability.step_gains import step_gains, StepGains, StepOptions

# Turn of a motion in a step that gains should bear [rad]: 63 steps in a turn are few.
_USUAL_TURN = 0.1
_TURNS = np.geomspace(0.01, 1.5, 60)
_STEPS = 400
_MARGINS = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0)


def gains_for_step(solver, dt, **options: Unpack[StepOptions]) -> StepGains:
    """`step_gains`, with a warning where they do not bear constraints that bend.

    Args:
        solver: as of `step_gains`.
        dt: likewise [s].
        **options: likewise.

    Warns:
        RuntimeWarning: where `largest_turn` is below 0.1 rad, with it and with the margins for
            which it is not.
    """
    gains = step_gains(solver, dt, **options)
    turn = largest_turn(solver, gains)
    if turn >= _USUAL_TURN:
        return gains
    name, margin = type(solver).__name__, gains.margin
    smaller = [x for x in _MARGINS if x < margin]
    bears = lambda x: largest_turn(solver, step_gains(solver, 1.0, margin=x)) >= _USUAL_TURN  # noqa: E731
    best = next((x for x in reversed(smaller) if bears(x)), None)
    remedy = (
        f"Margins up to {best:g} bear turns of {_USUAL_TURN:g} rad"
        if best is not None and options.get("regime", "violation") == "violation"
        else f"No margin of {name} bears turns of {_USUAL_TURN:g} rad: take another method"
    )
    warnings.warn(
        f"gains for {name} with margin={margin:g}: a step damps violations of straight "
        f"constraints, but where the motion turns by more than {turn:.2g} rad in the longest step "
        f"(a particle on a circle), violations grow until the run fails, or change its speed by a "
        f"factor of two in {_STEPS} steps. {remedy}, or shorter steps.",
        RuntimeWarning,
        stacklevel=3,
    )
    return gains


def largest_turn(solver, gains: StepGains) -> float:
    """Angle by which a motion may turn in a step of the gains' largest size [rad].

    Stability functions describe constraints whose normals do not turn. A particle that moves freely
    on a circle, in two coordinates with the stabilized multiplier, is the simplest motion whose do:
    it is integrated for 400 steps at several speeds at once. From some speed on it leaves the
    circle, or violations that do not decay drive or brake it.

    Args:
        solver: an explicit Runge-Kutta method.
        gains: of `step_gains`, for this solver.

    Returns:
        The least turn in a step at which `|q.q - 1|` exceeds 0.5 or the speed changes by a factor
        of two; infinite where none up to 1.5 rad is, and for methods that are not explicit or have
        several steps.
    """
    if is_multistep(solver):
        return np.inf
    a, b = (np.asarray(x, float) for x in checked_tableau(solver)[:2])
    if np.triu(a).any():
        return np.inf
    first, second = (complex(x) for x in gains.roots)
    return _least_turn(a.tobytes(), b.tobytes(), -(first + second).real, (first * second).real)


@lru_cache(256)
def _least_turn(a_bytes: bytes, b_bytes: bytes, damping: float, stiffness: float) -> float:
    b = np.frombuffer(b_bytes)
    a = np.frombuffer(a_bytes).reshape(b.size, b.size)

    def rate(y):
        """Of `(q, v)` in units of the step, shape `(2, 2, turns)`."""
        q, v = y
        square, slope = (q * q).sum(0), 2 * (q * v).sum(0)
        wanted = -damping * slope - stiffness * (square - 1)
        return np.stack([v, q * (wanted - 2 * (v * v).sum(0)) / (2 * square)])

    y = np.zeros((2, 2, _TURNS.size))
    y[0, 0], y[1, 1] = 1.0, _TURNS
    left = np.zeros(_TURNS.size, bool)
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            stages = np.zeros((b.size, *y.shape))
            for i in range(b.size):
                stages[i] = rate(y + np.tensordot(a[i, :i], stages[:i], 1))
            y = y + np.tensordot(b, stages, 1)
            length, speed = (np.hypot(*x) for x in y)
            # Asked for what stays, so that NaN counts as having left.
            left |= ~((np.abs(length**2 - 1) < 0.5) & (np.abs(np.log2(speed / _TURNS)) < 1))
    return float(_TURNS[left.argmax()]) if left.any() else np.inf
