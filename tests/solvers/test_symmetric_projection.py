"""Symmetric projection: reversible to round-off, no drift of energies, even order, estimates."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import HarmonicOscillator
from jaxdae import Hamiltonian, MinimumNormSolve, Multipliers, simulate, State
from jaxdae.control import AbstractSampledController
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import Projected, RK4, Rodas5P
from jaxdae.solvers.symmetric_steps import SymmetricSteps
from jaxdae.stability.stability_functions import stability_function
from jaxdae.systems.dynamics import mass_and_jacobian

PENDULUM = CartesianPendulum(1.3, 0.9)
START = State(*PENDULUM.start())
# Not at rest: there what is odd in time vanishes.
MOVING = State(0.9 * jnp.array([0.6, -0.8]), jnp.array([1.6, 1.2]))
# Round-off of residuals of order one, some operations each.
ROUND_OFF = 1e-14
SYMMETRIC = Projected(RK4(), symmetric=True)
BACKENDS = pytest.mark.parametrize("backend", ["plain", "native"])


def run(solver: Any = SYMMETRIC, system: Any = PENDULUM, start=START, formulation=None, **settings):
    formulation = Multipliers() if formulation is None else formulation
    settings = {"t1": 0.5, "dt": 0.05, **settings}
    return simulate(system, formulation, start, solver=solver, **settings)


def largest(made):
    violation = made.violation
    return max(np.abs(x).max(initial=0.0) for x in (violation.phi, violation.phi_dot))


@pytest.fixture(scope="module")
def exact():
    return run(diffrax.Dopri8(), dt=0.005).q[-1]


@BACKENDS
@pytest.mark.slow
def test_back_in_time_steps_return_to_where_they_came_from(backend, everything):
    """Of constraints that depend on time and of one that is not affine, with an actuator."""
    state = jaxdae.consistent_state(everything, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    for system, start in ((PENDULUM, START), (everything, state)):
        settings = {"system": system, "backend": backend}
        there = run(start=start, **settings)
        back = run(start=there.last_state, **settings | {"t0": 0.5, "t1": 0.0, "dt": -0.05})
        assert there.backend == backend
        assert largest(there) < ROUND_OFF
        for x, y in zip(jax.tree.leaves(back.last_state), jax.tree.leaves(start), strict=True):
            # Twenty steps, each to some units of the last place.
            np.testing.assert_allclose(x, y, rtol=0, atol=1e-13)


@pytest.mark.slow
def test_with_the_usual_projection_they_do_not():
    there = run(Projected(RK4()))
    back = run(Projected(RK4()), start=there.last_state, t0=0.5, t1=0.0, dt=-0.05)
    assert np.abs(back.q[-1] - START.q).max() > 1e-6


def test_energies_do_not_drift_over_hundreds_of_swings():
    """A pendulum is integrable: errors of the energy stay where they are, others pile up."""
    settings: Any = {"t1": 400.0, "dt": 0.1, "saveat": diffrax.SaveAt(steps=True)}
    energy = np.asarray(run(**settings).energy)
    quarters = np.abs(energy - energy[0]).reshape(4, -1).max(axis=1)
    # Where samples of an oscillation fall differs from quarter to quarter.
    np.testing.assert_allclose(quarters, quarters[0], rtol=1e-3)
    with pytest.warns(RuntimeWarning, match="energy balance"):
        usual = np.asarray(run(Projected(RK4()), **settings).energy)
    assert np.abs(usual - usual[0]).max() > 1e3 * quarters.max()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "order"),
    [(diffrax.Heun(), 2), (diffrax.Bosh3(), 4), (diffrax.Dopri5(), 6)],
    ids=lambda x: type(x).__name__ if not isinstance(x, int) else str(x),
)
def test_orders_are_even(solver, order, exact):
    """That of the method, or the next one: halving the step divides the error by its power of 2."""
    symmetric = Projected(solver, symmetric=True)
    assert symmetric.order(None) == order
    ends = [run(symmetric, dt=0.5 / n).q[-1] for n in (20, 40)]
    first, second = (float(np.abs(x - exact).max()) for x in ends)
    # Up to the next even order.
    np.testing.assert_allclose(np.log2(first / second), order, atol=0.1)


@BACKENDS
def test_without_constraints_a_step_is_a_half_one_after_the_inverse_of_one_backward(backend):
    """`R(z / 2) / R(-z / 2)` of the method's stability function, and of modulus 1."""
    made = run(
        system=HarmonicOscillator(4.0), start=State([1.0], [0.0]), t1=0.3, dt=0.3, backend=backend
    )
    z = np.asarray(2j * 0.3)
    factor = complex(stability_function(RK4(), z / 2) / stability_function(RK4(), -z / 2))
    found = float(made.q[-1, 0]) - 1j * float(made.v[-1, 0]) / 2.0
    # q + v / (2 j) is what is multiplied.
    np.testing.assert_allclose(found, factor, rtol=1e-14)
    np.testing.assert_allclose(abs(found), 1.0, rtol=1e-14)


@pytest.mark.slow
def test_both_backends_make_the_same_adaptive_run_and_save_the_same_times():
    choice = diffrax.PIDController(rtol=1e-6, atol=1e-6)
    settings = {
        "solver": Projected(diffrax.Dopri5(), symmetric=True), "dt": None, "t1": 2.0,
        "stepsize_controller": choice, "saveat": diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 41)),
    }  # fmt: skip
    plain, native = (run(backend=x, **settings) for x in ("plain", "native"))
    assert native.backend == "native"
    assert int(plain.stats["num_steps"]) == int(native.stats["num_steps"])
    # An error estimate of 1e-6, to round-off, sets the steps.
    np.testing.assert_allclose(plain.q, native.q, rtol=0, atol=1e-9)
    assert largest(native) < ROUND_OFF
    exact = run(diffrax.Dopri8(), dt=0.005, t1=2.0, saveat=settings["saveat"])
    # Between steps, too: dense output of order 4 in steps of some 0.1 s.
    np.testing.assert_allclose(native.q, exact.q, rtol=0, atol=3e-5)


@pytest.mark.slow
def test_the_error_estimate_is_of_the_projected_state():
    """It is that of the embedded method of order 4, in both halves, along the constraints."""

    def estimate(h):
        y0, args = (MOVING, None), (PENDULUM, Multipliers(), None)
        field = lambda t, y, args: (Multipliers().vector_field(PENDULUM, t, y[0], None), None)  # noqa: E731
        steps = SymmetricSteps(diffrax.Dopri5())
        y1, error, *_ = steps.step(diffrax.ODETerm(field), 0.0, h, y0, args, None, made_jump=True)
        assert error is not None
        return y1[0], error[0]

    sizes = []
    for h in (0.05, 0.025):
        y1, error = jax.jit(estimate)(jnp.asarray(h))
        _, jac = mass_and_jacobian(PENDULUM, 0.0, y1.q, y1.v)
        size = float(jnp.linalg.norm(jnp.concatenate([error.q, error.v])))
        # What leaves the constraints is the curvature of these.
        assert float(np.abs(jac @ error.q).max()) < 10 * size**2 + ROUND_OFF
        sizes.append(size)
    np.testing.assert_allclose(np.log2(sizes[0] / sizes[1]), 5.0, atol=0.3)  # up to the next order


@pytest.mark.slow
def test_dependent_constraints_and_works(repeated_rod):
    """Without a kernel, which would have to choose pivots; the same motion as of one rod."""
    start, settings = State([0.6, -0.8], [1.2, 0.9]), {"t1": 0.2, "work": True}
    solve = Multipliers(solve=MinimumNormSolve())
    twice = run(system=repeated_rod((1.0, 2.0)), start=start, formulation=solve, **settings)
    assert twice.backend == "plain"
    assert "a symmetric projection solves by pivoting" in str(twice.why_not_native)
    once = run(system=repeated_rod((1.0,)), start=start, **settings)
    assert once.backend == "native"
    np.testing.assert_allclose(twice.q, once.q, rtol=0, atol=ROUND_OFF)
    np.testing.assert_allclose(twice.work.constraint, once.work.constraint, rtol=0, atol=ROUND_OFF)
    assert largest(twice) < ROUND_OFF


@pytest.mark.slow
def test_batches_and_single_precision():
    states = jax.tree.map(lambda x: jnp.stack([x, 1.0 * x, x]).astype(jnp.float32), START)
    made = jax.vmap(lambda state: run(start=state))(states)
    assert made.q.dtype == jnp.float32
    assert largest(made) < 1e-6  # some units of the last place
    np.testing.assert_allclose(made.q[1], run().q, rtol=0, atol=1e-5)


class Held(AbstractSampledController):
    """A torque that is proportional to the last sample of a coordinate."""

    period: float = 0.1

    def memory(self, t, state):
        return jnp.zeros(1, state.q.dtype)

    def sample(self, t, q, v, w, c):
        return -0.5 * q[:1]

    def output(self, t, q, v, w, c):
        return c


class Pushed(CartesianPendulum):
    """The pendulum with a horizontal force."""

    def force(self, t, q, v, w, u):
        return jnp.stack([u[0], jnp.zeros_like(q[0])])


@pytest.mark.slow
def test_steps_may_end_at_samples():
    symmetric, usual = (
        run(solver, system=Pushed(1.3, 0.9), controller=Held()).last_state.q
        for solver in (SYMMETRIC, RK4())
    )
    np.testing.assert_allclose(symmetric, usual, rtol=0, atol=1e-4)  # truncation of RK4
    assert float(np.abs(symmetric - run().q[-1]).max()) > 1e-3


def test_what_has_no_symmetric_steps_is_refused():
    with pytest.raises(TypeError, match="Rodas5P is no explicit Runge-Kutta method with one tab"):
        Projected(Rodas5P(), symmetric=True)
    with pytest.raises(ValueError, match="symmetric is 'yes', must be True or False"):
        Projected(RK4(), symmetric="yes")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="the state of Hamiltonian is another one: use Multip"):
        run(formulation=Hamiltonian())
    with pytest.raises(ValueError, match="RK4 has no error estimate"):
        run(dt=None)
    assert eqx.tree_equal(Projected(RK4()), Projected(RK4(), symmetric=False))
