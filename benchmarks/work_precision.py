"""Work against precision: every solver and formulation of this library, and other codes.

Error against time, steps and right-hand sides over ladders of tolerances (of steps where steps are
fixed), on problems of the test set for initial value problems and on chains. The error is the
largest of `|y - y_ref| / (1 + |y_ref|)` over the final (q, v). The reference is that of the test
set where it has one of twelve digits, else `Projected(Dopri8())` at a tolerance of 1e-13.

A row has `steps`, tried ones, and `evaluations` of the right-hand side: of explicit methods and of
Rodas5P by their stages, of methods that iterate counted in one more run on the plain backend, each
stage of each iteration, and those that derivatives take. Times depend on what else the machine
does; steps and evaluations do not.

    python benchmarks/work_precision.py
    python benchmarks/work_precision.py --problems car-axis --quick
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffrax
import harness
import jax
import jax.numpy as jnp
import ladder
import numpy as np
import optimistix as optx
from competitors import casadi_codes, exudyn_codes, python_codes
from competitors.base import Problem, Run
from problems import andrews, car_axis, Case, chain, flexible_slider_crank

from jaxdae import simulate, State, System
from jaxdae.formulations import (
    AugmentedLagrangian,
    Hamiltonian,
    Multipliers,
    NullSpace,
    Penalty,
    SparseSolve,
)
from jaxdae.models import car_axis as published
from jaxdae.plotting import save_figure
from jaxdae.plotting.style import colors
from jaxdae.solvers import GeneralizedAlpha, HalfExplicit, Projected, RadauIIA, Rattle, Rodas5P
from jaxdae.tables import table

TARGETS = (1e-4, 1e-7)
TOLERANCES = (1e-4, 1e-6, 1e-8, 1e-10)
STEPS = (250, 1000, 4000)
# Of methods of low order.
COARSE = (1e-4, 1e-5, 1e-6)
MAX_STEPS = 200_000
PROBLEMS: dict[str, Callable[[], Case]] = {
    "pendulum": lambda: chain(1, t1=5.0),
    "andrews": andrews,
    "car-axis": car_axis,
    "flexible-slider-crank": flexible_slider_crank,
    "chain-20": lambda: chain(20),
}
OTHERS: dict[str, Callable[[Problem, float], Run]] = {
    "SciPy DOP853": python_codes.dop853,
    "SciPy Radau": python_codes.scipy_radau,
    "SUNDIALS IDA (sundae)": python_codes.sundae_ida,
    "CasADi IDAS": casadi_codes.idas,
    "CasADi CVODES BDF": casadi_codes.cvodes_bdf,
    "solve_dae Radau IIA": python_codes.radau,
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A solver with a formulation.

    Args:
        solver: of this library or of diffrax.
        formulation: made for a case.
        settings: tolerances, or numbers of fixed steps.
        each: evaluations of the right-hand side in a step; `None` where that is to be counted.
    """

    solver: Any
    formulation: Callable[[Case], Any]
    settings: tuple = TOLERANCES
    each: int | None = None


def _stabilized(case: Case) -> Any:
    return case.formulation


def _plain(case: Case) -> Any:
    del case
    return Multipliers()


def _with(law: Callable) -> Callable[[Case], Any]:
    return lambda case: law(case.formulation.stabilization)


_KVAERNO = diffrax.Kvaerno5(root_finder=diffrax.with_stepsize_controller_tols(optx.Newton)())
METHODS: dict[str, Method] = {
    "Dopri8, Multipliers": Method(diffrax.Dopri8(), _stabilized, each=13),
    "Dopri8, Hamiltonian": Method(diffrax.Dopri8(), _with(Hamiltonian), each=13),
    "Dopri8, NullSpace": Method(diffrax.Dopri8(), _with(NullSpace), each=13),
    "Dopri8, AugmentedLagrangian": Method(
        diffrax.Dopri8(), _with(lambda x: AugmentedLagrangian(1e3, x)), each=13
    ),
    "Dopri8, Penalty 1e6": Method(diffrax.Dopri8(), _with(lambda x: Penalty(1e6, x)), each=13),
    "Tsit5, Multipliers": Method(diffrax.Tsit5(), _stabilized, each=6),
    "Projected Dopri8": Method(Projected(diffrax.Dopri8()), _plain, each=13),
    "Projected Dopri8, sparse": Method(
        Projected(diffrax.Dopri8()), lambda _: Multipliers(solve=SparseSolve()), each=13
    ),
    "HalfExplicit": Method(HalfExplicit(), _plain, each=12),
    "RadauIIA": Method(RadauIIA(), _plain),
    "GeneralizedAlpha": Method(GeneralizedAlpha(0.8), _plain, COARSE),
    "Rattle 4": Method(Rattle(order=4), _plain, STEPS),
    "Rodas5P, Multipliers": Method(Rodas5P(), _stabilized, each=8),
    "Kvaerno5, Multipliers": Method(_KVAERNO, _stabilized),
}
# With --quick; each compiles for some ten seconds on each problem.
FEW = (
    "Dopri8, Multipliers", "Projected Dopri8", "HalfExplicit", "RadauIIA", "GeneralizedAlpha",
    "Rattle 4", "Rodas5P, Multipliers",
)  # fmt: skip


class Counted(System):
    """A system whose evaluations of the forces are counted.

    Args:
        system: the system itself.
        count: called at each.
    """

    system: System
    count: Any

    def __getattribute__(self, name):
        own = ("system", "count", "force", "__class__", "__dict__")
        if name in own or name.startswith("_"):
            return super().__getattribute__(name)
        return getattr(super().__getattribute__("system"), name)

    def force(self, t, q, v, w, u):
        jax.debug.callback(self.count)
        return self.system.force(t, q, v, w, u)

    def kinetic_energy(self, t, q, v):
        return self.system.kinetic_energy(t, q, v)


def run_of(case: Case, method: Method, fixed: bool, backend: Any = "auto") -> Callable:
    """A compiled function from a setting to the final (q, v), steps, and whether it got there."""

    def one(system, y, setting):
        n = len(case.problem.q)
        how: dict[str, Any] = {"solver": method.solver, "backend": backend, "throw": False}
        if fixed:
            how["dt"] = case.problem.t1 / setting
        else:
            how["stepsize_controller"] = diffrax.PIDController(rtol=setting, atol=setting)
        run = simulate(
            system, method.formulation(case), State(y[:n], y[n:]), t1=case.problem.t1,
            saveat=diffrax.SaveAt(t1=True), max_steps=MAX_STEPS, **how,
        )  # fmt: skip
        end = jnp.concatenate([run.q[-1], run.v[-1]])
        return jnp.where(run.success, end, jnp.nan), run.stats["num_steps"]

    if not fixed:
        compiled = jax.jit(one)
        return lambda y, setting: compiled(case.system, y, setting)
    # The number of fixed steps decides the shape of the program.
    kept: dict[int, Callable] = {}
    return lambda y, setting: kept.setdefault(
        setting, jax.jit(lambda y: one(case.system, y, setting))
    )(y)


def climbed(case: Case, name: str, method: Method, wanted, counts: dict) -> list[ladder.Point]:
    """Points of one of our methods; what it took goes to `counts`."""
    code, y = f"jaxdae, {name}", jnp.asarray(case.problem.y)
    fixed = method.settings is STEPS
    run = run_of(case, method, fixed)

    def make(setting):
        solve = lambda: np.asarray(run(y, setting)[0])  # noqa: E731
        results = ladder.called_once(solve)
        end, steps = run(y, setting)
        if not np.isfinite(end).all():
            raise RuntimeError(f"did not reach the end in {MAX_STEPS} steps, or stopped")
        each = method.each
        evaluations = int(steps) * each if each else counted(case, method, fixed, setting)
        counts[code, ladder.name(setting)] = {"steps": int(steps), "evaluations": evaluations}
        return results

    return ladder.climb(code, make, method.settings, wanted)


def counted(case: Case, method: Method, fixed: bool, setting) -> int | None:
    """Evaluations of the right-hand side in one run; `None` where they cannot be counted."""
    seen = [0]

    def count():
        seen[0] += 1

    system = Counted(case.system, count)
    other = dataclasses.replace(case, system=system)
    n, how = len(case.problem.q), {}
    if fixed:
        how["dt"] = case.problem.t1 / setting
    else:
        how["stepsize_controller"] = diffrax.PIDController(rtol=setting, atol=setting)
    y = jnp.asarray(case.problem.y)
    try:
        simulate(
            other.system, method.formulation(case), State(y[:n], y[n:]), t1=case.problem.t1,
            solver=method.solver, saveat=diffrax.SaveAt(t1=True), max_steps=MAX_STEPS,
            backend="plain", throw=False, **how,
        )  # fmt: skip
        jax.effects_barrier()
    except Exception as error:
        print(f"  not counted: {type(error).__name__}: {str(error)[:80]}", flush=True)
        return None
    return seen[0]


def reference(case: Case) -> np.ndarray:
    """Final (q, v)."""
    if case.problem.name == "car-axis":
        end = published.END_REFERENCE
        return np.concatenate([end.q, end.v])
    method = METHODS["Projected Dopri8"]
    return np.asarray(run_of(case, method, fixed=False)(jnp.asarray(case.problem.y), 1e-13)[0])


def measure(case: Case, args: Any) -> list[dict[str, Any]]:
    """Time every code and setting on one problem."""
    wanted, counts = reference(case), {}
    print(f"{case.problem.name}: {len(case.problem.q)} coordinates", flush=True)
    points = []
    for name, method in METHODS.items():
        chosen = args.methods or (FEW if args.quick else METHODS)
        if name not in chosen:
            continue
        if "sparse" in name and case.problem.mechanism != "chain":
            continue  # for chains, trees and nets of bodies
        points += climbed(case, name, method, wanted, counts)
        print(f"  {name}: {points[-1].missing or f'{points[-1].error:.1e}'}", flush=True)
    others = []
    for name, make in () if args.alone else OTHERS.items():
        others += ladder.climb(name, lambda x, f=make: f(case.problem, x), TOLERANCES, wanted)
        print(f"  {name}: {others[-1].missing or f'{others[-1].error:.1e}'}", flush=True)
    if not args.alone:
        make = lambda x: exudyn_codes.generalized_alpha(case.problem, x)  # noqa: E731
        others += ladder.climb("Exudyn generalized-alpha", make, STEPS, wanted)
    # Ours take so little that their least time needs many rounds.
    rows = ladder.timed(case.problem.name, points, 3 * args.repetitions)
    rows += ladder.timed(case.problem.name, others, args.repetitions)
    none = {"steps": None, "evaluations": None}
    return [row | counts.get((row["code"], row["setting"]), none) for row in rows]


def coarsest(own: list[dict[str, Any]], target: float) -> dict[str, Any] | None:
    """The setting of a code that reaches an error with the least steps, or in the least time."""
    able = [r for r in own if "median" in r and r["error"] <= target]
    return min(able, key=lambda r: r["steps"] or r["min"], default=None)


def summary(rows: list[dict[str, Any]]) -> list[tuple]:
    """Rows of the table of one problem: least time at an error, with steps and evaluations."""
    results = []
    for code in dict.fromkeys(r["code"] for r in rows):
        own = [r for r in rows if r["code"] == code]
        line = [own[0]["problem"], code]
        for target in TARGETS:
            best = coarsest(own, target)
            if best is None:
                line += ["-", "-", "-"]
                continue
            known = [best[key] if best[key] is not None else "" for key in ("steps", "evaluations")]
            line += [f"{1e3 * best['min']:.3g}", *map(str, known)]
        reached = [r["error"] for r in own if "median" in r]
        missing = next((r["missing"] for r in own if r["missing"]), None)
        results.append((*line, f"{min(reached):.0e}" if reached else "-", (missing or "")[:60]))
    return results


def drawn(rows: list[dict[str, Any]]):
    """One problem: time, and evaluations of the right-hand side, against the error."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 5.5), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    known = dict.fromkeys(r["code"] for r in rows if "median" in r)
    codes = sorted(known, key=lambda x: not x.startswith("jaxdae"))
    palette = colors(8)
    for i, code in enumerate(codes):
        ours = code.startswith("jaxdae")
        own = [r for r in rows if r["code"] == code and "median" in r]
        own = sorted(own, key=lambda r: r["error"])
        style: Any = {
            "marker": "os^Dv"[i // len(palette)], "ms": 4, "color": palette[i % len(palette)],
            "ls": "-" if ours else "--", "lw": 1.8 if ours else 1.0,
        }  # fmt: skip
        for ax, key in zip(axes, ("min", "evaluations"), strict=True):
            shown = [(r["error"], r[key]) for r in own if r[key]]
            if shown:
                ax.loglog(*zip(*shown, strict=True), label=code.removeprefix("jaxdae, "), **style)
    for ax, label in zip(
        axes, ("time of one run [s], least of the rounds", "right-hand sides"), strict=True
    ):
        ax.invert_xaxis()
        ax.set(xlabel="error of the final (q, v), relative to 1 + |y|", ylabel=label)
        ax.grid(alpha=0.3, which="major")
    figure.suptitle(f"{rows[0]['problem']}: work against precision (dashed: other codes)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    """Measure, print a table, write `results/work_precision.json` and a figure of each problem."""

    def more(parser):
        text = "of this library (default all)"
        parser.add_argument("--methods", nargs="+", choices=list(METHODS), help=text)
        text = "leave other codes out, some of which compile for minutes"
        parser.add_argument("--alone", action="store_true", help=text)

    args = harness.arguments(__doc__, 7, PROBLEMS, more=more)
    rows, lines = [], []
    with harness.scratch_folder():
        for name in args.problems:
            own = measure(PROBLEMS[name](), args)
            rows += [{**row, "problem": name} for row in own]
            lines += summary([{**row, "problem": name} for row in own])
    headings = ["problem", "code"]
    for target in TARGETS:
        headings += [f"ms at {target:.0e}", "steps", "right-hand sides"]
    print("\n" + table([*headings, "least error", "note"], lines))
    path: Path = args.out or harness.RESULTS / f"work_precision{args.some}.json"
    timed = "one run, on the clock, the machine shared with other work: the least of the rounds"
    harness.finish("work_precision", args, rows, timed)
    for name in args.problems:
        figure = drawn([r for r in rows if r["problem"] == name])
        save_figure(figure, path.with_name(f"{path.stem}-{name}.png"))


if __name__ == "__main__":
    harness.run(main)
