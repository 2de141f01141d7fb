"""Theorems about stability functions, step limits, also along motions, and limits for roots."""

import math

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import jaxdae
from helpers.stability import stability_polynomials
from jaxdae.analysis import (
    lyapunov_certificate,
    modal_weight,
    perturbation_matrix,
    step_limit,
    step_limit_along,
    step_matrix,
    tableau,
    two_stage_matrix,
    weighted_norm,
)
from jaxdae.analysis.steps import growth, imaginary_reach, root_limit
from jaxdae.formulations import Baumgarte, LinearStabilization, Multipliers
from jaxdae.solvers import AdamsBashforth, RK4


def taylor_order(a, b, tolerance: float = 1e-12) -> int:
    """Order to which `R(z)` agrees with `exp(z)`: the method's order on linear equations."""
    numerator, denominator = stability_polynomials(a, b)
    # R = exp to order p means numerator = denominator * exp to order p.
    exponential = np.array([1 / math.factorial(k) for k in range(b.size + 1)])
    product = np.convolve(denominator, exponential)[: b.size + 1]
    wrong = np.flatnonzero(np.abs(numerator - product) > tolerance)
    return int(wrong[0]) - 1 if wrong.size else b.size


# (solver, order on linear equations, end of the real stability interval to three digits:
# Hairer, Wanner II, IV.2, and their roots of |R(-x)| = 1 for the rest)
EXPLICIT = [
    (diffrax.Euler(), 1, 2.0),
    (diffrax.Heun(), 2, 2.0),
    (diffrax.Bosh3(), 3, 2.513),
    (RK4(), 4, 2.785),
    (diffrax.Dopri5(), 5, 3.307),
]
IMPLICIT = [diffrax.ImplicitEuler(), diffrax.Kvaerno3(), diffrax.Kvaerno5()]
NAMES = [type(case[0]).__name__ for case in EXPLICIT]

DAMPED = Baumgarte(K_D=6.0, K_P=25.0)


@pytest.mark.parametrize(("solver", "order", "interval"), EXPLICIT, ids=NAMES)
def test_the_tableau_gives_the_order_and_the_real_interval(solver, order, interval):
    a, b, _ = tableau(solver)
    assert taylor_order(a, b) == order
    found = step_limit(np.array([[-4.0]]), solver)
    # Three digits are given.
    np.testing.assert_allclose(4 * found.limit, interval, atol=5e-4)


@pytest.mark.parametrize("solver", IMPLICIT)
def test_stable_implicit_methods_admit_every_step(solver):
    # Damped roots, where even methods that are only A(alpha)-stable contract.
    assert step_limit(Baumgarte.critical(3.0), solver).limit == np.inf


@pytest.mark.parametrize(("solver", "order", "interval"), EXPLICIT, ids=NAMES)
def test_below_the_limit_violations_vanish_and_above_they_grow(solver, order, interval):
    H = perturbation_matrix(DAMPED)
    limit = step_limit(DAMPED, solver).limit
    below, above = (
        np.linalg.matrix_power(step_matrix(H, factor * limit, solver), 2000)
        for factor in (0.99, 1.01)
    )
    # A root that moves by 1 % of the region changes 2000 steps by far more than 10.
    assert np.linalg.norm(below) < 0.1
    assert np.linalg.norm(above) > 10.0


def test_eulers_limit_is_two_cos_over_the_root():
    """|1 + h s| = 1 at h = -2 Re(s) / |s|^2."""
    roots = np.linalg.eigvals(perturbation_matrix(DAMPED))
    expected = -2 * roots[0].real / abs(roots[0]) ** 2
    np.testing.assert_allclose(step_limit(DAMPED, diffrax.Euler()).limit, expected, rtol=1e-10)


@pytest.mark.parametrize(("steps", "interval"), [(1, 2.0), (2, 1.0), (3, 6 / 11), (4, 0.3)])
def test_adams_bashforth_has_its_textbook_interval(steps, interval):
    """Hairer, Wanner II, V.1: 2, 1, 6/11, 3/10."""
    found = step_limit(np.array([[-4.0]]), AdamsBashforth(steps))
    np.testing.assert_allclose(4 * found.limit, interval, rtol=1e-9)


def test_the_root_condition_is_what_running_the_method_shows():
    H, method = perturbation_matrix(DAMPED), AdamsBashforth(3)
    limit = step_limit(DAMPED, method).limit
    for factor, growing in ((0.97, False), (1.03, True)):
        h, history = factor * limit, [np.eye(2)] * 3
        for _ in range(1500):
            rates = [H @ y for y in history[::-1]]
            step = sum(w * r for w, r in zip(method.linear_steps, rates, strict=True))
            history = [*history[1:], history[-1] + h * step]
        assert (np.linalg.norm(history[-1]) > 10) == growing
        assert (np.linalg.norm(history[-1]) < 0.1) == (not growing)


@pytest.mark.parametrize("solver", [diffrax.Euler(), diffrax.Heun(), RK4()])
def test_in_the_lyapunov_norm_every_step_below_the_limit_contracts(solver):
    H = perturbation_matrix(DAMPED)
    found = step_limit(DAMPED, solver, version="lyapunov")
    # The norm bounds the spectral radius.
    assert 0 < found.limit <= step_limit(DAMPED, solver).limit * (1 + 1e-9)
    assert found.weight is not None
    rng = np.random.default_rng(0)
    for factor in (0.05, 0.5, 0.99):
        y = rng.normal(size=(2, 50))
        moved = step_matrix(H, factor * found.limit, solver) @ y
        size = [np.einsum("is,ij,js->s", x, found.weight, x) for x in (moved, y)]
        assert np.all(size[0] < size[1])
    assert weighted_norm(step_matrix(H, 1.01 * found.limit, solver), found.weight) > 1


def test_a_demanded_contraction_has_a_smallest_step_too():
    H = perturbation_matrix(DAMPED)
    weight = modal_weight(H)
    found = step_limit(DAMPED, diffrax.Euler(), version="lyapunov", theta=0.97, weight=weight)
    assert 0 < found.lower < found.limit
    for h in (found.lower, found.limit):
        norm = weighted_norm(step_matrix(H, h, diffrax.Euler()), found.weight)
        np.testing.assert_allclose(norm, 0.97, atol=1e-9)


def test_in_the_modal_norm_both_versions_agree():
    H = perturbation_matrix(DAMPED)
    for solver in (diffrax.Heun(), RK4(), diffrax.Dopri5()):
        norm = step_limit(DAMPED, solver, version="lyapunov", weight=modal_weight(H)).limit
        np.testing.assert_allclose(norm, step_limit(DAMPED, solver).limit, rtol=1e-9)
    with pytest.raises(ValueError, match="two roots coincide"):
        modal_weight(perturbation_matrix(Baumgarte.critical(3.0)))


def test_the_weighted_norm_is_that_of_its_definition(rng):
    a = rng.normal(size=(3, 3))
    weight, matrix = a @ a.T + np.eye(3), rng.normal(size=(3, 3))
    root = scipy.linalg.sqrtm(weight)
    np.testing.assert_allclose(
        weighted_norm(matrix, weight),
        np.linalg.norm(root @ matrix @ np.linalg.inv(root), 2),
        rtol=1e-10,
    )


@pytest.mark.slow
@pytest.mark.parametrize("solver", [diffrax.Euler(), RK4()])
def test_the_limit_is_where_a_simulation_breaks(solver, led_point):
    """The violation of a led point, whose motion is fixed, obeys the recursion itself."""
    system = led_point(0.0)
    stabilization = Baumgarte(K_D=40.0, K_P=625.0)
    limit = step_limit(stabilization, solver).limit
    start = jaxdae.State(jnp.array([1e-6, 1.0 + 1e-6]), jnp.zeros(2))

    def end(h):
        run = jaxdae.simulate(
            system,
            Multipliers(stabilization),
            start,
            t1=400 * h,
            dt=h,
            solver=solver,
            throw=False,
        )
        return float(jnp.abs(run.violation.phi[-1]).max()), bool(run.success)

    below, alive = end(0.9 * limit)
    assert alive
    assert below < 1e-9
    with pytest.warns(RuntimeWarning, match=r"All modes shrink for steps below") as caught:
        above, alive = end(1.1 * limit)
    assert f"{limit:.4g} s: take a smaller dt" in str(caught[0].message)
    assert not alive or not above < 1e-3


@pytest.mark.slow
def test_the_perturbation_matrix_is_that_of_the_gains():
    K_D, K_P = np.diag([3.0, 4.0]), np.array([[5.0, 1.0], [1.0, 6.0]])
    H = perturbation_matrix(Baumgarte(K_D, K_P, Gamma=7.0), r=1)
    expected = np.zeros((5, 5))
    expected[:2, 2:4], expected[2:4, :2], expected[2:4, 2:4] = np.eye(2), -K_P, -K_D
    expected[4, 4] = -7.0
    np.testing.assert_allclose(H, expected, atol=0)
    linear = LinearStabilization(-9.0, -6.0, K12=jnp.ones((1, 1)), K22=-2.0)
    assert perturbation_matrix(linear).shape == (3, 3)
    assert perturbation_matrix(linear)[1, 2] == 1.0


def test_what_has_no_limit_is_refused():
    with pytest.raises(ValueError, match="not asymptotically stable"):
        step_limit(LinearStabilization(1.0, -1.0), RK4())
    with pytest.raises(ValueError, match="KenCarp4 has no Butcher tableau"):
        step_limit(DAMPED, diffrax.KenCarp4())
    # To diffrax it is an Euler method, but it makes two half steps.
    with pytest.raises(ValueError, match="HalfSolver has no Butcher tableau"):
        step_limit(DAMPED, diffrax.HalfSolver(diffrax.Euler()))
    with pytest.raises(ValueError, match=r"no step contracts by theta = 0\.1 .* the best is 0"):
        step_limit(DAMPED, diffrax.Euler(), version="lyapunov", theta=0.1)
    with pytest.raises(ValueError, match="version must be"):
        step_limit(DAMPED, RK4(), version="other")
    with pytest.raises(ValueError, match="theta below 1 is for"):
        step_limit(DAMPED, RK4(), theta=0.9)
    with pytest.raises(ValueError, match="one-step methods"):
        step_limit(DAMPED, AdamsBashforth(2), version="lyapunov")
    with pytest.raises(ValueError, match="Multipliers is a formulation: give its stabilization"):
        step_limit(Multipliers(DAMPED), RK4())
    with pytest.raises(ValueError, match="1 to 6 steps; got 0"):
        AdamsBashforth(0)


@pytest.mark.parametrize("solver", [RK4(), AdamsBashforth(2)])
def test_arguments_in_the_other_order_are_refused(solver):
    with pytest.raises(TypeError, match=r"is a solver and comes second: step_limit\(stab"):
        step_limit(solver, Baumgarte(20.0, 100.0))


def test_gains_without_a_constant_matrix_are_refused():
    def hardening(t, q, v, phi, phi_dot):
        return -(20 + 1e4 * t) * phi_dot - 100 * phi

    def nonlinear(t, q, v, phi, phi_dot):
        return -20 * phi_dot - 100 * phi**3 - phi

    for law in (hardening, nonlinear):
        with pytest.raises(ValueError, match="no constant matrix: its derivatives differ by"):
            step_limit(law, RK4())
    with pytest.raises(ValueError, match=r"HurwitzGains stabilizes servo-constraints.* give Servo"):
        step_limit(jaxdae.control.HurwitzGains.repeated(3.0, 4), RK4())
    with pytest.raises(ValueError, match="entries that are not finite"):
        step_limit(np.array([[np.nan]]), RK4())


def test_velocity_gains_alone_have_their_limit():
    # Real interval of Euler's method, 2.
    assert step_limit(Baumgarte(Gamma=10.0), diffrax.Euler()).limit == pytest.approx(0.2, rel=1e-9)


@pytest.mark.parametrize("solver", [diffrax.Euler(), RK4()])
def test_the_norm_version_does_not_depend_on_units(solver):
    """A cascade of order four with roots near 50 1/s, time in seconds and in milliseconds."""
    coefficients = np.poly(-50 * np.array([1.0, 0.8, 0.5, 0.3]))
    H = np.diag(np.ones(3), 1)
    H[-1] = -coefficients[:0:-1]
    scale = np.diag(1e3 ** np.arange(4.0))
    in_milliseconds = np.linalg.inv(scale) @ H @ scale / 1e3
    limit = step_limit(H, solver, version="lyapunov").limit
    # Balancing uses powers of two, so that the units are met to a factor of two in each.
    assert step_limit(in_milliseconds, solver, version="lyapunov").limit / 1e3 == pytest.approx(
        limit, rel=0.5
    )
    assert 0.02 * step_limit(H, solver).limit < limit < step_limit(H, solver).limit


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


# Where 1 + z + z^2/2 + z^3/6 + z^4/24 = 1 on the negative real axis.
RK4_INTERVAL = 2.785293563405282


@pytest.mark.parametrize(
    ("solver", "reach"),
    [
        # |R(iy)|² = 1 + y², 1 + y⁴/4; 1 - y⁶/72 + y⁸/576 for RK4, 1 again at y² = 8.
        (diffrax.Euler(), 0.0),
        (diffrax.Heun(), 0.0),
        (RK4(), np.sqrt(8.0)),
        (AdamsBashforth(2), 0.0),
        # Root locus of 12 (zeta³ - zeta²) / (23 zeta² - 16 zeta + 5): leaves the axis at 0.7236.
        (AdamsBashforth(3), 0.7236),
        (diffrax.Kvaerno5(), np.inf),
    ],
)
def test_how_far_up_the_imaginary_axis_a_method_does_not_amplify(solver, reach):
    # The last digit of 0.7236; the others are bisected to round-off at a double root.
    assert imaginary_reach(solver) == pytest.approx(reach, rel=1e-4)


def test_limits_of_mixed_roots():
    """The least over damped and undamped roots; growing and zero roots count for nothing."""
    rk4 = RK4()
    roots = np.array([3.0, 0.0, -10.0, 2j, -2j, 1 + 5j])
    assert root_limit(rk4, roots).limit == pytest.approx(RK4_INTERVAL / 10, rel=1e-6)
    assert root_limit(rk4, roots).root == -10
    fast = np.array([-10.0, 40j, -40j])
    assert root_limit(rk4, fast).limit == pytest.approx(np.sqrt(8) / 40, rel=1e-4)
    assert root_limit(rk4, fast).root == 40j
    none = root_limit(rk4, np.array([3.0, 0.0]))
    assert (none.limit, none.root) == (np.inf, None)
    # A damping of one part in 1e8 is not distinguished from none.
    light = np.array([-1e-8 + 1j, -1e-8 - 1j])
    assert root_limit(diffrax.Heun(), light).limit == 0
    assert growth(rk4, roots, 0.1) == pytest.approx(
        max(abs(1 - 1 + 1 / 2 - 1 / 6 + 1 / 24), np.sqrt(1 - 0.2**6 / 72 + 0.2**8 / 576)), rel=1e-12
    )
    assert growth(rk4, np.array([3.0, 0.0]), 0.1) == 0
