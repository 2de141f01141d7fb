"""What all benchmarks share: options, calls timed in turn, their spread, and the file of results.

A file of results is JSON with what was run (`benchmark`, `settings`, `timed`), on what (`machine`),
and `rows`: one flat record for each code, setting and problem, with `seconds` of every round, or
why there are none in `missing`.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax
from competitors.base import MissingCodeError, version_of
from matplotlib.axes import Axes
from tqdm import tqdm

from jaxdae.plotting import save_figure
from jaxdae.storage.files import replace_file

T = TypeVar("T")
RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = (
    "jaxdae", "jax", "diffrax", "llvmlite", "numpy", "scipy", "casadi", "heyoka", "sundials4py",
    "scikit-sundae", "exudyn", "mujoco", "mujoco-core", "mujoco-mjx", "pin", "solve_dae",
    "assimulo-testing",
)  # fmt: skip


def arguments(
    description: str | None,
    repetitions: int,
    problems: Iterable[str] = (),
    quick: Iterable[str] | None = None,
    more: Callable[[argparse.ArgumentParser], Any] = lambda _: None,
) -> argparse.Namespace:
    """The options of a benchmark: `--repetitions`, `--quick`, `--problems`, `--out`.

    Args:
        description: of the script.
        repetitions: rounds by default; 3 with `--quick`.
        problems: what may be chosen of; by default all.
        quick: those that `--quick` measures by default; by default all.
        more: adds options to the parser.
    """
    names = list(problems)
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    text = f"rounds (default {repetitions}; 3 with --quick)"
    parser.add_argument("--repetitions", type=int, default=None, help=text)
    text = "less work, three rounds: two or three minutes on two processors"
    parser.add_argument("--quick", action="store_true", help=text)
    if names:
        text = "what to measure (default all); the results are then named after it"
        parser.add_argument("--problems", nargs="+", choices=names, help=text)
    parser.add_argument("--out", type=Path, help="file of the results (default in results/)")
    more(parser)
    given = parser.parse_args()
    chosen = getattr(given, "problems", None)
    given.some = "" if chosen in (None, names) else "-" + "-".join(chosen)
    given.problems = chosen or (list(quick) if given.quick and quick is not None else names)
    if given.repetitions is None:
        given.repetitions = 3 if given.quick else repetitions
    given.load = load()
    jax.config.update("jax_enable_x64", True)
    return given


def run(main: Callable[[], Any]) -> None:
    """Call the main function of a script with one thread for linear algebra.

    Threads for matrices of tens of rows wait for each other, on a busy machine most of the time:
    codes that call LAPACK are fastest without. OpenBLAS reads this when it is loaded, hence anew.
    """
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    main()


def progress(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The items, with a bar on a terminal that is gone when they are done."""
    return iter(tqdm(items, desc=what, total=total, leave=False, disable=None))


def seconds(
    call: Callable[[], Any], count: int = 1, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Time of one call, its result ready, from `count` of them [s]."""
    began = clock()
    for _ in range(count):
        jax.block_until_ready(call())
    return (clock() - began) / count


def interleaved(
    calls: Mapping[Any, Callable[[], Any]],
    rounds: int,
    least: float = 0.005,
    spend: float = 5.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, list[float]]:
    """Times of calls [s], taken in turn so that a busy machine slows all of them.

    Args:
        calls: what is timed; each has been called before.
        rounds: number of times for each, at least.
        least: a time is that of so many calls that they take about this long [s].
        spend: more rounds, up to 25, where they take no longer than this in all [s].
        clock: by the wall, or `time.process_time`, of the processors, which other work on the
            machine disturbs less.
    """
    once = {key: seconds(call) for key, call in calls.items()}
    counts = {key: max(1, round(least / once[key])) for key in calls}
    each = sum(max(least, x) for x in once.values())
    if each > 0:
        rounds = max(rounds, min(25, int(spend / each)))
    results: dict[Any, list[float]] = {key: [] for key in calls}
    turns = [key for _ in range(rounds) for key in calls]
    for key in progress(turns, "timing"):
        results[key].append(seconds(calls[key], counts[key], clock))
    return results


def cores() -> int:
    """Cores of this machine."""
    return os.cpu_count() or 1


def load() -> float | None:
    """Processes that waited or ran in the last minute, on average; not every system says it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def processor() -> str:
    """The processor's name, as far as the system says it."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
        return next(iter(names), "") or platform.processor()
    return platform.processor()


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


def finish(
    name: str,
    given: argparse.Namespace,
    rows: Sequence[Mapping[str, Any]],
    timed: str,
    figure: Any = None,
) -> None:
    """Write the results as JSON with the machine and the versions, and a figure beside them.

    Prints the versions, so that what a script prints is complete.

    Args:
        name: of the benchmark.
        given: what `arguments` returned.
        rows: flat records.
        timed: what `seconds` of a row are the time of, in words.
        figure: of the results.
    """
    path = given.out or RESULTS / f"{name}{given.some}.json"
    settings = {"quick": given.quick, "rounds": given.repetitions, "problems": given.problems}
    machine = {
        "cores": cores(),
        "threads_of_linear_algebra": os.environ.get("OPENBLAS_NUM_THREADS"),
        "machine": platform.machine(),
        "processor": processor(),
        "load": [given.load, load()],
        "versions": {"python": platform.python_version(), **versions()},
    }
    print("\n" + ", ".join(f"{k} {v}" for k, v in machine["versions"].items()))
    head = {"benchmark": name, "settings": settings, "timed": timed, "machine": machine}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, _json(head, rows).encode())
    if figure is not None:
        save_figure(figure, path.with_suffix(".png"))
    print(f"results are in {path}")


def _json(head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each entry of the head and for each row."""
    parts = [f"{json.dumps(k)}: {json.dumps(_plain(x))}" for k, x in head.items()]
    lines = [json.dumps(_plain(row), allow_nan=False) for row in rows]
    return "{" + ",\n".join([*parts, '"rows": [\n' + ",\n".join(lines) + "]"]) + "}\n"


def _plain(x: Any) -> Any:
    """Numbers with four digits, which is more than a time has; `null` for what is not finite."""
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if x is None or isinstance(x, str | bool | int):
        return x
    return float(f"{float(x):.4g}") if math.isfinite(x) else None
