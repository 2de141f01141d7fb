"""Andrews' mechanism to its published reference, without accelerations or multipliers."""

import diffrax
import numpy as np
import pytest

from jaxdae import Hamiltonian, simulate, State, VelocityElimination
from jaxdae.models.andrews import AndrewsMechanism, END_REFERENCE

pytestmark = pytest.mark.optimized


@pytest.mark.slow
@pytest.mark.parametrize(
    "formulation", [Hamiltonian(), VelocityElimination("beta")], ids=["momenta", "one velocity"]
)
def test_andrews_mechanism_reaches_the_published_reference(formulation):
    """Over the whole 0.03 s, without accelerations or without multipliers in the equations."""
    system = AndrewsMechanism()
    run = simulate(
        system,
        formulation,
        State(*system.start()),
        t1=0.03,
        dt=1e-5,
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-13),
        saveat=diffrax.SaveAt(t0=True, t1=True),
    )
    angle, velocity = np.asarray(run.q[-1]), np.asarray(run.v[-1])
    digits = -np.log10(np.abs(angle / np.array(END_REFERENCE.q) - 1))
    assert digits.min() > 9.0
    # The reference's own velocities hold to about 1e-8.
    np.testing.assert_allclose(velocity, np.array(END_REFERENCE.v), rtol=1e-6)
    work = system.mom * float(run.q[1, 0] - run.q[0, 0])
    assert float(run.energy[1] - run.energy[0]) == pytest.approx(work, rel=1e-9)
