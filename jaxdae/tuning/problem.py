"""What is tuned: an objective of the trained part of a pytree, its residuals, and derivatives."""

from collections.abc import Callable
from typing import Any, cast, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

from jaxdae.reprs import Module
from jaxdae.systems.calls import array_in_words
from jaxdae.tuning.constraints import Constraint
from jaxdae.tuning.parametrizations import resolve, trainable
from jaxdae.tuning.stochastic import LAST_STEP, Stochastic


class LeastSquares(Module):
    """The sum of the squares of residuals, as an objective of `tune`.

    Args:
        function: maps the resolved parameters to residuals, an array of any shape; traceable.
    """

    function: Callable

    def residuals(self, params: PyTree) -> Float[Array, " m"]:
        """The residuals, as a vector.

        Args:
            params: resolved parameters.
        """
        return jnp.ravel(self.function(params))

    def __call__(self, params: PyTree) -> Float[Array, ""]:
        """The sum of their squares.

        Args:
            params: resolved parameters.
        """
        return jnp.sum(self.residuals(params) ** 2)


class HistoryRow(NamedTuple):
    """What happened in one evaluation; stacked over the starts, a row of `TuningHistory`."""

    loss: Any  # objective at the trial point; NaN for a start that has ended
    gradient_norm: Any  # Euclidean norm of its gradient; NaN for a start that has ended
    skipped: Any  # whether the trial, or the optimizer's step from it, was refused


class Progress(Module):
    """How far a start has come; stacked over the starts."""

    best: PyTree  # point of the smallest loss so far
    # That loss. In the widest precision enabled, which holds the loss of every objective exactly:
    # its own would cost another trace of the objective to find out.
    best_loss: Float[Array, ""]
    evaluations: Int[Array, ""]  # of the objective so far, those of line searches included
    status: Int[Array, ""]  # 0 while the start runs; else why it ended, an index into `ENDINGS`
    number: Float[Array, ""]  # what was compared with a tolerance when it ended

    @classmethod
    def of(cls, points: PyTree, starts: int) -> "Progress":
        """Before the first evaluation, of all starts."""
        count, number = jnp.zeros(starts, int), jnp.full(starts, jnp.inf, jnp.result_type(float))
        return cls(points, number, count, count, number)

    def seen(self, point: PyTree, loss: Array, better: Array, evaluations: Any = 0) -> "Progress":
        """After some more evaluations, with another best point where it is better."""
        return Progress(
            where(better, point, self.best),
            jnp.where(better, loss, self.best_loss),
            self.evaluations + evaluations,
            self.status,
            self.number,
        )


class TuningMethod(NamedTuple):
    """How a problem is solved, all starts at once."""

    # Of all starts, `(problem, starts, spread, key) -> state`, with `progress`.
    initial_state: Callable[["TuningProblem", int, float, Array], Any]
    # One evaluation from one start, `(problem without arrays, those, state) -> (state, record)`.
    step: Callable[["TuningProblem", "TuningProblem", Any], tuple[Any, HistoryRow]]
    # What the optimizer computes, without the objective.
    program: Callable[["TuningProblem"], ClosedJaxpr]
    memory: Callable[[Any], PyTree]  # the part of the state that is the optimizer's own


class TuningProblem(Module):
    """An objective of the trained part of a pytree, and what optimizes it."""

    objective: Any  # function of the resolved parameters, or an object with `residuals`
    trained: PyTree  # arrays that are varied, of the first start
    frozen: PyTree  # the rest of the parameters
    optimizer: Any  # of the method's kind
    mode: str = eqx.field(static=True)  # how derivatives are computed, "forward" or "reverse"
    # Relative; when an optimizer that can converge has.
    tolerance: float = eqx.field(static=True, default=0.0)
    # Shape and type of the residuals an optimizer of least squares works on.
    residuals_of: jax.ShapeDtypeStruct | None = eqx.field(static=True, default=None)
    constraints: tuple[Constraint, ...] = ()  # what an optimizer that takes them must keep
    key: Array | None = None  # of the draws of a `Stochastic` objective
    validation: Any = None  # what the best parameters are chosen by, if not by the objective
    validation_key: Array | None = None  # of its draws, if it is `Stochastic`

    def params(self, trained: PyTree) -> PyTree:
        """All parameters, parametrizations kept, from their trained part."""
        return eqx.combine(trained, self.frozen)

    def loss(self, trained: PyTree, step: Any = 0) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Objective at a trained part, and once more as what comes beside its derivative.

        Args:
            trained: arrays that are varied.
            step: number of the step, which a `Stochastic` objective is drawn for.
        """
        objective = self.objective
        if not callable(objective):
            total = jnp.sum(self.residuals(trained)[0] ** 2)
            return total, total
        if self.key is not None:
            objective = cast(Stochastic, objective).drawn(self.key, step)
        loss = _scalar("objective", objective, resolve(self.params(trained)))
        return loss, loss

    def validation_loss(self, trained: PyTree) -> Float[Array, ""]:
        """What a trained part is validated by; of a `Stochastic` function the same draws always."""
        validation: Any = self.validation
        if self.validation_key is not None:
            validation = validation.drawn(self.validation_key, LAST_STEP)
        return _scalar("validation", validation, resolve(self.params(trained)))

    def is_better(self, loss: Array, best: Array) -> Array:
        """Whether a finite loss at another point makes that the best one.

        Losses of different draws cannot be compared: without a validation the last point is it.
        """
        if self.validation is not None:
            return jnp.asarray(False)
        return jnp.asarray(True) if self.key is not None else loss < best

    @property
    def differentiate(self) -> Callable:
        """The transformation that makes gradients in this mode."""
        return jax.grad if self.mode == "reverse" else jax.jacfwd

    def residuals(self, trained: PyTree) -> tuple[Float[Array, " m"], Float[Array, " m"]]:
        """Residuals at a trained part, and once more as what comes beside their derivative."""
        params, method = resolve(self.params(trained)), self.objective.residuals
        residuals = jnp.ravel(array_in_words("the residuals", method, params))
        if residuals.size == 0 or not jnp.issubdtype(residuals.dtype, jnp.floating):
            raise ValueError(
                f"tune: `residuals` returned {residuals.dtype}[{residuals.size}], needs a vector "
                "of at least one real floating-point number."
            )
        return residuals, residuals

    def jacobian(self, point: Float[Array, " p"]) -> tuple[Float[Array, " m"], Array]:
        """Residuals and their Jacobian, (m, p), at the trained arrays as one vector."""
        derivative = jax.jacrev if self.mode == "reverse" else jax.jacfwd
        slopes, residuals = derivative(lambda x: self.residuals(self.tree(x)), has_aux=True)(point)
        return residuals, slopes

    def vector(self, trained: PyTree) -> Float[Array, " p"]:
        """A trained part as one vector, in the widest precision enabled."""
        return ravel_pytree(trained)[0].astype(jnp.result_type(float))

    def tree(self, vector: Float[Array, " p"]) -> PyTree:
        """The trained part that a vector stands for, in its own precision."""
        flat, unravel = ravel_pytree(self.trained)
        return unravel(vector.astype(flat.dtype))

    @property
    def epsilon(self) -> float:
        """Round-off of the trained arrays' precision."""
        return float(jnp.finfo(ravel_pytree(self.trained)[0].dtype).eps)

    def first_points(self, starts: int, spread: float, key: Array) -> tuple[PyTree, PyTree]:
        """The initial point of every start, and its perturbation, which is zero for the first."""
        flat, unravel = ravel_pytree(self.trained)
        noise = jnp.zeros((starts, flat.size), flat.dtype)
        if starts > 1:  # one start needs no random numbers, whose program takes long to compile
            noise = spread * jax.random.normal(key, noise.shape, flat.dtype)
        updates = jax.vmap(unravel)(noise.at[0].set(0.0))
        point = jax.tree.map(lambda x: jnp.broadcast_to(x, (starts, *x.shape)), self.trained)
        return point, updates


def _scalar(what: str, function: Callable, params: PyTree) -> Float[Array, ""]:
    """The value of an objective or of a validation."""
    loss = array_in_words(f"the {what}", function, params)
    if loss.shape == () and jnp.issubdtype(loss.dtype, jnp.floating):
        return loss
    remedy = "sum or average its entries"
    if what == "objective":
        remedy += ", or write LeastSquares(objective) for the sum of their squares"
    raise ValueError(
        f"tune: the {what} returned {loss.dtype}{list(loss.shape)}, needs a real floating-point "
        f"scalar; {remedy}."
    )


class Chosen(NamedTuple):
    """An optimizer that fits."""

    problem: TuningProblem  # with the optimizer
    method: TuningMethod | None  # what drives it; `None` for SciPy's, which drive themselves
    words: str  # which it is, and why


def split(params: PyTree) -> tuple[PyTree, PyTree]:
    """The trained part of parameters as arrays, and the rest."""
    trained, frozen = eqx.partition(params, trainable(params))
    leaves = jax.tree.leaves(trained)
    if not leaves:
        raise ValueError(
            "tune: nothing to train, no leaf of `params` is a floating-point array; write "
            "jnp.array(20.0) or Positive(20.0) in place of the Python number 20.0."
        )
    if any(jnp.iscomplexobj(x) for x in leaves):
        raise ValueError(
            "tune: a trained leaf is complex; hold its real and imaginary part as two arrays."
        )
    return jax.tree.map(jnp.asarray, trained), frozen


def where(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    """Leaf by leaf, one or the other."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def strongly_typed(tree: PyTree) -> PyTree:
    """The same arrays without JAX's weak types.

    Weakly typed leaves (Python scalars in optax states) would change the type of the state after
    its first step, or in a checkpoint, and with it what the compiled step accepts.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype), tree)
