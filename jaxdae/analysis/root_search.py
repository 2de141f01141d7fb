"""Roots of equations that are dear to compile: one loop evaluates them in a single place."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jaxtyping import Array, Float

_MAX_STEPS = 256
# Newton's method on a regular root doubles its digits; from the end of the search this is enough.
_POLISH_STEPS = 3
# Stages of the loop: multipliers from the guess, search, Newton steps, evaluation at the root.
_GUESS, _SEARCH, _POLISH = 0, 1, 2
_LAST = _POLISH + _POLISH_STEPS


class Linear(NamedTuple):
    """Equations at one point: residual `(e,)`, Jacobian `(e, x)`, and rate in time `(e,)`."""

    residual: Float[Array, " e"]
    jacobian: Float[Array, "e x"]
    rate: Float[Array, " e"]


class Root(NamedTuple):
    """Unknowns `(x,)`, pseudoinverse of the Jacobian there, what is left, and its rate in time."""

    x: Float[Array, " x"]
    inverse: Float[Array, "x e"]
    residual: Float[Array, " e"]
    rate: Float[Array, " e"]


class _Progress(NamedTuple):
    stage: Any
    steps: Any
    x: Any
    best: Any
    method: Any
    root: Root


def find_root(equations: Callable[[Any], Linear], x, guessed) -> Root:
    """Levenberg-Marquardt steps from a guess, then Newton steps of least norm.

    The equations are compiled once, whatever the method asks for: mechanisms of some ten
    coordinates would otherwise spend minutes in the compiler. Those that are `guessed` alone move
    in the first step, one of least norm: a guess that is a root but for these is found to be one.
    """
    search = _Search(x, jax.eval_shape(equations, x))

    def body(now: _Progress) -> _Progress:
        at = equations(now.x)
        jacobian = jnp.where((now.stage == _GUESS) & ~guessed, 0, at.jacobian)
        inverse = _pseudoinverse(jacobian)
        tried, best, done, method = search.step(now, at)
        searching = now.stage == _SEARCH
        ended = searching & (done | (now.steps >= _MAX_STEPS))
        step = jnp.where(now.stage < _LAST, inverse @ at.residual, 0)
        following = jnp.where(searching, jnp.where(ended, best, tried), now.x - step)
        method, best = jax.tree.map(
            lambda new, old: jnp.where(searching, new, old), (method, best), (now.method, following)
        )
        root = Root(now.x, inverse, at.residual, at.rate)
        stage = now.stage + jnp.where(searching & ~ended, 0, 1)
        return _Progress(stage, now.steps + 1, following, best, method, root)

    start = _Progress(jnp.array(_GUESS), jnp.array(0), x, x, search.start, search.nothing)
    return jax.lax.while_loop(lambda now: now.stage <= _LAST, body, start).root


class _Search:
    """Steps of optimistix' method on equations that the loop has evaluated."""

    def __init__(self, x, shapes: Linear):
        # The method keeps its damping in the default precision and cannot mix two.
        self.dtype, self.float = x.dtype, jnp.result_type(float)
        eps = float(jnp.finfo(x.dtype).eps)
        self.method = optx.LevenbergMarquardt(rtol=eps**0.5, atol=eps**0.5)
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        self.nothing = Root(x, blank.jacobian.T, blank.residual, blank.rate)
        out = jax.ShapeDtypeStruct(blank.residual.shape, self.float)
        x = x.astype(self.float)
        model = (x, blank.residual.astype(self.float), blank.jacobian.astype(self.float))
        state = self.method.init(_model, x, model, _OPTIONS, out, None, frozenset())
        self.start, self.static = eqx.partition(state, eqx.is_array)

    def step(self, now: _Progress, at: Linear):
        """Point to try next, best so far, whether the search is over, and the method's state."""
        x, best, residual, jacobian = (
            y.astype(self.float) for y in (now.x, now.best, at.residual, at.jacobian)
        )
        state = eqx.combine(self.static, now.method)
        state = eqx.tree_at(lambda s: s.y_eval, state, x)
        model = (x, residual, jacobian)
        best, state, _ = self.method.step(_model, best, model, _OPTIONS, state, frozenset())
        done, result = self.method.terminate(_model, best, model, _OPTIONS, state, frozenset())
        done |= (result != optx.RESULTS.successful) | ~jnp.isfinite(state.y_eval).all()
        method = eqx.filter(state, eqx.is_array)
        return state.y_eval.astype(self.dtype), best.astype(self.dtype), done, method


# Reverse mode is what makes the method form the Jacobian as an array, here of a linear function.
_OPTIONS = {"jac": "bwd"}


def _model(x, linear):
    """The equations as they are linearized where they were evaluated: exact there."""
    at, residual, jacobian = linear
    return residual + jacobian @ (x - at), None


def _pseudoinverse(jacobian):
    rtol = float(jnp.finfo(jacobian.dtype).eps) ** (2 / 3)
    return jnp.linalg.pinv(jacobian, rtol=rtol)
