"""Descent from several starts at once: pure functions of a state, traced once."""

from collections.abc import Callable
from typing import Any, NamedTuple, TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PyTree

from jaxdae.systems.calls import traced_in_words
from jaxdae.tuning.parametrizations import resolve, trainable

# optax is imported where it is used: many programs that import the package never tune.
if TYPE_CHECKING:
    import optax


def default_optimizer() -> "optax.GradientTransformation":
    """Adam with learning rate 0.05, after clipping the gradient to norm 1.

    A step changes a `Positive` or the scale of a `PositiveDefinite` by about five per cent. The
    clipping keeps one steep gradient, near a stability limit, from filling Adam's memory. Adam's
    `eps` is 1e-16: squared violations and their gradients are often far below its usual 1e-8,
    which would then slow the steps down.

    Returns:
        An optax optimizer.
    """
    import optax

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.05, eps=1e-16))


# Length of the gradient step in place of one that overflowed: as long as a step of the default.
_FALLBACK_STEP = 0.05


class Record(NamedTuple):
    """What happened in one evaluation; stacked over the starts, a row of `TuningHistory`.

    Attributes:
        loss: objective at the trial point.
        gradient_norm: Euclidean norm of its gradient.
        skipped: whether the trial, or the optimizer's step from it, was refused.
    """

    loss: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    skipped: Bool[Array, ""]


class Start(eqx.Module):
    """State of the descent from one start; stacked over the starts.

    Attributes:
        point: last point with a finite loss and gradient, or the initial one.
        update: step from it that is tried next.
        optimizer: state of the optimizer.
        best: point of the smallest loss so far.
        best_loss: that loss. In the widest precision enabled, which holds the loss of every
            objective exactly: its own would cost another trace of the objective to find out.
    """

    point: PyTree
    update: PyTree
    optimizer: PyTree
    best: PyTree
    best_loss: Float[Array, ""]


class Problem(eqx.Module):
    """An objective of the trained part of a pytree, and how to descend on it."""

    objective: Callable
    trained: PyTree
    frozen: PyTree
    optimizer: "optax.GradientTransformationExtraArgs"
    mode: str = eqx.field(static=True)

    @classmethod
    def make(cls, objective, params: PyTree, optimizer, mode: str) -> "Problem":
        """Split the parameters; refuse those that cannot be trained."""
        import optax

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
        trained = jax.tree.map(jnp.asarray, trained)
        optimizer = default_optimizer() if optimizer is None else optimizer
        _check_optimizer(optimizer)
        return cls(objective, trained, frozen, optax.with_extra_args_support(optimizer), mode)

    def params(self, trained: PyTree) -> PyTree:
        """All parameters, parametrizations kept, from their trained part."""
        return eqx.combine(trained, self.frozen)

    def loss(self, trained: PyTree) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Objective at a trained part, and once more as what comes beside its derivative."""
        loss = traced_in_words("the objective", self.objective, resolve(self.params(trained)))
        if loss is None:
            raise ValueError("tune: the objective returned nothing; end it with `return …`.")
        loss = jnp.asarray(loss)
        if loss.shape != () or not jnp.issubdtype(loss.dtype, jnp.floating):
            raise ValueError(
                f"tune: the objective returned {loss.dtype}{list(loss.shape)}, needs a real "
                "floating-point scalar; sum or average its entries."
            )
        return loss, loss

    def initial_state(self, starts: int, spread: float, key: Array) -> Start:
        """All starts at the initial point; a perturbation is a first step that may be refused."""
        flat, unravel = ravel_pytree(self.trained)
        noise = spread * jax.random.normal(key, (starts, flat.size), flat.dtype)
        updates = jax.vmap(unravel)(noise.at[0].set(0.0))
        point = jax.tree.map(lambda x: jnp.broadcast_to(x, (starts, *x.shape)), self.trained)
        loss = jnp.full((starts,), jnp.inf, jnp.result_type(float))
        state = Start(point, updates, jax.vmap(self.optimizer.init)(point), point, loss)
        return strongly_typed(state)


def descend(static: Problem, arrays: Problem, state: Start) -> tuple[Start, Record]:
    """Evaluate at `point + update`; move there and choose the next step, or halve this one.

    Where the optimizer's own step is not finite, the next step is along the gradient. The
    optimizer, its memory as it was before, is asked again from the point reached by it: asked again
    from the same point, it would only fail again. The problem comes without its arrays, and these.
    """
    import optax

    problem = eqx.combine(arrays, static)
    trial = optax.apply_updates(state.point, state.update)
    if problem.mode == "reverse":
        (loss, _), gradient = jax.value_and_grad(problem.loss, has_aux=True)(trial)
    else:
        slopes, loss = jax.jacfwd(problem.loss, has_aux=True)(trial)
        gradient = jax.tree.map(lambda slope, x: slope.astype(x.dtype), slopes, trial)
    norm = optax.tree.norm(gradient)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    scalar = lambda x: problem.loss(x)[0]  # noqa: E731
    update, optimizer = problem.optimizer.update(
        gradient, state.optimizer, trial, value=loss, grad=gradient, value_fn=scalar
    )
    accepted = finite & jnp.isfinite(optax.tree.norm(update))
    better = finite & (loss < state.best_loss)
    half = jax.tree.map(lambda u: 0.5 * u, state.update)
    new = Start(
        point=_where(finite, trial, state.point),
        update=_where(accepted, update, _where(finite, _gradient_step(gradient, norm), half)),
        optimizer=_where(accepted, optimizer, state.optimizer),
        best=_where(better, trial, state.best),
        best_loss=jnp.where(better, loss, state.best_loss),
    )
    return strongly_typed(new), Record(loss, norm, ~accepted)


def _check_optimizer(optimizer: Any) -> None:
    import optax

    if isinstance(optimizer, optax.GradientTransformation):
        return
    name = getattr(optimizer, "__qualname__", repr(optimizer))
    raise ValueError(
        f"tune: optimizer is {name}, must be an optax optimizer; call the function that makes "
        "one, e.g. optimizer=optax.adam(0.05), or leave it out."
    )


def _gradient_step(gradient: PyTree, norm: Array) -> PyTree:
    """A step against the gradient, of length 0.05 at most."""
    factor = _FALLBACK_STEP / jnp.maximum(norm, 1.0)
    return jax.tree.map(lambda g: (-factor * g).astype(g.dtype), gradient)


def _where(condition: Array, x: PyTree, y: PyTree) -> PyTree:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), x, y)


def strongly_typed(tree: PyTree) -> PyTree:
    """The same arrays without JAX's weak types.

    Weakly typed leaves (Python scalars in optax states) would change the type of the state after
    its first step, or in a checkpoint, and with it what the compiled step accepts.
    """
    return jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype), tree)
