"""What JAX makes of a run is the same on both backends: each is compared with its steps by hand."""

import itertools
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.systems import UnitMass
from jaxdae import BackendError, Multipliers, simulate, State
from jaxdae.kernels.integration.run import TIMES
from jaxdae.tuning import EnergyDrift, TrackingError

GIVEN, CONTROLLED = "given", "adaptive"
# Errors are so far below the tolerance that each step is ten times the one before.
PID = diffrax.PIDController(rtol=1.0, atol=1.0)
# Stiffness, coordinate, a saved time; then start, end and first step.
POINTS = np.array([[2.0, 0.5, 0.13, 0.01, 0.31, 0.05], [2.2, 0.4, 0.15, 0.02, 0.33, 0.06]])


class Spring(UnitMass):
    """A nonlinear spring in a field that swings."""

    stiffness: Any

    def force(self, t, q, v, w, u):
        return jnp.cos(3 * t) - self.stiffness * q * jnp.exp(q)


def run(x, point, kind: str, backend: Any = "auto", **settings):
    """By as many of the parameters as are given; the others are those of the point."""
    x = [*x, *point[len(x) :]]
    times: dict[str, Any] = {"t1": 0.3, "dt": 0.1}
    if kind == CONTROLLED:
        times = {"t0": x[3], "t1": x[4], "dt": x[5], "stepsize_controller": PID, "max_steps": 16}
    settings = {"saveat": diffrax.SaveAt(ts=jnp.stack([x[2]]), t1=True), **times, **settings}
    start = State(jnp.stack([x[1]]), jnp.full(1, 0.3))
    return simulate(
        Spring(x[0]), Multipliers(), start, solver=diffrax.Bosh3(), throw=False, backend=backend,
        **settings,
    )  # fmt: skip


def weighted_sum(ts, q, v):
    return jnp.sum(jnp.sin(ts) * q**2 * v + v**3)


def loss(x, point, kind: str, **settings):
    """Of a state within a step and of the last one, and of their times."""
    found = run(x, point, kind, **settings)
    return weighted_sum(found.ts, found.q[:, 0], found.v[:, 0])


def by_hand(x, point, kind: str):
    """The same by the method's formulas."""
    x = [*x, *point[len(x) :]]
    field = lambda t, y: jnp.stack([y[1], Spring(x[0]).force(t, y[0], y[1], None, None)])  # noqa: E731
    controlled = kind == CONTROLLED
    # All of them vary with the first step, but the last step ends where the run does.
    ends = [x[3], x[3] + x[5], x[4]] if controlled else [0.0, 0.1, 0.2, 0.3]
    known = [point[3], point[3] + point[5], point[4]] if controlled else ends
    y, rows = jnp.stack([x[1], 0.3]), []
    for (t, end), (before, after) in zip(
        itertools.pairwise(ends), itertools.pairwise(known), strict=True
    ):
        h = end - t
        k1 = field(t, y)
        k2 = field(t + h / 2, y + h / 2 * k1)
        k3 = field(t + 3 * h / 4, y + 3 * h / 4 * k2)
        y1 = y + h * (2 * k1 + 3 * k2 + 4 * k3) / 9
        if before < point[2] <= after:
            rows = [_hermite((x[2] - t) / h, h, y, y1, k1, field(end, y1))]
        y = y1
    ts, states = jnp.stack([x[2], jnp.asarray(ends[-1])]), jnp.stack([*rows, y])
    return weighted_sum(ts, states[:, 0], states[:, 1])


def _hermite(s, h, y0, y1, f0, f1):
    """The cubic through the ends of a step with their slopes."""
    basis = (1 + 2 * s) * (1 - s) ** 2, s**2 * (3 - 2 * s), s * (1 - s) ** 2, s**2 * (s - 1)
    return basis[0] * y0 + basis[1] * y1 + h * (basis[2] * f0 + basis[3] * f1)


def derivatives(function, x, orders: str):
    """Second derivatives in some orders of modes, each with the first derivative that it is of."""
    modes = {"f": jax.jacfwd, "r": jax.jacrev}

    def twice(outer, inner):
        first = lambda x: 2 * (modes[inner](function)(x),)  # noqa: E731
        return modes[outer](first, has_aux=True)(x)

    return [twice(*order) for order in orders.split()]


@pytest.fixture(scope="module")
def expected():
    """First and second derivatives of the steps by hand, by a number of parameters."""

    def of(kind, count):
        def one(x, point):
            # The rows of both points are in the same steps.
            return by_hand([*x, *point[count:]], POINTS[0], kind)

        both = lambda *given: (jax.jacfwd(one)(*given), jax.hessian(one)(*given))  # noqa: E731
        return jax.jit(jax.vmap(both))(POINTS[:, :count], POINTS)

    return {(kind, count): of(kind, count) for kind, count in ((GIVEN, 2), (CONTROLLED, 6))}


def assert_same(found, expected):
    """Sums of some ten terms, rounded in another order."""
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_the_native_backend_has_the_derivatives_of_the_steps(expected):
    """Two members of a batch: by stiffness and start."""

    def all_of(x, point):
        return derivatives(lambda x: loss(x, point, GIVEN), x, "fr rf rr ff")

    first, second = expected[GIVEN, 2]
    for of_second, of_first in jax.jit(jax.vmap(all_of))(POINTS[:, :2], POINTS):
        assert_same(of_first, first)
        assert_same(of_second, second)


MOVE = np.cos(np.arange(6.0))


@pytest.mark.slow
def test_the_plain_program_has_the_derivatives_of_the_steps(expected):
    """By t0, t1, dt and a saved time as well, where the plain program steps in.

    Second derivatives along one direction of all parameters, of one member.
    """
    function = lambda x: loss(x, POINTS[0], CONTROLLED)  # noqa: E731
    along = lambda x: jax.jvp(jax.grad(function), (x,), (MOVE,))  # noqa: E731
    of_first, of_second = jax.jit(along)(POINTS[0])
    first, second = (x[0] for x in expected[CONTROLLED, 6])
    assert_same(of_first, first)
    assert_same(of_second, second @ MOVE)


@pytest.mark.slow
def test_derivatives_by_hand_are_those_of_differences(expected):
    """By all six, of native runs; times end the steps between which states are interpolated."""
    point, h = POINTS[0], 1e-5
    moved = point + h * np.concatenate([np.eye(6), -np.eye(6)])
    # The point decides on nothing in a run.
    values = jax.jit(jax.vmap(lambda x: loss(x, point, CONTROLLED, backend="native")))(moved)
    slopes = (values[:6] - values[6:]) / (2 * h)
    first, _ = expected[CONTROLLED, 6]
    np.testing.assert_allclose(slopes, first[0], rtol=1e-8)  # h^2 and 1e-16 / h


def test_a_backend_asked_for_by_name_refuses_derivatives_by_times():
    def end(t1, backend):
        found = run(POINTS[0, :2], POINTS[0], CONTROLLED, backend, t1=t1)
        reasons.append(found.why_not_native)
        return found.q[-1, 0]

    reasons: list[str | None] = []
    with pytest.raises(BackendError, match=r"not this derivative: derivatives by times.*'auto'"):
        jax.grad(end)(0.31, "native")
    jax.eval_shape(jax.grad(lambda t1: end(t1, "auto")), 0.31)
    assert reasons == [f"only {TIMES}"]


class Rooted(UnitMass):
    """A body on a spring whose force is not a number below zero."""

    stiffness: Any

    def potential_energy(self, t, q):
        return self.stiffness**2 * jnp.sum(q) ** 3 / 3

    def force(self, t, q, v, w, u):
        return -(self.stiffness**2) * jnp.sqrt(q)


# One that fails on its way, one that fails at once, and one that is no number from the beginning.
STARTS = np.array([1.0, 0.1, 0.0, np.nan, 1.5])[:, None]
GOOD = np.array([True, False, False, False, True])
STEPS = {
    "given, at steps": {"dt": 0.1, "saveat": diffrax.SaveAt(t0=True, steps=True)},
    "adaptive": {
        "stepsize_controller": diffrax.PIDController(1e-3, 1e-3, dtmin=1e-4, force_dtmin=False),
        "saveat": diffrax.SaveAt(ts=jnp.linspace(0, 0.5, 4)), "max_steps": 64,
    },
}  # fmt: skip
COSTS = EnergyDrift(), TrackingError(lambda *tqv: jnp.sqrt(tqv[1]), lambda t: 0.1 * t)


def total(stiffness, starts, counted, steps: str, backend: Any):
    """Of all rows and costs that there are, of the members that count."""

    def one(q, counted):
        start = State(q, jnp.full(1, -0.3))
        found = simulate(
            Rooted(stiffness), Multipliers(), start, t1=0.5, solver=diffrax.Bosh3(), throw=False,
            backend=backend, start_tolerance=None, **STEPS[steps],
        )  # fmt: skip
        rows = jnp.where(jnp.isfinite(found.ts), found.energy**2 + found.q[:, 0] ** 2, 0.0)
        costs = sum(cost(found) for cost in COSTS)
        return jnp.where(found.success & counted, jnp.sum(rows) + costs, 0.0)

    return jnp.sum(jax.vmap(one)(starts, counted))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "backend", "orders"),
    [
        ("given, at steps", "native", "fr"),
        ("adaptive", "native", "rf"),
        # Given steps of the plain backend, with members that fail, are tested with their prices.
        ("adaptive", "plain", ""),
    ],
)
def test_failed_members_leave_the_gradient_of_a_sum_alone(steps, backend, orders):
    def all_of(stiffness, starts, counted):
        function = lambda k: total(k, starts, counted, steps, backend)  # noqa: E731
        return derivatives(function, stiffness, orders) or [jax.grad(function)(stiffness)]

    # diffrax chooses no first step for a start that is no number.
    taken = [0, 1, 2, 4] if (steps, backend) == ("adaptive", "plain") else slice(None)
    starts, good = STARTS[taken], GOOD[taken]
    compiled = jax.jit(all_of)
    failing = compiled(2.0, starts, np.ones_like(good))
    alone = compiled(2.0, np.where(good[:, None], starts, 1.2), good)
    assert all(np.abs(x) > 1e-3 for x in jax.tree.leaves(alone))
    # Plain steps are shared by none.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9), failing, alone)


def end_of(numbers, steps: str, backend: Any, **settings):
    """Where a run ends, by its stiffness and start, and the end time if there is a third."""
    stiffness, q, *t1 = numbers
    return simulate(
        Rooted(stiffness), Multipliers(), State(q[None], jnp.full(1, -0.3)), throw=False,
        solver=diffrax.Bosh3(), start_tolerance=None, backend=backend,
        **{"t1": t1[0] if t1 else 0.5, **STEPS[steps], **settings},
    )  # fmt: skip


FORWARD = jax.jacfwd, diffrax.ForwardMode()
REVERSE = jax.jacrev, diffrax.RecursiveCheckpointAdjoint()


@pytest.mark.parametrize(
    ("steps", "backend", "count", "mode"),
    [
        ("given, at steps", "native", 2, FORWARD),
        ("given, at steps", "native", 2, REVERSE),
        pytest.param("given, at steps", "plain", 2, FORWARD, marks=pytest.mark.slow),
        # By the end time as well, for which the plain program steps in.
        pytest.param("adaptive", "auto", 3, REVERSE, marks=pytest.mark.slow),
    ],
)
def test_derivatives_of_the_end_of_a_failed_run_are_not_numbers(steps, backend, count, mode):
    """By all numbers, also where no step was made that could depend on them."""
    jacobian, adjoint = mode

    def slopes(q):
        place = lambda x: end_of(x, steps, backend, adjoint=adjoint).final_state.q[0]  # noqa: E731
        return jnp.stack(jacobian(place)([jnp.asarray(2.0), q, jnp.asarray(0.5)][:count]))

    # One that fails on its way, one in the first step, and one that does not.
    first, second, third = jax.jit(jax.vmap(slopes))(jnp.array([0.1, -1.0, 1.5]))
    assert np.isnan(first).all()
    assert np.isnan(second).all()
    assert np.all(np.abs(third) > 1e-3)


def test_ends_of_failed_runs_leave_the_gradient_of_a_masked_sum_alone():
    def total(stiffness, starts):
        runs = jax.vmap(lambda q: end_of((stiffness, q), "given, at steps", "native"))(starts)
        return jnp.sum(jnp.where(runs.success, runs.final_state.q[:, 0], 7.0))

    slope = jax.jit(jax.grad(total))
    alone = slope(2.0, jnp.full(3, 1.5))
    np.testing.assert_allclose(3 * slope(2.0, jnp.array([0.1, -1.0, 1.5])), alone, rtol=1e-12)
    assert abs(alone) > 1e-3
