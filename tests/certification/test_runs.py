"""Certificates of functions of runs: planted faults of systems, settings and motions are named."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import jaxdae
from helpers.systems import DoublePendulum
from jaxdae import Baumgarte, certify, Multipliers, simulate, State
from jaxdae.models import SliderCrank
from jaxdae.simulation.native import NativeBackend
from jaxdae.systems import constraint_residuals


class Pendulum(jaxdae.System):
    """A point of 1 kg at a distance from the origin."""

    length: Any = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def distance(self, q):
        return q @ q - self.length**2

    def position_constraints(self, t, q):
        return self.distance(q)[None]


@jax.custom_jvp
def squares(q):
    return q @ q


@squares.defjvp
def _(primals, tangents):
    """Right to first order; the second derivative, of which `gamma` is made, is dropped."""
    return squares(*primals), 2 * jax.lax.stop_gradient(primals[0]) @ tangents[0]


class WithoutCurvature(Pendulum):
    """The same, whose constraint has a rule of its own."""

    def distance(self, q):
        return squares(q) - self.length**2


class WithoutGamma(Multipliers):
    """Multipliers by `J a = Phi` in place of `J a + gamma = Phi`."""

    def rate_and_multipliers(self, system, t, y, u):
        dynamics = jaxdae.evaluate(system, t, y.q, y.v, y.w, u)
        found = constraint_residuals(system, t, y.q, y.v)
        assert self.stabilization is not None
        wanted = self.stabilization(t, y.q, y.v, found.phi, found.phi_dot)
        inverse, jac = jnp.linalg.inv(dynamics.mass), dynamics.jac
        lam = jnp.linalg.solve(jac @ inverse @ jac.T, jac @ inverse @ dynamics.force - wanted)
        rate = State(y.v, inverse @ (dynamics.force - jac.T @ lam), y.w)
        return rate, lam


def swing(declared, law=Multipliers, **how):
    """A coordinate of a pendulum after half a second, by its length and gains."""
    settings: dict[str, Any] = {"t1": 0.5, "dt": 0.01} | how

    def function(p):
        state = State(p["length"] * jnp.array([1.0, 0.0]), jnp.array([0.0, -1.0]))
        stabilized = law(Baumgarte(p["rate"], p["rate"] ** 2))
        return simulate(declared(p["length"]), stabilized, state, **settings).final_state.q[0]

    return function


PARAMS = {"length": jnp.array(1.0), "rate": jnp.array(20.0)}


def test_a_run_is_certified_and_seen_inside_of_a_compiled_batch():
    function = swing(Pendulum)
    found = certify(
        lambda p: jnp.sum(jax.jit(jax.vmap(lambda s: function({**p, "length": s * p["length"]})))(
            jnp.array([1.0, 1.1]))), PARAMS, backends=False)  # fmt: skip
    assert found.passed, found.reason
    assert found.evaluations <= 12
    # Both backends, and differences, agree to more than half of the digits.
    assert found.digits > 7
    assert next(x for x in found.checks if x.name == "runs").words.startswith("2 runs")
    assert found.rank is not None
    assert found.rank.value == pytest.approx(1.0)  # of one constraint, row by row
    # A regular motion of one swing: growth with time, not exponential.
    assert found.growth is not None
    assert found.growth.digits_lost < 2
    assert found.growth.horizon == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("dropped", [{"declared": WithoutCurvature}, {"law": WithoutGamma}])
def test_a_dropped_gamma_is_found_by_values_of_the_constraints(dropped):
    settings: dict[str, Any] = {"declared": Pendulum} | dropped
    found = certify(swing(**settings), PARAMS, backends=False)
    assert found.fault == "constraints"
    assert "100 % of the acceleration" in found.reason
    assert "gamma" in found.reason


@pytest.mark.slow
def test_a_chaotic_motion_costs_digits_and_has_a_horizon():
    def function(system):
        start = State(jnp.array([2.5, 2.0]), jnp.zeros(2))
        return simulate(system, Multipliers(), start, t1=30.0, dt=0.01).q[-1, 0]

    system = jax.tree.map(jnp.asarray, DoublePendulum())
    found = certify(function, system, backends=False)
    assert found.fault == "growth"
    assert found.growth is not None
    # Its exponent is between 0.3 and 3 1/s: half of 15.7 digits are lost in 6 to 30 s.
    assert 6 < found.growth.horizon < 30
    assert f"{found.growth.horizon:.3g} s" in found.reason


@pytest.mark.slow
def test_coarse_tolerances_are_not_followed():
    coarse = diffrax.PIDController(rtol=3e-2, atol=3e-2)
    found = certify(swing(Pendulum, dt=None, t1=3.0, stepsize_controller=coarse), PARAMS,
                    backends=False)  # fmt: skip
    assert found.fault == "tolerance"
    assert "0.03" in found.reason
    assert found.digits < 3


@pytest.mark.slow
def test_a_near_singular_position_is_named():
    """A slider-crank with links of nearly equal length, through the position where they fold."""
    system = jax.tree.map(jnp.asarray, SliderCrank(crank_length=1.0, rod_length=1.0 + 1e-6))
    q, v = system.start()

    def function(s):
        run = simulate(s, Multipliers(Baumgarte.critical(20.0)), State(q, v), t1=1.0, dt=1e-3,
                       start_tolerance=None)  # fmt: skip
        return run.q[-1, 0]

    found = certify(function, system, backends=False)
    assert found.fault == "rank", found.reason
    assert "singular" in found.reason


class Oblique(Pendulum):
    """A class of its own, of which no program is kept."""


@pytest.mark.slow
def test_a_wrong_backend_is_found(monkeypatch):
    """Of which values, both modes and differences agree with each other."""
    right = NativeBackend.solve

    def wrong(self, problem, method, y0):
        found = right(self, problem, method, y0)
        scaled = lambda tree: jax.tree.map(lambda x: 1.001 * x, tree)  # noqa: E731
        return found._replace(rows=scaled(found.rows), end=scaled(found.end))

    monkeypatch.setattr(NativeBackend, "solve", wrong)
    found = certify(swing(Oblique), PARAMS)
    assert found.fault == "backend", found.reason
    assert "0.001" in found.reason
    assert all(x.passed for x in found.checks if x.name in ("modes", "differences"))


class Wall(eqx.Module):
    """Where a coordinate comes to a place."""

    place: Any
    axis: int = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        return q[self.axis] - self.place


def turned(t, q, v, w):
    """What does not commute with the other reset."""
    return q, jnp.array([-v[0], 2 * v[1]]), w


def doubled(t, q, v, w):
    return q, jnp.array([v[0] + v[1], -v[1]]), w


class Free(jaxdae.System):
    """A point of 1 kg without forces."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


def bounced(places):
    events = [
        jaxdae.Event(Wall(places[0], 0), direction=1, reset=turned, name="first"),
        jaxdae.Event(Wall(places[1], 1), direction=1, reset=doubled, name="second"),
    ]
    start = State(jnp.zeros(2), jnp.ones(2))
    run = simulate(Free(), Multipliers(), start, t1=1.5, dt=0.1, events=events, max_events=3)
    return run.final_state.q @ jnp.array([1.0, 2.0])


@pytest.mark.slow
def test_events_that_change_their_order_are_named():
    found = certify(bounced, jnp.array([1.0, 1.0]), backends=False)
    assert found.fault == "events", found.reason
    assert "first" in found.reason
    apart = certify(bounced, jnp.array([1.0, 1.2]), backends=False)
    assert apart.passed, apart.reason
    assert apart.event_gap == pytest.approx(0.2, abs=0.2)
