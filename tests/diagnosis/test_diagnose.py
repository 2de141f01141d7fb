"""What is found of runs: the number, the time, the constraints; singular positions, energy."""

from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diffrax import SaveAt
from numpy.testing import assert_allclose
from scipy.integrate import quad

import jaxdae
from helpers.equal_links import branch_energy
from helpers.measured_oscillator import Oscillator
from helpers.systems import UnitMass
from jaxdae import (
    MinimumNormSolve,
    Multipliers,
    Penalty,
    simulate,
    SimulationError,
    VelocityElimination,
)
from jaxdae.diagnosis import diagnose as diagnosis, singularities
from jaxdae.diagnosis.singularities import find_near_singularities
from jaxdae.formulations import LinearLaw
from jaxdae.models import CartesianPendulum, ReachableTwoLink, SliderCrank
from jaxdae.solvers import RK4
from jaxdae.systems import State

START = State(jnp.array([0.6, -0.8]), jnp.zeros(2))
PID = diffrax.PIDController(rtol=1e-4, atol=1e-6)
CRANK = SliderCrank()
CRANKED = State(*CRANK.start())
ROUGH = diffrax.PIDController(rtol=1e-6, atol=1e-6)


@pytest.fixture
def tolerances(monkeypatch):
    """Tolerances by which runs are examined."""
    found, rows_of = [], diagnosis.rows_of

    def remembered(run, tolerance):
        found.append(tolerance)
        return rows_of(run, tolerance)

    monkeypatch.setattr(diagnosis, "rows_of", remembered)
    return found


@pytest.mark.parametrize(
    ("how", "tolerance"),
    [
        ({}, 2e-8),
        ({"stepsize_controller": PID}, 1.01e-4),
        ({"dt": 0.05}, None),
    ],
    ids=["default", "given", "fixed"],
)
def test_a_run_is_examined_by_the_tolerance_of_its_steps(tolerances, how, tolerance):
    simulate(CartesianPendulum(), Multipliers(), START, t1=0.1, **how)
    expected = tolerance if tolerance is None else pytest.approx(tolerance, rel=1e-6)
    assert tolerances == [expected]


def test_a_run_that_may_fail_quietly_is_not_examined():
    run = simulate(CartesianPendulum(), Multipliers(), START, t1=0.1, dt=0.05, throw=False)
    assert "findings" not in vars(run)


@pytest.mark.slow
def test_what_formulations_say_of_a_run_themselves_is_asked_of_one_that_may_fail_quietly():
    """Those that eliminate velocities, and solves that hold a rank, have something to say."""
    found = {
        law: "findings" in vars(simulate(CartesianPendulum(), law, START, t1=0.1, throw=False))
        for law in (Multipliers(), VelocityElimination(), Multipliers(solve=MinimumNormSolve()))
    }
    assert [*found.values()] == [False, True, True]


class Raised(UnitMass):
    """A point that two constraints hold, of which one rises by `t` where the other does not."""

    def potential_energy(self, t, q):
        return jnp.zeros(())

    def position_constraints(self, t, q):
        return jnp.stack([q[0], q[0] - 0.1 * t**2])

    def labels(self):
        return jaxdae.Labels(constraints=("floor", "lift"))


def findings_of(*what, **how):
    """What was found of a run, and what `simulate` warned of."""
    with pytest.warns(RuntimeWarning) as caught:
        run = simulate(*what, **how)
    return run, vars(run)["findings"], [str(x.message) for x in caught]


def test_a_finding_has_its_number_time_and_constraints():
    """Least squares leave half of the difference, which is largest at the end."""
    start = State(jnp.zeros(2), jnp.array([0.0, 1.0]))
    solve = jaxdae.MinimumNormSolve()
    run, findings, said = findings_of(Raised(), Multipliers(solve=solve), start, t1=1.0)
    assert [x.message for x in findings.warnings] == said
    (found,) = findings.warnings
    assert "cannot all be satisfied" in found.message
    assert found.constraints == ("floor", "lift")
    assert found.time == pytest.approx(1.0)
    assert found.value == pytest.approx(0.05, rel=1e-6)
    largest = np.abs(np.concatenate([run.violation.phi, run.violation.phi_dot], axis=1)).max()
    assert findings.residual == pytest.approx(largest, rel=1e-12)


@pytest.mark.slow
def test_findings_of_a_singular_position_are_those_that_the_run_passed():
    """A slider-crank of equal links, whose rods come in line twice."""
    run, findings, _ = findings_of(CRANK, Multipliers(), CRANKED, t1=1.0, stepsize_controller=ROUGH)
    (found,) = [x for x in findings.warnings if "near-singular" in x.message]
    least = min(findings.near_singularities, key=lambda x: x.value)
    assert (found.value, found.time) == (least.value, least.time)
    assert len(findings.near_singularities) == 2
    # Both are searched between rows on the same curve, to the resolution of the search.
    assert found.value == pytest.approx(float(run.least_singular_value), abs=1e-3)


def _in_line(*angles):
    """Times at which the exact motion from `CRANKED` reaches crank angles, by quadrature."""
    start, given = float(CRANKED.q[0]), partial(branch_energy, CRANK)
    energy = float(given(CRANKED.q[0], CRANKED.v[0]))

    def slowness(theta):
        potential, unit = (float(given(jnp.asarray(theta), jnp.asarray(x))) for x in (0.0, 1.0))
        return np.sqrt((unit - potential) / (energy - potential))

    return [quad(slowness, start, x)[0] for x in angles]


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"saveat": SaveAt(t1=True)}, {"backend": "plain"}])
def test_a_run_past_singular_positions_warns_with_times_and_the_least_value(how):
    """The audit's run: success on another branch. Also where only the end is saved."""
    with pytest.warns(RuntimeWarning, match="near-singular") as caught:
        run = simulate(CRANK, Multipliers(), CRANKED, t1=1.0, stepsize_controller=ROUGH, **how)
    assert bool(run.success)
    text = str(caught[0].message)
    assert "the run passed 2 near-singular position(s)" in text
    assert "use Multipliers(..., solve=SingularityRobust())" in text
    times = [float(x) for x in text.split("at t = ")[1].split(" s:")[0].split(", ")]
    # The search goes on to a part 2 (1/15)^4 of an interval; the motion is off by its tolerance.
    assert_allclose(times, _in_line(np.pi / 2, 3 * np.pi / 2), atol=1e-3)
    assert float(text.split("fell to ")[1].split(" ")[0]) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("amplitude", "rate", "row"), [(1.5, 1.0, 0.5), (1.0, 8.0, 1.0)])
def test_near_singularities_are_found_between_rows_and_not_invented(amplitude, rate, row):
    """`J = 1.2 - q` of an oscillation, by half radians; by eight the curve would overshoot."""
    ts = np.arange(0.0, 3.0, row)
    q, v = amplitude * np.sin(rate * ts), amplitude * rate * np.cos(rate * ts)
    states = State(q[:, None], v[:, None])
    jacobian = lambda t, q, v: (1.2 - q)[:, :, None]  # noqa: E731
    found, _ = find_near_singularities(jacobian, ts, states, jacobian(ts, q[:, None], v))
    if amplitude < 1.2:
        assert not found
    else:
        first = np.arcsin(1.2 / amplitude) / rate
        # Fourth order in half a radian.
        assert_allclose([x.time for x in found], [first, np.pi / rate - first], atol=2e-3)


@pytest.mark.parametrize("bounded", [True, False])
def test_one_row_has_no_neighbour_to_search_by(bounded):
    """As of the part of a run between two events at the same time."""
    jacobian = lambda t, q, v: (1.2 - q)[:, :, None]  # noqa: E731
    ts, one = np.zeros(1), np.ones((1, 1))
    given = jacobian, ts, State(one, one), jacobian(ts, one, one)
    found, typical = find_near_singularities(*given, bounded=bounded)
    assert found == []
    assert_allclose(typical, 1.0)  # of a row scaled by its length


@pytest.mark.parametrize("amplitude", [1.5, 1.21, 1.19, 1.0])
@pytest.mark.parametrize(("row", "backward"), [(0.02, 1), (0.15, 1), (0.15, -1)])
def test_estimates_by_rows_find_the_positions_that_bounds_find(amplitude, row, backward):
    """The same oscillation: it passes `J = 0` twice, or nearly, or keeps away from it."""
    ts = backward * np.arange(0.0, 3.0, row)
    q, v = amplitude * np.sin(np.abs(ts)), amplitude * backward * np.cos(ts)
    jacobian = lambda t, q, v: (1.2 - q)[:, :, None]  # noqa: E731
    given = jacobian, ts, State(q[:, None], v[:, None]), jacobian(ts, q[:, None], v)
    found, _ = find_near_singularities(*given, bounded=False)
    every, _ = find_near_singularities(*given)
    assert len(found) == len(every) == {1.5: 2, 1.0: 0}.get(amplitude, len(every))
    if amplitude > 1.2:
        first = np.arcsin(1.2 / amplitude)
        off = np.abs(np.subtract.outer([abs(x.time) for x in found], [first, np.pi - first]))
        # The last places are a 85th of an interval apart; a row below the level is not bettered.
        level = 1e-2 * np.median(np.abs(1.2 - q)) / (amplitude * np.cos(first))
        assert off.min(axis=1).max(initial=0.0) < max(row / 85, level) + 1e-3


def _regular_least(system):
    """Least singular value of a crank with a longer rod, on a fine grid of angles."""
    angles = np.linspace(0, 2 * np.pi, 20001)
    r, rod = float(system.crank_length), float(system.rod_length)
    psi = -np.arcsin(r * np.sin(angles) / rod)
    zero = np.zeros_like(angles)
    along = np.stack([-r * np.sin(angles), -rod * np.sin(psi), zero - 1], 1)
    across = np.stack([r * np.cos(angles), rod * np.cos(psi), zero], 1)
    rows = np.stack([x / np.linalg.norm(x, axis=1).max() for x in (along, across)], 1)
    return np.linalg.svd(rows, compute_uv=False)[:, -1].min()


def test_a_run_that_stays_at_a_singular_position_is_measured_by_its_regular_rows():
    ts = np.linspace(0.0, 1.0, 101)
    q = np.maximum(0.0, 0.2 - ts)  # for most of the time zero
    jacobian = lambda t, q, v: q[:, :, None]  # noqa: E731
    states = State(q[:, None], np.where(q > 0, -1.0, 0.0)[:, None])
    found, typical = find_near_singularities(jacobian, ts, states, jacobian(ts, q[:, None], None))
    assert_allclose(typical, 0.105 / 0.2)  # rows are scaled by their largest length
    assert min(x.value for x in found) == 0.0


@pytest.mark.slow
def test_members_of_batches_have_their_own_values():
    """A rod as long as the crank, and longer ones, once round; under `jit` and `vmap`."""

    def measures(rod):
        system = SliderCrank(rod_length=rod)
        start = State(*system.at_crank(0.25 * jnp.pi, 8.0))
        run = simulate(system, Multipliers(), start, t1=1.5, throw=False)
        return run.least_singular_value, run.energy_error

    least, error = jax.jit(jax.vmap(measures))(jnp.array([1.0, 1.5, 1.2]))
    assert float(least[0]) < 1e-3
    expected = [_regular_least(SliderCrank(rod_length=x)) for x in (1.5, 1.2)]
    # The lowest value between rows, on a curve of third order.
    assert_allclose(least[1:], expected, rtol=1e-3)
    assert (np.asarray(error[1:]) < 1e-4).all()


class Pushed(Oscillator):
    """Mass and spring of one, with a damper and a force that grows."""

    stiffness: float = 1.0
    damping: float = 0.0
    slope: float = 0.0

    def force(self, t, q, v, w, u):
        return jnp.full_like(q, self.slope * t)


REST = State([1.0], [0.0])


def _swing(system, **how):
    return simulate(system, Multipliers(), REST, t1=2.0, **how)


@pytest.mark.slow
def test_the_energy_error_is_that_of_the_method():
    """Euler's method multiplies the energy by `1 + h^2` in each step, exactly."""
    h = 0.1
    gained = 0.5 * ((1 + h**2) ** 20 - 1)
    run, findings, said = findings_of(
        Pushed(), Multipliers(), REST, t1=2.0, dt=h, solver=diffrax.Euler()
    )
    (found,) = findings.warnings
    assert [found.message] == said
    assert "energy balance is off by 0.11 J" in found.message
    for error in (found.value, findings.energy_change, float(run.energy_error)):
        assert error == pytest.approx(gained, rel=1e-12)
    assert (found.time, found.constraints, findings.near_singularities) == (None, (), ())


@pytest.mark.slow
@pytest.mark.parametrize("work", [False, True])
def test_forces_and_dampers_are_no_error_of_the_energy(work):
    """Half of the energy is lost, and warnings are errors here."""
    run = _swing(Pushed(damping=0.5, slope=0.3), work=work)
    assert abs(float(run.energy[-1] - run.energy[0])) > 0.1
    # Trapezoids over 200 rows; integrated along, to the tolerance of 1e-8 in each of some steps.
    assert float(run.energy_error) < (1e-6 if work else 1e-4)


def test_energy_that_friction_takes_between_two_rows_is_no_error():
    """It begins and comes to rest between two of 201 rows; warnings are errors here."""
    system = Pushed(stiffness=1e3, damping=60.0)
    run = simulate(system, Multipliers(), REST, t1=100.0)
    # What the rows say of the work is less than a tenth of it.
    assert float(run.energy_error) > 0.9 * float(run.energy[0])
    assert float(run.energy[-1]) < 1e-6


@pytest.mark.slow
def test_the_energy_of_constraints_that_do_work_is_not_examined():
    arm = ReachableTwoLink()
    run = simulate(arm, Penalty(1e3), State(*arm.start()), t1=0.2, dt=0.1)
    assert np.isnan(run.energy_error)
    assert np.isinf(_swing(Pushed(), dt=0.01).least_singular_value)


class Bead(UnitMass):
    """A bead on the wire `y = x^2 / 2`."""

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - 0.5 * q[0] ** 2])


class RoughBead(Bead):
    """The bead with friction in proportion to the reaction."""

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        return -0.1 * jnp.abs(lam[0]) * v


@pytest.mark.slow
@pytest.mark.parametrize("work", [False, True])
@pytest.mark.parametrize(
    ("system", "how"),
    [(RoughBead(), Multipliers()), (Bead(), jaxdae.RealizingForces(LinearLaw(50.0)))],
    ids=["friction", "in place of constraints"],
)
def test_the_work_of_friction_and_of_realized_constraints_is_no_error(system, how, work):
    """Warnings are errors: both take joules out of the motion."""
    run = simulate(system, how, State([1.0, 0.5], [0.0, 0.0]), t1=1.0, work=work)
    assert run.energy[0] - run.energy[-1] > 0.3
    # By the tolerance of 1e-8 in each of about a hundred steps.
    assert run.energy_error < 1e-5 if work else np.isnan(run.energy_error)


@pytest.mark.parametrize("start", [1e-6, 1e-9])
@pytest.mark.parametrize("how", [{}, {"dt": 0.05, "solver": RK4()}])
def test_near_rest_absolute_tolerances_and_round_off_are_not_warned_of(start, how):
    """Energies below 1e-11 J, and an error of displacements of 1e-8 m: warnings are errors."""
    assert bool(
        simulate(
            Bead(), Multipliers(), State([start, 0.5 * start**2], [0.0, 0.0]), t1=5.0, **how
        ).success
    )


@pytest.mark.slow
def test_what_saved_no_states_has_no_values():
    run = _swing(Pushed(), saveat=SaveAt(dense=True))
    with pytest.raises(ValueError, match="saved no states at times"):
        _ = run.energy_error


@pytest.mark.slow
@pytest.mark.parametrize("tolerance", [1e-8, 1e-9])
def test_no_other_choice_is_advised_where_the_constraints_are_singular(tolerance):
    """Which of the two is said depends on how near the last step came, to rounding."""
    control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    with pytest.raises(SimulationError, match=r"stopped at t = 0\.24988") as caught:
        simulate(
            CRANK, VelocityElimination("slider"), CRANKED,
            t1=1.0, stepsize_controller=control, max_steps=1000,
        )  # fmt: skip
    message = str(caught.value)
    split = "J itself is nearly singular there, with the least singular value"
    rows = "The constraints lose independence there"
    assert (split in message and "nor does NullSpace" in message) or (
        rows in message and "involved: 'loop y'" in message
    )
    assert "solve=SingularityRobust()" in message
    assert "VelocityElimination(independent" not in message


def test_a_run_too_large_for_a_search_says_so_at_the_prompt(monkeypatch):
    line = "positions    near-singular ones were not searched for, as there is much to compute; see"
    monkeypatch.setattr(diagnosis, "MOST_WORK", 0)
    for most, searched in ((singularities.MOST_SEARCHED, True), (0, False)):
        for module in (diagnosis, singularities):
            monkeypatch.setattr(module, "MOST_SEARCHED", most)
        run = simulate(CartesianPendulum(), Multipliers(), START, t1=0.1, dt=0.01, solver=RK4())
        assert vars(run)["findings"].searched == searched
        assert (f"{line} mobility()" in repr(run)) != searched
