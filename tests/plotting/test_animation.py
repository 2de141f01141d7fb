"""Films: their frames, durations, formats, and what is refused."""

import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image

from helpers.figures import texts
from helpers.moving import Spiral, Turning, turning_run
from jaxdae.plotting import animate
from jaxdae.plotting.animation import Film, timing

SMALL = {"width": 120, "fps": 2.0}


def opened(path):
    return Image.open(io.BytesIO(path.read_bytes()))


def durations(path):
    image, found = opened(path), []
    for i in range(getattr(image, "n_frames", 1)):
        image.seek(i)
        found.append(image.info["duration"])
    return found


def test_a_gif_lasts_as_long_as_the_motion_and_stays_at_its_end(tmp_path):
    path = animate(turning_run(), tmp_path / "new" / "rod.gif", title="rod", **SMALL)
    assert path == tmp_path / "new" / "rod.gif"
    assert durations(path) == [500, 500, 500, 500, 1000]
    image = opened(path)
    assert image.size[0] == 120
    assert image.info["loop"] == 0
    assert np.asarray(image.convert("RGB"))[0, 0].tolist() == [255, 255, 255]


def film(run, **more):
    frames = timing(0.0, float(run.ts[np.isfinite(run.ts)][-1]), fps=2.0, speed=None)
    return Film(run, frames, **{"names": True, "plane": None, "title": None, "width": 120} | more)


def test_frames_show_the_position_at_their_time_and_the_path_so_far():
    shown = film(turning_run(), title="rod")
    shown.show(2)
    ax = shown.scene.ax
    assert ax.get_title(loc="left") == "rod, t = 1.0 s"
    ends = [np.asarray(x.get_data()).T for x in ax.get_lines() if x.get_linewidth() == 2.0]
    np.testing.assert_allclose(ends[-1][-1], [0.0, 2.0], atol=1e-15)
    trail = next(x for x in ax.get_lines() if x.get_alpha() == 0.7)
    angles = np.arctan2(*np.asarray(trail.get_data())[::-1])
    np.testing.assert_allclose(angles[[0, -1]], [0.0, np.pi / 2], atol=1e-15)
    assert (np.diff(angles) >= 0.0).all()
    count = len(ax.get_children())
    shown.show(3)
    shown.show(2)
    assert len(ax.get_children()) == count  # nothing of other frames stays


def test_the_last_frame_of_a_failed_run_says_so():
    for system in (Turning(), Spiral()):
        shown = film(turning_run(system, failed=True), names=False)
        shown.show(0)
        assert texts(shown.scene.ax) == []
        shown.show(len(shown) - 1)
        assert texts(shown.scene.ax) == ["failed after t = 1.5 s"]


@pytest.mark.parametrize(
    ("length", "speed", "film_length"),
    [(2.0, 1.0, 2.0), (20.0, 1.0, 20.0), (0.03, 0.005, 6.0), (100.0, 20.0, 5.0), (0.5, 0.1, 5.0)],
)
def test_the_speed_is_that_of_the_clock_or_a_simple_one(length, speed, film_length):
    found = timing(1.0, 1.0 + length, fps=20.0, speed=None)
    assert found.speed == pytest.approx(speed, rel=1e-12)
    assert found.ts[[0, -1]] == pytest.approx([1.0, 1.0 + length])
    assert (found.ts.size - 1) * found.delay == pytest.approx(film_length)


def test_mp4_is_written_by_ffmpeg_or_says_that_it_is_missing(tmp_path, monkeypatch):
    if shutil.which("ffmpeg"):
        path = animate(turning_run(), tmp_path / "rod.mp4", **SMALL)
        assert path.read_bytes()[4:8] == b"ftyp"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"rod\.mp4' needs the program ffmpeg, .* write \.gif"):
        animate(turning_run(), tmp_path / "rod.mp4")


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("rod.gif", {"fps": 51}, "fps=51 must be above 0 and at most 50 frames per second."),
        ("rod.gif", {"fps": float("nan")}, "fps=nan must be above 0"),
        ("rod.gif", {"speed": 0.0}, "speed=0.0 must be positive: seconds of motion in a second"),
        ("rod.gif", {"width": 10}, "width=10 must be from 100 to 4000 pixels."),
        (
            "rod.gif",
            {"speed": 0.01},
            "2 s at speed 0.01 and 20 frames per second are 4001 frames, more than 2000; give a",
        ),
        ("rod.avi", {}, "its suffix must be one of .gif, .mp4; a page .html is written by"),
    ],
)
def test_what_no_film_can_be_is_refused(tmp_path, name, more, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        animate(turning_run(), tmp_path / name, **more)
    assert [*tmp_path.iterdir()] == []
