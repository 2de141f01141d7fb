"""Fixed steps: those of `diffrax.StepTo`, in a program that JAX can keep on disk."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.memory import Memory
from jaxdae.models import CartesianPendulum
from jaxdae.simulation import kernel_plan
from jaxdae.solvers.grid import direction_of, Grid

FORMULATION = Multipliers(Baumgarte.critical(10.0))


def _run(state, **how):
    return simulate(CartesianPendulum(), FORMULATION, state, throw=False, **how)


@pytest.mark.slow
@pytest.mark.parametrize("times", [[0.0, 0.1, 0.35, 0.5], [0.5, 0.2, 0.0]], ids=["on", "back"])
def test_steps_are_those_of_diffrax(times):
    def end(controller):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: jnp.cos(t) - y**2),
            diffrax.Heun(),
            times[0],
            times[-1],
            None,
            jnp.array(0.3),
            stepsize_controller=controller,
            saveat=diffrax.SaveAt(steps=True),
            max_steps=4,
        ).ys

    ts = jnp.array(times)
    np.testing.assert_array_equal(end(Grid(ts)), end(diffrax.StepTo(ts)))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "callbacks"), [({"dt": 0.1}, False), ({}, True)])
def test_a_program_of_fixed_steps_never_calls_back(how, callbacks):
    """What JAX asks of programs on disk; an adaptive one has the checks of diffrax in it."""
    system = CartesianPendulum()
    how |= {"t1": 0.3, "backend": "plain"}
    program = eqx.filter_make_jaxpr(lambda q, v: _run(State(q, v), **how).q)
    text = str(program(*system.start())[0])
    assert ("callback" in text) == callbacks


@pytest.mark.slow
def test_steps_below_the_round_off_of_the_times_are_refused():
    q, v = (jnp.asarray(x, jnp.float32) for x in CartesianPendulum().start())
    with pytest.raises(ValueError, match=r"below the round-off of times .* float32; take"):
        _run(State(q, v), t0=1e6, t1=1e6 + 1, dt=0.01)


@pytest.mark.parametrize(
    ("steps", "direction"), [((0.1, 0.2), 1), ((-0.1,), -1), ((0.1, -0.2), None), ((), None)]
)
def test_the_direction_of_steps(steps, direction):
    assert direction_of(steps) == direction


def test_runs_of_other_rows_share_the_equations_of_motion(monkeypatch):
    """What is traced for a kernel depends neither on how many rows are saved nor on the times."""
    kept = Memory(4)
    monkeypatch.setattr(kernel_plan, "_PROBLEMS", kept)
    start = State(*CartesianPendulum().start())

    def shapes_of(grid, state):
        return _run(state, t1=grid[-1], stepsize_controller=Grid(grid, 1), backend="native").q

    for t1 in (0.2, 0.3):
        how = {"t1": t1, "dt": 0.1, "backend": "native"}
        jax.eval_shape(lambda state, how=how: _run(state, **how).q, start)
    jax.eval_shape(shapes_of, jnp.array([0.0, 0.1, 0.15]), start)
    assert len(kept) == 1


@pytest.mark.slow
def test_steps_may_be_traced_where_the_start_is_not():
    """Their limit is then not examined: no number of them is known."""
    start = State(*CartesianPendulum().start())

    def end(grid):
        return _run(start, t1=grid[-1], stepsize_controller=Grid(grid, 1), backend="native").q[-1]

    assert jax.eval_shape(end, jnp.array([0.0, 0.1, 0.15])).shape == (2,)
