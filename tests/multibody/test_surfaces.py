"""Surfaces of files: each point of MuJoCo's shapes, and nothing that is not seen."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from jaxdae.multibody import read_surfaces

MUJOCO: Any = mujoco
SHAPES = """<mujoco>
<asset>
  <material name="paint" rgba=".1 .2 .3 1"/>
  <mesh name="wedge" vertex="0 0 0  .2 0 0  0 .2 0  0 0 .2" refpos=".1 .1 0"/>
</asset>
<worldbody>
  <geom name="floor" type="plane" size="2 3 .1"/>
  <geom name="sea" type="plane" size="0 0 .1" pos="0 0 -1"/>
  <body name="hand" pos="1 2 3" euler="10 20 30">
    <joint/>
    <geom name="ball" size=".3" pos="1 0 0" material="paint"/>
    <geom name="rod" type="capsule" fromto="0 0 0 .6 .2 0" size=".05" rgba="1 0 0 .5"/>
    <geom name="can" type="cylinder" size=".2 .4" euler="30 40 0"/>
    <geom name="egg" type="ellipsoid" size=".1 .2 .3" euler="0 40 0"/>
    <geom name="box" type="box" size=".1 .2 .3" pos="0 1 0" euler="50 0 20"/>
    <geom name="mesh" type="mesh" mesh="wedge" pos="0 0 2" euler="10 60 0"/>
    <geom name="model for contacts" type="box" size="1 1 1" group="3"/>
    <geom name="invisible" type="box" size="1 1 1" rgba="1 1 1 0"/>
  </body>
</worldbody></mujoco>"""
# Volumes by geometry; those of round shapes are of polyhedra within them, hence the tolerance.
VOLUMES = {
    "ball": (4 / 3 * np.pi * 0.3**3, 0.02),
    "rod": (np.pi * 0.05**2 * np.hypot(0.6, 0.2) + 4 / 3 * np.pi * 0.05**3, 0.03),
    "can": (np.pi * 0.2**2 * 0.8, 0.02),
    "egg": (4 / 3 * np.pi * 0.1 * 0.2 * 0.3, 0.02),
    "box": (8 * 0.1 * 0.2 * 0.3, 1e-6),
    "mesh": (0.2**3 / 6, 1e-6),
}


def integrals(surface):
    """Volume and centre of what a surface encloses, by tetrahedra from the origin."""
    corners = np.asarray(surface.vertices)[np.asarray(surface.faces)]
    volumes = np.linalg.det(corners) / 6
    return volumes.sum(), volumes @ corners.sum(axis=1) / 4 / volumes.sum()


def test_each_surface_encloses_the_volume_of_its_geometry_and_has_its_centre():
    """The volume is positive where corners go counterclockwise seen from outside."""
    model = MUJOCO.MjModel.from_xml_string(SHAPES)
    floor, sea, *solids = read_surfaces(SHAPES)
    assert [x.body for x in (floor, sea, *solids)] == [None] * 2 + ["hand"] * len(VOLUMES)
    for surface, (name, (volume, tolerance)) in zip(solids, VOLUMES.items(), strict=True):
        found, centre = integrals(surface)
        assert found == pytest.approx(volume, rel=tolerance), name
        # Meshes are in single precision.
        np.testing.assert_allclose(centre, model.geom(name).pos, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(np.abs(floor.vertices).max(axis=0), [2.0, 3.0, 0.0])
    np.testing.assert_allclose(np.abs(sea.vertices).max(axis=0), [*[model.stat.extent] * 2, 1.0])


def test_vertices_of_a_mesh_are_kept_where_the_file_has_them():
    """On a body without a turn: as they are in the file, less `refpos`."""
    wedge = read_surfaces(SHAPES.replace('pos="0 0 2" euler="10 60 0"', ""))[-1]
    corners = 0.2 * np.insert(np.eye(3), 0, 0.0, axis=0) - [0.1, 0.1, 0.0]
    found = np.asarray(wedge.vertices)
    assert found.shape == (4, 3)
    order = [int(np.argmin(np.linalg.norm(found - x, axis=1))) for x in corners]
    # MuJoCo keeps vertices of meshes in single precision.
    np.testing.assert_allclose(found[order], corners, atol=1e-6)
    assert np.asarray(wedge.faces).shape == (4, 3)


def test_colours_are_those_of_geometries_before_those_of_materials():
    floor, _, ball, rod, *_ = read_surfaces(SHAPES)
    assert ball.color == pytest.approx((0.1, 0.2, 0.3, 1.0))
    assert rod.color == (1.0, 0.0, 0.0, 0.5)
    assert floor.color == (0.5, 0.5, 0.5, 1.0)


@pytest.mark.parametrize("kept", [False, True])
def test_shapes_for_the_eye_of_robot_descriptions_are_read_where_the_file_keeps_them(kept):
    box = '<{0}><geometry><box size=".2 .4 {1}"/></geometry></{0}>'
    robot = f"""<robot name="r">
    <mujoco><compiler discardvisual="{str(not kept).lower()}"/></mujoco>
    <link name="base"/><link name="arm">
    <inertial><mass value="1"/><inertia ixx=".1" iyy=".1" izz=".1" ixy="0" ixz="0" iyz="0"/>
    </inertial>{box.format("visual", 0.6)}{box.format("collision", 0.8)}</link>
    <joint name="turn" type="continuous"><parent link="base"/><child link="arm"/></joint></robot>"""
    heights = [np.ptp(np.asarray(x.vertices)[:, 2]) for x in read_surfaces(robot)]
    assert sorted(heights) == pytest.approx([0.6, 0.8] if kept else [0.8])


def test_height_fields_are_left_out_with_a_warning(tmp_path):
    text = SHAPES.replace(
        "<asset>", '<asset><hfield name="hills" nrow="2" ncol="2" size="1 1 1 1"/>'
    ).replace("<worldbody>", '<worldbody><geom type="hfield" hfield="hills"/>')
    with pytest.warns(RuntimeWarning, match=r"read_surfaces: left out: 1 x height field\."):
        assert len(read_surfaces(text)) == 2 + len(VOLUMES)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "trimesh", None)
    with pytest.raises(ImportError, match=r"needs trimesh.* pip install 'jaxdae\[viewer\]'"):
        read_surfaces(SHAPES)


def test_robot_descriptions_with_loops_are_seen_where_their_joints_are_cut():
    path = Path(__file__).parents[1] / "data" / "robots" / "gripper.urdf"
    found = read_surfaces(path, cuts=("left pin", "right pin"))
    links = ET.parse(path).getroot().findall("link")
    seen = sorted(str(x.get("name")) for x in links for _ in x.findall("visual"))
    assert seen == sorted(str(x.body) for x in found) != []
    with pytest.raises(ValueError, match="cuts are joints of a robot description"):
        read_surfaces(SHAPES, cuts="C")
