"""Which optimizer: by name, by kind of objective, and what it asks of the objective."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from jaxdae.names import unknown_name
from jaxdae.tuning import damping, iteration
from jaxdae.tuning.constraints import check_constraints
from jaxdae.tuning.descent import default_optimizer, DESCENT
from jaxdae.tuning.iteration import ITERATION
from jaxdae.tuning.problem import Chosen, split, TuningProblem
from jaxdae.tuning.stochastic import Stochastic, stochastic_optimizer

Mode = Literal["auto", "forward", "reverse"]

# Up to so many parameters least squares are the choice where nothing else is said: a Jacobian has
# as many columns, and each costs a tangent.
FEW = 64


class NamedOptimizer(NamedTuple):
    """An optimizer with a name."""

    title: str  # as `TuningResult.method` has it
    description: str  # for whom it is, in one line
    make: Callable[[float], Any]  # the optimizer, from the round-off of the parameters' precision


OPTIMIZERS: dict[str, NamedOptimizer] = {
    "lm": NamedOptimizer(
        "Levenberg-Marquardt",
        "for objectives with residuals: fast, and independent of units",
        damping.levenberg_marquardt,
    ),
    "gauss-newton": NamedOptimizer(
        "Gauss-Newton with backtracking",
        "for objectives with residuals that are small or nearly linear",
        lambda _: damping.gauss_newton(),
    ),
    "l-bfgs": NamedOptimizer(
        "L-BFGS with backtracking",
        "for smooth objectives of few or many parameters",
        lambda _: optx.LBFGS(rtol=0.0, atol=0.0),
    ),
    "adam": NamedOptimizer(
        "Adam with a falling rate",
        "for any objective; slow, but it bears rough ones",
        lambda _: default_optimizer(),
    ),
    "slsqp": NamedOptimizer(
        "SLSQP of SciPy",
        "for objectives under constraints: sequential quadratic programs",
        lambda _: "slsqp",
    ),
    "trust-constr": NamedOptimizer(
        "trust-constr of SciPy",
        "for objectives under constraints, where SLSQP fails: trust regions and a barrier",
        lambda _: "trust-constr",
    ),
}


def choose(
    objective: Any,
    params: PyTree,
    optimizer: Any,
    mode: Mode = "auto",
    tolerance: float | None = None,
    constraints: Any = (),
    validation: Any = None,
    key: Array | None = None,
) -> Chosen:
    """The optimizer that was asked for, or the one that suits the objective."""
    derivatives = check_mode(objective, mode)
    problem = TuningProblem(objective, *split(params), None, derivatives)
    keys = (None, None) if key is None else drawing_keys(key, objective, validation)
    problem = dataclasses.replace(
        problem,
        constraints=check_constraints(constraints),
        key=keys[0],
        validation=validation,
        validation_key=keys[1],
    )
    point = ravel_pytree(problem.trained)[0]
    epsilon = float(jnp.finfo(point.dtype).eps)
    if optimizer is None:
        name, why = _suitable(problem, point.size)
    else:
        name, why = optimizer, "as asked"
    if isinstance(name, str):
        if name not in OPTIMIZERS:
            raise ValueError(f"tune: {unknown_name('optimizer', name, OPTIMIZERS)}")
        title, made = OPTIMIZERS[name].title, OPTIMIZERS[name].make(epsilon)
        if name == "adam" and problem.key is not None:
            title, made = "Adam with a rate that falls with the steps", stochastic_optimizer()
    else:
        title, made = _title(name), name
        tolerance = getattr(name, "rtol", None) if tolerance is None else tolerance
    tolerance = epsilon**0.5 if tolerance is None else float(tolerance)
    problem = dataclasses.replace(problem, tolerance=tolerance)
    return Chosen(*_driven(problem, made, title, point.size, mode), f"{title}, {why}")


def drawing_keys(key: Array, objective: Any, validation: Any) -> tuple[Array | None, Array | None]:
    """Keys of the draws of an objective and of a validation, `None` for those that draw nothing."""
    if not (isinstance(objective, Stochastic) or isinstance(validation, Stochastic)):
        return None, None
    training, validating = jax.random.split(key)
    return (
        training if isinstance(objective, Stochastic) else None,
        validating if isinstance(validation, Stochastic) else None,
    )


def check_mode(objective: Any, mode: str) -> str:
    """How to differentiate: as the objective says, else as asked, else in reverse."""
    if mode not in ("auto", "forward", "reverse"):
        raise ValueError(f'tune: mode is "{mode}", must be "auto", "forward" or "reverse".')
    built_for = getattr(objective, "mode", None)
    if built_for is None:
        return "reverse" if mode == "auto" else mode
    if mode not in ("auto", built_for):
        raise ValueError(
            f'tune: mode is "{mode}", but the objective is built for "{built_for}"; build it with '
            f'mode="{mode}", or leave tune at mode="auto".'
        )
    return built_for


def _suitable(problem: TuningProblem, size: int) -> tuple[str, str]:
    """Name of the optimizer for a kind of objective, and the reason."""
    if problem.constraints:
        names = ", ".join(x.name for x in problem.constraints)
        return "slsqp", f"because there are constraints ({names})"
    if problem.key is not None:
        return "adam", "because the objective is drawn anew in each step"
    if not _has_residuals(problem.objective):
        return "adam", "because the objective has no residuals"
    if problem.validation is not None:
        return "adam", "because a validation chooses the best parameters"
    try:
        count = _residual_struct(problem).size
    except NotImplementedError as error:
        # Of a class whose subclasses may have them. Other errors are mistakes in the residuals.
        if not callable(problem.objective):
            raise
        return "adam", f"because the objective has no residuals here ({error})"
    there = f"because the objective has {count} residuals of {size} parameters"
    if size > FEW:
        return "adam", f"{there}, too many for least squares unasked"
    if getattr(problem.objective, "mode", None) == "reverse" and count > size:
        return "adam", f"{there} and is built for reverse mode"
    return "lm", there


def _driven(problem: TuningProblem, optimizer: Any, title: str, size: int, mode: str):
    """The problem with its optimizer, and the method that drives it."""
    import optax

    if not isinstance(optimizer, optax.GradientTransformation):
        _refuse_draws(problem, title)
    if isinstance(optimizer, str):  # of SciPy
        return dataclasses.replace(problem, optimizer=optimizer), None
    if problem.constraints:
        raise ValueError(
            f"tune: {title} takes no constraints, and there is {problem.constraints[0].name!r}; "
            'choose "slsqp" or "trust-constr", or a parametrization that keeps the condition by '
            "itself: Positive, Interval, PositiveDefinite, HurwitzPolynomial."
        )
    if isinstance(optimizer, optax.GradientTransformation):
        optimizer = optax.with_extra_args_support(optimizer)
        return dataclasses.replace(problem, optimizer=optimizer), DESCENT
    problem = dataclasses.replace(problem, optimizer=optimizer)
    if isinstance(optimizer, iteration.MINIMISERS):
        return problem, ITERATION
    if not isinstance(optimizer, iteration.LEAST_SQUARES):
        raise ValueError(_not_an_optimizer(optimizer))
    if not _has_residuals(problem.objective):
        raise ValueError(
            f"tune: {title} needs residuals, and {_why_no_residuals(problem.objective)}; give "
            "LeastSquares(residuals), an object with a method `residuals`, or another optimizer: "
            '"l-bfgs" or "adam".'
        )
    struct = _residual_struct(problem)
    if getattr(problem.objective, "mode", None) is None and mode == "auto":
        cheaper = "forward" if size <= struct.size else "reverse"
        problem = dataclasses.replace(problem, mode=cheaper)
    return dataclasses.replace(problem, residuals_of=struct), ITERATION


def _refuse_draws(problem: TuningProblem, title: str) -> None:
    """Refuse optimizers that compare losses, or choose the best by them."""
    remedy = 'choose "adam", or an optimizer of optax'
    if problem.key is not None:
        raise ValueError(
            f"tune: {title} compares losses, and those of different draws of a Stochastic "
            f"objective cannot be compared; {remedy}, or draw once, outside of the objective."
        )
    if problem.validation is not None:
        raise ValueError(
            f"tune: {title} chooses the best parameters by the objective, not by a validation; "
            f"{remedy}, or leave `validation` out and evaluate it at the result."
        )


def _has_residuals(objective: Any) -> bool:
    return callable(getattr(objective, "residuals", None))


def _why_no_residuals(objective: Any) -> str:
    """In the words of an objective that has them in other cases, as a property that raises."""
    if hasattr(type(objective), "residuals"):
        try:
            _ = objective.residuals
        except AttributeError as error:
            return str(error).rstrip(".")
    return f"the objective, a {type(objective).__name__}, has none"


def _residual_struct(problem: TuningProblem) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(problem.residuals, problem.trained)[0]


def _title(optimizer: Any) -> str:
    """What a user's optimizer is, in words; the parts of optax's have no names."""
    import optax

    if isinstance(optimizer, optax.GradientTransformation):
        return "an optimizer of optax"
    return f"{type(optimizer).__name__} of optimistix"


def _not_an_optimizer(optimizer: Any) -> str:
    if isinstance(optimizer, optx.AbstractIterativeSolver):
        return (
            f"tune: {type(optimizer).__name__} of optimistix cannot be driven here; those that "
            "can are its Gauss-Newton, quasi-Newton and gradient methods, such as "
            "optimistix.Dogleg, optimistix.BFGS and optimistix.NonlinearCG."
        )
    name = getattr(optimizer, "__qualname__", repr(optimizer))
    return (
        f"tune: optimizer is {name}, must be a name ({', '.join(OPTIMIZERS)}), or an optimizer of "
        "optax or optimistix; call the function that makes one, e.g. "
        "optimizer=optax.adam(0.05), or leave it out."
    )
