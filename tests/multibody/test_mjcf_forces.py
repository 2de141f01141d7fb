"""Forces read from files for MuJoCo, against the accelerations that MuJoCo has with them."""

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import DryFriction, read_mujoco, Stop
from jaxdae.multibody.comparison import compare

# Compiled, without stubs.
MUJOCO: Any = mujoco
# Without what MuJoCo has as soft constraints.
OFF = "<option><flag contact='disable' limit='disable' frictionloss='disable'/></option>"
FLUID = "<option density='1.2' viscosity='.9' wind='1 -2 .5'/>"
ALL = f"""<mujoco>{OFF}{FLUID}
<worldbody>
  <site name="ceiling" pos="-.2 .3 1.5"/>
  <site name="wall" pos=".8 .4 .9"/>
  <body name="crank" pos="0 0 1" euler="10 20 30" gravcomp=".6">
    <joint name="swing" axis="0 1 0" stiffness="2 3 5" damping="1.5 .7 .3" springref="20"/>
    <geom type="box" size=".3 .05 .1" pos=".25 0 .02" euler="5 0 15"/>
    <site name="lug" pos=".2 .1 .05" euler="40 50 60"/>
    <geom name="drum" type="cylinder" size=".05 .1" pos=".3 0 .1" euler="40 10 5"/>
    <site name="beside" pos=".3 .3 .1"/>
    <body name="rod" pos=".5 0 0">
      <joint name="reach" type="slide" axis="1 2 0" stiffness="3" damping=".4"/>
      <geom type="capsule" fromto="0 0 0 .5 .1 0" size=".05"/>
      <site name="hook" pos=".5 .1 0" euler="-20 10 70"/>
      <body name="bob" pos=".6 0 0" gravcomp="1.2">
        <joint name="socket" type="ball" pos="0 .1 0" stiffness="7 1 2" damping=".5 .4 .2"/>
        <geom type="box" size=".1 .05 .15" pos=".1 .1 0"/>
      </body>
    </body>
  </body>
  <body name="plate" pos="1 2 3" euler="40 20 30">
    <joint name="flight" type="free" stiffness="2" damping="1.5"/>
    <geom name="ball" type="sphere" size=".2" pos=".1 0 .2"/>
  </body>
</worldbody>
<tendon>
  <fixed name="sum" stiffness="4 2 3" damping=".5 .2 .1" springlength=".02 .05">
    <joint joint="swing" coef="1.5"/><joint joint="reach" coef="-.7"/>
  </fixed>
  <spatial name="rope" stiffness="30 5 2" damping="2 1 .5" springlength=".6">
    <site site="ceiling"/><site site="lug"/><geom geom="drum" sidesite="beside"/><site site="hook"/>
    <pulley divisor="2"/><site site="hook"/><geom geom="ball"/><site site="wall"/>
  </spatial>
  <fixed name="nothing"><joint joint="reach" coef="3"/></fixed>
</tendon>
<actuator>
  <general joint="swing" gear="3" gainprm="2" biastype="affine" biasprm=".1 -2 -.3" damping=".2"/>
  <general tendon="rope" gear="1.5" gaintype="affine" gainprm="2 .3 .4"
           dyntype="filter" dynprm=".2"/>
  <general joint="reach" dyntype="integrator" armature=".3" gear="2"/>
  <general site="hook" gear="1 2 3 .4 .5 .6" gainprm="2" dyntype="filterexact" dynprm=".1"/>
  <general joint="socket" gear="1 2 3" biastype="affine" biasprm=".1 -2 -.3"/>
  <general jointinparent="socket" gear="3 -1 2" biastype="affine" biasprm=".1 -2 -.3"/>
  <general tendon="nothing" gear="2"/>
</actuator></mujoco>"""


def motion(system, q, v, w, u):
    """Accelerations and rates of actuator states."""
    terms = jaxdae.evaluate(system, 0.0, q, v, w, u)
    return jnp.linalg.solve(terms.mass, terms.force), system.actuator_rate(0.0, q, v, w, u)


def state_of(model, seed: int):
    """A random state with random activations and inputs."""
    rng, data = np.random.default_rng(seed), MUJOCO.MjData(model)
    data.qvel, data.ctrl = rng.normal(size=model.nv), rng.normal(size=model.nu)
    data.act = rng.normal(size=model.na)
    MUJOCO.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.5)
    MUJOCO.mj_forward(model, data)
    return data, [jnp.asarray(x) for x in (data.qpos, data.qvel, data.act, data.ctrl)]


@pytest.fixture(scope="module")
def everything():
    return MUJOCO.MjModel.from_xml_string(ALL), read_mujoco(ALL)


@pytest.mark.slow
def test_accelerations_with_all_forces_are_those_of_mujoco(everything):
    model, read = everything
    assert read.left_out == ()
    ours = functools.partial(jax.jit(motion), read.system)
    for seed in range(4):
        data, state = state_of(model, seed)
        a, rates = ours(*state)
        # Sums of some hundred products, rounded in another order, and a solution by them.
        np.testing.assert_allclose(a, data.qacc, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(rates, data.act_dot, rtol=1e-12)


@pytest.mark.slow
def test_a_humanoid_with_tendons_is_read():
    gymnasium: Any = pytest.importorskip("gymnasium")
    path = Path(gymnasium.__file__).parent / "envs/mujoco/assets/humanoid.xml"
    with pytest.warns(RuntimeWarning, match=r"limits of 17 joints; limits of 17 actuators"):
        read = read_mujoco(path)
    assert read.system.forces == ()
    model = MUJOCO.MjModel.from_xml_path(str(path))
    bits = MUJOCO.mjtDisableBit
    model.opt.disableflags |= int(bits.mjDSBL_CONTACT | bits.mjDSBL_LIMIT | bits.mjDSBL_CLAMPCTRL)
    data, state = state_of(model, 0)
    a, _ = jax.jit(motion)(read.system, *state)
    scale = np.abs(data.qacc).max()
    np.testing.assert_allclose(a, data.qacc, rtol=1e-10, atol=1e-10 * scale)


HELD = """<mujoco><option density="1.2" viscosity=".9"><flag {}/></option><worldbody>
<body gravcomp=".6"><joint name="swing" axis="0 1 0" stiffness="2 3" damping=".5 .2"/>
<geom type="box" size=".3 .05 .1" pos=".25 0 0"/></body></worldbody>
<tendon><fixed name="cord" stiffness="4" damping="5"><joint joint="swing" coef="2"/></fixed>
</tendon></mujoco>"""
LIFT, DRAG = "gravity compensation of body 1", "drag of body 1"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "forces"),
    [
        (("spring",), [LIFT, DRAG, "damper of swing", "tendon cord"]),
        (("damper",), [LIFT, DRAG, "spring of swing", "tendon cord"]),
        (("gravity",), [DRAG, "spring of swing", "damper of swing", "tendon cord"]),
        # MuJoCo then has no passive force at all, as the comparison with its own powers sees.
        (("spring", "damper"), []),
    ],
)
def test_flags_switch_off_what_they_switch_off_in_mujoco(flags, forces):
    off = " ".join(f"{x}='disable'" for x in flags)
    assert [x.name for x in read_mujoco(HELD.format(off)).system.forces] == forces


ARM = """<mujoco><option><flag contact="disable"/></option><worldbody>
  <body><joint name="swing" axis="0 1 0" {swing}/><geom type="box" size=".3 .05 .1" pos=".25 0 0"/>
    <body pos=".5 0 0"><joint name="socket" type="ball" {socket}/>
    <geom type="box" size=".1 .05 .15" pos=".1 .1 0"/></body></body>
</worldbody><tendon><fixed name="cord" {cord}><joint joint="swing" coef="2"/></fixed></tendon>
</mujoco>"""
RUBS = ARM.format(
    swing='frictionloss="2"', socket='frictionloss=".3"', cord='frictionloss=".7"'
)  # fmt: skip


def test_dry_friction_is_that_of_mujoco_where_everything_slides():
    """Its soft constraint then has the whole bound, to the tolerance of MuJoCo's solver."""
    model = MUJOCO.MjModel.from_xml_string(RUBS)
    system = read_mujoco(RUBS, friction_speed=1e-3).system
    assert [x.name for x in system.forces] == [
        "friction of swing",
        *(f"friction of socket about {x}" for x in "xyz"),
        "friction of tendon cord",
    ]
    for rubs in system.forces:
        assert isinstance(rubs, DryFriction)
        assert rubs.speed == 1e-3
    data = MUJOCO.MjData(model)
    data.qvel[:] = 3.0, -5.0, 4.0, 6.0
    MUJOCO.mj_forward(model, data)
    force = system.force(0.0, jnp.asarray(data.qpos), jnp.asarray(data.qvel), None, None)
    np.testing.assert_allclose(force, [-2.0 - 2 * 0.7, 0.3, -0.3, -0.3], rtol=1e-12)
    np.testing.assert_allclose(force, data.qfrc_constraint, rtol=1e-6)


def test_elements_of_the_same_name_have_different_names():
    """A joint may have the name by which friction of a tendon is known."""
    text = RUBS.replace('"swing"', '"tendon cord"')
    names = [x.name for x in read_mujoco(text, friction_speed=1e-3).system.forces]
    assert names[0] == "friction of tendon cord"
    assert names[-1] == "friction of tendon cord'"


LIMITED = ARM.format(
    swing='range="-20 50" limited="true"', socket='range="0 60" limited="true"',
    cord='range="-2 3" limited="true"',
)  # fmt: skip


def stops(system, q):
    """Their energy."""
    plain = dataclasses.replace(system, forces=())
    return system.potential_energy(0.0, q) - plain.potential_energy(0.0, q)


def test_limits_are_left_out_or_stops():
    words = "left out: limits of 2 joints; limits of 1 tendon."
    with pytest.warns(RuntimeWarning, match=re.escape(words)):
        assert read_mujoco(LIMITED).system.forces == ()
    system, state, left_out, _ = read_mujoco(LIMITED, limit_stiffness=500.0, limit_dissipation=0.1)
    assert left_out == ()
    names = ["stop of swing", "stop of socket", "stop of tendon cord"]
    assert [x.name for x in system.forces] == names
    swing, _, cord = system.forces
    assert isinstance(swing, Stop)
    assert isinstance(cord, Stop)
    ends = np.asarray([swing.lower, swing.upper], float)
    np.testing.assert_allclose(ends, np.deg2rad([-20.0, 50.0]))
    assert (cord.lower, cord.upper, cord.dissipation_factor) == (-2.0, 3.0, 0.1)
    inside, beyond = (stops(system, state.q.at[0].set(x)) for x in (0.5, 1.0))
    assert inside == 0.0
    # Half a millimetre of the depth belongs to no side of a spring that is linear from there on.
    past = 1.0 - np.deg2rad(50.0)
    np.testing.assert_allclose(beyond, 0.5 * 500.0 * (past - 0.5e-3) ** 2, rtol=1e-5)


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf, np.nan])
def test_arguments_out_of_their_range_are_refused(value):
    for name in ("friction_speed", "limit_stiffness"):
        with pytest.raises(ValueError, match=rf"read_mujoco: {name} is .*; it is positive"):
            read_mujoco(RUBS, **{name: value})
    if value != 0:
        with pytest.raises(ValueError, match=r"limit_dissipation is .*; it is finite and not neg"):
            read_mujoco(RUBS, limit_dissipation=value)


PATH = """<mujoco><worldbody><site name="a" pos="1 0 0"/><site name="b" pos="0 1 0"/>
<body><joint/><geom name="ball" size=".1"/><site name="in" pos="0 0 .05"/></body></worldbody>
<tendon><spatial name="rope" stiffness="1"><site site="a"/>
<geom geom="ball" sidesite="{}"/><site site="b"/></spatial></tendon></mujoco>"""


@pytest.mark.parametrize(
    ("side", "words"),
    [
        ("a", "the tendon 'rope' goes around a geometry on the side of a site of another body"),
        ("in", "the tendon 'rope': Sphere: its side is 0.05 m from the centre"),
    ],
)
def test_paths_that_have_no_counterpart_are_refused(side, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read_mujoco(PATH.format(side))


@pytest.mark.slow
def test_wrong_numbers_are_seen(everything):
    """Where MuJoCo has a spring, a time constant or a coefficient that is a thousandth larger."""
    model, read = everything
    compare(mujoco, model, read.system)
    for field, words in (
        ("tendon_stiffness", "potential energy in a random state"),
        ("tendon_damping", "power of springs, dampers and other passive forces in a random state"),
        ("body_gravcomp", "power of springs, dampers and other passive forces in a random state"),
        ("actuator_biasprm", "power of motors in a random state"),
        ("actuator_dynprm", "rate of an activation in a random state"),
    ):
        changed = MUJOCO.MjModel.from_xml_string(ALL)
        getattr(changed, field)[:] *= 1.001
        with pytest.raises(ValueError, match=words):
            compare(mujoco, changed, read.system)
