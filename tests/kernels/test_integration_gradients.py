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
from jaxdae.kernels import adjoint_steps
from jaxdae.models import Chain
from jaxdae.solvers import RK4

SaveAt, PID = diffrax.SaveAt, diffrax.PIDController
TIMES = jnp.linspace(0, 1, 7)
ADAPTIVE = {
    "solver": diffrax.Bosh3(), "stepsize_controller": PID(rtol=1e-4, atol=1e-6), "max_steps": 64,
}  # fmt: skip
# Given steps; rows at times within and at the ends of steps; rows at steps.
CASES = {
    "given, at steps": {"solver": RK4(), "dt": 0.1, "saveat": SaveAt(t0=True, t1=True, steps=3)},
    "given, at times": {"solver": RK4(), "dt": 0.1, "saveat": SaveAt(t0=True, ts=TIMES)},
    "controlled, at steps": ADAPTIVE | {"saveat": SaveAt(t0=True, steps=True)},
    "controlled, at times": ADAPTIVE | {"saveat": SaveAt(t0=True, ts=TIMES, t1=True)},
}


class Springs(jaxdae.System):
    """Unit masses on coupled nonlinear springs."""

    stiffness: jax.Array
    coupling: jax.Array

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        own = self.stiffness @ (0.5 * q**2 + 0.1 * q**4)
        return own + self.coupling * jnp.sin(t) * q[0] * q[1]


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


def loss(x, **settings):
    """Of every row that was reached, each with its own weight, and of the final state."""
    found = simulated(x, **settings)
    rows = jnp.where(jnp.isfinite(found.ts)[:, None], jnp.sin(found.q) + found.v**2, 0.0)
    weights = 1 + jnp.arange(rows.size).reshape(rows.shape) / 10
    return jnp.sum(rows * weights) + jnp.sum(found.final_state.v**3)


def assert_close(found, expected, rtol):
    """Relative to the largest entry of each leaf."""
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * np.abs(b).max())


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Settings, and value and gradient by the native adjoint."""
    settings = CASES[request.param]
    value, gradient = jax.jit(jax.value_and_grad(lambda x: loss(x, **settings)))(POINT)
    return settings, value, gradient


def test_reverse_is_that_of_diffrax(case):
    """Its forward mode has the same numbers as its reverse mode, and compiles in half the time."""
    settings, value, gradient = case
    adjoint = diffrax.ForwardMode()

    def twice(x):
        found = loss(x, backend="plain", adjoint=adjoint, **settings)
        return found, found

    plain = lambda x: jax.jit(jax.jacfwd(twice, has_aux=True))(x)[::-1]  # noqa: E731
    # The ends of controlled steps differ by the round-off of an error estimate, 1e-16 / 1e-4.
    assert_close((value, gradient), plain(POINT), rtol=1e-10)


def test_forward_is_reverse(case):
    """Nine directions with the two of the velocity: more than one kernel follows."""
    settings, _, gradient = case
    forward = jax.jit(jax.jacfwd(lambda x: loss(x, **settings)))(POINT)
    assert_close(forward, gradient, rtol=1e-11)  # as above


@pytest.mark.parametrize("case", [x for x in CASES if x != "controlled, at steps"], indirect=True)
def test_gradients_are_those_of_differences(case):
    """Where rows are at controlled steps these move, while the derivative holds them fixed."""
    settings, _, gradient = case
    controlled = "stepsize_controller" in settings
    direction = jax.tree.map(lambda x: jnp.cos(1.0 + jnp.arange(x.size)).reshape(x.shape), POINT)
    at = lambda h: loss(jax.tree.map(lambda x, d: x + h * d, POINT, direction), **settings)  # noqa: E731
    h = 1e-5
    slope = (jax.jit(at)(h) - jax.jit(at)(-h)) / (2 * h)
    along = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), gradient, direction)))
    # Differences of order h^2 and round-off 1e-16 / h; controlled: the tolerance of 1e-4.
    np.testing.assert_allclose(along, slope, rtol=1e-2 if controlled else 1e-7)


def test_more_directions_than_one_kernel_follows():
    """Eleven members of a batch of directions, in pieces of eight and three."""
    settings = CASES["given, at steps"]
    flat, back = ravel_pytree(POINT)
    moves = jnp.concatenate([jnp.eye(flat.size), jnp.cos(jnp.arange(4 * flat.size)).reshape(4, -1)])
    along = lambda d: jax.jvp(lambda x: loss(back(x), **settings), (flat,), (d,))[1]  # noqa: E731
    assert moves.shape[0] == 11
    found = jax.jit(jax.vmap(along))(moves)
    np.testing.assert_allclose(found[7:], moves[7:] @ found[:7], rtol=1e-12)


@pytest.mark.parametrize("case", ["given, at times", "controlled, at times"], indirect=True)
@pytest.mark.parametrize("leaf", ["stiffness", "q"])
def test_some_leaves_alone_have_the_same_derivatives(case, leaf):
    settings, _, gradient = case
    some = jax.jit(jax.grad(lambda x: loss({**POINT, leaf: x}, **settings)))
    # Other machine code, which may fuse sums, and so the ends of steps, differently.
    assert_close(some(POINT[leaf]), gradient[leaf], rtol=1e-11)


BATCH = jax.tree.map(
    lambda x: x * (1 + 0.1 * jax.random.normal(jax.random.key(2), (9, *x.shape))), POINT
)


@pytest.mark.parametrize(
    "name", ["given, at times", "controlled, at times", "controlled, at steps"]
)
def test_batches_have_the_gradients_of_their_members(name):
    one = jax.grad(lambda x: loss(x, **CASES[name]))
    found, alone = jax.jit(jax.vmap(one))(BATCH), jax.jit(one)
    for i in (0, 7, 8):
        member = jax.tree.map(lambda x, i=i: x[i], (found, BATCH))
        assert_close(member[0], alone(member[1]), rtol=1e-10)


@pytest.mark.parametrize("name", ["given, at steps", "controlled, at times"])
def test_shared_and_batched_parameters(name):
    """The gradient by what members share is the sum of theirs, in both modes."""

    def mean(shared):
        one = lambda q: loss({**shared, "q": q}, **CASES[name])  # noqa: E731
        return jnp.mean(jax.vmap(one)(BATCH["q"]))

    reverse, forward = jax.jit(jax.grad(mean))(POINT), jax.jit(jax.jacfwd(mean))(POINT)
    assert_close({**forward, "q": 1.0}, {**reverse, "q": 1.0}, rtol=1e-10)
    every = {k: jnp.broadcast_to(v, (9, *v.shape)) for k, v in POINT.items()} | {"q": BATCH["q"]}
    each = jax.jit(jax.vmap(jax.grad(lambda x: loss(x, **CASES[name]))))(every)
    for leaf in ("v", "stiffness", "coupling"):
        assert_close(reverse[leaf], each[leaf].mean(0), rtol=1e-10)


def test_the_adjoint_in_sections_is_the_same(monkeypatch):
    """Ten steps in sections of four, four and two, instead of one."""
    settings = CASES["given, at times"]
    texts = []
    write = adjoint_steps.adjoint_steps
    monkeypatch.setattr(
        adjoint_steps, "adjoint_steps", lambda *x: (texts.append(write(*x)), texts[-1])[1]
    )
    whole = jax.jit(jax.vmap(jax.grad(lambda x: loss(x, **settings))))(BATCH)
    monkeypatch.setattr(adjoint_steps, "_KEPT_BYTES", 1)
    parts = jax.jit(jax.vmap(jax.grad(lambda x: 1.0 * loss(x, **settings))))(BATCH)
    assert len(texts) == 2
    assert texts[0] != texts[1]
    for a, b in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-14)


def test_failing_lanes_and_unreached_rows_leave_gradients_finite():
    """Lanes that exhaust their steps: what they reached counts, the others are as alone."""
    settings = CASES["controlled, at times"]
    stiffness = jnp.array([2.0, 4e4, 2.5, 8e4, 1.5])[:, None] * jnp.ones(2)
    one = lambda s: loss({**POINT, "stiffness": s}, **settings)  # noqa: E731
    reached = jax.jit(jax.vmap(lambda s: simulated({**POINT, "stiffness": s}, **settings).success))
    np.testing.assert_array_equal(reached(stiffness), stiffness[:, 0] < 100)
    reverse, forward = (jax.jit(jax.vmap(x(one)))(stiffness) for x in (jax.grad, jax.jacfwd))
    assert np.isfinite(reverse).all()
    np.testing.assert_allclose(reverse, forward, rtol=1e-9)
    np.testing.assert_allclose(reverse[2], jax.jit(jax.grad(one))(stiffness[2]), rtol=1e-10)


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


def test_second_derivatives():
    settings = {"solver": RK4(), "dt": 0.1, "t1": 0.3, "saveat": SaveAt(steps=True)}
    of = lambda x, **more: loss({**POINT, "stiffness": x}, **settings, **more)  # noqa: E731
    x = POINT["stiffness"]
    forward = jax.jit(jax.jacfwd(jax.jacfwd(of)))(x)
    mixed = jax.jit(jax.jacrev(jax.jacfwd(of)))(x)
    own = diffrax.ForwardMode()
    plain = jax.jit(jax.jacfwd(jax.jacfwd(lambda x: of(x, backend="plain", adjoint=own))))(x)
    assert_close((forward, mixed), (plain, plain), rtol=1e-12)


def test_single_precision_gradients():
    single = jax.tree.map(lambda x: x.astype(jnp.float32), POINT)
    settings = CASES["given, at steps"]
    found = jax.jit(jax.grad(lambda x: loss(x, **settings)))(single)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(found))
    double = jax.jit(jax.grad(lambda x: loss(x, **settings)))(POINT)
    assert_close(found, double, rtol=1e-5)  # a hundred roundings of 6e-8


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
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w, u
        return -jnp.sqrt(self.stiffness * q)


def test_a_lane_that_fails_from_the_start_leaves_shared_gradients_alone():
    def mean(stiffness, starts):
        def lane(q):
            start = State(q, jnp.zeros(1), jnp.zeros(0))
            settings = ADAPTIVE | {"saveat": SaveAt(t1=True), "throw": False}
            found = simulate(
                Rooted(stiffness), Multipliers(), start, t1=0.3, backend="native", **settings
            )
            return jnp.where(found.success, found.q[-1, 0], 0.0)

        return jnp.sum(jax.vmap(lane)(starts))

    starts = jnp.array([[1.0], [-1.0]])
    alone = jax.grad(mean)(2.0, starts[:1])
    np.testing.assert_allclose(jax.grad(mean)(2.0, starts), alone, rtol=1e-14)


def test_too_many_states_with_derivatives_are_refused():
    def end(q):
        system = Chain.uniform(60)
        return simulate(
            system, Multipliers(), State(q, jnp.zeros(120)), t1=1e-3, dt=1e-3, solver=RK4(),
            saveat=SaveAt(t1=True), backend="native", throw=False, start_tolerance=None,
        ).q.sum()  # fmt: skip

    q = jnp.stack([jnp.arange(1, 61) / 60, jnp.zeros(60)], 1).ravel()
    move = jnp.ones(120)
    along = lambda f: lambda q: jax.jvp(f, (q,), (move,))[1]  # noqa: E731
    told = "not this derivative: 960 states with derivatives in 1 directions"
    with pytest.raises(BackendError, match=told):
        jax.eval_shape(along(along(along(along(end)))), q)
