"""Starts that are refused, each with its reason."""

from typing import Any

import jax.numpy as jnp
import pytest

import jaxdae
from jaxdae import (
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    simulate,
    SingularMassSolve,
    State,
)
from jaxdae.formulations import FullRankSolve
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

SYSTEM = CartesianPendulum()


START = State([1.0, 0.0], [0.0, 0.5])


RUN: dict[str, Any] = {"system": SYSTEM, "formulation": Multipliers(), "state": START, "t1": 1.0}


def assert_refused(message: str, error: type[Exception] = ValueError, **changed: Any):
    """Assert that `simulate` refuses, saying `message`."""
    with pytest.raises(error, match=message):
        simulate(**(RUN | changed))


def test_state_of_wrong_shape():
    """q and v of different lengths, and batches without vmap."""
    assert_refused(r"q and v must be .*\(2,\) and \(3,\)", state=State(jnp.ones(2), jnp.ones(3)))
    assert_refused(r"jax\.vmap", state=State(jnp.ones((5, 2)), jnp.ones((5, 2))))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_state_that_is_not_finite(value):
    """NaN or infinity in the start is named by entry."""
    assert_refused(
        rf"the state is not finite: q\[1\] = {value}", state=State([1.0, value], [0.0, 0.0])
    )


def test_inconsistent_start_at_position_level():
    """A start off the rod: constraint, amount, tolerance, and both remedies."""
    assert_refused(
        r"inconsistent: constraint 'rod' is violated by 0\.21 at position level \(allowed 0\.0002"
        r".*at t = 0\. .*consistent_state\(system, q, v\).*start_tolerance=None",
        state=State([1.1, 0.0], [0.0, 0.0]),
    )


def test_inconsistent_start_at_velocity_level():
    """A start that leaves the rod."""
    assert_refused(
        r"'rod' is violated by 0\.4 at velocity level", state=State([1.0, 0.0], [0.2, 0.0])
    )


def test_start_tolerance_is_the_users():
    """A start is refused above the tolerance, taken below it, and always with None."""
    off = State([1.001, 0.0], [0.0, 0.0])  # residual 2.001e-3, allowed tolerance * 2.001
    gains = Multipliers(Baumgarte(20.0, 100.0))
    how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
    assert_refused("violated by 0.002", formulation=gains, state=off, start_tolerance=9e-4, **how)
    for tolerance in (1.1e-3, None):
        assert simulate(SYSTEM, gains, off, start_tolerance=tolerance, **how).success


def test_dependent_constraints_under_the_full_rank_policy(repeated_rod):
    """Rank, singular values, the constraints involved, and the formulations that can."""
    assert_refused(
        r"dependent at t = 0: .*rank 1 of 2 \(singular values \[1\.41, .*\).*involved: 'f1', 'f2'"
        r"\. Use .*MinimumNormSolve\(\).*Penalty or AugmentedLagrangian, or drop",
        system=repeated_rod((1.0, 1.0)),
        formulation=Multipliers(solve=FullRankSolve()),
    )


@pytest.mark.slow
def test_dependent_constraints_are_taken_where_they_are_allowed(repeated_rod):
    """The remedies of the message above work."""
    for formulation in (Multipliers(), Multipliers(solve=MinimumNormSolve()), Penalty(10.0)):
        how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
        assert simulate(repeated_rod((1.0, 1.0)), formulation, START, **how).success


@pytest.mark.slow
def test_singular_mass_matrix_under_a_policy_that_needs_a_regular_one(massless):
    """Eigenvalues of the mass matrix, and the formulations that can."""
    state = State([1.0, 0.5], [1.0, 1.0])
    message = r"mass matrix .*: eigenvalues from 0 to 1\.5.*SingularMassSolve\(\).*Penalty"
    for solve in (jaxdae.formulations.FullRankSolve(), MinimumNormSolve()):
        assert_refused(message, system=massless, formulation=Multipliers(solve=solve), state=state)
    how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
    for formulation in (Multipliers(solve=SingularMassSolve()), Penalty(10.0)):
        assert simulate(massless, formulation, state, **how).success


class HalfMassless(jaxdae.System):
    """Two free coordinates; the second has an inertia that is zero, or worse."""

    second: float = 0.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * (v[0] ** 2 + self.second * v[1] ** 2)


@pytest.mark.parametrize("second", [0.0, -0.1])
def test_mass_matrix_must_be_positive_on_what_the_constraints_allow(second):
    """Where M may be singular off ker J, a free coordinate without inertia is refused."""
    message = rf"not determined: .*eigenvalue {second:.3g} on the directions .*Give every coord"
    state = State([0.0, 0.0], [1.0, 0.0])
    for formulation in (Multipliers(solve=SingularMassSolve()), Penalty(10.0)):
        assert_refused(message, system=HalfMassless(second), formulation=formulation, state=state)
