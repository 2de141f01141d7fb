"""What every solver of constrained equations promises: orders, constraints, derivatives.

On one motion, of a mass that depends on its place on a rope of varying length from a support that
moves, so fast that constraints pull with up to twice the weight; beside its motion by one angle.
"""

from functools import partial
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import DrivenPendulum, MassOnCircle
from jaxdae.models.chain import Chain
from jaxdae.solvers import (
    AdamsBashforth,
    GeneralizedAlpha,
    HalfExplicit,
    Projected,
    RadauIIA,
    Rattle,
    RK4,
)
from jaxdae.systems import evaluate


class Promise(NamedTuple):
    """What is promised of a solver.

    Args:
        solver: it.
        steps: in a second; of a second run, four times as many.
        order: of positions, velocities and multipliers.
        rows: order of rows between steps, where it is another one.
    """

    solver: Any
    steps: int
    order: int
    rows: int = 0


PROMISES = {
    "rattle-2": Promise(Rattle(2), 32, 2),
    "rattle-4": Promise(Rattle(4), 16, 4),
    "rattle-6": Promise(Rattle(6), 8, 6),
    "alpha-2": Promise(GeneralizedAlpha(0.8), 32, 2),
    "alpha-3": Promise(GeneralizedAlpha(0.8, index=3), 32, 2),
    "half-explicit": Promise(HalfExplicit(), 64, 4),
    "radau": Promise(RadauIIA(), 16, 5, rows=4),
    "projected": Promise(Projected(RK4()), 64, 4),
    "symmetric": Promise(Projected(RK4(), symmetric=True), 16, 4),
    "adams-5": Promise(AdamsBashforth(5), 128, 5),
}
# Steps of the Adams method, which enforces no constraints, leave them by its errors.
ENFORCING = [name for name in PROMISES if name != "adams-5"]
QUICK = ("rattle-6", "radau")


def each(*left_out):
    """Solvers by name, one or two of which are tested where there is little time."""
    names = [x for x in PROMISES if x not in left_out]
    marked = [pytest.param(x, marks=() if x in QUICK else pytest.mark.slow) for x in names]
    return pytest.mark.parametrize("name", marked)


# At ends of steps and at thirds, the same third of a step in steps of a fourth.
TIMES = np.arange(1, 7) / 3
AT_ENDS = TIMES % 1 == 0


def start(rope: Any = 1.0, angle: Any = 0.5, rate: Any = 2.0):
    """On the rope at `t = 0`, by its angle [rad] and the rate of that [rad/s]."""
    length, along = rope + 0.1, jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    q = length * jnp.stack([jnp.sin(angle), -jnp.cos(angle)])
    return jaxdae.State(q, length * rate * along + jnp.array([0.6, 0.0]))


class ByAngle(jaxdae.System):
    """The same motion without constraints."""

    def place(self, t, q):
        """Where the mass is, by the angle of the rope."""
        length = 1.0 + 0.1 * jnp.cos(2 * t)
        support = jnp.stack([0.2 * jnp.sin(3 * t), 0.0])
        return support + length * jnp.stack([jnp.sin(q[0]), -jnp.cos(q[0])])

    def motion(self, t, q, v):
        """Where it is, and how fast."""
        return jax.jvp(self.place, (t, q), (jnp.ones_like(t), v))

    def kinetic_energy(self, t, q, v):
        return DrivenPendulum().kinetic_energy(t, *self.motion(t, q, v))

    def potential_energy(self, t, q):
        return DrivenPendulum().potential_energy(t, self.place(t, q))


@pytest.fixture(scope="module")
def exact():
    """Positions, velocities and multipliers, by short steps of the angle."""
    by_angle = ByAngle()
    made = jaxdae.simulate(
        by_angle, jaxdae.Multipliers(), jaxdae.State(jnp.array([0.5]), jnp.array([2.0])), t1=2.0,
        solver=diffrax.Dopri8(), dt=1 / 384, saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
    )  # fmt: skip

    @jax.jit
    @jax.vmap
    def states(t, q, v):
        q, v = by_angle.motion(t, q, v)
        d = evaluate(DrivenPendulum(), t, q, v, jnp.zeros(0), None)
        matrix = jnp.block([[d.mass, d.jac.T], [d.jac, jnp.zeros((1, 1))]])
        return q, v, jnp.linalg.solve(matrix, jnp.concatenate([d.force, -d.gamma]))[2:]

    return [np.asarray(x) for x in states(jnp.asarray(TIMES), made.q, made.v)]


def run(name, backend, state, *, system=None, t1=2.0, ts: Any = TIMES, **options):
    return jaxdae.simulate(
        DrivenPendulum() if system is None else system, jaxdae.Multipliers(), state, t1=t1,
        solver=PROMISES[name].solver, backend=backend, saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
        **options,
    )  # fmt: skip


def values(found):
    return [np.asarray(x) for x in (found.q, found.v, found.multipliers)]


def violated(found):
    return max(np.abs(x).max() for x in (found.violation.phi, found.violation.phi_dot))


@each()
def test_positions_velocities_and_multipliers_have_the_order(name, exact):
    """At steps and at rows between, by kernels; the plain backend makes the same of the first."""
    promise, errors = PROMISES[name], []
    for count in (promise.steps, 4 * promise.steps):
        native = run(name, "native", start(), dt=1 / count)
        each = [np.abs(a - b).max(1) for a, b in zip(values(native), exact, strict=True)]
        errors.append([[x[AT_ENDS].max(), x[~AT_ENDS].max()] for x in each])
        if name in ENFORCING:
            assert violated(native) < 1e-12
        if count == promise.steps:
            plain = run(name, "plain", start(), dt=1 / count)
            for one, other in zip(values(plain), values(native), strict=True):
                # Round-off of the steps.
                np.testing.assert_allclose(one, other, atol=1e-12 * np.abs(one).max())
            if name in ENFORCING:
                assert violated(plain) < 1e-12
    at_steps, between = (np.log(np.divide(*errors)) / np.log(4)).T
    np.testing.assert_allclose(at_steps, promise.order, atol=0.15)
    np.testing.assert_allclose(between, promise.rows or promise.order, atol=0.15)


@pytest.mark.slow
def test_rows_between_steps_of_order_eight_are_of_order_six(exact):
    errors = []
    for count in (16, 64):
        found = jaxdae.simulate(
            DrivenPendulum(), jaxdae.Multipliers(), start(), t1=2.0, dt=1 / count,
            solver=Projected(diffrax.Dopri8()), saveat=diffrax.SaveAt(ts=jnp.asarray(TIMES)),
        )  # fmt: skip
        assert violated(found) < 1e-12
        errors.append(np.abs(found.v - exact[1]).max(1)[~AT_ENDS].max())
    np.testing.assert_allclose(np.log(errors[0] / errors[1]) / np.log(4), 6, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rattle-2", "alpha-2", "half-explicit", "radau"])
def test_sixty_coordinates_stay_on_their_constraints(name):
    links = 30
    system = Chain([1 / links] * links, [1.0] * links)
    q = jnp.stack([jnp.arange(1.0, links + 1) / links, jnp.zeros(links)], axis=1).ravel()
    state, times = jaxdae.State(q, jnp.zeros(2 * links)), [0.003, 0.005, 0.009, 0.01]
    found = run(name, "plain", state, system=system, t1=0.01, ts=times, dt=0.005)
    assert violated(found) < 1e-12
    # The weight of some links is on the first one only after the time of the whole fall.
    np.testing.assert_allclose(found.q[-1, 1], -0.5 * 9.81 * 1e-4, rtol=0.5)


@each("rattle-4", "alpha-3")
def test_a_run_back_in_time_returns(name):
    """At its end, and at a row between steps."""
    there = run(name, "native", start(), t1=1.0, ts=[0.4, 1.0], dt=1 / 128)
    back = run(name, "native", there.last_state, t0=1.0, t1=0.0, ts=[0.4, 0.0], dt=-1 / 128)
    # The order of methods that are not symmetric, each way.
    tolerance = 1e-2 if PROMISES[name].order == 2 else 1e-5
    np.testing.assert_allclose(back.q, [there.q[0], start().q], atol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((x, "native") for x in ("rattle-2", "half-explicit", "radau", "alpha-2")),
     *(("adams-5", x) for x in ("native", "plain"))],
)  # fmt: skip
def test_a_member_that_is_no_number_is_alone(name, backend):
    def end(rate):
        options: dict[str, Any] = {"throw": False, "start_tolerance": None, "dt": 0.05}
        return run(name, backend, start(rate=rate), t1=0.1, ts=[0.1], **options).q[-1, 0]

    def total(rates):
        ends = jax.vmap(end)(rates)
        return jnp.sum(jnp.where(jnp.isfinite(ends), ends, 0.0)), ends

    (_, ends), slopes = jax.value_and_grad(total, has_aux=True)(jnp.array([2.0, jnp.nan, 2.0]))
    assert np.isfinite(ends).tolist() == [True, False, True]
    assert ends[0] == ends[2]
    assert slopes[0] == slopes[2] != 0
    # In kernels a member that is no number has no derivative either.
    assert backend == "native" or slopes[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rattle-2", "half-explicit", "radau"])
def test_constraints_may_depend_on_each_other(name):
    """Motion and derivatives are those of one of them; kernels, which do not pivot, say so."""
    state, how = MassOnCircle().start(), {"t1": 0.2, "ts": [0.2], "dt": 0.05}

    def end(scale, copies):
        moving, ahead = jaxdae.State(state.q, scale * state.v), diffrax.ForwardMode()
        return run(name, "plain", moving, system=MassOnCircle(copies), adjoint=ahead, **how).q[-1]

    one, several = (jax.jvp(lambda x, n=n: end(x, n), (1.0,), (1.0,)) for n in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-10)  # round-off over a small diagonal
    with pytest.raises(jaxdae.BackendError, match="constraints may depend on each other"):
        run(name, "native", state, system=MassOnCircle(3), **how)


# Of solvers in kernels, those whose derivatives are also compared with the plain program's.
ALSO_PLAIN = ("rattle-6", "alpha-2", "radau", "adams-5")


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in PROMISES if x != "rattle-4"])
def test_derivatives_in_both_modes_are_those_of_differences(name):
    """By a length, a place and a velocity, of rows between steps as well."""

    def value(x, backend="native", adjoint=None):
        found = run(
            name, backend, start(*x), system=DrivenPendulum(x[0]), t1=0.15, dt=0.05,
            ts=[0.02, 0.05, 0.11, 0.15], adjoint=adjoint,
        )  # fmt: skip
        weights = jnp.cos(jnp.arange(8.0)).reshape(4, 2)
        parts = weights * found.q, weights * found.v, weights[:, :1] * found.multipliers
        return sum(jnp.sum(x) for x in parts)

    x, along = jnp.array([1.0, 0.5, 2.0]), jnp.array([0.6, -0.3, 0.8])
    h = 1e-3
    near, far = (value(x + s * along) - value(x - s * along) for s in (h, 2 * h))
    found = []
    for backend in ("native", "plain") if name in ALSO_PLAIN else ("native",):
        ahead = partial(value, backend=backend, adjoint=diffrax.ForwardMode())
        reverse = jax.jit(jax.grad(partial(value, backend=backend)))(x)
        forward = jax.jit(lambda x, ahead=ahead: jax.jvp(ahead, (x,), (along,))[1])(x)
        np.testing.assert_allclose(forward, reverse @ along, rtol=1e-10)
        found.append(reverse)
    np.testing.assert_allclose(found[0], found[-1], rtol=1e-10)
    np.testing.assert_allclose(found[0] @ along, (8 * near - far) / (12 * h), rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_go_through_what_steps_hand_on():
    def end(rate):
        return run("adams-5", "native", start(rate=rate), t1=0.3, ts=[0.3], dt=0.05).q[-1, 0]

    slope, h = jax.jit(jax.grad(end)), 1e-3
    found = jax.jit(jax.grad(jax.grad(end)))(2.0)
    near, far = (slope(2.0 + s) - slope(2.0 - s) for s in (h, 2 * h))
    np.testing.assert_allclose(found, (8 * near - far) / (12 * h), rtol=1e-8)
