"""Least squares by Levenberg and Marquardt's method, for a batch of fits at once."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Bool, Float, Int

# A step that changes the unknowns by this part of their standard errors, and no residual by more
# than this part of the noise, is the last.
_TOLERANCE = {"float64": 1e-6, "float32": 1e-2}
_RELATIVE = {"float64": 1e-9, "float32": 1e-5}
# Steps refused in a row after which there is no decrease to be found: each is a quarter as long.
MOST_REFUSED = 30


def with_jacobian(function: Callable) -> Callable:
    """A function whose derivative is its Jacobian, made once for each point, forward.

    Where an entry of the Jacobian is not finite the value is NaN, so that no step is taken there.
    """

    @jax.custom_jvp
    def wrapped(x):
        return function(x)

    @wrapped.defjvp
    def _(primals, tangents):
        value, jac = value_and_jacobian(function, *primals)
        return jnp.where(jnp.isfinite(jac).all(), value, jnp.nan), jac @ tangents[0]

    return wrapped


def value_and_jacobian(function: Callable, x):
    """A function's value and its Jacobian, by forward differentiation."""
    twice = lambda x: (function(x),) * 2  # noqa: E731
    jac, value = jax.jacfwd(twice, has_aux=True)(x)
    return value, jac


class FitProgress(NamedTuple):
    """Where every fit of a batch is.

    Args:
        x: unknowns, shape `(fits, p)`.
        state: of the method.
        steps: taken or refused, shape `(fits,)`.
        refused: in a row, shape `(fits,)`.
        done: which fits have ended, those not counted whose steps are spent: they may go on.
    """

    x: Float[Array, "fits p"]
    state: Any
    steps: Int[Array, " fits"]
    refused: Int[Array, " fits"]
    done: Bool[Array, " fits"]


class FitSolver(eqx.Module):
    """Fits of one kind, each with its own data.

    Args:
        function: `residuals(x, data)`, a pytree if it has arrays.
        steps: largest number of steps.
    """

    function: Callable
    steps: int = eqx.field(static=True)

    def begin(self, x: Float[Array, "fits p"], data: Any) -> FitProgress:
        """Before the first step.

        Args:
            x: where to begin.
            data: of each fit, leading axis `fits`.
        """
        return _begin(self, x, data)

    def run(self, progress: FitProgress, data: Any, watch: Callable | None = None) -> FitProgress:
        """Minimize the sums of squares.

        Args:
            progress: from `begin`, or on the way.
            data: of each fit, leading axis `fits`.
            watch: called after each step with the progress.
        """
        while not bool(jnp.all(progress.done | (progress.steps >= self.steps))):
            progress = _advance(self, progress, data)
            if watch is not None:
                watch(progress)
        return progress

    def residuals(self, x, args) -> tuple[Any, None]:
        """As optimistix takes them, with the Jacobian made in one forward pass."""
        return with_jacobian(lambda y: self.function(y, args))(x), None


@eqx.filter_jit
def _begin(fits: FitSolver, x, data) -> FitProgress:
    def one(x, data):
        structs = (jax.eval_shape(lambda x: fits.residuals(x, data)[0], x), None)
        options = {"jac": "fwd"}
        state = _method(x).init(fits.residuals, x, data, options, *structs, frozenset())
        zero = jnp.zeros((), int)
        return FitProgress(x, state, zero, zero, jnp.zeros((), bool))

    return eqx.filter_vmap(one)(x, data)


@eqx.filter_jit
def _advance(fits: FitSolver, progress: FitProgress, data) -> FitProgress:
    """One step of all fits, but of those that have ended."""

    def one(progress, data):
        x, state, options = progress.x, progress.state, {"jac": "fwd"}
        x, state, _ = _method(x).step(fits.residuals, x, data, options, state, frozenset())
        refused, steps = state.num_steps_since_acceptance, progress.steps + 1
        done = state.terminate | (refused >= MOST_REFUSED)
        new = FitProgress(x, state, steps, refused, done)
        rests = progress.done | (progress.steps >= fits.steps)
        keep = lambda a, b: jnp.where(rests, a, b) if eqx.is_array(b) else b  # noqa: E731
        return jax.tree.map(keep, progress, new)

    return eqx.filter_vmap(one)(progress, data)


def _method(x) -> optx.LevenbergMarquardt:
    # Not tuning's: the unknowns are scaled already, where a round begins, and its first step is
    # bold (damping 0.01): it throws the rotary pendulum of benchmarks far from its minimum.
    kind = str(x.dtype)
    return optx.LevenbergMarquardt(rtol=_RELATIVE[kind], atol=_TOLERANCE[kind])
