"""Arrays of integers in products, tables, and searches: NumPy's numbers, and their slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.kernels import native, scalarize, UnsupportedOperationError

X = np.array([0.1, -0.7, 1.3, 2.5])
STARTS = [X, np.array([-0.5, 0.0, 0.4, 1.0]), np.array([0.0, -0.0, 5.0, -5.0])]
KNOTS, VALUES = np.array([-0.5, 0.0, 0.4, 1.0, 2.0]), np.array([1.0, -1.0, 0.5, 2.0, 3.0])
WHOLE = np.array([0, 1, 2, -1])

# The same for NumPy and for JAX.
CASES = {
    "matrix and integers": lambda xp, x: xp.outer(x, x) @ WHOLE,
    "integers and matrix": lambda xp, x: WHOLE @ xp.outer(x, x),
    "products": lambda xp, x: x * WHOLE + xp.einsum("i,i->", x, WHOLE),
    "powers": lambda xp, x: (1.0 + abs(x)) ** xp.array(WHOLE),
    "counted": lambda xp, x: x * ((xp.clip(x, -2, 2).astype(int) @ WHOLE) // 3),
    "interpolation": lambda xp, x: xp.interp(x, KNOTS, VALUES),
    "ends": lambda xp, x: xp.interp(x, KNOTS, VALUES, left=0.0, right=7.0),
    "period": lambda xp, x: xp.interp(x, KNOTS, VALUES, period=3.0),
    "values that depend": lambda xp, x: xp.interp(0.3, xp.cumsum(xp.exp(x)) - 1.5, x),
    "search": lambda xp, x: xp.searchsorted(KNOTS, x) * 1.0,
    "search from the right": lambda xp, x: xp.searchsorted(KNOTS, x, side="right") * x,
    "classes": lambda xp, x: xp.digitize(x, KNOTS) * x,
    "table": lambda xp, x: xp.asarray(VALUES)[xp.clip(xp.searchsorted(KNOTS, x), 0, 4)] * x,
    "truth values and integers": lambda _, x: ((x > 0) @ WHOLE) * x,
    "next to the largest": lambda xp, x: x[(xp.argmax(x) + 1) % 4] * x,
}


def everything(x):
    return [jnp.ravel(case(jnp, x)) for case in CASES.values()]


@pytest.fixture(scope="module")
def program():
    return scalarize(everything, X)


def test_they_are_what_numpy_gives(program, in_numpy):
    for x in STARTS:
        for name, found in zip(CASES, in_numpy(program, x), strict=True):
            # Sums of a few terms in another order.
            np.testing.assert_allclose(
                found, np.ravel(CASES[name](np, x)), rtol=1e-13, atol=1e-15, err_msg=name
            )


def test_total_order_knows_signs_of_zeros():
    def function(x):
        less, same = jax.lax.lt_to_p.bind(x[:1], x[1:]), jax.lax.eq_to_p.bind(x[:1], x[1:])
        return jnp.concatenate([less, jax.lax.le_to_p.bind(x[:1], x[1:]), same]) * 1.0

    kernel = jax.jit(native(function, np.zeros(2)))
    for a in (-np.inf, -1.0, -0.0, 0.0, 2.0, np.inf, np.nan):
        for b in (-np.inf, -1.0, -0.0, 0.0, 2.0, np.inf, np.nan):
            # Of a pair the sign decides between zeros, and NaN comes last.
            one, other = (
                (True, 0.0, True) if np.isnan(x) else (False, x, not np.signbit(x)) for x in (a, b)
            )
            expected = [one < other, one <= other, one == other]
            np.testing.assert_array_equal(kernel(np.array([a, b])), expected, err_msg=f"{a} {b}")


@pytest.mark.slow
def test_derivatives_of_tables_are_their_slopes():
    """In both modes, by the place and by the table."""
    x = jnp.asarray(X)
    i = np.clip(np.searchsorted(KNOTS, X), 1, 4)
    slopes = np.where((X > -0.5) & (X < 2), np.diff(VALUES)[i - 1] / np.diff(KNOTS)[i - 1], 0.0)
    share = np.clip((X - KNOTS[i - 1]) / (KNOTS[i] - KNOTS[i - 1]), 0, 1)
    hats = np.zeros((4, 5))
    hats[np.arange(4), i - 1], hats[np.arange(4), i] = 1 - share, share

    def table(x, values):
        return jnp.interp(x, KNOTS, values)

    kernel = native(table, X, VALUES)
    for jacobian in (jax.jacfwd, jax.jacrev):
        by_place, by_table = jacobian(kernel, (0, 1))(x, jnp.asarray(VALUES))
        # One division each.
        np.testing.assert_allclose(by_place, np.diag(slopes), rtol=1e-14)
        np.testing.assert_allclose(by_table, hats, rtol=1e-14, atol=1e-16)


def test_products_with_truth_values():
    """They count as one and zero, and of two of them comes another."""

    def function(x):
        up, low = x > 0, x < 1
        chosen = jnp.where(up @ low, x[1], x[2])
        return jnp.stack([up @ x, (up @ jnp.asarray(WHOLE)) * x[0], chosen])

    kernel = native(function, X)
    for x in STARTS:
        up = x > 0
        expected = [x[up].sum(), WHOLE[up].sum() * x[0], x[1] if (up & (x < 1)).any() else x[2]]
        # Sums of a few terms in another order.
        np.testing.assert_allclose(kernel(x), expected, rtol=1e-15, atol=1e-16)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda i: jnp.stack([i * 100, i]).astype(jnp.int8) @ i.astype(jnp.int8), "could overflow"),
        (lambda i: jax.lax.div(i, i + 3), "known positive divisor"),
    ],
)
def test_what_would_not_be_exact_is_refused(function, message):
    with pytest.raises(UnsupportedOperationError, match=message):
        scalarize(lambda x: function(jnp.clip(x, -2, 2).astype(int)) * 1.0, X)
