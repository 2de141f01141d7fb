"""Steps projected onto the constraints: where they end, and that nothing else changes."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    Hamiltonian,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    QuasiVelocities,
    RealizingForces,
    simulate,
    SingularMassSolve,
    State,
    VelocityElimination,
)
from jaxdae.formulations import LinearLaw
from jaxdae.models import AndrewsMechanism, CartesianPendulum
from jaxdae.solvers import Projected, RK4
from jaxdae.solvers.projection import nearest
from jaxdae.systems.dynamics import mass_and_jacobian

PENDULUM = CartesianPendulum(1.3, 0.9)
START = State(*PENDULUM.start())
# Round-off of residuals of order one, some operations each.
ROUND_OFF = 1e-14


def largest(made):
    """The largest residual of any row, relative to the size of what it is made of."""
    violation = made.violation
    return max(
        np.abs(violation.phi).max(initial=0.0) / (1 + np.abs(made.q).max()),
        np.abs(violation.phi_dot).max(initial=0.0) / (1 + np.abs(made.v).max()),
    )


def run(solver, system: Any = PENDULUM, start=START, formulation=None, **settings):
    formulation = Multipliers() if formulation is None else formulation
    settings = {"t1": 0.5, "dt": 0.05, **settings}
    return simulate(system, formulation, start, solver=solver, **settings)


@pytest.fixture(scope="module")
def case(everything, massless, repeated_rod):
    """Systems by name, with a consistent start."""
    rod = repeated_rod((1.0, 2.0))
    consistent = jaxdae.consistent_state(everything, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    return {
        "everything": (everything, consistent),
        "massless": (massless, State([0.5, 0.125], [1.0, 0.5])),
        "repeated rod": (rod, State([0.6, -0.8], [1.2, 0.9])),
        "pendulum": (PENDULUM, START),
    }.__getitem__


@pytest.fixture(scope="module")
def exact(case):
    """Coordinates every 0.05 s by short steps, which are the same in all formulations."""
    found = {}

    def motion(name, formulation):
        if name not in found:
            system, start = case(name)
            settings = {"formulation": formulation, "t1": 0.2, "dt": 0.01}
            found[name] = run(diffrax.Dopri8(), system, start, **settings).q[5::5]
        return found[name]

    return motion


FORMULATIONS = [
    ("everything", Multipliers()),
    ("everything", Hamiltonian()),
    ("pendulum", VelocityElimination()),
    ("pendulum", QuasiVelocities(stabilization=Baumgarte(K_D=2.0, K_P=1.0))),
    ("repeated rod", Multipliers(solve=MinimumNormSolve())),
    ("repeated rod", AugmentedLagrangian(alpha=1e2, iterations=3)),
    ("massless", Multipliers(solve=SingularMassSolve())),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "formulation"),
    FORMULATIONS,
    ids=[f"{system}-{type(formulation).__name__}" for system, formulation in FORMULATIONS],
)
def test_steps_end_on_the_constraints_in_every_formulation(system, formulation, case, exact):
    """Time-dependent, nonholonomic and not affine, dependent; with singular mass."""
    motion = exact(system, formulation)
    system, start = case(system)
    made = run(Projected(RK4(), 3), system, start, formulation, t1=0.2)
    assert largest(made) < ROUND_OFF
    # The truncation error of four steps of 0.05 s.
    np.testing.assert_allclose(made.q[-len(motion) :], motion, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_without_the_projection_steps_leave_the_constraints(case):
    system, start = case("everything")
    assert largest(run(RK4(), system, start, t1=0.2)) > 1e3 * ROUND_OFF


@pytest.mark.slow
def test_one_iteration_goes_the_way_of_least_change_in_the_mass_metric():
    """The move is M^-1 J^T times something, and a second one squares the distance."""
    system = AndrewsMechanism()
    q, v = system.start()
    off = State(q + 1e-4 * jnp.cos(jnp.arange(7.0)), v)
    moved = jax.jit(lambda state: nearest(system, Multipliers(), 0.0, state, 1))
    once = moved(off)
    mass, jac = jax.jit(lambda x: mass_and_jacobian(system, 0.0, x.q, x.v))(off)
    move = mass @ (once.q - off.q)
    multiples = np.linalg.lstsq(np.asarray(jac.T), np.asarray(move), rcond=None)[0]
    np.testing.assert_allclose(jac.T @ multiples, move, rtol=0, atol=1e-10 * np.abs(move).max())
    residuals = [
        float(np.abs(system.position_constraints(0.0, x.q)).max()) for x in (off, once, moved(once))
    ]
    assert residuals[1] < 1e2 * residuals[0] ** 2
    assert residuals[2] < 1e-15


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saveat", "backend"),
    [(None, "native"), (diffrax.SaveAt(ts=jnp.linspace(0.03, 0.47, 7)), "plain")],
    ids=["default", "times"],
)
def test_saved_states_between_steps_are_on_the_constraints(saveat, backend):
    settings = {
        "dt": None, "saveat": saveat, "backend": backend,
        "stepsize_controller": diffrax.PIDController(rtol=1e-5, atol=1e-5),
    }  # fmt: skip
    if backend == "native":
        assert largest(run(diffrax.Tsit5(), **settings)) > 1e-7
    assert largest(run(Projected(diffrax.Tsit5()), **settings)) < ROUND_OFF


@pytest.mark.slow
def test_dense_output_functions_of_the_state_and_several_results_are_on_the_constraints():
    dense = run(Projected(RK4()), saveat=diffrax.SaveAt(dense=True))
    state = dense.evaluate(np.linspace(0.01, 0.49, 9))
    phi = jax.vmap(PENDULUM.position_constraints)(jnp.zeros(9), state.q)
    assert np.abs(phi).max() < ROUND_OFF
    length = lambda t, y, args: jnp.sum(y.q**2)  # noqa: E731
    several = (
        diffrax.SubSaveAt(ts=[0.123, 0.321]),
        diffrax.SubSaveAt(ts=[0.123, 0.321], fn=length),
        diffrax.SubSaveAt(t1=True),
    )
    (between, _), squares, _ = run(Projected(RK4()), saveat=diffrax.SaveAt(subs=several)).saved
    np.testing.assert_allclose(np.sum(between.q**2, -1), 0.9**2, rtol=ROUND_OFF)
    np.testing.assert_allclose(squares, 0.9**2, rtol=ROUND_OFF)


@pytest.mark.slow
def test_both_backends_make_the_same_run(case):
    """Of a method that hands a stage over to the next step: here none may be."""
    system, start = case("everything")
    settings = {
        "system": system, "start": start, "t1": 0.2, "dt": 0.02,
        "saveat": diffrax.SaveAt(ts=jnp.linspace(0.0, 0.2, 6)),
    }  # fmt: skip
    plain, native = (
        run(Projected(diffrax.Tsit5()), backend=x, **settings) for x in ("plain", "native")
    )
    assert native.backend == "native"
    for one, other in ((plain.q, native.q), (plain.v, native.v)):
        # Round-off of some ten steps.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12 * np.abs(one).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver",
    [diffrax.ImplicitEuler(), diffrax.HalfSolver(diffrax.Heun())],
    ids=["implicit", "two halves, which estimate the error"],
)
def test_implicit_solvers_and_those_that_wrap_others_are_projected_too(solver):
    choice = diffrax.PIDController(rtol=1e-6, atol=1e-6)
    made = run(Projected(solver), dt=None, stepsize_controller=choice)
    assert made.backend == "plain"
    assert largest(made) < ROUND_OFF
    np.testing.assert_allclose(made.q[-1], run(diffrax.Dopri8(), dt=0.005).q[-1], atol=1e-3)


@pytest.mark.slow
def test_batches_and_single_precision():
    states = jax.tree.map(lambda x: jnp.stack([x, 1.0 * x, x]).astype(jnp.float32), START)
    made = jax.vmap(lambda state: run(Projected(RK4()), start=state))(states)
    assert made.q.dtype == jnp.float32
    assert largest(made) < 4e-7
    np.testing.assert_allclose(made.q[1], run(Projected(RK4())).q, rtol=0, atol=1e-5)


@pytest.mark.parametrize("adjoint", [diffrax.DirectAdjoint(), diffrax.ForwardMode()])
def test_every_adjoint_of_diffrax_takes_it(adjoint):
    """Beside the one of all other tests here."""
    call = lambda x: run(Projected(RK4()), start=x, adjoint=adjoint, backend="plain").q  # noqa: E731
    assert jax.eval_shape(call, START).shape[-1] == 2


@pytest.mark.slow
def test_rows_that_were_not_reached_are_marked():
    made = run(
        Projected(diffrax.Tsit5()), dt=None, max_steps=3, throw=False, t1=5.0,
        stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
    )  # fmt: skip
    assert not made.success
    reached = np.isfinite(made.ts)
    assert 0 < reached.sum() < reached.size
    assert np.isnan(made.q[~reached]).all()
    assert np.abs(made.violation.phi[reached]).max() < ROUND_OFF


def test_gains_have_no_step_limit_where_nothing_is_left_to_stabilize(recwarn):
    stiff = Multipliers(Baumgarte(K_D=400.0, K_P=1e4))
    with pytest.warns(RuntimeWarning, match="beyond the step limit of the gains"):
        run(RK4(), formulation=stiff, throw=False)
    recwarn.clear()
    made = run(Projected(RK4()), formulation=stiff)
    # The bounds of rough steps on energy are another matter than the step limit.
    assert not [x for x in recwarn.list if "step limit" in str(x.message)]
    # What the stages make of the truncation error is taken away in each step; it does not pile up.
    assert largest(made) < 1e-4


def test_what_moves_off_the_constraints_on_purpose_is_refused():
    """The multiplier of realizing forces is a function of what the projection takes away."""
    with pytest.raises(ValueError, match=r"RealizingForces act .* Use RK4 without Projected"):
        run(Projected(RK4()), formulation=RealizingForces(LinearLaw(50.0)))


@pytest.mark.slow
def test_penalty_motions_are_improved_to_first_order():
    """The exact penalty motion is off the constraints, so the order of the method is not kept."""
    exact = run(diffrax.Dopri8(), dt=0.005).q[-1]
    penalty = Penalty(alpha=10.0, stabilization=None)
    left = [
        float(np.abs(run(solver, formulation=penalty, dt=0.5 / n).q[-1] - exact).max())
        for solver, n in ((RK4(), 10), (Projected(RK4()), 10), (Projected(RK4()), 20))
    ]
    assert left[1] < 0.2 * left[0]
    # Up to the next order.
    np.testing.assert_allclose(np.log2(left[1] / left[2]), 1.0, atol=0.2)


@pytest.mark.slow
def test_what_is_not_a_solver_or_a_number_of_iterations_is_refused():
    with pytest.raises(TypeError, match=r"Projected wraps a diffrax solver, .*; got 'RK4'"):
        Projected("RK4")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="Projected wraps a diffrax solver"):
        Projected(RK4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="wraps a solver once; give more iterations"):
        Projected(Projected(RK4()))
    with pytest.raises(ValueError, match="iterations is 0, must be a positive integer"):
        Projected(RK4(), iterations=0)
    with pytest.raises(ValueError, match="RK4 has no error estimate"):
        run(Projected(RK4()), dt=None)
