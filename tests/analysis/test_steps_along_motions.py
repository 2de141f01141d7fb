"""Step limits along a motion, of gains that depend on time or state."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.analysis import (
    lyapunov_certificate,
    perturbation_matrix,
    step_limit,
    step_limit_along,
    step_matrix,
    two_stage_matrix,
    weighted_norm,
)
from jaxdae.formulations import Baumgarte, Multipliers
from jaxdae.solvers import RK4

DAMPED = Baumgarte(K_D=6.0, K_P=25.0)


def varying(t):
    """Gains that swing: H(t) of one constraint."""
    return jnp.array([[0.0, 1.0], [0.0, 0.0]]) + jnp.stack(
        [jnp.zeros(2), jnp.stack([-9.0 - 2.0 * jnp.sin(3.0 * t), -6.0 + jnp.cos(3.0 * t)])]
    )


@pytest.mark.parametrize("solver", [diffrax.Heun(), diffrax.Midpoint(), diffrax.Ralston()])
def test_servos_formula_is_two_stage_methods_to_third_order(solver):
    """Slope 3 of the difference, and without dH/dt only 2."""
    t = 0.4
    H, dH = jax.jvp(varying, (t,), (1.0,))
    hs = np.array([0.02, 0.01, 0.005])

    def differences(rate):
        return [
            np.linalg.norm(
                two_stage_matrix(H, rate, h)
                - step_matrix(lambda s, h=h: varying(t + s * h), h, solver)
            )
            for h in hs
        ]

    with_rate = np.log2(np.divide(*np.array(differences(dH))[[0, 1]]))
    without = np.log2(np.divide(*np.array(differences(0 * dH))[[1, 2]]))
    # Heun's method on a linear equation differs at order 3; successive halvings show it to 0.1.
    np.testing.assert_allclose(with_rate, 3.0, atol=0.15)
    np.testing.assert_allclose(without, 2.0, atol=0.15)


def largest_norm(H, ts, h, weight, solver):
    """Of the steps of a method along a motion."""
    matrices = (step_matrix(lambda c, t=t: H(t + c * h), h, solver) for t in ts)
    return max(weighted_norm(x, weight) for x in matrices)


def test_gains_that_vary_contract_along_the_motion_up_to_the_limit():
    weight = lyapunov_certificate(H=varying(0.0)).m
    found = step_limit_along(varying, np.linspace(0, 3, 20), weight=weight, solver=diffrax.Heun())
    assert 0.05 < found.limit < 0.6
    ts = np.linspace(0, 3, 20)
    ts = ts[ts + found.limit <= 3]
    assert largest_norm(varying, ts, 0.99 * found.limit, weight, diffrax.Heun()) < 1
    assert largest_norm(varying, ts, 1.01 * found.limit, weight, diffrax.Heun()) > 1
    # By the formula of two stages nearly the same.
    formula = step_limit_along(varying, np.linspace(0, 3, 20), weight=weight)
    assert formula.limit == pytest.approx(found.limit, rel=0.1)


@pytest.mark.slow
def test_along_a_motion_of_constant_gains_the_limit_is_the_plain_one():
    H = perturbation_matrix(DAMPED)
    weight = lyapunov_certificate(H=H).m
    for theta in (1.0, 0.9):
        plain = step_limit(H, RK4(), version="lyapunov", theta=theta, weight=weight)
        along = step_limit_along(
            lambda t: jnp.asarray(H) + 0 * t, [0.0, 2.0], weight=weight, solver=RK4(), theta=theta
        )
        # Both bisect to round-off; where the norm is flat near 1, its square root.
        assert along.limit == pytest.approx(plain.limit, rel=1e-7)
        assert along.lower == pytest.approx(plain.lower, rel=1e-7)


class Hardening(eqx.Module):
    """Gains of a single constraint that grow fivefold with the height of the point."""

    def __call__(self, t, q, v, phi, phi_dot):
        del t, v
        return -(1.0 + 4.0 * q[1] ** 2) * (6.0 * phi_dot + 10.0 * phi)


@pytest.mark.slow
def test_gains_of_the_state_contract_up_to_the_limit_along_the_motion(led_point):
    """Norms of the violation of a run fall in every step below the limit, somewhere not above."""
    system, formulation = led_point(1.0), Multipliers(Hardening())
    ts = np.linspace(0.0, 0.5, 11)
    sol = jaxdae.simulate(
        system, formulation, system.start(), t1=0.8, saveat=diffrax.SaveAt(dense=True)
    )

    @jax.jit
    def H(t):
        return formulation.perturbation_matrix(system, t, sol.evaluate(t))

    weight = lyapunov_certificate(H=np.asarray(H(0.25))).m
    found = step_limit_along(H, ts, weight=weight, solver=RK4())
    assert largest_norm(H, ts, 0.99 * found.limit, weight, RK4()) < 1
    assert largest_norm(H, ts, 1.01 * found.limit, weight, RK4()) > 1
    assert 0.01 < found.limit < 0.3


def test_a_motion_that_no_step_contracts_is_refused():
    weight = lyapunov_certificate(H=perturbation_matrix(Baumgarte(K_D=100.0, K_P=2500.0))).m
    with pytest.raises(ValueError, match=r"all along the motion: the best is 1\..* at t = "):
        step_limit_along(varying, [0.0, 1.0], weight=weight, solver=RK4(), theta=0.9)
    with pytest.raises(ValueError, match="two sampled times or more"):
        step_limit_along(varying, [0.0], weight=weight, solver=RK4())
    with pytest.raises(ValueError, match=r"theta must be in \(0, 1\]; got 1\.5"):
        step_limit_along(varying, [0.0, 1.0], weight=weight, solver=RK4(), theta=1.5)
    with pytest.raises(ValueError, match="all roots of H are zero"):
        step_limit_along(lambda t: 0 * varying(t), [0.0, 1.0], weight=weight, solver=RK4())
