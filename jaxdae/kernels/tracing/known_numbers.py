"""Equations whose arguments are all known while a program is traced, computed at once.

By NumPy: each shape of a primitive that JAX computes itself is compiled first, which takes longer
than all the rest.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.primitives.interpreter import computed_by_numpy


def computed(equation, values: list) -> list[Any]:
    """Results of an equation whose arguments are all known."""
    results = computed_by_numpy(equation, values)
    return _by_jax(equation.primitive, values, equation.params) if results is None else results


def _by_jax(primitive, values, params) -> list[Any]:
    with jax.ensure_compile_time_eval():
        results: Any = primitive.bind(*map(jax.device_put, values), **params)
    return [known(x) for x in (results if primitive.multiple_results else [results])]


def known(x, dtype=None) -> Any:
    """Numbers as NumPy's, keys of random numbers as they are."""
    keys = hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.extended)
    return x if keys else np.asarray(x, dtype)
