"""Theorems about the numerical rank."""

import numpy as np
import pytest

from jaxdae.linalg.rank import numerical_rank


def test_independent_rows_have_full_rank_and_no_combination():
    found = numerical_rank(np.random.default_rng(0).normal(size=(3, 5)))
    assert found.rank == 3
    assert found.combinations.shape == (0, 3)
    assert found.dependent_sets == ()


def test_a_dependence_names_its_rows_and_gives_zero():
    rows = np.random.default_rng(0).normal(size=(4, 6))
    rows[3] = 2.0 * rows[0] - 5.0 * rows[1]
    found = numerical_rank(rows)
    assert found.rank == 3
    assert found.dependent_sets == ((0, 1, 3),)
    weights = found.combinations / np.linalg.norm(rows, axis=1)
    # One singular value decomposition of numbers of order one.
    assert np.abs(weights @ rows).max() < 1e-14


def test_units_of_the_rows_do_not_matter():
    rows = np.random.default_rng(1).normal(size=(3, 4))
    scaled = np.array([[1e-7], [1.0], [1e6]]) * rows
    np.testing.assert_allclose(
        numerical_rank(scaled).singular_values, numerical_rank(rows).singular_values, rtol=1e-12
    )
    assert numerical_rank(scaled).rank == 3


def test_a_zero_row_is_dependent_by_itself():
    found = numerical_rank([[1.0, 0.0], [0.0, 0.0]])
    assert found.rank == 1
    assert found.dependent_sets == ((1,),)


def test_a_row_of_round_off_is_dependent_by_itself():
    # What is left of a row that vanishes in exact arithmetic, as at a singular position.
    found = numerical_rank([[1.0, 2.0], [3e-17, -2e-17]])
    assert found.rank == 1
    assert found.dependent_sets == ((1,),)


def test_more_rows_than_columns_are_dependent():
    found = numerical_rank(np.random.default_rng(2).normal(size=(3, 2)))
    assert found.rank == 2
    assert found.dependent_sets == ((0, 1, 2),)


def test_no_rows_have_rank_zero():
    found = numerical_rank(np.zeros((0, 2)))
    assert found.rank == 0
    assert found.dependent_sets == ()


def test_a_matrix_that_is_not_finite_has_no_rank():
    with pytest.raises(ValueError, match="not finite"):
        numerical_rank([[np.nan, 1.0]])
