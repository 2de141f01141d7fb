"""Certificates of functions without runs: right derivatives pass, planted faults are named."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import certify
from jaxdae.tuning import Positive

PARAMS = {"a": jnp.array([1.0, 2.0, 3.0]), "b": jnp.array(0.7)}


def smooth(p):
    return jnp.sum(jnp.sin(p["a"]) * p["b"]) + p["b"] ** 3


def forward_rule(function, rule):
    """A function whose tangents are made by another rule."""
    ruled = jax.custom_jvp(function)
    ruled.defjvp(lambda x, t: (function(*x), rule(x[0], t[0])))
    return ruled


def backward_rule(function, rule):
    """A function whose cotangents are made by another rule."""
    ruled = jax.custom_vjp(function)
    ruled.defvjp(lambda x: (function(x), x), lambda x, g: (rule(x, g),))
    return ruled


def scaled_entries(params):
    """Of what is 1e-12, 1e12, 3 and 1e-6 in its units."""
    return smooth({"a": params["a"] / MIXED["a"], "b": params["b"] / MIXED["b"]})


MIXED = {"a": jnp.array([1e-12, 1e12, 3.0]), "b": jnp.array(1e-6)}
SINGLE = jnp.array([1.0, 2.0, 3.0], jnp.float32)
RIGHT = {
    "smooth": (smooth, PARAMS),
    "values of 1e-12": (lambda p: 1e-12 * smooth(p), PARAMS),
    "values of 1e12": (lambda p: 1e12 * smooth(p), PARAMS),
    "a small part of a large value": (lambda p: 1e6 + smooth(p), PARAMS),
    "parameters of 1e-12 and 1e12": (scaled_entries, MIXED),
    "a minimum at zero": (lambda p: jnp.sum(p["a"] ** 2) + p["b"] ** 2, jax.tree.map(
        jnp.zeros_like, PARAMS)),
    "a minimum elsewhere": (lambda p: jnp.sum((p - 1) ** 4) + 7, jnp.ones(5)),
    "a maximum": (jnp.cos, jnp.array(0.0)),
    "an inflection": (lambda p: p**3, jnp.array(0.0)),
    "no influence": (lambda p: 0 * p + 1, jnp.array(2.0)),
    "a zero among entries": (lambda p: jnp.cos(p[0]) + p[1], jnp.array([0.0, 1.0])),
    "a line": (lambda p: 3 * p, jnp.array(2.0)),
    "next to a root": (lambda p: p - 1.0000000001, jnp.array(1.0)),
    "a difference of equals": (lambda p: p[0] - p[1], jnp.ones(2)),
    "steep": (lambda p: jnp.sin(1000 * p), jnp.array(1.0)),
    "steeper on the way": (lambda p: jnp.exp(50 * p), jnp.array(1.0)),
    "many frequencies": (lambda p: jnp.sum(jnp.sin(p * jnp.arange(1.0, 200.0))), jnp.array(1.0)),
    "hundreds of parameters": (
        lambda p: jnp.sum(jnp.tanh(p * jnp.arange(300.0))) + p[3] * p[4], jnp.linspace(-1, 1, 300)),
    "a matrix": (lambda p: jnp.outer(p["a"], p["a"]) * p["b"], PARAMS),
    "single precision": (lambda p: jnp.sum(jnp.sin(p)), SINGLE),
    "small in single precision": (lambda p: 1e-8 * jnp.sum(jnp.exp(p)), SINGLE),
    "a parametrization": (lambda p: p["k"] ** 2, {"k": Positive(jnp.array(3.0))}),
    "a Python number": (lambda p: p["k"] ** 2, {"k": 3.0}),
    "forward mode alone": (
        lambda p: jax.lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1] * p), (0, 1.0))[
            1], jnp.array(1.1)),
    "reverse mode alone": (backward_rule(jnp.sin, lambda x, g: jnp.cos(x) * g), jnp.array(0.4)),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_right_derivatives_pass(name):
    found = certify(*RIGHT[name])
    assert found.passed, found.reason
    assert found.fault == ""
    # Half of the digits of the precision, but for values that round-off of a larger one hides.
    assert found.digits >= (3 if "single" in name else 5)
    assert found.evaluations <= 12


def backward_and_forward(p):
    """A function whose modes differ."""
    return jax.custom_derivatives.linear_call(lambda _, x: 2 * x, lambda _, g: 3 * g, (), p)


CLIPPED = backward_rule(lambda x: x, lambda x, g: jnp.clip(g, -0.1, 0.1))
FAULTS = {
    "a rule wrong by a thousandth": ("derivative", "times that of differences", lambda p: smooth(
        {"a": p["a"], "b": p["b"]}) + forward_rule(
            lambda b: jnp.sin(b), lambda b, t: 1.001 * jnp.cos(b) * t)(p["b"]), PARAMS),
    "a stopped gradient": ("derivative", "stop_gradient",
        lambda p: smooth(p) + 0.01 * jnp.sum(jax.lax.stop_gradient(p["a"]) ** 2), PARAMS),
    "a sign in an adjoint": ("adjoint", "opposite sign", lambda p: jnp.sum(backward_rule(
        jnp.sin, lambda x, g: -jnp.cos(x) * g)(p["a"])) + p["b"] ** 2, PARAMS),
    "one entry of hundreds": ("adjoint", "off by",
        lambda p: jnp.sum(jnp.sin(backward_rule(lambda x: x, lambda x, g: g.at[2].multiply(1.01))(
            p))), jnp.linspace(0.1, 1, 300)),
    "a clipped gradient": ("adjoint", "clipped",
        lambda p: smooth({"a": CLIPPED(p["a"]), "b": p["b"]}), PARAMS),
    "a clipped tangent": ("tangent", "Forward mode", lambda p: smooth(p) + jnp.sum(forward_rule(
        jnp.sin, lambda x, t: jnp.clip(jnp.cos(x) * t, -1e-3, 1e-3))(p["a"])), PARAMS),
    "a parameter that is closed over": ("unused", r"never reads \['a'\]",
        lambda p: smooth({"a": PARAMS["a"], "b": p["b"]}), PARAMS),
    "a kink": ("kink", "slopes on both sides", lambda p: jnp.abs(p - 1.0) + p, jnp.array(1.0)),
    "a kink of one entry": ("kink", "slopes on both sides",
        lambda p: jnp.sum(jnp.maximum(p, 1.0)), jnp.array([1.0, 2.0])),
    "a jump": ("jump", "jumps at the point", lambda p: jnp.where(p > 1.0, 2.0, 1.0) + p,
        jnp.array(1.0)),
    "a jump by its middle": ("jump", "jumps at the point", lambda p: jnp.sign(p - 1.0) + p,
        jnp.array(1.0)),
    "rounded": ("steps", "made of steps", lambda p: jnp.sum(jnp.round(10 * p)),
        jnp.array([1.0, 2.0])),
    "counted": ("integer", "return floating-point", lambda p: jnp.sum(p > 0), jnp.ones(2)),
    "a value that is not finite": ("not finite", "are not finite", lambda p: jnp.log(-p),
        jnp.array(1.0)),
    "a derivative that is not finite": ("not finite", "jnp.where",
        lambda p: jnp.where(p > 0.5, p, jnp.sqrt(p - 1.0)), jnp.array(1.0)),
    "an edge of the domain": ("jump", "not finite beside", lambda p: jnp.where(
        p > 1.0, jnp.nan, p), jnp.array(1.0)),
    "straight through": ("derivative", "differences 0",
        lambda p: p + jax.lax.stop_gradient(jnp.round(p) - p), jnp.array(1.3)),
    "of round-off alone": ("noise", "one of round-off",
        lambda p: 1.0 + 1e-17 * backward_and_forward(p), jnp.array(0.7)),
    "rough": ("noise", "noisy", lambda p: smooth(p) * (1 + 1e-5 * jnp.sin(1e12 * p["b"])), PARAMS),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found_each_with_its_reason(name):
    fault, words, function, params = FAULTS[name]
    found = certify(function, params)
    assert not found.passed
    assert found.fault == fault, found.reason
    assert pytest.approx(0) == (found.digits if fault != "noise" else 0)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(found.reason)
    assert found.evaluations <= 12


def test_modes_that_contradict_each_other_name_the_parameter():
    """A function with both modes of which reverse mode is wrong by a rule of transposition."""
    found = certify(
        lambda p: jnp.sum(jnp.sin(p["a"])) + jnp.sin(backward_and_forward(p["b"])), PARAMS
    )
    assert found.fault == "adjoint"
    assert "forward mode agrees with differences" in found.reason
    assert "['b']" in found.reason


def test_no_more_evaluations_than_promised_are_made():
    """Counted by the function itself, on every way through the examination."""
    for name, (function, params) in itertools.chain(
        ((x, RIGHT[x]) for x in ("smooth", "no influence", "a matrix", "steeper on the way")),
        ((x, FAULTS[x][2:]) for x in ("a stopped gradient", "a sign in an adjoint", "rounded")),
    ):
        count = []

        def counted(p, function=function, count=count):
            jax.debug.callback(lambda _: count.append(1), jax.tree.leaves(p)[0])
            return function(p)

        found = certify(counted, params)
        jax.effects_barrier()
        assert len(count) <= found.evaluations <= 12, name


def test_the_gradient_is_that_of_jax():
    found, exact = certify(smooth, PARAMS), jax.grad(smooth)(PARAMS)
    for x, y in zip(jax.tree.leaves(found.gradient), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-14)  # weights divided out again
    np.testing.assert_allclose(found.value, [smooth(PARAMS)], rtol=1e-15)
    assert certify(lambda p: p["a"] * p["b"], PARAMS).gradient is None


def test_a_certificate_prints_is_a_boolean_and_is_saved(tmp_path):
    found = certify(smooth, PARAMS)
    assert found
    assert str(found).startswith("gradient certified: ")
    assert "<J v, w>" in repr(found)
    found.save(tmp_path / "certificate.json")
    stored = json.loads((tmp_path / "certificate.json").read_text())
    assert stored["passed"] is True
    assert {x["name"] for x in stored["checks"]} >= {"modes", "differences"}
    assert not certify(*FAULTS["a kink"][2:])


def test_more_digits_than_there_are_are_not_certified():
    found = certify(lambda p: jnp.sum(jnp.sin(p)), SINGLE, digits=7)
    assert found.fault == "noise"
    assert "digits are asked for" in found.reason


@pytest.mark.parametrize(
    ("error", "words", "arguments", "settings"),
    [
        (TypeError, "in another order", (PARAMS, smooth), {}),
        (ValueError, "no floating-point number", (lambda p: 1.0 * p, 3), {}),
        (ValueError, "digits is 0", (smooth, PARAMS), {"digits": 0}),
        (ValueError, "returns complex", (lambda p: 1j * p, 3.0), {}),
        (ValueError, "a parameter is complex", (jnp.abs, jnp.array(1j)), {}),
        (ValueError, "returns no array", (lambda p: None, 3.0), {}),
    ],
)
def test_what_cannot_be_examined_is_refused(error, words, arguments, settings):
    with pytest.raises(error, match=words):
        certify(*arguments, **settings)


def test_a_function_without_any_derivative_is_refused():
    host = lambda p: jax.pure_callback(np.sin, jax.typeof(p), p)  # noqa: E731
    with pytest.raises(ValueError, match="no derivative in either mode"):
        certify(host, jnp.array(1.0))
