"""Runs of the two-link manipulator on both targets, and what is read of them.

`two_link.py` makes a report of it.
"""

import dataclasses
import json
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.cli import main as command
from jaxdae.diagnosis.failure import describe_failure
from jaxdae.models import PAPER_RUNS, ReachableTwoLink, TwoLinkManipulator
from jaxdae.models.two_link import AbstractTwoLink, PAPER_START_Q, PAPER_START_V
from jaxdae.simulation.choices import make_formulation

# Whether a run passes a singular configuration depends on its steps, and these on round-off: the
# report is that of diffrax on XLA wherever it is made.
BACKEND = "plain"
END, ROWS = 20.0, 4001
PAPER, REACHABLE = "paper's target", "reachable target"


@dataclasses.dataclass(frozen=True)
class Case:
    """One method with one set of gains on one target from one start."""

    target: str
    start: str
    method: str
    formulation: jaxdae.Multipliers | jaxdae.Penalty
    system: AbstractTwoLink
    state: jaxdae.State

    @property
    def name(self) -> str:
        """Legend entry."""
        return self.method if self.start == "exact start" else f"{self.method}, {self.start}"


def cases(tuned: dict) -> list[Case]:
    """Every run: paper's and tuned gains, both targets, and the start as it is printed."""
    paper, reachable = TwoLinkManipulator(), ReachableTwoLink()
    printed = jaxdae.State(PAPER_START_Q, PAPER_START_V)
    methods = {f"Fig. {run.figure}, {run.method}": run.formulation() for run in PAPER_RUNS}
    methods |= {f"tuned, {name}": formulation for name, formulation in tuned.items()}
    out = []
    for target, system in ((PAPER, paper), (REACHABLE, reachable)):
        exact = jaxdae.State(*system.start())
        out += [Case(target, "exact start", k, f, system, exact) for k, f in methods.items()]
    first, formulation = next(iter(methods.items()))
    return [*out, Case(PAPER, "printed start", first, formulation, paper, printed)]


def tuned_formulations(path: Path) -> dict[str, jaxdae.Multipliers | jaxdae.Penalty]:
    """Formulations with the gains that `jaxdae tune two-link` found."""
    if not path.exists():
        command(["tune", "two-link", "--out", str(path.parent)])
    out = {}
    for study in json.loads(path.read_text())["studies"]:
        gains = {name: jnp.asarray(x) for name, x in study["gains"]["range"].items()}
        alpha = gains.get("alpha")
        stabilization = jaxdae.Baumgarte(gains["K_D"], gains["K_P"])
        out[study["method"]] = make_formulation(
            study["method"], stabilization=stabilization, alpha=alpha
        )
    return out


def run(case: Case, end: float = END) -> dict:
    """Simulate a case, and what is said of it."""
    ts = np.linspace(0.0, end, ROWS)
    sol = jaxdae.simulate(
        case.system,
        case.formulation,
        case.state,
        t1=end,
        saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
        throw=False,
        max_steps=2**19,
        backend=BACKEND,
    )
    phi = np.abs(np.asarray(sol.violation.phi)).max(axis=1)
    return {
        "case": case,
        "ts": ts,
        "trajectory": sol,
        "reached": float(sol.final_time),
        "steps": int(sol.stats["num_steps"]),
        "failure": None if bool(sol.success) else describe_failure(sol),
        "phi": phi,
        "branch": branch(case.system, ts, np.asarray(sol.q)[:, 1]),
    }


CROSSINGS = (
    ("Dopri8", diffrax.Dopri8(), 1e-6),
    ("Dopri8 (default)", diffrax.Dopri8(), 1e-8),
    ("Dopri8", diffrax.Dopri8(), 1e-10),
    ("Dopri8", diffrax.Dopri8(), 1e-11),
    ("Dopri5", diffrax.Dopri5(), 1e-8),
    ("Tsit5", diffrax.Tsit5(), 1e-8),
)


def crossings(choices=CROSSINGS) -> list[tuple[str, float, float]]:
    """Where Fig. 2's multiplier form stops, from the exact start: solver, tolerance, time [s]."""
    system, printed = TwoLinkManipulator(), jaxdae.State(PAPER_START_Q, PAPER_START_V)
    start = jaxdae.consistent_state(system, printed.q, printed.v)
    results = []
    for name, solver, tolerance in choices:
        sol = jaxdae.simulate(
            system,
            PAPER_RUNS[0].formulation(),
            start,
            t1=4.0,
            solver=solver,
            stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
            throw=False,
            backend=BACKEND,
        )
        results.append((name, tolerance, float(sol.final_time)))
    return results


# Starts of the reachable target, off their constraints by normal deviates of these sizes [rad].
STARTS, SIZES = 16, (1e-8, 1e-4)


def passages(tuned: jaxdae.Multipliers | jaxdae.Penalty) -> list[dict]:
    """How many folds runs pass, with two sets of gains and two ways to solve the equations."""
    assert isinstance(tuned, jaxdae.Multipliers)
    gains = {"Fig. 2": PAPER_RUNS[0].formulation(), "tuned": tuned}
    return [
        {"gains": name} | passage(dataclasses.replace(formulation, solve=solve))
        for name, formulation in gains.items()
        for solve in (formulation.solve, jaxdae.SingularityRobust())
    ]


def passage(formulation: jaxdae.Multipliers, end: float = END) -> dict:
    """Folds of the reachable target that are passed, from starts a bit off."""
    system = ReachableTwoLink()
    ts = np.asarray(folds(system, end)) + 0.2
    q, v = (jnp.asarray(x) for x in system.start())
    draws = jax.random.normal(jax.random.key(0), (STARTS, 2))
    off = jnp.concatenate([size * draws for size in SIZES])
    second = np.asarray(_batch(system, formulation, q + off, v, jnp.asarray(ts)).q)[..., 1]
    passed = np.isfinite(second)
    return {
        "solve": type(formulation.solve).__name__,
        "folds": int(passed.size),
        "passed": int(passed.sum()),
        "smooth": int((branch(system, ts, second) == 1.0).sum()),
        "runs": len(off),
        "ended": int(passed.all(axis=1).sum()),
    }


def _batch(system, formulation, q, v, ts):
    """Runs from several positions, with rows at some times; what is not reached is no number."""

    def run(q):
        return jaxdae.simulate(
            system,
            formulation,
            jaxdae.State(q, v),
            t1=float(ts[-1]),
            saveat=diffrax.SaveAt(ts=ts),
            throw=False,
            backend=BACKEND,
        )

    return jax.vmap(run)(q)


ALPHAS = (1e1, 1e3, 1e5)


def large_alphas(end: float = END) -> list[dict]:
    """Fig. 3's penalty form with larger constraint masses: within reach, and to the end."""
    system, rows = TwoLinkManipulator(), []
    state = jaxdae.State(*system.start())
    reach = float(system.exit_time()) - 0.05
    for alpha in ALPHAS:
        formulation = jaxdae.Penalty(alpha, PAPER_RUNS[1].formulation().stabilization)
        row: dict = {"alpha": alpha}
        for name, t1 in (("within", reach), ("in all", end)):
            saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, t1, ROWS))
            # Singular positions are passed on purpose; a run that stops has no finite figures.
            sol = jaxdae.simulate(
                system, formulation, state, t1=t1, saveat=saveat, max_steps=2**19, throw=False
            )
            row |= {
                f"steps {name}": int(sol.stats["num_steps"]),
                f"velocity {name}": float(np.abs(sol.v).max()),
                f"phi {name}": float(np.abs(sol.violation.phi).max()),
            }
        rows.append(row)
    return rows


def branch(system: AbstractTwoLink, ts: np.ndarray, second: np.ndarray) -> np.ndarray:
    """+1 on the motion that is smooth at the singular configuration, -1 on its mirror image.

    Args:
        system: whose target decides.
        ts: times [s], shape `(rows,)`.
        second: the second angle there [rad], shape `(..., rows)`.
    """
    abscissa = np.asarray(jax.vmap(system.target_abscissa)(jnp.asarray(ts)))
    return np.sign(-np.sin(second)) * np.sign(abscissa)


def largest(result: dict, begin: float, end: float) -> float:
    """Largest violation [m] in an interval; NaN if the run did not reach it."""
    window = result["phi"][(begin <= result["ts"]) & (end >= result["ts"])]
    window = window[np.isfinite(window)]
    return float(window.max()) if window.size else np.nan


def windows(system: AbstractTwoLink, end: float) -> dict[str, tuple[float, float]]:
    """Intervals the violation is judged on."""
    if isinstance(system, TwoLinkManipulator):
        single, exit_time = float(system.singular_time()), float(system.exit_time())
        return {
            "before the fold": (0.0, single - 0.05),
            "at the fold": (single - 0.05, single + 0.05),
            "to the boundary": (single + 0.05, exit_time - 0.02),
            "out of reach": (exit_time + 0.02, end),
        }
    passes = folds(system, end)
    return {
        "before the 1st fold": (0.0, passes[0] - 0.05),
        "to the 2nd": (passes[0] + 0.05, passes[1] - 0.05),
        "to the last": (passes[1] + 0.05, passes[-1] - 0.05),
        "after it": (passes[-1] + 0.05, end),
    }


def folds(system: AbstractTwoLink, end: float) -> list[float]:
    """Times up to `end` at which the target passes the singular configuration [s]."""
    if isinstance(system, TwoLinkManipulator):
        return [float(system.singular_time())]
    assert isinstance(system, ReachableTwoLink)
    return [float(t) for t in system.singular_times(end)]


def least_singular_value(sol) -> np.ndarray:
    """Least singular value of the constraint Jacobian along a run."""
    jac = np.nan_to_num(np.asarray(sol.jacobian))
    values = np.linalg.svd(jac, compute_uv=False)[:, -1]
    return np.where(np.isfinite(np.asarray(sol.ts)), values, np.nan)


def boundary_distance(system: AbstractTwoLink, sol) -> np.ndarray:
    """Distance of the tip from the nearer boundary of the workspace, inner or outer [m]."""
    radius = np.linalg.norm(np.asarray(jax.vmap(system.tip)(sol.q)), axis=1)
    outer, inner = system.length1 + system.length2, system.length1 - system.length2
    return np.minimum(outer - radius, radius - inner)
