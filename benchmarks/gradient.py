"""Gradients through batches of runs: eight gains, and the weights of two controllers.

Three tasks, each the mean of a cost of the final state over a batch of starts:

- gains: all entries of K_D and K_P, each (2, 2), of the two-link arm; starts off the constraints.
- weights: a network of one layer of 43 drives the tip of a chain of five links from all coordinates
  and velocities.
- two-layers: the same with two layers of 64.

`simulate` takes fixed Runge-Kutta steps, few and many; CasADi integrates sensitivities (forward for
the gains, adjoint for the weights) with its own steps, one trajectory after the other, and is
charged as if it ran perfectly parallel on all cores. The starts of a batch repeat four different
ones, so that all codes have the same gradient; errors are relative to CVODES (Adams) at 1e-11.

    python benchmarks/gradient.py
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import harness
import jax
import jax.numpy as jnp
import numpy as np
import ours
from competitors import casadi_gradients
from competitors.base import MissingCodeError
from jaxtyping import Array, Float
from problems import Case, chain, two_link

from jaxdae import Baumgarte, Multipliers, simulate, State, System
from jaxdae.models.chain import Chain
from jaxdae.plotting.style import colors, new_axes
from jaxdae.solvers import RK4
from jaxdae.tables import table

DISTINCT = 4
LINKS = 5
LAYERS = {"weights": (43,), "two-layers": (64, 64)}
# A compiler takes minutes for CasADi's derivatives by more parameters.
MOST_COMPILED = 1000
# CasADi's solvers with --quick: the fastest, which compiles for a minute for each tolerance.
QUICK_SOLVERS = ("adams",)


class DrivenChain(System):
    """A chain with a force on its last mass, `u = (F_x, F_y)` [N]."""

    chain: Chain

    def kinetic_energy(self, t, q, v):
        return self.chain.kinetic_energy(t, q, v)

    def potential_energy(self, t, q):
        return self.chain.potential_energy(t, q)

    def mass_matrix(self, t, q):
        return self.chain.mass_matrix(t, q)

    def position_constraints(self, t, q):
        return self.chain.position_constraints(t, q)

    def force(self, t, q, v, w, u):
        del t, v, w
        return jnp.concatenate([jnp.zeros_like(q[:-2]), u])


class Network(eqx.Module):
    """`u = B tanh(... tanh(A (q, v) + a)) + b`, its numbers in one vector by rows: A, a, ..., b."""

    weights: Float[Array, " p"]
    layers: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        del t, w
        x = jnp.concatenate([q, v])
        *hidden, (B, b) = split(self.weights, (x.size, *self.layers, 2))
        for A, a in hidden:
            x = jnp.tanh(A @ x + a)
        return B @ x + b


def split(weights: Float[Array, " p"], sizes: tuple[int, ...]) -> list[tuple]:
    """Matrix and bias of each layer of a network, from the numbers of its inputs to its outputs."""
    pairs = list(itertools.pairwise(sizes))
    ends = np.cumsum([k for m, n in pairs for k in (m * n, n)])
    parts = jnp.split(weights, ends[:-1])
    matrices = [x.reshape(n, m) for x, (m, n) in zip(parts[::2], pairs, strict=True)]
    return list(zip(matrices, parts[1::2], strict=True))


def size_of(sizes: tuple[int, ...]) -> int:
    """Number of weights of a network."""
    return sum((m + 1) * n for m, n in itertools.pairwise(sizes))


@dataclasses.dataclass(frozen=True)
class Task:
    """What is differentiated.

    Args:
        name: "gains", "weights" or "two-layers".
        case: the mechanism.
        steps: numbers of Runge-Kutta steps, few and many.
        t1: end time [s].
        parameters: where the gradient is taken, (p,).
        target: wanted final coordinates; of them the last ones of q count.
        starts: different starts, (4, 2n).
        forward: whether derivatives go forward, where that is the faster way.
        layers: neurons of the layers of the network; none for the gains.
    """

    name: str
    case: Case
    steps: tuple[int, int]
    t1: float
    parameters: np.ndarray
    target: np.ndarray
    starts: np.ndarray
    forward: bool
    layers: tuple[int, ...] = ()


def gains() -> Task:
    """Eight gains; the cost is the squared distance from the exact motion."""
    case, t1 = two_link(), 0.2
    noise = np.random.default_rng(2).uniform(-1.0, 1.0, (DISTINCT, 4))
    K_D = np.diag(case.problem.K_D) + np.array([[0.0, 2.0], [2.0, 0.0]])
    K_P = np.diag(case.problem.K_P) + np.array([[0.0, 9.0], [9.0, 0.0]])
    parameters = np.concatenate([K_D.ravel(), K_P.ravel()])
    target = np.asarray(case.system.exact_position(t1))  # pyright: ignore[reportAttributeAccessIssue]
    starts = case.problem.y + 1e-2 * noise
    return Task("gains", case, (50, 200), t1, parameters, target, starts, True)


def weights(name: str = "weights") -> Task:
    """The weights of a network; the cost is the squared distance of the tip from a point."""
    case = chain(LINKS)
    size = len(case.problem.y)
    rng = np.random.default_rng(3)
    layers = LAYERS[name]
    scale = np.sqrt(43 / max(layers))  # of inputs to the outputs, as wide as they are
    parameters = 0.3 * scale * rng.normal(size=size_of((size, *layers, 2)))
    starts = case.problem.y + np.concatenate(
        [np.zeros((DISTINCT, size // 2)), _admissible(rng, size // 2)], axis=1
    )
    target = np.array([0.9, 0.1])
    return Task(name, case, (25, 100), 0.1, parameters, target, starts, False, layers)


def _admissible(rng, size: int) -> np.ndarray:
    """Velocities that the horizontal chain may have: across its links."""
    results = 0.1 * rng.normal(size=(DISTINCT, size))
    results[:, ::2] = 0.0
    return results


def goes_forward(task: Task, backend: ours.Backend) -> bool:
    """Whether derivatives go forward: never through kernels, whose adjoint is the faster one."""
    return task.forward and backend == "plain"


def runner(task: Task, backend: ours.Backend, steps: int) -> Callable:
    """Mean cost of a batch as a function of parameters and starts."""
    n = len(task.case.problem.q)
    forward = goes_forward(task, backend)
    adjoint = diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint()

    def cost(parameters, y):
        system, formulation, controller = _closed_loop(task, parameters)
        run = simulate(
            system, formulation, State(y[:n], y[n:]), t1=task.t1, dt=task.t1 / steps,
            solver=RK4(), saveat=ours.END, controller=controller, adjoint=adjoint, throw=False,
            backend=backend,
        )  # fmt: skip
        off = run.q[-1, -task.target.size :] - task.target
        return off @ off

    return lambda parameters, starts: jnp.mean(jax.vmap(cost, (None, 0))(parameters, starts))


def _closed_loop(task: Task, parameters) -> tuple:
    """System, formulation and controller with the parameters in."""
    if task.name == "gains":
        K_D, K_P = parameters.reshape(2, 2, 2)
        return task.case.system, Multipliers(Baumgarte(K_D=K_D, K_P=K_P)), None
    system = DrivenChain(task.case.system)  # pyright: ignore[reportArgumentType]
    return system, task.case.formulation, Network(parameters, task.layers)


@dataclasses.dataclass
class Entry:
    """One code on one task: its gradient, timed for each trajectory.

    Args:
        code: name.
        run: called without arguments, returns the gradient (p,); None without a figure.
        members: trajectories in one call, or as many as run at once on perfect cores.
        forward: the same for the cost alone, where that is compared.
        missing: why there is no figure.
        setup_s: time to build and compile [s].
        error: largest difference from the reference, relative to its largest entry.
    """

    code: str
    run: Callable | None
    members: int
    forward: Callable | None = None
    missing: str | None = None
    setup_s: float = 0.0
    error: float = np.inf


def own_entry(task: Task, backend: ours.Backend, steps: int, members: int) -> Entry:
    """This library on a batch."""
    mean = runner(task, backend, steps)
    differentiate = jax.jacfwd if goes_forward(task, backend) else jax.grad
    starts = jnp.asarray(np.tile(task.starts, (members // DISTINCT, 1)))
    parameters = jnp.asarray(task.parameters)
    cost, slope = jax.jit(mean), jax.jit(differentiate(mean))
    return Entry(
        f"{ours.label(backend)}, {steps} steps",
        lambda: slope(parameters, starts),
        members,
        lambda: cost(parameters, starts),
    )


def casadi_run(task: Task, solver: str, tolerance: float) -> Callable:
    """CasADi's gradient, unless it has too many parameters."""
    if task.parameters.size > MOST_COMPILED:
        raise MissingCodeError(f"left out: {task.parameters.size} parameters compile for minutes")
    return casadi_gradients.gradient(
        task.case.problem, solver, tolerance, task.t1, task.parameters, task.target,
        task.starts, task.layers, forward=task.forward,
    )  # fmt: skip


def casadi_entry(task: Task, solver: str, tolerance: float) -> Entry:
    """CasADi's sensitivities, one trajectory after the other; `cvodes` by "adams" or "bdf"."""
    began = time.perf_counter()
    run, missing = harness.attempt(lambda: casadi_run(task, solver, tolerance))
    name = f"CasADi {casadi_gradients.NAMES[solver]}, {tolerance:.0e}"
    setup = time.perf_counter() - began
    return Entry(name, run, DISTINCT * harness.cores(), missing=missing, setup_s=setup)


def entries(task: Task, quick: bool) -> list[Entry]:
    """Every code on one task, called once and compared."""
    native, plain = (512, 64) if quick else (8192, 256)
    few, many = task.steps
    results = [own_entry(task, "native", steps, native) for steps in (few, many)]
    results.append(own_entry(task, "plain", few, plain))
    results += [
        casadi_entry(task, solver, tolerance)
        for solver in (QUICK_SOLVERS if quick else casadi_gradients.NAMES)
        for tolerance in (1e-6, 1e-9)
    ]
    wanted = casadi_entry(task, "adams", 1e-11)
    reference = None if wanted.run is None else np.asarray(wanted.run())
    for entry in harness.progress(results, task.name):
        _call_once(entry, reference)
    return results


def _call_once(entry: Entry, reference: np.ndarray | None) -> None:
    """Compile, and compare with the reference."""
    run = entry.run
    if run is None:
        return
    ready, entry.missing = harness.attempt(lambda: harness.first_call(run))
    if ready is None:
        entry.run = None
        return
    result, first = ready
    entry.setup_s += max(first - harness.seconds(run), 0.0)
    if reference is not None:
        off = np.max(np.abs(np.asarray(result) - reference))
        entry.error = float(off / np.max(np.abs(reference)))
    if entry.forward is not None:
        entry.forward()


def measure(task: Task, rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Time every code on one task; times are those of one trajectory [s]."""
    results = entries(task, quick)
    calls = {(e.code, "gradient"): e.run for e in results if e.run is not None}
    calls |= {(e.code, "cost"): e.forward for e in results if e.run is not None and e.forward}
    members = {e.code: e.members for e in results}
    raw = harness.interleaved(calls, rounds)
    times = {key: [t / members[key[0]] for t in own] for key, own in raw.items()}
    base = times.get((results[0].code, "gradient"))
    rows = []
    for e in results:
        row: dict[str, Any] = {"problem": task.name, "parameters": task.parameters.size}
        row |= {"code": e.code, "missing": e.missing, "setup_s": e.setup_s, "error": e.error}
        own = times.get((e.code, "gradient"))
        if own is not None:
            row["seconds"] = own
            row["to_native"] = None if base is None else harness.ratio(own, base)
            cost = times.get((e.code, "cost"))
            row["to_cost"] = None if cost is None else harness.ratio(own, cost)
            row["cost_seconds"] = cost
        rows.append(row)
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as a table."""
    headings = ("task", "code", "us per trajectory", "/ native", "/ its cost", "error", "set-up s")
    cells = []
    for row in rows:
        line = [f"{row['problem']} ({row['parameters']})", row["code"]]
        if "seconds" not in row:
            cells.append((*line, "-", "-", "-", "-", "-", row["missing"]))
            continue
        ratios = ["-" if row[k] is None else f"{row[k]:.3g}" for k in ("to_native", "to_cost")]
        times = harness.shown(row["seconds"], 1e-6)
        cells.append((*line, times, *ratios, f"{row['error']:.1e}", f"{row['setup_s']:.1f}", ""))
    return table((*headings, "note"), cells)


def figure(rows: list[dict[str, Any]]):
    """Time of a gradient for each trajectory, a panel for each task."""
    names = list(dict.fromkeys(row["problem"] for row in rows))
    fig, axes = new_axes(len(names), title="Gradients: time for each trajectory", sharex=False)
    for ax, name in zip(axes[:, 0], names, strict=True):
        part = [row for row in rows if row["problem"] == name and "seconds" in row]
        medians = [1e6 * harness.spread(row["seconds"])["median"] for row in part]
        ax.barh([row["code"] for row in part], medians, color=colors(1)[0])
        ax.invert_yaxis()
        harness.decades(ax, medians)
        ax.set_xlabel("time [us]")
        ax.set_title(f"{name}: {part[0]['parameters']} parameters" if part else name)
    return fig


def main() -> None:
    """Measure, print a table, write `results/gradient.json` and `results/gradient.png`."""
    tasks = {"gains": gains} | {name: functools.partial(weights, name) for name in LAYERS}
    args = harness.arguments(__doc__, 5, tasks)
    rows = []
    with harness.scratch_folder():
        for name in args.problems:
            rows += measure(tasks[name](), args.repetitions, args.quick)
    print(text(rows))
    timed = "the gradient for one trajectory of a batch, on the clock"
    harness.finish("gradient", args, rows, timed, figure(rows))


if __name__ == "__main__":
    harness.run(main)
