"""Descent between bounds in a fixed number of evaluations, so that its time is always the same."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.reprs import Module

# A step counts where it has this part of the decrease that its model foresees [Bertsekas1982].
_ENOUGH = 1e-4
# Steps are resized between these.
_SMALLEST, _LARGEST = 1e-12, 1e12
# A parameter that nothing depends on has no scale of its own; it is damped by this part of others'.
_LEAST_SCALE = 1e-12
# Of a quadratic model: projected Newton steps to its minimum in the box, and parts of one step that
# are compared.
_TURNS = 2
_PARTS = 0.5 ** np.arange(8)


class LocalModel(NamedTuple):
    """A function at a point.

    Args:
        value: there.
        gradient: shape `(n,)`.
        curvature: shape `(n, n)`; empty where the method uses none.
        aux: what the function returns beside its value.
    """

    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    curvature: Float[Array, "n n"] | Float[Array, " 0"]
    aux: Any


class Trial(NamedTuple):
    """The point to be evaluated next, and by how much its model says the value falls there."""

    point: Float[Array, " n"]
    foreseen: Float[Array, ""]


class Minimum(NamedTuple):
    """The best point that was found.

    Args:
        point: between the bounds.
        value: there; infinite where no evaluation was finite.
        aux: what the function returns beside it.
        step_size: with which a search nearby may go on.
    """

    point: Float[Array, " n"]
    value: Float[Array, ""]
    aux: Any
    step_size: Float[Array, ""]


class AbstractBoxDescent(Module):
    """How a function is evaluated, which point is tried next, and how bold the step after is."""

    @abc.abstractmethod
    def local(self, function: Callable, point) -> LocalModel:
        """Value and derivatives of `function(point) -> (value, aux)`, as the method has it."""

    @abc.abstractmethod
    def trial(self, point, local: LocalModel, step_size, lower, upper) -> Trial:
        """The next point between the bounds."""

    @abc.abstractmethod
    def resized(self, step_size, fallen, foreseen, move, change) -> Float[Array, ""]:
        """Size of the next step after one that was taken.

        Args:
            step_size: of this one.
            fallen: by how much the value fell.
            foreseen: by how much it should have.
            move: step of the point, shape `(n,)`.
            change: of the gradient, shape `(n,)`.
        """

    @abc.abstractmethod
    def first_step_size(self, local: LocalModel, lower, upper) -> Float[Array, ""]:
        """Size of the very first step."""


class GaussNewton(AbstractBoxDescent):
    r"""Least squares: Gauss-Newton steps in the box, with Levenberg's damping.

        minimize  g^T d + d^T (H + D / s) d / 2    with    lower <= x + d <= upper,
        g = 2 J^T r,    H = 2 J^T J,    D = diag(H)

    by a few projected Newton steps: components at a bound whose slope pushes them out of the box
    are held, the others are moved and clipped [Bertsekas1982]. The function gives the residuals `r`
    and, as rows, their derivatives by each entry of the point.
    """

    def local(self, function, point):
        (r, rows), aux = function(point)
        return LocalModel(r @ r, 2 * rows @ r, 2 * rows @ rows.T, aux)

    def trial(self, point, local, step_size, lower, upper):
        _, g, H, _ = local
        scale = jnp.diagonal(H)
        least = _LEAST_SCALE * jnp.max(scale, initial=0.0) + jnp.finfo(g.dtype).tiny
        damped = H + jnp.diag(jnp.maximum(scale, least) / step_size)

        parts = jnp.asarray(_PARTS, g.dtype)

        def turn(_, end):
            slope = g + damped @ (end - point)
            held = _pushed_out(end, slope, lower, upper)
            some = held[:, None] | held[None, :]
            matrix = jnp.where(some, jnp.eye(g.size, dtype=g.dtype), damped)
            move = solve_positive_definite(matrix, jnp.where(held, 0.0, -slope))
            ends = jnp.clip(end + parts[:, None] * move, lower, upper)
            moves = ends - point
            values = jnp.sum((moves @ damped / 2 + g) * moves, axis=1)
            return ends[jnp.argmin(values)]

        end = jax.lax.fori_loop(0, _TURNS, turn, point)
        move = end - point
        return Trial(end, -(g @ move + move @ H @ move / 2))

    def resized(self, step_size, fallen, foreseen, move, change):
        del move, change
        ratio = fallen / foreseen
        return step_size * jnp.where(ratio > 0.75, 10.0, jnp.where(ratio < 0.25, 0.5, 1.0))

    def first_step_size(self, local, lower, upper):
        del lower, upper
        return jnp.asarray(1e3, local.value.dtype)


class ProjectedGradient(AbstractBoxDescent):
    r"""Gradient steps, projected on the box, of the length of Barzilai and Borwein.

        x+ = clip(x - s g),    s = |dx|^2 / (dx . dg)

    the spectral projected gradient of [BirginMartinezRaydan2000], monotone. Derivatives are in
    reverse mode.
    """

    def local(self, function, point):
        (value, aux), gradient = jax.value_and_grad(function, has_aux=True)(point)
        return LocalModel(value, gradient, jnp.zeros(0, point.dtype), aux)

    def trial(self, point, local, step_size, lower, upper):
        end = jnp.clip(point - step_size * local.gradient, lower, upper)
        return Trial(end, local.gradient @ (point - end))

    def resized(self, step_size, fallen, foreseen, move, change):
        del fallen, foreseen
        curved = move @ change
        spectral = (move @ move) / jnp.where(curved > 0, curved, 1.0)
        return jnp.where(curved > 0, spectral, 4 * step_size)

    def first_step_size(self, local, lower, upper):
        """A tenth of the widest interval, or of one, for the component of largest slope."""
        width = jnp.max(jnp.where(jnp.isfinite(upper - lower), upper - lower, 1.0))
        steepest = jnp.max(jnp.abs(local.gradient))
        return 0.1 * width / jnp.where(steepest > 0, steepest, 1.0)


def _pushed_out(point, gradient, lower, upper):
    """Components at a bound beyond which the value falls."""
    below, above = (point <= lower) & (gradient > 0), (point >= upper) & (gradient < 0)
    return below | above


class _Descent(NamedTuple):
    """What one evaluation hands to the next: the best point so far, and what is tried next."""

    best: Float[Array, " n"]
    local: LocalModel
    step_size: Float[Array, ""]
    last_good: Float[Array, ""]  # the step size after the last step that was taken
    trial: Trial


def minimize(
    method: AbstractBoxDescent,
    function: Callable,
    start: Float[Array, " n"],
    otherwise: Float[Array, " n"],
    bounds: tuple[Float[Array, " n"], Float[Array, " n"]],
    step_size: Float[Array, ""],
    iterations: int,
) -> Minimum:
    """Make a function small between bounds, with as many evaluations as are asked for.

    The value never rises. Evaluations that are not finite are refused, and the step is shortened;
    where that of the start is not, the search begins elsewhere.

    Args:
        method: of descent.
        function: `point -> (value, aux)`; for Gauss-Newton `point -> ((residuals, rows), aux)`,
            with derivatives of all residuals by one entry of the point in each row.
        start: where the search begins; between the bounds.
        otherwise: where it begins when the function is not finite there.
        bounds: lower and upper ones, each of shape `(n,)`, infinite where there is none.
        step_size: of the first step; 0 lets the method choose.
        iterations: number of evaluations.
    """
    lower, upper = bounds
    shapes = jax.eval_shape(lambda x: method.local(function, x), start)
    unknown = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    unknown = unknown._replace(value=jnp.full_like(unknown.value, jnp.inf))

    def turn(search: _Descent, _):
        best, local, size, last_good, trial = search
        found = method.local(function, trial.point)
        fallen = local.value - found.value
        finite = jnp.isfinite(found.value) & jnp.all(jnp.isfinite(found.gradient))
        better = finite & (fallen >= _ENOUGH * jnp.maximum(trial.foreseen, 0.0))
        first = ~jnp.isfinite(local.value)
        resized = method.resized(
            size, fallen, trial.foreseen, trial.point - best, found.gradient - local.gradient
        )
        begun = jnp.where(size > 0, size, method.first_step_size(found, lower, upper))
        size = jnp.where(
            first, jnp.where(better, begun, size), jnp.where(better, resized, size / 4)
        )
        size = jnp.where(size > 0, jnp.clip(size, _SMALLEST, _LARGEST), size)
        last_good = jnp.where(better, size, last_good)
        pick = lambda new, old: jnp.where(better, new, old)  # noqa: E731
        best, local = jax.tree.map(pick, (trial.point, found), (best, local))
        after = method.trial(best, local, size, lower, upper)
        known = jnp.isfinite(local.value)
        after = Trial(
            jnp.where(known, after.point, otherwise), jnp.where(known, after.foreseen, 0.0)
        )
        return _Descent(best, local, size, last_good, after), None

    size, zero = jnp.asarray(step_size, start.dtype), jnp.zeros((), start.dtype)
    begin = _Descent(start, unknown, size, size, Trial(start, zero))
    search, _ = jax.lax.scan(turn, begin, length=iterations)
    return Minimum(search.best, search.local.value, search.local.aux, search.last_good)
