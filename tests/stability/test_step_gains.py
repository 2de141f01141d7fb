"""Gains by theory against zeros of stability functions, and against steps of the methods."""

from fractions import Fraction
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.solvers import AdamsBashforth, RK4
from jaxdae.stability import (
    amplification,
    motion_frequency,
    stability_function,
    step_gains,
    step_matrix,
    tableau,
)

# K_D h, K_P h^2 from the zeros of 1 + z + … + z^p / p!, to the digits that are given.
PUBLISHED = [
    (diffrax.Euler(), 2.0, 1.0),
    (diffrax.Heun(), 2.0, 2.0),
    (diffrax.Bosh3(), 1.4039, 3.7592),
    (RK4(), 3.4589, 3.7813),
]


def test_gains_by_theory_remove_a_violation_in_one_step_of_a_simulation():
    system = jaxdae.models.CartesianPendulum()
    q = jnp.array([1.0 + 1e-7, 0.0])
    law = jaxdae.Baumgarte.for_step(RK4(), 1e-3)
    run = jaxdae.simulate(
        system,
        jaxdae.Multipliers(law),
        jaxdae.State(q, jnp.zeros(2)),
        t1=2e-3,
        dt=1e-3,
        solver=RK4(),
        saveat=diffrax.SaveAt(steps=True, t0=True),
    )
    # The motion begins at rest; its normal turns by 1e-5 in a step.
    assert abs(run.violation.phi[1, 0]) < 1e-3 * abs(run.violation.phi[0, 0])


@pytest.mark.parametrize(("solver", "K_D", "K_P"), PUBLISHED)
def test_a_violation_vanishes_in_one_step_or_two(solver, K_D, K_P):
    gains = step_gains(solver, 0.1)
    np.testing.assert_allclose([gains.K_D * 0.1, gains.K_P * 0.01], [K_D, K_P], atol=5e-5)
    H = np.array([[0.0, 1.0], [-gains.K_P, -gains.K_D]])
    # The double root of Euler's method is a simple zero.
    twice = np.linalg.matrix_power(step_matrix(H, 0.1, solver), 2)
    np.testing.assert_allclose(twice, np.zeros((2, 2)), atol=1e-13)


def test_the_gain_of_velocity_constraints_is_at_the_least_factor_of_the_negative_axis():
    gains = step_gains(RK4(), 0.02)
    # R' = 1 + z + z^2/2 + z^3/6 vanishes at -1.5961, where R = z^4 / 24.
    z = np.roots([1 / 6, 1 / 2, 1.0, 1.0])
    z = z[np.abs(z.imag) < 1e-12].real[0]
    np.testing.assert_allclose(gains.Gamma * 0.02, -z, rtol=1e-6)
    np.testing.assert_allclose(gains.velocity_factor, z**4 / 24, rtol=1e-11)


ALL = [
    *(diffrax.Euler(), diffrax.Bosh3(), RK4(), diffrax.Dopri8()),
    *(diffrax.ImplicitEuler(), diffrax.Kvaerno5(), AdamsBashforth(2)),
]


@pytest.mark.slow
@pytest.mark.parametrize("solver", ALL, ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("margin", [1.0, 2.0])
def test_the_step_is_within_the_limit_and_the_factor_holds(solver, margin):
    gains = step_gains(solver, 0.05, margin=margin)
    law = jaxdae.Baumgarte(gains.K_D, gains.K_P, gains.Gamma)
    assert jaxdae.step_limit(law, solver).limit >= 0.05
    steps = np.linspace(1 / margin, 1.0, 1001)
    roots = np.linalg.eigvals([[0.0, 0.05], [-gains.K_P * 0.05, -gains.K_D * 0.05]])
    # What is promised is 1e-6; roots that coincide come out of the gains to half the digits.
    assert amplification(solver, roots[:, None] * steps).max() <= gains.factor + 1e-6
    single = amplification(solver, -gains.Gamma * 0.05 * steps).max()
    np.testing.assert_allclose(single, gains.velocity_factor, atol=1e-6)


def test_for_three_stages_of_order_three_and_half_the_step_the_optimum_is_a_simple_number():
    """`R(-2) = R(-1) = -1/3`, `1/3` for `1 + z + z^2/2 + z^3/6`: a double root at `-2 / dt`."""
    gains = step_gains(diffrax.Bosh3(), 1.0, margin=2.0)
    np.testing.assert_allclose([gains.K_D, gains.K_P, gains.Gamma], [4.0, 4.0, 2.0], rtol=1e-6)
    np.testing.assert_allclose(gains.factor, 1 / 3, rtol=1e-6)


def test_a_method_that_is_stable_everywhere_has_a_zero_or_the_end_of_the_search():
    # (1 + z/2) / (1 - z/2) vanishes at -2; 1 / (1 - z) nowhere.
    trapezoidal = step_gains(Trapezoidal(), 1.0)
    np.testing.assert_allclose([trapezoidal.K_D, trapezoidal.K_P], [4.0, 4.0], rtol=1e-12)
    implicit = step_gains(diffrax.ImplicitEuler(), 1.0)
    np.testing.assert_allclose([implicit.Gamma, implicit.velocity_factor], [10.0, 1 / 11])


class Trapezoidal(diffrax.Kvaerno3):
    """The coefficients of the trapezoidal rule."""

    tableau = diffrax.ButcherTableau(
        a_lower=(np.array([0.5]),),
        a_diagonal=np.array([0.0, 0.5]),
        a_predictor=(np.array([1.0]),),
        b_sol=np.array([0.5, 0.5]),
        b_error=np.zeros(2),
        c=np.array([1.0]),
    )


def test_gains_are_constants_over_the_step_also_where_it_is_traced():
    def K_P(dt):
        gains: Any = jaxdae.Baumgarte.for_step(RK4(), dt)
        return gains.K_P

    value, slope = jax.jit(jax.value_and_grad(K_P))(0.02)
    np.testing.assert_allclose(value, K_P(0.02), rtol=1e-14)
    np.testing.assert_allclose(slope, -2 * K_P(0.02) / 0.02, rtol=1e-14)
    _, forward = jax.jvp(K_P, (0.02,), (1.0,))
    np.testing.assert_allclose(forward, slope, rtol=1e-14)
    steps = jnp.array([0.01, 0.02])
    np.testing.assert_allclose(jax.vmap(K_P)(steps), [K_P(0.01), K_P(0.02)], rtol=1e-14)


def test_gains_of_a_step_in_single_precision_are_in_single_precision():
    gains: Any = jaxdae.Baumgarte.for_step(RK4(), jnp.float32(0.01))
    assert gains.K_P.dtype == jnp.float32
    assert type(jaxdae.Baumgarte.for_step(RK4(), np.float64(0.01)).K_P) is float


BAD = [
    ({"dt": 0.0}, ValueError, "dt is 0.0; it must be a positive"),
    ({"dt": np.nan}, ValueError, "dt is nan"),
    ({"dt": 1e-200}, ValueError, "dt is 1e-200 s: gains go with its inverse square.*give a longer"),
    ({"dt": jnp.float32(1e-30)}, ValueError, "give a longer step"),
    ({"dt": 1e200}, ValueError, "no finite number or zero there; give a shorter step"),
    ({"dt": "fast"}, TypeError, "dt is 'fast'; give the step"),
    ({"margin": 0.5}, ValueError, "margin is 0.5; it is the largest step over the smallest"),
    ({"regime": "both"}, ValueError, "regime must be one of 'violation', 'steps'; got 'both'"),
    ({"regime": "steps", "motion": "a run"}, TypeError, "motion is 'a run'; the regime"),
    ({"regime": "steps"}, TypeError, "measures errors along the trajectory of a run"),
    ({"solver": "rk4"}, TypeError, "solver is 'rk4'; give a diffrax solver"),
    ({"solver": RK4}, TypeError, "with brackets"),
    ({"solver": diffrax.KenCarp4()}, ValueError, "KenCarp4 has no Butcher tableau"),
    ({"solver": jaxdae.Projected(RK4())}, ValueError, "leaves no violation|no Butcher tableau"),
    ({"solver": AdamsBashforth(2), "regime": "steps"}, ValueError, "is for Runge-Kutta methods"),
]


@pytest.mark.parametrize(("wrong", "error", "words"), BAD)
def test_what_is_no_step_or_no_method_is_refused(wrong, error, words):
    arguments = {"solver": RK4(), "dt": 0.01, **wrong}
    with pytest.raises(error, match=words):
        jaxdae.Baumgarte.for_step(arguments.pop("solver"), arguments.pop("dt"), **arguments)


def test_the_motion_that_constraints_feel_has_a_rate():
    """On a circle at the angle `t^2` the acceleration of the constraint is `-8 t^2`."""
    system = jaxdae.models.CartesianPendulum()
    ts = np.linspace(0.0, 1.0, 2001)
    q = np.stack([np.cos(ts**2), np.sin(ts**2)], axis=1)
    v = 2 * ts[:, None] * np.stack([-np.sin(ts**2), np.cos(ts**2)], axis=1)
    run = Motion(jnp.asarray(ts), jnp.asarray(q), jnp.asarray(v), jnp.zeros((ts.size, 0)))
    # Root mean square of 16 t over that of 8 t^2.
    np.testing.assert_allclose(motion_frequency(system, run), 2 * np.sqrt(5 / 3), rtol=1e-3)
    rest = run._replace(v=jnp.zeros_like(run.v))
    with pytest.raises(ValueError, match="no rate that its constraints feel"):
        motion_frequency(system, rest)
    with pytest.raises(ValueError, match="at least 3 saved times"):
        motion_frequency(system, run._replace(ts=run.ts[:2]))


class Motion(NamedTuple):
    """What is read of a trajectory."""

    ts: Any
    q: Any
    v: Any
    w: Any


@pytest.mark.parametrize("solver", [RK4(), diffrax.Dopri5()])
def test_stability_functions_are_those_of_the_exact_tableau(solver):
    """Their coefficients are quotients of integers below 1e6, and so is `R` of one."""
    a, b, _ = (
        [Fraction(float(x)).limit_denominator(10**6) for x in y.ravel()] for y in tableau(solver)
    )
    z, stages = Fraction(-7, 5), []
    for i in range(len(b)):
        row = a[i * len(b) : i * len(b) + i]
        stages.append(1 + z * sum(x * k for x, k in zip(row, stages, strict=True)))
    exact = 1 + z * sum(x * k for x, k in zip(b, stages, strict=True))
    np.testing.assert_allclose(stability_function(solver, -1.4), float(exact), rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [diffrax.Tsit5(), diffrax.Dopri8()])
def test_stability_functions_are_those_of_steps_by_diffrax(solver):
    parts = np.array([[-2.0, 1.0], [-0.3, -2.5], [0.4, 0.2]])

    def after(turn):
        matrix = jnp.array([[turn[0], -turn[1]], [turn[1], turn[0]]])
        term = diffrax.ODETerm(lambda t, y, args: matrix @ y)
        steps = diffrax.ConstantStepSize()
        found = diffrax.diffeqsolve(
            term, solver, 0.0, 1.0, 1.0, jnp.array([1.0, 0.0]), stepsize_controller=steps
        )
        ys: Any = found.ys
        return ys[-1]

    y, z = np.asarray(jax.jit(jax.vmap(after))(parts)), parts @ [1, 1j]
    # Coefficients of Tsit5 are given to 14 digits.
    np.testing.assert_allclose(y @ [1, 1j], stability_function(solver, z), rtol=1e-12)
