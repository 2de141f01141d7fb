"""Problems of the test set for initial value problems and stiff neighbours, by methods that suit.

Published ends, and ends by SciPy on equations derived by hand: both agree, and so do the methods.
"""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest

import jaxdae
from helpers.ivp_problems import fekete_start, Governor, ParticlesOnSphere, SprungArm
from jaxdae import Baumgarte, Multipliers, Penalty, State
from jaxdae.formulations import SparseSolve
from jaxdae.models import AndrewsMechanism, car_axis, Chain, flexible_slider_crank
from jaxdae.models.andrews import END_REFERENCE as ANDREWS_END
from jaxdae.models.two_link import ReachableTwoLink, TwoLinkManipulator
from jaxdae.solvers import GeneralizedAlpha, HalfExplicit, Projected, RadauIIA, Rattle, Rodas5P
from oracles import ivp_problems

DOPRI8 = Projected(diffrax.Dopri8())
# Its own iteration refuses most steps of stiff mechanisms.
KVAERNO5 = Projected(
    diffrax.Kvaerno5(root_finder=diffrax.with_stepsize_controller_tols(optx.Newton)())
)
BARS = np.array([2, 5])


def run(system: Any, state, t1, solver, tolerance=None, formulation=None, **options):
    """Five rows, at most of which lie between steps."""
    if tolerance is not None:
        control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        options["stepsize_controller"] = control
    saveat = diffrax.SaveAt(ts=np.linspace(0.0, t1, 5))
    law = Multipliers() if formulation is None else formulation
    return jaxdae.simulate(system, law, state, t1=t1, solver=solver, saveat=saveat, **options)


def on_the_constraints(found):
    violation = found.violation
    # Round-off of coordinates and velocities of up to a hundred.
    return max(np.abs(violation.phi).max(), np.abs(violation.phi_dot).max()) < 1e-12


def test_the_published_car_axis_is_that_of_its_two_freedoms():
    q, v = ivp_problems.car_axis()
    # SciPy at 1e-12 over some three hundred steps.
    np.testing.assert_allclose(q, car_axis.END_REFERENCE.q, atol=1e-11)
    np.testing.assert_allclose(v, car_axis.END_REFERENCE.v, atol=1e-11)


@pytest.mark.parametrize(
    ("solver", "tolerance", "error"),
    [
        # Errors grow some tenfold over the vibrations of 45 rad/s.
        (DOPRI8, 1e-8, 1e-6),
        pytest.param(RadauIIA(), 1e-8, 1e-7, marks=pytest.mark.slow),
        pytest.param(HalfExplicit(), 1e-8, 5e-5, marks=pytest.mark.slow),
        pytest.param(GeneralizedAlpha(0.8), 1e-5, 3e-2, marks=pytest.mark.slow),
    ],
    ids=["Dopri8", "RadauIIA", "HalfExplicit", "GeneralizedAlpha"],
)
def test_car_axis(solver, tolerance, error):
    system, end = car_axis.CarAxis(), car_axis.END_REFERENCE
    found = run(system, State(*system.start()), end.t, solver, tolerance)
    assert on_the_constraints(found)
    np.testing.assert_allclose(found.q[-1], end.q, atol=error)
    np.testing.assert_allclose(found.v[-1], end.v, atol=30 * error)  # vibrations, their rate
    np.testing.assert_allclose(found.multipliers[-1], end.multipliers, atol=error)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "error"),
    # Relative to the vibrations of 2e-4 m, which nothing damps over 400 of them.
    [(DOPRI8, 1e-6), (RadauIIA(), 1e-6), (HalfExplicit(), 3e-5)],
    ids=["Dopri8", "RadauIIA", "HalfExplicit"],
)
def test_flexible_slider_crank(solver, error):
    system, end = flexible_slider_crank.FlexibleSliderCrank(), flexible_slider_crank.END_REFERENCE
    start = State(*system.start())
    found = run(system, start, end.t, solver, 1e-10, max_steps=10**6)
    assert on_the_constraints(found)
    # The published slider is 2e-10 m off.
    np.testing.assert_allclose(found.q[-1, :3], end.q[:3], atol=5e-10)
    np.testing.assert_allclose(found.q[-1, 3:], end.q[3:], atol=error * 2e-4)
    np.testing.assert_allclose(found.multipliers[-1], end.multipliers, atol=1e2 * error)


def test_the_published_particles_are_those_of_scipy():
    start = np.asarray(fekete_start().q)
    q, v = ivp_problems.particles(start, 1000.0, 0.5)
    # On their way they pass unstable arrangements, which makes errors a hundred times as large.
    np.testing.assert_allclose(q, np.ravel(ivp_problems.FEKETE_END), atol=1e-10)
    assert np.abs(v).max() < 1e-12  # at rest, but for SciPy's tolerance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "tolerance", "solve"),
    [
        (DOPRI8, 1e-9, None),
        (DOPRI8, 1e-9, SparseSolve()),
        (HalfExplicit(), 1e-7, None),
        (RadauIIA(), 1e-6, None),
    ],
    ids=["Dopri8", "Dopri8 sparse", "HalfExplicit", "RadauIIA"],
)
def test_the_fekete_problem(solver, tolerance, solve):
    law = Multipliers() if solve is None else Multipliers(solve=solve)
    found = run(ParticlesOnSphere(), fekete_start(), 1000.0, solver, tolerance, law)
    assert on_the_constraints(found)
    # They have come to rest, but errors of the way there remain.
    np.testing.assert_allclose(found.q[-1], np.ravel(ivp_problems.FEKETE_END), atol=1e-7)
    np.testing.assert_allclose(found.multipliers[-1], 19 / 4, atol=1e-7)  # (N - 1) / 4


def crowd():
    """Six particles anywhere."""
    q = np.random.default_rng(3).normal(size=(6, 3))
    return (q / np.linalg.norm(q, axis=1, keepdims=True)).ravel()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "rate", "steps"),
    # An explicit method takes 25 000.
    [
        (RadauIIA(), None, 400),
        (Projected(Rodas5P()), 1.0, 600),
        (KVAERNO5, 1.0, 400),
        ("auto", None, 600),
    ],
    ids=["RadauIIA", "Rodas5P", "Kvaerno5", "auto"],
)
def test_strong_friction_does_not_shorten_the_steps_of_stiff_methods(solver, rate, steps):
    q = crowd()
    law = Multipliers() if rate is None else Multipliers(Baumgarte.critical(rate))
    state = State(jnp.asarray(q), jnp.zeros(18))
    found = run(ParticlesOnSphere(damping=100.0), state, 1000.0, solver, 1e-8, law)
    settings: dict[str, Any] = {"method": "Radau", "rtol": 1e-10, "atol": 1e-11}
    wanted, _ = ivp_problems.particles(q, 1000.0, 100.0, **settings)
    assert on_the_constraints(found)
    np.testing.assert_allclose(found.q[-1], wanted, atol=1e-7)  # 1e-8 in each of 200 steps
    assert int(found.stats["num_steps"]) < steps


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "options"),
    [
        (DOPRI8, {"tolerance": 1e-9}),
        (DOPRI8, {"tolerance": 1e-9, "formulation": Multipliers(solve=SparseSolve())}),
        (Rattle(order=4), {"dt": 1e-3}),
        (RadauIIA(), {"tolerance": 1e-7}),
    ],
    ids=["Dopri8", "Dopri8 sparse", "Rattle", "RadauIIA"],
)
def test_a_chain_of_twenty_links(solver, options):
    chain = Chain.uniform(20)
    found = run(chain, State(*chain.start()), 1.0, solver, **options)
    assert on_the_constraints(found)
    wanted = ivp_problems.chain(20, 0.05, 0.5 * np.pi, 1.0)
    # Of Rattle that of a thousand steps; of others their tolerance in some hundreds of steps.
    np.testing.assert_allclose(found.q[-1], wanted, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "rate"),
    [(RadauIIA(), None), (Projected(Rodas5P()), 50.0), (KVAERNO5, 50.0), ("auto", 50.0)],
    ids=["RadauIIA", "Rodas5P", "Kvaerno5", "auto"],
)
def test_a_spring_a_million_times_as_stiff_as_another(solver, rate):
    law = Multipliers() if rate is None else Multipliers(Baumgarte.critical(rate))
    found = run(SprungArm(), SprungArm.at(1.0, 1.0), 2.0, solver, 1e-8, law)
    assert solver == "auto" or on_the_constraints(found)  # without a projection
    wanted = ivp_problems.SprungArm().end(1.0, 1.0, 2.0, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found.q[-1, BARS], wanted[:2], atol=2e-7)  # some 500 steps
    np.testing.assert_allclose(found.v[-1, BARS], wanted[2:], atol=2e-6)


def test_a_centrifugal_governor():
    found = run(Governor(), Governor().begin(), 10.0, DOPRI8, 1e-9)
    assert on_the_constraints(found)
    # The angle has turned by 109 rad.
    np.testing.assert_allclose(found.q[-1, :2], ivp_problems.governor(10.0)[:2], atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "law",
    [
        Multipliers(Baumgarte.critical(8e3)),
        Penalty(1e4, Baumgarte.critical(8e3)),
    ],
    ids=["Multipliers", "Penalty"],
)
def test_a_governor_whose_violations_decay_at_8000_per_second(law):
    """Stiff: ten seconds are 80 000 time constants."""
    found = run(Governor(), Governor().begin(), 10.0, Rodas5P(), 1e-9, law)
    np.testing.assert_allclose(found.q[-1, :2], ivp_problems.governor(10.0)[:2], atol=1e-6)
    assert np.abs(found.violation.phi).max() < 1e-9  # the tolerance; nothing projects


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the run passed 4 near-singular")
@pytest.mark.parametrize("alpha", [1e4, 1e6])
@pytest.mark.parametrize(
    "solver", [diffrax.Dopri8(), Rodas5P(), "auto"], ids=["Dopri8", "Rodas5P", "auto"]
)
def test_penalties_of_large_mass_pass_singular_positions_for_twenty_seconds(solver, alpha):
    system = ReachableTwoLink()
    law = Penalty(alpha, Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0])))
    found = run(system, State(*system.start()), 20.0, solver, 1e-8, law)
    exact, _ = system.exact_motion(20.0)
    # The violation is the force over the mass and K_P: 20 N over 1e4 kg and 25 1/s^2 and more.
    np.testing.assert_allclose(found.q[-1], exact, atol=0.3 / alpha)
    assert np.abs(found.violation.phi).max() < 0.5 / alpha


@pytest.mark.slow
def test_a_penalty_that_cannot_be_satisfied_is_not_told_to_be_one():
    system = TwoLinkManipulator()
    law = Penalty(1e6, Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0])))
    with pytest.raises(jaxdae.SimulationError, match=r"mass give way.*a smaller alpha") as error:
        run(system, State(*system.start()), 20.0, Rodas5P(), 1e-8, law)
    assert "use Penalty" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "error"),
    # The angles have turned by 16 rad in a motion of 1e4 rad/s^2, at tolerances by default.
    [(None, 1e-7), (DOPRI8, 1e-7), (RadauIIA(), 1e-6), (HalfExplicit(), 1e-6)],
    ids=["default", "Dopri8", "RadauIIA", "HalfExplicit"],
)
def test_andrews_mechanism_needs_no_hints(solver, error):
    system = AndrewsMechanism()
    found = jaxdae.simulate(
        system, Multipliers(), State(*system.start()), t1=ANDREWS_END.t, solver=solver
    )
    np.testing.assert_allclose(found.q[-1], ANDREWS_END.q, atol=error)
    assert solver is None or on_the_constraints(found)
