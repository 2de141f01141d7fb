"""Whole integrations as native kernels: the numbers of diffrax, whatever is saved and batched."""

from types import SimpleNamespace
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, simulate, State
from jaxdae.solvers import RK4

SaveAt, PID = diffrax.SaveAt, diffrax.PIDController
# Tolerances at which the error estimates of these methods are far above round-off, so that both
# backends choose the same steps to round-off.
LOOSE = PID(rtol=1e-5, atol=1e-7)
ADAPTIVE = {"solver": diffrax.Tsit5(), "stepsize_controller": LOOSE}
FIXED = {"solver": RK4(), "dt": 0.1}
# The estimate of the last step's error, raised to a power, decides on the ends of steps; these
# differ by the round-off of an estimate, 1e-16 / 1e-5 relative, and the states there as much.
AT_STEPS = {"rtol": 0, "atol": 1e-10}
# States at given times depend on the ends of the steps by the error of the method only.
AT_TIMES = {"rtol": 0, "atol": 1e-11}
# Of the same steps: sums in another order.
SAME_STEPS = {"rtol": 0, "atol": 1e-14}
TIMES = jnp.linspace(0, 1, 7)


class Oscillator(jaxdae.System):
    """A nonlinear, driven oscillator in the plane with an actuator, without constraints."""

    stiffness: float = 2.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return self.stiffness * q @ q + q[0] ** 2 * q[1] * (1 + 0.1 * jnp.sin(t))

    def force(self, t, q, v, w, u):
        del t, q, v, u
        return jnp.stack([w[0], jnp.zeros_like(w[0])])

    def actuator_rate(self, t, q, v, w, u):
        del q, u
        return jnp.stack([jnp.cos(t) - w[0] * v[0]])


class Blowup(jaxdae.System):
    """`q' = v`, `v' = growth v^2`: from `v = 1` infinite at `t = 1 / growth`."""

    growth: float = 2.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, q, w, u
        return self.growth * v**2


# Not of how LLVM optimizes: as quickly as JAX's programs are made.
QUICK = pytest.mark.quick
START = State([0.5, 0.2], [0.0, 0.3], [0.1])
RISE = State([0.0], [1.0], jnp.zeros(0))


def run(backend, *, system=None, start=START, **settings):
    settings = {"t1": 1.0, "throw": False, "backend": backend, **settings}
    system = Oscillator() if system is None else system
    found = simulate(system, Multipliers(), start, **settings)
    assert found.backend == backend, found.why_not_native
    return found


def both(**settings):
    return run("plain", **settings), run("native", **settings)


def assert_same(plain, native, rtol, atol):
    """The same times, states, statistics and fate."""
    for name in ("ts", "q", "v", "w", "final_time"):
        expected, found = getattr(plain, name), getattr(native, name)
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=name)
    for expected, found in zip(
        jax.tree.leaves(plain.final_state), jax.tree.leaves(native.final_state), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    assert jax.tree.map(np.asarray, native.stats).keys() == plain.stats.keys()
    for name, expected in plain.stats.items():
        np.testing.assert_array_equal(native.stats[name], expected, err_msg=name)
    np.testing.assert_array_equal(native.result._value, plain.result._value)
    np.testing.assert_array_equal(native.success, plain.success)


# What is saved.


def of_each(saveats, **settings):
    """Runs of diffrax, from one program that saves for each of them."""
    plain = run("plain", saveat=SaveAt(subs=[x.subs for x in saveats]), **settings)
    common = ("final_time", "final_state", "stats", "result", "success")
    shared = {name: getattr(plain, name) for name in common}

    def one(ts, state):
        """Rows that were not reached are no numbers, as a trajectory says it."""
        rows = {x: np.where(np.isfinite(ts)[:, None], getattr(state, x), np.nan) for x in "qvw"}
        return SimpleNamespace(ts=ts, **rows, **shared)

    return [one(ts, state) for ts, (state, _) in zip(plain.ts, plain.saved, strict=True)]


AT_GIVEN = [
    SaveAt(t0=True, steps=True),
    SaveAt(t0=True),
    SaveAt(t1=True),
    SaveAt(t0=True, t1=True, steps=3),
    SaveAt(t0=True, t1=True, steps=5),
    SaveAt(steps=11, t0=True),
    SaveAt(ts=TIMES),
    # Ends of steps, and the same one twice.
    SaveAt(ts=jnp.array([0.0, 0.0, 0.1, 0.5, 0.5, 1.0]), t0=True, t1=True),
    SaveAt(ts=jnp.zeros(1)),
    SaveAt(ts=jnp.zeros(0), t1=True),
]


@QUICK
def test_given_steps_save_what_diffrax_saves():
    expected = of_each(AT_GIVEN, **FIXED)
    for saveat, plain in zip(AT_GIVEN, expected, strict=True):
        assert_same(plain, run("native", saveat=saveat, **FIXED), **SAME_STEPS)
    # By default all steps; integers may be times.
    assert_same(expected[0], run("native", **FIXED), **SAME_STEPS)
    ends = run("native", saveat=SaveAt(ts=[0, 1]), **FIXED)
    np.testing.assert_array_equal(ends.ts, [0.0, 1.0])
    np.testing.assert_allclose(ends.q, expected[0].q[:: expected[0].q.shape[0] - 1], **SAME_STEPS)


AT_CONTROLLED = [
    SaveAt(steps=True, t0=True, t1=True),
    SaveAt(steps=4),
    SaveAt(ts=jnp.zeros(1)),
    SaveAt(ts=jnp.zeros(0), t1=True),
]


@QUICK
def test_controlled_steps_save_what_diffrax_saves():
    settings = {"max_steps": 32, **ADAPTIVE}
    for saveat, plain in zip(AT_CONTROLLED, of_each(AT_CONTROLLED, **settings), strict=True):
        assert_same(plain, run("native", saveat=saveat, **settings), **AT_STEPS)


@QUICK
def test_given_steps_run_backward_in_time():
    """Those of adaptive steps are among the members of a batch below."""
    saveat = SaveAt(ts=TIMES[::-1], t0=True)
    settings = FIXED | {"dt": -0.1, "t0": 1.0, "t1": 0.0}
    assert_same(*both(saveat=saveat, **settings), **AT_TIMES)


@QUICK
def test_a_run_there_and_back_ends_where_it_began():
    """Independent of diffrax: to the error of the method at these tolerances, some 1e-5."""
    there = run("native", saveat=SaveAt(t1=True), **ADAPTIVE)
    settings = ADAPTIVE | {"t0": 1.0, "t1": 0.0, "dt": -0.05}
    back = run("native", start=there.final_state, saveat=SaveAt(t1=True), **settings)
    assert back.final_time == 0
    np.testing.assert_allclose(back.final_state.q, START.q, atol=1e-4)


# Methods and step control.


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize("solver", [diffrax.Heun(), diffrax.Dopri8()])
def test_given_steps_of_methods_are_those_of_diffrax(solver):
    assert_same(*both(solver=solver, dt=0.1, saveat=SaveAt(ts=TIMES)), **SAME_STEPS)


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize(
    ("solver", "atol"),
    # The error estimate of Dopri8 on this motion is near round-off, and so is what it decides.
    [(diffrax.Dopri5(), 1e-11), (diffrax.Dopri8(), 1e-6)],
)
def test_controlled_steps_of_methods_are_those_of_diffrax(solver, atol):
    """Within the tolerance of the control."""
    plain, native = both(solver=solver, stepsize_controller=LOOSE, saveat=SaveAt(ts=TIMES))
    np.testing.assert_allclose(native.q, plain.q, rtol=0, atol=atol)


CONTROL = {"rtol": 1e-5, "atol": 1e-7}
CONTROLLERS = {
    "PI": CONTROL | {"pcoeff": 0.3, "icoeff": 0.7},
    "PID": CONTROL | {"pcoeff": 0.1, "icoeff": 0.3, "dcoeff": 0.1},
    "dtmax": CONTROL | {"dtmax": 0.03},
    "dtmin": {"rtol": 1e-9, "atol": 1e-9, "dtmin": 0.1},
    "dt_min_reached": {"rtol": 1e-9, "atol": 1e-9, "dtmin": 0.1, "force_dtmin": False},
    "factors": CONTROL | {"factormin": 0.5, "factormax": 2.0, "safety": 0.8},
}


@pytest.fixture(scope="module")
def by_plain_control():
    """Runs of diffrax under those of the controllers that one program serves."""

    def one(numbers):
        return run_with("plain", PID(**numbers))

    usual = CONTROL | {
        "pcoeff": 0.0, "icoeff": 1.0, "dcoeff": 0.0, "factormin": 0.2, "factormax": 10.0,
        "safety": 0.9, "dtmin": 1e-300, "dtmax": 1e300,
    }  # fmt: skip
    names = [name for name in CONTROLLERS if name != "dt_min_reached"]
    every = [usual | CONTROLLERS[name] for name in names]
    runs = jax.jit(jax.vmap(one))({k: jnp.array([x[k] for x in every]) for k in usual})
    return {name: jax.tree.map(lambda x, i=i: x[i], runs) for i, name in enumerate(names)}


def run_with(backend, controller):
    saveat = SaveAt(steps=True, t1=True)
    solver = diffrax.Bosh3()
    found = run(backend, solver=solver, stepsize_controller=controller, saveat=saveat, max_steps=64)
    stats = {k: v for k, v in found.stats.items() if k != "max_steps"}
    parts = (found.ts, found.q, found.v, found.w, found.final_time, found.final_state)
    return *parts, stats, found.result._value, found.success


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize("name", CONTROLLERS)
def test_step_control_is_that_of_diffrax(name, by_plain_control):
    controller = PID(**CONTROLLERS[name])
    expected = by_plain_control.get(name) or run_with("plain", controller)
    found = run_with("native", controller)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, **AT_STEPS)


@QUICK
@pytest.mark.parametrize("dt", [0.01, 10.0])
def test_the_first_step_may_be_given(dt):
    saveat = SaveAt(steps=True, t1=True)
    plain, native = both(dt=dt, saveat=saveat, max_steps=64, **ADAPTIVE)
    if dt < 1:
        assert native.ts[0] == dt
    assert_same(plain, native, **AT_STEPS)


# The estimated error of a first step of 0.01 s would be round-off, and decide on the second one.
SINGLE = ADAPTIVE | {"stepsize_controller": PID(1e-3, 1e-4), "dt": 0.4}


@pytest.mark.slow
@QUICK
@pytest.mark.parametrize(
    ("settings", "atol"),
    # A few roundings of 1.2e-7, in numbers of size 1; steps to the round-off of the estimate.
    [(FIXED, 2e-6), (SINGLE, 2e-5)],
    ids=["fixed", "adaptive"],
)
def test_single_precision_stays_single(settings, atol):
    start = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    ts = TIMES.astype(jnp.float32)
    plain, native = both(start=start, saveat=SaveAt(ts=ts, t1=True), **settings)
    assert native.q.dtype == native.ts.dtype == jnp.float32
    assert_same(plain, native, rtol=0, atol=atol)


# Batches. Each lane must be what it is alone; that is what the tests above compare with diffrax.


def batch_of(count, seed=1):
    noise = jax.random.normal(jax.random.key(seed), (count, 2))
    return START.q + 0.1 * noise, 2.0 + jnp.abs(noise[:, 0])


@eqx.filter_jit
def lanes(settings, q, stiffness, in_axes: Any = 0, backend="native"):
    """Everything numeric of runs from many starts, of many systems."""

    def one(q, stiffness):
        start = State(q, START.v, START.w)
        found = run(backend, system=Oscillator(stiffness), start=start, **settings)
        return found.ts, found.q, found.final_state.v, found.stats["num_steps"], found.success

    return jax.vmap(one, in_axes)(q, stiffness)


SETTINGS = [FIXED, ADAPTIVE | {"saveat": SaveAt(ts=TIMES)}]
KINDS = pytest.mark.parametrize("settings", SETTINGS, ids=["fixed", "adaptive"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "counts"),
    [(SETTINGS[0], (1, 8, 9, 1000)), (SETTINGS[1], (2, 7, 17, 1000))],
    ids=["fixed", "adaptive"],
)
def test_batches_of_every_size(settings, counts):
    """Whole and broken blocks of lanes; lanes of adaptive steps change places."""
    q, stiffness = batch_of(1000)
    expected = lanes(settings, q, stiffness, backend="plain")
    for count in counts:
        found = lanes(settings, q[-count:], stiffness[-count:])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b[-count:] if b.ndim else b, **AT_TIMES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "in_axes"), [(SETTINGS[0], (0, None)), (SETTINGS[1], (None, 0))]
)
def test_members_may_share_starts_or_parameters(settings, in_axes):
    q, stiffness = batch_of(9)
    shared = [x if a == 0 else x[4] for x, a in zip((q, stiffness), in_axes, strict=True)]
    full = [
        x if a == 0 else jnp.repeat(x[4:5], 9, 0)
        for x, a in zip((q, stiffness), in_axes, strict=True)
    ]
    found = lanes(settings, shared[0], shared[1], in_axes)
    expected = lanes(settings, full[0], full[1])
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@KINDS
def test_nested_batches_over_different_arguments(settings):
    """Rank 2, the start along one axis only and the stiffness along the other, or along both."""
    q, stiffness = batch_of(6)
    grid = jax.vmap(lambda s: lanes(settings, q[:3], s, (0, None)))(stiffness[:2])
    square = jax.vmap(lambda s: lanes(settings, q[:3], s))(stiffness.reshape(2, 3))
    for i in range(2):
        row = lanes(settings, q[:3], jnp.repeat(stiffness[i], 3))
        other = lanes(settings, q[:3], stiffness[3 * i : 3 * i + 3])
        for a, b, c, d in zip(grid, row, square, other, strict=True):
            # Compiled for another rank, sums may be fused differently.
            np.testing.assert_allclose(a[i], b, **AT_TIMES)
            np.testing.assert_allclose(c[i], d, **AT_TIMES)


class Suspended(jaxdae.System):
    """A damped pendulum whose inertia and weight are products of its parameters."""

    mass: Any
    length: Any

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * self.mass * self.length**2 * v @ v

    def potential_energy(self, t, q):
        del t
        return -9.81 * self.mass * self.length * jnp.cos(q[0])

    def dissipation(self, t, q, v):
        del t, q
        return 0.1 * jnp.sqrt(self.mass * self.length) * v @ v


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "some_axes"),
    [(SETTINGS[0], [(0, None), (0, 0)]), (SETTINGS[1], [(None, 0), (None, None), (0, 0)])],
    ids=["fixed", "adaptive"],
)
def test_what_parameters_decide_belongs_to_each_member(settings, some_axes):
    """Lanes take members of other masses and lengths, and of other numbers of steps."""
    count = 41
    values = np.linspace(0.5, 2.0, count), np.linspace(0.15, 1.5, count)[::-1].copy()
    angles = jnp.linspace(0.1, 2.5, count)

    def ends(backend, in_axes):
        def one(angle, mass, length):
            system, start = Suspended(mass, length), State([angle], [0.3])
            found = run(backend, system=system, start=start, **settings)
            return found.final_state.q[0], found.stats["num_steps"]

        return jax.jit(jax.vmap(one, (0, *in_axes)))

    plain = ends("plain", (0, 0))
    for in_axes in some_axes:
        pairs = [(a, x) for a, x in zip(in_axes, values, strict=True)]
        given = [x if a == 0 else x[7] for a, x in pairs]
        full = [x if a == 0 else np.full(count, x[7]) for a, x in pairs]
        found = ends("native", in_axes)(angles, *given)
        for one, other in zip(found, plain(angles, *full), strict=True):
            np.testing.assert_allclose(one, other, **AT_STEPS)


class Pendulum(jaxdae.System):
    """A pendulum of unit length, mass and weight, and a force by the sine of a phase.

    The phase changes with the turns of the pendulum: it is not the same in all steps by structure.
    """

    phase: float = 0.0

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        del t, v, w, u
        turning = self.phase + jnp.floor(q / (2 * jnp.pi))
        return jnp.sin(turning) + 0.1 * jnp.fmod(turning, 0.7) - jnp.sin(q)


@pytest.mark.slow
@QUICK
@KINDS
def test_a_huge_angle_changes_nothing_in_other_lanes(settings):
    """Steps of its block are done once more with care; the others' numbers are the same bits.

    The sine of the smaller one is known, but not the remainder of its division.
    """
    near = np.linspace(0.0, 0.3, 9)

    def ends(backend):
        def one(phase):
            found = run(backend, system=Pendulum(phase), start=State([1.0], [0.3]), **settings)
            return found.final_state.q[0], found.final_state.v[0]

        return jax.jit(jax.vmap(one))

    native, plain = ends("native"), ends("plain")
    others = np.arange(9) != 4
    for size in (1e17, 1e22):
        far = np.where(others, near, size)
        for one, other in zip(native(near), native(far), strict=True):
            np.testing.assert_array_equal(one[others], other[others])
        for one, other in zip(native(far), plain(far), strict=True):
            np.testing.assert_allclose(one, other, **AT_TIMES)


@pytest.mark.slow
@QUICK
@KINDS
def test_a_huge_angle_has_its_derivative_in_reverse(settings):
    """Steps of the adjoint are done once more with care, too."""
    phases = np.linspace(0.0, 0.3, 9)
    phases[4] = 1e22

    def slopes(backend, derivative, **more):
        def end(phase):
            start = State([1.0], [0.3])
            return run(
                backend, system=Pendulum(phase), start=start, **settings, **more
            ).final_state.q[0]

        return jax.jit(jax.vmap(derivative(end)))(phases)

    found = slopes("native", jax.grad)
    # Of diffrax the mode that compiles faster.
    expected = slopes("plain", jax.jacfwd, adjoint=diffrax.ForwardMode())
    np.testing.assert_allclose(found, expected, **AT_TIMES)
    assert np.abs(found[4]) > 1e-3


def ends(backend, t0, t1, ts=None, **settings):
    saveat = SaveAt(t1=True, ts=ts, t0=True)
    found = run(backend, t0=t0, t1=t1, saveat=saveat, **ADAPTIVE, **settings)
    return found.ts, found.q, found.final_time, found.stats["num_steps"], found.success


@pytest.mark.slow
def test_batches_of_times_with_lanes_of_very_different_lengths():
    """Forward, backward, and of no length, in one kernel; the direction is known in it alone."""
    t1 = jnp.array([0.5, 4.0, -1.0, 0.0, 1e-3, 2.0, -2.0, 0.5, 0.0, 3.0, 0.1])
    ts = t1[:, None] * jnp.array([0.0, 0.3, 0.3, 1.0])
    alone = jax.jit(lambda *x: ends("plain", 0.0, *x))
    found = jax.jit(jax.vmap(lambda *x: ends("native", 0.0, *x)))(t1, ts)
    for i in range(t1.size):
        for a, b in zip(found, alone(t1[i], ts[i]), strict=True):
            np.testing.assert_allclose(a[i], b, **AT_TIMES)
    assert found[3][1] > 5 * found[3][0] > 5 * found[3][3]


@pytest.mark.slow
@QUICK
def test_times_to_save_may_differ_among_lanes_of_given_steps():
    ts = jnp.sort(jax.random.uniform(jax.random.key(5), (9, 4)), axis=1)
    one = lambda backend: lambda ts: run(backend, saveat=SaveAt(ts=ts), **FIXED).q  # noqa: E731
    found, expected = (jax.jit(jax.vmap(one(x)))(ts) for x in ("native", "plain"))
    np.testing.assert_allclose(found, expected, **SAME_STEPS)


@QUICK
def test_ends_of_given_steps_are_shared_or_refused(monkeypatch):
    from jaxdae.kernels.integration import integrate

    seen = []
    bind = integrate.integrate
    monkeypatch.setattr(integrate, "integrate", lambda *x: (seen.append(x), bind(*x))[1])
    run("native", t1=1.5, **FIXED)
    (made, start, parameters, times) = seen[0]
    with jax.ensure_compile_time_eval():
        shown = [jnp.ones(x.shape) for x in (start, *parameters, *times)]
    count = len(parameters)
    batched = jnp.stack([shown[-1], shown[-1]])
    with pytest.raises(NotImplementedError, match="members of a batch share the ends of fixed"):
        jax.vmap(lambda t: bind(made, shown[0], shown[1 : 1 + count], [t]))(batched)


# Failures.


def failing(backend, growth, **settings):
    found = run(backend, system=Blowup(growth), start=RISE, **settings)
    return (
        found.ts, found.q, found.final_time, found.final_state.v, found.success,
        found.result._value, found.stats["num_accepted_steps"],
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"dt": 1 / 64, "solver": RK4()},
        {"saveat": SaveAt(ts=TIMES, t1=True), **ADAPTIVE, "max_steps": 16},
        {
            "saveat": SaveAt(ts=TIMES, t1=True, t0=True),
            "solver": diffrax.Tsit5(),
            "stepsize_controller": PID(1e-5, 1e-7, dtmin=1e-2, force_dtmin=False),
        },
    ],
    ids=["NaN", "max_steps", "dt_min"],
)
def test_failing_lanes_tell_so_and_leave_the_others_alone(settings):
    growth = jnp.array([0.1, 0.2, 2.0, 0.3, jnp.nan, 4.0, 0.1, 0.2, 0.3, 50.0, 0.4])
    found = jax.jit(jax.vmap(lambda x: failing("native", x, **settings)))(growth)
    expected = jax.jit(jax.vmap(lambda x: failing("plain", x, **settings)))(growth)
    good = np.asarray(growth) < 1
    np.testing.assert_array_equal(found[4], good)
    np.testing.assert_array_equal(found[5], expected[5])
    for a, b in zip(found[:4], expected[:4], strict=True):
        # Before infinity numbers, and their round-off, grow without bounds.
        np.testing.assert_allclose(a, b, rtol=1e-6)
        np.testing.assert_allclose(a[good], b[good], **AT_TIMES)
    assert np.isinf(found[0][~good]).any(axis=1).all()
    # The exact solution, to the error of the methods: v = 1 / (1 - growth t).
    np.testing.assert_allclose(found[3][good, 0], 1 / (1 - growth[good]), rtol=1e-4)


@pytest.mark.slow
@QUICK
def test_failures_raise_the_same_errors_as_with_diffrax():
    settings = {**ADAPTIVE, "max_steps": 16, "throw": True, "system": Blowup(), "start": RISE}
    with pytest.raises(jaxdae.SimulationError, match=r"(?s)run stopped at t = .*maximum number"):
        run("native", **settings)
    with pytest.raises(Exception, match="maximum number of solver steps"):
        jax.block_until_ready(jax.jit(lambda: run("native", **settings).q)())
    settings |= {"dt": 1 / 64, "stepsize_controller": None, "max_steps": 200}
    with pytest.raises(jaxdae.SimulationError, match=r"state is no longer finite after t = 0\.5"):
        run("native", **settings)
