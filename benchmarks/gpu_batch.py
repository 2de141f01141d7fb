"""Fixed Runge-Kutta steps of a batch on a GPU: this library's kernel, and `vmap` of other programs.

Every code takes the same classical Runge-Kutta steps from the same starts, in double and in single
precision; calls are timed in turn, compiling apart. Beside each time stands what `kernel_report`
estimates for the GPU, where its numbers are published. MuJoCo's engines solve a neighbouring
problem, as in `batch.py`; `MJX, warp` is that on NVIDIA's Warp, in single precision.

    python benchmarks/gpu_batch.py --out results/gpu.json
    python benchmarks/gpu_batch.py --cpu       # the same calls, few and small, without a GPU

Without a GPU it says so, measures nothing and ends with code 2.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch
import diffrax
import harness
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import ours
from competitors import mujoco_codes
from competitors.base import version_of
from problems import andrews, Case, chain, four_bar, two_link

from jaxdae.kernels import kernel_report
from jaxdae.kernels.cuda.assembler import AssemblerError
from jaxdae.kernels.cuda.report import Device, DEVICES
from jaxdae.solvers import RK4
from jaxdae.storage.files import write_json
from jaxdae.tables import table

PROBLEMS: dict[str, Callable[[], Case]] = {
    "two-link": two_link,
    "andrews": andrews,
    "chain-10": lambda: chain(10),
    "four-bar": four_bar,
}
STEPS = {**batch.STEPS, "four-bar": (50, 1e-4)}
MEMBERS, QUICK_MEMBERS, FEW = 262_144, 65_536, 64
MINE = ours.label("native")
PACKAGES = ("jaxdae", "jax", "jaxlib", "diffrax", "llvmlite", "mujoco-mjx", "warp-lang")
# Trajectories that are compared with those of the plain backend in double precision.
COMPARED = 64

Run = Callable[[], Any]


@dataclasses.dataclass
class Row:
    """One code on one problem.

    Args:
        problem: its name.
        code: name.
        precision: "float64" or "float32".
        members: of the batch.
        steps: of each.
        missing: why there is no figure.
        compile_s: time to the first result less that of a call [s].
        error: largest difference of the final states, relative to 1 + |state|.
        seconds: of calls [s].
    """

    problem: str
    code: str
    precision: str
    members: int
    steps: int
    missing: str | None = None
    compile_s: float = 0.0
    error: float = 0.0
    seconds: list[float] = dataclasses.field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The row, with members and steps per second [1/s]."""
        row = dataclasses.asdict(self)
        if self.seconds:
            rates = harness.spread([self.members / x for x in self.seconds])
            row["members_per_second"] = rates
            row["steps_per_second"] = {key: self.steps * x for key, x in rates.items()}
        return row


def by_hand(case: Case, dtype: Any, steps: int, h: float) -> Callable[[jax.Array], jax.Array]:
    """The equations of motion given to diffrax, as one writes it without `simulate`."""
    rate = ours.rate(case, dtype)
    term = diffrax.ODETerm(lambda t, y, _: rate(t, y))

    def run(y):
        end = diffrax.SaveAt(t1=True)
        made = diffrax.diffeqsolve(
            term, RK4(), 0.0, steps * h, h, y, saveat=end, max_steps=steps + 1
        )
        assert made.ys is not None
        return made.ys[-1]

    return jax.jit(jax.vmap(run))


def codes(case: Case, y: np.ndarray, precision: str) -> dict[str, Callable[[], Run]]:
    """How to build each code: a function that returns a call."""
    dtype, how = jnp.dtype(precision), STEPS[case.problem.mechanism]
    given = jnp.asarray(y, dtype)

    def call(function: Callable) -> Run:
        return lambda: function(given)

    engines: dict[str, Callable[[], Run]] = {
        "MJX, vmap": lambda: mujoco_codes.mjx_batch(case.problem, np.asarray(given), *how),
        "MJX, warp": lambda: mujoco_codes.mjx_batch(case.problem, np.asarray(given), *how, "warp"),
    }
    return {
        MINE: lambda: call(ours.batch(case, "native", *how)),
        ours.label("plain"): lambda: call(ours.batch(case, "plain", *how)),
        "diffrax by hand, vmap": lambda: call(by_hand(case, dtype, *how)),
        batch.LOOP: lambda: call(ours.vmap_loop(case, dtype, *how)),
        **engines,
    }


def measure(case: Case, members: int, rounds: int) -> list[Row]:
    """Build every code in both precisions, compare its results, and time calls in turn."""
    y, steps = batch.starts(case, members), STEPS[case.problem.mechanism][0]
    reference = ours.batch(case, "plain", *STEPS[case.problem.mechanism])
    wanted = np.asarray(reference(jnp.asarray(y[:COMPARED])), float)
    rows, calls = [], {}
    for precision in batch.PRECISIONS:
        for code, build in codes(case, y, precision).items():
            row = Row(case.problem.name, code, precision, members, steps)
            rows.append(row)
            ready, row.missing = harness.attempt(lambda b=build: called(b))
            if ready is not None:
                calls[code, precision], results, row.compile_s = ready
                off = np.abs(results[:COMPARED] - wanted) / (1.0 + np.abs(wanted))
                row.error = float(np.max(off))
    times = harness.interleaved(calls, rounds)
    for row in rows:
        row.seconds = times.get((row.code, row.precision), [])
    return rows


def called(build: Callable[[], Run]) -> tuple[Run, np.ndarray, float]:
    """A code, its results, and how much longer than a call it takes to the first of them [s]."""
    began = time.perf_counter()
    run = build()
    result = jax.block_until_ready(run())
    first = time.perf_counter() - began
    return run, np.asarray(result, float), max(first - harness.seconds(run), 0.0)


def published(kind: str) -> Device | None:
    """The GPU among those of published numbers, by the name that JAX gives it."""
    words = kind.replace("-", " ").split()
    names = {x.name: x for x in DEVICES}
    return next((x for name, x in names.items() if {*name.split()} <= {*words}), None)


def estimates(case: Case, precision: str, members: int) -> dict[str, Any]:
    """What the kernel's report says, or why there is none."""
    steps, h = STEPS[case.problem.mechanism]
    run = lambda y: ours.ending(case, "native", y, t1=steps * h, dt=h, solver=RK4())  # noqa: E731
    start = jnp.asarray(case.problem.y, precision)
    try:
        return kernel_report(run, start, members=members).as_json()
    except (AssemblerError, ValueError) as error:
        return {"missing": str(error)}


def shares(rows: list[dict], reports: dict[str, dict], device: Device | None) -> None:
    """Add to measured rows of the kernel what was estimated for this GPU."""
    for row in rows:
        report = reports[f"{row['problem']}, {row['precision']}"]
        estimated = report.get("roofline_steps_per_second") or {}
        if row["code"] != MINE or device is None or device.name not in estimated:
            continue
        row["roofline_steps_per_second"] = estimated[device.name]
        if "steps_per_second" in row:
            rate = row["steps_per_second"]["median"]
            row["share_of_roofline"] = rate / row["roofline_steps_per_second"]


def text(rows: list[dict]) -> str:
    """The measurements as a table."""
    headings = (
        "problem", "code", "type", "10^6 steps/s", "members/s", "of estimate", "error",
        "compiling s", "note",
    )  # fmt: skip
    cells = []
    for row in rows:
        start = (row["problem"], row["code"], row["precision"])
        if row["missing"]:
            cells.append((*start, "-", "-", "-", "-", "-", row["missing"]))
            continue
        median, least, largest = (x / 1e6 for x in row["steps_per_second"].values())
        share = f"{row['share_of_roofline']:.0%}" if "share_of_roofline" in row else "-"
        cells.append((
            *start, f"{median:.3g} ({least:.3g}-{largest:.3g})",
            f"{row['members_per_second']['median']:.3g}", share, f"{row['error']:.1e}",
            f"{row['compile_s']:.2f}", "",
        ))  # fmt: skip
    return table(headings, cells)


def options(words: list[str] | None = None) -> argparse.Namespace:
    """What the command is given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "gpu.json", help="a file")
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, help="what to measure")
    parser.add_argument("--members", type=int, help=f"of a batch (default {MEMBERS})")
    text = "rounds (default 5; 3 with --quick)"
    parser.add_argument("--repetitions", type=int, default=None, help=text)
    text = f"{QUICK_MEMBERS} members, three rounds, two problems"
    parser.add_argument("--quick", action="store_true", help=text)
    parser.add_argument(
        "--cpu", action="store_true",
        help=f"a rehearsal on processors with {FEW} members, which says nothing of GPUs",
    )  # fmt: skip
    given = parser.parse_args(words)
    given.repetitions = given.repetitions or (3 if given.quick else 5)
    given.problems = given.problems or list(PROBLEMS)[: 2 if given.quick else None]
    given.members = given.members or (
        FEW if given.cpu else QUICK_MEMBERS if given.quick else MEMBERS
    )
    return given


def main(words: list[str] | None = None) -> int:
    """Measure on the GPU, print a table, write the results as JSON."""
    given = options(words)
    platform = jax.default_backend()
    if platform != "gpu" and not given.cpu:
        print(
            f"gpu_batch: no GPU, JAX computes on {platform}; nothing was measured. With one: "
            "pip install 'jaxdae[cuda]'. --cpu rehearses the calls.",
            file=sys.stderr,
        )
        return 2
    jax.config.update("jax_enable_x64", True)
    devices = jax.devices()
    rows, reports = [], {}
    for name in harness.progress(given.problems, "problems"):
        case = PROBLEMS[name]()
        for precision in batch.PRECISIONS:
            reports[f"{case.problem.name}, {precision}"] = estimates(case, precision, given.members)
        rows += [x.figures() for x in measure(case, given.members, given.repetitions)]
    if platform == "gpu":
        shares(rows, reports, published(devices[0].device_kind))
    print(text(rows))
    machine = {
        "platform": platform,
        "rehearsal": platform != "gpu",
        "devices": [x.device_kind for x in devices],
        "runtime": jax.extend.backend.get_backend().platform_version,
        "versions": {x: version_of(x) for x in PACKAGES},
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"quick": given.quick, "rounds": given.repetitions, "problems": given.problems}
    head = {"benchmark": "gpu_batch", "settings": settings, "timed": "a call of a batch"}
    write_json(given.out, {**head, "machine": machine, "rows": rows, "reports": reports})
    print(f"\nresults are in {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
