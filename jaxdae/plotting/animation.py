"""Mechanisms in motion as films: GIF, HTML, MP4."""

import base64
import html
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.animation import FFMpegWriter
from PIL import Image
from tqdm import tqdm

from jaxdae.files import naming, output_file, replace_file
from jaxdae.plotting import shapes
from jaxdae.plotting.film import Film, png, timing, with_palette

# How long the last frame stays before a GIF begins again [s].
_PAUSE = 1.0


def animate(
    trajectory: Any,
    path: str | Path,
    *,
    speed: float | None = None,
    fps: float = 20.0,
    width: int = 480,
    names: bool = True,
    plane: str | None = None,
    title: str | None = None,
    progress: bool = False,
) -> Path:
    """Write a film of a mechanism in motion.

    Example::

        animate(sol, "pendulum.gif")
        animate(sol, "slowly.html", speed=0.1)

    Args:
        trajectory: what `jaxdae.simulate` returned, of a system with `points`. Between rows it
            moves on Hermite's cubics through `q` with the slopes `v`. A failed run ends where it
            failed, and the last frame says so.
        path: the file. Its suffix chooses the format: `.gif`; `.html`, a page of its own with a
            slider; `.mp4`, by the program ffmpeg.
        speed: seconds of motion in a second of film, 1.0 for real time. By default it is that for
            runs of 2 to 20 s, and else what makes a film of 5 to 12.5 s; frames say which.
        fps: frames per second, at most 50, rounded so that the time between frames is a multiple
            of 0.01 s, as GIFs have it.
        width: of the film [pixels].
        names: write the names of points beside them.
        plane: two of `"xyz"`, onto which a mechanism in space is projected.
        title: heading of all frames.
        progress: show a bar.

    Returns:
        The file that was written.

    Raises:
        ValueError: for another suffix, a system without points, a run without rows, a batch, a
            speed or rate that cannot be shown, or more than 2000 frames.
        RuntimeError: for `.mp4` on a machine without ffmpeg.
    """
    path = Path(path)
    write = _writer(path)
    if not 100 <= width <= 4000:
        raise ValueError(f"width={width!r} must be from 100 to 4000 pixels.")
    first, last = shapes.ends(trajectory)
    frames = timing(first, last, fps=fps, speed=speed)
    film = Film(trajectory, frames, names=names, plane=plane, title=title, width=width)
    path = output_file(path, "motion.gif")
    steps = tqdm(range(len(film)), desc=path.name, unit="frame", disable=not progress)
    data = write(film, steps)
    replace_file(path, data)
    return path


def _writer(path: Path) -> Callable[[Film, Any], bytes]:
    writers = {".gif": _gif, ".html": _html, ".mp4": _mp4}
    if path.suffix.lower() not in writers:
        raise ValueError(
            f"cannot tell the format of {str(path)!r}: its suffix must be one of "
            f"{', '.join(writers)}."
        )
    if path.suffix.lower() == ".mp4" and not FFMpegWriter.isAvailable():
        raise RuntimeError(
            f"{str(path)!r} needs the program ffmpeg, which is not on this machine's PATH: "
            "install it, or write .gif or .html, which need nothing else."
        )
    return writers[path.suffix.lower()]


def _gif(film: Film, steps: Any) -> bytes:
    images = with_palette([film.image(i) for i in steps])
    delays = [round(1000 * film.timing.delay)] * len(images)
    delays[-1] = round(1000 * _PAUSE)
    buffer = io.BytesIO()
    images[0].save(
        buffer, "gif", save_all=True, append_images=images[1:], duration=delays, loop=0
    )  # fmt: skip
    return buffer.getvalue()


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font-family:sans-serif;margin:1em;max-width:{width}px}}
img{{max-width:100%}}div{{display:flex;gap:.5em}}input{{flex:1}}</style></head>
<body><img id="frame" alt="{title}" src="{first}">
<div><button id="play" aria-label="play or pause">pause</button>
<input id="time" type="range" min="0" max="{last}" value="0" aria-label="time"></div>
<script>
const frames = {frames}, delay = {delay};
const frame = document.getElementById("frame"), time = document.getElementById("time");
const play = document.getElementById("play");
let running = true, now = 0, held = 0;
function show(i) {{ now = i; frame.src = frames[i]; time.value = i; }}
function step() {{
  if (!running) return;
  if (now < frames.length - 1) show(now + 1);
  else if ((held += delay) >= {pause}) {{ held = 0; show(0); }}
}}
play.onclick = () => {{ running = !running; play.textContent = running ? "pause" : "play"; }};
time.oninput = () => {{ running = false; play.textContent = "play"; show(+time.value); }};
setInterval(step, delay);
</script></body></html>
"""


def _html(film: Film, steps: Any) -> bytes:
    images: list[Image.Image] = with_palette([film.image(i) for i in steps])
    urls = [f"data:image/png;base64,{base64.b64encode(png(x)).decode()}" for x in images]
    page = _PAGE.format(
        title=html.escape(film.text(0).rpartition(", t =")[0] or "mechanism in motion"),
        first=urls[0],
        frames=json.dumps(urls),
        last=len(urls) - 1,
        delay=round(1000 * film.timing.delay),
        pause=round(1000 * _PAUSE),
        width=images[0].width,
    )
    return page.encode()


def _mp4(film: Film, steps: Any) -> bytes:
    writer = FFMpegWriter(fps=1.0 / film.timing.delay)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "film.mp4"
        writer.setup(film.figure, str(file), dpi=film.figure.dpi)
        for i in steps:
            film.show(i)
            writer.grab_frame()
        with naming(file):
            writer.finish()
        return file.read_bytes()
