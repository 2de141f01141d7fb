"""A controller tuned by gradient through the simulation against the linear-quadratic regulator."""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxdae import Baumgarte, Multipliers, System, tune
from jaxdae.models.ball_beam import BallBeam
from jaxdae.models.ball_beam_control import (
    CubicNetwork,
    linear_regulator,
    perturbed_rests,
    WithNetwork,
)
from jaxdae.solvers import RK4
from jaxdae.tuning import Logarithm, SimulationObjective

RIG = BallBeam()
# The current settles within 0.07 ms. Twenty times slower it still is forty times faster than the
# mechanism, and steps may be twenty times longer: tuned on this, judged on the rig.
SLOWER = dataclasses.replace(RIG, inductance=20 * RIG.inductance)
FORMULATION = Multipliers(Baumgarte.critical(10.0))
FAR = 1.8


class Loop(eqx.Module):
    system: System
    attach: WithNetwork

    def __call__(self, params):
        return self.system, FORMULATION, self.attach(CubicNetwork(params))


def objective(cost, system, attach, seed, t1, dt):
    return SimulationObjective(
        cost,
        perturbed_rests(RIG, jax.random.key(seed), 16, FAR),
        build=Loop(system, attach),
        t1=t1,
        dt=dt,
        solver=RK4(),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, t1, round(50 * t1) + 1)),
    )


@pytest.mark.slow
def test_it_beats_the_regulator_at_the_regulators_own_cost():
    """On starts, a horizon, a step and an inductance that it was not tuned on."""
    regulator, cost = linear_regulator(RIG)
    attach, nothing = WithNetwork(regulator, RIG.rest()), jnp.zeros(10)
    tuned = tune(
        Logarithm(objective(cost, SLOWER, attach, seed=0, t1=3.0, dt=3e-3)),
        nothing,
        steps=20,
        optimizer=optax.adam(0.03),
    )
    assert tuned.loss < tuned.initial_loss
    whole = eqx.tree_at(lambda c: c.P, cost, jnp.zeros_like(cost.P))
    judge = objective(whole, RIG, attach, seed=1, t1=10.0, dt=1.5e-4)
    costs = eqx.filter_jit(lambda judge, params: judge.lane_costs(params))
    first, last = (np.asarray(costs(judge, params)) for params in (nothing, tuned.params))
    assert np.isfinite(last).all()
    # A linear law asks for more than the crank can give, which costs most where it is farthest off.
    assert last.mean() < 0.9 * first.mean()
    assert last.max() < 0.6 * first.max()
