"""Vector fields of systems and formulations as scalar programs.

The pairs are a fifth of those of the matrix of agreement, in rotation, less the larger of the
systems that are built alike. There motions are compared, run by their kernels.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from helpers import agreement
from jaxdae.control.base import control_input
from jaxdae.kernels import scalarize, UnsupportedOperationError

SYSTEMS = (
    "pendulum", "two-link", "sleigh", "ball and beam", "everything", "repeated rod", "massless",
    "kepler", "mirror",
)  # fmt: skip


PAIRS = [
    (system, name)
    for (i, system), (j, name) in itertools.product(
        enumerate(SYSTEMS), enumerate(agreement.FORMULATIONS)
    )
    if (i + j) % 5 == 4 and {(system, name)}.isdisjoint({*agreement.REFUSED, *agreement.AT_A_START})
]


class Field:
    """A formulation's vector field on its flat state, under the controller of the case."""

    def __init__(self, case, formulation):
        self.case, self.formulation = case, formulation

    def start(self):
        state = self.formulation.init(self.case.system, jnp.zeros(()), self.case.state)
        return ravel_pytree(state)[0]

    def __call__(self, t, y):
        case, formulation = self.case, self.formulation
        state = jax.eval_shape(lambda: formulation.init(case.system, jnp.zeros(()), case.state))
        _, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), state))
        unpacked = unravel(y)
        u = control_input(case.controller, t, formulation.recover(case.system, t, unpacked))
        return ravel_pytree(formulation.vector_field(case.system, t, unpacked, u))[0]


@pytest.fixture(scope="module")
def fields():
    """Vector fields by system and formulation."""
    return {
        (system, name): Field(
            agreement.case_of(system),
            agreement.weighted(agreement.FORMULATIONS[name], agreement.case_of(system).alpha),
        )
        for system, name in PAIRS
    }


@pytest.fixture(scope="module")
def values(fields):
    """Of each system, by formulation: a state near the start, and the plain value there."""
    found: dict[str, dict] = {}

    def near(field, noise):
        # Indices and signs that a state carries are rounded when they are used.
        y = field.start()
        return y * (1 + noise[: y.size]) + noise[-y.size :]

    def of(system):
        if system not in found:
            names = [x for s, x in PAIRS if s == system and not agreement.is_not_native(s, x)]
            noise = 1e-2 * np.random.default_rng(271).normal(size=40)
            # One program for all formulations of a system compiles faster than one for each.
            states = jax.jit(lambda noise: [near(fields[system, x], noise) for x in names])(noise)
            rates = jax.jit(lambda t, y: [fields[system, x](t, y[x]) for x in names])
            states = dict(zip(names, states, strict=True))
            pairs = zip(states.values(), rates(0.1, states), strict=True)
            found[system] = dict(zip(names, pairs, strict=True))
        return found[system]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("system", "name"), [x for x in PAIRS if not agreement.is_not_native(*x)])
def test_vector_fields_are_what_jax_computes(system, name, fields, values, in_numpy):
    state, expected = values(system)[name]
    program = scalarize(fields[system, name], jnp.asarray(0.1), state)
    (found,) = in_numpy(program, 0.1, state)
    assert np.isfinite(found).all()
    # Rounding, times condition numbers up to 1e4 for penalties.
    size = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-11 * size)


@pytest.mark.parametrize(("system", "name"), [x for x in PAIRS if agreement.is_not_native(*x)])
def test_iterations_that_depend_on_the_state_are_refused(system, name, fields):
    field = fields[system, name]
    shape = jax.eval_shape(field.start)
    with pytest.raises(UnsupportedOperationError, match=agreement.NOT_NATIVE[name]):
        scalarize(field, jnp.asarray(0.1), shape)


@pytest.mark.slow
def test_every_formulation_and_system_is_met():
    assert {name for _, name in PAIRS} == {*agreement.FORMULATIONS}
    assert {system for system, _ in PAIRS} == set(SYSTEMS)
    refused = {name for system, name in PAIRS if agreement.is_not_native(system, name)}
    assert refused == {*agreement.NOT_NATIVE}
