"""Adaptive steps that suit the derivatives of a motion, not only the motion.

Steps are chosen by an estimate of the error of the motion. Where that hardly changes, at rest or in
a steady state, they grow until a perturbation of it would be integrated wrongly, or grow without
bound under an explicit method, of which the motion itself shows nothing. A run that is
differentiated therefore carries one perturbation along, a solution of the variational equation

    d(delta)/dt = df/dy(t, y) delta,

from a start `g` without any symmetry, and its error is held to the tolerance as well, or to the
square root of the round-off where that is larger. Sensitivities in the test of errors:
[HindmarshEtAl2005, section 2.2].

Explicit methods move each of its entries at the end of a step by the part `10 tolerance g` of its
size. Modes that die out so stay as large as errors that are noticed, and steps that would let them
grow are refused at once, without being as short as accurate ones of these modes.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

# Entries of a perturbation below this part of the largest are not held to the tolerance.
_LEAST = 1e-3
# An absolute tolerance allows no larger relative error of a perturbation.
_MOST = 1e-3
# By so many tolerances of its size explicit methods move a perturbation: the estimate of the error
# of a mode that steps would let grow may be a tenth of the mode.
_KICK = 10.0
# A perturbation that grows beyond this is begun anew at one: it is known up to a factor.
_LARGE = 1e6


def numerator(number: Any, choose: Any = np.where) -> Any:
    """An entry of `perturbation` from its number, in units of `UNIT`.

    Args:
        number: integers.
        choose: `choose(condition, a, b)`.
    """
    # Multiples of the golden ratio, modulo one, are spread evenly, and hardly repeat.
    spread = ((number + 1) * 40503) % 65536
    return choose(spread < 32768, spread - 58982, spread - 6554)


# Fractions of 16 bits, the same in single precision.
UNIT = 1 / 65536


def perturbation(states: int, dtype) -> np.ndarray:
    """A perturbation of the start, and a force on it, that have no symmetry.

    Args:
        states: number of entries.
        dtype: of the result.

    Returns:
        Entries of either sign between 0.4 and 0.9 in size, shape (states,).
    """
    return (numerator(np.arange(states)) * UNIT).astype(dtype)


def _is_zero(x) -> bool:
    return not eqx.is_array(x) and x == 0


def tolerances(controller: Any) -> tuple[Any, Any] | None:
    """Relative and absolute tolerance of a step size controller; `None` where it has none."""
    while not hasattr(controller, "rtol") and hasattr(controller, "controller"):
        controller = controller.controller
    rtol, atol = (getattr(controller, x, None) for x in ("rtol", "atol"))
    # Fixed steps in a wrapper have tolerances of zero.
    if rtol is None or atol is None or (_is_zero(rtol) and _is_zero(atol)):
        return None
    return rtol, atol


class _Tolerance(NamedTuple):
    """What errors of a perturbation, in a step, are held to.

    Args:
        size: of the perturbation, shape (n,).
        relative: tolerance of its error, as a part of that, shape (n,).
        of_state: tolerance of the error of the state, shape (n,).
    """

    size: Any
    relative: Any
    of_state: Any

    @staticmethod
    def of(known, before, after, moved_before, moved_after) -> "_Tolerance":
        """From relative and absolute tolerance, and both ends of a step."""
        rtol, atol = known
        size = jnp.maximum(jnp.abs(moved_before), jnp.abs(moved_after))
        size = jnp.where(jnp.isfinite(size), size, 0.0)
        size = jnp.maximum(size, _LEAST * jnp.maximum(jnp.max(size, initial=0.0), 1.0))
        state = jnp.maximum(jnp.abs(before), jnp.abs(after))
        # A perturbation has no unit: an absolute tolerance is taken relative to states above one.
        relative = jnp.minimum(atol / jnp.maximum(state, 1.0), _MOST)
        # Near singular positions no more is to be had; to smaller tolerances the motion sees.
        least = float(jnp.finfo(state.dtype).eps) ** 0.5
        relative = jnp.maximum(jnp.maximum(rtol, relative), least)
        return _Tolerance(size, relative, atol + rtol * state)


def with_error_of_perturbation(error, before, after, moved, controller: Any) -> Any:
    """The error of a step by which it is accepted, and the next one chosen.

    Args:
        error: of the state, shape (n,).
        before: the state at the beginning of the step, shape (n,).
        after: the state at its end, shape (n,).
        moved: of a perturbation the error, and the values before and after, each of shape (n,).
        controller: the step size controller, whose tolerances these errors are held to.

    Returns:
        The larger of both errors, that of the perturbation in the units of the state: relative to
        the tolerance and the perturbation's size it is what it is here to `atol + rtol |y|`.
    """
    known = tolerances(controller)
    if known is None:
        return error
    moved_error, *ends = moved
    tolerance = _Tolerance.of(known, before, after, *ends)
    scaled = jnp.abs(moved_error) / tolerance.size * tolerance.of_state / tolerance.relative
    # A perturbation that has no derivative at the state says nothing. A step without an end, such
    # as one whose iteration failed, is refused by its own error.
    says = jnp.isfinite(scaled) & jnp.isfinite(ends[0]) & jnp.isfinite(ends[1])
    larger = jnp.maximum(jnp.abs(error), jnp.where(says, scaled, 0.0))
    return jax.lax.stop_gradient(larger)


def excited(before, after, moved, controller: Any) -> Any:
    """A perturbation at the end of a step of an explicit method, moved by some of its tolerances.

    What is handed from one step to the next does not fit it.

    Args:
        before: the state at the beginning of the step, shape (n,).
        after: the state at its end, shape (n,).
        moved: the perturbation before and after, each of shape (n,).
        controller: the step size controller, whose tolerances its errors are held to.
    """
    known = tolerances(controller)
    if known is None:
        return moved[1]
    size, relative, _ = _Tolerance.of(known, before, after, *moved)
    kick = _KICK * relative * size * perturbation(size.size, size.dtype)
    largest = jnp.max(size, initial=0.0)
    return jax.lax.stop_gradient((moved[1] + kick) / jnp.where(largest > _LARGE, largest, 1.0))


def stopped(tree: Any) -> Any:
    """The same without derivatives."""
    return jax.tree.map(lambda x: jax.lax.stop_gradient(x) if eqx.is_array(x) else x, tree)
