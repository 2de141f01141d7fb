"""What the compiled right-hand side contains."""

import jax
import jax.numpy as jnp
import pytest

from jaxdae import AugmentedLagrangian, Baumgarte, FullRank, Multipliers, Penalty, State
from jaxdae.models.andrews import AndrewsMechanism, START_Q
from jaxdae.models.two_link import PAPER_START_Q, TwoLinkManipulator

STATES = {
    "two-link": (TwoLinkManipulator(), PAPER_START_Q),
    "Andrews": (AndrewsMechanism(), START_Q),
}
STABILIZATION = Baumgarte(K_D=20.0, K_P=100.0)
FORMULATIONS = {
    "multipliers": Multipliers(STABILIZATION),
    "penalty": Penalty(10.0, STABILIZATION),
    "augmented Lagrangian": AugmentedLagrangian(10.0, STABILIZATION),
}


class LapackSolve(FullRank):
    """The same system of equations, solved by `jnp.linalg.solve`."""

    def __call__(self, mass, force, jac, rhs):
        n, c = jac.shape[1], jac.shape[0]
        kkt = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c))]])
        x = jnp.linalg.solve(kkt, jnp.concatenate([force, rhs]))
        return x[:n], x[n:]


def compiled_text(name, formulation):
    """Text of the compiled program of one evaluation in a loop."""
    system, q = STATES[name]

    def loop(y):
        def step(i, y):
            rate = formulation.vector_field(system, 1e-4 * i, y, None)
            return jax.tree.map(lambda a, b: a + 1e-4 * b, y, rate)

        return jax.lax.fori_loop(0, 3, step, y)

    q = jnp.asarray(q)
    return jax.jit(loop).lower(State(q, 0 * q, jnp.zeros(0))).compile().as_text()


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("formulation", FORMULATIONS)
def test_right_hand_side_makes_no_call_to_lapack(name, formulation):
    text = compiled_text(name, FORMULATIONS[formulation])
    assert "while(" in text  # it is a loop that was looked at
    assert "lapack" not in text
    assert "custom-call" not in text


def test_a_call_to_lapack_would_be_seen():
    text = compiled_text("two-link", Multipliers(STABILIZATION, solve=LapackSolve()))
    assert "lapack" in text
