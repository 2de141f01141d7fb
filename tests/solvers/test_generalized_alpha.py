"""Generalized-alpha: order, damping, constraints at both levels, step control, derivatives."""

from functools import partial
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxdae
from helpers.systems import DrivenPendulum, Turning, UnitMass
from jaxdae.solvers import ConstrainedTerm, GeneralizedAlpha, Projected
from jaxdae.solvers.generalized_alpha import coefficients, first_order_coefficients

END = diffrax.SaveAt(t1=True)
TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
TERM = ConstrainedTerm(lambda controller, t, state: None)


SWINGING = DrivenPendulum().start()


def run(system: Any, state, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": GeneralizedAlpha()} | options
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def exactly(system, state, **options):
    """By another method, at a tolerance of 1e-12."""
    settings = {"solver": Projected(diffrax.Dopri8()), "stepsize_controller": TIGHT} | options
    return run(system, state, **settings)


def values(found):
    return [np.asarray(x) for x in (found.q, found.v, found.multipliers)]


@pytest.mark.parametrize("rho_inf", [0.0, 0.5, 0.8, 0.99])
def test_coefficients_are_of_second_order_and_have_the_errors_that_they_say(rho_inf):
    """By a motion that is a polynomial, whose accelerations are known."""
    for one in (coefficients(rho_inf), first_order_coefficients(rho_inf)):
        assert one.gamma == pytest.approx(0.5 - one.alpha_m + one.alpha_f, abs=1e-15)
        # A parabola of accelerations, t^2 / 2, over many steps of one second: algorithmic ones
        # follow it by their shift and a constant, and velocities t^3 / 6 by a constant error.
        a, v = 0.5 * one.shift**2, [0.0]
        for i in range(400):
            ends = (1 - one.alpha_f) * 0.5 * (i + 1) ** 2 + one.alpha_f * 0.5 * i**2
            new = (ends - one.alpha_m * a) / (1 - one.alpha_m)
            v.append((1 - one.gamma) * a + one.gamma * new)
            a = new
        error = (400**3 - 399**3) / 6 - v[-1]
        assert error == pytest.approx(one.velocity_error, abs=1e-9)  # of numbers up to 1e5
    one = coefficients(rho_inf)
    # Accelerations t: positions t^3 / 6.
    moved = (0.5 - one.beta) * one.shift + one.beta * (1 + one.shift)
    assert 1 / 6 - moved == pytest.approx(one.position_error, abs=1e-15)


class Oscillator(UnitMass):
    """`q'' = -omega^2 q` and `w' = -omega w`."""

    omega: float = 1.0

    def potential_energy(self, t, q):
        return 0.5 * self.omega**2 * q @ q

    def actuator_rate(self, t, q, v, w, u):
        return -self.omega * w


@pytest.mark.parametrize("rho_inf", [0.3, 0.95])
def test_infinitely_fast_vibrations_and_decays_are_damped_as_asked(rho_inf):
    """The spectral radius of a step on all that is handed on; the motion's own at small steps."""
    solver = GeneralizedAlpha(rho_inf)
    y = (jaxdae.State(jnp.ones(1), jnp.ones(1), jnp.ones(1)), None)

    def radius(omega):
        args = Oscillator(omega), None, None
        flat, unravel = ravel_pytree((y, solver.init(TERM, 0.0, 1.0, y, args)))

        def step(x):
            begin, past = unravel(x)
            made = solver.step(TERM, 0.0, 1.0, begin, args, past, False)
            return ravel_pytree((made[0], made[3]))[0]

        return np.abs(np.linalg.eigvals(jax.jacfwd(step)(flat))).max()

    assert radius(1e4) == pytest.approx(rho_inf, abs=1e-6)  # to omega^-2, and round-off of 1e8
    assert all(radius(x) <= 1 + 1e-12 for x in (0.1, 1.0, 3.0, 10.0))


@pytest.mark.parametrize("index", [2, 3])
def test_multipliers_of_its_steps_are_of_second_order_from_the_first_on(index):
    """Those that it hands on, in the step of which the start is the first."""
    args, y0 = (DrivenPendulum(), jaxdae.Multipliers(), None), (SWINGING, None)
    solver, errors = GeneralizedAlpha(0.8, index=index), []

    @jax.jit
    def two(h):
        past = solver.init(TERM, 0.0, h, y0, args)
        y1, _, _, past, _ = solver.step(TERM, 0.0, h, y0, args, past, False)
        here = TERM.vf(h, y1, args).dynamics
        system = jnp.block([[here.mass, here.jac.T], [here.jac, jnp.zeros((1, 1))]])
        exact = jnp.linalg.solve(system, jnp.concatenate([here.force, -here.gamma]))[-1]
        return past.multipliers[0] - exact

    errors = [abs(float(two(h))) for h in (0.01, 0.005)]
    # Of index 3 the error in a first step may be of higher order.
    assert np.log2(errors[0] / errors[1]) > 1.8


@pytest.mark.slow
@pytest.mark.parametrize(("index", "backend"), [(2, "plain"), (3, "native")])
def test_adaptive_steps_have_errors_of_the_order_of_their_tolerance(index, backend):
    exact = exactly(DrivenPendulum(), SWINGING, saveat=END)
    errors, steps = [], []
    for tolerance in (1e-5, 1e-7):
        control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        found = run(
            DrivenPendulum(), SWINGING, solver=GeneralizedAlpha(0.8, index=index), backend=backend,
            stepsize_controller=control, saveat=END,
        )  # fmt: skip
        pairs = zip(values(found)[:2], values(exact)[:2], strict=True)
        errors.append(max(np.abs(a - b).max() for a, b in pairs))
        steps.append(int(found.stats["num_accepted_steps"]))
        # Each step adds its tolerance at most, which is that of the mean square of four states.
        assert errors[-1] < 2 * steps[-1] * tolerance * (1 + np.abs(exact.v).max())
    # A hundredth of the tolerance: steps shorter by its cube root, errors by the square of that.
    assert 3.5 < steps[1] / steps[0] < 6.0
    assert errors[1] < 0.1 * errors[0]


@pytest.mark.slow
@pytest.mark.parametrize(("index", "backend"), [(2, "native"), (3, "plain")])
def test_velocity_constraints_actuators_and_everything_else(everything, index, backend):
    start = jaxdae.consistent_state(everything, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    exact = exactly(everything, start, saveat=END, t1=0.5)
    errors = []
    for dt in (0.005, 0.0025):
        solver = GeneralizedAlpha(0.7, index=index)
        found = run(everything, start, dt=dt, solver=solver, t1=0.5, saveat=END, backend=backend)
        violation = found.violation
        assert max(np.abs(violation.phi).max(), np.abs(violation.phi_dot).max()) < 1e-12
        pairs = zip((*values(found), found.w), (*values(exact), exact.w), strict=True)
        errors.append([np.abs(a - b).max() for a, b in pairs])
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 2.0, atol=0.15)


@pytest.mark.slow
def test_a_jump_of_an_input_that_is_declared():
    class Pushed(DrivenPendulum):
        size: Any = 1.0

        def force(self, t, q, v, w, u):
            return jnp.stack([self.size, 0.0]) * u

    def control(t, q, v, w):
        return jnp.where(t < 0.4737, 0.0, 3.0)

    def clipped(controller):
        return diffrax.ClipStepSizeController(controller, jump_ts=jnp.array([0.4737]))

    options: dict[str, Any] = {"controller": control, "saveat": END}
    exact = exactly(Pushed(), SWINGING, stepsize_controller=clipped(TIGHT), **options)
    steps = clipped(diffrax.PIDController(rtol=1e-7, atol=1e-7))
    found = run(Pushed(), SWINGING, stepsize_controller=steps, **options)
    smooth = run(DrivenPendulum(), SWINGING, stepsize_controller=steps, saveat=END)
    np.testing.assert_allclose(found.q, exact.q, atol=5e-5)  # 300 tolerances
    # No steps are lost at the jump.
    assert int(found.stats["num_steps"]) < 1.2 * int(smooth.stats["num_steps"])

    def end(size, backend, adjoint=None):
        steps = clipped(diffrax.PIDController(rtol=1e-4, atol=1e-4))
        how = {"stepsize_controller": steps, "backend": backend, "adjoint": adjoint}
        return run(Pushed(size=size), SWINGING, **how, **options).q[-1, 0]

    # Steps begin anew at the jump, on the way back, too.
    slopes = [jax.jit(jax.grad(partial(end, backend=x)))(1.0) for x in ("native", "plain")]
    ahead = partial(end, backend="native", adjoint=diffrax.ForwardMode())
    slopes.append(jax.jit(jax.jacfwd(ahead))(1.0))
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-10)


@pytest.mark.slow
def test_velocities_that_are_not_rates():
    start = Turning().start()
    exact = exactly(Turning(), start, saveat=END)
    errors = []
    for dt in (0.01, 0.005):
        found = run(Turning(), start, dt=dt, saveat=END)
        errors.append([np.abs(found.q - exact.q).max(), np.abs(found.v - exact.v).max()])
        assert abs(np.linalg.norm(found.q[-1]) - np.linalg.norm(start.q)) < 1e-14
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 2.0, atol=0.15)


def test_steps_of_no_length_change_nothing():
    solver, args, y0 = GeneralizedAlpha(), (DrivenPendulum(), None, None), (SWINGING, None)
    past = solver.init(TERM, 0.0, 0.1, y0, args)
    y1, error, _, after, _ = solver.step(TERM, 0.0, 0.0, y0, args, past, False)
    for a, b in zip(jax.tree.leaves((y0, past)), jax.tree.leaves((y1, after)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert all(not np.any(x) for x in jax.tree.leaves(error))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"rho_inf is 1\.0, must be a number from 0"):
        GeneralizedAlpha(1.0)
    with pytest.raises(ValueError, match="index is 1, must be 2"):
        GeneralizedAlpha(index=1)
    with pytest.raises(ValueError, match="give GeneralizedAlpha by itself"):
        Projected(GeneralizedAlpha())
