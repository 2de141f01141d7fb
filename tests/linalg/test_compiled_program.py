"""What the compiled right-hand side contains."""

import re

import jax
import jax.numpy as jnp
import pytest

from jaxdae import AugmentedLagrangian, Baumgarte, Multipliers, Penalty, State
from jaxdae.formulations import FullRankSolve
from jaxdae.models.andrews import AndrewsMechanism, START_Q
from jaxdae.models.two_link import PAPER_START_Q, TwoLinkManipulator

pytestmark = pytest.mark.optimized

STATES = {
    "two-link": (TwoLinkManipulator(), PAPER_START_Q),
    "Andrews": (AndrewsMechanism(), START_Q),
}
STABILIZATION = Baumgarte(K_D=20.0, K_P=100.0)
FORMULATIONS = {
    "multipliers": Multipliers(STABILIZATION),
    "penalty": Penalty(alpha=10.0, stabilization=STABILIZATION),
    "augmented Lagrangian": AugmentedLagrangian(alpha=10.0, stabilization=STABILIZATION),
}


class LapackSolve(FullRankSolve):
    """The same system of equations, solved by `jnp.linalg.solve`."""

    def __call__(self, mass, force, jac, rhs):
        n, c = jac.shape[1], jac.shape[0]
        kkt = jnp.block([[mass, jac.T], [jac, jnp.zeros((c, c))]])
        x = jnp.linalg.solve(kkt, jnp.concatenate([force, rhs]))
        return x[:n], x[n:]


def library_calls(name, formulation):
    """Names of the functions that a compiled loop over the right-hand side calls."""
    system, q = STATES[name]

    def loop(y):
        def step(i, y):
            rate = formulation.vector_field(system, 1e-4 * i, y, None)
            return jax.tree.map(lambda a, b: a + 1e-4 * b, y, rate)

        return jax.lax.fori_loop(0, 3, step, y)

    q = jnp.asarray(q)
    text = jax.jit(loop).lower(State(q, 0 * q, jnp.zeros(0))).compile().as_text()
    assert text is not None
    # Not the bare words: the text also quotes names of this file.
    assert " while(" in text
    return re.findall(r'custom_call_target="([^"]*)"', text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "formulation"),
    [("two-link", "penalty"), ("Andrews", "multipliers"), ("Andrews", "augmented Lagrangian")],
)
def test_right_hand_side_makes_no_call_to_lapack(name, formulation):
    assert library_calls(name, FORMULATIONS[formulation]) == []


@pytest.mark.slow
def test_a_call_to_lapack_would_be_seen():
    calls = library_calls("two-link", Multipliers(STABILIZATION, solve=LapackSolve()))
    assert any("lapack" in call for call in calls)
