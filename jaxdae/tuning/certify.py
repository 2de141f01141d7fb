"""Whether the gradient of a function of parameters may be followed."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from jaxdae.certification.certificate import GradientCertificate
from jaxdae.certification.evaluations import Evaluator
from jaxdae.certification.examination import DIGITS, GradientExamination
from jaxdae.stability.arguments import is_real
from jaxdae.systems.calls import described
from jaxdae.tuning.parametrizations import resolve, trainable


def certify(
    function: Callable[[PyTree], Any],
    params: PyTree,
    *,
    digits: float = DIGITS,
    backends: bool = True,
) -> GradientCertificate:
    """Whether the gradient of a function of runs may be followed, and why not.

    Derivatives are examined in a random direction `v`, in which every parameter changes by a part
    of its size, and by random weights `w` of the values. Compared are

        <J v, w>  and  <v, J^T w>,                              forward and reverse mode,
        J v  and  (8 (f(h v) - f(-h v)) - f(2h v) + f(-2h v)) / 12 h,    values alone,

    with a step that suits the function's own noise; `J v` by the other backend; and `J^T w` where
    adaptive steps have a tenth of their tolerance. Of the runs behind the function, however deep
    inside of it (`jax.jit`, `jax.vmap`), findings are read, constraint residuals and the balance of
    energy, the margin of the constraints' rank, the order of events and how it changes with the
    parameters, and the growth of perturbations along the longest of them [MetzEtAl2021]. All of it
    takes at most 12 evaluations of the function.

    Args:
        function: maps the resolved parameters to numbers, a scalar, an array, a pytree or a
            `Trajectory`; traceable.
        params: pytree of parameters. Examined are derivatives by the floating-point arrays and
            parametrizations, as `tune` trains them; where there are none, by the Python numbers.
        digits: decimal digits that are asked for.
        backends: whether runs that the native backend makes are made once by the plain one, which
            takes XLA some seconds to compile.

    Returns:
        `GradientCertificate`: `passed`, `reason`, `digits` and the numbers of each examination.

    Raises:
        ValueError: for parameters without a floating-point number, digits that are not positive, a
            function of complex numbers, without a result, or without a derivative in either mode.
        TypeError: for what is no function.
    """
    if not (is_real(digits) and 0 < digits < 16):
        raise ValueError(f"certify: digits is {digits!r}, must be a number between 0 and 16.")
    trained, evaluator = _evaluator(function, params)
    point = evaluator.flat(trained)
    return GradientExamination(evaluator, point, digits, backends=backends).certificate()


def _evaluator(function: Callable[[PyTree], Any], params: PyTree) -> tuple[PyTree, Evaluator]:
    """The part of parameters that is examined, and the function of it."""
    if not callable(function):
        raise TypeError(
            f"certify: function is {described(function)}, must be a function of the parameters; "
            "did its arguments come in another order? certify(function, params)."
        )
    trained, frozen = eqx.partition(params, trainable(params))
    if not jax.tree.leaves(trained):
        numbers = jax.tree.map(lambda x: isinstance(x, float), params)
        trained, frozen = eqx.partition(params, numbers)
        trained = jax.tree.map(jnp.asarray, trained)
    leaves = jax.tree.leaves(trained)
    if not leaves:
        raise ValueError(
            "certify: there is no derivative by `params`, which have no floating-point number; "
            "write jnp.array(20.0) in place of 20."
        )
    if any(jnp.iscomplexobj(x) for x in leaves):
        raise ValueError(
            "certify: a parameter is complex; hold its real and imaginary part as two arrays."
        )
    trained = jax.tree.map(jnp.asarray, trained)

    def of_trained(x: PyTree) -> Any:
        return function(resolve(eqx.combine(x, frozen)))

    return trained, Evaluator(of_trained, trained)
