"""What objects show at the prompt: values, and what is traced as such."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.reprs import shown

# The numbers themselves are the same in every precision.
EXACT = [0.5, -2.0]


class Spring(jaxdae.System):
    stiffness: Any = 4.0
    masses: Any = None
    law: Any = eqx.field(static=True, default="linear")

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


@dataclasses.dataclass(frozen=True)
class Result:
    values: np.ndarray
    name: str


CASES = {
    "Baumgarte(K_D=[20., 10.], K_P=100.0, Gamma=3.0)": lambda: jaxdae.Baumgarte(
        jnp.array([20.0, 10.0]), 100.0, 3.0
    ),
    "State(q=[0.5, -2.], v=[0., 0.])": lambda: jaxdae.State(EXACT, [0.0, 0.0]),
    "State(q=[0.5, -2.], v=[0., 0.], w=[7.])": lambda: jaxdae.State(EXACT, [0.0, 0.0], [7.0]),
    "Multipliers(stabilization=Baumgarte(K_D=1.0, K_P=[[2., 0.], [0., 3.]]), "
    "solve=AutomaticSolve())": lambda: jaxdae.Multipliers(
        jaxdae.Baumgarte(1.0, np.diag([2.0, 3.0]))
    ),
    "Spring(stiffness=4.0)": Spring,
    "Spring(stiffness=[1., 2., 3.])": lambda: jax.vmap(Spring)(jnp.arange(1.0, 4.0)),
    "Spring(stiffness=4.0, masses=f32[5,4], law='cubic')": lambda: Spring(
        masses=jnp.ones((5, 4), jnp.float32), law="cubic"
    ),
    "Spring(stiffness=Positive(2.), masses=Interval([1.], lower=[0.], upper=[4.]))": lambda: Spring(
        jaxdae.tuning.Positive(2.0), jaxdae.tuning.Interval([1.0], 0.0, 4.0)
    ),
    "Spring(stiffness=[nan, inf, -0.])": lambda: Spring(np.array([np.nan, np.inf, -0.0])),
    "Spring(stiffness=[])": lambda: Spring(jnp.zeros(0)),
    "Spring(stiffness=key<fry>[])": lambda: Spring(jax.random.key(0)),
    "Spring(stiffness=[True, False])": lambda: Spring(jnp.array([True, False])),
    "Result(values=[1, 2], name='run')": lambda: Result(np.array([1, 2]), "run"),
}


@pytest.mark.parametrize("text", CASES)
def test_values_are_shown(text):
    # Settings of the solves may break a line; words and numbers are what counts.
    found = " ".join((shown if text.startswith("Result") else repr)(CASES[text]()).split())
    assert found.replace("( ", "(").replace(" )", ")") == text


@pytest.mark.parametrize("transformed", [jax.jit, jax.vmap, jax.jacfwd, jax.make_jaxpr])
def test_what_is_traced_says_so(transformed):
    said = []

    def look(q):
        said.append(repr(jaxdae.State(q, 2 * q)))
        return q

    transformed(look)(jnp.ones((2, 2), jnp.float32))
    assert said[0].count("traced f32[") == 2
    assert said[0].startswith("State(q=traced f32[")


def test_deleted_arrays_show_their_shape():
    x = jnp.ones(2, jnp.float32)
    system = Spring(x)
    x.delete()
    assert repr(system) == "Spring(stiffness=deleted f32[2])"


@jax.tree_util.register_pytree_node_class
class Guarded:
    """Takes no text in place of its array."""

    def tree_flatten(self):
        return (1.0,), None

    @classmethod
    def tree_unflatten(cls, *_):
        raise TypeError("only arrays")


def test_an_object_that_refuses_texts_is_shown_all_the_same():
    assert repr(Spring(Guarded())).startswith("Spring(stiffness=")
