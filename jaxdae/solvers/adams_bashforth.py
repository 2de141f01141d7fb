"""Explicit Adams methods: one evaluation of the right-hand side for each step."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.linalg.lu import product
from jaxdae.solvers.base import AbstractTracedSolver

# Of the first steps. Its error in a step is of order 6, below that of any of the methods.
_FIRST: Any = diffrax.Dopri5.tableau


class History(NamedTuple):
    """Rates at the beginnings of the last steps.

    Args:
        rates: `h f` over `h`, the newest first, shape `(steps-1, n)`.
        ages: times from each to the beginning of the next step [s], shape `(steps-1,)`.
        known: how many there are.
    """

    rates: Any
    ages: Any
    known: Any


class AdamsBashforth(AbstractTracedSolver):
    r"""The explicit Adams-Bashforth method of some steps, and of as high an order.

    The rate is that of the polynomial through the rates at the beginnings of the last `k` steps
    [HairerNorsettWanner1993, section III.1]:

        y_1 = y_0 + int_(t_0)^(t_1) p(t) dt,        p(t_0) = f(t_0, y_0), p(t_-1) = f(t_-1, y_-1), …

    A step evaluates the right-hand side once, whatever the order, and is for right-hand sides that
    are dear: its steps have to be shorter than those of Runge-Kutta methods, the more so the higher
    the order is (`jaxdae.step_limit`). Steps may be of different lengths, such as a last one that is
    shorter: the polynomial is that through the times that there are. The first `k - 1` steps, and
    those after a jump of an input that is declared (`diffrax.ClipStepSizeController`), are made by
    the Runge-Kutta method of order 5 of [DormandPrince1980], whose errors are below those of the
    method.

    There is no estimate of the error: steps are fixed. Rows between steps are cubic Hermite
    interpolations. `Projected` and controllers that are sampled change the ends of steps, and are
    refused. As each step depends on those before, kernels, which make its steps, do not
    differentiate them: gradients are those of the plain program, in both modes.

    Its roots of stability, `zeta^k - zeta^(k-1) - z (b_1 zeta^(k-1) + … + b_k) = 0`, are known to
    `jaxdae.step_limit` and `Baumgarte.for_step`.

    Args:
        steps: number of steps, and order, 1 to 6.

    Raises:
        ValueError: for another number.
    """

    steps: int = eqx.field(static=True)

    term_structure: ClassVar[Any] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Callable[..., diffrax.ThirdOrderHermitePolynomialInterpolation]] = (
        diffrax.ThirdOrderHermitePolynomialInterpolation
    )
    remembers: ClassVar[bool] = True

    def __check_init__(self):
        if not (isinstance(self.steps, int) and 1 <= self.steps <= 6):
            raise ValueError(f"AdamsBashforth has 1 to 6 steps; got {self.steps}.")

    def coefficients(self) -> np.ndarray:
        """Weights of the newest to the oldest rate: exact for polynomials of degree `steps-1`."""
        nodes = -np.arange(self.steps, dtype=float)
        powers = np.arange(self.steps)
        return np.linalg.solve(nodes[None] ** powers[:, None], 1.0 / (powers + 1.0))

    @property
    def linear_steps(self) -> np.ndarray:
        """By which stability functions know a multistep method: `coefficients()`."""
        return self.coefficients()

    def order(self, terms):
        """Order of convergence: the number of steps."""
        del terms
        return self.steps

    def func(self, terms, t0, y0, args):
        """The rate of change at a time [s]."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args):
        """No rates are known."""
        del terms, t0, t1, args
        y, _ = ravel_pytree(y0)
        count = self.steps - 1
        zero = jnp.zeros((), y.dtype)
        return History(jnp.zeros((count, y.size), y.dtype), jnp.zeros(count, y.dtype), zero)

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        t0, t1 = jnp.asarray(t0), jnp.asarray(t1)
        y, unravel = ravel_pytree(y0)
        h, dtype = (t1 - t0).astype(y.dtype), y.dtype
        past, count = solver_state, self.steps - 1
        known = jnp.where(made_jump, 0.0, past.known).astype(dtype)

        one = terms.contr(jnp.zeros_like(t0), jnp.ones_like(t0))

        def rate(t, y):
            """Times are those of diffrax, which always increase."""
            return ravel_pytree(terms.vf_prod(t, unravel(y), args, one))[0].astype(dtype)

        first = rate(t0, y)
        rates = jnp.concatenate([first[None], past.rates])
        if count:
            going_on = y + h * _mean(rates, past.ages, h)
            begun = _begun(rate, first, t0, t1, y, known < count)
            end = jnp.where(known < count, begun, going_on)
        else:
            end = y + h * first
        still = h == 0
        end = jnp.where(still, y, end)
        ages = jnp.concatenate([jnp.zeros(1, dtype), past.ages])[:count] + h
        new = History(rates[:count], ages, jnp.minimum(known + 1, count))
        new = jax.tree.map(lambda a, b: jnp.where(still, a, b), past, new)
        last = rate(t1, end)
        dense = {"y0": y0, "y1": unravel(end), "k0": unravel(h * first), "k1": unravel(h * last)}
        return unravel(end), None, dense, new, diffrax.RESULTS.successful


def _mean(rates, ages, h):
    """Mean over a step of the polynomial through rates, by Newton's divided differences.

    Args:
        rates: the newest, of the beginning of the step, first, shape `(k, n)`.
        ages: times from all others to the first [s], shape `(k-1,)`.
        h: length of the step [s].
    """
    times = [jnp.zeros_like(h), *(-ages[i] for i in range(ages.size))]
    # Where rates are not known yet their times are not in order, and the result is not wanted.
    apart = lambda a, b: jnp.where(a == b, 1.0, a - b)  # noqa: E731
    differences = list(rates)
    total = differences[0]
    # Coefficients, from that of the constant on, of the product of all t - t_i.
    powers = [jnp.zeros_like(h), jnp.ones_like(h)]
    for j in range(1, len(times)):
        pairs = zip(differences[:-1], differences[1:], times, times[j:], strict=False)
        differences = [(a - b) / apart(x, z) for a, b, x, z in pairs]
        mean = sum(c * h**i / (i + 1) for i, c in enumerate(powers))
        total = total + mean * differences[0]
        shifted = [jnp.zeros_like(h), *powers]
        powers = [a - times[j] * b for a, b in zip(shifted, [*powers, 0.0], strict=True)]
    return total


def _begun(rate: Callable, first, t0, t1, y, wanted):
    """The end of a step by a Runge-Kutta method, where it is wanted, else its beginning."""
    h, dtype, count = (t1 - t0).astype(y.dtype), y.dtype, len(_FIRST.a_lower)
    matrix = np.zeros((count, count))
    for i, row in enumerate(_FIRST.a_lower):
        matrix[i, : i + 1] = row

    def stage(rates, row):
        i, weights, c = row
        t = jnp.where(c == 1, t1, t0 + c * (t1 - t0))
        return rates.at[i].set(rate(t, y + h * product(weights, rates))), None

    def step():
        # The method's last row of weights is that of its end.
        places, c = np.arange(1, count), jnp.asarray(_FIRST.c[:-1], t0.dtype)
        rates = jnp.zeros((count, y.size), dtype).at[0].set(first)
        rows = places, jnp.asarray(matrix[:-1], dtype), c
        rates, _ = jax.lax.scan(stage, rates, rows)
        return y + h * product(jnp.asarray(matrix[-1], dtype), rates)

    return jax.lax.cond(wanted, step, lambda: y)
