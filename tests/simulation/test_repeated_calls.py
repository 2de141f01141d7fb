"""A call like one before is not checked again; one that differs in anything is."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae import runs
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

GAINS = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))
START = jaxdae.State(jnp.array([1.0, 0.0]), jnp.zeros(2))


def angle(system, state=START, formulation=GAINS, **options):
    """Where the pendulum is after ten steps: enough to tell its length and start."""
    options = {"t1": 0.1, "dt": 0.01, "solver": RK4(), **options}
    return np.asarray(jaxdae.simulate(system, formulation, state, **options).q[-1])


def checks_made(monkeypatch) -> list:
    made = []
    for_start = runs._for_start
    monkeypatch.setattr(runs, "_for_start", lambda *x: made.append(x) or for_start(*x))
    return made


def test_the_same_call_is_checked_once(monkeypatch):
    made = checks_made(monkeypatch)
    system = CartesianPendulum(mass=1.25)
    first, second = angle(system), angle(system)
    np.testing.assert_array_equal(first, second)
    # Solvers and numbers may be written down anew; arrays are the same only where they are one.
    assert len(made) == 1
    angle(system, jaxdae.State(jnp.array([1.0, 0.0]), jnp.zeros(2)))
    assert len(made) == 2
    angle(system, t1=0.11)
    assert len(made) == 3


def test_arrays_that_can_change_are_read_every_time():
    changing = CartesianPendulum(gravity=np.array(9.81))  # pyright: ignore[reportArgumentType]
    before = angle(changing)
    np.asarray(changing.gravity)[...] = 0.0
    np.testing.assert_allclose(angle(changing), [1.0, 0.0], atol=1e-15)  # nothing pulls it down
    assert before[1] < -0.04  # 0.5 g t^2


def test_a_start_off_the_constraints_is_refused_after_one_on_them():
    system = CartesianPendulum()
    angle(system)
    with pytest.raises(ValueError, match="inconsistent"):
        angle(system, jaxdae.State(jnp.array([1.1, 0.0]), jnp.zeros(2)))
    with pytest.raises(ValueError, match="inconsistent"):
        angle(system, jaxdae.State(jnp.array([1.1, 0.0]), jnp.zeros(2)))


def test_warnings_before_a_run_are_given_every_time():
    stiff = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=400.0, K_P=1e4))
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="beyond the step limit"):
            angle(CartesianPendulum(), formulation=stiff, throw=False)


def test_numbers_that_python_takes_for_equal_are_kept_apart():
    system = CartesianPendulum()
    angle(system, work=1 == 1)
    with pytest.raises(TypeError, match="work"):
        angle(system, work=1)


def test_calls_inside_of_transformations_are_their_own():
    system = CartesianPendulum()
    eager = angle(system)

    def end(length):
        moved = eqx.tree_at(lambda x: x.length, system, length)
        state = jaxdae.State(jnp.stack([length, 0.0 * length]), jnp.zeros(2))
        return jaxdae.simulate(moved, GAINS, state, t1=0.1, dt=0.01, solver=RK4()).final_state.q[1]

    slope = jax.grad(end)(1.0)
    difference = (end(jnp.array(1.001)) - end(jnp.array(0.999))) / 0.002
    np.testing.assert_allclose(slope, difference, atol=1e-6)  # of order 0.001^2
    np.testing.assert_array_equal(angle(system), eager)


def test_what_stays_the_same_from_start_to_start_is_checked_once(monkeypatch):
    """And runs from them are those of calls of their own, in which arrays stand where they did."""
    made, framed = [], runs._framed
    monkeypatch.setattr(runs, "_framed", lambda *x: made.append(x) or framed(*x))
    system, same = CartesianPendulum(mass=1.75), jnp.zeros(2)
    angles = np.linspace(-1.0, 1.0, 4)
    states = [jaxdae.State(jnp.array([np.cos(x), np.sin(x)]), jnp.zeros(2)) for x in angles]
    found = [angle(system, x) for x in states]
    assert len(made) == 1
    single = jax.tree.map(lambda x: x.astype(jnp.float32), states[0])
    assert angle(system, single).dtype == np.float32
    assert len(made) == 2
    # One array in two places cannot be told apart from the other.
    twice = Pulled(jnp.array([1.0, 0.0]))
    ends = [angle(twice, jaxdae.State(x, x)) for x in (same, same + 1.0)]
    np.testing.assert_allclose(ends[1] - ends[0], 1.1, rtol=1e-12)  # q + v t, force apart
    shared = angle(twice, jaxdae.State(twice.pull, same))
    other = angle(twice, jaxdae.State(jnp.array([3.0, 0.0]), same))
    np.testing.assert_allclose(other - shared, [2.0, 0.0], atol=1e-12)
    jax.clear_caches()
    again = [angle(system, x) for x in states[::-1]]
    np.testing.assert_array_equal(again[::-1], found)


class Pulled(UnitMass):
    """A free point that is pulled."""

    pull: jax.Array

    def force(self, t, q, v, w, u):
        return self.pull
