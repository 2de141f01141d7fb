"""Constraints realized by forces: what holds of [Matyukhin1999].

Four nonholonomic systems with known motions: Chaplygin sleigh, rolling disk, knife edge on an
incline, robot on two driven wheels. The free system with linear, sign and smoothed forces on the
constraint functions is compared with the constrained one. Every sentence of the report is held
against the numbers of the run.

    python experiments/realization.py [--out results/realization]

Writes figures, `report.md` and `result.json`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, fenced, finish, listed, options
from realization_runs import (
    about_the_threshold,
    disk_estimate,
    END,
    inertias,
    laws_with_memory,
    LAYER,
    linear_decay,
    linear_errors,
    mean_of_sign,
    motions,
    reaching,
    sleigh_estimate,
    slope,
    smooth_laws,
    System,
    systems,
    TIMES,
)

import jaxdae
from jaxdae.formulations import LinearLaw, SaturatedLaw, SignLaw, TanhLaw
from jaxdae.plotting import plot_series, save_figure, style
from jaxdae.tables import table


def draw_motions(paths: dict[str, dict[str, np.ndarray]], out: Path) -> None:
    """Paths of all systems in the plane."""
    figure, axes = style.new_axes(2, 2, title=f"Paths over {END:g} s", sharex=False)
    figure.set_size_inches(11.0, 8.0)
    for ax, (name, curves) in zip(axes.flat, paths.items(), strict=True):
        for (law, q), color in zip(curves.items(), style.colors(len(curves)), strict=True):
            exact = law == "constrained"
            line = {"color": "black", "linestyle": "--"} if exact else {"color": color}
            # The sign forces keep the constrained path: a broad line under it.
            ax.plot(*q.T, label=law, linewidth=5.0 if law == "sign" else 1.5, **line)
        ax.plot(0.0, 0.0, "o", color=style.QUIET, label="start")
        ax.set_aspect("equal", adjustable="datalim")
        across = name == "knife edge"
        ax.set_title(f"{name} (x points down the slope)" if across else name)
        ax.set_xlabel("x [m]")
        ax.set_ylabel("y [m]")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    save_figure(figure, out / "paths.png")


def draw_errors(ks, errors: dict[str, np.ndarray], out: Path) -> None:
    """Error of linear forces against k, with the line of slope -1."""
    figure, axes = style.new_axes(1, title="Error of linear forces")
    ax, names = axes[0, 0], list(errors)
    columns = np.stack([errors[name][:, 1] for name in names], axis=1)
    style.draw_lines(ax, ks, columns, names, marker="o")
    ax.plot(ks, 0.5 * errors[names[0]][0, 1] * ks[0] / ks, "--", color=style.QUIET, label="1 / k")
    ax.set_xscale("log")
    ax.set_ylabel("largest error of v [m/s, rad/s]")
    style.logarithmic(ax)
    style.finish(axes, xlabel="coefficient k [N s / m]")
    save_figure(figure, out / "linear-errors.png")


def draw_reaching(system: System, out: Path) -> None:
    """Constraint function and forces of the sleigh under all laws, from a start off the blade."""
    q, v = system.model.start()
    state = jaxdae.State(q, v + jnp.array([0.2, 0.4, 0.0]))
    estimate = sleigh_estimate(system.model, state)  # pyright: ignore[reportArgumentType]
    laws = {
        "sign": SignLaw(estimate.bound, time_constant=LAYER),
        "tanh": TanhLaw(estimate.bound, 0.05),
        "saturated": SaturatedLaw(estimate.bound, 0.05),
        "linear": LinearLaw(estimate.bound / 0.05),
    }
    runs = {name: system.run(law, state) for name, law in laws.items()}
    psi = {name: np.abs(sol.violation.phi_dot[:, 0]) for name, sol in runs.items()}
    force = {name: -sol.multipliers[:, 0] for name, sol in runs.items()}
    reaction = jax.vmap(system.model.multiplier)(runs["sign"].q, runs["sign"].v)  # pyright: ignore[reportAttributeAccessIssue]
    panels = {"|psi'| [m/s]": psi, "force R [N]": force | {"reaction": -np.asarray(reaction)}}
    title, events = "Chaplygin sleigh, started off its constraint", {"reached by": estimate.time}
    figure = plot_series(TIMES, panels, events=events, log=["|psi'| [m/s]"], title=title)
    save_figure(figure, out / "sleigh-laws.png")


def study(linear, reached, averaged, *, ks, starts: int, steps, widths=(0.1, 0.03, 0.01)) -> dict:
    """Everything that the report says.

    Args:
        linear: systems with linear forces.
        reached: systems started off their constraints, each with its estimate.
        averaged: systems whose sign forces are averaged.
        ks: coefficients of the linear forces [N s/m].
        starts: number of starts off the constraints.
        steps: steps of the averaged runs [s], the finest last.
        widths: of the smooth laws on the sleigh [m/s].
    """
    errors = {system.name: linear_errors(system, ks) for system in linear}
    sleigh, disk = systems()[:2]
    return {
        "k": ks,
        "linear_errors": errors,
        "slopes": {name: [slope(ks, e) for e in rows.T] for name, rows in errors.items()},
        "decay": {str(w): linear_decay(w) for w in (0.0, 1.2)},
        "reaching": {x.name: reaching(x, estimate, starts) for x, estimate in reached},
        "means": [mean_of_sign(system, steps) for system in averaged],
        "threshold": about_the_threshold(sleigh),
        "smooth": smooth_laws(sleigh, widths),
        "memory": laws_with_memory(sleigh),
        "inertia": inertias(sleigh, disk),
    }


def main() -> None:
    """Run everything, print and write the report."""
    out = options(__doc__, "results/realization").out
    everything, ks = systems(), np.logspace(2, 4, 5)
    reached = list(zip(everything, (sleigh_estimate, disk_estimate), strict=False))
    results = study(everything, reached, everything, ks=ks, starts=12, steps=(1e-4, 2.5e-5))
    draw_errors(ks, results["linear_errors"], out)
    draw_reaching(everything[0], out)
    draw_motions({system.name: motions(system) for system in everything}, out)
    finish(out, report(results), results, claims(results))


def report(results: dict) -> str:
    """The tables and the claims."""
    ks = f"{results['k'][0]:g} to {results['k'][-1]:g} N s/m"
    sections = {
        f"Linear forces: slope of log error against log k, {ks}": linear_table(results),
        "Linear forces off the constraints: size of psi' [m/s] of the disk, k = 20 N s/m": (
            decay_table(results)
        ),
        "Sign forces: time to |psi'| < 1e-6 m/s from random starts": reaching_table(results),
        f"Sign forces: means over {END:g} s of the chattering law": mean_table(results),
        "Smooth forces on the sleigh": smooth_table(results),
    }
    lines = ["# Realizing constraints by forces", ""]
    for heading, body in sections.items():
        lines += [f"## {heading}", "", *fenced(body), ""]
    return "\n".join([*lines, "## What holds of the paper", "", listed(claims(results)), ""])


def linear_table(results: dict) -> str:
    """Slopes, and the error at the largest k."""
    rows = [
        (name, *slopes, results["linear_errors"][name][-1, 1])
        for name, slopes in results["slopes"].items()
    ]
    return table(("system", "q", "v", "R - r", "error of v, largest k"), rows)


def decay_table(results: dict) -> str:
    """Size of the constraint functions at a few times, rolling straight and on a circle."""
    shown = [0, 100, 300, 600, 2000]
    rows = [
        (f"theta' = {w} rad/s", *x["size"][shown], x["reaction over k"])
        for w, x in results["decay"].items()
    ]
    heads = ("motion", *(f"t = {TIMES[i]:.1f} s" for i in shown), "|r| / k")
    return table(heads, rows)


def reaching_table(results: dict) -> str:
    """Measured reaching times and their bounds."""
    rows = [
        (
            name,
            *(row[key] for key in ("psi0", "reached")),
            f"{row['estimate']:.4g}" if np.isfinite(row["estimate"]) else "none",
            f"{row['afterwards']:.1e}" if np.isfinite(row["estimate"]) else "-",
        )
        for name, runs in results["reaching"].items()
        for row in runs
    ]
    heads = ("system", "|psi'(0)| [m/s]", "measured [s]", "estimate [s]", "|psi'| after it")
    return table(heads, rows)


def mean_table(results: dict) -> str:
    """Means of the sign forces and of the reactions."""
    rows = [
        (
            case["system"],
            f"{row['dt']:.1e}",
            row["force"],
            case["size"],
            f"{row['error']:.1e}",
            f"{row['relative']:.1e}",
            f"{case['equivalent']:.1e}",
        )
        for case in results["means"]
        for row in case["rows"]
    ]
    heads = (
        "system", "step [s]", "|R| [N]", "|mean r| [N]", "mean R - mean r [N]", "relative",
        "equivalent R - r [N]",
    )  # fmt: skip
    return table(heads, rows)


def smooth_table(results: dict) -> str:
    """Power of the deviation and size of the constraint function, with their bounds."""
    keys = ("law", "width", "power", "delta", "psi", "psi_bound", "error")
    heads = (
        "law", "width [m/s]", "N [W]", "delta [W]", "|psi'| [m/s]", "delta / eta [m/s]",
        "error of q [m, rad]",
    )  # fmt: skip
    return table(heads, [tuple(row[key] for key in keys) for row in results["smooth"]])


def claims(results: dict) -> list[Claim]:
    """What holds of the paper, from the numbers."""
    return [*linear_claims(results), *sign_claims(results), *smooth_claims(results)]


def linear_claims(results: dict) -> list[Claim]:
    """Section 6 and theorem 1."""
    slopes = np.array(list(results["slopes"].values()))
    straight, circle = results["decay"]["0.0"], results["decay"]["1.2"]
    left, final = straight["size"][-1] / straight["size"][0], circle["size"][-1]
    # Its slowest mode alone is left after 0.3 s.
    one, other = (int(np.searchsorted(TIMES, t)) for t in (0.3, 0.5))
    slowest = float(np.log(straight["size"][one] / straight["size"][other]) / 0.2)
    promised, (below, above) = straight["promised rate"], results["threshold"]["rows"]
    fast = [row["rate"] - row["promised"] for row in (below, above)]
    return [
        Claim(
            "*Linear forces realize the constraints as k grows (section 6).* The errors of "
            f"coordinates, velocities and forces fall like 1/k on {len(slopes)} systems: slopes "
            f"{slopes.min():.3f} to {slopes.max():.3f}.",
            bool((np.abs(slopes + 1) < 0.1).all()),
        ),
        Claim(
            "*They are exponentially stable only for motions without reactions (theorem 1, "
            "condition 5.9).* The disk that runs straight forgets a push, to "
            f"{left:.1e} of it; on a circle `psi'` ends at {final:.4g} m/s, where "
            f"`|r| / k` is {circle['reaction over k']:.4g} m/s.",
            bool(left < 1e-6 and abs(final / circle["reaction over k"] - 1) < 0.05),
        ),
        Claim(
            "*Theorem 1 has a threshold and a rate: above `K = rho2^2 (A + B sqrt(G))`, `psi'` "
            "begins to decay at `(k / rho2^2 - A) / 2` at least (with eq. 4.3; eqs. 5.7 and 5.8 "
            "print `k / rho`), while the motion needs no reaction.* The disk that runs straight "
            "has `A = 0` and is promised "
            f"{promised:.4f} 1/s; its slowest mode takes {slowest:.4f} 1/s. A sleigh that goes "
            f"straight ahead has `K = {results['threshold']['threshold']:.3f}` N s/m: pushed, it "
            f"begins to decay at {above['rate']:.3f} 1/s for `{above['factor']:g} K`, promised "
            f"{above['promised']:.3f}, and at {below['rate']:.3f} 1/s, which is growth, for "
            f"`{below['factor']:g} K`. The estimate leaves out the reaction that the other "
            "quasi-velocities need once the push has changed them: later `psi'` follows that.",
            bool(abs(slowest / promised - 1) < 1e-3 and max(map(abs, fast)) < 0.02)
            and below["rate"] < 0 < above["rate"],
        ),
    ]


def sign_claims(results: dict) -> list[Claim]:
    """Theorem 2, and sections 6 and 7."""
    runs = [row for rows in results["reaching"].values() for row in rows]
    promised = [row for row in runs if np.isfinite(row["estimate"])]
    late = max(row["reached"] - row["estimate"] for row in promised)
    taken = [row["reached"] / row["estimate"] for row in promised]
    after = max(row["afterwards"] for row in promised)
    means = results["means"]
    fine = [case["rows"][-1] for case in means]
    error, relative = (max(row[key] for row in fine) for key in ("error", "relative"))
    coarse = max(case["rows"][0]["error"] for case in means)
    equivalent = max(case["equivalent"] for case in means)
    return [
        Claim(
            "*Sign forces reach the constraint in finite time (theorem 2, eq. 6.6).* Holds with "
            "constants computed before the run, from the energy of the start: `A = B = 0` for the "
            "sleigh, where the estimate is `mu |psi'(0)| / eta`, and "
            "`A = kappa |theta'| / (1 - kappa)` for the disk. The runs for which it promises "
            f"anything take {min(taken):.2f} to {max(taken):.2f} of it, the layer of `SignLaw` "
            f"included, in which `psi'` decays with its time constant of {LAYER:g} s; from then on "
            f"`|psi'|` is at most {after:.1e} m/s.",
            bool(late < 20 * LAYER and after < 1e-5),
        ),
        Claim(
            "Where the inequality does not make `G` decrease at the start it promises nothing, in "
            f"{len(runs) - len(promised)} of {len(runs)} runs; all reach the constraint.",
            all(np.isfinite(row["reached"]) for row in runs),
        ),
        Claim(
            "*Their mean is the reaction (sections 6 and 7).* Chattering at `+-` the bound, with "
            f"steps of {fine[0]['dt']:.1e} s, the means over {END:g} s are within {error:.1e} N "
            f"and {relative:.1e} of the reaction's, for all systems. The difference is the step's: "
            f"with {means[0]['rows'][0]['dt']:.1e} s it is up to {coarse:.1e} N, and it falls in "
            "proportion to the step.",
            bool(error < 1e-3 and relative < 1e-3 and coarse > 1.5 * error),
        ),
        Claim(
            "The equivalent force of `SignLaw` is the reaction itself, to "
            f"{equivalent:.1e} N: the tolerance of `psi'` times `mu` over the time constant.",
            equivalent < 1e-4,
        ),
    ]


def smooth_claims(results: dict) -> list[Claim]:
    """Section 7, and the energy function of the proofs."""
    rows = results["smooth"]
    part = {row["law"]: row["delta"] / (row["bound"] * row["width"]) for row in rows}
    worst = [
        max(row[a] / row[b] for row in rows) for a, b in (("power", "delta"), ("psi", "psi_bound"))
    ]
    one, two = results["inertia"]["one"], results["inertia"]["ratio of two"]
    memory = results["memory"]
    (late, prompt), (soft, stiff) = memory["late"], memory["bristles"]
    delay, stiffness = (np.divide(*memory[key]) for key in ("delays", "stiffnesses"))
    return [
        Claim(
            "*Smooth forces do as well while the power N of their deviation is bounded (eq. "
            "7.4).* With the sign reversed: as printed, `Z = -R sign psi' - R~`, N is never "
            "positive for a law within the bounds, and `N <= delta` would say nothing. What enters "
            "`dG/dt` is `-Z psi'`. With it, `tanh` has `delta = W(1/e) bound width = "
            f"{part['TanhLaw']:.4f} bound width` and the saturated law {part['SaturatedLaw']:.2f} "
            f"of it; the power is at most {worst[0]:.2f} of `delta`, and `|psi'|` at most "
            f"{worst[1]:.2f} of `delta / eta`, which follows for the sleigh.",
            bool(max(worst) <= 1 and min(row["printed"] for row in rows) >= 0),
        ),
        Claim(
            "*The proof takes `G` from the block of `u` on `psi'` (eqs. 4.3, 5.5, 5.6) and leaves "
            "out the coupling `u_{psi phi} phi''`.* With it the right function is half of "
            "`psi'^T (J M^-1 J^T)^-1 psi'`, with the inertia left when the free quasi-velocities "
            f"are eliminated; for one constraint the two differ by a factor ({one:.3f} for the "
            f"sleigh), for several by more than that (factors {two:.2f} apart for the disk). The "
            "estimates here use it. The `rho` of eq. 6.6 is the one of `G <= rho^2 |psi'|^2`.",
            bool(one < 0.99 and two > 1.01),
        ),
        Claim(
            "*Contacts with delay and hysteresis do as well while their influence dies out within "
            "a short time (footnote 5).* `tanh` forces that come late by "
            f"{memory['delays'][0]:g} s, through a first-order lag, move the sleigh by "
            f"{late:.1e} [m, rad], and by {late / prompt:.2f} times less at 1/{delay:g} of the "
            "delay. Bristles (`LuGreLaw`) err "
            f"by {soft:.1e} from the constrained motion, and by {soft / stiff:.2f} times less when "
            f"{1 / stiffness:g} times as stiff.",
            bool(0.8 < late / prompt / delay < 1.2 and soft / stiff > 0.8 * stiffness**-0.5),
        ),
    ]


if __name__ == "__main__":
    main()
