"""The classical Runge-Kutta method: its tableau, its order, its interpolant."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.solvers import RK4

STEP = 0.3


def _solve(field, y0, steps=1, h=STEP, **how):
    """Equal steps from t = 0, in the precision of `h`."""
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: field(t, y)),  # noqa: ARG005
        RK4(),
        0 * h,
        steps * h,
        h,
        jnp.asarray(y0),
        max_steps=steps + 1,
        **how,
    )


def _end(*args, **how):
    """The state reached."""
    (states,) = jax.tree.leaves(_solve(*args, **how).ys)
    return states[-1]


def _field(t, y):
    """Nonlinear, in two unknowns, dependent on time."""
    return jnp.stack([y[1] * jnp.cos(t), t - y[0] ** 2])


def _kutta(t, y, h):
    """The method as Kutta wrote it."""
    k1 = _field(t, y)
    k2 = _field(t + h / 2, y + h / 2 * k1)
    k3 = _field(t + h / 2, y + h / 2 * k2)
    k4 = _field(t + h, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


@pytest.mark.slow
def test_two_steps_are_those_of_kuttas_formula():
    """Also the second, which could not reuse a stage of the first."""
    y0 = jnp.array([0.7, -0.4])
    expected = _kutta(STEP, _kutta(0.0, y0, STEP), STEP)
    # Some thirty operations on numbers of order one.
    np.testing.assert_allclose(_end(_field, y0, steps=2), expected, rtol=1e-14)


def test_tableau_satisfies_the_conditions_of_order_four_and_not_of_order_five():
    """Butcher's conditions, one for each rooted tree with at most four vertices."""
    tableau = RK4.tableau
    b, c = tableau.b_sol, np.append(0.0, tableau.c)
    a = np.zeros((4, 4))
    for i, row in enumerate(tableau.a_lower):
        a[i + 1, : i + 1] = row
    trees = {
        "1": (b.sum(), 1),
        "2": (b @ c, 1 / 2),
        "3, bushy": (b @ c**2, 1 / 3),
        "3, tall": (b @ a @ c, 1 / 6),
        "4, bushy": (b @ c**3, 1 / 4),
        "4, forked": (b @ (c * (a @ c)), 1 / 8),
        "4, raised": (b @ a @ c**2, 1 / 12),
        "4, tall": (b @ a @ a @ c, 1 / 24),
    }
    for name, (weight, exact) in trees.items():
        np.testing.assert_allclose(weight, exact, rtol=1e-15, err_msg=name)
    np.testing.assert_allclose(a.sum(axis=1), c, rtol=1e-15)
    np.testing.assert_allclose(b @ c**4, 5 / 24, rtol=1e-15)  # order five needs 1/5
    assert RK4().order(None) == 4


def test_there_is_no_error_estimate():
    """All zeros: what `simulate` goes by when it refuses to choose the step."""
    np.testing.assert_array_equal(RK4.tableau.b_error, np.zeros(4))


@pytest.mark.slow
def test_interpolant_is_the_cubic_of_values_and_slopes_at_both_ends():
    """For y = t^4, which the method integrates exactly, cubic Hermite errs by x^2 (h - x)^2."""
    dense = _solve(lambda t, y: 4 * t**3 + 0 * y, 0.0, saveat=diffrax.SaveAt(dense=True))
    for x in (0.0, 0.1, 0.15, 0.22, STEP):
        expected = x**4 - x**2 * (STEP - x) ** 2
        np.testing.assert_allclose(dense.evaluate(x), expected, rtol=1e-12, atol=1e-17)


@pytest.mark.slow
def test_interpolation_errs_by_the_fourth_power_of_the_step():
    """Within one step of y' = y: as the docstring of `simulate` says, of the solver's order."""
    steps = np.array([0.2, 0.1, 0.05])

    @jax.jit
    @jax.vmap
    def between(h):
        dense = _solve(lambda t, y: y + 0 * t, 1.0, h=h, saveat=diffrax.SaveAt(dense=True))
        return dense.evaluate(0.4 * h)

    errors = np.abs(between(steps) - np.exp(0.4 * steps))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(steps))
    np.testing.assert_allclose(slopes, 4, atol=0.2)  # the next term is of relative size h


@pytest.mark.slow
def test_single_precision_stays_single():
    """The tableau is in double precision, the steps are not."""
    start, h = np.array([0.7, -0.4], np.float32), jnp.float32(STEP)
    out = _end(_field, start, steps=2, h=h)
    assert out.dtype == jnp.float32
    double = _end(_field, np.array([0.7, -0.4]), steps=2)
    np.testing.assert_allclose(out, double, rtol=1e-5)  # thirty operations of 6e-8 each
