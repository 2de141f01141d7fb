"""Adaptive-optics mirror: relative degree, limit of the step, and the paper's control law.

The relative degree of the program is found automatically. Hurwitz gains are then used at steps just
inside and just outside the spectral limit `|R(dt H)| < 1` of Euler, Heun and classical Runge–Kutta.
Inside, the violation is compared with the bound of the theory (Mukharlyamov 2019, section 4) in a
norm in which `R(dt H)` contracts, that of the eigenvectors of `H`:

    |y_k| <= theta^k |y_0| + rho / (1 - theta),      theta = |R(dt H)| < 1,

where `rho` is the largest remainder `g(step(x)) - R(dt H) g(x)` over one step from the program
motion. Outside, the run must break. Last, the coefficients that the paper prints are compared with
derivatives.

    python experiments/mirror.py [--steps 1000] [--rate 200] [--out results/mirror]

Writes a figure, `report.md` and `result.json`.
"""

import argparse
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.solvers.stability_functions import step_matrix
from jaxdae.analysis.steps import modal_weight, step_limit, weighted_norm
from jaxdae.commands.tables import table, write_json
from jaxdae.control import HurwitzGains, relative_degree, ServoConstraint
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.models.mirror_law import coefficients
from jaxdae.plotting import plot_series, save_figure
from jaxdae.solvers import RK4

METHODS = {"Euler": diffrax.Euler(), "Heun": diffrax.Heun(), "RK4": RK4()}
FREE = jaxdae.Multipliers()
# Parts of the fastest root. Distinct ones: a root of multiplicity four is moved by the fourth root
# of whatever perturbs it, and runs break far inside the spectral limit.
ROOTS = np.array([1.0, 0.8, 0.5, 0.3])


def bound(servo, mirror, solver, h: np.ndarray, dt: float, times: int) -> float:
    """The theory's bound on `|f|`, from remainders over one step along the program motion."""
    # All derivatives in the unit of the first, or the modes would look dependent.
    scale = np.diag(np.abs(np.linalg.eigvals(h)).max() ** -np.arange(float(len(h))))
    scaled = scale @ h @ np.linalg.inv(scale)
    weight = modal_weight(scaled)
    theta = weighted_norm(step_matrix(scaled, dt, solver), weight)
    factor = np.linalg.cholesky(weight).T @ scale  # |y| = |factor y|_2

    @eqx.filter_jit
    def after(t):
        run = jaxdae.simulate(
            mirror, FREE, mirror.program_state(t), t0=t, t1=t + dt, dt=dt, solver=solver,
            controller=servo, saveat=diffrax.SaveAt(t1=True), throw=False,
        )  # fmt: skip
        x = run.final_state
        return servo.perturbations(t + dt, x.q, x.v, x.w)[0]

    ts = jnp.linspace(0.0, 2 * jnp.pi / mirror.source_rate, times)
    remainder = np.asarray(jax.lax.map(after, ts))
    rho = np.linalg.norm(remainder @ factor.T, axis=1).max()
    # |f| <= |e_1 S^-1| |S y|
    return float(np.linalg.norm(np.linalg.inv(factor)[0]) * rho / (1 - theta))


def run(mirror, servo, solver, dt: float, steps: int) -> dict:
    """A run of a number of steps from the program motion."""
    sol = jaxdae.simulate(
        mirror, FREE, mirror.program_state(0.0), t1=steps * dt, dt=dt, solver=solver,
        controller=servo, throw=False,
    )  # fmt: skip
    f = np.abs(np.asarray(jax.vmap(mirror.program)(sol.ts, sol.q, sol.v)))[:, 0]
    return {"f": f, "rows": int(np.isfinite(f).sum()), "success": bool(sol.success)}


def slips(mirror: AdaptiveMirror) -> str:
    """The coefficients that the paper prints wrong, at one state."""
    found = coefficients(mirror, jnp.array([0.7, -1.3, 2.1, 0.9]))
    rows = [
        (name, f"{c.printed:.6g}", f"{c.correct:.6g}", c.slip)
        for name, c in found.items()
        if c.slip
    ]
    return table(("coefficient", "printed", "derivative", "slip"), rows)


OTHER_SLIPS = """
- (5.7): the denominator lacks k_M = 1 / (m l^2): g_14^4 b^4 s^1 = 2 c s k_M sin(phi) k_a / L.
- (5.6): prints g_41^4 b^4 s^4 u for g_14^4 b^4 s^1 u.
- First equation of the section: the second term must be + 2 l c s cos(phi) (s - c) sin^2(phi), or
  (5.1) does not follow; PA^2 = l^2 + s^2 - 2 l s cos(phi), printed with s for s^2.
- (5.2): dM/dt = v = k_a i makes the rate of the torque proportional to the current. A motor has M
  proportional to i; then the relative degree would be 3. Kept as printed.
- (3.x): with V <= m_2 |y|^2 and dV/dt <= -s |y|^2 the rate is s / m_2, not 2 s / m_2.
"""


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=200.0, help="fastest root [1/s]")
    parser.add_argument("--out", type=Path, default=Path("results/mirror"))
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    mirror = AdaptiveMirror()
    sample = mirror.program_state(0.0)
    degrees = relative_degree(mirror, FREE, mirror.program, sample, controls=1).degrees
    gains = HurwitzGains(np.poly(-options.rate * ROOTS)[:0:-1])
    servo = ServoConstraint(
        mirror.program, gains, system=mirror, formulation=FREE, sample=sample, degrees=degrees
    )
    h = np.asarray(servo.perturbation_matrix(0.0, sample.q, sample.v, sample.w))
    rows, panels, record = [], {}, []
    for name, solver in METHODS.items():
        limit = step_limit(h, solver).limit
        for part in (0.9, 0.97, 1.03):
            dt = float(part * limit)
            allowed = bound(servo, mirror, solver, h, dt, 200) if part < 1 else np.inf
            r = run(mirror, servo, solver, dt, options.steps)
            largest = np.nanmax(r["f"])
            rows.append(
                (
                    name,
                    f"{part:.2f}",
                    f"{dt:.3e}",
                    f"{largest:.2e}",
                    f"{allowed:.2e}",
                    r["rows"] - 1,
                )
            )
            record.append(
                {"method": name, "part": part, "dt": dt, "largest": largest, "bound": allowed}
            )
            panels.setdefault(f"|f| {name} [m²]", {})[f"{part:.2f} of the limit"] = r["f"]
    headings = ("method", "step / limit", "dt [s]", "max |f| [m²]", "bound [m²]", "steps made")
    text = "\n".join(
        [
            f"# Mirror: relative degree {degrees}, roots -{options.rate:g} x {ROOTS.tolist()}",
            *("", "```", table(headings, rows), "```", "", "## Slips of the paper", ""),
            *("```", slips(mirror), "```", OTHER_SLIPS),
        ]
    )
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "report.md").write_text(text)
    write_json(options.out / "result.json", {"degrees": list(degrees), "runs": record})
    figure = plot_series(
        np.arange(options.steps + 1), panels, log=list(panels), title="Adaptive mirror"
    )
    figure.axes[-1].set_xlabel("steps")
    save_figure(figure, options.out / "violation.png")
    print(text)


if __name__ == "__main__":
    main()
