"""Ball and beam: PD, weights, network and rig tuned on random plants, beside the regulator.

The controllers know the nominal rig. The plants have other balls, supplies, resistances and
friction; the voltage that carries the ball is then off, and no law here has an integral. The cost
is the regulator's own, with what the rest of the motion would cost it in the end. Two of the laws
are also tuned together with the rig: the wheel's lever and the ratio of the motor's gear.

    python experiments/ball_beam_controllers.py [--steps 30] [--out results/ball_beam_controllers]

Writes a figure, `report.md` and `result.json`.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from ball_beam_tuning import FORMULATION, off_rest, RegulationCost, RIG, ROWS
from claims import Claim
from contest import Candidate, contest, costs, main, Report, Size, Task, Uniform
from jaxtyping import Array, Float

from jaxdae import State
from jaxdae.analysis import lqr, RegulatorFeedback
from jaxdae.control import NeuralFeedback
from jaxdae.models.ball_beam import (
    BallBeam,
    linear_regulator,
    LinearRegulator,
    SimplifiedBallBeam,
)
from jaxdae.plotting import plot_series, save_figure
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate
from jaxdae.tuning import Interval, Positive

END, STEP, RIG_STEP = 3.0, 3e-3, 1.5e-4
CASCADE, WEIGHTS, NETWORK = "cascaded PD", "LQR, weights tuned", "LQR + network"
AND_RIG = ", rig too"
FOR_WORST = WEIGHTS + AND_RIG + ", for the worst"
# Of the design: the lever [m], the ratio of the gear, and the gears' own inertia [kg m^2].
LEVERS, RATIOS, RATIO, GEARS = (0.0127, 0.0381), (35.0, 140.0), 70.0, 5.28e-5
SPREAD = 1.0  # of the starts, in units of `off_rest`
# Of the plants: mass of the ball [kg], and parts of supply, resistance and friction.
BALLS, SUPPLIES, RESISTANCES, FRICTION = (0.04, 0.1), (0.85, 1.15), (0.85, 1.15), (0.5, 2.0)


RANDOM = {
    "ball": Uniform(*BALLS),
    "supply": Uniform(*SUPPLIES),
    "resistance": Uniform(*RESISTANCES),
    "friction": Uniform(*FRICTION),
    "off": Uniform(-SPREAD, SPREAD, (3,)),
}


def plant(design: BallBeam, random, slower: float = 20.0) -> BallBeam:
    """A rig of a design with ball, supply, resistance and friction of its own.

    The current is twenty times slower than the rig's, as in `ball_beam_tuning`.
    """
    ball = random["ball"]
    return dataclasses.replace(
        design,
        inductance=slower * design.inductance,
        ball_mass=ball,
        ball_inertia=0.4 * ball * design.ball_radius**2,
        supply_gain=random["supply"],
        resistance=random["resistance"] * design.resistance,
        wheel_damping=random["friction"] * design.wheel_damping,
    )


def start(design: BallBeam, random) -> State:
    """Off the rest of a design."""
    return off_rest(design, random["off"])


def task(cost, end: float = END) -> Task:
    """One motion with fixed steps, at a cost."""
    return Task(RIG, RANDOM, plant, start, FORMULATION, cost, _settings(end, STEP))


def with_own_inductance(task: Task) -> Task:
    """The same with the rig's own inductance, which asks for shorter steps."""
    settings = _settings(task.settings["t1"], RIG_STEP)
    return task._replace(plant=partial(plant, slower=1.0), settings=settings)


def _settings(end: float, step: float) -> dict[str, Any]:
    saveat = diffrax.SaveAt(ts=jnp.linspace(0, end, round(ROWS * end) + 1))
    return {"t1": end, "dt": step, "solver": RK4(), "saveat": saveat}


class OnBeam(eqx.Module):
    """A cost that is NaN where the ball leaves the beam.

    Args:
        cost: of the motions that stay.
    """

    cost: RegulationCost

    def __call__(self, trajectory) -> Float[Array, ""]:
        ball = trajectory.q[:, 0]
        stays = jnp.all((ball > 0) & (ball < RIG.beam_length))
        return jnp.where(stays, self.cost(trajectory), jnp.nan)


class Cascade(eqx.Module):
    """PD control of the ball by a wanted angle of the wheel, and PD control of the wheel.

        theta_0 = p (r - r0) + d r',        u = u0 + K_P (theta_0 - theta) - K_D theta'

    Args:
        p: [rad/m].
        d: [rad s/m].
        K_P: [V/rad].
        K_D: [V s/rad].
        voltage: u0 [V], shape (1,).
    """

    p: Float[Array, ""]
    d: Float[Array, ""]
    K_P: Float[Array, ""]
    K_D: Float[Array, ""]
    voltage: Float[Array, " 1"]

    def __call__(self, t, q, v, w) -> Float[Array, " 1"]:
        del t, w
        wanted = self.p * (q[0] - RIG.rest_position) + self.d * v[0]
        return self.voltage + self.K_P * (wanted - q[2]) - self.K_D * v[2]


class Design(NamedTuple):
    """What is chosen of the rig beside its law.

    Args:
        lever: radius of the wheel at the rod's joint [m].
        ratio: of the gear between motor and wheel.
    """

    lever: Any
    ratio: Any

    @property
    def rig(self) -> BallBeam:
        """The rig with this lever and gear; the inertia of the rotor counts by the ratio's square.

        The gears' own inertia stays, and so do friction and efficiency.
        """
        part = self.ratio / RATIO
        rotor = RIG.wheel_inertia - GEARS
        return dataclasses.replace(
            RIG,
            wheel_radius=self.lever,
            torque_constant=part * RIG.torque_constant,
            emf_constant=part * RIG.emf_constant,
            wheel_inertia=GEARS + part**2 * rotor,
        )


def designed(params) -> BallBeam:
    """The rig that parameters choose."""
    return Design(params["lever"], params["ratio"]).rig


def regulator(rig: BallBeam, Q, R) -> RegulatorFeedback:
    """The regulator with given weights, from the linear model of a rig.

    By derivatives at the rest, which is known: `linearize` would look for it in every evaluation.
    """
    model = SimplifiedBallBeam(**vars(rig))
    rest, u = model.rest(), model.rest_voltage()[None]

    def rate(x, u):
        q, v, w = jnp.split(x, (2, 4))
        d = evaluate(model, 0.0, q, v, w, u)
        a = jnp.linalg.solve(d.mass, d.force)
        return jnp.concatenate([v, a, model.actuator_rate(0.0, q, v, w, u)])

    A, B = jax.jacfwd(rate, (0, 1))(jnp.concatenate([rest.q, rest.v, rest.w]), u)
    return RegulatorFeedback(lqr(A, B, Q, R).K, rig.start()[0], rest.w, u, (0, 2))


def candidates(nominal: LinearRegulator, steps: int) -> list[Candidate]:
    """The regulator, and what is tuned, from the regulator on: laws, and laws with a design."""
    first, (gains,) = nominal.feedback, nominal.feedback.K
    # The regulator's own gains but that of the current.
    law = {
        "p": Positive(-gains[0] / gains[1]),
        "d": Positive(-gains[2] / gains[1]),
        "K_P": Positive(gains[1]),
        "K_D": Positive(gains[3]),
    }
    # A little on the rates and the current, so that all weights can be tuned by ratios.
    weights = {
        "Q": Positive(jnp.maximum(jnp.diag(nominal.Q), jnp.array([0.0, 0.0, 1.0, 1e-2, 1e-2]))),
        "R": Positive(jnp.diag(nominal.R)),
    }
    design = {
        "lever": Interval(RIG.wheel_radius, *LEVERS),
        "ratio": Interval(RATIO, *RATIOS),
    }
    network = eqx.nn.MLP(7, 1, 8, 1, jnp.tanh, key=jax.random.key(5), dtype=gains.dtype)
    scaled = jnp.array([10.0, 1.0, 1.0, 5.0, 1.0, 1.0, 0.1])
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, replace_fn=lambda w: w * scaled)

    def cascade(rig, p) -> Cascade:
        return Cascade(*(p[x] for x in law), voltage=rig.rest_voltage()[None])

    def weighted(rig, p) -> RegulatorFeedback:
        return regulator(rig, jnp.diag(p["Q"]), jnp.diag(p["R"]))

    def with_network(p) -> NeuralFeedback:
        return NeuralFeedback(p, RIG.rest(), 1.0, first)

    return [
        Candidate("LQR", (), lambda _: first),
        Candidate(CASCADE, law, partial(cascade, RIG), steps),
        Candidate(WEIGHTS, weights, partial(weighted, RIG), steps),
        Candidate(NETWORK, network, with_network, 2 * steps, "reverse"),
        Candidate(
            CASCADE + AND_RIG, law | design, lambda p: cascade(designed(p), p), steps,
            design=designed,
        ),
        Candidate(
            WEIGHTS + AND_RIG, weights | design, lambda p: weighted(designed(p), p), steps,
            design=designed,
        ),
        Candidate(
            FOR_WORST, weights | design,
            lambda p: weighted(designed(p), p), steps, design=designed, risk="worst",
        ),
    ]  # fmt: skip


def study(steps: int, size: Size, only: Sequence[str] = (), brief: bool = False) -> dict:
    """Tune and judge all candidates; judge the regulator and the best on the rig's inductance."""
    nominal = linear_regulator(RIG)
    cost = OnBeam(RegulationCost(nominal.feedback, nominal.Q, nominal.R, nominal.P))
    chosen = [x for x in candidates(nominal, steps) if x.name in only or not only]
    found = contest(task(cost), chosen, size, brief)
    rows = found.rows
    best = min(chosen, key=lambda x: (rows[x.name].lost, rows[x.name].mean))
    stiff = with_own_inductance(task(cost))
    own = (
        {}
        if brief
        else {
            x.name: costs(stiff, x, rows[x.name].params, found.held_out) for x in (chosen[0], best)
        }
    )
    return {"rows": rows, "runs": found.runs, "own": own}


TEXT = """
The cost is that which the regulator minimizes, with one for a ball 5 cm off, a wheel turned by
1 rad and a voltage off by 1 V. The nominal ball has 64 g, the plants' 40 to 100 g; supply and
resistance are up to 15 % off, friction is half to twice. Starts have the ball up to 10 cm and
0.2 m/s off, the wheel up to 0.5 rad. A ball off the beam is lost. The lever may be of 12.7 to
38.1 mm, the gear's ratio of 35 to 140; the voltage counts from that of the first rig's rest.
"""


def claims(results: dict) -> list[Claim]:
    """What the judgement shows."""
    rows, own = results["rows"], results["own"]
    first, *others = rows.values()
    ratios = {x.name: x.mean / first.mean for x in others}
    shown = ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    (_, regulator), (name, tuned) = own.items()
    network, joint, worst = (rows[x] for x in (NETWORK, WEIGHTS + AND_RIG, FOR_WORST))
    better = int((network.held_out < first.held_out).sum())
    chosen = Design(*(float(joint.params[x]) for x in ("lever", "ratio")))
    return [
        Claim(
            f"On plants held out, at the regulator's own cost: {shown} of the regulator's mean; "
            f"lost are {', '.join(str(x.lost) for x in rows.values())}.",
            min(ratios.values()) < 1 and all(x.lost <= first.lost for x in others),
        ),
        Claim(
            "The regulator is hard to beat at its own cost: other balls and supplies hardly change "
            f"which linear law is best, so that its weights, tuned, make {ratios[WEIGHTS]:.3f} of "
            f"its mean. The network can do what no linear law does: {ratios[NETWORK]:.3f} of the "
            f"mean, better on {better} of {network.held_out.size} plants.",
            abs(ratios[WEIGHTS] - 1) < 0.1
            and ratios[NETWORK] < min(1.0, ratios[WEIGHTS])
            and better > 0.7 * network.held_out.size,
        ),
        Claim(
            f"The rig matters more than the law: with a lever of {1e3 * chosen.lever:.3g} mm in "
            f"place of {1e3 * RIG.wheel_radius:.3g} and a gear of {chosen.ratio:.3g} in place of "
            f"{RATIO:g}, tuned with the weights, the mean is {ratios[joint.name]:.3f}, the worst "
            f"quarter {joint.tail / first.tail:.3f} and the worst plant "
            f"{joint.worst / first.worst:.3f} of the regulator's.",
            ratios[joint.name] < 0.9 * min(ratios[WEIGHTS], ratios[NETWORK])
            and joint.tail < first.tail
            and joint.worst < first.worst,
        ),
        Claim(
            f"Tuned for the worst of {worst.training.size} plants, that is "
            f"{worst.training.max():.4g} in place of {joint.training.max():.4g}; of other plants "
            f"the worst is {worst.worst:.4g} in place of {joint.worst:.4g}.",
            bool(worst.training.max() < joint.training.max()),
        ),
        Claim(
            f"With the rig's own inductance, twenty times less than tuned with, {name} costs "
            f"{np.nanmean(tuned) / np.nanmean(regulator):.3f} of the regulator.",
            bool(np.nanmean(tuned) < np.nanmean(regulator)),
        ),
    ]


SHOWN = ("LQR", WEIGHTS, NETWORK, WEIGHTS + AND_RIG, FOR_WORST)


def draw(results: dict, path: Path) -> None:
    """The ball's place on the plant that costs the regulator most; PD runs as the weights do."""
    runs = {name: x for name, x in results["runs"].items() if name in SHOWN}
    ts = np.asarray(runs["LQR"].ts)
    curves = {name: np.asarray(x.q[:, 0]) for name, x in runs.items()}
    curves["rest"] = np.full_like(ts, RIG.rest_position)
    volts = {name: np.asarray(x.u[:, 0]) for name, x in runs.items()}
    title = "Ball and beam, hardest plant"
    save_figure(plot_series(ts, {"ball r [m]": curves, "voltage [V]": volts}, title=title), path)


REPORT = Report(
    "ball_beam_controllers",
    "Ball and beam",
    TEXT,
    claims,
    draw,
    {"lever": "lever [m]", "ratio": "gear ratio"},
    ("own",),
)


if __name__ == "__main__":
    main(__doc__, study, 30, Size(held_out=48), REPORT)
