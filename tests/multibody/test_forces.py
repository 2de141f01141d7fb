"""Force elements against exact solutions, forces derived by hand, and balances of energy."""

import dataclasses
import itertools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae.formulations import SignLaw
from jaxdae.multibody import (
    Ball,
    BallTransmission,
    Body,
    BoxDrag,
    Bushing,
    Characteristic,
    Coordinate,
    Cylinder,
    Distance,
    DryFriction,
    ElectricMotor,
    FixedTendon,
    GravityCompensation,
    Hinge,
    JointDamper,
    JointSpring,
    Load,
    Marker,
    Motor,
    Multibody,
    PointForce,
    reactions_at,
    Site,
    Slide,
    SpatialTendon,
    Sphere,
    SpringDamper,
    Stop,
    TorsionSpring,
    UserForce,
    Wrench,
)
from jaxdae.multibody.bodies import AbstractLoop
from jaxdae.solvers import RK4

BAR = {"mass": 1.0, "centre": (0.2, 0.05, 0.0), "inertia": (0.01, 0.03, 0.03)}
BODIES = (
    Body("arm", Hinge("shoulder", (0, 1, 0)), position=(0, 0, 1), **BAR),
    Body("hand", (Hinge("elbow", (0, 1, 1)), Slide("reach")), "arm", position=(0.4, 0, 0), **BAR),
)
BASE = Marker(None, (0.5, 0.2, 0.0), (1.0, 0.0, 0.1, 0.0))
TIP = Marker("hand", (0.3, 0.0, 0.1), (1.0, 0.2, 0.1, 0.3))


ROPE = SpatialTendon(
    [BASE, Sphere(Marker(None, (0.3, 0.1, 0.5)), 0.1), Marker("arm", (0.1, 0, 0.1)), TIP]
)


def _thrust(t, motion, w, u):
    wrench = Wrench(jnp.stack([u[0], jnp.sin(t), 0.0]), jnp.zeros(3))
    return Load({"hand": wrench}, {"elbow": -0.1 * motion.speeds["elbow"] ** 3})


FORCES = (
    SpringDamper("strut", Distance(BASE, TIP), 20.0, 0.5, 2.0),
    TorsionSpring("twist", BASE, TIP, (3.0, 0.5), 0.2),
    Bushing("bushing", BASE, TIP, (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), 0.1, 0.05),
    JointSpring("spring", "elbow", (2.0, 1.0)),
    JointDamper("damper", "reach", (1.0, 0.5, 0.2)),
    Stop("stop", "reach", 500.0, -0.1, 0.1, dissipation_factor=0.5, depth=0.02),
    DryFriction("friction", "elbow", 0.3, 0.05),
    SpringDamper("sum", FixedTendon({"shoulder": 1.0, "reach": 2.0}), 3.0, 0.1, 0.2),
    SpringDamper("rope", ROPE, 9.0, (0, 0.7)),
    PointForce("pull", TIP, lambda t, pose, twist: jnp.stack([jnp.sin(3 * t), 0.0, 1.0])),
    PointForce("jet", TIP, (1.0, 0, 0), (0, 0, 0.3), follows=True),
    GravityCompensation("lift", "arm", 0.5),
    BoxDrag("drag", TIP, (0.2, 0.1, 0.3), 1.2, 0.3, (1.0, 0, 0)),
    ElectricMotor("voltage", "elbow", 1.0, 0.1, 0.2, gear=5.0),
    Motor("propeller", Site(TIP, (1, 2, 3, 0.1, 0.2, 0.3)), dynamics="filter", time_constant=0.1),
    UserForce("user's", _thrust, inputs=("thrust",)),
    Characteristic("quartic", "reach", lambda t, x, s: -0.1 * s * x**2, lambda x: x**4),
)
ARM = Multibody(BODIES, motors=[Motor("drive", "shoulder", 2.0)], forces=FORCES)
START = jaxdae.State([0.3, -0.4, 0.05], [0.5, 0.2, -0.3], [0.1, 0.2])


def _run(system, state, backend: Any = "native", t1=0.4, dt=0.005, **settings):
    return jaxdae.simulate(
        system, jaxdae.Multipliers(), state, t1=t1, dt=dt, solver=RK4(), backend=backend, **settings
    )


def _inputs(t, q, v, w):
    return jnp.array([1.0, 2.0, 0.5, 0.3], t.dtype) * jnp.cos(t)


@pytest.fixture(scope="module")
def run():
    return _run(ARM, START, controller=_inputs, work=True)


def test_energy_changes_by_the_work_of_what_is_not_conservative(run):
    """Of all elements at once: those with an energy keep what those with a load give and take."""
    labels = run.system.labels()
    assert labels.inputs == ("drive", "voltage", "propeller", "thrust")
    assert labels.actuators == ("current of voltage", "activation of propeller")
    assert float(abs(run.energy - run.energy[0]).max()) > 1
    # Of order 4: 1e-6 at this step, 3e-8 at half of it.
    assert run.energy_error < 1e-5
    assert float(run.work.dissipation[-1]) < -0.1


@pytest.mark.slow
def test_both_backends_make_the_same_motion(run):
    plain = _run(ARM, START, controller=_inputs, backend="plain")
    # Rounding of 80 steps of some thousand operations.
    np.testing.assert_allclose(plain.q, run.q, rtol=0, atol=1e-12)
    np.testing.assert_allclose(plain.w, run.w, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_elements_in_single_precision(run):
    start = jax.tree.map(lambda x: x.astype(jnp.float32), START)
    short = _run(ARM, start, controller=_inputs)
    assert {x.dtype for x in (short.q, short.v, short.w)} == {np.dtype("float32")}
    # Stiffnesses of 500 times positions of 1e-7, over some tenths of a second.
    np.testing.assert_allclose(short.q, run.q, rtol=0, atol=1e-4)


POINT = Body("point", (Slide("x", (1, 0, 0)), Slide("y", (0, 1, 0))), mass=2.0)
SOCKET = Body("socket", Ball("ball"), mass=1.0, inertia=(1.0, 1.0, 2.0))
TURNED = Body("disk", Hinge("angle", (0, 0, 1)), mass=1.0, inertia=(1.0, 1.0, 2.0))


def _applied(system, q, v=None, w=None, u=None, t=0.0):
    """Generalized force `-dV/dq - dD/dv + force`, without weights."""
    q = jnp.asarray(q, float)
    v = jnp.zeros_like(q) if v is None else jnp.asarray(v, float)
    system = dataclasses.replace(system, gravity=jnp.zeros(3))
    slope = jax.grad(system.potential_energy, argnums=1)(t, q)
    damping = jax.grad(system.dissipation, argnums=2)(t, q, v)
    return np.asarray(system.force(t, q, v, w, u) - slope - damping)


def test_a_motor_with_a_current_is_a_linear_circuit_beside_an_oscillator():
    """By the exponential of the matrix of `(x, x', i)`, with a constant voltage."""
    m, k, d, R, L, kt, n, voltage = 2.0, 8.0, 0.5, 0.7, 0.3, 0.4, 3.0, 1.5
    system = Multibody(
        [Body("mass", Slide("x"), mass=m)],
        forces=(
            SpringDamper("spring", "x", k, 0.2, d),
            ElectricMotor("u", "x", R, L, kt, gear=n),
        ),
    )
    matrix = np.array([[0, 1, 0], [-k / m, -d / m, kt * n / m], [0, -kt * n / L, -R / L]])
    rest = np.linalg.solve(matrix, [0, -0.2 * k / m, -voltage / L])
    run = _run(system, system.start(), t1=1.0, dt=0.002, controller=lambda *_: jnp.array([voltage]))
    exact = rest + scipy.linalg.expm(matrix) @ (np.zeros(3) - rest)
    # RK4's error of 500 steps: below 1e-11.
    found = [run.q[-1, 0], run.v[-1, 0], run.w[-1, 0]]
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-10)


def test_a_strut_pulls_along_the_line_between_its_ends():
    """In a plane, with the force derived by hand; a rope of the same length hangs inside."""
    anchor, k, d, relaxed = np.array([0.3, -0.2, 0.4]), 7.0, 0.6, 0.5
    q, v = np.array([1.0, 0.7]), np.array([-0.4, 0.9])
    apart = np.array([*q, 0.0]) - anchor
    length = np.linalg.norm(apart)
    rate = apart @ [*v, 0.0] / length
    wanted = -(k * (length - relaxed) + d * rate) * apart[:2] / length
    line = Distance(Marker(None, anchor), Marker("point"))
    strut = Multibody([POINT], forces=[SpringDamper("strut", line, k, relaxed, d)])
    np.testing.assert_allclose(_applied(strut, q, v), wanted, rtol=1e-13)
    rope = SpatialTendon([Marker(None, anchor), Marker("point")])
    rope = Multibody([POINT], forces=[SpringDamper("rope", rope, k, (0.0, length + 0.1))])
    np.testing.assert_allclose(_applied(rope, q), 0.0, atol=1e-15)


def test_a_rope_around_a_drum_is_a_helix_that_does_not_slip():
    """Two tangents and an arc, unrolled with what lies along the axis; by hand, and its slopes."""
    drum = Cylinder(Marker(None, (0.1, 0.2, 0.0)), 0.3)
    rope = SpatialTendon([Marker(None, (0.9, 0.3, -0.4)), drum, Marker("point")])
    system = Multibody([POINT], forces=[SpringDamper("rope", rope, 1.0)], gravity=(0, 0, 0))
    q = np.array([-0.6, 0.15])

    def length(q):
        ends = np.array([0.8, 0.1]), q - [0.1, 0.2]
        far = [np.hypot(*x) for x in ends]
        between = np.arccos(ends[0] @ ends[1] / (far[0] * far[1]))
        arc = between - np.arccos(0.3 / far[0]) - np.arccos(0.3 / far[1])
        assert arc > 0
        flat = sum(np.sqrt(x**2 - 0.09) for x in far) + 0.3 * arc
        return np.hypot(flat, 0.4)

    slopes = [(length(q + s) - length(q - s)) / 2e-6 for s in 1e-6 * np.eye(2)]
    wanted = -length(q) * np.array(slopes)
    # Differences of the second order, and round-off over the step.
    np.testing.assert_allclose(_applied(system, q), wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(system.potential_energy(0.0, jnp.asarray(q)), length(q) ** 2 / 2)


@pytest.mark.parametrize("angle", [-3.0, -0.4, 0.0, 1e-9, 0.05, 0.11, 2.0, 3.1])
def test_springs_of_rotation_are_linear_in_the_angle_up_to_half_a_turn(angle):
    """A bushing's displacement in axes of the first frame, which is turned, by hand."""
    place, turned = np.array([0.3, 0.1, 0.0]), (np.cos(0.2), 0, 0, np.sin(0.2))
    first, second = Marker(None, (0.1, 0.2, 0), turned), Marker("disk", place, turned)
    springs = [
        TorsionSpring("twist", first, second, 3.0, 0.5),
        Bushing("bushing", first, second, (2.0, 5.0, 7.0), (9.0, 8.0, 4.0), 0.0, 0.7),
    ]
    cos, sin = np.cos(angle), np.sin(angle)
    out = np.array([[cos, -sin], [sin, cos]]) @ place[:2]
    axes = np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    pull = axes @ (np.array([2.0, 5.0]) * (axes.T @ (out - [0.1, 0.2])))
    wanted = -7.0 * angle - (0.5 + 0.7) * 0.3 - (out[0] * pull[1] - out[1] * pull[0])
    found = _applied(Multibody([TURNED], forces=springs), [angle], [0.3])
    np.testing.assert_allclose(found, [wanted], rtol=1e-12)


def test_springs_keep_their_stiffness_where_they_are_relaxed():
    """Where a direction, an angle's axis or the nearer end of a range is none."""
    line = Distance(Marker(None), Marker("point"))
    none = Multibody([POINT], forces=[SpringDamper("spring", line, 5.0)], gravity=(0, 0, 0))
    bent = jax.hessian(lambda q: none.potential_energy(0.0, q))
    np.testing.assert_allclose(bent(jnp.zeros(2)), 5.0 * np.eye(2), rtol=1e-12)
    np.testing.assert_allclose(_applied(none, [0.0, 0.0]), 0.0)
    twist = TorsionSpring("twist", Marker(None), Marker("disk"), 3.0)
    spring = SpringDamper("spring", "angle", 2.0, (0.0, 0.0))
    disk = Multibody([TURNED], forces=[twist, spring], gravity=(0, 0, 0))
    bent = jax.hessian(lambda q: disk.potential_energy(0.0, q))
    np.testing.assert_allclose(bent(jnp.zeros(1)), [[5.0]], rtol=1e-12)


def test_a_force_at_a_point_does_the_work_of_its_path():
    """Against differences of the point's place and of the body's turn, in space and with it."""
    q, u, step = np.array([0.3, -0.4, 0.05]), np.array([1.5]), 1e-6
    force, torque = np.array([1.0, -2.0, 0.5]), np.array([0.3, 0.4, -0.6])
    poses = {x: TIP.pose(ARM.poses(jnp.asarray(q + y))) for x, y in
             (((i, s), s * step * np.eye(3)[i]) for i in range(3) for s in (-1, 1))}  # fmt: skip
    turn = np.asarray(TIP.pose(ARM.poses(jnp.asarray(q))).turn)

    def work(i, force, torque):
        low, high = poses[i, -1], poses[i, 1]
        skew = (np.asarray(high.turn) - low.turn) @ turn.T
        spin = np.array([skew[2, 1], skew[0, 2], skew[1, 0]])
        return (force @ (np.asarray(high.place) - low.place) + torque @ spin) / (2 * step)

    def of(element):
        return _applied(Multibody(BODIES, forces=[element]), q, u=jnp.asarray(u))

    in_space = [work(i, force, torque) for i in range(3)]
    with_it = [work(i, turn @ force, turn @ torque) for i in range(3)]
    # Differences: 1e-12 of third derivatives, and round-off over the step.
    close = {"rtol": 0, "atol": 1e-9}
    np.testing.assert_allclose(of(PointForce("f", TIP, force, torque)), in_space, **close)
    np.testing.assert_allclose(
        of(PointForce("f", TIP, force, torque, follows=True)), with_it, **close
    )
    site = Motor("f", Site(TIP, [*force, *torque]))
    np.testing.assert_allclose(of(site), 1.5 * np.array(with_it), **close)


def test_a_stop_has_the_energy_of_its_force_and_loses_by_impacts():
    stop = Stop("stop", "angle", 40.0, -0.3, 0.2, depth=0.05)
    system = Multibody([TURNED], forces=[stop], gravity=(0, 0, 0))
    force = jax.jit(jax.grad(lambda q: -system.potential_energy(0.0, q)))
    for end in (-0.5, -0.32, 0.0, 0.21, 0.25, 0.6):
        work, _ = scipy.integrate.quad(
            lambda x: float(force(jnp.array([x]))[0]), 0.0, end, points=[-0.3, -0.35, 0.2, 0.25]
        )
        np.testing.assert_allclose(system.potential_energy(0.0, jnp.array([end])), -work, atol=1e-9)
    # Linear behind the depth, as if from half of it on.
    np.testing.assert_allclose(force(jnp.array([0.5])), [-40.0 * (0.3 - 0.025)], rtol=1e-13)
    hard = dataclasses.replace(
        stop, stiffness=4e4, depth=1e-3, dissipation_factor=3 * (1 - 0.8) / 2 / 1.5
    )
    run = _run(
        dataclasses.replace(system, forces=[hard]), jaxdae.State([0.1], [1.5]), t1=0.12, dt=5e-5
    )
    # The rule for d is of first order in 1 - e.
    np.testing.assert_allclose(-run.v[-1, 0] / 1.5, 0.8, rtol=0, atol=0.04)


def test_dry_friction_brakes_by_its_bound():
    system = Multibody([POINT], forces=[DryFriction("rub", "x", 3.0, 1e-3)], gravity=(0, 0, 0))
    run = _run(system, jaxdae.State([0.0, 0.0], [1.0, 0.5]), t1=0.5, dt=2e-3)
    np.testing.assert_allclose(run.v[-1], [1.0 - 3.0 / 2.0 * 0.5, 0.5], rtol=0, atol=1e-12)


class Slip(AbstractLoop):
    """The angular velocity of a body about an axis of its own, for `stick_slip`."""

    name: str = eqx.field(static=True)
    body: str = eqx.field(static=True)
    axis: Any

    def residuals(self, t, poses, values):
        return jnp.zeros(0, poses[None].place.dtype)

    def constraints(self, units):
        return ()

    def velocity_residuals(self, t, poses, twists):
        return (self.axis @ twists[self.body].spin)[None]

    def velocity_constraints(self):
        return ((self.name, "rad/s"),)


@pytest.mark.slow
def test_a_bearing_that_sticks_stops_a_pendulum_beside_its_lowest_position():
    """Each half swing loses the friction's work over its angle; it sticks where friction holds."""
    rod = Body("rod", Hinge("angle", (0, 1, 0)), mass=1.0, centre=(0, 0, -0.5), inertia=[0.1] * 3)
    system = Multibody([rod], loops=[Slip("bearing", "rod", jnp.array([0, 1.0, 0]))])
    dry = jaxdae.stick_slip(system, SignLaw(0.5), jaxdae.State([1.5], [0.0]), static=0.6)
    run = jaxdae.simulate(
        dry.system, dry.formulation, dry.state, t1=6.0, dt=0.01, solver=RK4(), events=dry.events
    )
    turns = [1.5, *(float(x[0]) for x in run.events.before.q[:6])]
    for one, two in itertools.pairwise(turns):
        work = 0.5 * abs(two - one)
        # Of order 4 at steps of 0.01 s.
        np.testing.assert_allclose(4.905 * (np.cos(two) - np.cos(one)), work, rtol=0, atol=1e-7)
    assert [np.sin(abs(x)) * 4.905 > 0.6 for x in turns] == [True] * 6 + [False]
    np.testing.assert_allclose(run.q[-1], turns[-1], rtol=0, atol=1e-9)


STRUT = Multibody(
    [Body("rod", Hinge("angle", (0, 1, 0)), mass=1.0, centre=(0.5, 0, 0), inertia=(0, 0.1, 0.1))],
    motors=[Motor("torque", "angle", 2.0, 1.0, (0.1, -1.0, -0.2))],
    forces=[
        SpringDamper("strut", Distance(Marker(None, (0.2, 0, 0.9)), Marker("rod", (0.6, 0, 0.1))),
                     (20.0, 3.0), 0.5, (2.0, 0.5)),
    ],
)  # fmt: skip


def _numbers(system):
    """Stiffnesses, a relaxed length, dampings, anchors, the gear and gains of the motor."""
    strut, motor = system.forces[0], system.motors[0]
    line = strut.along
    return (strut.stiffness, strut.relaxed, strut.damping, line.first.place, line.second.place,
            motor.gear, motor.gain, motor.bias)  # fmt: skip


def _last_angle(numbers, **settings):
    system = eqx.tree_at(_numbers, STRUT, numbers)
    start = jaxdae.State([0.3], [0.5])
    found = _run(system, start, t1=0.3, dt=0.01, controller=lambda *_: jnp.ones(1), **settings)
    return found.q[-1, 0]


def test_derivatives_by_every_number_of_an_element():
    numbers = jax.tree.map(lambda x: jnp.asarray(x, float), _numbers(STRUT))
    reverse = jax.jit(jax.grad(_last_angle))(numbers)
    flat, unravel = ravel_pytree(numbers)
    program = jax.jit(lambda x: _last_angle(unravel(x)))
    steps = 1e-5 * np.eye(flat.size)
    differences = [(program(flat + s) - program(flat - s)) / 2e-5 for s in steps]
    exact = ravel_pytree(reverse)[0]
    # Of the second order in the step, and round-off over it.
    np.testing.assert_allclose(exact, differences, rtol=0, atol=1e-9)
    along = jnp.asarray(np.random.default_rng(0).normal(size=flat.size))
    _, forward = jax.jvp(program, (flat,), (along,))
    np.testing.assert_allclose(forward, exact @ along, rtol=1e-11)
    # Nothing that the angle does not depend on: along its axis.
    assert np.count_nonzero(np.abs(exact) > 1e-6) >= 13


def test_a_failed_member_leaves_the_others_as_they_are():
    numbers = jax.tree.map(lambda x: jnp.asarray(x, float), _numbers(STRUT))
    flat, unravel = ravel_pytree(numbers)
    members = jnp.stack([flat, flat.at[0].set(jnp.nan), flat.at[0].set(25.0)])
    lone = jax.value_and_grad(lambda x: _last_angle(unravel(x), throw=False))
    values, slopes = jax.jit(jax.vmap(lone))(members)
    assert np.isfinite(np.asarray(values)).tolist() == [True, False, True]
    for i in (0, 2):
        value, slope = jax.jit(lone)(members[i])
        np.testing.assert_allclose(values[i], value, rtol=1e-13)
        np.testing.assert_allclose(slopes[i], slope, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Multibody(BODIES, forces=[JointSpring("s", "knee", 1.0)]),
            "the joint of force 's' is 'knee'; there are: shoulder, elbow, reach.",
        ),
        (
            lambda: Multibody(BODIES, forces=[SpringDamper("s", Distance(BASE, Marker("leg")))]),
            "second of force 's' is 'leg'; there are: arm, hand.",
        ),
        (
            lambda: Multibody([SOCKET], forces=[SpringDamper("s", "ball", 1.0)]),
            "the joint of force 's' is 'ball', which is no hinge or slide. Along hinges and slides",
        ),
        (
            lambda: Multibody([TURNED], [], [Motor("m", BallTransmission("angle", (1, 2, 3)))]),
            "the joint of motor 'm' is 'angle', which is no ball. Along hinges",
        ),
        (lambda: Multibody(BODIES, forces=[FORCES[0]] * 2), "two forces are called 'strut'"),
        (
            lambda: Multibody(BODIES, [], [Motor("u", "elbow")], forces=[Motor("u", "reach")]),
            "two inputs are called 'u'",
        ),
        (
            lambda: Multibody([TURNED], forces=[JointDamper("d", None, 1.0)]),  # pyright: ignore
            "the joint of force 'd' is None; name a joint.",
        ),
        (
            lambda: GravityCompensation("g", None),  # pyright: ignore
            "GravityCompensation 'g': the ground has no weight; name a body.",
        ),
        (lambda: SpringDamper("s", "a", [[1.0]]), "one number, or the coefficients of a polynom"),
        (lambda: SpringDamper("s", "a", 1.0, (0.5, 0.2)), "goes upwards; got 0.5 to 0.2"),
        (lambda: SpringDamper("s", "a", 1.0, (0, 1, 2)), "or two ends of a range; got shape (3,)"),
        (lambda: Characteristic("c", "a"), "Characteristic 'c' has no function: give force(t, x"),
        (lambda: FixedTendon({}), "FixedTendon has no joints: give a coefficient for one"),
        (lambda: SpatialTendon([BASE]), "a branch has two points or more; got 1."),
        (lambda: SpatialTendon([]), "a branch has two points or more; got 0."),
        (lambda: SpatialTendon([(BASE, TIP)], (1.0, 2.0)), "1 branches and 2 divisors"),
        (lambda: SpatialTendon([Sphere(BASE, 0.1), TIP]), "an obstacle lies between two Markers"),
        (
            lambda: SpatialTendon([BASE, Sphere(BASE, 0.1), Sphere(BASE, 0.2), TIP]),
            "at neither end of a branch and not beside another one. Put a Marker there.",
        ),
        (lambda: Sphere(BASE, 0.0), "Sphere: the radius is 0.0 m; it is positive."),
        (lambda: Sphere(BASE, 0.2, (0.1, 0, 0)), "its side is 0.1 m from the centre, within the r"),
        (lambda: Cylinder(BASE, 0.2, (0.1, 0, 9)), "tendons that run through it are not modelled"),
        (lambda: SpatialTendon([BASE, TIP], [0.0]), "a divisor is positive; got 0.0."),
        (lambda: Motor("m", "a", gain=(1.0, 2.0)), "gain and bias are one number, or three"),
        (lambda: Motor("m", "a", dynamics="muscle"), "dynamics is 'muscle'; there are: none, int"),
        (lambda: Motor("m", "a", dynamics="filter"), "of its filter is 0.0 s; it is positive."),
        (lambda: Motor("m", "a", input_range=(1, 0)), "a range goes upwards; got 1 to 0."),
        (lambda: ElectricMotor("m", "a", 1.0, 0.0, 1.0), "the inductance is 0.0 H; it is positive"),
        (lambda: ElectricMotor("m", "a", -1.0, 1.0, 1.0), "the resistance is -1.0 ohm"),
        (lambda: Stop("s", "a", 1.0), "Stop 's' has no end: give lower or upper."),
        (lambda: Stop("s", "a", 1.0, 1.0, 1.0), "lower, 1.0, is not below upper, 1.0."),
        (lambda: Stop("s", "a", 1.0, 1.0, depth=0.0), "depth is 0.0; it is positive."),
        (lambda: DryFriction("f", "a", 1.0, 0.0), "speed is 0.0; it is positive: below it"),
        (lambda: Site(BASE, (1.0, 2.0)), "gear has 6 components, of force and torque"),
        (lambda: BoxDrag("d", TIP, (1, -1, 1)), "sides, [1.0, -1.0, 1.0], is negative."),
        (lambda: BoxDrag("d", TIP, (1, 1, 1), -1.0), "density, -1.0, is negative."),
        (lambda: BoxDrag.of_inertia("d", TIP, 0.0, (1, 1, 1)), "the mass is 0.0 kg; it is positi"),
        (lambda: UserForce("f"), "UserForce 'f' has no function: give function(t, motion, w, u)"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SpringDamper("s", 3.0), "a force acts along a length or the name of a hinge"),  # pyright: ignore
        (lambda: SpatialTendon([BASE, "drum"]), "has Markers, and between them a Sphere or a Cyl"),  # pyright: ignore
        (lambda: SpatialTendon(["a", "b"]), "has Markers, and between them a Sphere or a Cylind"),  # pyright: ignore
        (
            lambda: Multibody([TURNED], forces=["x"]),  # pyright: ignore
            "motors and forces are force elements; got 'x'",
        ),
        (lambda: UserForce("f", _thrust, inputs="u"), "inputs are a tuple of names; got 'u'."),  # pyright: ignore
        (lambda: UserForce("f", 3.0), "UserForce 'f': 3.0 is not callable."),  # pyright: ignore
        (
            lambda: _applied(Multibody([TURNED], forces=[UserForce("f", lambda *_: 0.0)]), [0.0]),
            "the function of UserForce 'f' returned float; it returns a jaxdae.multibody.Load",
        ),
    ],
)
def test_what_is_of_another_kind_is_refused(make, words):
    with pytest.raises(TypeError, match=re.escape(words)):
        make()


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (
            Load({"leg": Wrench(jnp.zeros(3), jnp.zeros(3))}),
            "'f' acts on the body 'leg'; there are:",
        ),
        (Load({}, {"knee": jnp.zeros(1)}), "acts on the joint 'knee'; there are: angle."),
        (Load({"disk": Wrench(jnp.zeros(3), jnp.zeros(2))}), "of shapes (3,) and (2,) on the body"),
        (
            Load({}, {"angle": jnp.zeros(())}),
            "has shape (); velocities of the joint have shape (1,)",
        ),
    ],
)
def test_loads_that_nothing_can_have_are_refused(load, words):
    system = Multibody([TURNED], forces=[UserForce("f", lambda *_: load)])
    with pytest.raises(ValueError, match=re.escape(words)):
        _applied(system, [0.0])


def test_too_few_states_or_inputs_are_refused():
    q = jnp.zeros(3)
    for w, u, words in (
        (jnp.zeros(0), None, "2 actuator states (current of voltage, activation of propeller); g"),
        (None, jnp.zeros(1), "4 control inputs (drive, voltage, propeller, thrust); got 1. start"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            ARM.force(0.0, q, q, w, u)


def test_the_relaxed_coordinates_of_a_spring_are_those_of_its_joint():
    system = Multibody([TURNED], forces=[JointSpring("s", "angle", 1.0, (1.0, 0, 0, 0))])
    with pytest.raises(ValueError, match=re.escape("relaxed has shape (4,); the joint 'angle' ha")):
        system.potential_energy(0.0, jnp.zeros(1))


@pytest.mark.parametrize(
    "element",
    [
        SpringDamper("strut", Distance(BASE, TIP), (20.0, 3.0), (0.1, 0.2), (2.0, 0.5)),
        Stop("stop", Distance(BASE, TIP), 500.0, 2.0, 2.5, dissipation_factor=0.5, depth=0.2),
        Stop("stop", Distance(BASE, TIP), 500.0, None, 0.3, dissipation_factor=0.5, depth=0.2),
    ],
    ids=["spring", "lower", "upper"],
)
def test_the_force_of_an_element_along_its_length_is_the_one_that_acts(element):
    system = Multibody(BODIES, forces=[element])
    q, v = START.q, START.v
    motion = system.motion(q, v)
    pulled = Motor("same", element.along)
    same = Multibody(BODIES, motors=[pulled])
    force = element.force(motion)
    assert abs(force) > 1
    np.testing.assert_allclose(
        _applied(same, q, v, u=force[None]), _applied(system, q, v), rtol=1e-12, atol=1e-13
    )


def test_forces_between_two_bodies_are_opposite_and_those_of_the_generalized_force():
    """Their sum and their moment about the origin are zero, springs and dampers together."""
    other = Marker("arm", (0.1, 0.2, -0.1), (1.0, 0.3, 0.2, 0.1))
    between = Multibody(
        BODIES,
        forces=[
            SpringDamper("strut", Distance(other, TIP), 20.0, 0.1, 2.0),
            TorsionSpring("twist", other, TIP, (3.0, 0.5), 0.2),
            Bushing("bushing", other, TIP, (1.0, 2.0, 3.0), (0.1, 0.2, 0.3), 0.1, 0.05),
        ],
    )
    q, v = START.q, START.v
    wrenches = between.applied_wrenches(0.0, q, v, None, None)
    force, moment = np.zeros(3), np.zeros(3)
    for name, wrench in wrenches.items():
        pose = between.poses(q)[name]
        here = np.asarray(pose.turn @ wrench.force)
        force += here
        moment += np.asarray(pose.turn @ wrench.torque) + np.cross(pose.place, here)
    np.testing.assert_allclose(force, 0.0, atol=1e-13)
    np.testing.assert_allclose(moment, 0.0, atol=1e-13)
    of_bodies = lambda v: {k: between.twists(q, v)[k] for k in wrenches}  # noqa: E731
    twists, pull = jax.vjp(of_bodies, v)
    dual = {k: type(x)(*wrenches[k]) for k, x in twists.items()}
    np.testing.assert_allclose(pull(dual)[0], _applied(between, q, v), rtol=1e-12, atol=1e-13)


def test_reactions_know_what_forces_exert_on_bodies():
    """By hand: `m c'' - m g` less spring, damper and thrust at the tip of a rod on a hinge."""
    tip, foot, inertia, u = np.array([0.6, 0.1, 0.0]), np.array([0.2, 0.7, 0.3]), 0.3, 1.7
    rod = Body("rod", Hinge("angle"), mass=1.5, centre=(0.5, 0, 0), inertia=(0.2, 0.2, inertia))
    line, at_tip = Distance(Marker(None, foot), Marker("rod", tip)), Marker("rod", tip)
    system = Multibody(
        [rod],
        motors=[Motor("thrust", Site(at_tip, (0, 1.0, 0.5, 0.2, 0, 0)))],
        forces=[SpringDamper("strut", line, 20.0, 0.4, 3.0), PointForce("pull", at_tip, (1, 2, 3))],
    )
    angle, rate = 0.4, 1.3
    cos, sin = np.cos(angle), np.sin(angle)
    turn = np.array([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1]])
    lever = turn @ tip
    apart, velocity = lever - foot, rate * np.array([-lever[1], lever[0], 0])
    length = np.linalg.norm(apart)
    tension = 20.0 * (length - 0.4) + 3.0 * (apart @ velocity) / length
    applied = -tension * apart / length + [1, 2, 3] + u * turn @ [0, 1.0, 0.5]
    moment = np.cross(lever, applied) + u * turn @ [0.2, 0, 0]
    c = turn @ [0.5, 0, 0]
    weight = 1.5 * np.array([0, 0, -9.81])
    about = inertia + 1.5 * 0.25
    a = (moment + np.cross(c, weight))[2] / about
    of_centre = a * np.array([-c[1], c[0], 0]) - rate**2 * c
    found = reactions_at(system, 0.0, [angle], [rate], [a], np.zeros(0), u=[u])
    force = 1.5 * of_centre - weight - applied
    np.testing.assert_allclose(found.joints["angle"].force, force, rtol=1e-12, atol=1e-12)
    needed = [0, 0, about * a] - moment - np.cross(c, weight)
    needed += np.cross(c, 1.5 * of_centre) * [1, 1, 0]
    np.testing.assert_allclose(found.joints["angle"].moment, needed, rtol=1e-12, atol=1e-12)


def test_nothing_happens_to_the_ground_and_by_an_input_that_is_not_given():
    system = Multibody([TURNED], [], [Motor("u", Coordinate("angle"))], forces=[
        PointForce("push", BASE, (1.0, 2.0, 3.0)),
        UserForce("pair", lambda t, motion, w, u: Load({
            None: Wrench(jnp.ones(3), jnp.ones(3)), "disk": Wrench(jnp.ones(3), jnp.zeros(3)),
        })),
        UserForce("heat", rayleigh=lambda t, motion: 0.5 * motion.speeds["angle"][0] ** 2),
        UserForce("well", potential=lambda t, configuration: configuration.values["angle"][0]),
    ])  # fmt: skip
    np.testing.assert_allclose(_applied(system, [0.4], [2.0]), [-3.0])
