"""Laws that every formulation has: single precision, and derivatives in both modes."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    Hamiltonian,
    Multipliers,
    QuasiVelocities,
    simulate,
    State,
    VelocityElimination,
)
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
FORMULATIONS = [
    Multipliers(GAINS),
    AugmentedLagrangian(jnp.array([10.0, 5.0]), GAINS),
    Hamiltonian(GAINS),
    VelocityElimination(),
    QuasiVelocities(stabilization=GAINS),
]


@pytest.mark.slow
@pytest.mark.parametrize("formulation", FORMULATIONS, ids=lambda x: type(x).__name__)
def test_single_precision_stays_single(formulation, driven, flow):
    """float32 in, float32 out, near the double result."""
    state = driven.start()
    low = jax.tree.map(lambda x: x.astype(jnp.float32), state)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), formulation)
    _, motion, lam = flow(driven, single, low, 0.0, 1.5)
    _, expected, reaction = flow(driven, formulation, state, 0.0, 1.5)
    assert {x.dtype for x in jax.tree.leaves((motion, lam))} == {jnp.dtype("float32")}
    got, exact = ravel_pytree((motion, lam))[0], ravel_pytree((expected, reaction))[0]
    # 24 bits, condition numbers below 1e2, and gains that multiply residuals by a hundred.
    np.testing.assert_allclose(got, exact, atol=1e-4 * np.abs(exact).max())


def eliminated(K_D, K_P):
    return VelocityElimination(decay=K_D)


def canonical(K_D, K_P):
    return Hamiltonian(Baumgarte(K_D, K_P))


@pytest.mark.slow
@pytest.mark.parametrize(("make", "acting"), [(canonical, 7), (eliminated, 5)])
def test_gradients_agree_in_both_modes_and_with_differences(make, acting):
    """By a mass, a length, gains and the start, through five Runge-Kutta steps."""
    params = {"mass": 1.3, "length": 0.9, "gains": (20.0, 90.0),
              "q": np.array([0.55, -0.7]), "v": np.array([1.0, 0.9])}  # fmt: skip
    x, unravel = ravel_pytree(params)

    def end(x, adjoint):
        params = unravel(x)
        system = CartesianPendulum(params["mass"], params["length"])
        run = simulate(system, make(*params["gains"]), State(params["q"], params["v"]), t1=0.1,
                       dt=0.02, solver=RK4(), saveat=diffrax.SaveAt(t1=True), adjoint=adjoint,
                       start_tolerance=None)  # fmt: skip
        return run.q[0] @ jnp.array([1.0, 2.0]) + run.v[0] @ jnp.array([-0.5, 0.3])

    forward = jax.jit(jax.jacfwd(lambda x: end(x, diffrax.ForwardMode())))(x)
    value_and_slope = jax.jit(jax.value_and_grad(lambda x: end(x, None)))
    reverse = value_and_slope(x)[1]
    np.testing.assert_allclose(reverse, forward, rtol=1e-9, atol=1e-11)
    value = lambda x: value_and_slope(x)[0]  # noqa: E731
    differences = [(value(x + h) - value(x - h)) / 2e-5 for h in 1e-5 * np.eye(x.size)]
    # Second order: step squared times third derivatives, and round-off over the step, 1e-11.
    np.testing.assert_allclose(forward, differences, atol=1e-7)
    # Without multipliers mass, position gain and the dependent velocity at the start do not matter.
    assert np.count_nonzero(np.abs(forward) > 1e-4) >= acting
