"""Mechanisms in motion as films: GIF and MP4."""

import io
import math
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.animation import FFMpegWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from jaxdae.plotting import readout, shapes
from jaxdae.plotting.mechanism import PATHS, Scene
from jaxdae.storage.files import naming, output_file, replace_file

# Runs that last between these are shown in real time unless a speed is asked for [s].
_SHORTEST, _LONGEST = 2.0, 20.0
# Films of others last as long or up to two and a half times as long [s].
_USUAL = 5.0
# A film is made in memory; this many frames take minutes.
MOST_FRAMES = 2000
# Viewers show frames at multiples of this, and some of them none faster than two of it [s].
TICK = 0.01
_FASTEST = 50.0
# Of 255: Pillow looks colours up in tables of six bits each.
_NEARLY_WHITE = 248


class Timing(NamedTuple):
    """Times of frames [s], from one to the next [s], and seconds of motion in one of film."""

    ts: np.ndarray
    delay: float
    speed: float


def timing(first: float, last: float, *, fps: float, speed: float | None) -> Timing:
    """Frames of a motion, in real time where it lasts 2 to 20 s and no speed is asked for."""
    if not 0.0 < fps <= _FASTEST:
        raise ValueError(f"fps={fps!r} must be above 0 and at most {_FASTEST:g} frames per second.")
    if speed is not None and not 0.0 < speed < math.inf:
        raise ValueError(
            f"speed={speed!r} must be positive: seconds of motion in a second of film, 1.0 for "
            "real time, 0.1 for ten times as slow."
        )
    length, way = abs(last - first), 1.0 if last >= first else -1.0
    speed = simple_speed(length) if speed is None else speed
    delay = TICK * max(round(1.0 / fps / TICK), 2)
    count = math.ceil(length / speed / delay - 1e-9) + 1
    if count > MOST_FRAMES:
        raise ValueError(
            f"{length:.4g} s at speed {speed:g} and {1 / delay:.4g} frames per second are {count} "
            f"frames, more than {MOST_FRAMES}; give a higher speed, fewer frames per second, or "
            "simulate a shorter time."
        )
    ahead = np.minimum(speed * delay * np.arange(count), length)
    ts = np.where(ahead < length, first + way * ahead, last)
    return Timing(ts, delay, speed)


def simple_speed(length: float) -> float:
    """1 for what lasts 2 to 20 s; else 1, 2 or 5 times a power of ten, of 5 to 12.5 s of film."""
    if length <= 0.0 or _SHORTEST <= length <= _LONGEST:
        return 1.0
    wanted = length / _USUAL
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(x for x in (10 * power, 5 * power, 2 * power, power) if x <= 1.0001 * wanted)


class Film:
    """A figure that shows one frame after the other."""

    def __init__(
        self,
        trajectory: Any,
        timing: Timing,
        *,
        names: bool,
        plane: str | None,
        title: str | None,
        width: int,
    ):
        self.timing = timing
        paths = shapes.along(trajectory)
        both = shapes.joined(paths, shapes.along(trajectory, timing.ts))
        self.scene = Scene(both, plane=plane, legend=False)
        self.figure = self.scene.figure
        self.figure.set_dpi(width / self.figure.get_figwidth())
        self.canvas = FigureCanvasAgg(self.figure)
        self._title, self._names = title, names
        self._failure = readout.failure_time(trajectory)
        self._past, self._drawn = paths.ts, list[Any]()
        self.scene.draw_ground()
        self._digits = max(0, -math.floor(math.log10(timing.speed * timing.delay) + 1e-9))
        self.show(0)
        self.canvas.draw()
        self.figure.set_layout_engine("none")  # what it found is kept, so that nothing jumps

    def __len__(self) -> int:
        return self.timing.ts.size

    def text(self, i: int) -> str:
        """What is written above frame `i`."""
        time = f"t = {self.timing.ts[i]:.{self._digits}f} s"
        speed = "" if self.timing.speed == 1.0 else f"  (speed ×{self.timing.speed:g})"
        return f"{self._title}, {time}{speed}" if self._title else time + speed

    def show(self, i: int) -> None:
        """Draw frame `i` in place of the one before, with the paths of points so far."""
        for artist in self._drawn:
            artist.remove()
        scene, ts = self.scene, self.timing.ts
        before = set(scene.ax.get_children())
        scene.ax.set_title(self.text(i), fontsize="medium", loc="left")
        row, way = self._past.size + i, 1.0 if ts[-1] >= ts[0] else -1.0
        past = [*np.flatnonzero(way * self._past <= way * ts[i]), row]
        for name, color in zip(scene.shapes.points.trace, cycle(PATHS), strict=False):
            trail = scene.shapes.places[name][past]
            scene.plot(trail, color=color, linewidth=1.0, alpha=0.7)
        scene.draw_position(row)
        if self._names:
            scene.draw_names(row)
        if i == len(self) - 1:
            scene.mark_failure(self._failure)
        self._drawn = [x for x in scene.ax.get_children() if x not in before]

    def image(self, i: int) -> Image.Image:
        """Frame `i` in pixels."""
        self.show(i)
        self.canvas.draw()
        return Image.fromarray(np.asarray(self.canvas.buffer_rgba())[..., :3].copy())


def with_palette(images: Sequence[Image.Image], colors: int = 160) -> list[Image.Image]:
    """Frames in the colours that first, middle and last have, which makes them small."""
    some = [images[0], images[len(images) // 2], images[-1]]
    width, height = images[0].size
    sample = Image.new("RGB", (width, height * len(some)))
    for k, image in enumerate(some):
        sample.paste(image, (0, k * height))
    palette = sample.quantize(colors, kmeans=2)
    entries = np.array(palette.getpalette()).reshape(-1, 3)
    entries[entries.min(axis=1) >= _NEARLY_WHITE] = 255  # what is white stays so
    palette.putpalette(entries.ravel().tolist())
    return [x.quantize(palette=palette, dither=Image.Dither.NONE) for x in images]


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
) -> Path:
    """Write a film of a mechanism in motion.

    Example::

        animate(sol, "pendulum.gif")
        animate(sol, "slowly.mp4", speed=0.1)

    Args:
        trajectory: what `jaxdae.simulate` returned, of a system with `points`. Between rows it
            moves on Hermite's cubics through `q` with the slopes `v`. A failed run ends where it
            failed, and the last frame says so.
        path: the file. Its suffix chooses the format: `.gif`, or `.mp4` by the program ffmpeg. For
            the browser there is `save_page`.
        speed: seconds of motion in a second of film, 1.0 for real time. By default it is that for
            runs of 2 to 20 s, and else what makes a film of 5 to 12.5 s; frames say which.
        fps: frames per second, at most 50, rounded so that the time between frames is a multiple
            of 0.01 s, as GIFs have it.
        width: of the film [pixels].
        names: write the names of points beside them.
        plane: two of `"xyz"`, onto which a mechanism in space is projected.
        title: heading of all frames.

    Returns:
        The file that was written.

    Raises:
        ValueError: for another suffix, a system without points, a run without rows, a batch, a
            speed or rate that cannot be shown, or more than 2000 frames.
        RuntimeError: for `.mp4` on a machine without ffmpeg.
    """
    path = Path(path)
    writers = {".gif": _gif, ".mp4": _mp4}
    write = writers.get(path.suffix.lower())
    if write is None:
        raise ValueError(
            f"cannot tell the format of {str(path)!r}: its suffix must be one of "
            f"{', '.join(writers)}; a page .html is written by save_page."
        )
    if write is _mp4 and not FFMpegWriter.isAvailable():
        raise RuntimeError(
            f"{str(path)!r} needs the program ffmpeg, which is not on this machine's PATH: "
            "install it, or write .gif, which needs nothing else."
        )
    if not 100 <= width <= 4000:
        raise ValueError(f"width={width!r} must be from 100 to 4000 pixels.")
    first, last = shapes.ends(trajectory)
    frames = timing(first, last, fps=fps, speed=speed)
    film = Film(trajectory, frames, names=names, plane=plane, title=title, width=width)
    path = output_file(path, "motion.gif")
    replace_file(path, write(film))
    return path


def _gif(film: Film) -> bytes:
    images = with_palette([film.image(i) for i in range(len(film))])
    delays = [round(1000 * film.timing.delay)] * (len(images) - 1) + [round(1000 * _PAUSE)]
    more, buffer = {"append_images": images[1:], "duration": delays, "loop": 0}, io.BytesIO()
    images[0].save(buffer, "gif", save_all=True, **more)
    return buffer.getvalue()


def _mp4(film: Film) -> bytes:
    writer = FFMpegWriter(fps=1.0 / film.timing.delay)  # pyright: ignore[reportArgumentType]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "film.mp4"
        writer.setup(film.figure, str(file), dpi=film.figure.dpi)
        for i in range(len(film)):
            film.show(i)
            writer.grab_frame()
        with naming(file):
            writer.finish()
        return file.read_bytes()
