"""The half-explicit method: order of each variable, constraints, derivatives, what it is given."""

from itertools import pairwise
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import DrivenPendulum, MassOnCircle
from jaxdae.models import AppellHamel, Chain, KnifeEdge, SliderCrank
from jaxdae.solvers import half_explicit as coefficients, HalfExplicit, Projected

END = diffrax.SaveAt(t1=True)
BACKENDS = ["plain", "native"]


START = MassOnCircle().start()
SWINGING = DrivenPendulum().start()
SPEED = np.exp(-0.5)  # of the pendulum after 1 s
TURNED = 2 * (1 - SPEED)
THERE = np.array([np.cos(TURNED), np.sin(TURNED)])


def run(system: Any, state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": HalfExplicit(), "saveat": END} | options
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def reference(system, state, t1=1.0, **options):
    tight = diffrax.PIDController(rtol=1e-13, atol=1e-13)
    return run(
        system,
        state,
        t1=t1,
        solver=Projected(diffrax.Dopri8()),
        stepsize_controller=tight,
        **options,
    )


def test_coefficients_are_those_of_radau_at_the_end_and_see_no_parabola_in_the_error():
    rows, times, estimate = coefficients._ROWS, coefficients._TIMES, coefficients._ESTIMATE
    np.testing.assert_allclose(rows.sum(axis=1), times[1:], rtol=1e-14)
    for k in range(1, 6):  # quadrature of order 5
        np.testing.assert_allclose(rows[-1] @ times[:-1] ** (k - 1), 1 / k, rtol=1e-14)
    for k in range(3):
        consistent = float(k > 0)  # rate at the end, less that at the beginning
        np.testing.assert_allclose(estimate @ [*times[:-1] ** k, consistent], 0, atol=1e-15)


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_velocities_and_multipliers_are_of_order_four(backend):
    exact = [THERE, SPEED * np.array([-THERE[1], THERE[0]]), np.array([SPEED**2 / 2])]
    errors = []
    for count in (20, 40):
        found = run(MassOnCircle(), dt=1 / count, backend=backend)
        assert found.backend == backend
        values = found.q[-1], found.v[-1], found.multipliers[-1]
        errors.append([np.abs(x - y).max() for x, y in zip(values, exact, strict=True)])
    np.testing.assert_allclose(np.log2(np.divide(*errors)), 4.0, atol=0.15)


@pytest.mark.slow
def test_constraints_that_depend_on_time_hold_at_steps_and_between():
    exact = reference(
        DrivenPendulum(), SWINGING, saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 23))
    )
    for tolerance in (1e-6, 1e-9):
        found = run(
            DrivenPendulum(), SWINGING, saveat=diffrax.SaveAt(ts=exact.ts),
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        )  # fmt: skip
        violation = found.violation
        assert max(np.abs(violation.phi).max(), np.abs(violation.phi_dot).max()) < 1e-14
        # Errors of steps add up, and that of dense output is of the same order.
        np.testing.assert_allclose(found.q, exact.q, atol=5 * tolerance)


def test_forces_of_a_mass_that_depends_on_its_place_keep_the_order():
    exact = reference(DrivenPendulum(), SWINGING)
    errors = []
    for count in (40, 80, 160):
        found = run(DrivenPendulum(), SWINGING, dt=1 / count)
        errors.append(np.abs(found.v[-1] - exact.v[-1]).max())
    orders = [np.log2(x / y) for x, y in pairwise(errors)]
    np.testing.assert_allclose(orders, 4.0, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_back_in_time_returns(backend):
    tight = diffrax.PIDController(rtol=1e-10, atol=1e-10)
    there = run(DrivenPendulum(), SWINGING, stepsize_controller=tight, backend=backend)
    back = run(
        DrivenPendulum(),
        there.last_state,
        t0=1.0,
        t1=0.0,
        stepsize_controller=tight,
        backend=backend,
    )
    np.testing.assert_allclose(back.q[-1], SWINGING.q, atol=1e-9)
    np.testing.assert_allclose(back.v[-1], SWINGING.v, atol=1e-9)


@pytest.mark.slow
def test_single_precision():
    state = jax.tree.map(lambda x: x.astype(jnp.float32), SWINGING)
    exact = reference(DrivenPendulum(), SWINGING)
    for backend in BACKENDS:
        found = run(DrivenPendulum(), state, backend=backend)
        assert found.q.dtype == jnp.float32
        np.testing.assert_allclose(found.q[-1], exact.q[-1], atol=1e-4)  # ten tolerances
        assert np.abs(found.violation.phi).max() < 1e-6


def test_constraints_may_depend_on_each_other():
    found = run(MassOnCircle(copies=3), dt=0.01)
    np.testing.assert_allclose(found.q[-1], THERE, atol=1e-9)  # 0.01^4 over some


@pytest.mark.slow
@pytest.mark.parametrize("model", [KnifeEdge, AppellHamel], ids=["linear", "nonlinear"])
def test_velocity_constraints(model):
    system = model()
    state = jaxdae.State(*system.start())
    found = run(system, state, t1=0.5)
    np.testing.assert_allclose(found.q[-1], reference(system, state, t1=0.5).q[-1], atol=1e-7)
    assert np.abs(found.violation.phi_dot).max() < 1e-14


class Motor(jaxdae.System):
    """A mass on a circle, pushed along by a force that builds up: `w' = u - w`."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, u
        return w[0] * jnp.stack([-q[1], q[0]])

    def actuator_rate(self, t, q, v, w, u):
        del t, q, v
        return u - w

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q @ q - 1.0])


def test_actuators_and_controllers():
    state = jaxdae.State(START.q, jnp.zeros(2), jnp.zeros(1))
    found = run(Motor(), state, dt=0.02, controller=lambda t, q, v, w: jnp.ones(1))  # noqa: ARG005
    angle = 0.5 - 1 + 1 - np.exp(-1.0)  # t^2 / 2 - t + 1 - exp(-t)
    np.testing.assert_allclose(found.w[-1], 1 - np.exp(-1.0), atol=1e-8)
    np.testing.assert_allclose(found.q[-1], [np.cos(angle), np.sin(angle)], atol=1e-8)


class Falling(jaxdae.System):
    """A free mass."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 9.81 * q[0]


def test_without_constraints_it_is_a_runge_kutta_method():
    found = run(Falling(), jaxdae.State(jnp.zeros(1), jnp.ones(1)), dt=0.5)
    np.testing.assert_allclose(found.q[-1], [1 - 0.5 * 9.81], rtol=1e-14)


@pytest.mark.slow
def test_a_chain_of_many_links_keeps_its_constraints():
    chain = Chain(lengths=jnp.full(30, 0.1), masses=jnp.full(30, 1.0))
    found = run(chain, jaxdae.State(*chain.start()), t1=0.05, dt=0.005)
    assert np.abs(found.violation.phi).max() < 1e-12
    assert np.abs(found.violation.phi_dot).max() < 1e-12


@pytest.mark.slow
def test_the_slider_crank_passes_its_singular_position_on_its_branch():
    crank = SliderCrank()
    state = jaxdae.State(*crank.start())
    options = {"stepsize_controller": diffrax.PIDController(rtol=1e-7, atol=1e-7)}
    with pytest.warns(RuntimeWarning, match="near-singular position"):
        found = run(crank, state, saveat=None, **options)
    np.testing.assert_allclose(found.energy, found.energy[0], atol=1e-4)
    turned = found.q[:, 0]
    assert np.all(np.diff(turned) > 0)  # the crank turns on
    np.testing.assert_allclose(found.q[:, 0], -found.q[:, 1], atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_derivatives_in_both_modes(backend):
    """By a length, which the start depends on, too; of positions, velocities and multipliers."""

    def end(rope, adjoint=None):
        system = DrivenPendulum(rope)
        start = jaxdae.consistent_state(system, SWINGING.q, SWINGING.v)
        made = run(system, start, t1=0.1, dt=0.02, backend=backend, adjoint=adjoint)
        return made.q[-1, 0] + made.v[-1, 0] + made.multipliers[-1, 0]

    reverse = jax.grad(end)(1.0)
    forward = jax.jvp(lambda x: end(x, diffrax.ForwardMode()), (1.0,), (1.0,))[1]
    np.testing.assert_allclose(forward, reverse, rtol=1e-11)
    h = 1e-3
    near, far = (end(1 + x) - end(1 - x) for x in (h, 2 * h))
    np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_member_that_is_no_number_is_alone(backend):
    def end(speed):
        state = eqx.tree_at(lambda x: x.v, START, speed * START.v)
        options: dict[str, Any] = {"throw": False, "start_tolerance": None, "backend": backend}
        return run(MassOnCircle(), state, t1=0.1, dt=0.02, **options).last_state.q

    speeds = jnp.array([1.0, jnp.nan, 1.0])
    found = jax.vmap(end)(speeds)
    np.testing.assert_array_equal(found[0], found[2])
    slopes = jax.vmap(jax.jacrev(end))(speeds)
    assert np.isfinite(slopes[0]).all()
    np.testing.assert_array_equal(slopes[0], slopes[2])


def test_it_runs_by_itself_in_diffrax():
    term = jaxdae.solvers.ConstrainedTerm(lambda controller, t, state: None)  # noqa: ARG005
    made = diffrax.diffeqsolve(
        term, HalfExplicit(), 0.0, 1.0, 0.02, (START, None), args=(MassOnCircle(), None, None)
    )
    assert made.ys is not None
    np.testing.assert_allclose(made.ys[0].q[-1], THERE, atol=2e-8)


def test_a_formulation_that_stabilizes_is_refused():
    with pytest.raises(ValueError, match="HalfExplicit enforces the constraints itself"):
        jaxdae.simulate(
            MassOnCircle(), jaxdae.Multipliers(jaxdae.Baumgarte(K_D=1.0, K_P=1.0)), START, t1=1.0,
            solver=HalfExplicit(),
        )  # fmt: skip
