"""Rodas5P on differential-algebraic equations of index 1: order, backends, derivatives."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import (
    Chained,
    Circle,
    Cubic,
    Growth,
    ImplicitRobertson,
    Robertson,
    ROBERTSON_START,
    Turned,
)
from jaxdae.solvers import Rodas5P

END = diffrax.SaveAt(t1=True)
BACKENDS = ["plain", pytest.param("native", marks=pytest.mark.slow)]


def errors(backend, dae, start, exact, counts=(8, 16)):
    found = []
    for count in counts:
        run = jaxdae.solve(
            dae, *start, t1=1.0, dt=1 / count, solver=Rodas5P(), backend=backend, saveat=END
        )
        assert run.backend == backend
        ends = [np.ravel(x[0]) for x in (run.y, run.z)]
        found.append([np.abs(a - b).max() for a, b in zip(ends, exact, strict=True)])
    return np.divide(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_both_kinds_of_variables_are_of_order_five(backend):
    """`y = sin t` and `z = exp(0.3 t)`, the latter by a cube."""
    exact = np.array([np.sin(1.0)]), np.array([np.exp(0.3)])
    # Errors of order five are small here beside those of order six.
    assert (np.log2(errors(backend, Cubic(), (0.0, 1.0), exact)) > 4.8).all()


@pytest.mark.slow
def test_a_mass_matrix_and_times_that_run_backward():
    start = jnp.array([1.0, 0.0]), 0.0
    exact = np.array([np.cos(1.0), np.sin(1.0)]), np.array([np.sin(1.0)])
    assert (np.log2(errors("native", Turned(), start, exact)) > 4.8).all()
    settings: dict[str, Any] = {"solver": Rodas5P(), "saveat": END}
    there = jaxdae.solve(Turned(), *start, t1=1.0, **settings)
    back = jaxdae.solve(Turned(), *there.final, t0=1.0, t1=0.0, **settings)
    np.testing.assert_allclose(back.y[0], [1.0, 0.0], atol=1e-6)  # 1e-8 in each step


@pytest.mark.slow
def test_stiff_reactions_agree_with_radau():
    """Robertson's after 40 s, to the tolerance."""
    control = diffrax.PIDController(rtol=1e-8, atol=1e-12)
    settings: dict[str, Any] = {"t1": 40.0, "saveat": END, "stepsize_controller": control}
    one = jaxdae.solve(Robertson(), *ROBERTSON_START, solver=Rodas5P(), **settings)
    other = jaxdae.solve(Robertson(), *ROBERTSON_START, **settings)
    for a, b in zip(jax.tree.leaves(one.saved), jax.tree.leaves(other.saved), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.slow
def test_derivatives_in_both_modes_and_by_differences_with_a_failed_member_beside():
    def end(k, adjoint=None):
        run = jaxdae.solve(
            Growth(k), 1.0, k, t1=0.5, dt=0.05, solver=Rodas5P(), backend="native", saveat=END,
            adjoint=adjoint, throw=False,
        )  # fmt: skip
        return run.y[0] + run.z[0]

    reverse = jax.grad(end)(1.0)
    forward = jax.jvp(lambda k: end(k, diffrax.ForwardMode()), (1.0,), (1.0,))[1]
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)
    h = 1e-3
    near, far = (end(1.0 + x) - end(1.0 - x) for x in (h, 2 * h))
    np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-6)
    # `t / (1 - k t)^2` and `(1 + k t) / (1 - k t)^3`, by steps of a twentieth to order five.
    np.testing.assert_allclose(reverse, 0.5 * 4 + 1.5 * 8, rtol=1e-4)
    many = jax.grad(lambda k: jnp.nansum(jax.vmap(end)(k)))(jnp.array([1.0, jnp.nan]))
    np.testing.assert_allclose(many, [reverse, 0.0], rtol=1e-12)


@pytest.mark.slow
def test_kernels_take_sixteen_variables():
    settings: dict[str, Any] = {"t1": 0.1, "dt": 0.05, "solver": Rodas5P(), "saveat": END}
    found = jaxdae.solve(Chained(), jnp.ones(15), 1.0, backend="native", **settings)
    np.testing.assert_allclose(found.y[0], np.exp(-0.1), rtol=1e-9)  # 0.05^5 over a hundred
    with pytest.raises(jaxdae.BackendError, match="17 variables are more than the 16"):
        jaxdae.solve(Chained(), jnp.ones(16), 1.0, backend="native", **settings)


def _of_index_two(**options):
    start = jnp.array([0.0, 1.0]), 1.0
    return jaxdae.solve(Circle(), *start, t1=0.1, dt=0.1, solver=Rodas5P(), **options).y


@pytest.mark.parametrize(
    "call",
    [
        _of_index_two,
        lambda: jax.jit(_of_index_two)(),
        lambda: jax.vmap(lambda x: x * _of_index_two(throw=False))(jnp.ones(2)),
    ],
    ids=["eager", "jit", "vmap"],
)
def test_index_two_is_refused_wherever_it_is_asked_for(call):
    with pytest.raises(
        ValueError, match=r"of index 1.*the constraints of Circle do not depend on z"
    ):
        call()


def test_a_residual_is_refused():
    start = jaxdae.consistent_start(ImplicitRobertson(), jnp.array([1.0, 0.0, 0.0]))
    with pytest.raises(ValueError, match="ImplicitRobertson is declared by a residual"):
        jaxdae.solve(ImplicitRobertson(), *start, t1=1.0, solver=Rodas5P())
