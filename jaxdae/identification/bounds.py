"""Which estimates ended at a bound of their interval."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from jaxdae.identification.naming import names_of
from jaxdae.tuning.parametrizations import Interval, is_parametrization

# Nearer to a bound than this part of the interval; standard errors of normal theory say nothing
# of estimates in the middle.
_NEAR = 1e-2


def at_bounds(params: PyTree, errors: np.ndarray) -> tuple[str, ...]:
    """Names of the numbers nearer to a bound of their `Interval` than their standard error.

    Args:
        params: the estimate with its parametrizations.
        errors: standard errors of the estimated numbers, in the order of their names.
    """
    leaves = jax.tree.leaves(params, is_leaf=is_parametrization)
    estimated = [x for x in leaves if is_parametrization(x) or eqx.is_inexact_array(x)]
    parts = [_distances(x) for x in estimated]
    near, width = (np.concatenate(x) for x in zip(*parts, strict=True))
    # Where nothing changes any more, the standard error is zero or infinite: both are at the bound.
    close = (near <= _NEAR * width) & ((near <= errors) | (near <= 1e-9 * width))
    return tuple(x for x, is_so in zip(names_of(params).values, close, strict=True) if is_so)


def _distances(leaf) -> tuple[np.ndarray, np.ndarray]:
    """Distance of each number from the nearer bound, and length of its interval."""
    value = np.ravel(np.asarray(leaf.value if is_parametrization(leaf) else leaf))
    if not isinstance(leaf, Interval):
        return np.full(value.shape, np.inf), np.ones(value.shape)
    lower, upper = np.ravel(leaf.lower), np.ravel(leaf.upper)
    return np.minimum(value - lower, upper - value), upper - lower
