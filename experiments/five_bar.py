"""Five-bar on a path: PD, regulator and network tuned on random plants, beside the regulator.

The controllers know the nominal five-bar; the plants carry other loads, and have other masses and
bearings. Each controller adds its feedback to inputs by inverse dynamics of the nominal one. The
cost is that which the linear-quadratic regulator minimizes about the middle of the path.

    python experiments/five_bar.py [--steps 40] [--out results/five_bar]

Writes figures, `report.md` and `result.json`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim
from contest import Candidate, contest, main, Report, Size, Task, Uniform
from jaxtyping import Array, Float
from periodic import interpolated, Periodic

from jaxdae import Baumgarte, Multipliers, State
from jaxdae.analysis import equilibrium, linearize, lqr
from jaxdae.control import Feedforward, MotionReference, NeuralFeedback, PD, StateFeedback
from jaxdae.models.five_bar import CrankError, EllipticPath, FiveBar
from jaxdae.plotting import save_figure
from jaxdae.plotting.style import colors, new_axes
from jaxdae.solvers import RK4
from jaxdae.tuning import Positive

NOMINAL, PATH = FiveBar(), EllipticPath()
FORMULATION = Multipliers(Baumgarte.critical(20.0))
STEP, PERIOD = 0.01, PATH.period
CRANKS = ("left crank", "right crank")
# Deviations that count one each, for a second: tip [m], torque [N m].
TIP, TORQUE = 0.005, 1.0
# Of the plants, about the nominal one: masses, load [kg], friction [N m s/rad].
MASSES, LOADS, FRICTION = (0.85, 1.15), (0.1, 0.8), (0.02, 0.15)
# Largest deviations of the starts from the path, of the cranks [rad], [rad/s].
OFF, SPEED = 0.05, 0.5


class Course(eqx.Module):
    """What the nominal five-bar does on its path.

    Args:
        motion: its coordinates.
        torques: that give it this motion.
        weight: that carry it at rest, each place of the path by itself.
        error: of the interpolation, halfway between its samples [rad, N m].
    """

    motion: Periodic
    torques: Periodic
    weight: Periodic

    error: Float[Array, ""]

    @classmethod
    def nominal(cls) -> "Course":
        """By inverse kinematics and dynamics."""
        motion = NOMINAL.motion(PATH)
        laws = (motion, Feedforward(NOMINAL, motion, 2), Feedforward(NOMINAL, motion, 2, True))
        motion, torques, weight = (interpolated(jax.jit(x), PERIOD) for x in laws)
        error = jnp.stack([motion.error, torques.error, weight.error]).max()
        return cls(motion.function, torques.function, weight.function, error)


class PathCost(eqx.Module):
    """Integral of the tip's and the torques' squared deviations, each in its own unit.

    Args:
        course: what is deviated from.
    """

    course: Course

    def __call__(self, trajectory) -> Float[Array, ""]:
        tips = jax.vmap(trajectory.system.tip)(trajectory.q) - jax.vmap(PATH)(trajectory.ts)
        torques = trajectory.u - jax.vmap(self.course.torques)(trajectory.ts)
        density = jnp.sum((tips / TIP) ** 2, axis=1) + jnp.sum((torques / TORQUE) ** 2, axis=1)
        return jnp.trapezoid(density, trajectory.ts)


RANDOM = {
    "masses": Uniform(*MASSES, (4,)),
    "load": Uniform(*LOADS),
    "friction": Uniform(*FRICTION),
    "turn": Uniform(-OFF, OFF, (2,)),
    "speed": Uniform(-SPEED, SPEED, (2,)),
}


def plant(design: FiveBar, random) -> FiveBar:
    """A five-bar of a design with masses, load and friction of its own."""
    heavier = {
        x: tuple(random["masses"] * jnp.asarray(getattr(design, x))) for x in ("masses", "inertias")
    }
    return dataclasses.replace(
        design, tip_mass=random["load"], friction=random["friction"], **heavier
    )


def start(design: FiveBar, random) -> State:
    """Beside the path of a design."""
    q, v = design.start()
    turned, faster = q[::2] + random["turn"], v[::2] + random["speed"]
    return State(*jax.jvp(design.at_cranks, (turned,), (faster,)))


def task(cost) -> Task:
    """One period with fixed steps, at a cost."""
    settings = {"t1": PERIOD, "dt": STEP, "solver": RK4()}
    return Task(NOMINAL, RANDOM, plant, start, FORMULATION, cost, settings)


class Linear(eqx.Module):
    """The nominal five-bar about the middle of its path, in the cranks' angles.

    Args:
        A: of the angles and their rates, shape (4, 4).
        B: of the torques, shape (4, 2).
        Q: of the cost of the tip's place, shape (4, 4).
        course: the motion that the feedback is about.
    """

    A: Float[Array, "4 4"]
    B: Float[Array, "4 2"]
    Q: Float[Array, "4 4"]
    course: Course

    @classmethod
    def about_the_middle(cls, course: Course) -> "Linear":
        """By linearization at rest."""
        middle = NOMINAL.at_tip(jnp.asarray(PATH.centre))
        rest = equilibrium(NOMINAL, middle, u=jnp.zeros(2), free_controls=True, fixed=CRANKS)
        model = linearize(NOMINAL, rest, independent=CRANKS)
        tip_by_cranks = jax.jacfwd(lambda x: NOMINAL.tip(NOMINAL.at_cranks(x)))(rest.q[::2])
        Q = jnp.zeros((4, 4)).at[:2, :2].set(tip_by_cranks.T @ tip_by_cranks / TIP**2)
        return cls(model.A[:4, :4], model.B[:4], Q, course)

    def feedback(self, Q, R) -> StateFeedback:
        """The regulator with given weights, about the moving reference."""
        gain = lqr(self.A, self.B, Q, R).K
        full = jnp.zeros((2, 8), gain.dtype).at[:, jnp.array([0, 2, 4, 6])].set(gain)
        return StateFeedback(full, MotionReference(self.course.motion), self.course.torques)


def candidates(model: Linear, steps: int) -> list[Candidate]:
    """The regulator, and what is tuned."""
    course, R = model.course, jnp.eye(2) / TORQUE**2
    regulator = model.feedback(model.Q, R)
    gain = regulator.K
    # The regulator's own gains, as far as a diagonal law has them.
    proportional, derivative = jnp.diag(gain[:, :4:2]), jnp.diag(gain[:, 4::2])
    gains = {"K_P": Positive(proportional), "K_D": Positive(derivative)}
    weights = {
        "Q": Positive(jnp.diag(model.Q).at[2:].set(1.0)),
        "R": Positive(jnp.diag(R)),
    }
    network = eqx.nn.MLP(8, 2, 8, 1, jnp.tanh, key=jax.random.key(2), dtype=gain.dtype)

    def pd(forward):
        return lambda p: PD(CrankError(course.motion), p["K_P"], p["K_D"], forward)

    return [
        Candidate("LQR", (), lambda _: regulator),
        Candidate("PD, gravity compensation", gains, pd(course.weight), steps),
        Candidate("PD, inverse dynamics", gains, pd(course.torques), steps),
        Candidate(
            "LQR, weights tuned",
            weights,
            lambda p: model.feedback(jnp.diag(p["Q"]), jnp.diag(p["R"])),
            steps,
        ),
        Candidate(
            "LQR + network",
            network,
            lambda p: NeuralFeedback(p, MotionReference(course.motion), 1.0, regulator),
            2 * steps,
            "reverse",
        ),
    ]


def study(steps: int, size: Size, only: Sequence[str] = (), brief: bool = False) -> dict:
    """Tune and judge all candidates, or some by name."""
    course = Course.nominal()
    chosen = candidates(Linear.about_the_middle(course), steps)
    chosen = [x for x in chosen if x.name in only or not only]
    found = contest(task(PathCost(course)), chosen, size, brief)
    return {"rows": found.rows, "course": course, "runs": found.runs}


TEXT = """
The cost is the integral of |tip - path|² / (5 mm)² + |u - u0(t)|² / (1 N m)², with the torques u0
of the nominal five-bar by inverse dynamics. Plants have a load of 0.1 to 0.8 kg where the nominal
one has 0.3 kg, masses up to 15 % off, friction of 0.02 to 0.15 N m s/rad instead of 0.05; they
start up to 0.05 rad and 0.5 rad/s beside the path. The regulator is the best linear law for the
nominal five-bar in the middle of the path, not for other loads: the weight of a load it does not
know pulls the tip off, and it pays to hold against it with more gain.
"""


def claims(results: dict) -> list[Claim]:
    """What the judgement shows."""
    rows, error = results["rows"], float(results["course"].error)
    first, *others = rows.values()
    ratios = {x.name: x.mean / first.mean for x in others}
    network = rows["LQR + network"]
    seen = np.mean(network.training) / np.mean(first.training)
    unseen = ratios["LQR + network"]
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    better = [int((x.held_out < first.held_out).sum()) for x in others]
    count = first.held_out.size
    return [
        Claim(
            f"The path and its torques are interpolated to {error:.1e}.",
            error < 1e-9,
        ),
        Claim(
            "On plants held out every tuned controller beats the regulator at the regulator's own "
            f"cost: {shown} of its mean, each on at least {min(better)} of {count} plants, and "
            "nothing is lost.",
            max(ratios.values()) < 0.9
            and min(better) > 0.7 * count
            and not any(x.lost for x in rows.values()),
        ),
        Claim(
            "The network does the best. It has not learnt its plants by heart: its mean is "
            f"{seen:.2f} of the regulator's on the plants it was tuned on, {unseen:.2f} on others.",
            unseen == min(ratios.values()) and unseen < 1.15 * seen,
        ),
    ]


def draw(results: dict, path: Path) -> None:
    """Path and error of the tip on the plant that costs the regulator most."""
    runs = results["runs"]
    figure, ((plane, error),) = new_axes(1, 2, title="Five-bar, hardest plant", sharex=False)
    ts = np.asarray(next(iter(runs.values())).ts)
    wanted = np.asarray(jax.vmap(PATH)(ts))
    plane.plot(*wanted.T, color="black", linestyle="--", label="wanted")
    for (name, one), color in zip(runs.items(), colors(len(runs)), strict=True):
        tip = np.asarray(jax.vmap(one.system.tip)(one.q))
        plane.plot(*tip.T, color=color, label=name)
        error.plot(ts, 1e3 * np.linalg.norm(tip - wanted, axis=1), color=color)
    plane.set(xlabel="x [m]", ylabel="y [m]", aspect="equal")
    plane.legend(fontsize="small")
    error.set(xlabel="t [s]", ylabel="error of the tip [mm]")
    save_figure(figure, path)


REPORT = Report("five_bar", "Five-bar", TEXT, claims, draw)


if __name__ == "__main__":
    main(__doc__, study, 40, Size(), REPORT)
