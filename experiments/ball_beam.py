"""Ball and beam: what redundant coordinates change, and what they do not.

The example of [Krasinskaya2013, section 6], with the numbers of a teaching rig:
roots of the simplified and of the exact model, a regulator designed on the simplified model that
brings the exact one back, feedback on the redundant angle, and starts off the constraint, which
show the manifold of equilibria that the theorem speaks of.

    python experiments/ball_beam.py [--out results/ball_beam]

Writes figures, `report.md` and `result.json`.
"""

from pathlib import Path
from typing import NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import block, Claim, fenced, finish, listed, options
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae.analysis import (
    characteristic_matrix,
    controllability,
    Equilibrium,
    equilibrium,
    Linearization,
    linearize,
    linearized_constraint,
    lqr,
    RegulatorFeedback,
    Spectrum,
    spectrum,
)
from jaxdae.formulations.velocity_elimination import VelocityElimination
from jaxdae.models.ball_beam import AbstractBallBeam, BallBeam, SimplifiedBallBeam
from jaxdae.plotting import plot_series, save_figure
from jaxdae.plotting.roots import plot_roots
from jaxdae.tables import table

INDEPENDENT = ("r", "theta")
END, STARTS, ROWS = 20.0, 10, 201
SHIFTS = np.linspace(-0.005, 0.005, 5)


class WithBeamFeedback(eqx.Module):
    """A regulator with proportional and derivative feedback on the redundant angle added."""

    regulator: RegulatorFeedback
    gain: float

    def __call__(self, t, q, v, w):
        return self.regulator(t, q, v, w) - self.gain * (q[1:2] + 0.1 * v[1:2])


class Runs(NamedTuple):
    """Times, coordinates, voltages and rod residuals of runs, and how many reached the end."""

    ts: np.ndarray
    q: np.ndarray
    u: np.ndarray
    phi: np.ndarray
    successes: int


def rest(system: AbstractBallBeam) -> Equilibrium:
    """Equilibrium with the ball held at its place, current and voltage found."""
    q, _ = system.start()
    return equilibrium(system, q, jnp.zeros(1), jnp.zeros(1), free_controls=True, fixed=("r",))


def perturbed_starts(system: BallBeam, count: int) -> list[jaxdae.State]:
    """Consistent states around the rest: ball up to 5 cm away, wheel turned up to 0.3 rad."""
    rng, center = np.random.default_rng(4), system.rest()
    states = []
    for _ in range(count):
        dq, v = rng.uniform(-1, 1, (2, 3)) * np.array([0.05, 0.0, 0.3])
        q = center.q + jnp.asarray(dq)
        states.append(
            jaxdae.consistent_state(system, q, jnp.asarray(v), w=center.w, fixed=INDEPENDENT)
        )
    return states


def shifted_starts(system: BallBeam, shifts) -> list[jaxdae.State]:
    """At rest, with the beam turned off the constraint."""
    center = system.rest()
    return [jaxdae.State(center.q.at[1].set(x), center.v, center.w) for x in shifts]


def simulate(system: BallBeam, formulation, controller, starts: list[jaxdae.State], end) -> Runs:
    """Several runs; the electrical time constant, 0.07 ms, asks for an implicit solver."""
    ts = np.linspace(0.0, end, ROWS)
    runs = [
        jaxdae.simulate(
            system,
            formulation,
            start,
            t1=end,
            solver=diffrax.Kvaerno5(),
            stepsize_controller=diffrax.PIDController(rtol=1e-7, atol=1e-9),
            saveat=diffrax.SaveAt(ts=jnp.asarray(ts)),
            controller=controller,
            start_tolerance=None,
            throw=False,
        )
        for start in starts
    ]
    return Runs(
        ts,
        np.stack([run.q for run in runs]),
        np.stack([run.u[:, 0] for run in runs]),
        np.stack([run.violation.phi[:, 0] for run in runs]),
        sum(bool(run.success) for run in runs),
    )


def draw_returns(runs: Runs, path: Path) -> None:
    """Ball, wheel and voltage of all runs."""
    q, u = runs.q, runs.u
    named = {"ball r [m]": q[..., 0], "wheel theta [rad]": q[..., 2], "voltage e [V]": u}
    panels = {heading: {"start": values.T} for heading, values in named.items()}
    save_figure(
        plot_series(runs.ts, panels, title="Regulator of the simplified model on the exact one"),
        path,
    )


def draw_manifold(runs: Runs, shifts, path: Path) -> None:
    """Motions from starts off the constraint."""
    q = runs.q
    names = [f"alpha(0) = {x:+.4f} rad" for x in shifts]
    panels = {
        heading: dict(zip(names, values, strict=True))
        for heading, values in (
            ("ball r [m]", q[..., 0]),
            ("wheel theta [rad]", q[..., 2]),
            ("rod residual [m²]", runs.phi),
        )
    }
    save_figure(plot_series(runs.ts, panels, title="Starts off the constraint"), path)


def motion_roots(system: BallBeam, controller) -> np.ndarray:
    """Roots at the rest from Shulgin's equations in `(q, v_I, w)`, differentiated as they stand."""
    form = VelocityElimination(INDEPENDENT)
    rest = form.init(system, 0.0, system.rest())
    start, unravel = ravel_pytree((rest.q, rest.v, rest.w))

    def rate(x):
        y = eqx.tree_at(lambda y: (y.q, y.v, y.w), rest, unravel(x))
        state = form.recover(system, 0.0, y)
        u = controller(0.0, state.q, state.v, state.w)
        results = form.vector_field(system, 0.0, y, u)
        return ravel_pytree((results.q, results.v, results.w))[0]

    return np.linalg.eigvals(np.asarray(jax.jit(jax.jacfwd(rate))(start)))


def study(formulation, starts: int = STARTS, shifts=SHIFTS, end: float = END) -> dict:
    """Everything that the report says: regulated runs and starts off the constraint to `end`."""
    exact, simple = BallBeam(), SimplifiedBallBeam()
    six = linearize(exact, rest(exact), independent=INDEPENDENT)
    five = linearize(simple, rest(simple), independent=INDEPENDENT)
    feedback = lqr(five).feedback
    regulator = RegulatorFeedback(feedback.K, six.equilibrium.q, feedback.w, feedback.u, (0, 2))
    controllers = {
        "regulator": regulator, "with feedback on alpha": WithBeamFeedback(regulator, 7.0)
    }  # fmt: skip
    closed = {name: _closed(exact, six, control) for name, control in controllers.items()}
    return {
        "models": (exact, simple),
        "linear": (six, five),
        "open": (spectrum(six), spectrum(five)),
        "closed": closed,
        "direct": motion_roots(exact, controllers["with feedback on alpha"]),
        "K": np.asarray(feedback.K)[0],
        "B0": characteristic_matrix(exact, six.equilibrium, independent=INDEPENDENT).B,
        "lost": linearized_constraint(exact, six.equilibrium, independent=INDEPENDENT),
        "returns": simulate(exact, formulation, regulator, perturbed_starts(exact, starts), end),
        "shifts": shifts,
        "shifted": simulate(exact, formulation, regulator, shifted_starts(exact, shifts), end),
    }


def _closed(system, lin: Linearization, controller) -> Spectrum:
    return spectrum(
        linearize(system, lin.equilibrium, independent=INDEPENDENT, controller=controller)
    )


def numbers(results: dict) -> dict:
    """The measured values."""
    exact, _ = results["models"]
    six, five = results["open"]
    q, shifted, shifts = results["returns"].q, results["shifted"].q, results["shifts"]
    regulated, other = (s for s in results["closed"].values())
    away = np.abs(q - np.asarray(exact.start()[0]))
    phi = results["shifted"].phi
    reached = controllability(results["linear"][0].A_full, results["linear"][0].B_full)
    return {
        "B0_error": float(np.abs(np.asarray(results["B0"])[0, 1] - exact.transmission())),
        "rest_current": float(exact.rest_current()),
        "rest_voltage": float(exact.rest_voltage()),
        "relative_difference_of_roots": float(
            np.max(np.abs(six.others - five.others) / np.abs(five.others))
        ),
        "controllable_dimension_of_six": reached.rank,
        "lost_stiffness": float(np.abs(np.asarray(results["lost"].lost_stiffness)).max()),
        "K": results["K"].tolist(),
        "verdicts": [s.verdict for s in (six, five, regulated, other)],
        "least_root_with_feedback_on_alpha": float(np.abs(results["direct"]).min()),
        "others_moved_by_feedback_on_alpha": float(
            np.abs(other.others - regulated.others).max() / np.abs(regulated.others).min()
        ),
        "starts": len(q),
        "returned": results["returns"].successes,
        "largest_start_distance": away[:, 0].max(axis=0).tolist(),
        "largest_end_distance": away[:, -1].max(axis=0).tolist(),
        "shifted_residual_change": float(np.abs(phi[:, -1] - phi[:, 0]).max()),
        "shifted_ends": shifted[:, -1].tolist(),
        # The ball's place is regulated; beam and wheel show which rest was reached.
        "ends_apart": float(np.abs(np.diff(shifted[:, -1, 1:], axis=0)).max(axis=1).min()),
        "still_moving": float(np.abs(shifted[:, -1] - shifted[:, -ROWS // 20]).max()),
        "shifts": list(map(float, shifts)),
    }


def report(results: dict, values: dict) -> str:
    """Tables and claims."""
    rows = [
        (name, _roots(s), s.constraint_zeros, s.verdict)
        for name, s in (
            ("exact, six states", results["open"][0]),
            ("simplified, five states", results["open"][1]),
            *((f"exact, {name}", s) for name, s in results["closed"].items()),
        )
    ]
    ends = [
        (f"{shift:+.4f}", *(f"{x:.6f}" for x in end))
        for shift, end in zip(values["shifts"], values["shifted_ends"], strict=True)
    ]
    headings = ("alpha(0) [rad]", "r(end) [m]", "alpha(end) [rad]", "theta(end) [rad]")
    return "\n".join(
        [
            "# Ball and beam in redundant coordinates",
            "",
            *fenced(table(("model", "roots but constraint zeros [1/s]", "zeros", "verdict"), rows)),
            "",
            f"- Rest at r0: i0 = {values['rest_current']:.6g} A, e0 = "
            f"{values['rest_voltage']:.6g} V.",
            f"- Regulator of the simplified model (Q = I, R = 1): K = {np.round(values['K'], 6)}.",
            "",
            *block("Starts off the constraint", headings, ends),
            "## What holds of the paper's claims",
            "",
            listed(claims(values)),
            "",
        ]
    )


def _roots(results: Spectrum) -> str:
    shown = [x for x in results.others if x.imag >= 0]
    return ", ".join(f"{x.real:.4g}{f' ± {x.imag:.4g}i' if x.imag else ''}" for x in shown)


def claims(values: dict) -> list[Claim]:
    """What holds of the paper's claims."""
    start, end = values["largest_start_distance"], values["largest_end_distance"]
    return [
        Claim(
            "*B(0) = d/L*, the angle of the beam for an angle of the wheel, at the level rest. "
            f"True, to {values['B0_error']:.1e}.",
            values["B0_error"] < 1e-12,
        ),
        Claim(
            "*Both models share the roots but the constraint's zero.* True: the five roots differ "
            f"by {values['relative_difference_of_roots']:.1e} (relative), the sixth is zero by "
            f"structure, and the input reaches {values['controllable_dimension_of_six']} of 6 "
            "dimensions.",
            values["relative_difference_of_roots"] < 1e-10
            and values["controllable_dimension_of_six"] == 5,
        ),
        Claim(
            "*The constraint may be linearized first here.* True: the stiffness that is lost is "
            f"{values['lost_stiffness']:.1e}, because C_B vanishes at the level rest.",
            values["lost_stiffness"] < 1e-10,
        ),
        Claim(
            "*A regulator found on the simplified model makes the exact one asymptotically "
            f"stable.* True: its verdict is {values['verdicts'][2]}, and {values['returned']} of "
            f"{values['starts']} perturbed starts, all on the constraint, come back: distances "
            f"from the rest fall from r {start[0]:.3g} m, theta {start[2]:.3g} rad to "
            f"{end[0]:.1e} m, {end[2]:.1e} rad.",
            values["verdicts"][2] == "asymptotically stable"
            and values["returned"] == values["starts"]
            and all(end[i] < 0.02 * start[i] for i in (0, 2)),
        ),
        Claim(
            "*No feedback moves the zero root.* True, feedback on alpha included: the least "
            "root of the equations of motion, differentiated as they stand, is "
            f"{values['least_root_with_feedback_on_alpha']:.1e} 1/s. It moves the others, by "
            f"up to {values['others_moved_by_feedback_on_alpha']:.2g} of the slowest.",
            values["least_root_with_feedback_on_alpha"] < 1e-9
            and values["others_moved_by_feedback_on_alpha"] > 1e-3,
        ),
        Claim(
            "*The equilibrium is isolated because the constraint forces z = 0.* Off the constraint "
            "the same equations come to rest elsewhere, one rest for each residual, beam or wheel "
            f"{values['ends_apart']:.1e} rad and more apart; the residual of the rod changes by at "
            f"most {values['shifted_residual_change']:.1e} m². Without the constraint on the "
            "initial values the verdict would be stable only.",
            values["ends_apart"] > 1e-4
            and values["still_moving"] < 0.05 * values["ends_apart"]
            and values["shifted_residual_change"] < 1e-6,
        ),
    ]


def main() -> None:
    """Run everything, print and write the report."""
    out = options(__doc__, "results/ball_beam").out
    results = study(VelocityElimination(INDEPENDENT))  # Shulgin's equations
    values = numbers(results)
    sets = {"exact": results["open"][0].roots, "simplified": results["open"][1].roots}
    sets["regulator on the exact model"] = results["closed"]["regulator"].roots
    save_figure(plot_roots(sets, title="Roots, constraint zero included"), out / "roots.png")
    draw_returns(results["returns"], out / "returns.png")
    draw_manifold(results["shifted"], results["shifts"], out / "off-constraint.png")
    finish(out, report(results, values), values, claims(values))


if __name__ == "__main__":
    main()
