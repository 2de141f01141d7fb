"""Stabilizations: one law written several ways, and gains that are refused."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, LinearStabilization, Multipliers, State
from jaxdae.models import ChaplyginSleigh
from jaxdae.systems import constraint_residuals
from jaxdae.tuning.parametrizations import Positive

ROUND_OFF: dict[str, Any] = {
    "rtol": 1e-12,
    "atol": 1e-12,
}  # a handful of products of numbers of order one

PHI, PHI_DOT = jnp.array([0.3, -0.2]), jnp.array([0.5, 0.7, -1.1])  # m = 2, r = 1
QV = jnp.ones(3)


def _rate(stabilization):
    return stabilization(0.4, QV, QV, PHI, PHI_DOT)


def test_baumgarte_is_the_law_of_its_docstring():
    """-K_D df/dt - K_P f, with full matrices, and -Gamma g."""
    k_d, k_p = np.array([[5.0, 1.0], [1.0, 3.0]]), np.array([[9.0, -2.0], [-2.0, 4.0]])
    rate = _rate(Baumgarte(k_d, k_p, Gamma=6.0))
    np.testing.assert_allclose(rate[:2], -k_d @ PHI_DOT[:2] - k_p @ PHI, **ROUND_OFF)
    np.testing.assert_allclose(rate[2], 6.6, **ROUND_OFF)


def test_linear_stabilization_is_the_block_matrix_of_its_docstring(rng):
    """All six blocks, against one product with the assembled matrix."""
    k10, k11, k12 = (rng.normal(size=s) for s in ((2, 2), (2, 2), (2, 1)))
    k20, k21, k22 = (rng.normal(size=s) for s in ((1, 2), (1, 2), (1, 1)))
    rate = _rate(LinearStabilization(k10, k11, k12, k20, k21, k22))
    block = np.block([[k10, k11, k12], [k20, k21, k22]])
    np.testing.assert_allclose(rate, block @ np.concatenate([PHI, PHI_DOT]), **ROUND_OFF)


def test_critical_damping_has_a_double_root():
    """critical(rate): K_D = 2 rate, K_P = rate^2, Gamma = rate."""
    np.testing.assert_allclose(_rate(Baumgarte.critical(3.0)), _rate(Baumgarte(6.0, 9.0, 3.0)))
    per_constraint = Baumgarte.critical(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(jnp.asarray(per_constraint.K_P), [9.0, 16.0])
    assert per_constraint.Gamma is None


def test_time_constant_and_damping_ratio():
    """from_time_constant(tau, zeta): K_D = 2 zeta / tau, K_P = 1 / tau^2, Gamma = 1 / tau."""
    built = Baumgarte.from_time_constant(0.1, zeta=0.7)
    np.testing.assert_allclose(_rate(built), _rate(Baumgarte(14.0, 100.0, 10.0)), **ROUND_OFF)


@pytest.mark.slow
def test_any_callable_is_a_stabilization(everything, rng):
    """A nonlinear law that depends on time holds exactly along the vector field."""

    def phi(t, q, v, phi, phi_dot):
        first = -(1 + t) * phi_dot[0] - jnp.tanh(5 * phi[0]) * (1 + q[0] ** 2)
        return jnp.stack([first, -3 * phi_dot[1] ** 3])

    q, v, w, t = *(jnp.asarray(rng.normal(size=k)) for k in (3, 3, 1)), 0.3
    formulation = Multipliers(phi)
    formulation.check(everything, State(q, v, w))
    rate = eqx.filter_jit(formulation.vector_field)(everything, t, State(q, v, w), None)
    residual = lambda t, q, v: constraint_residuals(everything, t, q, v)  # noqa: E731
    now, change = jax.jvp(residual, (t, q, v), (1.0, v, rate.v))
    expected = phi(t, q, v, now.phi, now.phi_dot)
    np.testing.assert_allclose(change.phi_dot, expected, rtol=1e-10, atol=1e-10)


def test_velocity_constraints_alone_need_only_gamma(flow):
    """Baumgarte(Gamma=…): the slip of a sleigh, which has no position constraints, decays so."""
    sleigh, state = ChaplyginSleigh(), State(jnp.array([0.0, 0.0, 0.4]), jnp.array([1.0, 0.8, 0.5]))
    formulation = Multipliers(Baumgarte(Gamma=7.0))
    formulation.check(sleigh, state)
    _, rate, _ = flow(sleigh, formulation, state)
    slip = lambda q, v: sleigh.velocity_constraints(0.0, q, v)  # noqa: E731
    now, change = jax.jvp(slip, (state.q, state.v), (rate.q, rate.v))
    np.testing.assert_allclose(change, -7.0 * now, **ROUND_OFF)
    assert np.abs(now).max() > 0.1


def test_without_constraints_no_gain_is_needed(double_pendulum):
    """Baumgarte() fits a system that has nothing to stabilize, and asks for nothing."""
    state = State(jnp.ones(2), jnp.ones(2))
    assert Multipliers(Baumgarte()).check(double_pendulum, state) is None


# what is built, and what the message must say
BAD = [
    (lambda: Baumgarte(-1.0, 1.0), r"K_D must be positive definite, but has a value -1; give"),
    (
        lambda: Baumgarte(jnp.array([[1.0, 3.0], [3.0, 1.0]]), 1.0),
        r"K_D must be positive definite, but has an eigenvalue -2; give .*symmetric positive",
    ),
    (
        lambda: Baumgarte(jnp.array([[1.0, 0.5], [0.0, 1.0]]), 1.0),
        r"K_D is not symmetric: .*by up to 0\.5; give \(K \+ K\.T\) / 2",
    ),
    (
        lambda: Baumgarte(jnp.ones((2, 3)), 1.0),
        r"K_D has shape \(2, 3\); a gain matrix must be square",
    ),
    (lambda: Baumgarte(1.0, jnp.nan), r"K_P is not finite: nan"),
    (lambda: Baumgarte(1.0, 2 + 1j), r"K_P is complex: \(2\+1j\); gains are real"),  # pyright: ignore[reportArgumentType]
    (
        lambda: Baumgarte(1.0, 1.0, Gamma=-4.0),
        r"Gamma must be positive definite, but has a value -4",
    ),
    (lambda: Baumgarte.critical(-1.0), r"rate must be positive definite, but has a value -1"),
    (
        lambda: Baumgarte.from_time_constant(0.0),
        r"tau must be positive definite, but has a value 0",
    ),
    (lambda: LinearStabilization(-1.0, jnp.nan), r"K11 is not finite: nan"),
]


@pytest.mark.parametrize(("build", "message"), BAD)
def test_inadmissible_gains_are_refused_when_built(build, message):
    """The gain, its offending value, and what to give instead."""
    with pytest.raises(ValueError, match=message):
        build()


# stabilization, and what the message must say, for one position and one velocity constraint
UNFIT = [
    (Baumgarte(jnp.ones(2), 1.0, 1.0), r"K_D has shape \(2,\), which does not fit 1 position"),
    (Baumgarte(1.0, 1.0), r"1 velocity constraints, but Baumgarte has no gain.*give Gamma="),
    (Baumgarte(Gamma=1.0), r"1 position constraints, but Baumgarte lacks .*give K_D=… and K_P=…"),
    (Baumgarte(K_P=1.0, Gamma=1.0), r"1 position constraints, but Baumgarte lacks a gain for them"),
    (LinearStabilization(-1.0, -1.0), r"1 velocity constraints: LinearStabilization needs K22"),
    (
        LinearStabilization(-1.0, -1.0, K12=jnp.ones((2, 1)), K22=-1.0),
        r"K12 must be a matrix of shape \(1, 1\); got \(2, 1\)",
    ),
    (
        Baumgarte(Positive(1.0), 1.0, 1.0),  # pyright: ignore[reportArgumentType]
        r"K_D is a Positive, not an array; .*jaxdae\.tuning\.resolve",
    ),
    (lambda t, q, v, phi, phi_dot: phi, r"returned shape \(1,\).*2 velocity-level.*shape \(2,\)"),
]


@pytest.mark.parametrize(("stabilization", "message"), UNFIT)
def test_gains_that_do_not_fit_the_constraints_are_refused_before_the_run(
    stabilization, message, everything
):
    """`simulate` checks gains against the numbers of constraints before it computes anything."""
    state = State(jnp.ones(3), jnp.ones(3), jnp.ones(1))
    with pytest.raises(ValueError, match=message):
        jaxdae.simulate(everything, Multipliers(stabilization), state, t1=1.0)


def test_gains_tell_how_many_constraints_they_act_on():
    assert Baumgarte(Gamma=3.0).counts() == (0, 1)
    assert Baumgarte(jnp.ones(3), 4.0).counts() == (3, 0)
    assert LinearStabilization(-1.0, jnp.diag(-jnp.ones(2)), K22=-jnp.ones(3)).counts() == (2, 3)
    assert list(Baumgarte(20.0, 100.0).gains(("K_D", "Gamma"))) == ["K_D"]
