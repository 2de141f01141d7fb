"""Force elements against MuJoCo, which has passive forces, tendons, fluids and actuators, too."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

from jaxdae.multibody import (
    BallTransmission,
    BoxDrag,
    Cylinder,
    FixedTendon,
    GravityCompensation,
    JointDamper,
    JointSpring,
    Marker,
    Motor,
    Multibody,
    read_mujoco,
    Site,
    SpatialTendon,
    Sphere,
    SpringDamper,
)

# Compiled, without stubs.
MUJOCO: Any = mujoco

BODIES = """
<worldbody>
  <site name="ceiling" pos="-.2 .3 1.5"/>
  <site name="wall" pos=".8 .4 .9"/>
  <body name="crank" pos="0 0 1" euler="10 20 30" {crank}>
    <joint name="swing" axis="0 1 0" {swing}/>
    <geom type="box" size=".3 .05 .1" pos=".25 0 .02" euler="5 0 15"/>
    <site name="lug" pos=".2 .1 .05" euler="40 50 60"/>
    <body name="rod" pos=".5 0 0">
      <joint name="bend" axis="0 1 1" pos=".1 0 .1" {bend}/>
      <joint name="reach" type="slide" axis="1 2 0"/>
      <geom type="capsule" fromto="0 0 0 .5 .1 0" size=".05"/>
      <site name="hook" pos=".5 .1 0" euler="-20 10 70"/>
    </body>
  </body>
</worldbody>"""
FORCES = """
<tendon>
  <fixed name="sum" stiffness="4 2 3" damping=".5 .2 .1" springlength=".02 .05">
    <joint joint="swing" coef="1.5"/><joint joint="reach" coef="-.7"/>
  </fixed>
  <spatial name="rope" stiffness="30 5 2" damping="2 1 .5" springlength=".6">
    <site site="ceiling"/><site site="lug"/><site site="hook"/>
    <pulley divisor="2"/><site site="hook"/><site site="wall"/>
    <pulley divisor="3"/><site site="wall"/><site site="lug"/>
  </spatial>
</tendon>
<actuator>
  <general name="turn" joint="swing" gear="3" gainprm="2" biastype="affine" biasprm=".1 -2 -.3"/>
  <general name="pull" tendon="rope" gear="1.5" gaintype="affine" gainprm="2 .3 .4"
           ctrllimited="true" ctrlrange="-.4 .4" dyntype="filter" dynprm=".2"/>
  <general name="push" joint="reach" dyntype="integrator" forcelimited="true" forcerange="-.3 .3"/>
  <general name="jet" site="hook" gear="1 2 3 .4 .5 .6" gainprm="2"/>
</actuator>"""
PASSIVE = {
    "crank": 'gravcomp=".6"',
    "swing": 'stiffness="2 3 5" damping="1.5 .7 .3" springref="20"',
    "bend": 'stiffness="3" damping=".4"',
}
NOTHING = {"crank": "", "swing": "", "bend": ""}
FLUID = '<option density="1.2" viscosity=".9" wind="1 -2 .5"/>'
LUG = Marker("crank", (0.2, 0.1, 0.05))
HOOK = Marker("rod", (0.5, 0.1, 0.0))
CEILING, WALL = Marker(None, (-0.2, 0.3, 1.5)), Marker(None, (0.8, 0.4, 0.9))
SUM = FixedTendon({"swing": 1.5, "reach": -0.7})
ROPE = SpatialTendon([(CEILING, LUG, HOOK), (HOOK, WALL), (WALL, LUG)], (1.0, 2.0, 3.0))


def compiled(**values) -> Any:
    flags = "<option><flag contact='disable' energy='enable'/></option>"
    text = f"<mujoco>{flags}{FLUID}{BODIES.format(**values)}{FORCES}</mujoco>"
    return MUJOCO.MjModel.from_xml_string(text)


def site(model, name: str) -> Marker:
    site = model.site(name)
    return Marker(model.body(site.bodyid[0]).name, site.pos, site.quat)


def mechanism(model) -> Multibody:
    """Its bodies as they are read, and the forces by their numbers."""
    plain = read_mujoco(f"<mujoco>{BODIES.format(**NOTHING)}</mujoco>".replace(
        "<worldbody>", "<option><flag contact='disable'/></option><worldbody>")).system  # fmt: skip
    drag = [
        BoxDrag.of_inertia(
            f"drag of {body.name}", Marker(body.name, body.ipos, body.iquat), body.mass[0],
            body.inertia, model.opt.density, model.opt.viscosity, model.opt.wind,
        )
        for body in map(model.body, ("crank", "rod"))
    ]  # fmt: skip
    return dataclasses.replace(
        plain,
        motors=(
            Motor("turn", "swing", 3.0, 2.0, (0.1, -2.0, -0.3)),
            Motor("pull", ROPE, 1.5, (2.0, 0.3, 0.4), dynamics="filter", time_constant=0.2,
                  input_range=(-0.4, 0.4)),
            Motor("push", "reach", dynamics="integrator", force_range=(-0.3, 0.3)),
            Motor("jet", Site(site(model, "hook"), (1, 2, 3, 0.4, 0.5, 0.6)), gain=2.0),
        ),
        forces=(
            GravityCompensation("lift", "crank", 0.6),
            JointSpring("spring of swing", "swing", (2.0, 3.0, 5.0), np.deg2rad(20.0)),
            JointDamper("damper of swing", "swing", (1.5, 0.7, 0.3)),
            SpringDamper("strut of bend", "bend", 3.0, 0.0, 0.4),
            SpringDamper("sum", SUM, (4.0, 2.0, 3.0), (0.02, 0.05), (0.5, 0.2, 0.1)),
            SpringDamper("rope", ROPE, (30.0, 5.0, 2.0), (0.6, 0.6), (2.0, 1.0, 0.5)),
            *drag,
        ),
    )  # fmt: skip


def acting(system: Multibody, q, v, w, u):
    """Generalized forces of energies, dampers and loads; lengths of tendons; rates of states."""
    weightless = dataclasses.replace(system, motors=(), forces=())
    none = jnp.zeros(0)
    passive = dataclasses.replace(system, motors=())
    slope = jax.grad(
        lambda q: system.potential_energy(0.0, q) - weightless.potential_energy(0.0, q)
    )
    return {
        "spring": -slope(q),
        "damper": -jax.grad(lambda v: system.dissipation(0.0, q, v))(v),
        "fluid": passive.force(0.0, q, v, none, none),
        "motors": dataclasses.replace(system, forces=()).force(0.0, q, v, w, u),
        "rates": system.actuator_rate(0.0, q, v, w, u),
        "lengths": jnp.stack([x.moving(system.motion(q, v)).length for x in (SUM, ROPE)]),
        "speeds": jnp.stack([x.moving(system.motion(q, v)).rate for x in (SUM, ROPE)]),
    }


@pytest.fixture(scope="module")
def model():
    return compiled(**PASSIVE)


@pytest.fixture(scope="module")
def ours(model):
    return functools.partial(jax.jit(acting), mechanism(model))


@pytest.mark.parametrize("seed", range(4))
def test_all_forces_are_those_of_mujoco(model, ours, seed):
    """In random states, of which some are in the dead zone of the tendon or beyond a range."""
    rng, data = np.random.default_rng(seed), MUJOCO.MjData(model)
    data.qpos, data.qvel = 0.6 * rng.normal(size=3), rng.normal(size=3)
    data.ctrl, data.act = rng.normal(size=4), rng.normal(size=2)
    MUJOCO.mj_forward(model, data)
    found = ours(*map(jnp.asarray, (data.qpos, data.qvel, data.act, data.ctrl)))
    theirs = {
        "spring": data.qfrc_spring + data.qfrc_gravcomp,
        "damper": data.qfrc_damper,
        "fluid": data.qfrc_fluid,
        "motors": data.qfrc_actuator,
        "rates": data.act_dot,
        "lengths": data.ten_length,
        "speeds": data.ten_velocity,
    }
    # Sums of some hundred products, rounded in another order.
    for what, value in theirs.items():
        np.testing.assert_allclose(found[what], value, rtol=1e-11, atol=1e-11, err_msg=what)


BALL = """
<worldbody>
  <body name="plate" pos="1 2 3">
    <joint name="flight" type="free" {free}/>
    <geom type="box" size=".1 .2 .3" pos=".1 0 .2"/>
    <body name="arm" pos=".1 .1 .1" euler="10 50 20">
      <joint name="socket" type="ball" pos="0 .1 0" {ball}/>
      <geom type="box" size=".3 .1 .1" pos=".1 .1 0"/>
    </body>
  </body>
</worldbody>"""
TURNS = """
<actuator>
  <general joint="socket" gear="1 2 3" biastype="affine" biasprm=".1 -2 -.3"/>
  <general jointinparent="socket" gear="3 -1 2" biastype="affine" biasprm=".1 -2 -.3"/>
</actuator>"""
BALLS = {
    "free": 'stiffness="2 3 5" damping="1.5 .7 .3"',
    "ball": 'stiffness="7 1 2" damping=".5 .4 .2"',
}


@pytest.fixture(scope="module")
def balls():
    """The model, and generalized forces of the same: of springs, dampers and motors."""
    head = "<mujoco><option><flag contact='disable'/></option>"
    model = MUJOCO.MjModel.from_xml_string(f"{head}{BALL.format(**BALLS)}{TURNS}</mujoco>")
    plain = read_mujoco(f"{head}{BALL.format(free='', ball='')}</mujoco>").system
    bias = (0.1, -2.0, -0.3)
    system = dataclasses.replace(
        plain,
        motors=(
            Motor("turn", BallTransmission("socket", (1, 2, 3)), bias=bias),
            Motor("other", BallTransmission("socket", (3, -1, 2), in_parent=True), bias=bias),
        ),
        forces=(
            JointSpring("s", "flight", (2.0, 3.0, 5.0), model.qpos_spring[:7]),
            JointDamper("d", "flight", (1.5, 0.7, 0.3)),
            JointSpring("t", "socket", (7.0, 1.0, 2.0)),
            JointDamper("e", "socket", (0.5, 0.4, 0.2)),
        ),
        gravity=jnp.zeros(3),
    )

    def forces(system, q, v, u):
        slope = jax.grad(lambda q: system.potential_energy(0.0, q))(q)
        _, pull = jax.vjp(lambda v: system.rate(0.0, q, v), v)
        damping = jax.grad(lambda v: system.dissipation(0.0, q, v))(v)
        return -pull(slope)[0], -damping, system.force(0.0, q, v, None, u)

    return model, functools.partial(jax.jit(forces), system)


@pytest.mark.parametrize("seed", range(3))
def test_springs_dampers_and_motors_of_balls_and_free_bodies(balls, seed):
    """Quaternions of either sign, as MuJoCo takes the shorter way, too."""
    (model, forces), rng = balls, np.random.default_rng(seed)
    data = MUJOCO.MjData(model)
    data.qpos = rng.normal(size=11)
    data.qpos[3:7] /= np.linalg.norm(data.qpos[3:7])
    data.qpos[7:] /= np.linalg.norm(data.qpos[7:])
    data.qvel, data.ctrl = rng.normal(size=9), rng.normal(size=2)
    MUJOCO.mj_forward(model, data)
    found = forces(*map(jnp.asarray, (data.qpos, data.qvel, data.ctrl)))
    theirs = (data.qfrc_spring, data.qfrc_damper, data.qfrc_actuator)
    for what, value, other in zip(("spring", "damper", "motors"), found, theirs, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-11, atol=1e-11, err_msg=what)


def _slides(name, number):
    joints = "".join(
        f'<joint name="{name}{x}" type="slide" axis="{a}"/>'
        for x, a in zip("xyz", ("1 0 0", "0 1 0", "0 0 1"), strict=True)
    )
    return f"""<body name="{name}" pos="{number} 0 0">{joints}<geom size=".05"/>
    <site name="{name}" pos=".1 0 .1"/></body>"""


ROUND = f"""
<worldbody>
  <body name="ball" pos=".1 .2 .3" euler="20 30 40"><joint axis="1 1 0"/>
    <geom name="ball" size=".3" pos=".1 0 .05" mass="1"/><site name="beside" pos=".7 .5 .3"/></body>
  <body name="drum" pos="1 .3 .1" euler="-20 70 10"><joint axis="0 1 1"/>
    <geom name="drum" type="cylinder" size=".25 .1" pos="0 .1 0" euler="40 10 5" mass="1"/>
    <site name="above" pos=".3 .6 .2"/></body>
  {_slides("a", -1)}{_slides("b", 0.7)}{_slides("c", 2)}
</worldbody>"""


@pytest.fixture(scope="module", params=[False, True], ids=["shorter", "sides"])
def wrapping(request):
    """A tendon over a ball and a drum: the model, and lengths and slopes of the same."""
    sides = ('sidesite="beside"', 'sidesite="above"') if request.param else ("", "")
    tendon = f"""<tendon><spatial stiffness="2" springlength=".4"><site site="a"/>
      <geom geom="ball" {sides[0]}/><site site="b"/><geom geom="drum" {sides[1]}/><site site="c"/>
    </spatial></tendon>"""
    head = "<mujoco><option gravity='0 0 0'><flag contact='disable'/></option>"
    model = MUJOCO.MjModel.from_xml_string(f"{head}{ROUND}{tendon}</mujoco>")
    plain = read_mujoco(f"{head}{ROUND}</mujoco>").system

    def obstacle(kind, name, side):
        geom, turn = model.geom(name), np.empty(9)
        MUJOCO.mju_quat2Mat(turn, geom.quat)
        point = turn.reshape(3, 3).T @ (model.site(side).pos - geom.pos) if request.param else None
        return kind(Marker(name, geom.pos, geom.quat), geom.size[0], point)

    a, b, c = (site(model, x) for x in "abc")
    ball, drum = obstacle(Sphere, "ball", "beside"), obstacle(Cylinder, "drum", "above")
    spring = SpringDamper("rope", SpatialTendon([a, ball, b, drum, c]), 2.0, 0.4)
    system = dataclasses.replace(plain, forces=[spring])

    def of(system, q):
        length = system.forces[0].along.length(system.poses(q), system.values(q))
        return length, -jax.grad(lambda q: system.potential_energy(0.0, q))(q)

    return model, functools.partial(jax.jit(of), system)


def test_tendons_that_wrap_around_spheres_and_cylinders(wrapping):
    """In many places of the ends, some of which are inside of an obstacle."""
    (model, ours), rng, wrapped = wrapping, np.random.default_rng(0), set()
    data = MUJOCO.MjData(model)
    for _ in range(60):
        data.qpos = 0.5 * rng.normal(size=model.nq)
        MUJOCO.mj_forward(model, data)
        length, force = ours(jnp.asarray(data.qpos))
        np.testing.assert_allclose(length, data.ten_length[0], rtol=1e-13)
        np.testing.assert_allclose(force, data.qfrc_spring, rtol=0, atol=1e-12)
        wrapped.add(int(data.ten_wrapnum[0]))
    # Three points, and two more of each obstacle that it touches.
    assert wrapped == {3, 5, 7}
