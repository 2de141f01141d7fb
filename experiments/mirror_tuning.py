"""Mirror: servo gains, regulator weights and a network tuned on random plants, beside LQR.

The beam must stay on its target while its source moves. The controllers know the nominal mirror;
the plants have other masses, resistances and motor constants. Linear feedback is about the nominal
motion and its voltage; the cost is that which the linear-quadratic regulator minimizes about t = 0.

    python experiments/mirror_tuning.py [--steps 40] [--out results/mirror_tuning]

Writes a figure, `report.md` and `result.json`.
"""

import dataclasses
from pathlib import Path

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, fenced, finish, listed, options
from contest import Candidate, contest, HEADINGS, lines, Plants, recorded
from jaxtyping import Array, Float, PRNGKeyArray
from periodic import interpolated, Periodic

from jaxdae import Multipliers, Positive, simulate, State, Trajectory
from jaxdae.analysis import lqr
from jaxdae.control import HurwitzGains, NeuralFeedback, ServoConstraint, StateFeedback
from jaxdae.models.mirror import AdaptiveMirror, servo
from jaxdae.plotting import plot_series, save_figure
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate
from jaxdae.tables import table
from jaxdae.tuning import HurwitzPolynomial

NOMINAL = AdaptiveMirror()
END, STEP, PERIOD = 2.0, 0.01, 2 * np.pi / NOMINAL.source_rate
# Deviations that count one each, for a second: program [m^2], voltage [V].
OFF, VOLTAGE = 0.02, 5.0
# Of the plants, as parts of the nominal values: mass, resistance, both motor constants.
MASSES, RESISTANCES, MOTORS = (0.8, 1.25), (0.85, 1.15), (0.9, 1.1)
TURN = 0.05  # largest deviation of the starts [rad]


@dataclasses.dataclass(frozen=True)
class Size:
    """How much is simulated.

    Args:
        training: plants to tune on.
        held_out: plants to judge on.
    """

    training: int = 16
    held_out: int = 64


class Course(eqx.Module):
    """The nominal motion on the program, and its voltage.

    Args:
        states: angle, its rate, torque and its rate.
        voltage: that gives this motion.
        error: of the interpolation, halfway between its samples.
    """

    states: Periodic
    volts: Periodic
    error: Float[Array, ""]

    @classmethod
    def nominal(cls) -> "Course":
        """By inverse dynamics."""

        def state(t):
            s = NOMINAL.program_state(t)
            return jnp.concatenate([s.q, s.v, s.w])

        states = interpolated(state, PERIOD)
        volts = interpolated(lambda t: NOMINAL.program_voltage(t)[None], PERIOD)
        return cls(states.function, volts.function, jnp.maximum(states.error, volts.error))

    def reference(self, t) -> State:
        """State at a time."""
        x = self.states(t)
        return State(x[:1], x[1:2], x[2:])


class BeamCost(eqx.Module):
    """Integral of the program's and the voltage's squared deviations, each in its own unit.

    Args:
        course: what is deviated from.
    """

    course: Course

    def __call__(self, trajectory) -> Float[Array, ""]:
        off = jax.vmap(NOMINAL.program)(trajectory.ts, trajectory.q, trajectory.v)
        volts = jnp.reshape(trajectory.u, (-1, 1)) - jax.vmap(self.course.volts)(trajectory.ts)
        density = jnp.sum((off / OFF) ** 2 + (volts / VOLTAGE) ** 2, axis=1)
        return jnp.trapezoid(density, trajectory.ts)


def plants(key: PRNGKeyArray, count: int) -> Plants:
    """Mirrors with random masses, resistances and motors, each turned off its program."""
    keys = jax.random.split(key, 5)

    def pick(key, bounds):
        return jax.random.uniform(key, (count,), float, *bounds)

    def system(mass, resistance, torque, emf):
        return dataclasses.replace(
            NOMINAL,
            mass=mass * NOMINAL.mass,
            resistance=resistance * NOMINAL.resistance,
            torque_constant=torque * NOMINAL.torque_constant,
            back_emf_constant=emf * NOMINAL.back_emf_constant,
        )

    bounds = (MASSES, RESISTANCES, MOTORS, MOTORS)
    systems = jax.vmap(system)(*(pick(k, b) for k, b in zip(keys[:4], bounds, strict=True)))
    systems = jax.tree.map(lambda x: jnp.broadcast_to(x, (count,)), systems)
    start = NOMINAL.program_state(0.0)
    turned = start.q + pick(keys[4], (-TURN, TURN))[:, None]
    rest = (jnp.broadcast_to(x, (count, x.size)) for x in (start.v, start.w))
    return Plants(systems, State(turned, *rest))


def run(system, state, controller, mode="forward") -> Trajectory:
    """One motion with fixed steps; a failure is a value."""
    forward = mode == "forward"
    return simulate(
        system,
        Multipliers(),
        state,
        t1=END,
        dt=STEP,
        solver=RK4(),
        controller=controller,
        adjoint=diffrax.ForwardMode() if forward else diffrax.RecursiveCheckpointAdjoint(),
        throw=False,
    )


class Linear(eqx.Module):
    """The nominal mirror about its state at t = 0: what the regulator is made of.

    Args:
        A: of angle, its rate, torque and its rate, shape (4, 4).
        B: of the voltage, shape (4, 1).
        Q: of the cost of the program, shape (4, 4).
        course: the motion that the feedback is about.
    """

    A: Float[Array, "4 4"]
    B: Float[Array, "4 1"]
    Q: Float[Array, "4 4"]
    course: Course

    @classmethod
    def at_start(cls, course: Course) -> "Linear":
        """By forward differentiation of the rates."""

        def rate(x, u):
            q, v, w = x[:1], x[1:2], x[2:]
            d = evaluate(NOMINAL, 0.0, q, v, w, u)
            a = jnp.linalg.solve(d.mass, d.force)
            return jnp.concatenate([v, a, NOMINAL.actuator_rate(0.0, q, v, w, u)])

        x, u = course.states(0.0), course.volts(0.0)
        A, B = jax.jacfwd(rate, (0, 1))(x, u)
        (slope,) = jax.grad(lambda q: NOMINAL.program(0.0, q, x[1:2])[0])(x[:1])
        return cls(A, B, jnp.zeros((4, 4)).at[0, 0].set((slope / OFF) ** 2), course)

    def feedback(self, Q, R) -> StateFeedback:
        """The regulator with given weights, about the moving reference."""
        gain = lqr(self.A, self.B, Q, R).K
        return StateFeedback(gain, self.course.reference, self.course.volts)


def candidates(model: Linear, steps: int) -> list[Candidate]:
    """The regulator, and what is tuned."""
    course, R = model.course, jnp.eye(1) / VOLTAGE**2
    regulator, law = model.feedback(model.Q, R), servo(NOMINAL)
    roots = HurwitzPolynomial(law.stabilizer.coefficients)
    weights = {"Q": Positive(jnp.diag(model.Q).at[1:].set(1e-1)), "R": Positive(jnp.diag(R))}
    network = eqx.nn.MLP(4, 1, 8, 1, jnp.tanh, key=jax.random.key(3), dtype=regulator.K.dtype)
    scaled = jnp.array([20.0, 5.0, 1.0, 0.2])
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, replace_fn=lambda w: w * scaled)

    def with_gains(coefficients) -> ServoConstraint:
        return eqx.tree_at(lambda s: s.stabilizer, law, HurwitzGains(coefficients))

    return [
        Candidate("LQR", (), lambda _: regulator),
        Candidate("servo-constraint", roots, with_gains),
        Candidate("servo-constraint, tuned", roots, with_gains, steps),
        Candidate(
            "LQR, weights tuned",
            weights,
            lambda p: model.feedback(jnp.diag(p["Q"]), jnp.diag(p["R"])),
            steps,
        ),
        Candidate(
            "LQR + network",
            network,
            lambda p: NeuralFeedback(p, course.reference, 1.0, regulator),
            2 * steps,
            "reverse",
        ),
    ]


def study(steps: int, size: Size) -> dict:
    """Tune and judge all candidates."""
    course = Course.nominal()
    training, held_out = (
        plants(jax.random.key(seed), count)
        for seed, count in enumerate((size.training, size.held_out))
    )
    chosen = candidates(Linear.at_start(course), steps)
    rows = contest(chosen, run, BeamCost(course), training, held_out)
    hardest = int(np.nanargmax(rows["LQR"].held_out))
    plant = jax.tree.map(lambda x: x[hardest], held_out)
    runs = {x.name: run(plant.systems, plant.states, x.build(rows[x.name].params)) for x in chosen}
    return {"rows": rows, "course": course, "runs": runs}


TEXT = """
The cost is the integral of f² / (0.02 m²)² + (u - u0(t))² / (5 V)², with the program f and the
voltage u0 of the nominal motion. Plants have masses of 0.8 to 1.25, resistances of 0.85 to 1.15 and
motor constants of 0.9 to 1.1 times the nominal ones; they start up to 0.05 rad off the program.
"""


def claims(results: dict) -> list[Claim]:
    """What the judgement shows."""
    rows, error = results["rows"], float(results["course"].error)
    first = rows["LQR"]
    ratios = {name: x.mean / first.mean for name, x in rows.items()}
    shown = ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items() if name != "LQR")
    before, after = (rows[x].mean for x in ("servo-constraint", "servo-constraint, tuned"))
    best = min(ratios.values())
    late = slice(-round(0.5 / STEP), None)
    swing = {
        name: float(np.ptp(np.asarray(x.u).ravel()[late])) for name, x in results["runs"].items()
    }
    return [
        Claim(f"The motion and its voltage are interpolated to {error:.1e}.", error < 1e-6),
        Claim(
            f"On plants held out, at the regulator's own cost: {shown} of the regulator's mean; "
            f"{sum(x.lost for x in rows.values())} are lost.",
            best < 0.95 and not any(x.lost for x in rows.values()),
        ),
        Claim(
            f"Tuning cuts the servo-constraint's cost {before / after:.3g}-fold on those plants.",
            after < before,
        ),
        Claim(
            "A cost is not all there is: on the hardest plant the network ends in a swing, of "
            f"{swing['LQR + network']:.2g} V over the last half second, the tuned weights at rest, "
            f"{swing['LQR, weights tuned']:.2g} V.",
            swing["LQR + network"] > 2 * swing["LQR, weights tuned"],
        ),
    ]


def draw(results: dict, path: Path) -> None:
    """Program and voltage on the plant that costs the regulator most."""
    runs = results["runs"]
    ts = runs["LQR"].ts
    off = {
        name: np.asarray(jax.vmap(NOMINAL.program)(ts, x.q, x.v))[:, 0] for name, x in runs.items()
    }
    volts = {name: np.asarray(x.u).ravel() for name, x in runs.items()}
    panels = {"program f [m²]": off, "voltage [V]": volts}
    save_figure(plot_series(ts, panels, title="Mirror, hardest plant"), path)


def main() -> None:
    """Run the study and write what it found."""
    chosen = options(__doc__, "results/mirror_tuning", steps=(40, "steps of the optimizer"))
    size = Size()
    results = study(chosen.steps, size)
    sentences = claims(results)
    text = "\n".join(
        [
            f"# Mirror: tuned on {size.training} plants, judged on {size.held_out} others",
            *("", *fenced(table(HEADINGS, lines(results["rows"]))), TEXT, listed(sentences)),
        ]
    )
    draw(results, chosen.out / "hardest.png")
    finish(chosen.out, text, recorded(results["rows"]), sentences)


if __name__ == "__main__":
    main()
