"""The contract of step methods, as kernels use it: on any state, without a kernel."""

from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import HarmonicOscillator
from jaxdae.solvers import RK4, Rodas5P
from jaxdae.solvers.base import AbstractTracedSolver
from jaxdae.solvers.kernel_steps import step_method


class ThirdOrder(diffrax.AbstractERK):
    """Ralston's method of order 3 [Ralston1962]: a tableau is all that an explicit method needs."""

    tableau: ClassVar[Any] = diffrax.ButcherTableau(
        a_lower=(np.array([0.5]), np.array([0.0, 0.75])),
        b_sol=np.array([2 / 9, 1 / 3, 4 / 9]),
        b_error=np.zeros(3),
        c=np.array([0.5, 0.75]),
    )
    interpolation_cls: ClassVar[Any] = diffrax.ThirdOrderHermitePolynomialInterpolation.from_k

    def order(self, terms):
        return 3


class Traced(diffrax.Kvaerno3, AbstractTracedSolver):
    """An implicit method, by its own steps."""


METHODS = [
    RK4(),
    ThirdOrder(),
    diffrax.Heun(),
    diffrax.Tsit5(),
    diffrax.Dopri8(),
    Traced(root_finder=diffrax.VeryChord(rtol=1e-9, atol=1e-12)),
    Rodas5P(),
]
Z = -0.4 + 0.9j


def turn(t, y):
    """`dy/dt = z y`, as two real numbers."""
    return jnp.array([[Z.real, -Z.imag], [Z.imag, Z.real]]) @ y


def method_of(solver) -> Any:
    method = step_method(solver)
    assert not isinstance(method, str)
    return method


@pytest.mark.parametrize("solver", METHODS, ids=lambda x: type(x).__name__)
def test_a_step_is_what_the_contract_says(solver):
    method = method_of(solver)
    t0, t1, y0 = (jnp.asarray(x) for x in (0.0, 1.0, np.array([0.6, -0.8])))

    @jax.jit
    def two_steps(y0):
        first = method.step(turn, t0, t1, y0, method.init(turn, t0, y0))
        second = method.step(turn, t1, 2 * t1, first.y1, first.carry)
        again = method.step(turn, t1, 2 * t1, first.y1, None)
        at_ends = [method.interpolate(t0, t1, y0, first.y1, first.dense(), t) for t in (t0, t1)]
        return first.y1, second.y1, again.y1, at_ends, first.error(), first.dense(), first.carry

    y1, y2, again, at_ends, error, dense, carry = two_steps(y0)
    factor = complex(method.stability_function(Z))
    both = np.array([[factor.real, -factor.imag], [factor.imag, factor.real]])
    # Round-off; of an iteration that stops at 1e-9 the last change, squared or nearly so.
    np.testing.assert_allclose(y1, both @ y0, atol=1e-9)
    np.testing.assert_allclose(y2, both @ both @ y0, atol=2e-9)
    # What is carried saves work, and changes nothing.
    np.testing.assert_allclose(y2, again, atol=1e-15)
    np.testing.assert_allclose(at_ends[0], y0, atol=1e-14)
    np.testing.assert_allclose(at_ends[1], y1, atol=1e-14)
    table = getattr(solver, "tableau", None)  # one without has an estimate
    estimates = table is None or bool(np.any(np.asarray(table.b_error)))
    assert error.shape == (y0.shape if estimates else ())
    assert dense.shape == method.dense_shape(2)
    assert carry.shape == (method.carried(2),)


def test_evaluations_are_those_on_which_the_end_depends():
    assert [method_of(x).evaluations(False) for x in (RK4(), diffrax.Tsit5())] == [4, 6]
    assert [method_of(x).evaluations(True) for x in (RK4(), diffrax.Tsit5())] == [4, 7]
    assert [method_of(x).evaluations(True) for x in METHODS[-2:]] == [0, 0]


def test_an_explicit_method_is_a_tableau_on_both_backends():
    state = jaxdae.State(jnp.ones(1), jnp.zeros(1))

    def end(backend: Any):
        run = jaxdae.simulate(
            HarmonicOscillator(1.0), jaxdae.Multipliers(), state, t1=1.0, dt=0.1,
            solver=ThirdOrder(), backend=backend,
        )  # fmt: skip
        return run.q[-1, 0]

    native, plain = end("native"), end("plain")
    np.testing.assert_allclose(native, plain, rtol=1e-14)
    # h^4 / 24 in each of ten steps, as much as the solution allows to add up.
    np.testing.assert_allclose(native, np.cos(1.0), atol=1e-4)


@pytest.mark.parametrize(
    "solver",
    [diffrax.Heun(), diffrax.Bosh3(), diffrax.Dopri5(), diffrax.Tsit5(), diffrax.Dopri8()],
    ids=lambda x: type(x).__name__,
)
def test_dense_output_in_single_precision_has_no_numbers_of_double_precision(solver):
    method = method_of(solver)
    t, y = jnp.float32(0.3), jnp.zeros(2, jnp.float32)
    dense = jnp.zeros(method.dense_shape(2), jnp.float32)
    program = jax.make_jaxpr(method.interpolate)(t, t + 1, y, y, dense, t)
    assert "f64" not in str(program)
