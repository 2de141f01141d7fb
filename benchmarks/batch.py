"""Fixed Runge-Kutta steps of 65536 trajectories at once, in double and in single precision.

Every code takes the same steps of the classical method from the same starts; the final states are
compared with those of `simulate` on its plain backend. MuJoCo integrates with its own method of the
same order, and its constraints are springs: its error says how far that is from the mechanism.

    python benchmarks/batch.py
"""

import dataclasses
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

from jaxdae.commands.tables import table
from jaxdae.plotting.style import colors, new_axes

# Steps of each mechanism, and their size [s].
STEPS = {"two-link": (50, 1e-4), "andrews": (10, 1e-5), "chain": (10, 1e-4)}
PRECISIONS = ("float64", "float32")
UNIT = 1e6

Builders = dict[tuple[str, str], Callable[[], Callable]]

# Fewer trajectories for codes that are a hundred times slower.
MUJOCO_MEMBERS = 4096


@dataclasses.dataclass
class Entry:
    """One code on one problem.

    Args:
        code: name.
        precision: "float64" or "float32".
        run: called without arguments; None if the code is missing.
        missing: why there is no figure.
        members: number of trajectories.
        setup_s: time of the first call less that of the second [s].
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
    found: Builders = {}
    for precision in PRECISIONS:
        found |= _own(case, y, precision)
        if problem.mechanism == "two-link":
            found["C by hand", precision] = lambda d=precision: _on(
                hand_written.rk4(d, steps, h), np.ascontiguousarray(y.T, d)
            )
    part = y[:MUJOCO_MEMBERS]
    found["MuJoCo rollout", "float64"] = lambda: mujoco_codes.rollout(problem, part, steps, h)
    mjx = lambda: mujoco_codes.mjx_batch(problem, part, steps, h)  # noqa: E731
    found["MJX, vmap", "float64"] = _left_out if quick else mjx
    return found


def _own(case: Case, y: np.ndarray, precision: str) -> Builders:
    """This library on both backends, and JAX alone."""
    steps, h = STEPS[case.problem.mechanism]
    given = jnp.asarray(y, precision)
    found: Builders = {
        (ours.label(backend), precision): lambda backend=backend: _on(
            ours.batch(case, backend, steps, h), given
        )
        for backend in ours.BACKENDS
    }
    found["JAX, vmap of a loop", precision] = lambda: _on(
        ours.vmap_loop(case, jnp.dtype(precision), steps, h), given
    )
    return found


def _left_out() -> Callable:
    raise MissingCodeError("left out by --quick; it compiles for a minute")


def _on(function: Callable, given: Any) -> Callable:
    return lambda: function(given)


def prepare(case: Case, count: int, quick: bool) -> list[Entry]:
    """Build every code, call it once, and compare its result."""
    y = starts(case, count)
    reference = np.asarray(_reference(case, y), float)
    entries = []
    for (code, precision), build in builders(case, y, quick).items():
        entry = Entry(code, precision)
        entries.append(entry)
        ready, entry.missing = harness.attempt(lambda b=build: _called(b()))
        if ready is not None:
            entry.run, found, entry.setup_s = ready
            entry.members = len(found)
            off = np.abs(found[: len(reference)] - reference) / (1.0 + np.abs(reference))
            entry.error = float(np.max(off))
    return entries


def _called(run: Callable) -> tuple[Callable, np.ndarray, float]:
    """A code, what it returns, and how much longer its first call took than its second [s]."""
    result, first = harness.first_call(run)
    return run, _states(result), max(first - harness.seconds(run), 0.0)


def _reference(case: Case, y: np.ndarray, members: int = 64) -> jax.Array:
    """The first members by the plain backend in double precision."""
    run = ours.batch(case, "plain", *STEPS[case.problem.mechanism])
    return run(jnp.asarray(y[:members]))


def _states(result: Any) -> np.ndarray:
    """Final states, trajectories first; the C code keeps components first."""
    found = np.asarray(result, float)
    return found if found.shape[0] > found.shape[1] else found.T


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
    """Steps per second [1/s], and how many times faster than the fastest `vmap` it is."""
    vmaps = [times["JAX, vmap of a loop", precision], times[ours.label("plain"), precision]]
    best = min(vmaps, key=lambda x: harness.spread(x)["median"])
    rates = harness.spread([1.0 / t for t in own])
    return {"rate": rates, "ratio_to_vmap": harness.ratio(best, own)}


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as a table."""
    headings = ("problem", "code", "type", "10^6 steps/s", "/ vmap", "error", "set-up s", "note")
    cells = []
    for row in rows:
        start = (row["problem"], row["code"], row["precision"])
        if row["missing"]:
            cells.append((*start, "-", "-", "-", "-", row["missing"]))
            continue
        median, least, largest = (x / UNIT for x in row["rate"].values())
        cells.append((
            *start, f"{median:.3g} ({least:.3g}-{largest:.3g})", f"{row['ratio_to_vmap']:.3g}",
            f"{row['error']:.1e}", f"{row['setup_s']:.2f}", "",
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
            medians = [row["rate"]["median"] for row in part]
            ax.barh(places, medians, 0.38, color=color, label=precision)
        absent = set(codes) - {row["code"] for row in timed}
        ax.set_yticks(range(len(codes)), [f"({x})" if x in absent else x for x in codes])
        ax.invert_yaxis()
        harness.decades(ax, [row["rate"]["median"] for row in timed])
        ax.set_title(name)
        ax.set_xlabel("steps per second [1/s]")
    axes[0, 0].legend()
    return fig


def main() -> None:
    """Measure, print a table, write `results/batch.json` and `results/batch.png`."""
    args = harness.arguments(main.__doc__, 7)
    count = 4096 if args.quick else 65536
    rows = []
    for case in (two_link(), andrews(), chain(10)):
        rows += measure(case, count, args.repetitions, args.quick)
    print(f"{count} trajectories on {harness.cores()} cores\n\n{text(rows)}")
    harness.finish("batch", rows, figure(rows))


if __name__ == "__main__":
    main()
