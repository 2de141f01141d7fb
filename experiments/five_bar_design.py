"""Five-bar: link lengths and gains of its PD law tuned together on random plants, by one gradient.

The links are bars of given material: longer ones are heavier. Their tip must follow the path, under
loads, masses and friction that the controller does not know, with little torque. Tuned are the
gains, the lengths, and both, beside the regulator of the first lengths; all are judged on other
plants. The gradient of both is checked three ways.

    python experiments/five_bar_design.py [--steps 40] [--out results/five_bar_design]

Writes a figure, `report.md` and `result.json`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim
from contest import Candidate, contest, main, objective, Report, Row, Size, Task
from five_bar import Course, draw, Linear, NOMINAL, PATH, PERIOD, task, TIP, TORQUE
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from periodic import interpolated

from jaxdae import Trajectory
from jaxdae.control import Feedforward, PD
from jaxdae.models.five_bar import CrankError, FiveBar
from jaxdae.tuning import Positive

FIRST_GAINS = (60.0, 6.0)
FIRST, BOTH = "PD, first lengths and gains", "lengths and gains"


def built(lengths: Float[Array, " 4"]) -> FiveBar:
    """The five-bar with links of other lengths, of the same material and shape."""
    parts = lengths / jnp.asarray(NOMINAL.lengths)
    return dataclasses.replace(
        NOMINAL,
        lengths=lengths,
        masses=parts * jnp.asarray(NOMINAL.masses),
        inertias=parts**3 * jnp.asarray(NOMINAL.inertias),
    )


def law(params) -> PD:
    """PD control of the cranks about the motion of a design, with its inverse dynamics."""
    system = built(params["lengths"])
    exact = system.motion(PATH)
    motion = interpolated(exact, PERIOD).function
    forward = interpolated(Feedforward(system, exact, 2), PERIOD).function
    return PD(CrankError(motion), params["K_P"], params["K_D"], forward)


class DesignCost(eqx.Module):
    """The cost of a period: error of the tip, and torque.

        integral of  |tip - path|^2 / (5 mm)^2 + |u|^2 / (1 N m)^2  dt

    All of the torque counts, not its deviation from what a design needs: a design that needs less
    is better.
    """

    def __call__(self, trajectory: Trajectory) -> Float[Array, ""]:
        system: Any = trajectory.system
        off = jax.vmap(system.tip)(trajectory.q) - jax.vmap(PATH)(trajectory.ts)
        density = jnp.sum((off / TIP) ** 2 + (trajectory.u / TORQUE) ** 2, axis=1)
        return jnp.trapezoid(density, trajectory.ts)


def first_params() -> dict[str, Array]:
    """The nominal lengths, and gains for all of them."""
    lengths, (K_P, K_D) = jnp.asarray(NOMINAL.lengths), FIRST_GAINS
    return {"lengths": lengths, "K_P": jnp.full(2, K_P), "K_D": jnp.full(2, K_D)}


def candidate(name: str, tuned: Sequence[str], steps: int) -> Candidate:
    """The PD law and its five-bar, of which some numbers are tuned and the others are the first."""
    first = first_params()

    def all_of(params):
        return first | params

    return Candidate(
        name,
        {x: Positive(first[x]) for x in tuned},
        lambda p: law(all_of(p)),
        steps if tuned else 0,
        design=lambda p: built(all_of(p)["lengths"]),
    )


def regulator() -> Candidate:
    """That of `five_bar`."""
    model = Linear.about_the_middle(Course.nominal())
    feedback = model.feedback(model.Q, jnp.eye(2) / TORQUE**2)
    return Candidate("LQR, first lengths", (), lambda _: feedback)


def candidates(steps: int) -> list[Candidate]:
    """The first PD law, and what is tuned of it."""
    return [
        candidate(FIRST, (), 0),
        candidate("gains", ("K_P", "K_D"), steps),
        candidate("lengths", ("lengths",), steps),
        candidate(BOTH, ("lengths", "K_P", "K_D"), steps),
    ]


def design_task() -> Task:
    """One period on the path."""
    return task(DesignCost())


def gradients(count: int) -> dict[str, np.ndarray]:
    """By forward mode, by reverse mode, and by differences of fourth order, of the logarithms.

    Args:
        count: of plants.
    """
    x, unravel = ravel_pytree(jax.tree.map(jnp.log, first_params()))
    both, plants = candidate(BOTH, tuple(first_params()), 1), design_task()
    drawn = plants.plants(jax.random.key(2), count)

    def of_logarithms(mode):
        aim = objective(plants, both._replace(mode=mode), drawn)
        return lambda x: aim(jax.tree.map(jnp.exp, unravel(x)))

    value, h = jax.jit(of_logarithms("forward")), 1e-3
    weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    steps = jnp.eye(x.size) * h
    differences = [sum(c * value(x + k * e) for k, c in weights.items()) / h for e in steps]
    return {
        "forward": np.asarray(jax.jit(jax.jacfwd(of_logarithms("forward")))(x)),
        "reverse": np.asarray(jax.jit(jax.grad(of_logarithms("reverse")))(x)),
        "differences": np.array(differences),
    }


def study(steps: int, size: Size, only: Sequence[str] = (), brief: bool = False) -> dict:
    """Tune the gains, the lengths, and both; judge on other plants."""
    chosen = [x for x in candidates(steps) if x.name in only]
    chosen = chosen or [regulator(), *candidates(steps)]
    found = contest(design_task(), chosen, size, brief)
    sines = {name: sine(first_params() | dict(x.params)) for name, x in found.rows.items()}
    slopes = {} if brief else gradients(3)
    return {"rows": found.rows, "runs": found.runs, "sines": sines, "gradients": slopes}


def sine(params) -> float:
    """Least sine along the path of the angles at which links meet; zero at a singular position."""
    system = built(params["lengths"])
    q = jax.jit(jax.vmap(system.motion(PATH).__call__))(jnp.linspace(0, PERIOD, 101))
    return float(jnp.abs(jnp.stack([*system.sines(q)])).min())


TEXT = """
The cost is the integral of |tip - path|² / (5 mm)² + |u|² / (1 N m)²; plants and starts are those
of `five_bar.py`, of every design. The regulator is that of `five_bar.py`, which was made for
deviations from the torques that the path needs, for links of the first lengths.
"""


def claims(results: dict) -> list[Claim]:
    """What the numbers show."""
    rows, slopes, sines = results["rows"], results["gradients"], results["sines"]
    size = np.abs(slopes["forward"]).max()
    off = {
        name: float(np.abs(slopes[name] - slopes["forward"]).max() / size)
        for name in ("reverse", "differences")
    }
    cost = {name: row.mean for name, row in rows.items()}
    return [
        Claim(
            "The gradient by lengths and gains is one: forward and reverse mode agree to "
            f"{off['reverse']:.1e} of its largest entry, differences to {off['differences']:.1e}.",
            off["reverse"] < 1e-10 and off["differences"] < 1e-6,
        ),
        Claim(
            "On plants held out, of those that are not lost, the mean cost goes from "
            f"{cost[FIRST]:.3g} to "
            f"{cost['gains']:.3g} by the gains, to {cost['lengths']:.3g} by the lengths, and to "
            f"{cost[BOTH]:.3g} by both; that of the regulator is "
            f"{cost['LQR, first lengths']:.3g}. {_tails(rows)}",
            cost[BOTH] < min(cost["gains"], cost["lengths"]) < cost[FIRST]
            and rows[FIRST].lost == 0,
        ),
        Claim(
            "Short links are light, and end near the edge of their reach: the least sine between "
            f"two of them along the path falls from {sines[FIRST]:.2f} to {sines[BOTH]:.2f}. The "
            "cost does not ask for a distance from singular positions, and plants that no tuning "
            "saw may be lost there: a user should ask for one.",
            0 < sines[BOTH] < sines[FIRST],
        ),
    ]


def _tails(rows: dict[str, Row]) -> str:
    first, both = rows[FIRST], rows[BOTH]
    return (
        f"The worst quarter falls from {first.tail:.3g} to {both.tail:.3g}, the worst plant from "
        f"{first.worst:.3g} to {both.worst:.3g}. Lost, by cases, are "
        f"{', '.join(f'{name} {x.lost}' for name, x in rows.items())}."
    )


WORDS = {"lengths": "lengths [m]", "K_P": "K_P", "K_D": "K_D"}
REPORT = Report(
    "five_bar_design", "Five-bar, lengths and gains", TEXT, claims, draw, WORDS, ("gradients",)
)


if __name__ == "__main__":
    main(__doc__, study, 40, Size(8, 32), REPORT)
