"""What all benchmarks share: calls timed in turn, their spread, versions, tables and figures."""

import argparse
import contextlib
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from competitors.base import MissingCodeError, version_of
from matplotlib.axes import Axes

from jaxdae.files import write_json
from jaxdae.plotting import save_figure

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "jaxdae", "jax", "diffrax", "llvmlite", "numpy", "scipy", "casadi", "heyoka", "sundials4py",
    "scikit-sundae", "exudyn", "mujoco", "mujoco-mjx", "solve_dae",
)  # fmt: skip


def arguments(
    description: str | None, repetitions: int, problems: Iterable[str] = ()
) -> argparse.Namespace:
    """The options of a benchmark: `--repetitions`, `--quick`, `--problems`.

    Args:
        description: of the script.
        repetitions: rounds by default; 3 with `--quick`.
        problems: what may be chosen of; by default all.
    """
    names = list(problems)
    parser = argparse.ArgumentParser(description=description)
    text = f"rounds (default {repetitions})"
    parser.add_argument("--repetitions", type=int, default=None, help=text)
    parser.add_argument("--quick", action="store_true", help="less work, three rounds")
    text = "what to measure (default all); the results are then named after it"
    parser.add_argument("--problems", nargs="+", choices=names, default=names, help=text)
    given = parser.parse_args()
    given.some = "" if given.problems == names else "-" + "-".join(given.problems)
    if given.repetitions is None:
        given.repetitions = 3 if given.quick else repetitions
    jax.config.update("jax_enable_x64", True)
    return given


def seconds(call: Callable[[], Any], count: int = 1) -> float:
    """Time of one call, its result ready, from `count` of them [s]."""
    began = time.perf_counter()
    for _ in range(count):
        jax.block_until_ready(call())
    return (time.perf_counter() - began) / count


def interleaved(
    calls: Mapping[Any, Callable[[], Any]], rounds: int, least: float = 0.005
) -> dict[Any, list[float]]:
    """Times of calls [s], taken in turn so that a busy machine slows all of them.

    Args:
        calls: what is timed; each has been called before.
        rounds: number of times for each.
        least: a time is that of so many calls that they take about this long [s].
    """
    once = {key: seconds(call) for key, call in calls.items()}
    counts = {key: max(1, round(least / once[key])) for key in calls}
    results = [
        {key: seconds(call, counts[key]) for key, call in calls.items()} for _ in range(rounds)
    ]
    return {key: [row[key] for row in results] for key in calls}


def cores() -> int:
    """Cores of this machine."""
    return os.cpu_count() or 1


def first_call(call: Callable[[], Any]) -> tuple[Any, float]:
    """Result of a call and the time it took [s]; of a compiled function, the compiling."""
    began = time.perf_counter()
    result = jax.block_until_ready(call())
    return result, time.perf_counter() - began


def attempt(build: Callable[[], Any]) -> tuple[Any, str | None]:
    """What a competitor builds, or `None` and why it cannot: missing, or failed, in one line."""
    try:
        return build(), None
    except MissingCodeError as error:
        return None, f"missing: {error}"
    except Exception as error:  # whatever fails in another code must not hide the rest
        lines = str(error).strip().splitlines() or [""]
        return None, f"failed: {type(error).__name__}: {lines[-1]}"[:100]


def spread(times: list[float]) -> dict[str, float]:
    """Median, least and largest."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median over the rounds of how many times longer the first took."""
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def shown(times: list[float], unit: float) -> str:
    """Median and spread as text, in units of `unit`."""
    median, least, largest = (x / unit for x in spread(times).values())
    return f"{median:.3g} ({least:.3g}-{largest:.3g})"


def decades(ax: Axes, values: Sequence[float]) -> None:
    """A logarithmic horizontal axis of whole decades around values."""
    ax.set_xscale("log")
    if values:
        least, largest = (math.log10(f(values)) for f in (min, max))
        ax.set_xlim(10.0 ** math.floor(least - 0.05), 10.0 ** math.ceil(largest))


@contextlib.contextmanager
def scratch_folder():
    """Work in a folder that is removed afterwards: other codes leave files where they are called.

    CasADi leaves the sources of what it compiles, even when an integrator is first called.
    """
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder, contextlib.chdir(folder):
        yield


def versions() -> dict[str, str]:
    """Installed versions of all codes."""
    return {package: version_of(package) for package in PACKAGES}


def finish(name: str, rows: Any, figure: Any = None) -> None:
    """Write `results/NAME.json` with the machine and the versions, and `results/NAME.png`.

    Prints the versions, so that what a script prints is complete.
    """
    machine = {"cores": cores(), "machine": platform.machine(), "versions": versions()}
    print("\n" + ", ".join(f"{k} {v}" for k, v in versions().items()))
    write_json(RESULTS / f"{name}.json", {"machine": machine, "rows": rows})
    if figure is not None:
        save_figure(figure, RESULTS / f"{name}.png")
