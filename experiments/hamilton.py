"""Arm of point masses in Hamiltonian form: what holds of Shemelova's equations.

The paper's plane arm of two point masses, an arm whose tip stays on a surface, and a motor whose
charge is a coordinate, in Hamiltonian form and in others: agreement, constraint perturbation
equations against their closed form, the equations as printed, drift over a long run with and
without stabilization, and coefficients `c1 ... c4` tuned for a step of 0.01 s.

    python experiments/hamilton.py [--steps 300] [--out results/hamilton]

Writes figures, `report.md` and `result.json`.
"""

from pathlib import Path

import jax
import numpy as np
from claims import block, Claim, finish, listed, options
from hamilton_runs import (
    agreement,
    CRITICAL,
    DRIFT,
    drift,
    LONG,
    motor,
    OFF,
    perturbations,
    PLAIN,
    printed,
    STEP,
    tuned,
    VELOCITIES,
    WEIGHTS,
)

from jaxdae.models.arm import PointMassArm, SurfaceArm
from jaxdae.plotting import plot_series, save_figure

# A residual above this counts as a constraint that is lost [m^2].
LOST = 0.01


def draw(results: dict, out: Path) -> None:
    """All figures."""
    arm = results["arm"]
    q = arm["found"]["Hamiltonian"]["q"]
    panels = {
        "x [m]": {"elbow": q[:, 0], "tip": q[:, 2]},
        "y [m]": {"elbow": q[:, 1], "tip": q[:, 3]},
        "multipliers [N/m]": {
            f"link {i + 1}": arm["found"]["Hamiltonian"]["lam"][:, i] for i in range(2)
        },
    }
    save_figure(
        plot_series(arm["ts"], panels, title="Plane arm under its weights"), out / "arm.png"
    )
    off = results["perturbations"]
    panels = {}
    for i in range(2):
        panels[f"|y{i + 1}| [m²]"] = {
            "simulated": np.abs(off["y"][:, i, 0]),
            "closed form": np.abs(off["closed"][:, i, 0]),
            "difference": np.abs(off["y"] - off["closed"])[:, i, 0],
        }
    figure = plot_series(off["ts"], panels, log=list(panels), title="Perturbation equations")
    save_figure(figure, out / "perturbations.png")
    slips = results["printed"]
    panels = {
        f"|y{i + 1}| [m²]": {
            # What is beyond the arm's own size says nothing more.
            name: np.where(phi[:, i] < 10.0, phi[:, i], np.nan)
            for name, phi in slips["phi"].items()
        }
        for i in range(2)
    }
    figure = plot_series(slips["ts"], panels, log=list(panels), title="Equations (6) as printed")
    save_figure(figure, out / "printed.png")
    _draw_drift(results["drift"], out)
    _draw_surface(results["surface"], out)
    _draw_motor(results["motor"], out)


def _draw_drift(runs: dict, out: Path) -> None:
    shown = {name: run for name, run in runs.items() if name != VELOCITIES}
    panels = {
        heading: {name: run[key][1:] for name, run in shown.items()}
        for heading, key in (
            ("|y| [m²]", "phi"),
            ("energy drift [J]", "energy"),
            ("momentum drift [kg m²/s]", "momentum"),
        )
    }
    ts = next(iter(runs.values()))["ts"][1:]
    title = f"Free arm, RK4, h = {STEP:g} s"
    save_figure(plot_series(ts, panels, log=list(panels), title=title), out / "drift.png")


def _draw_surface(surface: dict, out: Path) -> None:
    run, q = surface["run"], surface["found"]["Hamiltonian"]["q"]
    panels = {
        "tip [m]": dict(zip("xyz", q[:, 3:].T, strict=True)),
        "push of the surface [N]": surface["push"],
        "|phi|": {
            name: np.abs(run.violation.phi)[1:, i]
            for i, name in enumerate(("link 1 [m²]", "link 2 [m²]", "surface [-]"))
        },
    }
    panels["|phi|"] = {k: np.append(np.nan, v) for k, v in panels["|phi|"].items()}
    figure = plot_series(surface["ts"], panels, log=["|phi|"], title="Tip on an ellipsoid")
    save_figure(figure, out / "surface.png")


def _draw_motor(results: dict, out: Path) -> None:
    runs = results["runs"]
    one, other = runs["Hamiltonian, charge"], runs["Multipliers, actuator"]
    panels = {
        "current [A]": {"charge": one["current"], "actuator": other["current"]},
        "crank [rad/s]": {"charge": one["speed"], "actuator": other["speed"]},
        "power [W]": dict(zip(("source", "heat", "loss", "shaft"), one["power"].T, strict=True)),
        "difference": {
            "current [A]": np.abs(one["current"] - other["current"]),
            "speed [rad/s]": np.abs(one["speed"] - other["speed"]),
        },
    }
    title = "Motor: charge as a coordinate, or actuator"
    figure = plot_series(results["ts"], panels, log=["difference"], title=title)
    save_figure(figure, out / "motor.png")


def study(steps: int) -> dict:
    """Everything that the report says."""
    arm, free = PointMassArm(forces=WEIGHTS), PointMassArm()
    spatial = SurfaceArm()
    surface = agreement(spatial, 2.0)
    run = surface["run"]
    outward = jax.vmap(jax.grad(spatial.surface))(run.q[:, 3:])
    force = jax.vmap(spatial.contact_force)(run.q, run.multipliers)
    surface["push"] = np.sum(force * outward, 1) / np.linalg.norm(outward, axis=1)
    best = tuned(free, steps)
    return {
        "arm": agreement(arm, 4.0),
        "surface": surface,
        "perturbations": perturbations(arm),
        "printed": printed(arm),
        "tuned": best,
        "drift": drift(free, {name: one["formulation"] for name, one in best.items()}),
        "motor": motor(),
    }


def numbers(results: dict) -> dict:
    """The measured values."""
    runs = results["motor"]["runs"]
    actuator = runs["Multipliers, actuator"]
    same = results["drift"]
    plain, other = same[PLAIN]["q"], same[VELOCITIES]["q"]
    push = results["surface"]["push"]
    leaves = results["surface"]["ts"][push < 0]
    return {
        "agreement": {
            system: {
                name: {k: one.get(k) for k in ("dq", "dlam", "balance", "phi", "changes")}
                for name, one in results[system]["found"].items()
            }
            for system in ("arm", "surface")
        },
        "perturbation_difference": results["perturbations"]["difference"],
        "printed_lost_after": {
            k: [_lost(results["printed"]["ts"], y) for y in phi.T]
            for k, phi in results["printed"]["phi"].items()
        },
        "tuned": {
            name: {k: one[k] for k in ("c", "own", "judged")}
            for name, one in results["tuned"].items()
        },
        "drift": {
            name: {k: float(run[k].max()) for k in ("phi", "energy", "momentum")}
            for name, run in same.items()
        },
        "momenta_or_velocities": float(np.abs(plain - other)[: round(1 / STEP)].max()),
        "motor": {
            name: {
                **{
                    k: float(np.abs(run[k] - actuator[k]).max())
                    for k in ("current", "speed", "torque", "power")
                },
                "balance": run["balance"],
                "steps": run["steps"],
            }
            for name, run in runs.items()
        },
        "tip_would_leave": float(leaves[0]) if leaves.size else None,
    }


def _lost(ts, y) -> float | None:
    """Time at which a residual passes `LOST`, or the run ends."""
    lost = ~(y < LOST)
    return float(ts[np.argmax(lost)]) if lost.any() else None


def report(values: dict) -> str:
    """Tables and claims."""
    sections = ["# Arm of point masses in Hamiltonian form", ""]
    for system, heading in (("arm", "Plane arm, 4 s"), ("surface", "Tip on an ellipsoid, 2 s")):
        rows = [
            (name, *(_number(one[k]) for k in ("dq", "dlam", "balance", "phi", "changes")))
            for name, one in values["agreement"][system].items()
        ]
        headings = ("form", "q [m]", "multipliers [N/m]", "balance [J]", "|phi|", "changes")
        sections += block(f"{heading}: largest differences from Multipliers", headings, rows)
    rows = [
        (name, *("-" if t is None else f"{t:.2f} s" for t in lost))
        for name, lost in values["printed_lost_after"].items()
    ]
    heading = f"Equations (6), 1 s: when the residuals pass {LOST:g} m²"
    sections += block(heading, ("", "link 1", "link 2"), rows)
    rows = [
        (
            name,
            ", ".join(f"{x:.4g}" for x in one["c"]),
            *(f"{x:.1e}" for x in (*one["own"], *one["judged"])),
        )
        for name, one in values["tuned"].items()
    ]
    headings = ("tuned on", "c1, c2, c3, c4", "before", "after", "judged: before", "after")
    sections += block("Tuning: mean integrated squared violation [m⁴ s]", headings, rows)
    rows = [
        (name, *(f"{one[k]:.1e}" for k in ("phi", "energy", "momentum")))
        for name, one in values["drift"].items()
    ]
    headings = ("coefficients", "max |y| [m²]", "energy [J]", "momentum [kg m²/s]")
    sections += block(f"Free arm, {LONG:g} s in steps of {STEP:g} s (RK4)", headings, rows)
    rows = [
        (name, *(f"{one[k]:.1e}" for k in ("current", "speed", "torque", "balance")), one["steps"])
        for name, one in values["motor"].items()
    ]
    headings = ("form", "current [A]", "speed [rad/s]", "torque [N m]", "balance [J]", "steps")
    sections += block("Motor, 0.3 s: largest differences from the actuator", headings, rows)
    heading = "## What holds of the paper's claims"
    return "\n".join(
        [*sections, heading, "", listed(claims(values)), contact(values["tip_would_leave"]), ""]
    )


def _number(x) -> str:
    if x is None:
        return "-"
    return str(x) if isinstance(x, int) else f"{x:.1e}"


def claims(values: dict) -> list[Claim]:
    """What holds of the paper."""
    drifts = values["drift"]
    return [
        agreement_claim(values),
        Claim(
            "*The residuals satisfy the perturbation equations, whatever the motion.* True: they "
            f"differ from exp(A t) y(0) by at most {values['perturbation_difference']:.1e} (m² and "
            "m²/s).",
            # Between its steps the solver interpolates, less accurately than it integrates.
            values["perturbation_difference"] < 1e-7,
        ),
        printed_claim(values["printed_lost_after"]),
        tuning_claim(values["tuned"], drifts),
        Claim(
            "With Runge-Kutta steps of one size momenta and velocities agree to "
            f"{values['momenta_or_velocities']:.1e} m over the first second, because momenta here "
            "are constant masses times velocities.",
            values["momenta_or_velocities"] < 1e-12,
        ),
        motor_claim(values["motor"]),
    ]


def agreement_claim(values: dict) -> Claim:
    """Canonical equations against Lagrange's, on both arms."""
    every = [one for runs in values["agreement"].values() for one in runs.values()]
    dq, dlam = (max(one[k] for one in every) for k in ("dq", "dlam"))
    balance = max(one["balance"] for one in every if one["balance"] is not None)
    return Claim(
        "*The canonical equations with multipliers are equivalent to Lagrange's.* True: "
        f"all forms agree to {dq:.1e} m in the motion and {dlam:.1e} N/m in the "
        f"multipliers, and keep the balance of energy to {balance:.1e} J.",
        dq < 1e-6 and dlam < 1e-3 and balance < 1e-7,
    )


def printed_claim(lost: dict) -> Claim:
    """The slips of equations (6)."""
    derived, *slips = lost.values()
    latest = [min(t for t in times if t is not None) for times in slips if any(times)]
    when = " and ".join(f"{t:.2f} s" for t in latest)
    return Claim(
        "*Equations (6).* The last row of the example is printed with the wrong sign, and `P` "
        "lacks `(J q')_q q'`, which for this arm is all of it. With the one or the other the "
        f"constraints are lost, after {when}; with both corrected they are kept.",
        all(t is None for t in derived) and len(latest) == len(slips),
    )


def deadbeat() -> tuple[float, float]:
    """`h K_D` and `h² K_P` of the real factor of RK4's stability polynomial that is best damped."""
    roots = np.roots([1 / 24, 1 / 6, 1 / 2, 1, 1])
    root = roots[np.argmin(roots.real)]
    return float(-2 * root.real), float(abs(root) ** 2)


def tuning_claim(tuned: dict, drifts: dict) -> Claim:
    """The two answers of tuning."""
    c1, c2, c3, c4 = tuned[OFF]["c"]
    damping, stiffness = (-STEP * c2, -STEP * c4), (-(STEP**2) * c1, -(STEP**2) * c3)
    best = deadbeat()
    harm = drifts[f"c tuned on {OFF}"]["phi"] / drifts[CRITICAL]["phi"]
    small = max(abs(x) / abs(y) for x, y in zip(tuned[DRIFT]["c"], tuned[OFF]["c"], strict=True))
    better = all(one["judged"][1] < one["judged"][0] for one in tuned.values())
    near = np.abs(np.array([damping, stiffness]) / np.array(best)[:, None] - 1).max()
    return Claim(
        f"*Coefficients.* The paper names none. For RK4 with h = {STEP:g} s there are two answers, "
        "each better than 10 / s on what it was tuned on. Tuned on starts off the "
        f"constraints both links end with h K_D = {damping[0]:.2f}, {damping[1]:.2f} and "
        f"h² K_P = {stiffness[0]:.2f}, {stiffness[1]:.2f}, within {100 * near:.0f} % of "
        f"{best[0]:.2f} and {best[1]:.2f}, where the stability polynomial of RK4 is zero: a small "
        "violation is gone after one step. From a start on the constraints they do harm: the drift "
        f"is {harm:.1f} times that with 10 / s. Tuned on that drift itself, coefficients are at "
        f"most {small:.2g} of those.",
        bool(better and near < 0.15 and harm > 1 and small < 0.5),
    )


def motor_claim(motor: dict) -> Claim:
    """Charge as a coordinate or current as an actuator."""
    current, speed, torque = (
        max(x[k] for x in motor.values()) for k in ("current", "speed", "torque")
    )
    return Claim(
        "*Elements of another physical nature.* True: with the charge as a coordinate the motor's "
        "flux linkage is its momentum, and the motion is that of the motor as an actuator, to "
        f"{current:.1e} A, {speed:.1e} rad/s and {torque:.1e} N m.",
        current < 1e-5 and speed < 1e-7 and torque < 1e-5,
    )


def contact(leaves: float | None) -> str:
    """Whether the surface would have to pull."""
    if leaves is None:
        return "- The surface pushes all the time; the tip would stay on it by itself."
    return f"- A tip that only lay on the surface would leave it after {leaves:.2f} s."


def main() -> None:
    """Run everything, print and write the report."""
    chosen = options(__doc__, "results/hamilton", steps=(300, "steps of tuning"))
    results = study(chosen.steps)
    values = numbers(results)
    draw(results, chosen.out)
    finish(chosen.out, report(values), values, claims(values))


if __name__ == "__main__":
    main()
