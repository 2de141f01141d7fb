"""Bad input, refused starts, failed runs: the thing, the amount, the remedy, before long work."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import SaveAt, SubSaveAt

import jaxdae
from jaxdae import (
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    simulate,
    SimulationError,
    SingularMassSolve,
    State,
)
from jaxdae.formulations import FullRankSolve
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

SYSTEM = CartesianPendulum()
START = State([1.0, 0.0], [0.0, 0.5])
RUN: dict[str, Any] = {"system": SYSTEM, "formulation": Multipliers(), "state": START, "t1": 1.0}


def assert_refused(message: str, error: type[Exception] = ValueError, **changed: Any):
    """Assert that `simulate` refuses, saying `message`."""
    with pytest.raises(error, match=message):
        simulate(**(RUN | changed))


# keyword arguments of a run, and what the message must say
BAD_RUNS = [
    (
        {"solver": diffrax.SemiImplicitEuler(), "dt": 0.1},
        r"SemiImplicitEuler .*one vector field.*use",
    ),
    ({"solver": RK4()}, r"RK4 has no error estimate.*give dt, or use .*Dopri8"),
    ({"solver": "Dopri8"}, r"solver is 'Dopri8'; give 'auto', or a solver such as diffrax\.Dopri8"),
    (
        {"stepsize_controller": diffrax.ConstantStepSize()},
        r"ConstantStepSize needs the step: give dt",
    ),
    ({"dt": -0.1}, r"dt = -0\.1 does not lead from t0 = 0\.0 to t1 = 1\.0"),
    ({"dt": 1e-6}, r"1000000 steps .* more than max_steps = 65536; give a larger max_steps"),
    (
        {"saveat": SaveAt(subs=[SubSaveAt(t1=True), SubSaveAt(ts=[0.0, 2.0])])},
        r"times from 0 to 2 s, outside the simulated 0 to 1 s",
    ),
    ({"max_steps": 0}, r"max_steps must be a positive integer; got 0"),
    (
        {"saveat": SaveAt(ts=jnp.array([[0.0, 1.0]]))},
        r"SaveAt\(ts=\.\.\.\) has shape \(1, 2\); give a vector",
    ),
    (
        {"saveat": SaveAt(t1=True, solver_state=True)},
        r"keeps no internal state of solver .*; leave solver_state, .* out",
    ),
    ({"start_tolerance": -1.0}, r"start_tolerance must be None or a number not below zero; got -1"),
    ({"saveat": SaveAt(ts=[0.0, 0.5, 0.2])}, r"must be in the order in which .* are reached"),
    (
        {"solver": diffrax.Kvaerno5(), "dt": 0.1},
        r"Kvaerno5 with a fixed step has no tolerance .*Kvaerno5\(root_finder=.*leave dt out",
    ),
    (
        {"solver": diffrax.Kvaerno5(), "stepsize_controller": diffrax.StepTo(jnp.arange(2.0))},
        r"Kvaerno5 with a fixed step has no tolerance",
    ),
]


@pytest.mark.parametrize(("how", "message"), BAD_RUNS)
def test_solver_step_or_time_that_cannot_work(how, message):
    """What does not fit is named before anything is compiled."""
    assert_refused(message, **how)


# keyword arguments of a run, and what the message must say
WRONG_KINDS = [
    ({"system": CartesianPendulum}, r"system is the class CartesianPendulum; give an instance of"),
    ({"formulation": Multipliers}, r"formulation is the class Multipliers; give jaxdae\.Multi"),
    (
        {"state": ([1.0, 0.0], [0.0, 0.5])},
        r"state is \(\[1\.0, .*give jaxdae\.State\(q, v\) or",
    ),
    ({"adjoint": diffrax.DirectAdjoint}, r"adjoint is the class DirectAdjoint; give diffrax\.For"),
    ({"adjoint": diffrax.BacksolveAdjoint()}, r"BacksolveAdjoint cannot give .*use .*Recursive"),
    ({"saveat": [0.0, 1.0]}, r"saveat is \[0\.0, 1\.0\]; give diffrax\.SaveAt\(ts="),
    ({"progress": "yes"}, r"progress is 'yes'; give True"),
    ({"controller": 3.0}, r"controller is 3\.0; give a callable u = controller\(t, q, v, w\)"),
    ({"stepsize_controller": "pid"}, r"stepsize_controller must be one of .*PIDContr.*got 'pid'"),
    ({"t1": "1.0"}, r"t1 must be a number; got '1\.0'"),
    ({"formulation": Multipliers(2.0)}, r"stabilization is 2\.0; give None, jaxdae\.Baumgarte\("),  # pyright: ignore[reportArgumentType]
    (
        {"formulation": Multipliers(solve=MinimumNormSolve)},  # pyright: ignore[reportArgumentType]
        r"solve is the class MinimumNormSolve; leave it out, or give Min",
    ),
]


@pytest.mark.parametrize(("how", "message"), WRONG_KINDS)
def test_argument_of_the_wrong_kind(how, message):
    """The argument, what it is, and what it should be."""
    assert_refused(message, TypeError, **how)


# what is made of a good formulation, and what the message must say
EDITS = [
    (Multipliers(Baumgarte(20.0, 100.0)), lambda f: f.stabilization.K_D, -1.0, r"K_D .*a value -1"),
    (
        Multipliers(Baumgarte(20.0, 100.0)),
        lambda f: f.stabilization.K_P,
        jnp.ones(3),
        r"K_P has shape \(3,\), which does not fit 1 position",
    ),
    (Penalty(10.0), lambda f: f.alpha, jnp.asarray(0.0), r"alpha must be positive.* a value 0"),
]


@pytest.mark.parametrize(("formulation", "where", "value", "message"), EDITS)
def test_gains_edited_after_construction_are_checked_again(formulation, where, value, message):
    """Also when the same declaration was simulated before, with gains that fit."""
    how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
    assert simulate(SYSTEM, formulation, START, **how).success
    edited = eqx.tree_at(where, formulation, value)
    assert_refused(message, formulation=edited, **how)


def test_state_of_wrong_shape():
    """q and v of different lengths, and batches without vmap."""
    assert_refused(r"q and v must be .*\(2,\) and \(3,\)", state=State(jnp.ones(2), jnp.ones(3)))
    assert_refused(r"jax\.vmap", state=State(jnp.ones((5, 2)), jnp.ones((5, 2))))


@pytest.mark.parametrize("value", [jnp.nan, jnp.inf])
def test_state_that_is_not_finite(value):
    """NaN or infinity in the start is named by entry."""
    assert_refused(
        rf"the state is not finite: q\[1\] = {value}", state=State([1.0, value], [0.0, 0.0])
    )


def test_inconsistent_start_at_position_level():
    """A start off the rod: constraint, amount, tolerance, and both remedies."""
    assert_refused(
        r"inconsistent: constraint 'rod' is violated by 0\.21 at position level \(allowed 0\.0002"
        r".*at t = 0\. .*consistent_state\(system, q, v\).*start_tolerance=None",
        state=State([1.1, 0.0], [0.0, 0.0]),
    )


def test_inconsistent_start_at_velocity_level():
    """A start that leaves the rod."""
    assert_refused(
        r"'rod' is violated by 0\.4 at velocity level", state=State([1.0, 0.0], [0.2, 0.0])
    )


def test_start_tolerance_is_the_users():
    """A start is refused above the tolerance, taken below it, and always with None."""
    off = State([1.001, 0.0], [0.0, 0.0])  # residual 2.001e-3, allowed tolerance * 2.001
    gains = Multipliers(Baumgarte(20.0, 100.0))
    how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
    assert_refused("violated by 0.002", formulation=gains, state=off, start_tolerance=9e-4, **how)
    for tolerance in (1.1e-3, None):
        assert simulate(SYSTEM, gains, off, start_tolerance=tolerance, **how).success


def test_dependent_constraints_under_the_full_rank_policy(repeated_rod):
    """Rank, singular values, the constraints involved, and the formulations that can."""
    assert_refused(
        r"dependent at t = 0: .*rank 1 of 2 \(singular values \[1\.41, .*\).*involved: 'f1', 'f2'"
        r"\. Use .*MinimumNormSolve\(\).*Penalty or AugmentedLagrangian, or drop",
        system=repeated_rod((1.0, 1.0)),
        formulation=Multipliers(solve=FullRankSolve()),
    )


@pytest.mark.slow
def test_singular_mass_matrix_under_a_policy_that_needs_a_regular_one(massless):
    """Eigenvalues of the mass matrix, and the formulations that can."""
    state = State([1.0, 0.5], [1.0, 1.0])
    message = r"mass matrix .*: eigenvalues from 0 to 1\.5.*SingularMassSolve\(\).*Penalty"
    for solve in (FullRankSolve(), MinimumNormSolve()):
        assert_refused(message, system=massless, formulation=Multipliers(solve=solve), state=state)
    how: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": RK4()}
    for formulation in (Multipliers(solve=SingularMassSolve()), Penalty(10.0)):
        assert simulate(massless, formulation, state, **how).success


class HalfMassless(jaxdae.System):
    """Two free coordinates; the second has an inertia that is zero, or worse."""

    second: float = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v[0] ** 2 + self.second * v[1] ** 2)


@pytest.mark.parametrize("second", [0.0, -0.1])
def test_mass_matrix_must_be_positive_on_what_the_constraints_allow(second):
    """Where M may be singular off ker J, a free coordinate without inertia is refused."""
    message = rf"not determined: .*eigenvalue {second:.3g} on the directions .*Give every coord"
    state = State([0.0, 0.0], [1.0, 0.0])
    for formulation in (Multipliers(solve=SingularMassSolve()), Penalty(10.0)):
        assert_refused(message, system=HalfMassless(second), formulation=formulation, state=state)


# where a function stands that closes over `x`, in a run
CLOSURES = {
    "controller": lambda x: {"controller": lambda t, q, v, w: x * q},
    "stabilization": lambda x: {"formulation": Multipliers(lambda t, q, v, f, df: -x * df)},
}


@pytest.mark.parametrize("transform", [jax.grad, jax.vmap])
@pytest.mark.parametrize("name", CLOSURES)
def test_functions_that_close_over_traced_values_are_refused(name, transform):
    """They could not leave the transformation with the trajectory; a Module can."""
    run = lambda x: simulate(**(RUN | CLOSURES[name](x))).final_time  # noqa: E731
    x = jnp.ones(2) if transform is jax.vmap else 1.0
    with pytest.raises(ValueError, match=rf"the {name} closes over a value .*write it as an eqx"):
        transform(run)(x)


@pytest.mark.slow
def test_singular_motion_says_when_which_constraint_and_what_to_do(led_point):
    """The run stops where the target leaves the circle; the message has all a user needs."""
    system = led_point(1.0)
    with pytest.raises(SimulationError) as caught:
        simulate(system, Multipliers(Baumgarte(20.0, 100.0)), system.start(), t1=1.5)
    text = str(caught.value)
    time = float(text.split("stopped at t = ")[1].split(" s")[0])
    assert abs(time - 1.0) < 1e-4
    for part in (
        "Largest residual: '",
        "lose independence there: singular values [1.41, ",
        "involved: 'circle', 'leader'",
        "use Multipliers(..., solve=SingularityRobust())",
        "cannot be satisfied beyond that time, change them, or use Penalty",
    ):
        assert part in text


def test_too_few_steps_are_blamed_on_stiffness_or_the_limit():
    """With independent constraints an exhausted step limit names max_steps."""
    assert_refused(r"stopped at t = .*maximum number of solver steps.*independent .*max_steps",
             error=SimulationError, max_steps=3, t1=10.0)  # fmt: skip


def _broken(rate, throw=True, **how):
    """Twenty steps of 0.1 s: a decay rate of 10 1/s suits them, one of 1e4 1/s ends in NaN."""
    formulation = Multipliers(Baumgarte.critical(rate))
    return simulate(
        SYSTEM, formulation, START, t1=2.0, dt=0.1, solver=RK4(), throw=throw, max_steps=32, **how
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the step of .* is beyond the step limit:RuntimeWarning")
def test_blow_up_without_a_finite_row_is_placed_after_the_start():
    """What was not saved is not known: no time of infinity, and the last state is the start."""
    saveat = SaveAt(t1=True)
    with pytest.raises(SimulationError, match=r"no longer finite after t = 0 s"):
        _broken(1e4, saveat=saveat)
    run = _broken(1e4, throw=False, saveat=saveat)
    assert run.final_time == 0
    np.testing.assert_array_equal(run.last_state.q, START.q)
    assert np.isnan(run.final_state.q).all()


# a transformation, and how a failing run is called in it
TRANSFORMED = {
    "jit": lambda f: jax.jit(f)(1e4),
    "grad": lambda f: jax.grad(f)(1e4),
    "vmap": lambda f: jax.vmap(f)(jnp.array([10.0, 1e4])),
}


def assert_raises_while_running(compute):
    with pytest.raises(RuntimeError, match="Nonfinite") as caught:
        jax.block_until_ready(compute())
    assert not isinstance(caught.value, SimulationError)


@pytest.mark.parametrize("name", TRANSFORMED)
def test_failure_inside_a_transformation_is_raised_by_the_compiled_program(name):
    """There a message with numbers cannot be made, but the failure is not silent."""
    assert_raises_while_running(lambda: TRANSFORMED[name](lambda rate: _broken(rate).q[-1, 0]))


# what is saved, and what is read of a run whose failure it does not show by itself
READINGS = {
    "dense": ({"saveat": SaveAt(dense=True)}, lambda run: run.evaluate(0.0).q),
    "first row": ({}, lambda run: run.q[0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", READINGS)
def test_whatever_is_read_of_a_failed_run_inside_a_transformation_raises(name):
    """Nothing of it may be used unnoticed, though XLA drops what is not read."""
    how, read = READINGS[name]
    assert_raises_while_running(lambda: jax.jit(lambda rate: read(_broken(rate, **how)))(1e4))


@pytest.mark.slow
def test_failure_is_a_value_inside_transformations_that_do_not_throw():
    """throw=False: the failed lane is marked, the other is what it is alone."""
    run = lambda rate: _broken(rate, throw=False)  # noqa: E731
    runs, good = jax.jit(jax.vmap(run))(jnp.array([10.0, 1e4])), run(10.0)
    np.testing.assert_array_equal(runs.success, [True, False])
    np.testing.assert_allclose(runs.q[0], good.q, rtol=1e-12, atol=1e-12)  # round-off of 20 steps
    assert np.isinf(runs.ts[1, -1])
    assert np.isnan(runs.q[1, -1]).all()
    # Each lane ends where its last finite row is.
    ends = np.isfinite(runs.ts).sum(axis=1) - 1
    np.testing.assert_array_equal(runs.final_time, runs.ts[np.arange(2), ends])
    np.testing.assert_array_equal(runs.last_state.q, runs.q[np.arange(2), ends])
    np.testing.assert_array_equal(np.isnan(runs.final_state.q).all(axis=1), [False, True])


@pytest.mark.slow
def test_failure_without_constraints_says_so():
    """A motion that reaches infinity in finite time: x'' = 6 x^2 has x = 1 / (1 - t)^2."""

    class Runaway(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ v

        def potential_energy(self, t, q):
            return -2 * q[0] ** 3

    state = State([1.0], [2.0])
    message = r"stopped at t = (0\.99\d*|1) s .*The system has no constraints"
    assert_refused(message, error=SimulationError, system=Runaway(), state=state, t1=2.0)
