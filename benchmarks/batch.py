"""Fixed Runge-Kutta steps of 65536 trajectories at once, in double and in single precision.

Every code takes the same steps of the classical method from the same starts; the final states are
compared with those of `simulate` on its plain backend. MuJoCo integrates with its own method of the
same order, and its constraints are springs: its error says how far that is from the mechanism.
Codes that are much slower have fewer trajectories; what is compared is the time of a step, and the
two-link rows with few of them say what their number does to it.

    python benchmarks/batch.py
    python benchmarks/batch.py --problems andrews
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import ours
from competitors import hand_written, mujoco_codes
from competitors.base import MissingCodeError
from problems import andrews, Case, chain, two_link

from jaxdae.plotting.style import colors, new_axes
from jaxdae.tables import table

# Steps of each mechanism, and their size [s].
STEPS = {"two-link": (50, 1e-4), "andrews": (50, 1e-5), "chain": (50, 1e-4)}
PRECISIONS = ("float64", "float32")
UNIT = 1e6

LOOP = "JAX, vmap of a loop"

Builders = dict[tuple[str, str], Callable[[], Callable]]

PROBLEMS: dict[str, Callable[[], Case]] = {
    "two-link": two_link,
    "andrews": andrews,
    "chain-10": lambda: chain(10),
}
# Trajectories of codes that are a hundred times slower, and of `vmap` where all take a minute; with
# --quick fewer, and of all others.
MANY, FEW = 65536, 4096
QUICK_MANY, QUICK_FEW = 16384, 512
# Of MJX: where XLA runs two batches of factorizations at once, both large enough to be shared among
# its threads, they can wait for each other's for ever.
MJX_MEMBERS = 256


@dataclasses.dataclass
class Entry:
    """One code on one problem.

    Args:
        code: name.
        precision: "float64" or "float32".
        run: called without arguments; None if the code is missing.
        missing: why there is no figure.
        members: number of trajectories.
        setup_s: time to the first result less that of a call [s].
        error: largest difference of the final states, relative to 1 + |state|.
    """

    code: str
    precision: str
    run: Callable | None = None
    missing: str | None = None
    members: int = 0
    setup_s: float = 0.0
    error: float = 0.0


def starts(case: Case, count: int) -> np.ndarray:
    """Starts off the nominal one by up to 1e-9, shape (count, 2n)."""
    noise = np.random.default_rng(1).uniform(-1.0, 1.0, (count, len(case.problem.y)))
    return case.problem.y + 1e-9 * noise


def builders(case: Case, y: np.ndarray, quick: bool) -> Builders:
    """How to build each code: name and precision to a function that returns a call."""
    problem, (steps, h) = case.problem, STEPS[case.problem.mechanism]
    few = y[: QUICK_FEW if quick else FEW]
    results: Builders = {}
    for precision in PRECISIONS:
        # `vmap` of the two-link arm takes all, which is its fastest form.
        given = y if problem.mechanism == "two-link" else few
        results |= _own(case, y, precision) | _vmaps(case, given, precision)
        if len(given) > len(few) and not quick:
            name = f"{LOOP}, fewer"
            results[name, precision] = lambda d=precision: _loop(case, few, d)
        if problem.mechanism == "two-link":
            results["C by hand", precision] = lambda d=precision: _on(
                hand_written.rk4(d, steps, h), np.ascontiguousarray(y.T, d)
            )
    results["MuJoCo rollout", "float64"] = lambda: mujoco_codes.rollout(problem, few, steps, h)
    mjx = lambda: mujoco_codes.mjx_batch(problem, y[:MJX_MEMBERS], steps, h)  # noqa: E731
    results["MJX, vmap", "float64"] = _left_out if quick else mjx
    return results


def _own(case: Case, y: np.ndarray, precision: str) -> Builders:
    """The native backend with all processors of this process, and with fewer of them."""
    given, how = jnp.asarray(y, precision), STEPS[case.problem.mechanism]
    label = ours.label("native")
    results: Builders = {(label, precision): lambda: _on(ours.batch(case, "native", *how), given)}
    count = 1
    while count < harness.cores():
        name = f"{label}, {count} thread{'s' * (count > 1)}"
        results[name, precision] = lambda count=count: _with_processors(
            count, ours.batch(case, "native", *how), given
        )
        count *= 2
    return results


def _with_processors(count: int, function: Callable, given: Any) -> Callable:
    """A call of a function that is compiled for so many processors."""
    with ours.processors(count):
        jax.block_until_ready(function(given))
    return _on(function, given)


def _vmaps(case: Case, y: np.ndarray, precision: str) -> Builders:
    """The plain backend under `vmap`, and JAX alone."""
    how, given = STEPS[case.problem.mechanism], jnp.asarray(y, precision)
    return {
        (ours.label("plain"), precision): lambda: _on(ours.batch(case, "plain", *how), given),
        (LOOP, precision): lambda: _loop(case, y, precision),
    }


def _loop(case: Case, y: np.ndarray, precision: str) -> Callable:
    """A bare loop of JAX under `vmap`."""
    how = STEPS[case.problem.mechanism]
    return _on(ours.vmap_loop(case, jnp.dtype(precision), *how), jnp.asarray(y, precision))


def _left_out() -> Callable:
    raise MissingCodeError("left out by --quick; it compiles for a minute")


def _on(function: Callable, given: Any) -> Callable:
    return lambda: function(given)


def prepare(case: Case, count: int, quick: bool) -> list[Entry]:
    """Build every code, call it once, and compare its result."""
    y = starts(case, count)
    reference = np.asarray(_reference(case, y), float)
    entries = []
    built = builders(case, y, quick)
    for (code, precision), build in harness.progress(built.items(), case.problem.name, len(built)):
        entry = Entry(code, precision)
        entries.append(entry)
        ready, entry.missing = harness.attempt(lambda b=build: _called(b))
        if ready is not None:
            entry.run, results, entry.setup_s = ready
            entry.members = len(results)
            off = np.abs(results[: len(reference)] - reference) / (1.0 + np.abs(reference))
            entry.error = float(np.max(off))
    return entries


def _called(build: Callable[[], Callable]) -> tuple[Callable, np.ndarray, float]:
    """A code, what it returns, and how much longer than a call it takes to the first result [s]."""
    began = time.perf_counter()
    run = build()
    result = jax.block_until_ready(run())
    first = time.perf_counter() - began
    return run, _states(result), max(first - harness.seconds(run), 0.0)


def _reference(case: Case, y: np.ndarray, members: int = 64) -> jax.Array:
    """The first members by the plain backend in double precision."""
    run = ours.batch(case, "plain", *STEPS[case.problem.mechanism])
    return run(jnp.asarray(y[:members]))


def _states(result: Any) -> np.ndarray:
    """Final states, trajectories first; the C code keeps components first."""
    results = np.asarray(result, float)
    return results if results.shape[0] > results.shape[1] else results.T


def measure(case: Case, count: int, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Time every code on one problem; rows of the table."""
    entries = prepare(case, count, quick)
    ready = {(e.code, e.precision): e.run for e in entries if e.run is not None}
    members = {(e.code, e.precision): e.members for e in entries}
    times = harness.interleaved(ready, rounds)
    steps, _ = STEPS[case.problem.mechanism]
    # Some codes are given fewer trajectories: what is compared is the time of a step.
    times = {key: [t / (members[key] * steps) for t in own] for key, own in times.items()}
    rows = []
    for entry in entries:
        row = {"problem": case.problem.name, **dataclasses.asdict(entry)}
        row.pop("run")
        own = times.get((entry.code, entry.precision))
        rows.append(row if own is None else row | _figures(own, times, entry.precision))
    return rows


def _figures(own: list[float], times: dict, precision: str) -> dict[str, Any]:
    """Times of a step [s], and how many times faster than the fastest `vmap` it is."""
    vmaps = [times[LOOP, precision], times[ours.label("plain"), precision]]
    best = min(vmaps, key=lambda x: harness.spread(x)["median"])
    return {"seconds": own, "ratio_to_vmap": harness.ratio(best, own)}


def rates(row: dict[str, Any]) -> dict[str, float]:
    """Median, least and largest of the steps per second [1/s]."""
    return harness.spread([1.0 / t for t in row["seconds"]])


def comparisons(rows: list[dict[str, Any]]) -> list[str]:
    """How many times faster the native backend is than others, and than itself otherwise."""
    times = {(r["problem"], r["code"], r["precision"]): r.get("seconds") for r in rows}
    label, results = ours.label("native"), []
    for problem in dict.fromkeys(r["problem"] for r in rows):
        for precision in PRECISIONS:
            own, parts = times.get((problem, label, precision)), []
            double = times.get((problem, label, "float64"))
            if not own:
                continue
            for (name, code, kind), other in times.items():
                if other and (name, kind) == (problem, precision) and code != label:
                    parts.append(f"{harness.ratio(other, own):.3g} times {code}")
            if double and precision != "float64":
                parts.append(f"{harness.ratio(double, own):.3g} times float64")
            results.append(f"{problem}, {precision}: {label} is as fast as " + ", ".join(parts))
    return results


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as a table."""
    headings = (
        "problem", "code", "type", "trajectories", "10^6 steps/s", "/ vmap", "error", "set-up s",
        "note",
    )  # fmt: skip
    cells = []
    for row in rows:
        start = (row["problem"], row["code"], row["precision"])
        if row["missing"]:
            cells.append((*start, "-", "-", "-", "-", "-", row["missing"]))
            continue
        median, least, largest = (x / UNIT for x in rates(row).values())
        cells.append((
            *start, f"{row['members']}", f"{median:.3g} ({least:.3g}-{largest:.3g})",
            f"{row['ratio_to_vmap']:.3g}", f"{row['error']:.1e}", f"{row['setup_s']:.2f}", "",
        ))  # fmt: skip
    return table(headings, cells)


def figure(rows: list[dict[str, Any]]):
    """Steps per second of every code, a panel for each problem."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    fig, axes = new_axes(
        len(names), title="Batches: steps per second; in brackets: no figure", sharex=False
    )
    for ax, name in zip(axes[:, 0], names, strict=True):
        own = [row for row in rows if row["problem"] == name]
        codes = list(dict.fromkeys(row["code"] for row in own))
        timed = [row for row in own if not row["missing"]]
        for shift, precision, color in zip((-0.2, 0.2), PRECISIONS, colors(2), strict=True):
            part = [row for row in timed if row["precision"] == precision]
            places = [codes.index(row["code"]) + shift for row in part]
            medians = [rates(row)["median"] for row in part]
            ax.barh(places, medians, 0.38, color=color, label=precision)
        absent = set(codes) - {row["code"] for row in timed}
        ax.set_yticks(range(len(codes)), [f"({x})" if x in absent else x for x in codes])
        ax.invert_yaxis()
        harness.decades(ax, [rates(row)["median"] for row in timed])
        ax.set_title(name)
        ax.set_xlabel("steps per second [1/s]")
    axes[0, 0].legend()
    return fig


def main() -> None:
    """Measure, print a table, write `results/batch.json` and `results/batch.png`."""
    args = harness.arguments(__doc__, 7, PROBLEMS)
    count = QUICK_MANY if args.quick else MANY
    rows = []
    with harness.scratch_folder():
        for name in args.problems:
            rows += measure(PROBLEMS[name](), count, args.repetitions, args.quick)
    print(f"{harness.cores()} cores\n\n{text(rows)}\n")
    print("\n".join(comparisons(rows)))
    harness.finish("batch", args, rows, "one step of one trajectory, on the clock", figure(rows))


if __name__ == "__main__":
    harness.run(main)
