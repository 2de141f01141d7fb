"""The circuit of two loops against its modes and Kirchhoff's laws."""

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from jaxdae import Hamiltonian, Multipliers, SingularMassSolve, State
from jaxdae.models import TwoLoopCircuit

MODEL = TwoLoopCircuit(source=(2.0, -0.7), charge=0.1)


def test_closed_form_is_that_of_kirchhoffs_loops():
    """Loop currents by hand, without a constraint."""
    L, R, C, L3, R3, C3 = 0.5, 0.4, 0.1, 0.1, 0.2, 0.05
    inertia = np.array([[L + L3, -L3], [-L3, L + L3]])
    damping = np.array([[R + R3, -R3], [-R3, R + R3]])
    stiffness = np.array([[1 / C + 1 / C3, -1 / C3], [-1 / C3, 1 / C + 1 / C3]])

    def rate(t, y):
        load = [2.0, -0.7] - damping @ y[2:] - stiffness @ y[:2]
        return np.concatenate([y[2:], np.linalg.solve(inertia, load)])

    exact = solve_ivp(rate, (0, 3), [0.1, 0, 0, 0], rtol=1e-10, atol=1e-12).y[:, -1]
    q, v = MODEL.exact_motion(3.0)
    np.testing.assert_allclose([q[0], q[1], v[0], v[1]], exact, atol=1e-9)
    assert q[2] == pytest.approx(float(q[0] - q[1]), abs=1e-15)


def test_without_a_shared_coil_the_mass_is_singular_and_the_circuit_the_same():
    """A branch without inductance: only a policy for singular masses accepts it."""
    model = TwoLoopCircuit(shared_inductance=0.0)
    state = State(*model.start())
    options: dict[str, Any] = {"t1": 1.0}
    run = jaxdae.simulate(model, Multipliers(solve=SingularMassSolve()), state, **options)
    np.testing.assert_allclose(run.q[-1], model.exact_position(1.0), atol=1e-7)
    for formulation in (Multipliers(), Hamiltonian()):
        with pytest.raises(ValueError, match="the mass matrix is not positive definite"):
            jaxdae.simulate(model, formulation, state, **options)


@pytest.mark.slow
def test_stationary_charges_are_an_equilibrium():
    rest = MODEL.stationary()
    found = jaxdae.equilibrium(MODEL, rest)
    np.testing.assert_allclose(found.q, rest, atol=1e-12)
    # Two time constants, 2 L / R = 2.5 s, of the slower mode do most of the way.
    late = MODEL.exact_position(40.0)
    np.testing.assert_allclose(late, rest, atol=1e-6)
