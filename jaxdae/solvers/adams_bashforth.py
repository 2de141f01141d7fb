"""Explicit Adams methods: one evaluation of the right-hand side for each step."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.solvers.base import AbstractTracedSolver
from jaxdae.solvers.quintic import QuinticHermite, two_derivatives

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
    the order is (`jaxdae.step_limit`). Steps may be of different lengths, such as a last one that
    is shorter: the polynomial is that through the times that there are. The first `k - 1` steps,
    and those after a declared jump of an input (`diffrax.ClipStepSizeController`), are made by the
    Runge-Kutta method of order 5 of `diffrax.Dopri5`, whose errors are below those of the method.

    There is no estimate of the error: steps are fixed. Rows between steps are on Hermite's
    polynomials, of the order of the method: of degree 3, which take one evaluation more for each
    step, or above order 4 of degree 5, which also differentiate the right-hand side along the
    motion at both ends of each step. `Projected` and controllers that are sampled change the ends
    of steps, and are refused.

    Its roots of stability, `zeta^k - zeta^(k-1) - z (b_1 zeta^(k-1) + … + b_k) = 0`, are known to
    `jaxdae.step_limit` and `Baumgarte.for_step`.

    Args:
        steps: number of steps, and order, 1 to 6.

    Raises:
        ValueError: for another number.
    """

    steps: int = eqx.field(default=4, static=True)

    term_structure: ClassVar[Any] = diffrax.AbstractTerm

    def __check_init__(self):
        if not (isinstance(self.steps, int) and 1 <= self.steps <= 6):
            raise ValueError(f"AdamsBashforth has 1 to 6 steps; got {self.steps}.")

    @property
    def linear_steps(self) -> np.ndarray:
        """Weights of the newest to the oldest rate in steps of one length.

        Exact for polynomials of degree `steps-1`; by it stability functions know the method.
        """
        nodes = -np.arange(self.steps, dtype=float)
        powers = np.arange(self.steps)
        return np.linalg.solve(nodes[None] ** powers[:, None], 1.0 / (powers + 1.0))

    @property
    def interpolation_cls(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Dense output: Hermite's polynomial of degree 3, or 5 above order 4."""
        cubic = diffrax.ThirdOrderHermitePolynomialInterpolation
        return cubic if self.steps <= 4 else QuinticHermite

    def order(self, terms):
        """Order of convergence: the number of steps."""
        return self.steps

    def func(self, terms, t0, y0, args):
        """The rate of change at a time [s]."""
        return terms.vf(t0, y0, args)

    def init(self, terms, t0, t1, y0, args):
        """No rates are known."""
        dtype, count = _dtype(y0), self.steps - 1
        rates = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), y0)
        return History(rates, jnp.zeros(count, dtype), jnp.zeros((), dtype))

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        t0, t1, dtype = jnp.asarray(t0), jnp.asarray(t1), _dtype(y0)
        h, past, count = (t1 - t0).astype(dtype), solver_state, self.steps - 1
        known = jnp.where(made_jump, 0.0, past.known).astype(dtype)
        rate = _rate(terms, args, t0)
        first = rate(t0, y0)
        rates = jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, past.rates)
        end = _moved(y0, h * _weights(past.ages, h), rates)
        if count:
            begun = _begun(known < count, terms, args, t0, t1, y0)
            end = _chosen(known < count, begun, end)
        still = h == 0
        end = _chosen(still, y0, end)
        ages = jnp.concatenate([jnp.zeros(1, dtype), past.ages])[:count] + h
        newest = jax.tree.map(lambda x: x[:count], rates)
        new = _chosen(still, past, History(newest, ages, jnp.minimum(known + 1, count)))
        dense = {"y0": y0, "y1": end}
        if self.steps <= 4:
            ends = (first, rate(t1, end))
            dense["k0"], dense["k1"] = (jax.tree.map(lambda x: h * x, x) for x in ends)
        else:
            dense["k0"], dense["c0"] = two_derivatives(rate, t0, y0, h)
            dense["k1"], dense["c1"] = two_derivatives(rate, t1, end, h)
        return end, None, dense, new, diffrax.RESULTS.successful


def _dtype(y):
    return jax.tree.leaves(y)[0].dtype


def _chosen(condition, yes, no):
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), yes, no)


def _moved(y, weights, rates):
    """A state moved by rates, which are along a first axis of each leaf."""

    def moved(x, slopes):
        return x + jnp.tensordot(weights.astype(x.dtype), slopes, 1, precision="highest")

    return jax.tree.map(moved, y, rates)


def _rate(terms, args, t0) -> Callable:
    """`dy/dt` at times of diffrax, which always increase."""
    one = terms.contr(jnp.zeros_like(t0), jnp.ones_like(t0))

    def rate(t, y):
        change = terms.vf_prod(t, y, args, one)
        return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), change, y)

    return rate


def _weights(ages, h):
    """Weights of rates in the mean over a step of the polynomial through them.

    By Newton's divided differences, of which those of times alone are formed; `ages` are the times
    from all rates but the newest to the beginning of the step [s], shape `(k-1,)`.
    """
    times = [jnp.zeros_like(h), *(-ages[i] for i in range(ages.size))]
    weights = [jnp.ones_like(h)]
    # Of rates in the last divided difference, and of powers of time in the product of all t - t_i.
    parts, powers = [jnp.ones_like(h)], [0.0, 1.0]
    for j, time in enumerate(times[1:], start=1):
        # Where rates are not known yet their times coincide, and the result is not wanted.
        inverse = [1 / jnp.where(x == time, 1.0, x - time) for x in times[:j]]
        parts = [a * b for a, b in zip(parts, inverse, strict=True)]
        last: Any = math.prod(-x for x in inverse)
        parts.append(last)
        mean = sum(c * h**i / (i + 1) for i, c in enumerate(powers))
        weights = [a + mean * b for a, b in zip([*weights, 0.0], parts, strict=True)]
        powers = [a - time * b for a, b in zip([0.0, *powers], [*powers, 0.0], strict=True)]
    return jnp.stack(weights)


def _first_step(terms, args, t0, t1, y0):
    """The end of a step by a Runge-Kutta method."""
    rate, dtype, count = _rate(terms, args, t0), _dtype(y0), len(_FIRST.a_lower)
    h = (t1 - t0).astype(dtype)
    matrix = np.zeros((count + 1, count))
    for i, row in enumerate(_FIRST.a_lower, start=1):
        matrix[i, :i] = row

    def stage(rates, row):
        i, weights, c = row
        t = jnp.where(c == 1, t1, t0 + c * (t1 - t0))
        new = rate(t, _moved(y0, h * weights, rates))
        return jax.tree.map(lambda x, k: x.at[i].set(k), rates, new), None

    rates = jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), y0)
    times = jnp.asarray(np.concatenate([[0], _FIRST.c[:-1]]), t0.dtype)
    rows = np.arange(count), jnp.asarray(matrix[:-1], dtype), times
    rates, _ = jax.lax.scan(stage, rates, rows)
    # The last row is that of the end.
    return _moved(y0, h * jnp.asarray(matrix[-1], dtype), rates)


# In a batch both sides of a condition are computed, but no turns of a loop that takes none; a
# derivative in reverse mode needs the condition.


@eqx.filter_custom_jvp
def _begun(wanted, *arguments):
    """The end of the first step where it is wanted, else its beginning."""
    once = lambda _: (jnp.zeros_like(wanted), _first_step(*arguments))  # noqa: E731
    return jax.lax.while_loop(lambda x: x[0], once, (wanted, arguments[-1]))[1]


def _conditional(wanted, *arguments):
    # Made anew on the way back, so that steps that are not wanted keep nothing of it.
    first_step = eqx.filter_checkpoint(_first_step, prevent_cse=False)
    return jax.lax.cond(wanted, lambda: first_step(*arguments), lambda: arguments[-1])


@_begun.def_jvp
def _begun_jvp(primals, tangents):
    return eqx.filter_jvp(_conditional, primals, tangents)
