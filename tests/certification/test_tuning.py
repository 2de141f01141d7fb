"""`tune` stops where its gradient may not be followed, with the reason."""

import warnings

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxdae import tune


def bowl(p):
    return jnp.sum((p - 3.0) ** 2) + jnp.sum(p[0] * p[1]) ** 2


def stopped(p):
    return bowl(p) + 5.0 * jax.lax.stop_gradient(p[0])


def kinked_on_the_way(p):
    """A fall of slope one down to a kink, which steps of 1/8 reach, and stay."""
    return jnp.abs(p[0])


START = jnp.array([1.0, 2.0])


@pytest.mark.parametrize("optimizer", [optax.adam(0.1), "l-bfgs", "slsqp"])
def test_a_run_with_a_wrong_gradient_stops_at_once(optimizer):
    with pytest.warns(UserWarning, match=r"not certified \(derivative\).*stop_gradient"):
        found = tune(stopped, START, optimizer=optimizer, steps=30, certify=True)
    assert found.stop_reason == "uncertified"
    assert found.steps == 0
    assert found.gradient_certificate.fault == "derivative"
    assert "not certified" in found.summary()


def test_a_run_with_a_right_gradient_goes_on_as_it_would():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = tune(bowl, START, optimizer=optax.adam(0.1), steps=12)
        found = tune(bowl, START, optimizer=optax.adam(0.1), steps=12, certify=True)
    assert found.loss == plain.loss
    assert found.gradient_certificate.passed
    assert plain.gradient_certificate is None


def test_a_run_stops_where_its_gradient_is_none_any_more():
    with pytest.warns(UserWarning, match="kink"):
        found = tune(
            kinked_on_the_way, jnp.array([1.0]), optimizer=optax.sgd(0.125), steps=30, certify=True
        )
    assert found.stop_reason == "uncertified"
    assert found.steps == 10
