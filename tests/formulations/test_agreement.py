"""One motion, whatever the formulation: the matrix of systems and formulations.

Systems that stand for a kind (`KINDS`) are paired with every formulation, or with the half that
another of them is not, and the others with two each, in rotation. Either the pair gives the motion,
the energy, the reactions and the powers of the system's reference formulation, or it stands in
`REFUSED` with the message that it is refused with. Realizing forces are here with the sign law on
the constraint, where they are exact; the linear, saturated and tanh laws never are, and
`test_realizing.py` has the order of their errors.

Every pair runs on the native backend, but for those that it cannot take: they are in `NOT_NATIVE`
with the reason, and run on the plain one. The systems in `PLAIN` run on both: between them they
have holonomic, rheonomic and nonholonomic constraints, actuators, controllers, a singular mass
matrix and no constraints at all. Motions of both backends are read by plain JAX.
"""

from typing import Any

import jax
import numpy as np
import pytest

from helpers.agreement import (
    APPLIED,
    case_of,
    CLOSED_FORMS,
    CONSTRAINED,
    FORMULATIONS,
    is_not_native,
    is_twice,
    NOT_NATIVE,
    REFUSED,
    UNCONSTRAINED,
)
from helpers.motions import Matrix, Motion
from jaxdae.simulation.backends import BackendError

# Both kinds of constraints, an actuator with a controller, both backends; more is slow.
QUICK = ("pendulum", "knife edge", "mirror")


def slow_but_for_some(cases):
    """Systems, or pairs of them and formulations, all but some of the systems marked as slow."""
    every = [(x,) if isinstance(x, str) else x for x in cases]
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(*x, marks=marks[x[0] in QUICK]) for x in every]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return Matrix()


QUANTITIES = ("q", "v", "w", "energy", "reaction", "power")


def assert_same(found: Motion, expected: Motion, quantities=QUANTITIES, atol: float = 1e-9):
    for quantity in quantities:
        one, other = (getattr(x, quantity) for x in (found, expected))
        size = np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=atol * (1 + size), err_msg=quantity)


@pytest.mark.parametrize(("system", "name"), slow_but_for_some(APPLIED))
def test_every_formulation_gives_the_motion(system, name, matrix):
    """Coordinates, velocities, actuators, energy, reactions and powers at every step."""
    expected = matrix.reference(system)
    assert_same(matrix.result(system, name), expected)
    assert (np.abs(expected.reaction).max() > 0.1) == (system not in UNCONSTRAINED)


@pytest.mark.parametrize(
    ("system", "name"), slow_but_for_some([x for x in APPLIED if is_twice(*x)])
)
def test_both_backends_give_the_motion(system, name, matrix):
    """To the tolerance of the formulations, and to round-off the same one."""
    assert_same(matrix.result(system, name, plain=True), matrix.reference(system))
    # Rounding, times condition numbers up to 1e4 for penalties.
    assert_same(matrix.motion(system, name, plain=True), matrix.motion(system, name), atol=1e-10)


@pytest.mark.parametrize(
    ("system", "name"), slow_but_for_some([x for x in APPLIED if is_not_native(*x)])
)
def test_what_is_not_native_is_refused_with_the_reason(system, name, matrix):
    """A pair that becomes possible must leave the table."""
    with pytest.raises(BackendError, match=NOT_NATIVE[name]):
        matrix.run(system, matrix.formulation(system, name), "native")


@pytest.mark.parametrize(("system", "name"), REFUSED)
def test_what_does_not_apply_is_refused(system, name, matrix):
    """Before any work, with the reason."""
    with pytest.raises(ValueError, match=REFUSED[system, name]):
        matrix.run(system, FORMULATIONS[name])


@pytest.mark.parametrize(
    "system", slow_but_for_some([x for x in CONSTRAINED if x != "repeated rod"])
)
def test_multipliers_agree_where_they_are_unique(system, matrix):
    """Not only the reaction they make."""
    expected = matrix.reference(system).multipliers
    size = np.abs(expected).max()
    for name in FORMULATIONS:
        if (system, name) in APPLIED:
            found = matrix.result(system, name).multipliers
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * (1 + size))


@pytest.mark.parametrize(
    ("system", "name"), slow_but_for_some([x for x in APPLIED if x[0] in CLOSED_FORMS])
)
def test_closed_forms_hold_in_every_formulation(system, name, matrix):
    """Sleigh and knife edge to 1e-9, their reactions too."""
    model: Any = case_of(system).system
    found = matrix.result(system, name)
    q, v = jax.vmap(model.exact_motion)(found.ts)
    lam = jax.vmap(model.multiplier)(q, v).reshape(found.multipliers.shape)
    np.testing.assert_allclose(found.q, q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.v, v, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.multipliers, lam, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "system", slow_but_for_some([x for x, y in APPLIED if y == "penalty" and x in CONSTRAINED])
)
def test_error_of_the_penalty_form_is_of_first_order_in_its_inverse_mass(system, matrix):
    """Twice the constraint mass, half the error of the motion."""
    expected = matrix.reference(system)
    errors = [
        np.abs(matrix.motion(system, "penalty", factor).q - expected.q).max()
        for factor in (1.0, 2.0)
    ]
    # The next order is one part in the constraint mass, 1e4 units.
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=1e-2)
    # Far above what the extrapolation is tested to.
    assert errors[0] > 1e-7
