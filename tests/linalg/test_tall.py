"""Short forms of residuals and Jacobians, and factorizations in blocks, against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.linalg.tall import shortened, triangle

# Fewer residuals than parameters, one more, and several levels of blocks with rest.
SIZES = {"wide": (2, 4), "one more": (5, 4), "blocks": (5003, 4)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_short_form_has_the_norm_and_linearization_of_the_long_one(rng, size, dtype):
    m, p = SIZES[size]
    # One column as a combination of others, and units far apart.
    jacobian = rng.normal(size=(m, p)) * np.array([1e-3, 1.0, 1e4, 1.0])
    jacobian[:, 3] = jacobian[:, 1] + 1e-4 * jacobian[:, 2]
    residuals, step = rng.normal(size=m), rng.normal(size=p) / np.array([1e-3, 1.0, 1e4, 1.0])
    short = shortened(*(jnp.asarray(a, dtype) for a in (residuals, jacobian)))
    assert short.value.shape == (min(m, p + 1),)
    assert short.slope.shape == (min(m, p + 1), p)
    round_off = 100 * float(jnp.finfo(dtype).eps)
    lengths = np.linalg.norm(jacobian, axis=0) * np.linalg.norm(residuals)
    np.testing.assert_allclose(
        (short.value @ short.slope) / lengths, residuals @ jacobian / lengths, atol=round_off
    )
    for dx in (0 * step, step):
        found = np.linalg.norm(short.value + short.slope @ jnp.asarray(dx, dtype))
        np.testing.assert_allclose(found, np.linalg.norm(residuals + jacobian @ dx), rtol=round_off)


@pytest.mark.parametrize("rows", [3, 49, 777])
def test_blocks_have_the_singular_values_of_all(rng, rows):
    """Of several matrices at once."""
    matrix = rng.normal(size=(2, rows, 3))
    expected = np.linalg.svd(matrix, compute_uv=False)
    factor = np.asarray(jax.vmap(triangle)(jnp.asarray(matrix)))
    found = np.linalg.svd(factor, compute_uv=False)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    np.testing.assert_allclose(np.tril(factor, -1), 0.0)
