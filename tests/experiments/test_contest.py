"""Contests of controllers: where the best law is known, tuning finds it; losses are counted."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Positive, simulate, State, System
from jaxdae.control import PD
from jaxdae.formulations import Multipliers
from jaxdae.solvers import RK4


class Cart(System):
    """A mass on a line, pushed."""

    mass: float | jax.Array = 1.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w
        return jnp.zeros_like(q) if u is None else u


def _run(system, state, controller, mode):
    del mode
    return simulate(
        system, Multipliers(), state, t1=12.0, dt=0.05, solver=RK4(), controller=controller,
        adjoint=diffrax.ForwardMode(), throw=False,
    )  # fmt: skip


def _cost(run):
    density = run.q[:, 0] ** 2 + run.u[:, 0] ** 2
    # A cart that leaves the line is lost.
    return jnp.where(jnp.abs(run.q).max() < 5.0, jnp.trapezoid(density, run.ts), jnp.nan)


def _back(t, q):
    del t
    return -q


def _law(p):
    return PD(_back, p["K_P"], p["K_D"])


def _plants(contest, masses, places):
    zero = jnp.zeros((len(places), 1))
    states = jax.vmap(State)(jnp.asarray(places)[:, None], zero, jnp.zeros((len(places), 0)))
    return contest.Plants(Cart(jnp.asarray(masses)), states)


@pytest.mark.slow
def test_a_pd_law_tuned_on_the_regulators_cost_is_the_regulator(experiment):
    """Of `q'' = u` and the cost `q^2 + u^2` it is `u = -q - sqrt(2) q'`, at `sqrt(2) q0^2`."""
    contest = experiment("contest")
    training = _plants(contest, [1.0, 1.0], [1.0, -0.5])
    held_out = _plants(contest, [1.0, 1.0, 1.0], [0.3, -2.0, 9.0])
    first = {"K_P": Positive(1.5), "K_D": Positive(1.0)}
    best = {"K_P": 1.0, "K_D": np.sqrt(2.0)}
    rows = contest.contest(
        [contest.Candidate("LQR", best, _law), contest.Candidate("PD", first, _law, 60)],
        _run, _cost, training, held_out,
    )  # fmt: skip
    exact = np.sqrt(2.0) * np.array([1.0, 0.25])
    # Trapezoids of 0.05 s: 1e-3 of the integral, and what is left after 12 s is 1e-7.
    np.testing.assert_allclose(rows["LQR"].training, exact, rtol=2e-3)
    np.testing.assert_allclose(rows["PD"].params["K_P"], 1.0, atol=0.03)
    np.testing.assert_allclose(rows["PD"].params["K_D"], np.sqrt(2.0), atol=0.03)
    # No law beats the regulator by more than the quadrature's error.
    assert (rows["PD"].training > 0.998 * rows["LQR"].training).all()
    # The third plant held out starts beyond the line's end.
    assert [row.lost for row in rows.values()] == [1, 1]
    assert np.isfinite(rows["PD"].mean)
    assert [row.tuned for row in rows.values()] == [0, 2]
    (lqr, pd) = contest.lines(rows)
    assert (lqr[0], lqr[6], pd[1], pd[6]) == ("LQR", 1, 2, 1)
    assert contest.recorded(rows)["PD"]["lost"] == 1
