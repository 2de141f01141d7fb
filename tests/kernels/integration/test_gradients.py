"""Derivatives of native integrations: forward, reverse, by differences, and those of diffrax."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae import BackendError, Multipliers, simulate, State
from jaxdae.kernels.integration import run as integration
from jaxdae.kernels.llvm.batch_loops import Lanes
from jaxdae.solvers import RK4

SaveAt, PID = diffrax.SaveAt, diffrax.PIDController
TIMES = jnp.linspace(0, 1, 7)
ADAPTIVE = {
    "solver": diffrax.Bosh3(), "stepsize_controller": PID(rtol=1e-4, atol=1e-6), "max_steps": 64,
}  # fmt: skip
# Fixed steps; rows at times within and at the ends of steps; rows at steps.
CASES = {
    "fixed, at steps": {"solver": RK4(), "dt": 0.1, "saveat": SaveAt(t0=True, t1=True, steps=3)},
    "fixed, at times": {"solver": RK4(), "dt": 0.1, "saveat": SaveAt(t0=True, ts=TIMES)},
    "adaptive, at steps": ADAPTIVE | {"saveat": SaveAt(t0=True, steps=True)},
    "adaptive, at times": ADAPTIVE | {"saveat": SaveAt(t0=True, ts=TIMES, t1=True)},
}


class Springs(jaxdae.System):
    """Unit masses on coupled nonlinear springs."""

    stiffness: jax.Array
    coupling: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        uncoupled = self.stiffness @ (0.5 * q**2 + 0.1 * q**4)
        return uncoupled + self.coupling * jnp.sin(t) * q[0] * q[1]


# Not of how LLVM optimizes: as quickly as JAX's programs are made.
QUICK = pytest.mark.quick
POINT = {
    "q": jnp.array([0.5, 0.2]),
    "v": jnp.array([0.0, 0.3]),
    "stiffness": jnp.array([2.0, 3.0]),
    "coupling": jnp.array(0.5),
}


def simulated(x, backend: Any = "native", adjoint=None, **settings):
    system = Springs(x["stiffness"], x["coupling"])
    start = State(x["q"], x["v"], jnp.zeros(0))
    settings = {"t1": 1.0, "throw": False, "start_tolerance": None, **settings}
    found = simulate(system, Multipliers(), start, backend=backend, adjoint=adjoint, **settings)
    assert found.backend == backend, found.why_not_native
    return found


def weighted_sum(ts, q, v, end):
    """Every row that was reached, each with its own weight, and the final state."""
    rows = jnp.where(jnp.isfinite(ts)[:, None], jnp.sin(q) + v**2, 0.0)
    weights = 1 + jnp.arange(rows.size).reshape(rows.shape) / 10
    return jnp.sum(rows * weights) + jnp.sum(end.v**3)


def loss(x, **settings):
    found = simulated(x, **settings)
    return weighted_sum(found.ts, found.q, found.v, found.last_state)


def assert_close(found, expected, rtol):
    """Relative to the largest entry of each leaf."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.fixture(scope="module")
def case(request):
    """Settings, and the native adjoint's function of value and gradient, and what it gives."""
    settings = CASES[request.param]
    reverse = jax.jit(jax.value_and_grad(lambda x: loss(x, **settings)))
    return settings, reverse, *reverse(POINT)


@pytest.mark.slow
def test_reverse_is_that_of_diffrax():
    """Along adaptive steps; those of given ones are compared with the method's formulas elsewhere.

    Its forward mode has the same numbers as its reverse mode, and compiles in half the time.
    One program of diffrax saves at steps and at times.
    """
    cases = [settings for name, settings in CASES.items() if name.startswith("adaptive")]
    both = SaveAt(subs=[x["saveat"].subs for x in cases])
    adjoint = diffrax.ForwardMode()

    def plain(x):
        found = simulated(x, "plain", adjoint, **cases[0] | {"saveat": both})
        rows = zip(found.ts, found.saved, strict=True)
        losses = [weighted_sum(ts, y.q, y.v, found.final_state) for ts, (y, _) in rows]
        return losses, losses

    def native(x):
        return [jax.value_and_grad(lambda x, y=y: loss(x, **y))(x) for y in cases]

    slopes, values = jax.jit(jax.jacfwd(plain, has_aux=True))(POINT)
    # The ends of adaptive steps differ by the round-off of an error estimate, 1e-16 / 1e-4.
    assert_close(jax.jit(native)(POINT), list(zip(values, slopes, strict=True)), rtol=1e-10)


BOTH = pytest.mark.parametrize("case", ["fixed, at times", "adaptive, at steps"], indirect=True)


@QUICK
@BOTH
def test_forward_is_reverse(case):
    settings, _, _, gradient = case
    forward = jax.jit(jax.jacfwd(lambda x: loss(x, **settings)))(POINT)
    assert_close(forward, gradient, rtol=1e-11)  # as above


@QUICK
@pytest.mark.parametrize("case", ["fixed, at times"], indirect=True)
def test_gradients_are_those_of_differences(case):
    settings, _, _, gradient = case
    direction = jax.tree.map(lambda x: jnp.cos(1.0 + jnp.arange(x.size)).reshape(x.shape), POINT)
    at = lambda h: loss(jax.tree.map(lambda x, d: x + h * d, POINT, direction), **settings)  # noqa: E731
    h = 1e-5
    slope = (jax.jit(at)(h) - jax.jit(at)(-h)) / (2 * h)
    along = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), gradient, direction)))
    # Differences of order h^2 and round-off 1e-16 / h.
    np.testing.assert_allclose(along, slope, rtol=1e-7)


@QUICK
@pytest.mark.parametrize(
    ("members", "count"),
    [
        (3, 13),  # two of them in each of the lanes that members leave
        pytest.param(9, 13, marks=pytest.mark.slow),  # in two kernels
        pytest.param(9, 20, marks=pytest.mark.slow),  # more than start and parameters have numbers
    ],
)
def test_directions_of_the_members_of_a_batch(members, count):
    """Of four masses, in every way in which kernels follow them: as reverse mode has them."""
    case = CASES["fixed, at steps"]
    wide = {
        **{k: jnp.resize(x, (4,)) for k, x in POINT.items() if x.ndim},
        "coupling": jnp.ones(()),
    }
    flat, back = ravel_pytree(wide)
    batch = flat * (1 + 0.05 * jnp.cos(jnp.arange(members * flat.size).reshape(members, -1)))
    moves = jnp.cos(jnp.arange(1.0, 1 + count * flat.size)).reshape(count, -1)
    one = lambda x: loss(back(x), **case)  # noqa: E731
    along = lambda x, d: jax.jvp(one, (x,), (d,))[1]  # noqa: E731
    by_member = jax.jit(jax.vmap(lambda x: jax.vmap(lambda d: along(x, d))(moves)))(batch)
    reverse = jax.jit(jax.vmap(jax.grad(one)))(batch)
    assert_close(by_member, reverse @ moves.T, rtol=1e-12)


@pytest.mark.parametrize(
    ("case", "count"),
    [
        ("fixed, at steps", 3),
        pytest.param("adaptive, at steps", 75, marks=pytest.mark.slow),
    ],
)
def test_many_directions_of_one_run_beside_each_other(case, count):
    """Few of them, and more than one kernel follows; those of rows are linear in the seven."""
    flat, back = ravel_pytree(POINT)

    def rows(x):
        found = simulated(back(x), **CASES[case])
        reached = [jnp.where(jnp.isfinite(y), y, 0.0).ravel() for y in (found.q, found.v)]
        return jnp.concatenate([*reached, found.last_state.v])

    moves = jnp.cos(jnp.arange(1.0, 1 + count * flat.size)).reshape(count, -1)
    along = lambda d: jax.jvp(rows, (flat,), (d,))[1]  # noqa: E731
    found = jax.jit(jax.vmap(along))(moves)
    one_by_one = jnp.stack([jax.jit(along)(d) for d in jnp.eye(flat.size)])
    # Sums of seven products, of directions of length one.
    np.testing.assert_allclose(found, moves @ one_by_one, rtol=1e-11, atol=1e-12)


BATCH = jax.tree.map(
    lambda x: x * (1 + 0.1 * jax.random.normal(jax.random.key(2), (9, *x.shape))), POINT
)


@pytest.mark.slow
@BOTH
def test_batches_have_the_gradients_of_their_members(case):
    settings, reverse, *_ = case
    found = jax.jit(jax.vmap(jax.grad(lambda x: loss(x, **settings))))(BATCH)
    for i in (0, 7, 8):
        member = jax.tree.map(lambda x, i=i: x[i], (found, BATCH))
        assert_close(member[0], reverse(member[1])[1], rtol=1e-10)


@pytest.mark.slow
@QUICK
def test_shared_and_batched_parameters():
    """The gradient by what members share is the sum of theirs, in both modes."""
    settings = CASES["adaptive, at times"]

    def mean(shared):
        one = lambda q: loss({**shared, "q": q}, **settings)  # noqa: E731
        return jnp.mean(jax.vmap(one)(BATCH["q"]))

    reverse, forward = jax.jit(jax.grad(mean))(POINT), jax.jit(jax.jacfwd(mean))(POINT)
    assert_close({**forward, "q": 1.0}, {**reverse, "q": 1.0}, rtol=1e-10)
    every = {k: jnp.broadcast_to(v, (9, *v.shape)) for k, v in POINT.items()} | {"q": BATCH["q"]}
    each = jax.jit(jax.vmap(jax.grad(lambda x: loss(x, **settings))))(every)
    for leaf in ("v", "stiffness", "coupling"):
        assert_close(reverse[leaf], each[leaf].mean(0), rtol=1e-10)


@pytest.mark.slow
@QUICK
def test_the_adjoint_in_sections_is_the_same(monkeypatch):
    """Ten steps in sections of four, four and two, instead of one."""
    settings = CASES["fixed, at times"]
    texts = []
    write = integration.adjoint_steps
    monkeypatch.setattr(
        integration, "adjoint_steps", lambda *x: (texts.append(write(*x)), texts[-1])[1]
    )
    whole = jax.jit(jax.vmap(jax.grad(lambda x: loss(x, **settings))))(BATCH)
    monkeypatch.setattr(Lanes, "kept_bytes", 1)
    parts = jax.jit(jax.vmap(jax.grad(lambda x: 1.0 * loss(x, **settings))))(BATCH)
    assert len(texts) == 2
    assert texts[0] != texts[1]
    for a, b in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


@pytest.mark.slow
@QUICK
def test_failing_lanes_and_unreached_rows_leave_gradients_finite():
    """Lanes that exhaust their steps: what they reached counts, the others are as alone."""
    settings = CASES["adaptive, at times"]
    stiffness = jnp.array([2.0, 4e4, 2.5, 8e4, 1.5])[:, None] * jnp.ones(2)
    one = lambda s: loss({**POINT, "stiffness": s}, **settings)  # noqa: E731
    reached = lambda s: simulated({**POINT, "stiffness": s}, **settings).success  # noqa: E731
    reverse = jax.jit(jax.vmap(lambda s: (jax.grad(one)(s), reached(s))))
    found, success = reverse(stiffness)
    np.testing.assert_array_equal(success, stiffness[:, 0] < 100)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, jax.jit(jax.vmap(jax.jacfwd(one)))(stiffness), rtol=1e-9)
    # Beside others that reach the end.
    alone, _ = reverse(jnp.where(success[:, None], stiffness, 2.0))
    np.testing.assert_allclose(found[success], alone[success], rtol=1e-10)


@pytest.mark.slow
@QUICK
def test_rows_of_runs_that_end_where_they_begin_are_their_start():
    times = jnp.array([0.0, 1.0])

    def saved(q, t1):
        saveat = SaveAt(t0=True, ts=t1 * jnp.array([0.0, 0.5, 1.0]), t1=True)
        settings: dict[str, Any] = ADAPTIVE | {"saveat": saveat, "t1": t1}
        return jnp.sum(simulated({**POINT, "q": q}, **settings).q)

    gradient = jax.jit(jax.vmap(jax.grad(saved), (None, 0)))(POINT["q"], times)
    np.testing.assert_array_equal(gradient[0], [5.0, 5.0])
    forward = jax.jit(jax.vmap(jax.jacfwd(saved), (None, 0)))(POINT["q"], times)
    np.testing.assert_allclose(gradient, forward, rtol=1e-10)


@QUICK
def test_single_precision_gradients():
    single = jax.tree.map(lambda x: x.astype(jnp.float32), POINT)
    settings = CASES["fixed, at steps"]
    found = jax.jit(jax.grad(lambda x: loss(x, **settings)))(single)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(found))
    double = jax.jit(jax.grad(lambda x: loss(x, **settings)))(POINT)
    assert_close(found, double, rtol=1e-5)  # a hundred roundings of 6e-8


@QUICK
def test_too_little_memory_for_the_steps_of_an_adjoint_gives_nan():
    # Room for 2^50 steps is more than any machine has.
    settings = ADAPTIVE | {"saveat": SaveAt(t1=True), "max_steps": 2**31 - 1}
    found = jax.jit(jax.value_and_grad(lambda q: loss(POINT | {"q": q}, **settings)))(POINT["q"])
    assert np.isfinite(found[0])
    assert np.isnan(found[1]).all()


class Rooted(jaxdae.System):
    """A spring whose force is not a number where its stiffness is negative."""

    stiffness: jax.Array | float

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return -jnp.sqrt(self.stiffness * q)


@pytest.mark.slow
@QUICK
def test_a_lane_that_fails_from_the_start_leaves_shared_gradients_alone():
    def lane(stiffness, q):
        start = State(q, jnp.zeros(1), jnp.zeros(0))
        settings = ADAPTIVE | {"saveat": SaveAt(t1=True), "throw": False}
        return simulate(
            Rooted(stiffness), Multipliers(), start, t1=0.3, backend="native", **settings
        )

    def mean(stiffness, starts):
        runs = jax.vmap(lane, (None, 0))(stiffness, starts)
        return jnp.sum(jnp.where(runs.success, runs.q[:, -1, 0], 0.0))

    gradient = jax.jit(jax.grad(mean))
    found, twice = (gradient(2.0, jnp.array([[1.0], [x]])) for x in (-1.0, 1.0))
    np.testing.assert_allclose(found, twice / 2, rtol=1e-14)


@pytest.mark.slow
@QUICK
def test_too_many_states_with_derivatives_are_refused():
    def end(q):
        many = POINT | {"q": q, "v": jnp.zeros(120), "stiffness": jnp.ones(120)}
        return simulated(many, **CASES["fixed, at steps"]).q.sum()

    q = jnp.linspace(0.0, 1.0, 120)
    move = jnp.ones(120)
    along = lambda f: lambda q: jax.jvp(f, (q,), (move,))[1]  # noqa: E731
    message = "not this derivative: 960 states with derivatives in 1 directions"
    with pytest.raises(BackendError, match=message):
        jax.eval_shape(along(along(along(along(end)))), q)
