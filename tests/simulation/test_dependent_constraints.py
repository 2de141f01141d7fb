"""Mechanisms of dependent constraints: the motion is that of the minimal coordinate."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.dependent_mechanisms import exact_motion, MECHANISMS, on_curve, Platform, Table
from helpers.systems import UnitMass
from jaxdae import (
    Baumgarte,
    Hamiltonian,
    MinimumNormSolve,
    Multipliers,
    NullSpace,
    Penalty,
    simulate,
    SingularMassSolve,
)
from jaxdae.formulations import AutomaticSolve, FullRankSolve
from jaxdae.solvers import Projected, RK4

GAINS = Baumgarte.critical(10.0)
END = 1.0
AT_END = diffrax.SaveAt(t1=True)
# Starts at the distance d end at most so many d away: the exact motion of another start does, too.
PER_DISTANCE = 3.0
# name, arguments, angle and its rate, rank
CASES = {
    "platform": ("platform", {}, -0.3, 0.7, 6),
    "table of three rods": ("table", {"rods": 3}, 0.9, 0.4, 3),
    "Bennett": ("Bennett", {}, 1.1, 0.3, 11),
}
# In space, and with kernels of 24 states: it takes a minute of a busy machine by itself.
PARAMS = [pytest.param(x, marks=[pytest.mark.slow] if x == "Bennett" else []) for x in CASES]


def _error(run, end):
    assert bool(run.success)
    return float(np.abs(run.q[-1] - end).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", PARAMS)
def test_runs_follow_the_exact_motion_from_starts_on_and_off_the_constraints(name):
    """Without a word of the user: the rank is found and held."""
    kind, arguments, angle, rate, rank = CASES[name]
    system = MECHANISMS[kind](**arguments)
    end = exact_motion(system, angle, rate, np.array([0.0, END]))[-1]
    for off in (0.0, 1e-6, 1e-5):
        start = on_curve(system, angle, rate, off)
        run = simulate(system, Multipliers(GAINS), start, t1=END, saveat=AT_END)
        assert run.backend == "native"
        assert run.held_rank == rank
        # 1e-6: RK4's and the solver's own error (5e-7 measured).
        assert _error(run, end) < 1e-6 + PER_DISTANCE * off


@pytest.fixture(scope="module")
def table():
    system = Table()
    end = exact_motion(system, 0.9, 0.4, np.array([0.0, END]))[-1]
    return system, lambda off=0.0: on_curve(system, 0.9, 0.4, off), end


FORMULATIONS = {
    "singular mass, minimum norm": (
        Multipliers(GAINS, SingularMassSolve(inner=MinimumNormSolve())), {},
    ),
    "Hamiltonian": (Hamiltonian(GAINS), {}),
    "projected": (Multipliers(), {"solver": Projected(RK4()), "dt": 0.01}),
    "penalty, projected": (
        jaxdae.AugmentedLagrangian(1e4, iterations=8), {"solver": Projected(RK4()), "dt": 0.01},
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("formulation", "how"), FORMULATIONS.values(), ids=list(FORMULATIONS))
def test_formulations_agree_with_the_minimal_coordinate(formulation, how, table):
    system, start, end = table
    for off in (0.0, 1e-6):
        run = simulate(system, formulation, start(off), t1=END, saveat=AT_END, **how)
        # Errors of the steps; projected, those of a penalty fall with the step to first order only.
        own = 5e-6 if isinstance(formulation, jaxdae.AugmentedLagrangian) else 1e-6
        assert _error(run, end) < own + PER_DISTANCE * off


@pytest.mark.slow
def test_energy_changes_by_what_the_damper_takes(table):
    system, start, _ = table
    run = simulate(system, Multipliers(GAINS), start(1e-6), t1=END, work=True)
    taken = run.work.dissipation
    assert float(taken[-1]) < -0.01
    # Off the constraints by 1e-6 they do work of that order on forces of some 10 N.
    np.testing.assert_allclose(run.energy - run.energy[0], taken, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_a_batch_that_cannot_see_its_starts_fails_instead_of_going_astray(table):
    """The default is the fast solve there: a dependent member fails, on and off the constraints."""
    system, start, _ = table

    def success(off, throw):
        state = jax.tree.map(lambda a, b: a + off * (b - a), start(), start(1.0))
        how = {"t1": 0.1, "saveat": AT_END, "start_tolerance": None, "throw": throw}
        return simulate(system, Multipliers(GAINS), state, **how).success

    assert not jax.jit(jax.vmap(lambda x: success(x, False)))(jnp.array([0.0, 1e-6])).any()
    with pytest.raises(RuntimeError, match=r"dependent at the start.*give Multipliers"):
        jax.block_until_ready(jax.jit(lambda x: success(x, True))(1e-6))


def test_refusals_name_what_depends_and_a_remedy_that_works():
    """Off the constraints by 1e-6, too, where all singular values are above round-off."""
    system = Table(rods=3)
    for off in (0.0, 1e-6):
        state = on_curve(system, 0.9, 0.4, off)
        for formulation in (Multipliers(solve=FullRankSolve()), NullSpace()):
            with pytest.raises(ValueError, match=r"rank 3 of 5 .*solve=MinimumNormSolve\(\)"):
                simulate(system, formulation, state, t1=0.1)


class Weightless(jaxdae.System):
    """A repeated rod whose mass matrix is singular: `y` has no inertia."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v[0] ** 2

    def potential_energy(self, t, q):
        return 2.0 * q[1]

    def position_constraints(self, t, q):
        rod = q @ q - 1
        return jnp.stack([rod, 2 * rod, rod * (1 + q[0])])

    def labels(self):
        return jaxdae.Labels(constraints=("rod", "rod again", "rod once more"))


@pytest.mark.slow
def test_singular_mass_and_dependent_constraints_have_one_remedy():
    """Its message names both at once, whatever was tried before, and it works."""
    state = jaxdae.State([0.6, -0.8], [0.4, 0.3])
    for solve in (
        AutomaticSolve(),
        FullRankSolve(),
        MinimumNormSolve(),
        SingularMassSolve(inner=FullRankSolve()),
    ):
        with pytest.raises(
            ValueError, match=r"solve=SingularMassSolve\(inner=MinimumNormSolve\(\)\)"
        ):
            simulate(Weightless(), Multipliers(solve=solve), state, t1=0.1)
    ends = [
        simulate(Weightless(), Multipliers(GAINS, solve), state, t1=0.5).q[-1]
        for solve in (SingularMassSolve(), SingularMassSolve(inner=MinimumNormSolve()))
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    pull = simulate(Weightless(), Penalty(1e7, GAINS), state, t1=0.5).q[-1]
    np.testing.assert_allclose(ends[0], pull, atol=1e-5)  # 1 / alpha times the reaction


class Massless(jaxdae.System):
    """Its second coordinate has no mass."""

    mass: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v[0] ** 2

    def potential_energy(self, t, q):
        return q @ q


@pytest.mark.parametrize("steps", [{"dt": 0.1, "solver": RK4()}, {}])
def test_a_singular_mass_matrix_in_a_compiled_program_is_a_failure_with_its_reason(steps):
    start = jaxdae.State([1.0, 0.0], [0.0, 0.0])

    def run(mass, **settings):
        return simulate(Massless(mass), Multipliers(), start, t1=0.2, **steps, **settings)

    found = jax.jit(lambda mass: run(mass, throw=False))(1.0)
    assert not found.success
    assert found.result != diffrax.RESULTS.successful
    assert np.isnan(found.q[-1]).all()
    with pytest.raises(RuntimeError, match=r"failed in its first step.*solve=SingularMassSolve"):
        eqx.filter_jit(run)(jnp.array(1.0))


def test_a_start_at_a_singular_position_is_refused():
    """All cranks and the platform on one line: the rank there is not that of the motion."""
    system = Platform()
    for solve in (AutomaticSolve(), MinimumNormSolve()):
        with pytest.raises(ValueError, match=r"rank 5 of 7 .*singular position.*Start elsewhere"):
            simulate(system, Multipliers(GAINS, solve), on_curve(system, 0.0, 1.0), t1=0.1)


class Threaded(UnitMass):
    """A unit mass on the `x` axis, by two constraints of which one says nothing below `x = 1`."""

    def position_constraints(self, t, q):
        beyond = jnp.maximum(q[0] - 1, 0.0) ** 3
        return jnp.stack([q[1], q[1] + beyond * q[2]])


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["plain", "native"])
def test_a_rank_that_changes_along_the_run_is_warned_of(backend):
    state = jaxdae.State([0.5, 0.0, 0.0], [1.0, 0.0, 0.0])
    with pytest.warns(RuntimeWarning, match=r"held the rank 1 .*at t = \d.* it is 2 \(at \d+ of"):
        run = simulate(Threaded(), Multipliers(), state, t1=1.0, backend=backend)
    before = np.asarray(run.q)[:, 0] < 1
    np.testing.assert_array_equal(run.constraint_rank[before], 1.0)


@pytest.mark.slow
def test_threshold_and_rank_exclude_each_other():
    with pytest.raises(ValueError, match=r"rcond = 0\.001, or a rank, 2"):
        MinimumNormSolve(rcond=1e-3, rank=2)
