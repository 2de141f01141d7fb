"""Files for MuJoCo are examined: drifts are MuJoCo's own, and suggestions lower them."""

import re
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from jaxdae.multibody import doctor, examination
from jaxdae.multibody.examination import best_setting
from jaxdae.multibody.soft_runs import equalities, run, start_of

MUJOCO: Any = mujoco
DATA = Path(__file__).parents[1] / "data"
FOUR_BAR = (DATA / "four_bar.xml").read_text()
PIN = '<connect name="pin"'
OPTION = '<option timestep="0.002"/>'
# Of files, keyframes, and integrators in the place of the files' own.
CASES = [
    ("four_bar", None, None),
    ("four_bar", None, "RK4"),
    ("four_bar", None, "DISCRETE"),
    ("slider_crank", "spin", None),
    ("slider_crank", None, "EULER"),
    ("leg", "push", None),
    ("leg", None, "IMPLICIT"),
]


def changed(*pairs: str) -> str:
    """The four-bar linkage with other words."""
    text = FOUR_BAR
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in text
        text = text.replace(old, new)
    return text


def opened(model, start, solref=None, solimp=None, end=1.0) -> dict[str, float]:
    """Largest distance of the points of each connection and weld, from the places of bodies."""
    model = MUJOCO.MjModel.from_xml_string(model) if isinstance(model, str) else model
    kept = model.eq_solref.copy(), model.eq_solimp.copy()
    if solref is not None:
        model.eq_solref[:], model.eq_solimp[:] = solref, solimp
    data, found = MUJOCO.MjData(model), {}
    data.qpos, data.qvel, data.ctrl = start.qpos, start.qvel, start.ctrl
    for _ in range(round(end / model.opt.timestep)):
        MUJOCO.mj_step(model, data)
        MUJOCO.mj_kinematics(model, data)
        for i in np.flatnonzero(model.eq_type < 2):
            anchors = model.eq_data[i, :3], model.eq_data[i, 3:6]
            if model.eq_type[i] == 1:
                anchors = anchors[::-1]
            places = [
                data.xpos[body] + data.xmat[body].reshape(3, 3) @ anchor
                for body, anchor in zip(
                    (model.eq_obj1id[i], model.eq_obj2id[i]), anchors, strict=True
                )
            ]
            apart = float(np.linalg.norm(places[0] - places[1]))
            found[model.equality(i).name] = max(apart, found.get(model.equality(i).name, 0.0))
    model.eq_solref[:], model.eq_solimp[:] = kept
    return found


@pytest.mark.parametrize(("name", "key", "integrator"), CASES)
def test_the_suggestion_lowers_the_drift_that_mujoco_has(name, key, integrator):
    model = MUJOCO.MjModel.from_xml_path(str(DATA / f"{name}.xml"))
    if integrator is not None:
        model.opt.integrator = int(getattr(MUJOCO.mjtIntegrator, f"mjINT_{integrator}"))
    chosen = MUJOCO.mjtIntegrator(int(model.opt.integrator)).name.removeprefix("mjINT_").lower()
    loops = equalities(mujoco, model, lambda i: model.equality(i).name)
    start = start_of(mujoco, model, loops, key)
    own = run(mujoco, model, loops, start, 1.0)
    setting, tried = best_setting(mujoco, model, loops, start, 1.0, chosen, own)
    assert setting is not None
    assert tried is not None
    before, after = opened(model, start), opened(model, start, *setting)
    for loop, old, new in zip(loops, own.drift, tried.drift, strict=True):
        # Every distance and angle, by a factor of five at least.
        for x, y in zip(old, new, strict=True):
            assert (x is None) == (y is None)
            assert x is None or y is None or y < 0.2 * x
        if (
            loop.kind != "joint"
        ):  # the same as from places of bodies, which are of 1 m, to round-off
            assert old.distance == pytest.approx(before[loop.name], rel=1e-9, abs=1e-14)
            assert new.distance == pytest.approx(after[loop.name], rel=1e-6, abs=1e-14)


def test_angles_are_those_between_bodies():
    """Of a weld and of joints: from orientations and coordinates along the same steps."""
    model = MUJOCO.MjModel.from_xml_path(str(DATA / "leg.xml"))
    loops = equalities(mujoco, model, lambda i: model.equality(i).name)
    start = start_of(mujoco, model, loops, "push")
    own = run(mujoco, model, loops, start, 0.2)
    data, angle, geared = MUJOCO.MjData(model), 0.0, 0.0
    data.qpos, data.ctrl = start.qpos, start.ctrl
    for _ in range(100):
        MUJOCO.mj_step(model, data)
        MUJOCO.mj_kinematics(model, data)
        shank, foot = (data.body(x).xmat.reshape(3, 3) for x in ("shank", "foot"))
        angle = max(angle, np.arccos(min(0.5 * (np.trace(shank.T @ foot) - 1), 1.0)))
        flywheel, rear = (data.joint(x).qpos[0] for x in ("flywheel", "rear"))
        geared = max(geared, abs(flywheel + 2 * rear))
    # The arccosine of what is nearly 1 has half the digits.
    assert own.drift[0].angle == pytest.approx(angle, rel=1e-6)
    assert own.drift[1].angle == pytest.approx(geared, rel=1e-12)
    assert own.drift[1].distance is None


@pytest.fixture(scope="module")
def examined():
    """A report, and its parts as they were shown."""
    parts = []
    return doctor(FOUR_BAR, end=0.4, show=parts.append), parts


def test_a_file_is_examined(examined):
    report, parts = examined
    assert report.mobility.degrees_of_freedom == 1
    assert [x.constraint for x in report.mobility.dependences] == ["pin y"]
    assert report.loops == ("pin",)
    assert report.integrator == "euler"
    assert report.exact.violation < 1e-12
    assert report.exact.mobility.near_singularities == ()
    assert report.suggestion.solref == (0.004, 0.5)
    assert report.written is None
    # Parts as they are known, and all of them together.
    assert len(parts) == 3
    assert "Suggestion" in parts[0]
    assert "degrees of freedom" in parts[1]
    assert str(report) == "\n".join(parts)
    for text in (
        "the text: 1 equality constraint; euler, step 0.002 s, motion of 0.4 s",
        'Suggestion: solref="0.004 0.5" solimp="0.9999 0.9999 0.001 0.5 2"',
        "At the start: degrees of freedom: 1 by rank, 0 by count (3 velocities, 3 constraints",
        "redundant: 'pin y' constrains nothing",
        "Along that motion: degrees of freedom: 1",
        "near-singular positions: none",
    ):
        assert text in str(report)


def test_exact_motions_are_those_of_mujoco_by_small_steps(examined):
    """The two codes share nothing but the file: RK4 and hard constraints at a tenth of the step."""
    report, _ = examined
    model = MUJOCO.MjModel.from_xml_string(changed(OPTION, '<option timestep="2e-4"/>'))
    model.opt.integrator = int(MUJOCO.mjtIntegrator.mjINT_RK4)
    # An impedance of 0.9999 leaves 1e-4 of the loads, of some g, over a stiffness of 1e5 1/s^2.
    model.eq_solref[:], model.eq_solimp[:, :2] = (0.004, 0.9), 0.9999
    data = MUJOCO.MjData(model)
    for _ in range(2000):
        MUJOCO.mj_step(model, data)
    np.testing.assert_allclose(report.exact.q[-1], data.qpos, atol=1e-6)
    # Euler's steps of 2 ms are wrong by a thousand times that, whatever the constraints are.
    assert min(x.amount for x in report.differences[1]) > 1e-4
    setting, after = report.by_rk4
    assert after[0].amount < 1e-4
    assert f"by RK4 with {setting}" in str(report)


def mujoco_alone(monkeypatch):
    """Without the exact mechanism, which is what takes long."""
    none = lambda *_: None  # noqa: E731
    for name in ("mobility", "_state"):
        monkeypatch.setattr(examination, name, none)
    monkeypatch.setattr(examination, "_with_motion", lambda report, *_: report)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (changed(PIN, f'{PIN} active="false"'), {}, r"1 equality constraint\(s\), all"),
        (
            changed(OPTION, '<option><flag equality="disable"/></option>'), {},
            "inactive or switched off by its flags: no loop can drift",
        ),
        (
            "<mujoco><worldbody><body><joint/><geom size='1'/></body></worldbody></mujoco>", {},
            "the file has no equality constraints: no loop can drift. Loops are closed by <conn",
        ),
        (
            "<mujoco><worldbody><body name='a'><geom size='1'/></body></worldbody><equality>"
            "<connect body1='a' anchor='0 0 0'/></equality></mujoco>", {},
            "no joints: nothing moves",
        ),
        (changed("</worldbody>", ""), {}, "it is no XML: mismatched tag: line"),
        (changed("</worldbody>", "<wing/></worldbody>"), {}, "MuJoCo could not read it: XML"),
        ("nowhere.xml", {}, "'nowhere.xml', which is no file"),
        (FOUR_BAR, {"key": "pushed"}, "no keyframe is called 'pushed'; there are: none"),
        (FOUR_BAR, {"end": -1.0}, "end is -1.0; it must be a positive"),
        (FOUR_BAR, {"end": 1e-3}, "end is 0.001 s, shorter than a step of 0.002 s"),
        (FOUR_BAR, {"write": "nowhere/out.xml"}, "cannot write nowhere/out.xml: nowhere is no fol"),
    ],
)  # fmt: skip
def test_what_cannot_be_examined_is_refused(text, options, message, monkeypatch):
    mujoco_alone(monkeypatch)
    with pytest.raises(ValueError, match=message):
        doctor(text, **options)


def test_without_mujoco_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(ImportError, match=r"pip install 'jaxdae\[import\]'"):
        doctor(FOUR_BAR)


SITES = (
    *('anchor="0.4 0 0.3"', "", 'body1="coupler"', 'site1="a"', 'body2="rocker"', 'site2="b"'),
    '<geom fromto="0 0 0 0.1 0 0.4"/>',
    '<geom fromto="0 0 0 0.1 0 0.4"/><site name="b" pos="0.1 0 0.4"/>',
    '<geom fromto="0 0 0 0.4 0 0.3"/>',
)


def test_loops_that_are_open_in_the_file_are_closed_first(monkeypatch):
    mujoco_alone(monkeypatch)
    bar = '<geom fromto="0 0 0 0.4 0 0.3"/><site name="a" pos="{}"/>'
    report = doctor(changed(*SITES, bar.format("0.4 0 0.25")), end=0.1)
    np.testing.assert_allclose(report.closed, 0.05)
    assert "was closed first: loops were open by 0.05" in str(report)
    assert report.suggestion is not None
    with pytest.raises(ValueError, match=r"'pin' cannot be closed near the start: 3\.\d+ m or rad"):
        doctor(changed(*SITES, bar.format("4 0 2.5")), end=0.1)


def test_a_file_whose_run_is_given_up_is_healed(monkeypatch):
    mujoco_alone(monkeypatch)
    report = doctor(changed('name="pin"', 'name="pin" solref="-1e7 -1"'), end=0.1)
    assert report.file_run.given_up == pytest.approx(0.014)
    assert report.suggestion is not None
    assert report.tried_run is not None
    assert report.tried_run.given_up is None
    assert "numbers are not finite or too large from 0.014 s on" in str(report)


def test_a_mechanism_that_is_unstable_by_itself_gets_no_suggestion(monkeypatch):
    mujoco_alone(monkeypatch)
    drive = '<actuator><velocity joint="crank" kv="-40"/></actuator></mujoco>'
    report = doctor(changed("</mujoco>", drive), end=0.1)
    assert report.suggestion is None
    assert report.tried_run is None
    assert "No suggestion: MuJoCo's run reaches its end with none of the settings" in str(report)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((OPTION, '<option timestep="0.002" gravity="0 0 0"/>'), "the loops do not open. Does"),
        (
            (PIN, f'{PIN} solref="0.004 0.5" solimp="0.9999 0.9999"'),
            r"does not lower the drift of this motion \(it opens loops by \d.*; keep what the file",
        ),
    ],
)
def test_where_nothing_is_better_nothing_is_suggested_or_written(
    words, message, monkeypatch, tmp_path
):
    mujoco_alone(monkeypatch)
    report = doctor(changed(*words), end=0.1, write=tmp_path / "out.xml")
    assert report.suggestion is None
    assert report.written is None
    assert [*tmp_path.iterdir()] == []
    assert re.search(message, str(report))


def test_a_time_constant_that_mujoco_raises_is_named(monkeypatch):
    mujoco_alone(monkeypatch)
    report = doctor(changed('name="pin"', 'name="pin" solref="0.0005 1"'), end=0.1)
    assert "raises the time constant of 'pin' from 0.0005 s to 0.004 s, two steps" in str(report)


def test_what_mujoco_warns_of_is_in_the_report(monkeypatch, tmp_path, capfd):
    mujoco_alone(monkeypatch)
    monkeypatch.chdir(tmp_path)
    report = doctor(changed(PIN, f'{PIN} solref="-100 1"'), end=0.1)
    assert "MuJoCo warns: mixed solref format, replacing with default" in str(report)
    # Neither its messages nor its file.
    assert [*tmp_path.iterdir()] == []
    assert capfd.readouterr() == ("", "")


LIMIT = ('<joint name="rocker"/>', '<joint name="rocker" range="-20 20" limited="true"/>')
MOTOR = ("</mujoco>", "<actuator><motor joint='crank' forcerange='-1 1'/></actuator><keyframe>"
         "<key name='drive' ctrl='5'/></keyframe></mujoco>")  # fmt: skip

CORD = ("</mujoco>", "<tendon><fixed name='cord' range='-.35 .35' limited='true'>"
        "<joint joint='rocker' coef='1'/></fixed></tendon></mujoco>")  # fmt: skip
HELD = ("</mujoco>", "<actuator><intvelocity joint='crank' actrange='0 1'/></actuator></mujoco>")


def test_what_acts_beside_the_exact_mechanism_is_named(monkeypatch):
    """Motions are compared up to there; contacts from the start on leave nothing to compare."""
    seen = []

    def motion(system, state, ctrl, ts):
        seen.append(ts[-1])
        raise examination.SimulationError("not needed here.")

    monkeypatch.setattr(examination, "exact_motion", motion)
    monkeypatch.setattr(examination, "mobility", lambda *_: None)
    report = doctor(changed(*LIMIT), end=0.4)
    assert report.file_run.acted == (pytest.approx(0.206), "the limit of joint 'rocker'")
    assert seen == [pytest.approx(0.206)]
    assert "no exact motion: not needed here." in str(report)
    assert "not in the exact mechanism: limits of 1 joint" in str(report)
    ground = '<worldbody><geom type="plane" size="2 2 .1" pos="0 0 0.9"/>'
    rubs = changed('contype="0" conaffinity="0"', "", "<worldbody>", ground)
    assert "no exact motion to compare: a contact acts from the start on" in str(doctor(rubs))
    report = doctor(changed(*MOTOR), end=0.1, key="drive")
    assert "no exact motion to compare: the largest force of one actuator" in str(report)
    report = doctor(changed(*CORD), end=0.4)
    assert report.file_run.acted == (pytest.approx(0.206), "the limit of tendon 'cord'")
    report = doctor(changed(*HELD), end=0.1)
    assert "no exact motion to compare: the limit of an activation acts" in str(report)


def test_a_file_is_written_with_nothing_else_changed(monkeypatch, tmp_path):
    mujoco_alone(monkeypatch)
    text = changed(
        *(
            'name="pin"',
            "\n name='pin' solref='0.02 1'",
            "<equality>",
            "<equality><!-- <weld/> -->",
        ),
        *("<default>", '<default><equality solimp="0.8 0.9"/>'),
    )
    (tmp_path / "in.xml").write_text(text)
    report = doctor(tmp_path / "in.xml", end=0.1, write=tmp_path / "out.xml")
    written = (tmp_path / "out.xml").read_text()
    wanted = text.replace(" solref='0.02 1'", "").replace(
        'anchor="0.4 0 0.3"/>', f'anchor="0.4 0 0.3" {report.suggestion}/>'
    )
    assert written == wanted
    assert report.not_kept is None
    assert sorted(x.name for x in tmp_path.iterdir()) == ["in.xml", "out.xml"]
    again = doctor(tmp_path / "out.xml", end=0.1)
    assert report.tried_run is not None
    assert again.file_run.drift == report.tried_run.drift
    with pytest.raises(ValueError, match="is the file that was read; give another one to write"):
        doctor(tmp_path / "in.xml", end=0.1, write=tmp_path / "in.xml")


def test_every_other_byte_of_a_file_is_kept(monkeypatch, tmp_path):
    """Ends of lines, letters of another encoding, constraints that are not active."""
    mujoco_alone(monkeypatch)
    text = changed(
        "<equality>",
        '<equality>\r\n<weld body1="crank" body2="rocker" active="false"/><!-- Gelenk f\xfcr A -->',
    )
    (tmp_path / "in.xml").write_bytes(text.encode("latin-1"))
    report = doctor(tmp_path / "in.xml", end=0.1, write=tmp_path / "out.xml")
    wanted = text.replace('anchor="0.4 0 0.3"/>', f'anchor="0.4 0 0.3" {report.suggestion}/>')
    assert (tmp_path / "out.xml").read_bytes() == wanted.encode("latin-1")


def test_constraints_of_included_files_are_written_by_mujoco(monkeypatch, tmp_path):
    mujoco_alone(monkeypatch)
    (tmp_path / "bars.xml").write_text(FOUR_BAR)
    (tmp_path / "scene.xml").write_text("<mujoco><include file='bars.xml'/></mujoco>")
    report = doctor(tmp_path / "scene.xml", end=0.1, write=tmp_path / "out.xml")
    assert (
        report.not_kept == "by MuJoCo's own writer, without comments and with six digits of numbers"
    )
    assert f"out.xml {report.not_kept}" in str(report)
    model = MUJOCO.MjModel.from_xml_path(str(tmp_path / "out.xml"))
    np.testing.assert_allclose(model.eq_solref, [(0.004, 0.5)])


def test_a_file_that_would_be_another_mechanism_is_not_written(monkeypatch, tmp_path):
    """A mesh is found beside the file that was read alone."""
    mujoco_alone(monkeypatch)
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
    (tmp_path / "corner.obj").write_text(corners)
    mesh = "<worldbody><geom type='mesh' mesh='corner' contype='0' conaffinity='0'/>"
    text = changed(
        "<worldbody>", mesh, "<default>", "<asset><mesh file='corner.obj'/></asset><default>"
    )
    (tmp_path / "in.xml").write_text(text)
    (tmp_path / "there").mkdir()
    with pytest.raises(ValueError, match="Write it beside the file that was read, or set the attr"):
        doctor(tmp_path / "in.xml", end=0.1, write=tmp_path / "there" / "out.xml")
    assert [*(tmp_path / "there").iterdir()] == []
    assert doctor(tmp_path / "in.xml", end=0.1, write=tmp_path / "out.xml").written is not None
