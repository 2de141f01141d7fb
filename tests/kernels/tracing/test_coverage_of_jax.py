"""Every primitive of JAX that the ready systems come to has a rule.

A release of JAX that says something by another primitive is seen here, by the name of that, and not
by runs that are silently left to JAX.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import jax.numpy as jnp
import pytest

import jaxdae
from jaxdae.kernels.tracing.control_flow import CALLS
from jaxdae.kernels.tracing.linear_algebra import ITERATIVE
from jaxdae.kernels.tracing.rules import RULES
from jaxdae.models import CartesianPendulum, MODELS
from jaxdae.primitives.parameters import check
from jaxdae.results import derived_quantities

# Of known numbers alone: kernels leave them to JAX while they are traced.
KNOWN = {
    "empty2",
    "iota",
    "random_bits",
    "random_seed",
    "random_split",
    "random_unwrap",
    "random_wrap",
}
# Loops that end where a tolerance is met are refused in words.
REFUSED = set(ITERATIVE)
QUANTITIES = (
    derived_quantities.control,
    derived_quantities.multipliers,
    derived_quantities.violation,
    derived_quantities.jacobian,
    derived_quantities.kinetic_energy,
    derived_quantities.potential_energy,
    derived_quantities.energy,
)
CRITICAL = jaxdae.Baumgarte.critical(5.0)
FORMULATIONS = {
    "Multipliers": jaxdae.Multipliers(CRITICAL),
    "MinimumNormSolve": jaxdae.Multipliers(CRITICAL, jaxdae.MinimumNormSolve()),
    "SingularMassSolve": jaxdae.Multipliers(CRITICAL, jaxdae.SingularMassSolve()),
    "NullSpace": jaxdae.NullSpace(),
    "Penalty": jaxdae.Penalty(1e3, CRITICAL),
    "AugmentedLagrangian": jaxdae.AugmentedLagrangian(1e3, CRITICAL),
    "Hamiltonian": jaxdae.Hamiltonian(CRITICAL),
    "VelocityElimination": jaxdae.VelocityElimination((0,)),
}


class Run(NamedTuple):
    """What a derived quantity of a row depends on."""

    system: Any
    formulation: Any
    controller: Any


def equations(jaxpr):
    """Those of a program, and of all inside of it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jex.jaxprs_in_params(equation.params):
            yield from equations(inner)


def unknown(function, *arguments) -> set[str]:
    """Primitives without a rule, or with parameters that it does not know."""
    found = set()
    for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr):
        name = equation.primitive.name
        if name in RULES or name in CALLS:
            check(name, equation.params)
        elif name not in KNOWN | REFUSED:
            found.add(name)
    return found


def missing(run: Run, start: jaxdae.State) -> set[str]:
    """Of the equations of motion, their derivative in reverse mode, and all derived quantities.

    What goes forward is part of what goes back.
    """
    arrays, static = eqx.partition(run, eqx.is_inexact_array_like)
    leaves, structure = jax.tree.flatten(arrays)
    t = jnp.asarray(0.1)
    y = run.formulation.init(run.system, t, start)

    def rate(t, y, leaves):
        joined = eqx.combine(jax.tree.unflatten(structure, leaves), static)
        u = derived_quantities.control(joined, t, y)
        return joined.formulation.rate_and_multipliers(joined.system, t, y, u)

    def reverse(*inputs):
        found, pull = jax.vjp(rate, *inputs)
        return pull(found)

    inputs = t, y, [jnp.asarray(x, float) for x in leaves]
    return unknown(reverse, *inputs) | unknown(
        lambda t, y: [x(run, t, y) for x in QUANTITIES], t, y
    )


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.parametrize("name", MODELS)
def test_ready_systems_need_no_other_primitives(name):
    model = MODELS[name]
    system = model.system()
    state = jaxdae.State(*system.start(), system.actuators())
    controller = None if model.controller is None else model.controller(system)
    assert missing(Run(system, model.formulation(), controller), state) == set()


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.parametrize("name", FORMULATIONS)
def test_formulations_need_no_other_primitives(name):
    system = CartesianPendulum()
    state = jaxdae.State(*system.start(), jnp.zeros(0))
    assert missing(Run(system, FORMULATIONS[name], None), state) == set()


@pytest.mark.slow
def test_a_primitive_without_a_rule_is_found():
    assert unknown(lambda x: jax.lax.nextafter(x, x), 1.0) == {"nextafter"}
    nested = jax.jit(lambda x: jax.lax.cond(x > 0, jax.lax.lgamma, jax.lax.digamma, x))
    assert unknown(nested, 1.0) == {"lgamma", "digamma"}
