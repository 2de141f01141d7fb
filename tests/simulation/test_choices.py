"""What a run can be made of, by name."""

import inspect
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import optimistix as optx
import pytest

import jaxdae
from jaxdae import formulations
from jaxdae.formulations import AbstractFormulation
from jaxdae.linalg.saddle_point import AbstractSolve
from jaxdae.models import CartesianPendulum
from jaxdae.models.studies import studies
from jaxdae.simulation import choices
from jaxdae.simulation.choices import (
    FORMULATIONS,
    LINEAR_SOLVES,
    make_formulation,
    make_solver,
    name_of,
    SOLVERS,
)
from jaxdae.systems import State
from jaxdae.tuning import trainable


def exported(package, kind):
    """Concrete classes of a kind among the public names of a package."""
    found = [getattr(package, name) for name in dir(package)]
    kinds = {x for x in found if inspect.isclass(x) and issubclass(x, kind)}
    return {x for x in kinds if not x.__name__.startswith("Abstract")}


def test_every_public_formulation_solve_and_solver_has_a_name():
    assert exported(jaxdae, AbstractFormulation) == {*FORMULATIONS.values()}
    assert exported(formulations, AbstractSolve) == {*LINEAR_SOLVES.values()}
    assert {"minimum-norm", "singular-mass", "singularity-robust", "sparse"} < {*LINEAR_SOLVES}
    named = {*SOLVERS.values(), *choices.WRAPPERS.values()}
    assert exported(jaxdae.solvers, diffrax.AbstractSolver) <= named
    assert {diffrax.Dopri8, diffrax.Tsit5, diffrax.Kvaerno5, diffrax.Euler} <= named


def test_a_formulation_that_is_exported_is_one_to_choose(monkeypatch):
    """Without another list to edit; a name of the field in front of Lagrange's is enough."""

    class AnotherLagrangian(jaxdae.Multipliers):
        pass

    assert name_of(jaxdae.AugmentedLagrangian(1.0)) == "augmented"
    monkeypatch.setattr(formulations, "AnotherLagrangian", AnotherLagrangian, raising=False)
    assert choices._exported(AbstractFormulation, formulations)["another"] is AnotherLagrangian


@pytest.mark.parametrize("name", FORMULATIONS)
def test_every_formulation_is_made_of_the_same_parts(name):
    """Parts that it does not have are left out; those it requires have defaults."""
    system = CartesianPendulum()
    start = State(*system.start())
    for parts in ({}, {"stabilization": jaxdae.Baumgarte.critical(10.0), "alpha": 5.0}):
        made = make_formulation(name, **parts)
        assert name_of(made) == name
        made.check(system, start)
    assert jnp.all(jnp.asarray(getattr(made, "alpha", 5.0)) == 5.0)


@pytest.mark.parametrize("name", FORMULATIONS)
def test_every_formulation_has_something_to_tune(name):
    (study,) = studies("pendulum", name)
    assert name_of(study.formulation) == name
    assert any(jax.tree.leaves(trainable(study.params)))


REMEMBERING = ["adams-bashforth", "generalized-alpha"]
OF_SINGLE_STEPS = [x for x in SOLVERS if x not in REMEMBERING]


@pytest.mark.parametrize("name", REMEMBERING)
def test_nothing_stands_around_a_method_whose_steps_go_on_from_those_before(name):
    assert type(make_solver(name)) is SOLVERS[name]
    with pytest.raises(ValueError, match="Projected changes the ends of steps"):
        make_solver(f"projected-{name}")


@pytest.mark.parametrize("name", OF_SINGLE_STEPS)
def test_a_method_is_made_of_its_name_alone_and_within_another_to_a_tolerance(name):
    """Newton's method: one Jacobian for all iterations fails where steps are long for it."""
    projected: Any = make_solver(f"projected-{name}", 1e-8)
    assert isinstance(projected, jaxdae.Projected)
    for solver in (projected.solver, make_solver(name, 1e-8)):
        assert type(solver) is SOLVERS[name]
        if isinstance(solver, diffrax.AbstractImplicitSolver):
            assert isinstance(solver.root_finder, optx.Newton)
            assert (solver.root_finder.rtol, solver.root_finder.atol) == (1e-8, 1e-8)
        else:
            assert solver == make_solver(name)


@pytest.mark.parametrize(
    ("find", "name", "message"),
    [
        (make_solver, "dorpi8", "No solver is named 'dorpi8'. Did you mean 'dopri8'?"),
        (make_solver, "projected-dorpi8", "No solver is named 'dorpi8'. Did you mean 'dopri8'?"),
        (make_solver, "projected", "Available: bosh3, .*, projected-NAME"),
        (make_formulation, "Null_Space", "Did you mean 'null-space'?"),
        (choices.find_linear_solve, "minimal-norm", "No solve is .* mean 'minimum-norm'?"),
    ],
)
def test_unknown_names_suggest_the_closest(find, name, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        find(name)
