"""Runs with other numbers compile nothing."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import (
    Baumgarte,
    Multipliers,
    Penalty,
    simulate,
    State,
)
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4


@pytest.fixture(scope="module")
def pendulum():
    """A unit pendulum and its start: rod horizontal, at rest."""
    system = CartesianPendulum()
    return system, State(*system.start())


_traces = []


class Counted(jaxdae.System):
    """A pendulum that counts how often its kinetic energy is traced."""

    mass: float = 1.0
    length: float = 1.0

    def kinetic_energy(self, t, q, v):
        _traces.append(1)
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.length**2])


def _use(run):
    return run.q, run.multipliers, run.energy, run.violation, run.final_state


def _compiled(log) -> list[str]:
    return [record.getMessage() for record in log.records if "Compiling" in record.getMessage()]


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True], ids=["adaptive", "fixed step"])
def test_other_numbers_compile_nothing(fixed, caplog):
    """Other masses, lengths, gains, states, times and steps reuse the compiled program.

    The only traces left are those of the shape check (one each call), and XLA compiles nothing.
    """

    def run(scale):
        system = Counted(1.0 * scale, 0.5 * scale)
        gains = Baumgarte(10.0 * scale, 25.0 * scale)
        state = State([0.5 * scale, 0.0], [0.0, 0.1 * scale])
        how = {"dt": 0.05 * scale, "solver": RK4()} if fixed else {}
        return simulate(system, Penalty(50.0 * scale, gains), state, t1=0.5 * scale, **how)

    jax.clear_caches()  # traces of the derivatives serve both runs
    with jax.log_compiles(), caplog.at_level("WARNING"):
        # What is read of the first two is computed by NumPy, and compiled for the third.
        for scale in (1.0, 1.05, 0.95):
            _use(run(scale))
        # Both counters count: a first run traces and compiles.
        assert _compiled(caplog)
        assert len(_traces) > 2
        _traces.clear()
        caplog.clear()
        results = [_use(run(scale)) for scale in (1.1, 1.3)]
    assert not _compiled(caplog)
    assert len(_traces) <= 2
    assert np.abs(results[0][0] - results[1][0]).max() > 1e-2


def test_a_new_system_compiles_its_run_alone(caplog, pendulum):
    """NumPy computes what is declared at its start, and what is found of its rows."""
    _, start = pendulum

    class New(CartesianPendulum):
        pass

    class Newer(CartesianPendulum):
        pass

    made = []
    for kind in (New, Newer):
        caplog.clear()
        with jax.log_compiles(), caplog.at_level("WARNING"):
            run = simulate(kind(), Multipliers(), start, t1=0.1)
            made.append((run.q, run.final_state.v))
        names = [x.split("jit(")[1].split(")")[0] for x in _compiled(caplog)]
    assert names == ["integrated"]
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_tolerances_may_be_traced():
    """One compiled program for all of them, from a start that is known to it."""
    pendulum = CartesianPendulum(1.3, 0.9)
    start = State(*pendulum.start())

    def end(tolerance):
        control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
        saveat = diffrax.SaveAt(t1=True)
        how = {"stepsize_controller": control, "saveat": saveat, "t1": 0.5}
        return simulate(pendulum, Multipliers(), start, **how).final_state.q

    compiled = jax.jit(end)
    for tolerance in (1e-4, 1e-7):
        # The same steps; sums in another order.
        np.testing.assert_allclose(compiled(tolerance), end(tolerance), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_whole_numbers_are_numbers_like_others(caplog):
    """Given as parameters, gains, state and times they compile nothing new, and mean the same."""

    def run(k):
        formulation = Penalty(50 * k, Baumgarte(5 * k, K_P=6 * k))
        return simulate(
            Counted(k, k), formulation, State([k, 0], [0, 0]), t1=k, dt=0.1 * k, solver=RK4()
        )

    floating = run(2.0)
    _use(run(1))
    _traces.clear()
    caplog.clear()
    with jax.log_compiles(), caplog.at_level("WARNING"):
        whole = run(2)
        _use(whole)
    assert not _compiled(caplog)
    assert not _traces
    np.testing.assert_array_equal(whole.q, floating.q)
