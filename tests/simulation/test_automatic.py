"""`simulate(solver="auto")`: the solver that a measurement asks for, and what it says of it."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.equal_links import branch_energy
from helpers.stiff import ElasticRod, Follower, HungRod, SpringJoints
from jaxdae.formulations import Baumgarte, LinearLaw, Multipliers, Penalty, RealizingForces
from jaxdae.models import CartesianPendulum, SliderCrank
from jaxdae.solvers import Projected, Rodas5P

PENDULUM = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
BENT = jaxdae.State(jnp.array([0.5, 0.0]), jnp.zeros(2))
HUNG = jaxdae.State(jnp.array([0.6, -0.8, 1.2, -1.6]), jnp.zeros(4))
FOLLOWING = jaxdae.State(jnp.zeros(1), jnp.zeros(1), jnp.ones(1))
GAINS = Multipliers(Baumgarte.critical(1e4))


def _tolerance(x):
    return diffrax.PIDController(rtol=x, atol=x)


def _run(system, formulation, state, **settings):
    settings = {"t1": 5.0, "solver": "auto", "throw": False} | settings
    return jaxdae.simulate(system, formulation, state, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "formulation", "state", "settings"),
    [
        (SpringJoints(), Multipliers(), BENT, {}),
        (Follower(), Multipliers(), FOLLOWING, {}),
        (CartesianPendulum(), GAINS, PENDULUM, {"stepsize_controller": _tolerance(1e-5)}),
    ],
    ids=["joints", "follower", "gains"],
)
def test_a_stiff_motion_gets_a_stiff_solver_and_is_the_same(system, formulation, state, settings):
    run = _run(system, formulation, state, **settings)
    explicit = _run(system, formulation, state, solver=None, max_steps=2**20, **settings)
    assert run.solver == "Rodas5P"
    assert "Rodas5P made the run on trial in" in str(run.why_solver)
    assert 5 * int(run.stats["num_steps"]) < int(explicit.stats["num_steps"])
    # Both are within their tolerances, in some hundred steps of which errors add up.
    tolerance = 1e-2 if settings else 1e-5
    np.testing.assert_allclose(run.final_state.q, explicit.final_state.q, atol=tolerance)


def test_a_run_that_an_explicit_method_cannot_make_is_made():
    formulation = RealizingForces(LinearLaw(1e6))
    assert not _run(CartesianPendulum(), formulation, PENDULUM, solver=None).success
    run = _run(CartesianPendulum(), formulation, PENDULUM)
    assert run.success
    assert run.solver == "Rodas5P"


@pytest.mark.slow
def test_constraints_that_nothing_stabilizes_are_enforced():
    """Long steps leave more of them than short ones."""
    run = _run(HungRod(1e9, 1e5), Multipliers(), HUNG, stepsize_controller=_tolerance(1e-4))
    assert run.solver == "Projected(Rodas5P)"
    assert float(jnp.abs(run.violation.phi).max()) < 1e-12  # round-off


@pytest.mark.parametrize(
    ("system", "formulation", "state", "why"),
    [
        (CartesianPendulum(), Multipliers(), PENDULUM, "asks Dopri8 for no more than ten"),
        (CartesianPendulum(), Multipliers(Baumgarte.critical(100.0)), PENDULUM, "which are few"),
        (CartesianPendulum(), Penalty(1e6, Baumgarte.critical(100.0)), PENDULUM, "which are few"),
        (
            ElasticRod(1e7, 0.0),
            Multipliers(),
            PENDULUM,
            "but a method for stiff equations would not cost less",
        ),
    ],
    ids=["none", "gains", "penalty", "vibration"],
)
def test_other_motions_are_those_of_the_default_bit_for_bit(system, formulation, state, why):
    run, default = (_run(system, formulation, state, solver=x) for x in ("auto", None))
    assert run.solver == default.solver == "Dopri8"
    assert why in str(run.why_solver)
    assert (run.q == default.q).all()


def test_a_trial_that_fails_is_not_called_dear():
    run = _run(SpringJoints(), Multipliers(), BENT, max_steps=10)
    assert not run.success
    assert run.solver == "Dopri8"
    assert "but Rodas5P did not reach t = " in str(run.why_solver)


def test_gains_as_fast_as_the_motion_are_not_stiff_however_long_the_run():
    law = Multipliers(Baumgarte.critical(10.0))
    run = _run(CartesianPendulum(), law, PENDULUM, t1=1000.0)
    assert run.solver == "Dopri8"
    assert "is no faster than the motion" in str(run.why_solver)


@pytest.mark.slow
def test_a_run_backward_in_time_is_judged_in_its_direction():
    run = _run(CartesianPendulum(), GAINS, PENDULUM, t0=5.0, t1=0.0,
               stepsize_controller=_tolerance(1e-5))  # fmt: skip
    assert run.solver == "Rodas5P"


@pytest.mark.parametrize(
    ("dt", "solver", "why"),
    [
        (1e-4, "Dopri8", "what decays at the start does so in steps of 0.0001 s"),
        (2e-3, "Rodas5P", "steps of 0.002 s are beyond the stability of Dopri8 for the root"),
    ],
)
def test_fixed_steps_are_explicit_as_long_as_they_are_stable(dt, solver, why):
    run = _run(SpringJoints(), Multipliers(), BENT, dt=dt, t1=0.5)
    assert run.success
    assert run.solver == solver
    assert pytest.approx(0.0, abs=1.0) == float(run.final_state.q[1])
    assert str(run.why_solver).startswith(why)


@pytest.mark.slow
def test_inside_transformations_it_is_the_documented_default():
    def end(length, solver):
        run = _run(CartesianPendulum(length=length), GAINS, PENDULUM, t1=0.01, solver=solver)
        assert run.solver == "Dopri8"
        return run.final_state.q

    lengths = jnp.array([1.0, 1.0])
    for transform in (jax.jit, jax.vmap, jax.jacfwd):
        of = lengths if transform is jax.vmap else lengths[0]
        found, default = (transform(lambda x, s=s: end(x, s))(of) for s in ("auto", None))
        assert (found == default).all()


def test_a_solver_that_was_given_stays():
    run = _run(CartesianPendulum(), Multipliers(), PENDULUM, solver=Projected(diffrax.Tsit5()))
    assert run.solver == "Projected(Tsit5)"
    assert run.why_solver is None
    assert "solver" not in repr(run)


def test_no_other_string_is_a_solver():
    with pytest.raises(ValueError, match="solver is 'stiff'; give 'auto', or a solver such as"):
        _run(CartesianPendulum(), Multipliers(), PENDULUM, solver="stiff")


def test_errors_are_those_of_other_solvers():
    with pytest.raises(ValueError, match="t1 is not finite"):
        _run(CartesianPendulum(), Multipliers(), PENDULUM, t1=float("nan"))


def test_the_choice_is_shown_and_stored(tmp_path):
    run = _run(SpringJoints(), Multipliers(), BENT)
    assert "solver       Rodas5P: the fastest root -2500 ± 6614i 1/s" in repr(run)
    again = jaxdae.Trajectory.load(run.save(tmp_path / "run"))
    assert (again.solver, again.why_solver) == (run.solver, run.why_solver)


def test_the_choice_is_made_of_the_numbers_of_each_call():
    """The text is no part of the program, which runs of equal kinds share."""
    formulation, tolerance = Multipliers(), _tolerance(1e-5)
    texts = [
        _run(SpringJoints(x), formulation, BENT, stepsize_controller=tolerance).why_solver
        for x in (1e6, 4e6)
    ]
    assert "± 6614i" in str(texts[0])
    assert "± 1.392e+04i" in str(texts[1])


@pytest.mark.slow
def test_a_compiled_run_takes_it_too():
    def ends(solver):
        run = jaxdae.compile_run(SpringJoints(), Multipliers(), BENT, t1=1.0, solver=solver)
        return run(np.asarray(BENT.q), np.asarray(BENT.v))

    found, stiff = ends("auto"), ends(Rodas5P())
    assert (found.q == stiff.q).all()


@pytest.mark.parametrize("size", ["small", "large"])
def test_a_run_past_singular_positions_is_made_again(size, monkeypatch):
    """Of a slider-crank of equal links, past two in-line positions; of large mechanisms too."""
    from jaxdae.diagnosis import diagnose

    if size == "large":
        monkeypatch.setattr(diagnose, "MOST_WORK", 0)
    crank = SliderCrank()
    state = jaxdae.State(*crank.start())
    # Rough steps leave the branch, which they do not say where nothing is searched.
    found = _run(crank, Multipliers(), state, t1=1.0, stepsize_controller=_tolerance(1e-4))
    assert bool(found.success)
    assert str(found.solver) == "Projected(Dopri8)"
    assert "; made again by SingularityRobust(), as the run passed a near-sing" in str(
        found.why_solver
    )
    energy = branch_energy(crank, crank.start()[0][0], crank.start()[1][0])
    last = branch_energy(crank, found.q[-1, 0], found.v[-1, 0])
    np.testing.assert_allclose(last, energy, rtol=1e-3)  # the tolerance, in some twenty steps
    # What the caller chose stays.
    given = Multipliers(solve=jaxdae.SingularityRobust())
    again = _run(crank, given, state, t1=1.0, stepsize_controller=_tolerance(1e-4))
    assert "made again" not in str(again.why_solver)
    np.testing.assert_allclose(again.q[-1], found.q[-1], rtol=1e-12)
