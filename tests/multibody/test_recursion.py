"""Recursive dynamics of trees: against the energies, and what is declared wrongly is found."""

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import Ball, Body, Connection, Free, Hinge, Multibody, Slide
from jaxdae.solvers import RK4
from jaxdae.systems import ForwardDynamics


def tree(rng) -> Multibody:
    """Two trees: a free one with all joints, bodies without joints and joints in a row."""

    def vector():
        return 0.3 * rng.normal(size=3)

    def solid():
        parts = 0.1 * rng.uniform(1, 2, 3)
        axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        inertia = axes @ np.diag(parts.sum() - parts) @ axes.T
        return {
            "mass": rng.uniform(1, 2),
            "centre": vector(),
            "inertia": inertia,
            "position": vector(),
            "orientation": rng.normal(size=4),
        }

    of_ball, of_base = (jnp.asarray(rng.uniform(0.1, 0.5, k)) for k in (3, 6))
    joints = (
        Hinge("h1", vector(), anchor=vector(), stiffness=2.0, damping=0.1, armature=0.02),
        Slide("s1", vector(), stiffness=3.0),
    )
    return Multibody(
        [
            Body("base", Free("base", armature=of_base), **solid()),
            Body("arm", joints, "base", **solid()),
            Body("plate", (), "arm", **solid()),
            Body(
                "wrist", Ball("ball", vector(), armature=of_ball, damping=0.2), "plate", **solid()
            ),
            Body("hand", Hinge("h2", vector(), anchor=vector()), "wrist", **solid()),
            Body("other", (Ball("ball2", vector()), Slide("s2", vector())), **solid()),
        ]
    )


@pytest.fixture(scope="module")
def moving():
    rng = np.random.default_rng(1)
    system = tree(rng)
    start = system.start()
    q = start.q + 0.3 * rng.normal(size=start.q.size)
    return system, jaxdae.State(q, rng.normal(size=start.v.size))


@pytest.mark.slow
def test_mass_matrix_inertial_forces_and_accelerations_are_those_of_the_energies(moving):
    jaxdae.check_system(*moving)


def test_vectors_of_another_size_are_refused(moving):
    """Where they are used: entries are taken by number, and none would be missed."""
    system, state = moving
    q, v, words = state.q, state.v, "Multibody: the joints have {} {}; got shape ({},)."
    short = re.escape(words.format(q.size, "coordinates", q.size - 1))
    calls: list[Any] = [
        lambda: system.kinetic_energy(0.0, q[1:], v),
        lambda: system.potential_energy(0.0, q[1:]),
        lambda: system.mass_matrix(0.0, q[1:]),
        lambda: system.rate(0.0, q[1:], v),
        lambda: system.poses(q[1:]),
        lambda: system.values(q[1:]),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=short):
            call()
    short = re.escape(words.format(v.size, "velocities", v.size - 1))
    calls = [
        lambda: system.dissipation(0.0, q, v[1:]),
        lambda: system.bias_force(0.0, q, v[1:]),
        lambda: system.forward_dynamics(0.0, q, v[1:], v),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=short):
            call()


class Wrong(Multibody):
    """With one of the faster forms changed."""

    which: str = eqx.field(static=True, default="")

    def bias_force(self, t, q, v):
        bias = super().bias_force(t, q, v)
        return bias.at[1].add(1.0) if self.which == "bias" else bias

    def forward_dynamics(self, t, q, v, force) -> Any:
        found = super().forward_dynamics(t, q, v, force)
        assert found is not None
        if self.which == "acceleration":
            return ForwardDynamics(found.acceleration.at[0].add(1.0), found.solve)
        if self.which == "solve":
            return ForwardDynamics(found.acceleration, lambda b: 1.01 * found.solve(b))
        return found.acceleration if self.which == "kind" else found


@pytest.mark.parametrize(
    ("which", "error", "words"),
    [
        ("bias", ValueError, "Wrong.bias_force[1] = "),
        ("acceleration", ValueError, "Wrong.forward_dynamics[0] does not solve the equations of"),
        ("solve", ValueError, "Wrong.forward_dynamics(...).solve["),
        ("kind", TypeError, "Wrong.forward_dynamics returned shape (2,); return jaxdae.systems."),
    ],
)
def test_what_is_declared_wrongly_is_found(which, error, words):
    rod = {"mass": 1.0, "centre": (0, 0, -0.5), "inertia": (0.1, 0.1, 0.02)}
    bodies = [
        Body("upper", Hinge("a", (0, 1, 0)), **rod),
        Body("lower", Hinge("b", (0, 1, 0)), "upper", (0, 0, -1), **rod),
    ]
    state = jaxdae.State(jnp.array([0.3, -0.2]), jnp.array([1.0, 0.5]))
    with pytest.raises(error, match=re.escape(words)):
        jaxdae.check_system(Wrong(bodies, which=which), state)


def test_velocities_of_another_number_are_refused(moving):
    system, state = moving
    with pytest.raises(ValueError, match=re.escape("have 16 velocities; got shape (19,)")):
        system.speeds(state.q)


def rods(axis=(0.0, 1.0, 0.0)) -> Multibody:
    """Two rods on hinges, the second one on an axis of its own."""
    rod = {"mass": 1.0, "centre": (0, 0, -0.5), "inertia": (0.1, 0.1, 0.02)}
    return Multibody(
        [
            Body("upper", Hinge("a", (0, 1, 0)), **rod),
            Body("lower", Hinge("b", axis), "upper", (0, 0, -1), **rod),
        ]
    )


SWUNG = jaxdae.State(jnp.array([0.8, -0.4]), jnp.array([1.0, 2.0]))
SHORT: Any = {"t1": 0.2, "dt": 0.01, "solver": RK4()}


def end(system, backend, start=SWUNG):
    return jaxdae.simulate(system, jaxdae.Multipliers(), start, backend=backend, **SHORT).q[-1]


@pytest.mark.slow
def test_kernels_for_zeros_of_one_mechanism_are_not_those_of_another():
    """Zeros of an axis are constants of a kernel: with another axis it is another kernel."""
    for axis in ((0.0, 1.0, 0.0), (0.3, 1.0, 0.0), (0.0, 1.0, -0.2), (-0.0, 1.0, 0.0)):
        system = rods(axis)
        np.testing.assert_allclose(end(system, "native"), end(system, "plain"), atol=1e-13)

    # A batch has the numbers of all members, also where one of them is zero.
    axes = jnp.array([[0.0, 1.0, 0.0], [0.3, 1.0, 0.0]])
    turned = lambda axis: eqx.tree_at(lambda x: x.bodies[1].joints[0].axis, rods(), axis)  # noqa: E731
    both = jax.jit(jax.vmap(lambda axis: end(turned(axis), "native")))(axes)
    np.testing.assert_allclose(both[0], end(rods(), "plain"), atol=1e-13)
    np.testing.assert_allclose(both[1], end(turned(axes[1]), "plain"), atol=1e-13)


@pytest.mark.slow
def test_derivatives_by_numbers_that_are_zero():
    """By an entry of an axis and of a place that are zero: as differences, on both backends."""

    def moved(values, backend):
        where = lambda x: (x.bodies[1].joints[0].axis, x.bodies[1].position)  # noqa: E731
        system = eqx.tree_at(where, rods(), (values[:3], values[3:]))
        return end(system, backend)[1]

    at = jnp.array([0.0, 1.0, 0.0, 0.0, 0.0, -1.0])
    native, plain = (jax.grad(moved)(at, x) for x in ("native", "plain"))
    np.testing.assert_allclose(native, plain, rtol=1e-10, atol=1e-12)
    h = 1e-6
    steps = h * np.eye(6)
    differences = [(moved(at + x, "native") - moved(at - x, "native")) / (2 * h) for x in steps]
    np.testing.assert_allclose(native, differences, atol=1e-8)


def four_bar(axes: str) -> Multibody:
    """A planar loop, of which a common point in space is one equation too many."""
    rod = {"mass": 1.0, "centre": (0.15, 0, 0), "inertia": (0.01, 0.02, 0.02)}
    return Multibody(
        [
            Body("crank", Hinge("a", (0, 1, 0)), **rod),
            Body("coupler", Hinge("b", (0, 1, 0)), "crank", (0.3, 0, 0), **rod),
            Body("rocker", Hinge("c", (0, 1, 0)), None, (0.6, 0, 0.1), **rod),
        ],
        [Connection("pin", "coupler", "rocker", (0.6, 0, 0), (0.35, 0, 0), axes)],
    )


@pytest.mark.slow
@pytest.mark.parametrize("axes", ["xz", "xyz"])
def test_loops_through_the_factored_tree_are_those_by_the_mass_matrix(axes):
    """For independent constraints and for dependent ones, of which the rank is held."""

    class ByMatrix(Multibody):
        def forward_dynamics(self, t, q, v, force) -> Any:
            return None

    system = four_bar(axes)
    guess = jaxdae.State(jnp.array([-1.2, 1.0, -1.3]), jnp.array([1.0, 0.0, 0.0]))
    start = jaxdae.consistent_state(system, guess.q, guess.v)
    matrix = ByMatrix(system.bodies, system.loops)
    short = {**SHORT, "backend": "native"}
    runs = [jaxdae.simulate(x, jaxdae.Multipliers(), start, **short) for x in (system, matrix)]
    np.testing.assert_allclose(runs[0].q, runs[1].q, atol=1e-11)
    np.testing.assert_allclose(runs[0].multipliers, runs[1].multipliers, rtol=1e-8, atol=1e-8)
    assert runs[0].held_rank == (2 if axes == "xyz" else None)


def large_tree(bodies: int) -> Multibody:
    """Many bodies on hinges, slides and balls, each on one of those shortly before it."""
    rng = np.random.default_rng(5)
    kinds: list[Any] = [
        lambda i: Hinge(f"h{i}", rng.normal(size=3), anchor=0.1 * rng.normal(size=3)),
        lambda i: Slide(f"s{i}", rng.normal(size=3), stiffness=5.0),
        lambda i: Ball(f"b{i}", 0.1 * rng.normal(size=3)),
    ]
    made = []
    for i in range(bodies):
        mass = rng.uniform(0.5, 1.5)
        parent = f"body{rng.integers(max(0, i - 4), i)}" if i else None
        made.append(
            Body(
                f"body{i}", kinds[rng.integers(3)](i), parent, position=0.3 * rng.normal(size=3),
                mass=mass, centre=0.1 * rng.normal(size=3), inertia=mass * np.array([2, 3, 4]) / 99,
            )
        )  # fmt: skip
    return Multibody(made)


@pytest.mark.slow
def test_large_trees_are_loops_in_kernels_with_derivatives_in_both_modes():
    """By a step of the method of Runge and Kutta, on Newton-Euler and composite rigid bodies."""
    system, h = large_tree(45), 1e-3
    start = system.start()
    v = jnp.asarray(0.5 * np.random.default_rng(6).normal(size=start.v.size))
    assert v.size > 70

    def end(mass, backend):
        changed = eqx.tree_at(lambda x: x.bodies[7].mass, system, mass)
        if backend == "native":
            run = jaxdae.simulate(
                changed, jaxdae.Multipliers(), jaxdae.State(start.q, v), t1=h, dt=h, solver=RK4(),
                backend="native", throw=False,
            )  # fmt: skip
            return jnp.sum(jnp.sin(run.q[-1])) + jnp.sum(run.v[-1] ** 2)

        def rate(q, v):
            bias = changed.bias_force(0.0, q, v)
            return changed.rate(0.0, q, v), jnp.linalg.solve(changed.mass_matrix(0.0, q), -bias)

        def after(part, slope):
            return start.q + part * h * slope[0], v + part * h * slope[1]

        slopes = [rate(start.q, v)]
        for part in (0.5, 0.5, 1.0):
            slopes.append(rate(*after(part, slopes[-1])))
        first, second, third, fourth = slopes
        mean = [
            (a + 2 * b + 2 * c + d) / 6
            for a, b, c, d in zip(first, second, third, fourth, strict=True)
        ]
        q, u = after(1.0, mean)
        return jnp.sum(jnp.sin(q)) + jnp.sum(u**2)

    value, slope = jax.value_and_grad(lambda x: end(x, "native"))(1.0)
    by_matrix = jax.jit(lambda x: end(x, "matrix"))
    # The condition of the mass matrix times round-off.
    np.testing.assert_allclose(value, by_matrix(1.0), rtol=1e-11)
    difference = (by_matrix(1.0 + 1e-3) - by_matrix(1.0 - 1e-3)) / 2e-3
    np.testing.assert_allclose(slope, difference, rtol=1e-5)
    along = jax.jvp(lambda x: end(x, "native"), (1.0,), (1.0,))[1]
    np.testing.assert_allclose(along, slope, rtol=1e-9)
    members = jax.vmap(jax.grad(lambda x: end(x, "native")))(jnp.array([1.0, jnp.nan, 1.0]))
    np.testing.assert_allclose(members[::2], slope, rtol=1e-9)


@pytest.mark.slow
def test_gradients_by_masses_and_lengths_of_a_closed_loop():
    system = four_bar("xz")
    guess = jaxdae.State(jnp.array([-1.2, 1.0, -1.3]), jnp.array([1.0, 0.0, 0.0]))

    def moved(values, backend):
        where = lambda x: (x.bodies[0].mass, x.loops[0].anchor)  # noqa: E731
        anchor = jnp.array([0.6, 0.0, 0.0]).at[0].set(values[1])
        changed = eqx.tree_at(where, system, (values[0], anchor))
        start = jaxdae.consistent_state(changed, guess.q, guess.v)
        return end(changed, backend, start)[0]

    at = jnp.array([1.0, 0.6])
    native = jax.grad(moved)(at, "native")
    forward = jax.jacfwd(lambda x: moved(x, "native"))(at)
    np.testing.assert_allclose(native, forward, rtol=1e-9)
    h = 1e-5
    steps = h * np.eye(2)
    differences = [(moved(at + x, "native") - moved(at - x, "native")) / (2 * h) for x in steps]
    np.testing.assert_allclose(native, differences, rtol=1e-6)


def test_motions_with_a_mass_below_zero_are_not_finite():
    """Where a program is given its mass: as with a mass matrix, no motion that looks like one."""
    given = lambda mass: eqx.tree_at(lambda x: x.bodies[1].mass, rods(), mass)  # noqa: E731

    @jax.jit
    def acceleration(mass):
        force = jnp.zeros(2)
        return given(mass).forward_dynamics(0.0, SWUNG.q, SWUNG.v, force).acceleration

    assert np.isfinite(acceleration(1.0)).all()
    assert np.isnan(acceleration(-1.0)).all()


class Lever(Hinge):
    """A hinge of one's own, turned the other way where it is reversed."""

    reversed: bool = eqx.field(static=True, default=False)

    def steps(self, values):
        return super().steps(-values if self.reversed else values)

    def axes(self, dtype):
        ((axis,),) = super().axes(dtype)
        return ((axis.times(jnp.asarray(-1.0, dtype)) if self.reversed else axis,),)


def test_joints_of_one_class_with_other_settings_are_not_taken_together():
    rod = {"mass": 1.0, "centre": (0, 0, -0.5), "inertia": (0.1, 0.1, 0.02)}
    upper = Body("upper", Lever("a", (0, 1, 0)), **rod)
    lower = Body("lower", Lever("b", (0, 1, 0), reversed=True), "upper", (0, 0, -1), **rod)
    q = jnp.array([0.3, 0.2])
    poses, same = Multibody([upper, lower]).poses(q), rods().poses(q * jnp.array([1.0, -1.0]))
    np.testing.assert_allclose(poses["lower"].turn, same["lower"].turn, atol=1e-15)


def test_a_mechanism_needs_a_body_and_a_joint():
    with pytest.raises(ValueError, match="Multibody: give it a body at least"):
        Multibody([])
    with pytest.raises(ValueError, match="Multibody: no body has a joint, so that nothing moves"):
        Multibody([Body("wall", mass=1.0, inertia=(1.0, 1.0, 1.0))])
