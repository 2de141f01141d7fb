"""Given integrals: invariant, attracting, and harmless to the exact motion."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.control import PartialIntegrals, right_inverse, StabilizedIntegrals
from jaxdae.models.kepler import Kepler
from jaxdae.solvers import RK4

ORBIT = Kepler(eccentricity=0.3)
START = ORBIT.start_state()
FREE = jaxdae.Multipliers()
PERIOD = float(ORBIT.period())


def swirl(t, x):
    return jnp.stack([x[1] * x[2], t - x[0], x[0] * x[1]])


def sphere(t, x):
    return jnp.stack([x @ x - 1 - t**2, x[2] - 0.1 * jnp.sin(t)])


@pytest.mark.parametrize("weight", [None, jnp.array([1.0, 2.0, 5.0]), "matrix"])
def test_the_right_inverse_is_the_least_in_its_metric(weight, rng):
    jac, rhs, factor = rng.normal(size=(2, 3)), rng.normal(size=2), rng.normal(size=(3, 3))
    spd = factor @ factor.T + np.eye(3)
    given = jnp.asarray(spd) if isinstance(weight, str) else weight
    W = (
        spd
        if isinstance(weight, str)
        else np.eye(3) * np.asarray(1.0 if weight is None else weight)
    )
    expected = np.linalg.solve(W, jac.T) @ np.linalg.solve(jac @ np.linalg.solve(W, jac.T), rhs)
    for rcond in (None, 1e-9):
        x = right_inverse(jnp.asarray(jac), jnp.asarray(rhs), given, rcond)
        np.testing.assert_allclose(x, expected, rtol=1e-11)
    dependent = right_inverse(
        jnp.array([[1.0, 2.0], [2.0, 4.0]]), jnp.array([1.0, 2.0]), rcond=1e-9
    )
    np.testing.assert_allclose(dependent, [0.2, 0.4], rtol=1e-13)


@pytest.mark.parametrize("gain", [2.0, jnp.array([[2.0, 0.5], [0.5, 1.0]]), "callable"])
def test_integrals_obey_the_rate_that_was_chosen(gain, rng):
    """`df/dt = Phi` off `f = 0` as well, by Erugin's sum of a tangent and a normal part.

    It is `X_tau + F^+ (Phi - f_t)` with `F X_tau = 0`, here from pseudo-inverses written out.
    """
    law = (lambda t, x, f: -(1 + t + x @ x) * f**3) if isinstance(gain, str) else gain
    t, x = jnp.asarray(0.7), jnp.asarray(rng.normal(size=3))
    found = PartialIntegrals(swirl, sphere, law)(t, x)
    f, f_dot = jax.jvp(sphere, (t, x), (jnp.ones(()), found))
    matrix = jnp.eye(2) * law if isinstance(law, float) else law
    wanted = np.asarray(law(t, x, f) if callable(law) else -jnp.asarray(matrix) @ f)
    np.testing.assert_allclose(f_dot, wanted, rtol=1e-11, atol=1e-12)
    jac = np.asarray(jax.jacfwd(sphere, 1)(t, x))
    inverse = np.linalg.pinv(jac)
    tangent = swirl(t, x) - inverse @ (jac @ swirl(t, x))
    explicit = np.array([-2 * t, -0.1 * np.cos(t)])
    np.testing.assert_allclose(found, tangent + inverse @ (wanted - explicit), rtol=1e-12)
    single = PartialIntegrals(swirl, sphere, 2.0)(jnp.float32(t), x.astype(jnp.float32))
    assert single.dtype == jnp.float32


@pytest.mark.slow
def test_a_violation_decays_and_diffrax_can_run_it():
    term = diffrax.ODETerm(PartialIntegrals(swirl, sphere, 2.0))  # pyright: ignore[reportArgumentType]
    control = diffrax.PIDController(rtol=1e-10, atol=1e-10)
    x0 = jnp.array([0.9, 0.8, -0.3])
    sol = diffrax.diffeqsolve(
        term, diffrax.Dopri8(), 0.0, 1.5, None, x0, stepsize_controller=control, max_steps=1000
    )
    assert sol.ys is not None
    expected = np.exp(-3.0) * np.asarray(sphere(0.0, x0))
    np.testing.assert_allclose(sphere(1.5, sol.ys[-1]), expected, atol=1e-8)


def kepler_field(t, x):
    q, v = x[:2], x[2:]
    return jnp.concatenate([v, -q / jnp.linalg.norm(q) ** 3])


def kepler_integrals(t, x):
    values = ORBIT.energy_and_momentum(t, x[:2], x[2:])
    return values - ORBIT.energy_and_momentum(t, START.q, START.v)


@pytest.mark.slow
def test_stabilizing_first_integrals_is_the_simple_form_and_leaves_the_exact_motion(rng):
    """For true integrals `F X + f_t = 0`, so the construction is `X + F^+ Phi`."""
    x = jnp.asarray(rng.normal(size=4))
    jac = np.asarray(jax.jacfwd(kepler_integrals, 1)(0.0, x))
    simple = kepler_field(0.0, x) - 2.0 * np.linalg.pinv(jac) @ np.asarray(kepler_integrals(0.0, x))
    full = PartialIntegrals(kepler_field, kepler_integrals, 2.0)
    np.testing.assert_allclose(full(0.0, x), simple, rtol=1e-10)
    exact = jnp.concatenate(ORBIT.exact_motion(0.9))
    # off by the round-off of the integrals
    np.testing.assert_allclose(full(0.0, exact), kepler_field(0.0, exact), atol=1e-13)
    formulation = StabilizedIntegrals.at(START, ORBIT.energy_and_momentum, 2.0, inner=FREE)
    state = jaxdae.State(x[:2], x[2:])
    field = formulation.vector_field(ORBIT, 0.0, state, None)
    np.testing.assert_allclose(jnp.concatenate([field.q, field.v]), simple, rtol=1e-10)


def orbits(formulation, count, steps=60, **options):
    saveat = diffrax.SaveAt(ts=jnp.arange(count + 1) * PERIOD)
    max_steps = count * steps + 8
    options = {
        "max_steps": max_steps,
        "dt": PERIOD / steps,
        "solver": RK4(),
        "saveat": saveat,
    } | options
    return jaxdae.simulate(ORBIT, formulation, START, t1=count * PERIOD, **options)


def drift(run):
    values = np.asarray(jax.vmap(ORBIT.energy_and_momentum)(run.ts, run.q, run.v))
    return np.abs(values - values[0]).max(axis=1)


@pytest.mark.slow
def test_stabilized_integrals_stay_bounded_where_the_plain_run_drifts():
    plain = drift(orbits(FREE, 1000))
    formulation = StabilizedIntegrals.at(START, ORBIT.energy_and_momentum, 1.0, inner=FREE)
    kept = drift(orbits(formulation, 1000))
    # plain: secular, twice the time twice the drift
    assert plain[1000] / plain[500] == pytest.approx(2.0, abs=0.15)
    # stabilized: bounded, the second half no worse than the first, far below the plain drift
    assert kept[501:].max() <= 1.05 * kept[:501].max()
    assert kept.max() < 0.05 * plain[1000]


@pytest.mark.slow
def test_dependent_integrals_are_stabilized_by_rank():
    """All four integrals of Kepler's problem have rank three."""
    formulation = StabilizedIntegrals.at(START, ORBIT.all_integrals, 1.0, inner=FREE, rcond=1e-6)
    run = orbits(formulation, 20)
    values = np.asarray(jax.vmap(ORBIT.all_integrals)(run.ts, run.q, run.v))
    plain = orbits(FREE, 20)
    lost = np.asarray(jax.vmap(ORBIT.all_integrals)(plain.ts, plain.q, plain.v))
    assert np.all(np.abs(values - values[0]).max(axis=0) < 0.2 * np.abs(lost - lost[0]).max(axis=0))


@pytest.mark.slow
def test_gradients_agree_in_both_modes_and_with_finite_differences():
    def cost(gain, adjoint=None):
        formulation = StabilizedIntegrals.at(START, ORBIT.energy_and_momentum, gain, inner=FREE)
        options = {"saveat": None, "adjoint": adjoint}
        run = orbits(formulation, 1, steps=20, **options)
        return jnp.sum((run.q - ORBIT.start()[0]) ** 2)

    gain, h = jnp.asarray(0.8), 1e-4
    value_and_slope = jax.jit(jax.value_and_grad(cost))
    reverse = float(value_and_slope(gain)[1])
    forward = float(jax.jit(jax.jacfwd(lambda g: cost(g, diffrax.ForwardMode())))(gain))
    assert forward == pytest.approx(reverse, rel=1e-9)
    value = lambda gain: value_and_slope(gain)[0]  # noqa: E731
    # truncation h^2, round-off / h of a cost of size 50 and a slope of 1e-2
    assert float((value(gain + h) - value(gain - h)) / (2 * h)) == pytest.approx(reverse, rel=1e-5)
    assert abs(reverse) > 1e-4


@pytest.mark.slow
def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"gain must be positive definite, but has a value -1"):
        PartialIntegrals(swirl, sphere, -1.0)
    with pytest.raises(ValueError, match=r"weight must be positive definite, but has a value 0"):
        StabilizedIntegrals(FREE, ORBIT.energy_and_momentum, jnp.zeros(2), 1.0, weight=0.0)
    wrong = StabilizedIntegrals(FREE, ORBIT.energy_and_momentum, jnp.zeros(3), 1.0)
    with pytest.raises(ValueError, match=r"integrals have shape \(2,\), their values \(3,\); both"):
        jaxdae.simulate(ORBIT, wrong, START, t1=1.0)
