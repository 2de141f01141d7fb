"""Mechanisms read from files: MuJoCo, whose formats they are, is the other code."""

import re
import sys
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import Multibody, read_mujoco
from jaxdae.multibody.comparison import compare
from jaxdae.multibody.mujoco import _left_out
from jaxdae.solvers import RK4

# Compiled, without stubs.
MUJOCO: Any = mujoco
BODY = """
<body name="crank" pos="0 0 1" euler="10 20 30">
  <joint name="swing" axis="0 1 0" damping="0.1" armature="0.01" stiffness="2" springref="10"/>
  <geom type="capsule" fromto="0 0 0 .5 0 0" size=".05"/>
  <body name="rod" pos=".5 0 0">
    <joint name="bend" axis="0 1 1" ref="20" pos=".1 0 .1"/>
    <joint name="reach" type="slide" axis="1 2 0" ref=".1" stiffness="3"/>
    <geom type="capsule" fromto="0 0 0 .5 0 0" size=".05"/>
  </body>
</body>"""
FREE = """
<body name="plate" pos="1 2 3" euler="40 20 30">
  <freejoint name="flight"/>
  <geom type="box" size=".1 .2 .3" pos=".1 0 .2"/>
  <body name="arm" pos=".1 .1 .1">
    <joint name="socket" type="ball" pos="0 .1 0" damping=".5" armature=".3"/>
    <geom type="box" size=".3 .1 .1" pos=".1 .1 0"/>
  </body>
</body>"""
MOTORS = """<actuator>
  <motor name="turn" joint="swing" gear="3"/>
  <position name="servo" joint="reach" kp="7" kv="2" gear="2"/>
</actuator>"""
LOOPS = """<equality>
  <connect name="pin" body1="rod" body2="plate" anchor=".5 0 0"/>
  <connect body1="rod" anchor=".5 0 0"/>
  <joint name="follow" joint1="swing" joint2="bend" polycoef=".1 2 3 0 0"/>
  <joint joint1="bend" polycoef=".2 0 0 0 0"/>
  <weld name="glue" body1="crank" body2="plate" relpose="0 0 0 0 0 0 0"/>
</equality>"""


TENDON = """<tendon><fixed name="cord" {}>
  <joint joint="swing" coef="2"/><joint joint="bend" coef="-1"/>
</fixed></tendon>"""


def mjcf(*parts, bodies="", options=""):
    return (
        f"<mujoco><option><flag contact='disable'/></option>{options}"
        f"<worldbody>{bodies}</worldbody>{''.join(parts)}</mujoco>"
    )


def moving(text, rng):
    """A model in a random state with random inputs."""
    model = MUJOCO.MjModel.from_xml_string(text)
    data = MUJOCO.MjData(model)
    data.qvel, data.ctrl = rng.normal(size=model.nv), rng.normal(size=model.nu)
    MUJOCO.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 1.0)
    MUJOCO.mj_forward(model, data)
    return data


def accelerations(system, q, v, u):
    """By the mass matrix, exactly on the constraints."""
    q, v, u = map(jnp.asarray, (q, v, u))
    terms = jaxdae.evaluate(system, 0.0, q, v, u=u)
    zero = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, zero]])
    return np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: v.size]


@pytest.mark.slow
@pytest.mark.parametrize("text", [mjcf(MOTORS, bodies=BODY), mjcf(bodies=FREE)])
def test_accelerations_are_those_of_mujoco(text, rng):
    system = read_mujoco(text).system
    data = moving(text, rng)
    a = accelerations(system, data.qpos, data.qvel, data.ctrl)
    np.testing.assert_allclose(a, data.qacc, rtol=1e-10, atol=1e-10)


ALL = mjcf(MOTORS, LOOPS, bodies=BODY + FREE)


@pytest.fixture(scope="module")
def read():
    return read_mujoco(ALL)


@pytest.mark.slow
def test_places_of_bodies_are_those_of_mujoco(read, rng):
    system = read.system
    data = moving(ALL, rng)
    poses = system.poses(jnp.asarray(data.qpos))
    assert [*poses][1:] == ["crank", "rod", "plate", "arm"]
    for i, pose in enumerate(poses.values()):
        np.testing.assert_allclose(pose.place, data.xpos[i], atol=1e-14)
        np.testing.assert_allclose(pose.turn.ravel(), data.xmat[i], atol=1e-14)


def test_loops_are_closed_where_the_file_closes_them(read):
    labels, residuals = read.system.labels(), read.system.position_constraints(0.0, read.state.q)
    assert labels.constraints[:4] == ("pin x", "pin y", "pin z", "equality 1 x")
    assert labels.constraints[6:9] == ("follow", "equality 3", "glue x")
    assert residuals.size == len(labels.constraints) == len(labels.constraint_units)
    closed = [x for x in labels.constraints if x[:4] in ("pin ", "glue", "equa")]
    for name in (x for x in closed if x != "equality 3"):
        assert abs(residuals[labels.constraints.index(name)]) < 1e-12
    # y - y0 = 0.1 at the reference of the leading joint.
    np.testing.assert_allclose(residuals[6:8], [-0.1, -0.2])
    jaxdae.check_system(read.system, read.state)


def test_a_file_and_a_robot_description_are_read(tmp_path):
    path = tmp_path / "arm.urdf"
    inertia = "<inertia ixx='.1' iyy='.2' izz='.25' ixy='0' ixz='0' iyz='0'/>"
    path.write_text(
        "<robot name='arm'><link name='base'/><link name='link'><inertial><mass value='2'/>"
        f"<origin xyz='0 0 -.5'/>{inertia}</inertial></link>"
        "<joint name='elbow' type='continuous'><parent link='base'/><child link='link'/>"
        "<axis xyz='0 1 0'/><dynamics damping='0.3'/></joint></robot>"
    )
    system, state, left_out, _ = read_mujoco(path)
    assert left_out == ()
    assert system.labels().coordinates == ("elbow",)
    terms = jaxdae.evaluate(system, 0.0, state.q + 0.3, state.v + 1.0)
    np.testing.assert_allclose(terms.mass, [[0.2 + 2 * 0.5**2]])
    np.testing.assert_allclose(terms.force, [-2 * 9.81 * 0.5 * np.sin(0.3) - 0.3])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<mujoco><worldbody><bar/></worldbody></mujoco>", "MuJoCo could not read it"),
        ("nowhere.xml", "which is no file"),
        ("<mujoco/>", "the file has no body but the world"),
        (
            mjcf(bodies=BODY.replace("damping", "frictionloss")),
            "'swing' has dry friction of 0.1, which MuJoCo models by a soft constraint. Give "
            "friction_speed",
        ),
        (
            mjcf(bodies=FREE.replace("<freejoint", '<joint type="free" frictionloss="1"')),
            "the free joint 'flight' has dry friction",
        ),
        (
            mjcf(
                bodies=BODY.replace('name="rod"', 'name="rod" gravcomp="1"').replace(
                    'name="bend"', 'name="bend" actuatorgravcomp="true"'
                )
            ),
            "1 x joint whose actuators compensate gravity",
        ),
        (
            mjcf(
                bodies=BODY.replace("size=", 'fluidshape="ellipsoid" size='),
                options="<option viscosity='1'/>",
            ),
            "2 x ellipsoid in a fluid",
        ),
        (mjcf("<actuator><motor joint='flight'/></actuator>", bodies=FREE), "is not a motor or"),
        (
            mjcf("<actuator><muscle joint='swing' lengthrange='0 1'/></actuator>", bodies=BODY),
            "the actuator 'actuator 0' is not a motor or servo with an affine force",
        ),
        (
            mjcf(TENDON.format("armature='1'"), bodies=BODY),
            "1 x tendon with an inertia",
        ),
        (
            mjcf(TENDON.format("stiffness='1' springyield='50'"), bodies=BODY),
            "1 x tendon whose spring yields",
        ),
        (
            mjcf(TENDON.format("frictionloss='2'"), bodies=BODY),
            "'tendon cord' has dry friction of 2",
        ),
        (
            mjcf(
                TENDON.format(""),
                "<actuator><motor tendon='cord' damping='1'/></actuator>",
                bodies=BODY,
            ),
            "1 x damper or inertia of an actuator that is not on a hinge or slide",
        ),
        (
            mjcf("<actuator><motor joint='swing' damping='1 2'/></actuator>", bodies=BODY),
            "1 x nonlinear damper of an actuator",
        ),
        # Within the random states of the comparison such a spring does not yield.
        (mjcf(bodies=BODY.replace("springref", "springyield='50' springref")), "spring yields"),
        (mjcf(MOTORS.replace("gear", "nsample='9' delay='.1' gear", 1), bodies=BODY), "a delay"),
    ],
)
def test_what_has_no_counterpart_is_refused(text, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        read_mujoco(text)


def test_a_wrong_reading_is_seen():
    text = mjcf(bodies=BODY)
    model, system = MUJOCO.MjModel.from_xml_string(text), read_mujoco(text).system
    compare(mujoco, model, system)
    heavier = eqx.tree_at(lambda x: x.bodies[1].mass, system, 1.001 * model.body_mass[2])
    with pytest.raises(ValueError, match=r"kinetic energy in a random state is .* in MuJoCo"):
        compare(mujoco, model, heavier)


@pytest.mark.slow
def test_a_file_is_read_in_single_precision():
    with jax.enable_x64(False):
        read = read_mujoco(mjcf(MOTORS, bodies=BODY))
        assert read.state.q.dtype == jnp.float32


def test_what_is_left_out_is_said_with_its_number():
    limited = BODY.replace('name="swing"', 'name="swing" range="0 1" limited="true"')
    text = mjcf(bodies=limited + FREE).replace("contact='disable'", "contact='enable'")
    with pytest.warns(RuntimeWarning, match="contacts of 4 pairs of geometries; limits of 1 joint"):
        read = read_mujoco(text)
    assert read.left_out == ("contacts of 4 pairs of geometries", "limits of 1 joint")


def switched(*flags):
    """Both bodies, with flags of the file."""
    off = "".join(f" {x}='disable'" for x in flags)
    return ALL.replace("<flag contact='disable'/>", f"<flag contact='disable'{off}/>")


@pytest.mark.slow
def test_what_flags_disable_is_not_there():
    read = read_mujoco(switched("gravity", "spring", "damper", "equality"))
    bodies, q = read.system.bodies, read.state.q
    assert read.system.loops == ()
    assert read.system.potential_energy(0.0, q + 1.0) == 0.0
    assert read.system.dissipation(0.0, q, read.state.v + 1.0) == 0.0
    swing: Any = bodies[0].joints[0]
    assert swing.armature == 0.01
    rubbed = BODY.replace("damping", "frictionloss='1' range='0 1' limited='true' damping")
    free = mjcf(bodies=rubbed).replace("contact=", "constraint=")
    assert read_mujoco(free).left_out == ()


@pytest.mark.parametrize(
    "off",
    [
        ("<flag contact", "<flag actuation='disable' contact"),
        ("<option>", "<option actuatorgroupdisable='0 1'>"),
    ],
)
def test_actuators_that_are_switched_off_stay_as_inputs_without_force(off):
    with pytest.warns(RuntimeWarning, match="forces of 2 actuators switched off in the file"):
        system, state, *_ = read_mujoco(mjcf(MOTORS, bodies=BODY).replace(*off))
    assert system.labels().inputs == ("turn", "servo")
    force = system.force(0.0, state.q, state.v + 1.0, None, jnp.ones(2))
    np.testing.assert_array_equal(force, 0.0)


@pytest.mark.parametrize(
    ("bodies", "motors"),
    [
        (BODY, MOTORS.replace("gear", "ctrlrange='-.01 .01' gear")),
        (BODY, MOTORS.replace("gear", "forcerange='-.01 .01' gear")),
        (BODY.replace("<joint", "<joint actuatorfrcrange='-.01 .01'"), MOTORS),
    ],
)
def test_limits_of_actuators_are_left_out_and_said(bodies, motors):
    with pytest.warns(RuntimeWarning, match="left out: limits of 2 actuators"):
        system, state, *_ = read_mujoco(mjcf(motors, bodies=bodies))
    force = system.force(0.0, state.q, state.v, None, jnp.array([5.0, 0.0]))
    assert force[0] == 15.0


def test_inertia_and_damping_of_actuators_belong_to_their_joint():
    motors = MOTORS.replace('gear="3"', 'gear="3" armature="2" damping="0.5"')
    system = read_mujoco(mjcf(motors, bodies=BODY)).system
    swing: Any = system.bodies[0].joints[0]
    added = np.asarray([swing.armature, swing.damping], float)
    np.testing.assert_allclose(added, [0.01 + 9 * 2, 0.1 + 9 * 0.5])


SITES = """<equality>
  <weld name="glue" site1="hook" site2="eye"/>
  <weld name="pin" body1="crank" body2="plate" torquescale="0" anchor=".1 .2 .3"/>
  <connect name="knot" site1="hook" site2="eye"/>
</equality>"""


@pytest.mark.slow
def test_welds_of_sites_and_welds_without_torque():
    hook = '<site name="hook" pos=".1 .2 .3" euler="40 50 60"/>'
    eye = '<site name="eye" pos=".3 .1 .2" euler="-40 10 20"/>'
    bodies = BODY.replace("</body>", f"{hook}</body>", 1)
    bodies += FREE.replace("<freejoint", f"{eye}<freejoint")
    system = read_mujoco(mjcf(SITES, bodies=bodies)).system
    names = system.labels().constraints
    assert names[3:6] == ("glue about x", "glue about y", "glue about z")
    assert names[6:12] == ("pin x", "pin y", "pin z", "knot x", "knot y", "knot z")
    turned = eqx.tree_at(lambda x: x.loops[0].orientation, system, jnp.array([1.0, 0.1, 0, 0]))
    with pytest.raises(ValueError, match="the residual of 'glue' in a random state"):
        compare(mujoco, MUJOCO.MjModel.from_xml_string(mjcf(SITES, bodies=bodies)), turned)


BALLS = """
<body name="a" pos="0 0 0"><freejoint/><geom name="a" size=".1"/></body>
<body name="b" pos="9 0 0"><freejoint/><geom name="b" size=".1"/></body>
<body name="c" pos="0 9 0"><freejoint/><geom name="c" size=".1" contype="0" conaffinity="0"/></body>
"""


@pytest.mark.parametrize(
    ("contact", "left_out"),
    [
        ("", "contacts of 1 pair of geometries"),
        ("<exclude body1='b' body2='a'/>", None),
        ("<exclude body1='a' body2='b'/><pair geom1='c' geom2='a'/>", "contacts of 1 pair of"),
        ("<pair geom1='c' geom2='a'/>", "contacts of 2 pairs of geometries"),
    ],
)
def test_pairs_that_may_touch_are_those_that_the_file_lists_too(contact, left_out):
    model = MUJOCO.MjModel.from_xml_string(
        f"<mujoco><worldbody>{BALLS}</worldbody><contact>{contact}</contact></mujoco>"
    )
    assert " ".join(_left_out(mujoco, model))[: len(left_out or "")] == (left_out or "")
    assert bool(left_out) == bool([*_left_out(mujoco, model)])


def test_names_of_what_has_none_are_not_those_of_others():
    bodies = BODY.replace('name="rod"', "").replace('"crank"', '"body 2"')
    system, state, *_ = read_mujoco(mjcf(bodies=bodies.replace('"swing"', '"größe ∂"')))
    assert [x.name for x in system.bodies] == ["body 2", "body 2'"]
    assert system.labels().coordinates == ("größe ∂", "bend", "reach")
    grounded = read_mujoco(mjcf(bodies=bodies.replace('"body 2"', '"ground"'))).system
    assert grounded.points(0.0, state.q).links[0] == ("ground'", "ground")


def test_without_mujoco_the_message_says_what_brings_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'jaxdae[import]'")):
        read_mujoco(mjcf(bodies=BODY))


@pytest.mark.slow
def test_a_run_keeps_its_energy_and_is_differentiated():
    rod = BODY[: BODY.index('<body name="rod"')].replace('damping="0.1"', "") + "</body>"
    system, state, *_ = read_mujoco(mjcf(bodies=rod))
    assert isinstance(system, Multibody)

    def moved(mass):
        heavier = eqx.tree_at(lambda x: x.bodies[0].mass, system, mass)
        run = jaxdae.simulate(heavier, jaxdae.Multipliers(), state, t1=0.1, dt=0.01, solver=RK4())
        return run.q[-1, 0], run.energy[-1] - run.energy[0]

    slope, drift = jax.grad(moved, has_aux=True)(2.0)
    # Ten steps of fourth order.
    assert abs(drift) < 1e-6
    h = 1e-5
    difference = (moved(2.0 + h)[0] - moved(2.0 - h)[0]) / (2 * h)
    np.testing.assert_allclose(slope, difference, rtol=1e-7)
