"""The classical Runge-Kutta method: its tableau, its order, its interpolant."""

import diffrax
import jax
import numpy as np
import pytest

from jaxdae.solvers import RK4


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
def test_interpolation_errs_by_the_fourth_power_of_the_step():
    """Within one step of y' = y: as the docstring of `simulate` says, of the solver's order."""
    steps = np.array([0.2, 0.1, 0.05])

    @jax.jit
    @jax.vmap
    def between(h):
        growth = diffrax.ODETerm(lambda t, y, args: y)
        saveat = diffrax.SaveAt(dense=True)
        one = diffrax.diffeqsolve(growth, RK4(), 0 * h, h, h, 1.0, max_steps=2, saveat=saveat)
        return one.evaluate(0.4 * h)

    errors = np.abs(between(steps) - np.exp(0.4 * steps))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(steps))
    np.testing.assert_allclose(slopes, 4, atol=0.2)  # the next term is of relative size h
