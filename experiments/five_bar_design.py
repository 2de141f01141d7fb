"""Five-bar: link lengths and gains of its PD law tuned together, by one gradient.

The links are bars of given material: longer ones are heavier. Their tip must follow the path under
loads that the controller does not know, with little torque. Tuned are the gains, the lengths, and
both; the gradient of both is checked three ways.

    python experiments/five_bar_design.py [--steps 40] [--out results/five_bar_design]

Writes `report.md` and `result.json`.
"""

import dataclasses

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, fenced, finish, listed, options
from five_bar import FORMULATION, NOMINAL, PATH, PERIOD, STEP, TIP, TORQUE
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from periodic import interpolated

from jaxdae import Positive, resolve, simulate, State, tune
from jaxdae.control import Feedforward, motion_derivatives, PD
from jaxdae.models.five_bar import CrankError, FiveBar
from jaxdae.solvers import RK4
from jaxdae.tables import table
from jaxdae.tuning import Logarithm

# Loads tuned on, and judged on [kg]; the controller reckons with that of the nominal five-bar.
LOADS, OTHERS = (0.1, 0.4, 0.8), (0.2, 0.3, 0.6, 0.9)
FIRST_GAINS = (60.0, 6.0)


def built(lengths: Float[Array, " 4"]) -> FiveBar:
    """The five-bar with links of other lengths, of the same material and shape."""
    parts = lengths / jnp.asarray(NOMINAL.lengths)
    return dataclasses.replace(
        NOMINAL,
        lengths=lengths,
        masses=parts * jnp.asarray(NOMINAL.masses),
        inertias=parts**3 * jnp.asarray(NOMINAL.inertias),
    )


class Both(eqx.Module):
    """Mean over loads of the cost of a period: error of the tip, and torque.

        integral of  |tip - path|^2 / (5 mm)^2 + |u|^2 / (1 N m)^2  dt

    NaN where links do not reach the path.

    Args:
        loads: at the tip [kg].
        fixed: what is not tuned of `{"lengths", "K_P", "K_D"}`.
    """

    loads: tuple[float, ...] = eqx.field(static=True)
    fixed: dict
    mode: str = eqx.field(static=True, default="forward")

    def parts(self, params) -> Float[Array, "loads 2"]:
        """Of each load, the integrals of error and torque."""
        p = self.fixed | params
        system = built(p["lengths"])
        exact = system.motion(PATH)
        motion = interpolated(exact, PERIOD).function
        forward = interpolated(Feedforward(system, exact, 2), PERIOD).function
        law = PD(CrankError(motion), p["K_P"], p["K_D"], forward)
        q, v, _ = motion_derivatives(exact, 0.0)
        loaded = eqx.tree_at(lambda s: s.tip_mass, system, jnp.zeros(()))

        def one(load):
            run = simulate(
                eqx.tree_at(lambda s: s.tip_mass, loaded, load),
                FORMULATION,
                State(q, v),
                t1=PERIOD,
                dt=STEP,
                solver=RK4(),
                controller=law,
                adjoint=diffrax.ForwardMode(),
                throw=False,
                start_tolerance=None,
            )
            off = jax.vmap(system.tip)(run.q) - jax.vmap(PATH)(run.ts)
            densities = jnp.stack([(off / TIP) ** 2, (run.u / TORQUE) ** 2]).sum(axis=2)
            integrals = jnp.trapezoid(densities, run.ts, axis=1)
            return jnp.where(run.success, integrals, jnp.nan)

        return jax.vmap(one)(jnp.asarray(self.loads))

    def __call__(self, params) -> Float[Array, ""]:
        return jnp.mean(jnp.sum(self.parts(params), axis=1))


def first_params() -> dict:
    """The nominal lengths, and gains for all of them."""
    lengths, (K_P, K_D) = jnp.asarray(NOMINAL.lengths), FIRST_GAINS
    return {"lengths": lengths, "K_P": jnp.full(2, K_P), "K_D": jnp.full(2, K_D)}


def gradients(loads) -> dict[str, np.ndarray]:
    """By forward mode, by reverse mode, and by differences of fourth order, of the logarithms."""
    x, unravel = ravel_pytree(jax.tree.map(jnp.log, first_params()))
    objective = Both(loads, {})

    def of_logarithms(x):
        return objective(jax.tree.map(jnp.exp, unravel(x)))

    value, h = jax.jit(of_logarithms), 1e-3
    weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    steps = jnp.eye(x.size) * h
    differences = [sum(c * value(x + k * e) for k, c in weights.items()) / h for e in steps]
    return {
        "forward": np.asarray(jax.jit(jax.jacfwd(of_logarithms))(x)),
        "reverse": np.asarray(jax.jit(jax.grad(of_logarithms))(x)),
        "differences": np.array(differences),
    }


def study(steps: int) -> dict:
    """Tune the gains, the lengths, and both; judge on other loads."""
    first = first_params()
    cases = {"first": (), "gains": ("K_P", "K_D"), "lengths": ("lengths",), "both": tuple(first)}
    rows = {}
    for name, tuned in cases.items():
        fixed = {x: first[x] for x in first if x not in tuned}
        params = {x: Positive(first[x]) for x in tuned}
        if tuned:
            aim = Logarithm(Both(LOADS, fixed))
            params = tune(aim, params, steps=steps, progress=True).params
        params = fixed | resolve(params)
        parts = eqx.filter_jit(Both(LOADS + OTHERS, {}).parts)(params)
        rows[name] = {"params": params, "parts": np.asarray(parts), "sine": sine(params)}
    return {"rows": rows, "gradients": gradients(LOADS)}


def sine(params) -> float:
    """Least sine along the path of the angles at which links meet; zero at a singular position."""
    system = built(params["lengths"])
    q = jax.jit(jax.vmap(system.motion(PATH).__call__))(jnp.linspace(0, PERIOD, 101))
    return float(jnp.abs(jnp.stack([*system.sines(q)])).min())


def means(parts: np.ndarray) -> np.ndarray:
    """Error and torque, of the loads tuned on and of the others."""
    count = len(LOADS)
    return np.concatenate([parts[:count].mean(axis=0), parts[count:].mean(axis=0)])


HEADINGS = (
    "tuned", "error", "torque", "error, other loads", "torque, other loads", "least sine",
    "lengths [m]", "K_P", "K_D",
)  # fmt: skip


def lines(rows: dict) -> list[list]:
    """The table of the report."""
    return [
        [
            name,
            *(f"{x:.4g}" for x in means(row["parts"])),
            f"{row['sine']:.2f}",
            *(_shown(row["params"][x]) for x in ("lengths", "K_P", "K_D")),
        ]
        for name, row in rows.items()
    ]


def _shown(values) -> str:
    return ", ".join(f"{float(x):.4g}" for x in values)


def claims(results: dict) -> list[Claim]:
    """What the numbers show."""
    rows, slopes = results["rows"], results["gradients"]
    size = np.abs(slopes["forward"]).max()
    off = {
        name: float(np.abs(slopes[name] - slopes["forward"]).max() / size)
        for name in ("reverse", "differences")
    }
    cost = {name: means(row["parts"])[2:].sum() for name, row in rows.items()}
    return [
        Claim(
            "The gradient by lengths and gains is one: forward and reverse mode agree to "
            f"{off['reverse']:.1e} of its largest entry, differences to {off['differences']:.1e}.",
            off["reverse"] < 1e-10 and off["differences"] < 1e-6,
        ),
        Claim(
            f"On other loads the cost falls from {cost['first']:.3g} to {cost['gains']:.3g} by "
            f"the gains, to {cost['lengths']:.3g} by the lengths, and to {cost['both']:.3g} by "
            "both.",
            cost["both"] < min(cost["gains"], cost["lengths"]) < cost["first"],
        ),
        Claim(
            "Short links are light, and end near the edge of their reach: the least sine between "
            f"two of them along the path falls from {rows['first']['sine']:.2f} to "
            f"{rows['both']['sine']:.2f}. The cost does not ask for a distance from singular "
            "positions; a user may.",
            0 < rows["both"]["sine"] < rows["first"]["sine"],
        ),
    ]


def main() -> None:
    """Run the study and write what it found."""
    chosen = options(__doc__, "results/five_bar_design", steps=(40, "steps of the optimizer"))
    results = study(chosen.steps)
    sentences = claims(results)
    text = "\n".join(
        [
            "# Five-bar: lengths and gains together",
            *("", *fenced(table(HEADINGS, lines(results["rows"]))), "", listed(sentences)),
        ]
    )
    record = {
        "rows": {name: row["parts"] for name, row in results["rows"].items()},
        "gradients": results["gradients"],
    }
    finish(chosen.out, text, record, sentences)


if __name__ == "__main__":
    main()
