"""Work against precision: every solver and formulation of this library, and other codes.

Error against time, steps and right-hand sides over ladders of tolerances (of steps where steps are
fixed), on problems of the test set for initial value problems and on chains. The error is the
largest of `|y - y_ref| / (1 + |y_ref|)` over the final (q, v), or of what else is published. The
reference is that of the test set where it has digits enough, else `Projected(Dopri8())` at a
tolerance of 1e-13. Of Robertson's reactions errors are relative to `1e-8 + |y_ref|`, and so are
the tolerances of all codes.

A row has `steps`, tried ones, and `evaluations` of the right-hand side: of explicit methods and of
Rodas5P by their stages, of codes in C as these count them, of our methods that iterate the stages
of all iterations where these are counted; without those that Jacobians take.
Times are of the processors, which other work on the machine disturbs less than the clock.

    python benchmarks/work_precision.py
    python benchmarks/work_precision.py --problems car-axis --quick
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import diffrax
import harness
import jax
import jax.numpy as jnp
import ladder
import numpy as np
import optimistix as optx
import testset
from competitors import c_codes, casadi_codes, exudyn_codes, implicit_codes, python_codes
from competitors.base import Problem, Run
from problems import andrews, car_axis, Case, chain, fekete, flexible_slider_crank

from jaxdae import consistent_start, simulate, solve, State
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
TOLERANCES = tuple(10.0**-i for i in range(3, 12))
STEPS = (250, 1000, 4000)
# Of methods of low order.
COARSE = (1e-4, 1e-5, 1e-6)
MAX_STEPS = 200_000
climb = partial(ladder.climb, clock=time.process_time)
MECHANISMS: dict[str, Callable[[], Case]] = {
    "pendulum": lambda: chain(1, t1=5.0),
    "andrews": andrews,
    "car-axis": car_axis,
    "flexible-slider-crank": flexible_slider_crank,
    "fekete": fekete,
    "chain-20": lambda: chain(20),
}
EQUATIONS: dict[str, Callable[[], testset.Equations]] = {
    "wheelset": testset.wheelset,
    "transistor-amplifier": testset.transistor_amplifier,
    "ring-modulator": testset.ring_modulator,
    "akzo-nobel": testset.akzo_nobel,
    "robertson": testset.robertson,
}
PROBLEMS = MECHANISMS | EQUATIONS
of_mechanism = implicit_codes.of_mechanism
IN_C: dict[str, Callable[[Problem, float], Run]] = {
    "C, DOP853": c_codes.dop853,
    "C, SUNDIALS CVODE Adams": c_codes.cvode_adams,
    "C, SUNDIALS CVODE BDF": lambda p, x: implicit_codes.cvode(of_mechanism(p, "explicit"), x),
    "C, SUNDIALS IDA, index 1": lambda p, x: implicit_codes.ida(of_mechanism(p, "index 1"), x),
    "C, RADAU5, explicit form": lambda p, x: implicit_codes.radau5(of_mechanism(p, "explicit"), x),
    "C, RADAU5, index 3": lambda p, x: implicit_codes.radau5(of_mechanism(p, "index 3"), x),
}
OTHERS: dict[str, Callable[[Problem, float], Run]] = {
    "SciPy DOP853": python_codes.dop853,
    "SciPy Radau": python_codes.scipy_radau,
    "CasADi IDAS": casadi_codes.idas,
    "solve_dae Radau IIA": python_codes.radau,
}
OF_EQUATIONS: dict[str, Callable[[implicit_codes.System, float], Run]] = {
    "C, SUNDIALS IDA": implicit_codes.ida,
    "C, SUNDIALS CVODE BDF": implicit_codes.cvode,
    "C, RADAU5": implicit_codes.radau5,
}


@dataclasses.dataclass(frozen=True)
class Method:
    """A solver with a formulation.

    Args:
        solver: of this library or of diffrax.
        formulation: made for a case.
        settings: tolerances, or numbers of fixed steps.
        each: evaluations of the right-hand side in a step, or in a Newton iteration.
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
    "RadauIIA": Method(RadauIIA(), _plain, each=3),
    "GeneralizedAlpha": Method(GeneralizedAlpha(0.8), _plain, COARSE, 1),
    "Rattle 4": Method(Rattle(order=4), _plain, STEPS),
    "Rodas5P, Multipliers": Method(Rodas5P(), _stabilized, each=8),
    "Kvaerno5, Multipliers": Method(_KVAERNO, _stabilized),
}
# With --quick; each compiles for some ten seconds on each problem.
FEW = (
    "Dopri8, Multipliers", "Projected Dopri8", "HalfExplicit", "RadauIIA", "GeneralizedAlpha",
    "Rattle 4", "Rodas5P, Multipliers",
)  # fmt: skip


def run_of(case: Case, method: Method, fixed: bool, backend: Any = "auto") -> Callable:
    """A compiled function from a start and a setting to the final (q, v), and statistics."""

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
        return jnp.where(run.success, end, jnp.nan), run.stats

    if not fixed:
        compiled = jax.jit(one)
        return lambda y, setting: compiled(case.system, y, setting)
    # The number of fixed steps decides the shape of the program.
    kept: dict[int, Callable] = {}
    return lambda y, setting: kept.setdefault(
        setting, jax.jit(lambda y: one(case.system, y, setting))
    )(y)


def climbed(case: Case, name: str, method: Method, wanted) -> list[ladder.Point]:
    """Points of one of our methods."""
    y, fixed = jnp.asarray(case.problem.y), method.settings is STEPS
    run = run_of(case, method, fixed)

    def make(setting) -> Run:
        solve = lambda: np.asarray(run(y, setting)[0])  # noqa: E731
        ready = ladder.called_once(solve)
        return dataclasses.replace(ready, work=work_of(run(y, setting), method.each))

    return climb(f"jaxdae, {name}", make, method.settings, wanted)


def work_of(found, each: int | None) -> dict[str, int | None]:
    """What a run took, which is an error where it did not reach its end."""
    end, stats = found
    if not np.isfinite(end).all():
        raise RuntimeError(f"did not reach the end in {MAX_STEPS} steps, or stopped")
    steps = int(stats["num_steps"])
    iterations = int(stats.get("num_iterations", steps))
    return {"steps": steps, "evaluations": iterations * each if each else None}


def climbed_equations(
    equations: testset.Equations, solver: Any, each: int, wanted
) -> list[ladder.Point]:
    """Points of this library on equations that are no mechanism's.

    Args:
        equations: the problem.
        solver: of this library.
        each: evaluations in a step, or in an iteration.
        wanted: reference.
    """
    dae, *given = testset.declared(equations)
    if equations.index[1]:  # starts are published to few digits
        given = consistent_start(dae, *given)

    @jax.jit
    def run(start, tolerance):
        control = diffrax.PIDController(rtol=tolerance, atol=equations.floor * tolerance)
        found = solve(
            dae, *start, t1=equations.t1, solver=solver, stepsize_controller=control, throw=False,
            saveat=diffrax.SaveAt(t1=True), max_steps=MAX_STEPS, start_tolerance=None,
        )  # fmt: skip
        return jnp.where(found.success, testset.final(equations, found), jnp.nan), found.stats

    def make(tolerance) -> Run:
        solved = lambda: equations.measured(run(given, tolerance)[0])  # noqa: E731
        ready = ladder.called_once(solved)
        return dataclasses.replace(ready, work=work_of(run(given, tolerance), each))

    return climb(f"jaxdae, {type(solver).__name__}", make, TOLERANCES, wanted)


def reference(case: Case) -> np.ndarray:
    """Final (q, v)."""
    if case.problem.name == "car-axis":
        end = published.END_REFERENCE
        return np.concatenate([end.q, end.v])
    method = METHODS["Projected Dopri8"]
    return np.asarray(run_of(case, method, fixed=False)(jnp.asarray(case.problem.y), 1e-13)[0])


def measure(name: str, args: Any) -> list[dict[str, Any]]:
    """Time every code and setting on one problem."""
    print(name, flush=True)
    if name in EQUATIONS:
        equations = EQUATIONS[name]()
        points, others = points_of_equations(equations, args)
    else:
        points, others = points_of_mechanism(MECHANISMS[name](), args)
    # Of what takes little the least time needs many rounds.
    quick = points + [x for x in others if x.code.startswith("C, ")]
    slow = [x for x in others if not x.code.startswith("C, ")]
    rows = ladder.timed(name, quick, 3 * args.repetitions, time.process_time)
    return rows + ladder.timed(name, slow, args.repetitions, time.process_time)


def points_of_equations(equations: testset.Equations, args: Any):
    """Ours, and those of other codes."""
    wanted = equations.end / equations.floor
    points = told(climbed_equations(equations, RadauIIA(), 3, wanted))
    if not equations.index[1]:
        points += told(climbed_equations(equations, Rodas5P(), 8, wanted))
    others = []
    for name, make in () if args.alone else OF_EQUATIONS.items():
        if name.endswith("BDF") and not np.array_equal(equations.mass, np.eye(len(equations.mass))):
            continue  # for ordinary differential equations
        make = partial(lambda f, x: f(implicit_codes.of_equations(equations), x), make)
        others += told(climb(name, make, TOLERANCES, wanted))
    return points, others


def points_of_mechanism(case: Case, args: Any):
    """Ours, and those of other codes."""
    wanted, points, others = reference(case), [], []
    for name, method in METHODS.items():
        chosen = args.methods or (FEW if args.quick else METHODS)
        if name not in chosen:
            continue
        if "sparse" in name and case.problem.mechanism not in ("chain", "fekete"):
            continue  # for chains, trees and nets of bodies
        points += told(climbed(case, name, method, wanted))
    codes = {} if args.alone else IN_C if args.quick else IN_C | OTHERS
    for name, make in codes.items():
        others += told(climb(name, partial(make, case.problem), TOLERANCES, wanted))
    if not (args.alone or args.quick):
        make = partial(exudyn_codes.generalized_alpha, case.problem)
        others += told(climb("Exudyn generalized-alpha", make, STEPS, wanted))
    return points, others


def told(points: list[ladder.Point]) -> list[ladder.Point]:
    """The points, after a line of what came of them."""
    last = points[-1]
    print(f"  {last.code}: {last.missing or f'{last.error:.1e}'}", flush=True)
    return points


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
    for ax, label in zip(axes, ("processor time of one run [s]", "right-hand sides"), strict=True):
        ax.invert_xaxis()
        ax.set(xlabel="error at the end, relative to 1 + |y|", ylabel=label)
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
            own = measure(name, args)
            rows += own
            lines += summary(own)
    headings = ["problem", "code"]
    for target in TARGETS:
        headings += [f"ms at {target:.0e}", "steps", "right-hand sides"]
    print("\n" + table([*headings, "least error", "note"], lines))
    path: Path = args.out or harness.RESULTS / f"work_precision{args.some}.json"
    timed = "one run, time of the processors, the machine shared with other work"
    harness.finish("work_precision", args, rows, timed)
    for name in args.problems:
        figure = drawn([r for r in rows if r["problem"] == name])
        save_figure(figure, path.with_name(f"{path.stem}-{name}.png"))


if __name__ == "__main__":
    harness.run(main)
