"""Steps of Radau IIA for differential-algebraic equations that need not be mechanics."""

from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from jaxdae.derivatives.implicit import implicit_root
from jaxdae.linalg.lu import Factors, product
from jaxdae.solvers.dae_term import DAEAt
from jaxdae.solvers.newton import newton, tangent_of
from jaxdae.solvers.radau_stages import (
    ESTIMATE,
    GAMMA,
    INVERSE,
    NODES,
    Past,
    predicted,
    StageMatrix,
)

# Variables smaller than this power of the machine epsilon, relative to the largest, are followed to
# so many digits of the largest.
_SMALL = 0.4


def begin(here: DAEAt, t0) -> Past:
    """The prediction of the first step: all stays, as rates of fast parts lead too far."""
    variables = here.variables
    entries, _ = ravel_pytree(variables.y if here.equations.implicit else variables)
    changes = jnp.zeros((NODES.size, entries.size), entries.dtype)
    return Past(changes, jnp.zeros(0, entries.dtype), jnp.ones((), t0.dtype))


def step(terms, t0, t1, y0, args, past: Past, made_jump):
    r"""One step, as `RadauIIA.counted_step` returns it; one of no length changes nothing.

    Collocation of `y` and, at its nodes, of `z`: constraints hold in all stages, the last of which
    is the end [HairerLubichRoche1989]. Of order 5 in `y`; in `z` 5 at index 1, 3 at index 2, where
    `jaxdae.solve` computes `z` anew from `y`. The error estimate of `z` counts, at index 2 times
    the step. Implicit equations have rates beside `y` in their state, which are those of the last
    stage and in which there is no error.
    """
    entries, unravel = ravel_pytree(y0)
    t0, t1, dtype = jnp.asarray(t0), jnp.asarray(t1), entries.dtype
    h = terms.contr(t0, t1).astype(dtype)
    times = [t0 + float(c) * (t1 - t0) for c in NODES[:-1]] + [t1]
    at_start: DAEAt = terms.vf(t0, y0, args)
    implicit, index = at_start.equations.implicit, at_start.index
    n = ravel_pytree(at_start.variables.y)[0].size
    # Unknowns of a stage: of implicit equations y alone, and rates follow.
    unknowns = n if implicit else entries.size
    start, rest = entries[:unknowns], entries[unknowns:]
    inverse = jnp.asarray(INVERSE, dtype)

    def at(t, x) -> DAEAt:
        return terms.vf(t, unravel(jnp.concatenate([x, rest])), args)

    def all_stages(x):
        changes = product(inverse, x[:, :n])
        return jax.vmap(lambda t, s, x: at(t, x).safe(DAEAt.residual, h, s))(
            jnp.stack(times), changes, start + x
        )

    guess = predicted(past, h, t1 - t0, made_jump)
    there, moving = start + guess[1], product(inverse[1], guess[:, :n])
    if implicit:  # the matrix of the first step is that of the rates there
        moving = jnp.where(jnp.any(guess != 0), moving, h * rest)
    linear = jax.jacfwd(lambda x: at(times[1], x).residual(h, moving))(there)
    inertia = at(times[1], there).inertia()
    if inertia is None:
        inertia = jax.jacfwd(lambda s: at(times[1], there).residual(h, s))(moving)
    inertia = jnp.zeros((unknowns, unknowns), dtype).at[: len(inertia), :n].set(inertia)
    inertia, linear = jax.lax.stop_gradient((inertia, linear))
    matrix = StageMatrix.of(inertia, linear, jnp.zeros(unknowns, dtype))
    sizes = partial(_sizes, start=start, inertia=inertia, linear=linear, n=n, index=index)

    def solve(function, guess):
        return newton(function, guess, matrix, sizes)

    x, counts = implicit_root(all_stages, guess, solve, Partial(tangent_of, matrix=matrix))
    good = counts.converged > 0
    weighted = product(jnp.asarray(ESTIMATE, dtype), x[:, :n])
    error = _estimate(at, t0, start, h, weighted, (matrix, inertia, linear), implicit, index)
    changes = x
    if implicit:
        length = jnp.where(h == 0, 1.0, h)
        rates = product(inverse, x) / length
        changes = jnp.concatenate([x, jnp.where(h == 0, 0.0, rates - rest)], axis=1)
        error = jnp.concatenate([error, jnp.zeros_like(rest)])
    # In a step of no length z, too, stays as it is.
    changes = jnp.where(h == 0, jnp.zeros_like(changes), changes)
    y1 = unravel(jnp.where(good, entries + changes[-1], jnp.nan))
    error = unravel(jnp.where(good, error, jnp.inf))
    dense: dict[str, Any] = {"y0": y0, "y1": y1, "k": jax.vmap(unravel)(changes)}
    left = jax.lax.stop_gradient(Past(x, jnp.zeros(0, dtype), t1 - t0))
    return (y1, error, dense, left, diffrax.RESULTS.successful), counts


def _estimate(at, t0, start, h, weighted, matrices, implicit: bool, index: int):
    """The error estimate of the unknowns.

    It evaluates the equations at the beginning, where values need not satisfy the algebraic ones:
    an input may have jumped there, and only what those equations do not fix is handed on.
    """
    (matrix, inertia, linear), n = matrices, weighted.size
    if implicit:
        # Of what algebraic equations fix, the error that follows from that of the rest.
        error = matrix.real.solved(-at(t0, start).residual(h, -weighted))
        return matrix.real.solved(GAMMA * product(inertia, error))
    if index == 1:
        # A Newton step takes z to where it belongs.
        lacking = at(t0, start).residual(h, -weighted)[n:]
        start = start.at[n:].add(-Factors.of(linear[n:, n:]).solved(lacking))
    residual = at(t0, start).residual(h, -weighted).at[n:].set(0.0)
    error = matrix.real.solved(-residual)
    return error.at[n:].multiply(jnp.minimum(1.0, jnp.abs(h))) if index == 2 else error


def _sizes(change, x, *, start, inertia, linear, n: int, index: int):
    """Of changes, relative: of variables and, at index 2, of what `z` does to `y`.

    Each variable by itself, so that small ones have digits beside large ones, too.
    """
    count = n if index == 2 else start.size
    states, moved = (start + x)[:, :count], jnp.abs(change[:, :count])
    small = float(jnp.finfo(x.dtype).eps) ** _SMALL
    largest = 1 + jnp.max(jnp.abs(states))
    single = jnp.max(moved / (jnp.abs(states) + small * largest))
    if index != 2:
        return jnp.stack([jnp.max(moved) / largest, single])
    acting = lambda z: product(z, linear[:n, n:].T)  # noqa: E731
    inertial = product(product(jnp.asarray(INVERSE, x.dtype), x[:, :n]), inertia[:n, :n].T)
    scale = jnp.max(jnp.abs(inertia)) * small * largest
    scale = scale + jnp.max(jnp.abs(acting(start[n:] + x[:, n:]))) + jnp.max(jnp.abs(inertial))
    forces = jnp.max(jnp.abs(acting(change[:, n:]))) / scale
    return jnp.stack([jnp.max(moved) / largest, jnp.maximum(single, forces)])
