"""Scenes in space: bodies where MuJoCo has them, surfaces as given, and what is refused."""

import base64
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest

from helpers.moving import Spiral, turning_run
from jaxdae.multibody import read_mujoco, Surface
from jaxdae.plotting import save_scene

MUJOCO: Any = mujoco
# A name with a stroke is no path, and "arm" stands on "a" and not on "a/b".
ROBOT = """<mujoco><option><flag contact="disable"/></option><worldbody>
<body name="a" pos="0 0 1" euler="10 20 30">
  <joint name="turn" axis="1 2 3"/><geom size=".1"/>
  <body name="a/b" pos=".5 0 0"><joint name="reach" type="slide" axis="0 1 1"/><geom size=".1"/>
    <body name="hand" pos="0 .5 0"><joint name="socket" type="ball"/><geom size=".1"/></body>
  </body>
</body></worldbody></mujoco>"""
WEDGE = ([[0, 0, 0], [0.2, 0, 0], [0, 0.2, 0], [0, 0, 0.2]], [[0, 2, 1], [0, 1, 3], [0, 3, 2]])
ROWS = 6


@pytest.fixture(scope="module")
def run():
    """Six rows, 0.1 s apart, from the rates of a constant velocity."""
    system = read_mujoco(ROBOT).system
    model, v = MUJOCO.MjModel.from_xml_string(ROBOT), np.array([2.0, -0.5, 1.0, -2.0, 0.5])
    q = np.repeat(np.asarray(system.start().q)[None], ROWS, axis=0)
    for row in range(ROWS):
        MUJOCO.mj_integratePos(model, q[row], v, 0.1 * row)
    half = 0.5 * np.insert(v[2:], 0, 0.0)
    rates = np.zeros_like(q)
    rates[:, :2] = v[:2]
    for row in range(ROWS):
        MUJOCO.mju_mulQuat(rates[row, 2:], q[row, 2:], half)
    return SimpleNamespace(
        ts=0.1 * np.arange(ROWS), q=q, v=np.repeat(v[None], ROWS, axis=0), coordinate_rates=rates,
        w=np.zeros((ROWS, 0)), u=None, success=True, stats={}, system=system,
    )  # fmt: skip


def messages(page: str):
    """What a page replays: times, and what happens then; and its arrays."""
    msgspec, zstandard = pytest.importorskip("msgspec"), pytest.importorskip("zstandard")
    found = re.search(r'__VISER_EMBED_DATA__="([^"]*)"', page)
    assert found is not None
    packed = base64.b64decode(found[1])
    size = int.from_bytes(packed[:8], "little")
    raw = zstandard.ZstdDecompressor().decompress(packed[8:], max_output_size=size)
    end = 8 + int.from_bytes(raw[:8], "little")
    said, buffers = msgspec.msgpack.decode(raw[8:end]), []
    for length in said["binaryBufferLengths"]:
        end += -end % 8
        buffers.append(raw[end : end + length])
        end += length
    array = lambda x: np.frombuffer(buffers[x["__binary_index"]], x["dtype"])  # noqa: E731
    return said["messages"], array


def state_at(replayed, time):
    """Poses of nodes at a time, and the text of the heading."""
    place, turn, text = {}, {}, None
    for when, x in replayed:
        if when > time + 1e-9:
            break
        if x["type"] == "SetPositionMessage":
            place[x["name"]] = x["position"]
        elif x["type"] == "SetOrientationMessage":
            turn[x["name"]] = x["wxyz"]
        elif x.get("name") == "/time":
            text = x.get("updates", {}).get("text", text)
    return place, turn, text


@pytest.fixture(scope="module")
def scene(run, tmp_path_factory):
    pytest.importorskip("viser")
    path = tmp_path_factory.mktemp("scenes") / "new" / "robot.html"
    surfaces = [Surface("a/b", *WEDGE, (1.0, 0.5, 0.0, 1.0)), Surface(None, *WEDGE)]
    return save_scene(run, path, surfaces=surfaces, speed=1.0, fps=20, title="<robot>").read_text()


def test_bodies_are_where_mujoco_has_them_at_saved_times(run, scene):
    model = MUJOCO.MjModel.from_xml_string(ROBOT)
    data, (replayed, _) = MUJOCO.MjData(model), messages(scene)
    for t, q in zip(run.ts, run.q, strict=True):
        data.qpos = q
        MUJOCO.mj_kinematics(model, data)
        place, turn, text = state_at(replayed, t)
        assert text == f"<robot>, t = {t:.2f} s"
        for i, node in enumerate(("/bodies/0 a", "/bodies/1 a|b", "/bodies/2 hand")):
            want = data.body(i + 1)
            # Numbers of the page are double; 1e-9 is round-off, far above it.
            np.testing.assert_allclose(place.get(node, np.zeros(3)), want.xpos, atol=1e-9)
            assert abs(np.dot(turn[node], want.xquat)) == pytest.approx(1.0, abs=1e-9)


def test_surfaces_are_kept_on_their_bodies(scene):
    replayed, array = messages(scene)
    meshes = {x["name"]: x["props"] for _, x in replayed if x["type"] == "MeshMessage"}
    assert {*meshes} == {"/bodies/1 a|b/surface 0", "/ground/surface 0"}
    for props in meshes.values():
        np.testing.assert_array_equal(
            array(props["vertices"]).reshape(-1, 3), np.array(WEDGE[0], "f4")
        )
        np.testing.assert_array_equal(array(props["faces"]).reshape(-1, 3), WEDGE[1])
    assert meshes["/bodies/1 a|b/surface 0"]["color"] == [255, 127, 0]


def test_the_page_is_one_file(scene):
    """Nothing is fetched: no script, style or image has an address elsewhere."""
    text = re.sub(r"<script.*?</script>", "", scene, flags=re.DOTALL)
    assert re.findall(r'(?:src|href)="(?!data:)[^"]+', text) == []
    assert "<title>&lt;robot&gt;</title>" in scene


def test_a_failed_run_of_a_plane_says_when(tmp_path):
    """Quarters of a turn in space with z = 0, five times as slow; the run is lost after 1.5 s."""
    pytest.importorskip("viser")
    page = save_scene(turning_run(failed=True), tmp_path / "rod.html").read_text()
    replayed, array = messages(page)
    assert state_at(replayed, np.inf)[2] == "t = 1.500 s  (speed ×0.2), failed after t = 1.5 s"
    moved = [x for _, x in replayed if x.get("name") == "/points/joints"]
    ends = array(moved[-1]["updates"]["points"]).reshape(-1, 3)
    corner = np.sqrt(2.0) * np.array([-1.0, 1.0, 0.0])
    # Single precision; in an order of its own.
    np.testing.assert_allclose(
        ends[np.argsort(-ends[:, 0])], [corner / 2, corner, corner], atol=1e-6
    )


def test_a_system_in_space_without_bodies_has_its_points(tmp_path):
    pytest.importorskip("viser")
    page = save_scene(turning_run(Spiral()), tmp_path / "spiral.html").read_text()
    names = {x.get("name") for _, x in messages(page)[0]}
    assert {"/points/joints", "/points/edges", "/paths/0 point"} < names


REFUSED: dict[str, Any] = {
    r"a surface of 'arm': there is no such body; there are: 'a', 'a/b', 'hand'\.": ("arm", *WEDGE),
    r"vertices of shape \(3,\); give finite numbers": ("a", [0, 0, 0], WEDGE[1]),
    r"faces .*three of its 3 vertices.*int64 of shape \(3, 3\), from 0 to 3\.": (
        "a", WEDGE[0][:3], WEDGE[1],
    ),
    r"got float64 of shape \(0,\)\.": ("a", WEDGE[0], []),
    r"the colour \(1, 0, 0\); give red, green, blue and opacity": ("a", *WEDGE, (1, 0, 0)),
    r"the colour \(255, 0, 0, 1\);": ("a", *WEDGE, (255, 0, 0, 1)),
}  # fmt: skip


@pytest.mark.parametrize(("message", "surface"), REFUSED.items())
def test_surfaces_that_cannot_be_drawn_are_refused(run, message, surface: Any, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_scene(run, tmp_path / "robot.html", surfaces=[Surface(*surface)])


def test_surfaces_need_bodies(tmp_path):
    with pytest.raises(ValueError, match="there are: none, as the system is no Multibody"):
        save_scene(turning_run(), tmp_path / "rod.html", surfaces=[Surface("a", *WEDGE)])


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"a scene is a file \.html; got '.*rod\.glb'\."):
        save_scene(turning_run(), tmp_path / "rod.glb")


def test_without_viser_the_scene_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jaxdae\[viewer\]'"):
        save_scene(turning_run(), tmp_path / "rod.html")


@pytest.mark.slow
def test_a_browser_shows_the_scene(scene, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs" / "scripts")
    import look

    if look.chromium() is None:
        pytest.skip("there is no Chromium on this machine: nothing shows the scene")
    (tmp_path / "robot.html").write_text(scene)
    with look.browser() as window, look.screen(window, look.SCREENS["wide"]) as page:
        faults = []
        page.on("pageerror", lambda x: faults.append(str(x)))
        page.on("request", lambda x: faults.append(x.url) if x.url.startswith("http") else None)
        page.goto((tmp_path / "robot.html").as_uri())
        page.wait_for_selector("canvas")
        page.wait_for_selector("[role=slider]", state="attached")
        assert page.title() == "<robot>"
        assert faults == []
