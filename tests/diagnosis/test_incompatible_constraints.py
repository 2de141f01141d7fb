"""Constraints that depend on each other, agree at the start and contradict each other later.

The last constraint is a combination of the others and `e(t)`, with `e = 0` at the start. Where
`f3 = a f1 + b f2 + e`, one of the three is at least `|e| / (1 + |a| + |b|)`, whatever the motion.
"""

import re

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import UnitMass
from jaxdae import Baumgarte, Multipliers, simulate
from jaxdae.solvers import Projected, RK4

GAINS = Baumgarte.critical(20.0)
LEAST = 1 / 33


class Contradiction(UnitMass):
    """A point on a circle, its product of coordinates, and their combination with `e(t)`.

    `e` is `size` times `sin^2 2t`, or a pulse of `width` about 0.5025 s, between all rows.
    """

    size: float = 0.1
    width: float = 0.0

    def potential_energy(self, t, q):
        return 9.81 * q[1]

    def excess(self, t):
        width = jnp.where(self.width > 0, self.width, 1.0)
        pulse = jnp.exp(-(((t - 0.5025) / width) ** 2))
        return self.size * jnp.where(self.width > 0, pulse, jnp.sin(2 * t) ** 2)

    def position_constraints(self, t, q):
        circle, product = q[0] ** 2 + q[1] ** 2 - 1, q[2] - q[0] * q[1]
        return jnp.stack([circle, product, 2 * circle - 30 * product + self.excess(t)])

    def labels(self):
        return jaxdae.Labels(constraints=("circle", "product", "sum"))


START = jaxdae.State([1.0, 0.0, 0.0, 0.3], [0.0, 0.0, 0.0, 0.1])


def warned(system, formulation, state=START, **how):
    """Numbers of the warning: the first time, the time of the largest, and the largest."""
    with pytest.warns(RuntimeWarning, match="cannot all be satisfied") as caught:
        run = simulate(system, formulation, state, t1=1.0, **how)
    assert bool(run.success)
    text = str(caught[0].message)
    found = re.search(r"from t = (\S+) s on: at t = (\S+) s, .* than about (\S+) of", text)
    assert found is not None
    return run, text, [float(x) for x in found.groups()]


def test_a_contradiction_is_reported_with_its_time_amount_and_constraints():
    run, text, (first, _, largest) = warned(Contradiction(), Multipliers(GAINS))
    assert "at position level" in text
    assert "'sum'" in text
    # 5e-7 of 2 to 6 explained: sin^2 2t is above a tenth of 33 times that from 0.02 s on.
    assert 0.0 < first < 0.05
    # sin^2 2t is 1 at 0.785 s, and no motion has less than 1 / 33 of it.
    assert 0.1 * LEAST <= largest <= 0.1
    residual = float(np.abs(run.violation.phi).max())
    assert residual >= 0.1 * LEAST


FORMULATIONS = {
    "robust": (Multipliers(solve=jaxdae.SingularityRobust()), {}),
    "penalty": (jaxdae.Penalty(1e4, GAINS), {"backend": "plain"}),
    "Hamiltonian": (jaxdae.Hamiltonian(GAINS), {"saveat": diffrax.SaveAt(t1=True)}),
    "projected": (Multipliers(), {"solver": Projected(RK4()), "dt": 0.01}),
}


@pytest.mark.slow
@pytest.mark.parametrize(("formulation", "how"), FORMULATIONS.values(), ids=list(FORMULATIONS))
def test_whatever_the_formulation_a_contradiction_is_reported(formulation, how):
    _, _, (first, _, largest) = warned(Contradiction(), formulation, **how)
    assert 0.0 < first < 0.05
    assert 0.1 * LEAST <= largest <= 0.1


def test_a_contradiction_between_rows_is_reported():
    """Rows are 0.005 s apart: at all of them the pulse is below `exp(-25)` of its height."""
    _, _, (first, worst, largest) = warned(Contradiction(0.1, 5e-4), Multipliers(GAINS))
    assert 0.5 < first <= worst < 0.505
    # 16 places between rows: the nearest is at most 1.6e-4 s beside the top, exp(-0.1) of it.
    assert 0.9 * 0.1 * LEAST <= largest <= 0.1


def test_members_of_a_batch_say_it_each():
    sizes = jnp.array([0.1, 0.0, 1e-3])

    @jax.jit
    @jax.vmap
    def batch(size):
        formulation = Multipliers(GAINS, jaxdae.MinimumNormSolve())
        run = simulate(Contradiction(size), formulation, START, t1=1.0, dt=0.01, throw=False)
        return run.success, run.incompatibility

    success, remains = batch(sizes)
    assert success.all()
    assert float(remains[1]) < 1e-12
    assert (remains[::2] >= LEAST * sizes[::2]).all()
    assert (remains[::2] <= sizes[::2]).all()


def test_constraints_that_agree_are_not_warned_of():
    """Warnings are errors here: dependent all along, off the constraints, too."""
    for off in (0.0, 1e-5):
        state = jaxdae.State(START.q + off, START.v)
        assert bool(simulate(Contradiction(0.0), Multipliers(GAINS), state, t1=1.0).success)


class Driven(UnitMass):
    """A point on a line that moves, and its velocity once more with `e(t)`."""

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - 0.3 * jnp.sin(t)])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([2 * v[1] - 0.6 * jnp.cos(t) + 0.05 * t**2])


@pytest.mark.slow
def test_a_contradiction_of_velocities_is_reported():
    """`g = 2 f' + 0.05 t^2`: one of the two is at least a third of that."""
    state = jaxdae.State([0.0, 0.0], [0.4, 0.3])
    _, text, (_, worst, largest) = warned(Driven(), Multipliers(GAINS), state)
    assert "at velocity level" in text
    assert worst == pytest.approx(1.0)
    assert 0.05 / 3 <= largest <= 0.05
