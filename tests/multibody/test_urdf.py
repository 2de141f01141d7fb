"""Robot descriptions with loops: the motion does not depend on which joint of a loop is cut."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdae
from jaxdae.multibody import (
    Connection,
    HingeLoop,
    PlanarLoop,
    read_mujoco,
    SlideLoop,
    Weld,
)

pytest.importorskip("mujoco")


def link(name, length, mass=1.0):
    return (
        f"<link name='{name}'><inertial><mass value='{mass}'/><origin xyz='{length / 2} 0 .01'/>"
        "<inertia ixx='.02' iyy='.03' izz='.04' ixy='.001' ixz='0' iyz='.002'/></inertial></link>"
    )


def joint(name, kind, parent, child, xyz="0 0 0", rpy="0 0 0", more=""):
    return (
        f"<joint name='{name}' type='{kind}'><parent link='{parent}'/><child link='{child}'/>"
        f"<origin xyz='{xyz}' rpy='{rpy}'/><axis xyz='0 1 0'/>{more}</joint>"
    )


DAMPED = "<dynamics damping='.7'/>"
# A parallelogram in a plane that leans; the pin of its rocker is a link of its own.
FOUR_BAR = f"""<robot name='four-bar'><link name='ground'/>
{link("crank", 0.3)}{link("coupler", 0.9)}{link("rocker", 0.3)}{link("pin", 0.0, 0.1)}
{joint("A", "continuous", "ground", "crank", "0 0 1", ".2 -1 .3", DAMPED)}
{joint("B", "continuous", "crank", "coupler", ".3 0 0", "0 1 0", DAMPED)}
{joint("D", "continuous", "ground", "rocker", "{}", ".2 -1 .3", DAMPED)}
{joint("tip", "fixed", "rocker", "pin", ".3 0 0", "0 1.2 0")}
{joint("C", "continuous", "coupler", "pin", ".9 0 0", "0 .2 0", DAMPED)}
</robot>"""
# A crank whose rod moves a piston along an axis across; without gravity along it.
SLIDER = f"""<robot name='engine'><link name='block'/>
{link("crank", 0.1)}{link("rod", 0.3)}{link("piston", 0.1)}
{joint("crank", "continuous", "block", "crank", "0 0 0", "0 -1.5707963267948966 0", DAMPED)}
{joint("rod", "continuous", "crank", "rod", ".1 0 0")}
{joint("wrist", "continuous", "rod", "piston", ".3 0 0", "0 0 0", DAMPED)}
{joint("bore", "prismatic", "block", "piston", "0 0 .4", "0 -1.5707963267948966 0", DAMPED)}
</robot>""".replace("axis xyz='0 1 0'/><dynamics damping='.7'/></joint>\n</robot>",
                    "axis xyz='1 0 0'/><dynamics damping='.7'/></joint>\n</robot>")  # fmt: skip


def four_bar():
    """With the rocker where the leaning plane has it: at the distance of the coupler."""
    # Of the joint A, rpy is about fixed axes: Rz(.3) Ry(-1) Rx(.2); then B turns by 1 about y.
    turn = Rotation.from_euler("xyz", [0.2, -1.0, 0.3]) * Rotation.from_rotvec([0, 1.0, 0])
    place = np.array([0, 0, 1.0]) + turn.apply([0.9, 0, 0])
    return FOUR_BAR.replace("{}", " ".join(map(repr, place.tolist())))


def accelerations(system, q, v):
    """By the mass matrix, exactly on the constraints, of which some are redundant in a plane."""
    terms = jax.jit(jaxdae.evaluate)(system, 0.0, jnp.asarray(q), jnp.asarray(v))
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-12)
    np.testing.assert_allclose(terms.phi_dot, 0.0, atol=1e-12)
    rows = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, rows]])
    return np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: len(v)]


def test_a_four_bar_moves_the_same_whichever_joint_is_cut():
    by_hinge, by_weld = (read_mujoco(four_bar(), cuts=x) for x in ("C", ["tip"]))
    assert isinstance(by_hinge.system.loops[0], HingeLoop)
    assert isinstance(by_weld.system.loops[0], Weld)
    assert [x.name for x in by_hinge.system.bodies] == [
        "ground", "crank", "coupler", "rocker", "pin",
    ]  # fmt: skip
    # A parallelogram: the coupler keeps its direction, and the pin turns against it.
    rate = 2.0
    first = accelerations(by_hinge.system, [0.0, 0, 0], [rate, -rate, rate])
    names = by_weld.system.labels().coordinates
    assert names == ("A", "B", "C", "D")
    second = accelerations(by_weld.system, [0.0] * 4, [rate, -rate, rate, rate])
    np.testing.assert_allclose(second[[0, 1, 3]], first, rtol=1e-9)
    np.testing.assert_allclose(first[1:], [-first[0], first[0]], rtol=1e-9)
    assert abs(first[0]) > 0.1


@pytest.mark.slow
def test_an_engine_moves_the_same_whichever_joint_is_cut():
    by_guide, by_pin = (read_mujoco(SLIDER, cuts=(x,)) for x in ("bore", "wrist"))
    assert isinstance(by_guide.system.loops[0], SlideLoop)
    assert by_pin.system.labels().coordinates == ("crank", "rod", "bore")
    # Crank and rod from the upper dead centre, by the law of sines.
    crank, rate = 0.6, 3.0
    rod = -np.arcsin(0.1 * np.sin(crank) / 0.3)
    swing = -0.1 * np.cos(crank) / (0.3 * np.cos(rod)) * rate
    rise = 0.1 * np.cos(crank) + 0.3 * np.cos(rod) - 0.4
    speed = -0.1 * np.sin(crank) * rate - 0.3 * np.sin(rod) * swing
    first = accelerations(by_guide.system, [crank, rod - crank, -rod], [rate, swing - rate, -swing])
    second = accelerations(by_pin.system, [crank, rod - crank, rise], [rate, swing - rate, speed])
    np.testing.assert_allclose(second[:2], first[:2], rtol=1e-9)
    # x'' = (dx/dphi) phi'' + (d2x/dphi2) phi'^2 of the piston.
    reach = lambda x: 0.1 * np.cos(x) + 0.3 * np.sqrt(1 - (np.sin(x) / 3) ** 2)  # noqa: E731
    h = 1e-3
    slope = (reach(crank + h) - reach(crank - h)) / (2 * h)
    curvature = (reach(crank + h) - 2 * reach(crank) + reach(crank - h)) / h**2
    # Errors of the differences are of order h^2.
    np.testing.assert_allclose(second[2], slope * first[0] + curvature * rate**2, rtol=1e-5)


def test_loops_are_closed_by_closing_joints_between_links():
    tree = four_bar()
    start = tree.index("<joint name='C'")
    tree = tree[:start] + tree[tree.index("</joint>", start) + 8 :]
    pin = HingeLoop("C", "coupler", "pin", (0.9, 0, 0), axis=(0, 1, 0))
    read = read_mujoco(tree, loops=pin)
    np.testing.assert_allclose(read.system.position_constraints(0.0, read.state.q), 0, atol=1e-12)
    with pytest.raises(ValueError, match=r"second of 'C' is 'nothing'; there are: ground, crank"):
        read_mujoco(tree, loops=[HingeLoop("C", "coupler", "nothing")])
    with pytest.raises(TypeError, match=r"read_mujoco: loops holds 'C'; give a HingeLoop"):
        read_mujoco(tree, loops=["C"])  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("kind", "loop", "rows"),
    [("planar", PlanarLoop, 3), ("spherical", Connection, 3), ("revolute", HingeLoop, 5)],
)
def test_closing_joints_of_other_kinds_are_those_of_the_file(kind, loop, rows):
    limit = "<limit lower='-1' upper='1' effort='1' velocity='1'/>" if kind == "revolute" else ""
    both = (
        f"<robot name='r'><link name='ground'/>{link('arm', 1.0)}"
        f"{joint('flight', 'floating', 'ground', 'arm')}"
        f"{joint('held', kind, 'ground', 'arm', '.1 .2 .3', '.4 .5 .6', limit)}</robot>"
    )
    if limit:
        with pytest.warns(RuntimeWarning, match="left out: limits of the cut joint 'held'"):
            read = read_mujoco(both, cuts="held")
    else:
        read = read_mujoco(both, cuts="held")
    assert type(read.system.loops[0]) is loop
    # The tree with this joint, in a random position of it.
    tree = read_mujoco(re.sub("<joint name='flight'.*?</joint>", "", both), limits="events")
    values = jnp.asarray(np.random.default_rng(0).normal(size=tree.state.q.size))
    pose = jax.jit(lambda x: tree.system.poses(x)["arm"])(values)
    turn = Rotation.from_matrix(pose.turn).as_quat(scalar_first=True)
    residual = read.system.position_constraints(0.0, jnp.concatenate([pose.place, turn]))
    assert residual.size == rows
    np.testing.assert_allclose(residual, 0.0, atol=1e-12)


TWO = f"<robot name='r'><link name='ground'/>{link('arm', 1.0)}{link('rod', 1.0)}"


@pytest.mark.parametrize(
    ("joints", "cuts", "words"),
    [
        ("", "none", r"cuts has 'none'; joints of the file are: A, B\."),
        ("", "A", r"2 links have no joint that moves them: ground, arm\."),
        (joint("F", "floating", "arm", "rod"), "F", "the joint 'F' is floating, which closes no"),
        (
            joint("F", "continuous", "ground", "rod", more="<dynamics friction='.2'/>"), "F",
            "the joint 'F', which is cut, has friction",
        ),
        (
            joint("F", "continuous", "ground", "rod", more="<mimic joint='A'/>"), "F",
            "the joint 'F' mimics 'A', and one of them is cut",
        ),
        (joint("F", "continuous", "ground", "rod", "0 0 nan"), "F", r"xyz of <origin> of the joi"),
        (joint("F", "continuous", "ground", "rod", "0 0 1_0"), "F", "xyz .* is '0 0 1_0'; it"),
        (
            joint("F", "continuous", "ground", "rod").replace("0 1 0", "0 0 0"), "F",
            "the axis of the joint 'F' is zero",
        ),
    ],
)  # fmt: skip
def test_cuts_that_close_nothing_are_refused(joints, cuts, words):
    text = TWO + joint("A", "continuous", "ground", "arm") + joint("B", "continuous", "arm", "rod")
    with pytest.raises(ValueError, match=f"read_mujoco: {words}"):
        read_mujoco(f"{text}{joints}</robot>", cuts=cuts)


def test_a_damper_of_a_cut_joint_that_drives_is_said():
    more = "<dynamics damping='-.3'/>"
    text = (
        TWO + joint("A", "continuous", "ground", "arm") + joint("B", "continuous", "arm", "rod")
        + joint("F", "continuous", "ground", "rod", "1 0 0", more=more) + "</robot>"
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match=r"negative damping of the cut joint 'F' \(-0\.3\)"):
        read_mujoco(text, cuts="F")


def test_cuts_belong_to_robot_descriptions():
    with pytest.raises(ValueError, match="cuts are joints of a robot description, and the file is"):
        read_mujoco("<mujoco/>", cuts="A")
