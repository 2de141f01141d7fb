"""Declarations that are not mechanics: consistent starts, the index, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import (
    Circle,
    ImplicitRobertson,
    Pendulum,
    Robertson,
    ROBERTSON_START,
    TRANSISTOR_START,
    Transistors,
)
from jaxdae.systems.dae_start import violation


class Declared(jaxdae.DAE):
    """Functions of a test, given as fields."""

    f: Any = None
    g: Any = None

    def rate(self, t, y, z, u):
        return self.f(t, y, z, u)

    def constraints(self, t, y, z, u):
        return () if self.g is None else self.g(t, y, z, u)


# Consistent starts.


def test_at_index_one_y_is_held_and_z_moves():
    y, z = jaxdae.consistent_start(Robertson(), {"a": 0.7, "b": 1e-5}, {"c": 0.0})
    assert y == {"a": 0.7, "b": 1e-5}
    np.testing.assert_allclose(z["c"], 1 - 0.7 - 1e-5, rtol=1e-15)


def test_what_is_held_stays_and_the_rest_moves_along_the_gradient():
    y, z = jaxdae.consistent_start(
        Robertson(), {"a": 0.7, "b": 0.2}, {"c": 0.4}, hold=["z", "y['b']"]
    )
    assert (y["b"], z["c"]) == (0.2, 0.4)
    np.testing.assert_allclose(y["a"], 0.4, rtol=1e-15)
    # With nothing held the sum, too large by 0.3, is taken from all three alike.
    y, z = jaxdae.consistent_start(Robertson(), {"a": 0.7, "b": 0.2}, {"c": 0.4}, hold=())
    np.testing.assert_allclose([y["a"], y["b"], z["c"]], [0.6, 0.1, 0.3], rtol=1e-14)


def test_at_index_two_z_follows_from_the_hidden_constraint():
    """The force that keeps a point with its speed and weight on the circle."""
    q, v = jnp.array([0.6, -0.8]), jnp.array([1.0, 1.0])
    y, z = jaxdae.consistent_start(Pendulum(), {"q": q, "v": v}, 0.0, hold="y['q']")
    np.testing.assert_array_equal(y["q"], q)
    np.testing.assert_allclose(y["v"], v - (q @ v) * q, rtol=1e-14)
    np.testing.assert_allclose(2 * z, y["v"] @ y["v"] - 9.81 * q[1], rtol=1e-14)


@pytest.mark.slow
def test_of_a_residual_rates_are_those_of_the_motion():
    """Also of variables whose rates the residual does not have: from its derivative by time."""
    given = jnp.array([0.7, 1e-5, 0.0])
    y, rates = jaxdae.consistent_start(ImplicitRobertson(), given, hold=["y[0]", "y[1]"])
    np.testing.assert_array_equal(y[:2], given[:2])
    np.testing.assert_allclose(y[2], 1 - y[0] - y[1], rtol=1e-14)
    c = 0.04 * 0.7 - 1e4 * 1e-5 * y[2]
    np.testing.assert_allclose(rates, [-c, c - 3e7 * 1e-10, 3e7 * 1e-10], rtol=1e-12)


@pytest.mark.slow
def test_rates_of_a_circuit_with_a_singular_matrix_are_the_published_ones():
    y, rates = jaxdae.consistent_start(Transistors(), TRANSISTOR_START)
    np.testing.assert_allclose(y, TRANSISTOR_START, atol=1e-14)
    # Of the capacitors with one side at the ground, and of the one at the source.
    expected = [51.3392765171807, 51.3392765171807, -166.6666666666667]
    np.testing.assert_allclose(rates[:3], expected, rtol=1e-12)


@pytest.mark.slow
def test_derivatives_of_starts_agree_in_both_modes_and_with_differences():
    def semi(x):
        start = {"q": jnp.array([0.6, -0.8]) * x, "v": jnp.array([1.0, 1.0 + x])}
        y, z = jaxdae.consistent_start(Pendulum(gravity=9.0 + x), start, 0.1)
        return y["q"].sum() + 2 * y["v"][0] + z

    def implicit(x):
        y, rates = jaxdae.consistent_start(ImplicitRobertson(0.04 * x), jnp.array([0.9, 0.0, x]))
        return y[0] + rates[2]

    for function in (semi, implicit):
        function = jax.jit(function)
        reverse = jax.grad(function)(1.1)
        forward = jax.jvp(function, (1.1,), (1.0,))[1]
        np.testing.assert_allclose(forward, reverse, rtol=1e-10)
        h = 1e-4
        near, far = (function(1.1 + x) - function(1.1 - x) for x in (h, 2 * h))
        np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-8)


def test_inside_of_a_transformation_a_start_that_there_is_not_is_no_number():
    dae = Declared(lambda t, y, z, u: -y, lambda t, y, z, u: z**2 - y)
    both = jax.vmap(lambda y: jaxdae.consistent_start(dae, y, 1.0).z)(jnp.array([4.0, -4.0]))
    np.testing.assert_allclose(both[0], 2.0, rtol=1e-14)
    assert np.isnan(both[1])


def test_in_single_precision_values_are_of_single_precision():
    found = jaxdae.consistent_start(Circle(), jnp.array([0.1, 1.0], jnp.float32), 0.5)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    assert abs(float(found.y @ found.y) - 1) < 1e-6  # round-off


# What is refused.


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        pytest.param(
            lambda: jaxdae.consistent_start(
                Declared(lambda t, y, z, u: -y, lambda t, y, z, u: z**2 - y), -4.0, 1.0
            ),
            jaxdae.ConsistencyError,
            r"no consistent values were found: constraints = .* remains at t = 0, .*Held: y\. "
            "Begin nearer to a solution, in z too, or hold other variables",
            id="no solution",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(
                Robertson(), {"a": 0.7, "b": 0.2}, {"c": 0.4}, hold=["y", "z"]
            ),
            jaxdae.ConsistencyError,
            r"constraints\['sum'\] = 0.3 remains at t = 0.*Held: y, z\.",
            id="all held",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(Robertson(), *ROBERTSON_START, hold="y['q']"),
            ValueError,
            r"hold: nothing is called .*there are y, z, y",
            id="unknown name",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(Circle(), jnp.array([0.0, 1.0]), 1.0, hold="z"),
            ValueError,
            "hold: z cannot be held, as at index 2 z follows from the derivative",
            id="z at index 2",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(ImplicitRobertson(), jnp.ones(3), hold="y_dot[0]"),
            ValueError,
            r"hold: y_dot\[0\] cannot be held, as rates follow from the residual",
            id="rates",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(
                Declared(lambda t, y, z, u: -y, lambda t, y, z, u: z - jnp.sqrt(y)), -4.0, 1.0
            ),
            jaxdae.ConsistencyError,
            "constraints is nan at the values given and t = 0: it is not defined there",
            id="not a number",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start("circuit", 1.0),  # pyright: ignore
            TypeError,
            "dae is 'circuit'; give an instance of your jaxdae.DAE",
            id="no declaration",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(Robertson(), {"a": "much", "b": 0.0}, 0.0),
            TypeError,
            r"y\['a'\] is 'much'; variables are numbers or arrays",
            id="no number",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(Robertson(), {}, 0.0),
            ValueError,
            "y holds no number; give the differential variables",
            id="nothing",
        ),
        pytest.param(
            lambda: jaxdae.consistent_start(ImplicitRobertson(), jnp.ones(3), jnp.ones(2)),
            ValueError,
            r"y_dot has other entries than y: y_dot\[0\], y_dot\[1\] beside y\[0\], y\[1\], y\[2\]",
            id="rates of another shape",
        ),
    ],
)  # fmt: skip
def test_starts_that_there_are_not_are_refused_in_words(given, error, words):
    with pytest.raises(error, match=words):
        given()


class Both(jaxdae.DAE):
    def rate(self, t, y, z, u):
        return -y

    def residual(self, t, y, y_dot, u):
        return y_dot + y


class Misnamed(Robertson):
    def units(self):
        return {"y['c']": "mol"}


class Unnamed(Robertson):
    def units(self) -> Any:
        return ("mol",)


class Neither(jaxdae.DAE):
    pass


class Beside(jaxdae.DAE):
    def residual(self, t, y, y_dot, u):
        return y_dot + y

    def constraints(self, t, y, z, u):
        return y


class Short(jaxdae.DAE):
    def residual(self, t, y, y_dot, u):
        return y_dot[:1] + y[:1]


class Heavy(jaxdae.DAE):
    shape: tuple = (2, 2)

    def rate(self, t, y, z, u):
        return -y

    def mass(self, t, y):
        return jnp.ones(self.shape)


class HigherResidual(jaxdae.DAE):
    """`y0 = sin t`, `y1 = y0'`: index 2."""

    def residual(self, t, y, y_dot, u):
        return {"rate": y_dot[0] - y[1], "path": y[0] - jnp.sin(t)}


def plain_rate(t, y, z, u):
    return -y


TWO = jnp.ones(2)


@pytest.mark.parametrize(
    ("dae", "y", "z", "words"),
    [
        (Both(), TWO, None, "Both declares both residual and rate: give rate"),
        (Neither(), TWO, None, "Neither declares neither rate nor residual"),
        (Beside(), TWO, None, "Beside declares constraints beside residual, which would be ignor"),
        (Short(), TWO, None,
         r"Short is not square: residual returned 1 equations \(residual\[0\]\) for 2 variables "
         r"\(y\[0\], y\[1\]\)"),
        (Declared(plain_rate, lambda t, y, z, u: {"a": z["x"], "b": z["x"]}), TWO, {"x": 1.0},
         r"Declared is not square: constraints returned 2 equations \(constraints\['a'\], "
         r"constraints\['b'\]\) for 1 algebraic variables \(z\['x'\]\)"),
        (Declared(plain_rate, lambda t, y, z, u: y[0]), TWO, None,
         r"constraints returned 1 equations \(constraints\) for 0 algebraic variables \(none\)"),
        (Declared(lambda t, y, z, u: {"x": y["x"][:1]}), {"x": TWO}, None,
         r"Declared.rate returned rate\['x'\]\[0\], and y is y\['x'\]\[0\], y\['x'\]\[1\]"),
        (Heavy((3, 3)), TWO, None, r"Heavy.mass returned shape \(3, 3\); it must return None"),
        (Heavy((2, 2)), TWO, None,
         r"Heavy at t = 0: the mass matrix is singular, of rank 1 for 2 variables. Declare the "
         "equations by residual"),
        (Declared(plain_rate, lambda t, y, z, u: jnp.stack([z[0] + z[1], z[0] + z[1]])), TWO, TWO,
         r"the constraints do not determine z \(z\[0\], z\[1\]\): of 2 equations 1 are independent "
         r"there, and constraints\[0\], constraints\[1\] depend on each other. The index is higher "
         "than 1. Constraints that do not depend on z at all are of index 2"),
        (Declared(plain_rate, lambda t, y, z, u: {"a": z[0], "b": y[0]}), TWO, TWO,
         r"and constraints\['b'\] says nothing of them. The index is higher than 1"),
        (Declared(lambda t, y, z, u: jnp.stack([y[1], z]), lambda t, y, z, u: y[0]), 0 * TWO, 0.0,
         r"the derivative of the constraints by time does not determine z \(z\).*The index is "
         "higher than 2. Put the time derivative"),
        (HigherResidual(), jnp.array([0.0, 1.0]), None,
         r"the index of the residual is higher than 1: of 2 equations 1 determine rates, and the "
         r"other 1, which are algebraic, leave 1 of the variables y\[0\], y\[1\] open"),
        (Declared(lambda t, y, z, u: -y, lambda t, y, z, u: z * jnp.sqrt(y) - y), 0.0, 0.0,
         "Declared: the derivative of the constraints by z|the constraints do not determine z"),
        (Declared(lambda t, y, z, u: "fast"), TWO, None,
         "Declared.rate returned"),
        (Declared(lambda t, y, z: -y), TWO, None, "Declared.rate failed with TypeError"),
        (Misnamed(), *ROBERTSON_START, r"Misnamed.units: nothing is called .*; there are y\['a'\]"),
        (Unnamed(), *ROBERTSON_START, r"Unnamed.units returned .*; it must return texts by names"),
    ],
)  # fmt: skip
def test_declarations_that_are_no_such_equations_are_refused_in_words(dae, y, z, words):
    with pytest.raises(ValueError, match=words):
        jaxdae.solve(dae, y, z, t1=1.0)


def test_distances_are_of_first_order_in_the_variables():
    """Equations a million times as large are as far from holding."""
    from jaxdae.systems import Variables
    from jaxdae.systems.dae_equations import DAEEquations

    found = []
    for scale in (1.0, 1e6):
        law = lambda t, y, z, u, k=scale: k * (z - y)  # noqa: E731
        equations = DAEEquations(Declared(plain_rate, law))
        values = Variables(jnp.array(1.0), jnp.array(1.5))
        found.append(violation(equations, 1, jnp.array(0.0), values))
    np.testing.assert_allclose(found[1].residual, 1e6 * found[0].residual)
    np.testing.assert_allclose(found[1].distance, found[0].distance)
    np.testing.assert_allclose(found[0].distance, 0.5 / np.sqrt(2) / 2.5)
