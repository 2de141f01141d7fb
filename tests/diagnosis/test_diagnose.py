"""What is found of runs: the number, the time, the constraints; by the tolerance of its steps."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate
from jaxdae.diagnosis import diagnose as diagnosis
from jaxdae.models import CartesianPendulum, SliderCrank
from jaxdae.systems import State

START = State(jnp.array([0.6, -0.8]), jnp.zeros(2))
PID = diffrax.PIDController(rtol=1e-4, atol=1e-6)
EVEN = diffrax.ConstantStepSize()


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
    ("how", "dtype", "tolerance"),
    [
        ({}, jnp.float64, 2e-8),
        ({}, jnp.float32, 2e-5),
        ({"stepsize_controller": PID}, jnp.float64, 1.01e-4),
        ({"dt": 0.05}, jnp.float64, None),
        ({"dt": 0.05, "stepsize_controller": EVEN}, jnp.float64, None),
    ],
    ids=["default", "single", "given", "fixed", "constant"],
)
def test_a_run_is_tolerances_the_tolerance_of_its_steps(tolerances, how, dtype, tolerance):
    start = jax.tree.map(lambda x: x.astype(dtype), START)
    simulate(CartesianPendulum(), Multipliers(), start, t1=0.1, **how)
    expected = tolerance if tolerance is None else pytest.approx(tolerance, rel=1e-6)
    assert tolerances == [expected]


def test_a_run_that_may_fail_quietly_is_not_examined(tolerances):
    simulate(CartesianPendulum(), Multipliers(), START, t1=0.1, dt=0.05, throw=False)
    assert tolerances == []


class Raised(jaxdae.System):
    """A point that two constraints hold, of which one rises by `t` where the other does not."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t, q
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


def test_the_finding_of_an_energy_is_its_error():
    """Euler's method multiplies the energy of an oscillator by `1 + h^2` in each step, exactly."""
    h, start = 0.1, State(jnp.array([1.0]), jnp.zeros(1))
    euler = diffrax.Euler()
    _, findings, said = findings_of(Spring(), Multipliers(), start, t1=2.0, dt=h, solver=euler)
    (found,) = findings.warnings
    assert [found.message] == said
    assert found.value == pytest.approx(0.5 * ((1 + h**2) ** 20 - 1), rel=1e-12)
    assert findings.energy_change == pytest.approx(found.value, rel=1e-12)
    assert (found.time, found.constraints, findings.passages) == (None, (), ())


class Spring(jaxdae.System):
    """A mass on a spring, both of one."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 0.5 * q @ q


@pytest.mark.slow
def test_findings_of_a_singular_position_are_those_that_the_run_passed():
    """A slider-crank of equal links, whose rods come in line twice."""
    crank, rough = SliderCrank(), diffrax.PIDController(rtol=1e-6, atol=1e-6)
    start = State(*crank.start())
    run, findings, _ = findings_of(crank, Multipliers(), start, t1=1.0, stepsize_controller=rough)
    (found,) = [x for x in findings.warnings if "near-singular" in x.message]
    least = min(findings.passages, key=lambda x: x.value)
    assert (found.value, found.time) == (least.value, least.time)
    assert len(findings.passages) == 2
    # Both are searched between rows on the same curve, to the resolution of the search.
    assert found.value == pytest.approx(float(run.least_singular_value), abs=1e-3)
