"""Delay and backlash of realizing forces: exact motions, stability limits, derivatives."""

import math
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import newton

import jaxdae
from jaxdae import RealizingForces, simulate, State
from jaxdae.formulations import BacklashLaw, DelayedLaw, LaggedLaw, LinearLaw, SignLaw
from jaxdae.formulations.imperfect_laws import transport
from jaxdae.solvers import RK4


class Held(jaxdae.System):
    """A unit mass on a spring, whose velocity is to be held at zero: `psi' = q'`."""

    spring: float | jax.Array = 0.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * self.spring * q @ q

    def velocity_constraints(self, t, q, v):
        return v


def run(law, start, *, spring=0.0, **settings):
    settings = {
        "t1": 3.0, "start_tolerance": None, **settings,
        "stepsize_controller": diffrax.PIDController(rtol=1e-10, atol=1e-11),
    }  # fmt: skip
    return simulate(Held(spring), RealizingForces(law), start, **settings)


SPRING, K, DELAY = 4.0, 0.8, 0.7
# Of an oscillator whose damper is late: l^2 + 4 + 0.8 l exp(-0.7 l) = 0.
ROOT: Any = newton(lambda x: x**2 + SPRING + K * x * np.exp(-DELAY * x), 0.1 + 2.3j)


def oscillation(t):
    """`q`, `q'` and the force of the damper without delay."""
    q, v = jnp.real(jnp.exp(ROOT * t)), jnp.real(ROOT * jnp.exp(ROOT * t))
    return q, v, -K * v


def before(t):
    return oscillation(t)[2][None]


@pytest.mark.parametrize("terms", [1, 2, 5])
def test_the_history_is_pades_approximation_of_a_delay(terms):
    """By its closed form (Hairer and Wanner, *Solving Ordinary Differential Equations II*)."""
    matrix, inflow = transport(terms)

    def side(degree, s):
        """Numerator or denominator of the approximation of `exp(s)`, times `(2 terms - 1)!`."""
        return sum(
            math.factorial(2 * terms - 1 - k) * math.comb(degree, k) * s**k
            for k in range(degree + 1)
        )

    for s in (0.3, 1.0 + 2.0j, -0.4j):
        through = np.sum(np.linalg.solve(s * np.eye(terms) - matrix, inflow))
        np.testing.assert_allclose(through, side(terms - 1, -s) / side(terms, s), rtol=1e-11)


@pytest.mark.slow
def test_an_oscillator_with_a_late_damper_moves_by_the_root_of_its_quasi_polynomial():
    q, v, _ = oscillation(0.0)
    start = State(q[None], v[None])
    errors = []
    for terms in (2, 4, 6):
        law = DelayedLaw(LinearLaw(K), DELAY, terms, before)
        made = run(law, start, spring=SPRING, saveat=diffrax.SaveAt(t1=True))
        assert made.backend == "native"
        errors.append(float(np.abs(made.last_state.q[0] - oscillation(3.0)[0])))
    # Of order 2 N in `w delay = 1.5`, up to the tolerance of the integration.
    assert 1e-3 < errors[0] < 0.1
    assert errors[1] < 1e-2 * errors[0]
    assert errors[2] < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delay", "gap"])
def test_gradients_by_the_delay_and_the_gap(kind):
    """Both modes, the other backend, and central differences."""

    def end(x, backend, adjoint):
        law = DelayedLaw(LinearLaw(K), x, 3) if kind == "delay" else BacklashLaw(LinearLaw(2.0), x)
        made = simulate(
            Held(SPRING), RealizingForces(law), State([0.0], [1.0]), t1=1.0, dt=0.01, solver=RK4(),
            backend=backend, adjoint=adjoint, start_tolerance=None,
        )  # fmt: skip
        return made.q[-1, 0]

    reverse, forward = diffrax.RecursiveCheckpointAdjoint(), diffrax.ForwardMode()
    native = jax.jit(jax.value_and_grad(lambda x: end(x, "native", reverse)))
    by_forward = (
        jax.jit(jax.jacfwd(lambda x, b=backend: end(x, b, forward)))(0.5)
        for backend in ("plain", "native")
    )
    found = [float(x) for x in (*by_forward, native(0.5)[1])]
    np.testing.assert_allclose(found, found[0], rtol=1e-11)
    value = lambda x: native(x)[0]  # noqa: E731
    # Truncation of the difference; no step ends at a kink within its step.
    np.testing.assert_allclose(found[0], (value(0.5 + 1e-6) - value(0.5 - 1e-6)) / 2e-6, rtol=1e-5)
    assert abs(found[0]) > 1e-3


@pytest.mark.slow
def test_a_mass_crosses_half_the_gap_before_its_damper_stops_it():
    """From the middle: `gap/2 + v_0 / k` in all, whatever the edge is."""
    for edge in (None, 0.02):
        law = BacklashLaw(LinearLaw(5.0), gap=0.4, edge=edge)
        made = run(law, State([0.0], [1.0]), t1=6.0)
        assert made.backend == "native"
        # Up to exp(-(v_0 / k) / edge) = 5e-5 of an edge, and exp(-5 t) of the velocity.
        np.testing.assert_allclose(made.last_state.q, [0.2 + 0.2], rtol=0, atol=2e-6)
        np.testing.assert_allclose(made.saved.memory[-1], 0.2, rtol=0, atol=2e-6)


def test_a_crossing_lacks_the_gap_times_the_force_of_work():
    """Of a law of constant size, for each constraint, from one side of its gap to the other."""
    gap, bound = np.array([0.3, 0.1]), 2.0
    law = BacklashLaw(lambda *x: -bound * jnp.sign(x[0]), jnp.asarray(gap))

    def rate(t, y):
        psi = np.array([np.sin(t), 0.5 * np.sin(t)])
        args = jnp.asarray(psi), t, None, None
        z = jnp.asarray(y[:2])
        full = bound * np.abs(psi)
        return np.concatenate([law.rate(z, *args), full + np.asarray(law.force(z, *args)) * psi])

    # Half a period of motions that are long beside the gap, from the other side of it.
    start = np.concatenate([-gap / 2, np.zeros(2)])
    result = solve_ivp(rate, (0.0, np.pi), start, rtol=1e-8, atol=1e-10, max_step=0.01)
    np.testing.assert_allclose(result.y[2:, -1], bound * gap, rtol=1e-6)


BAD = [
    (lambda: DelayedLaw(LinearLaw(1.0), -0.1), ValueError, "delay must be positive definite"),
    (lambda: DelayedLaw(LinearLaw(1.0), 0.1, 0), ValueError, "terms must be an integer, at least"),
    (lambda: DelayedLaw(LinearLaw(1.0), 0.1, 2.0), ValueError, r"at least 1; got 2\.0"),  # pyright: ignore[reportArgumentType]
    (lambda: DelayedLaw(SignLaw(1.0), 0.1), TypeError, "SignLaw gives no force that could be late"),
    (lambda: DelayedLaw(LinearLaw(1.0), 0.1, 2, 3.0), TypeError, r"history is 3\.0; give a func"),  # pyright: ignore[reportArgumentType]
    (lambda: BacklashLaw(LinearLaw(1.0), 0.0), ValueError, "gap must be positive definite"),
    (lambda: BacklashLaw(LinearLaw(1.0), 0.1, 0.0), ValueError, "edge must be positive definite"),
    (lambda: BacklashLaw(LinearLaw(1.0), 0.1, 0.05), ValueError, r"edge is 0\.05, must be less th"),
    (lambda: BacklashLaw(SignLaw(1.0), 0.1), TypeError, "no force that could be let through a gap"),
]


@pytest.mark.parametrize(("build", "kind", "message"), BAD)
def test_inadmissible_parameters_are_refused_when_built(build, kind, message):
    with pytest.raises(kind, match=message):
        build()


SIZES: list[Any] = [
    (DelayedLaw(LinearLaw(jnp.ones(2)), 0.1), r"k has shape \(2,\), which does not fit 1 constr"),
    (DelayedLaw(LinearLaw(1.0), jnp.ones(1)), r"delay has shape \(1,\); give one number"),
    (BacklashLaw(LinearLaw(1.0), jnp.ones(2)), r"gap has shape \(2,\), which does not fit 1 con"),
    (BacklashLaw(LinearLaw(1.0), 1.0, jnp.full(2, 0.1)), r"edge has shape \(2,\), which does not"),
]


def test_a_history_is_read_before_the_start():
    """Of forces that are polynomials of its degree it is exact, at any time of start."""
    law = DelayedLaw(LinearLaw(1.0), 0.5, 4, lambda t: jnp.stack([t**3 - t]))
    z = law.initial(jnp.zeros(1), jnp.asarray(2.0), None, None)
    late = law.force(z, jnp.zeros(1), 2.0, None, None)
    np.testing.assert_allclose(late, 1.5**3 - 1.5, rtol=1e-14)


def two(psi_dot, t, q, v):
    return jnp.ones(2)


def late_of(t, q):
    return q + t


def of_time(t):
    return np.array([float(t)])


# What a type checker would refuse.
NUMBER: Any = lambda *_: 0.0  # noqa: E731
UNDECLARED: Any = LinearLaw
SHAPES: list[Any] = [
    *SIZES,
    (DelayedLaw(two, 0.1), r"the law of DelayedLaw returned shape \(2,\); it must return one fo"),
    (BacklashLaw(two, 0.1), r"the law of BacklashLaw returned shape \(2,\); it must return one f"),
    (LaggedLaw(NUMBER, 0.1), r"the law of LaggedLaw returned shape \(\); it must return"),
    (DelayedLaw(UNDECLARED, 0.1), r"the law of DelayedLaw is declared with the parameters"),
    (
        DelayedLaw(LinearLaw(1.0), 0.1, history=lambda t: jnp.stack([t, t])),
        r"history returned shape \(2,\); it must return one force for each of the 1 constraints",
    ),
    (DelayedLaw(LinearLaw(1.0), 0.1, history=late_of), "missing 1 required positional"),
    (DelayedLaw(LinearLaw(1.0), 0.1, history=of_time), "cannot be traced by JAX.*Python number"),
    (
        DelayedLaw(LinearLaw(1.0), 0.1, history=lambda t: jnp.log(t)[None]),
        r"DelayedLaw\.initial is not finite at t = 0 s: entry 0 is nan.*its history before the st",
    ),
]


@pytest.mark.parametrize(("law", "message"), SHAPES)
def test_laws_and_histories_that_give_no_forces_are_refused_in_words(law, message):
    with pytest.raises(ValueError, match=message):
        run(law, State([0.0], [1.0]))
