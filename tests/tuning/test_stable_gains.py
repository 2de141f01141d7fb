"""Gains that stay inside the stability region of a method for every step of an optimizer."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, State, step_limit
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.stability import step_gains
from jaxdae.stability.stability_functions import AdamsBashforth
from jaxdae.tuning import is_parametrization, resolve, StableGains, trainable

SOLVERS = [diffrax.Euler(), diffrax.Heun(), RK4(), AdamsBashforth(2)]
DT = 0.01


def with_raw(gains, raw) -> Baumgarte:
    return eqx.tree_at(lambda g: g.raw, gains, jnp.asarray(raw)).value


def limit_of(value: Any, solver) -> float:
    """The least step limit of all constraints, each of which is one by itself."""
    return step_limit(value, solver, m=1, r=1).limit


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda x: type(x).__name__)
def test_every_raw_array_has_the_margin(solver, rng):
    margin = 1.5
    gains = StableGains(solver, DT, margin=margin)
    # As far out as logistic functions go, and in between.
    for raw in [*rng.normal(size=(12, 3)) * 4, [40.0, 0.1, 40.0], [40.0, 40.0, -40.0]]:
        assert limit_of(with_raw(gains, raw), solver) > margin * DT


@pytest.mark.slow
def test_what_is_reached_is_nearly_all_of_the_region():
    """Of the limit a quarter is left out next to critical damping, a few per cent elsewhere."""
    solver = RK4()
    gains = StableGains(solver, DT)
    far = [with_raw(gains, [40.0, place, 40.0]) for place in np.linspace(-4, 4, 41)]
    used = np.array([DT / limit_of(x, solver) for x in far])
    assert np.all((used > 0.73) & (used < 1))
    assert np.median(used) > 0.93
    np.testing.assert_allclose(limit_of(Baumgarte(1.0, 1.0, far[0].Gamma), solver), DT, rtol=2e-3)


def test_a_method_without_a_limit_is_bounded_by_round_off():
    gains = StableGains(diffrax.ImplicitEuler(), DT)
    far: Any = with_raw(gains, [40.0, 0.0, 40.0])
    assert np.isinf(limit_of(far, diffrax.ImplicitEuler()))
    assert np.sqrt(far.K_P) * DT < 10.0 + 1e-9


@pytest.mark.parametrize(
    ("K_D", "K_P", "Gamma"),
    [(100.0, 4000.0, 30.0), ([100.0, 50.0], [4000.0, 900.0], 5.0), (60.0, [900.0, 950.0], [1.0])],
)
def test_the_value_is_the_one_given(K_D, K_P, Gamma):
    value: Any = StableGains(RK4(), DT, K_D, K_P, Gamma).value
    m = np.broadcast(np.asarray(K_D), np.asarray(K_P)).shape
    # Logarithms and logistic functions, to round-off.
    np.testing.assert_allclose(value.K_D, np.broadcast_to(K_D, m), rtol=1e-12)
    np.testing.assert_allclose(value.K_P, np.broadcast_to(K_P, m), rtol=1e-12)
    np.testing.assert_allclose(value.Gamma, Gamma, rtol=1e-12)
    assert value.K_D.shape == m
    assert value.Gamma.shape == np.shape(Gamma)


def test_the_start_is_that_of_theory():
    value: Any = StableGains(RK4(), DT).value
    theory = step_gains(RK4(), DT)
    np.testing.assert_allclose([value.K_D, value.K_P], [theory.K_D, theory.K_P], rtol=1e-12)


@pytest.mark.slow
def test_gains_are_differentiable_and_only_raw_arrays_are_trained():
    gains = StableGains(RK4(), DT, K_D=[100.0, 60.0], K_P=[4000.0, 900.0])

    def numbers(raw):
        value: Any = with_raw(gains, raw)
        return jnp.concatenate([value.K_D, value.K_P, value.Gamma[None]])

    forward, reverse = (jax.jit(d(numbers))(gains.raw) for d in (jax.jacfwd, jax.jacrev))
    np.testing.assert_allclose(reverse, forward, rtol=1e-12, atol=1e-9)
    h = 1e-6
    steps = h * jnp.eye(gains.raw.size)
    differences = [(numbers(gains.raw + s) - numbers(gains.raw - s)) / (2 * h) for s in steps]
    # Truncation h^2 and round-off 1e-16 / h of gains of some thousands.
    np.testing.assert_allclose(np.transpose(differences), forward, rtol=1e-6, atol=1e-5)
    batch = jax.vmap(numbers)(jnp.stack([gains.raw, 0 * gains.raw]))
    np.testing.assert_allclose(batch[0], numbers(gains.raw), rtol=1e-12)
    trained = [x for x in jax.tree.leaves(eqx.filter(gains, trainable(gains))) if x is not None]
    assert len(trained) == 1
    assert is_parametrization(gains)


@pytest.mark.slow
def test_the_bound_is_twice_continuously_differentiable():
    """Across pieces of the spline, next to critical damping too."""
    gains = StableGains(RK4(), DT)
    bound = lambda x: gains._bound(x[None])[0]  # noqa: E731
    joints, eps = jnp.arange(1.0, 239.0), 1e-9
    for derivative in (bound, jax.grad(bound), jax.grad(jax.grad(bound))):
        left, right = (jax.jit(jax.vmap(derivative))(joints + x) for x in (-eps, eps))
        # The third derivative times the distance.
        np.testing.assert_allclose(left, right, atol=1e-7)


@pytest.mark.slow
def test_single_precision_stays_single():
    gains = StableGains(RK4(), DT)
    narrow = jax.tree.map(lambda x: x.astype(jnp.float32), gains)
    value: Any = narrow.value
    assert value.K_D.dtype == value.K_P.dtype == value.Gamma.dtype == jnp.float32
    np.testing.assert_allclose(value.K_P, resolve(gains).K_P, rtol=1e-5)


def test_it_stands_in_the_place_of_a_stabilization():
    formulation = Multipliers(StableGains(RK4(), DT))
    assert isinstance(resolve(formulation).stabilization, Baumgarte)
    # As it is it stabilizes, too.
    state = State(*CartesianPendulum().start())
    arguments = (0.0, state.q, state.v, jnp.array([0.1]), jnp.array([0.2]))
    gains = formulation.stabilization
    assert gains is not None
    np.testing.assert_array_equal(gains(*arguments), resolve(gains)(*arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": 0.0}, "dt is 0.0, must be finite and positive"),
        ({"margin": 0.5}, "margin is 0.5, must be finite and at least 1"),
        ({"K_D": 20.0}, "give K_D and K_P, or neither"),
        ({"K_D": -20.0, "K_P": 100.0}, "K_D must be positive definite"),
        ({"K_D": 500.0, "K_P": 62500.0}, r"sqrt\(K_P\) is .* times what is admitted"),
        ({"Gamma": 300.0}, r"Gamma is 1\.07\d* times what is admitted .* up to 0.01 s"),
        ({"K_D": 1.0, "K_P": 1e4}, r"\(2 sqrt\(K_P\)\) is \[0\.005\], must be above 0\.05"),
        ({"K_D": np.eye(2), "K_P": np.eye(2)}, r"K_D has shape \(2, 2\); give a number or a"),
        ({"solver": diffrax.LeapfrogMidpoint()}, "LeapfrogMidpoint has no"),
    ],
)
def test_gains_outside_and_calls_that_make_no_sense_are_refused(arguments, message):
    usual: dict[str, Any] = {"solver": RK4(), "dt": DT}
    with pytest.raises(ValueError, match=message):
        StableGains(**(usual | arguments))


@pytest.mark.parametrize("wrong", ["x", None, True, np.array([0.01, 0.02]), State, 0.01j])
def test_a_step_that_is_no_number_is_refused(wrong):
    with pytest.raises(TypeError, match=r"dt is .*, must be a number .* StableGains"):
        StableGains(RK4(), wrong)
    with pytest.raises(TypeError, match=r"margin is .*, must be a number"):
        StableGains(RK4(), DT, margin=wrong)
