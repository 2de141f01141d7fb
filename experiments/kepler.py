"""Kepler's problem over a thousand orbits: stabilized integrals against the plain run.

Both run classical Runge–Kutta with the same fixed step. The plain run loses energy and angular
momentum steadily, and with the energy the period: it drifts ahead along the orbit. The stabilized
runs (Baumgarte 1972; Mukharlyamov 2019, section 0) add `F^+ Phi` for the integrals that are named.

    python experiments/kepler.py [--orbits 1000] [--steps 60] [--gain 1.0] [--out results/kepler]

Distances are from the exact position, the pericentre, once in each orbit. Writes a figure,
`report.md` and `result.json`.
"""

import argparse
import time
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.commands.tables import table, write_json
from jaxdae.control import StabilizedIntegrals
from jaxdae.models.kepler import Kepler
from jaxdae.plotting import plot_series, save_figure
from jaxdae.solvers import RK4

NAMES = ("energy", "momentum", "Laplace x", "Laplace y")


def formulations(orbit: Kepler, gain: float) -> dict:
    """The plain equations, and two choices of what is stabilized."""
    plain, start = jaxdae.Multipliers(), orbit.start_state()
    return {
        "plain": plain,
        "energy, momentum": StabilizedIntegrals.at(
            start, orbit.energy_and_momentum, gain, inner=plain
        ),
        "all four": StabilizedIntegrals.at(
            start, orbit.all_integrals, gain, inner=plain, rcond=1e-6
        ),
    }


def run(orbit: Kepler, formulation, orbits: int, steps: int) -> dict:
    """One long run, saved once in each orbit, at the pericentre of the exact motion."""
    period = float(orbit.period())
    began = time.perf_counter()
    sol = jaxdae.simulate(
        orbit,
        formulation,
        orbit.start_state(),
        t1=orbits * period,
        dt=period / steps,
        solver=RK4(),
        saveat=diffrax.SaveAt(ts=jnp.arange(orbits + 1) * period),
        max_steps=orbits * steps + 8,
        throw=False,
    )
    values = np.asarray(jax.vmap(orbit.all_integrals)(sol.ts, sol.q, sol.v))
    exact = np.asarray(orbit.start()[0])
    return {
        "drift": np.abs(values - values[0]),
        "position": np.linalg.norm(np.asarray(sol.q) - exact, axis=1),
        "seconds": time.perf_counter() - began,
        "success": bool(sol.success),
    }


def summary(results: dict, orbits: int) -> str:
    """Largest drifts in the first and the last tenth of each run."""
    tenth = max(orbits // 10, 1)
    rows = []
    for name, r in results.items():
        for part, rows_of in (
            ("first tenth", slice(1, tenth + 1)),
            ("last tenth", slice(-tenth, None)),
        ):
            largest = r["drift"][rows_of].max(axis=0)
            rows.append(
                (name, part, *(f"{x:.2e}" for x in largest), f"{r['position'][rows_of].max():.2e}")
            )
    return table(("stabilized", "orbits", *NAMES, "position [m]"), rows)


def draw(results: dict, orbits: int, out: Path) -> None:
    """Drift of the integrals, and distance from the exact position, over the orbits."""
    panels = {
        label: {name: r["drift"][1:, i] for name, r in results.items()}
        for i, label in (
            (0, "energy drift"),
            (1, "momentum drift"),
            (3, "Laplace vector, y [-]"),
        )
    }
    panels["position error [m]"] = {name: r["position"][1:] for name, r in results.items()}
    figure = plot_series(np.arange(1, orbits + 1), panels, log=list(panels), title="Kepler, RK4")
    for ax in figure.axes[-1:]:
        ax.set_xlabel("orbits")
    save_figure(figure, out / "drift.png")


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--orbits", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60, help="steps in an orbit")
    parser.add_argument("--gain", type=float, default=1.0, help="decay rate of the drift [1/s]")
    parser.add_argument("--out", type=Path, default=Path("results/kepler"))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    orbit = Kepler()
    cases = formulations(orbit, options.gain)
    results = {k: run(orbit, f, options.orbits, options.steps) for k, f in cases.items()}
    text = "\n".join(
        [
            f"# Kepler, e = {orbit.eccentricity}: {options.orbits} orbits of {options.steps} steps",
            "",
            "```",
            summary(results, options.orbits),
            "```",
            "",
            *(f"- {k}: {r['seconds']:.1f} s with compilation" for k, r in results.items()),
            "",
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(text)
    record = {
        k: {**r, "drift": r["drift"].tolist(), "position": r["position"].tolist()}
        for k, r in results.items()
    }
    write_json(options.out / "result.json", record)
    draw(results, options.orbits, options.out)
    print(text)


if __name__ == "__main__":
    main()
