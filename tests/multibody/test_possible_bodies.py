"""Inertias that a body can have, and loops between two."""

import numpy as np
import pytest

from jaxdae.multibody import Body, Connection, Coupling, Hinge, Multibody, read_mujoco, Weld

HINGE = Hinge("angle", axis=(0, 1, 0))
IMPOSSIBLE = [
    ((1.0, 0.1, 0.0), r"moments 0, 0\.1, 1 kg m\^2: the largest exceeds the sum .* by 0\.9"),
    ((-1.0, 1.0, 1.0), r"principal moment -1 kg m\^2"),
    ((np.nan, 1.0, 1.0), "not finite"),
    ([[1.0, 0.2, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], r"not symmetric: .* up to 0\.2"),
    # Principal moments 0.1, 1 and 1.2, turned.
    ([[1.1, 0.1, 0.0], [0.1, 1.1, 0.0], [0.0, 0.0, 0.1]], r"exceeds the sum of the others by 0\.1"),
]


@pytest.mark.parametrize(("inertia", "words"), IMPOSSIBLE)
def test_inertias_that_no_body_has_are_refused_by_name(inertia, words):
    with pytest.raises(ValueError, match=rf"Body 'arm': the inertia .*{words}"):
        Body("arm", HINGE, mass=1.0, inertia=inertia)


def test_masses_that_no_body_has_are_refused():
    for mass in (-1.0, np.nan):
        with pytest.raises(ValueError, match="Body 'arm': the mass is"):
            Body("arm", HINGE, mass=mass)


def test_points_rods_and_plates_are_bodies():
    """Plane bodies have equality, which rounded digits miss by the last."""
    for inertia in ((0, 0, 0), (0.08, 0.08, 0.0), (0.0416, 0.0417, 0.0833), (1 / 3, 1 / 3, 2 / 3)):
        body = Body("arm", HINGE, mass=1.0, inertia=np.array(inertia, np.float32))
        np.testing.assert_allclose(np.diagonal(body.inertia), inertia, rtol=1e-6)


FILE = """<mujoco><compiler balanceinertia="{}"/><worldbody><body name="arm">
<joint name="angle" type="hinge"/><inertial pos="0 0 0" mass="1" diaginertia="{}"/>
</body></worldbody></mujoco>"""


def test_files_balance_inertias_as_mujoco_does_and_say_so():
    pytest.importorskip("mujoco")
    with pytest.raises(ValueError, match=r"(?s)inertia must satisfy A \+ B >= C.*'arm'"):
        read_mujoco(FILE.format("false", "1 .1 .01").replace("\n", ""))
    with pytest.warns(
        RuntimeWarning, match=r"\(0\.01, 0\.1, 1\) kg m\^2 of body 'arm'.*mean 0\.37"
    ):
        read = read_mujoco(FILE.format("true", "1 .1 .01"))
    np.testing.assert_allclose(np.diagonal(read.system.bodies[0].inertia), 0.37)
    assert read_mujoco(FILE.format("true", ".1 .1 .05")).left_out == ()


def test_what_is_no_file_is_said_to_be_none(tmp_path):
    pytest.importorskip("mujoco")
    (tmp_path / "empty.xml").touch()
    for source, words in (
        ("", "got an empty text"),
        (tmp_path, "which is no file"),
        (tmp_path / "none.xml", "which is no file"),
        (tmp_path / "empty.xml", "is empty"),
    ):
        with pytest.raises(ValueError, match=f"read_mujoco: .*{words}"):
            read_mujoco(source)


def test_loops_between_a_body_and_itself_are_refused():
    body = Body("arm", HINGE, mass=1.0, inertia=(0.1, 0.1, 0.1))
    for loop in (
        Weld("loop", "arm", "arm"),
        Connection("loop", "arm", "arm"),
        Weld("loop", None),
        Coupling("loop", "angle", "angle"),
    ):
        with pytest.raises(ValueError, match=r"of 'loop' are both .*: it constrains nothing"):
            Multibody([body], loops=[loop])
