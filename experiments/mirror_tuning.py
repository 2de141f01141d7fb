"""Mirror: servo gains, regulator weights, network and arm tuned on random plants, beside LQR.

The beam must stay on its target while its source moves. The controllers know the nominal mirror;
the plants have other masses, resistances and motor constants. Linear feedback is about the nominal
motion and its voltage; the cost is that which the linear-quadratic regulator minimizes about t = 0.
Each kind of law is tuned by itself, and together with the length of the arm.

    python experiments/mirror_tuning.py [--steps 40] [--out results/mirror_tuning]

Writes a figure, `report.md` and `result.json`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim
from contest import Candidate, contest, main, Report, Size, TAIL, Task, Uniform
from jaxtyping import Array, Float
from periodic import interpolated, Periodic

from jaxdae import Multipliers, State
from jaxdae.analysis import lqr
from jaxdae.control import HurwitzGains, NeuralFeedback, ServoConstraint, StateFeedback
from jaxdae.models.mirror import AdaptiveMirror, servo
from jaxdae.plotting import plot_series, save_figure
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate
from jaxdae.tuning import HurwitzPolynomial, Interval, Positive

NOMINAL = AdaptiveMirror()
END, STEP, PERIOD = 2.0, 0.01, 2 * np.pi / NOMINAL.source_rate
# Deviations that count one each, for a second: program [m^2], voltage [V].
OFF, VOLTAGE = 0.02, 5.0
# Of the plants, as parts of the nominal values: mass, resistance, both motor constants.
MASSES, RESISTANCES, MOTORS = (0.8, 1.25), (0.85, 1.15), (0.9, 1.1)
LENGTHS = (0.2, 0.8)  # bounds of the arm's [m]
TURN = 0.05  # largest deviation of the starts [rad]


class Course(eqx.Module):
    """The motion of a design on the program, and its voltage.

    Args:
        states: angle, its rate, torque and its rate.
        voltage: that gives this motion.
        error: of the interpolation, halfway between its samples.
    """

    states: Periodic
    volts: Periodic
    error: Float[Array, ""]

    @classmethod
    def of(cls, design: AdaptiveMirror) -> "Course":
        """By inverse dynamics."""

        def state(t):
            s = design.program_state(t)
            return jnp.concatenate([s.q, s.v, s.w])

        states = interpolated(state, PERIOD)
        volts = interpolated(lambda t: design.program_voltage(t)[None], PERIOD)
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
        off = jax.vmap(trajectory.system.program)(trajectory.ts, trajectory.q, trajectory.v)
        volts = jnp.reshape(trajectory.u, (-1, 1)) - jax.vmap(self.course.volts)(trajectory.ts)
        density = jnp.sum((off / OFF) ** 2 + (volts / VOLTAGE) ** 2, axis=1)
        return jnp.trapezoid(density, trajectory.ts)


RANDOM = {
    "mass": Uniform(*MASSES),
    "resistance": Uniform(*RESISTANCES),
    "torque_constant": Uniform(*MOTORS),
    "back_emf_constant": Uniform(*MOTORS),
    "turn": Uniform(-TURN, TURN),
}


def plant(design: AdaptiveMirror, random) -> AdaptiveMirror:
    """A mirror of a design with mass, resistance and motor of its own."""
    parts = {x: factor * getattr(design, x) for x, factor in random.items() if x != "turn"}
    return dataclasses.replace(design, **parts)


def start(design: AdaptiveMirror, random) -> State:
    """Turned off the program of a design."""
    state = design.program_state(0.0)
    return State(state.q + random["turn"], state.v, state.w)


def task(cost, end: float = END) -> Task:
    """One motion with fixed steps, at a cost."""
    settings = {"t1": end, "dt": STEP, "solver": RK4()}
    return Task(NOMINAL, RANDOM, plant, start, Multipliers(), cost, settings)


class Linear(eqx.Module):
    """A design about its state at t = 0: what the regulator is made of.

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
    def at_start(cls, design: AdaptiveMirror) -> "Linear":
        """By forward differentiation of the rates."""
        course = Course.of(design)

        def rate(x, u):
            q, v, w = x[:1], x[1:2], x[2:]
            d = evaluate(design, 0.0, q, v, w, u)
            a = jnp.linalg.solve(d.mass, d.force)
            return jnp.concatenate([v, a, design.actuator_rate(0.0, q, v, w, u)])

        x, u = course.states(0.0), course.volts(0.0)
        A, B = jax.jacfwd(rate, (0, 1))(x, u)
        (slope,) = jax.grad(lambda q: design.program(0.0, q, x[1:2])[0])(x[:1])
        return cls(A, B, jnp.zeros((4, 4)).at[0, 0].set((slope / OFF) ** 2), course)

    def feedback(self, Q, R) -> StateFeedback:
        """The regulator with given weights, about the moving reference."""
        gain = lqr(self.A, self.B, Q, R).K
        return StateFeedback(gain, self.course.reference, self.course.volts)


R = jnp.eye(1) / VOLTAGE**2
SERVO, WEIGHTS, NETWORK = "servo-constraint", "LQR, weights tuned", "LQR + network"
AND_ARM = ", arm too"


def with_arm(params) -> AdaptiveMirror:
    """The design with an arm of the length among the parameters."""
    return dataclasses.replace(NOMINAL, length=params["length"])


def servo_law(design: AdaptiveMirror, coefficients) -> ServoConstraint:
    """The servo-constraint of a design with given gains."""
    return eqx.tree_at(lambda s: s.stabilizer, servo(design), HurwitzGains(coefficients))


def weighted(model: Linear, params) -> StateFeedback:
    """The regulator of a design with given weights."""
    return model.feedback(jnp.diag(params["Q"]), jnp.diag(params["R"]))


def with_network(model: Linear, network) -> NeuralFeedback:
    """The regulator of a design, and a network."""
    return NeuralFeedback(network, model.course.reference, 1.0, model.feedback(model.Q, R))


def candidates(model: Linear, steps: int) -> list[Candidate]:
    """The regulator, and what is tuned: laws, and laws with the length of the arm."""
    roots = HurwitzPolynomial(servo(NOMINAL).stabilizer.coefficients)
    weights = {"Q": Positive(jnp.diag(model.Q).at[1:].set(1e-1)), "R": Positive(jnp.diag(R))}
    network = eqx.nn.MLP(4, 1, 8, 1, jnp.tanh, key=jax.random.key(3), dtype=model.A.dtype)
    scaled = jnp.array([20.0, 5.0, 1.0, 0.2])
    network = eqx.tree_at(lambda n: n.layers[0].weight, network, replace_fn=lambda w: w * scaled)
    length = {"length": Interval(NOMINAL.length, *LENGTHS)}
    regulator = model.feedback(model.Q, R)
    jointly = [
        (SERVO, {"roots": roots}, lambda d, p: servo_law(d, p["roots"]), 2 * steps, "forward"),
        (WEIGHTS, weights, lambda d, p: weighted(Linear.at_start(d), p), steps, "forward"),
        (
            NETWORK, {"network": network},
            lambda d, p: with_network(Linear.at_start(d), p["network"]), 2 * steps, "reverse",
        ),
    ]  # fmt: skip
    return [
        Candidate("LQR", (), lambda _: regulator),
        Candidate(SERVO, roots, lambda p: servo_law(NOMINAL, p)),
        Candidate(SERVO + ", tuned", roots, lambda p: servo_law(NOMINAL, p), steps),
        Candidate(WEIGHTS, weights, lambda p: weighted(model, p), steps),
        Candidate(NETWORK, network, lambda p: with_network(model, p), 2 * steps, "reverse"),
        Candidate(
            NETWORK + ", for the tail", network, lambda p: with_network(model, p), 2 * steps,
            "reverse", risk=TAIL,
        ),
        *(
            Candidate(
                name + AND_ARM, first | length, lambda p, law=law: law(with_arm(p), p), count,
                mode, with_arm,
            )
            for name, first, law, count, mode in jointly
        ),
    ]  # fmt: skip


def study(steps: int, size: Size, only: Sequence[str] = (), brief: bool = False) -> dict:
    """Tune and judge all candidates, or some by name."""
    model = eqx.filter_jit(Linear.at_start)(NOMINAL)  # one program for hundreds of operations
    chosen = [x for x in candidates(model, steps) if x.name in only or not only]
    found = contest(task(BeamCost(model.course)), chosen, size, brief)
    return {"rows": found.rows, "course": model.course, "runs": found.runs}


TEXT = """
The cost is the integral of f² / (0.02 m²)² + (u - u0(t))² / (5 V)², with the program f and the
voltage u0 of the nominal motion. Plants have masses of 0.8 to 1.25, resistances of 0.85 to 1.15 and
motor constants of 0.9 to 1.1 times the nominal ones; they start up to 0.05 rad off the program. An
arm may be of 0.2 to 0.8 m; the program, the motion on it and the start are then those of that arm,
the cost and u0 the same for all.
"""


def claims(results: dict) -> list[Claim]:
    """What the judgement shows."""
    rows, error = results["rows"], float(results["course"].error)
    first = rows["LQR"]
    ratios = {name: x.mean / first.mean for name, x in rows.items()}
    shown = ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items() if name != "LQR")
    before, after = (rows[x].mean for x in (SERVO, SERVO + ", tuned"))
    fixed, joint = (min(ratios[x + end] for x in (WEIGHTS, NETWORK)) for end in ("", AND_ARM))
    lengths = [float(rows[x + AND_ARM].params["length"]) for x in (WEIGHTS, NETWORK)]
    late = slice(-round(0.5 / STEP), None)
    swing = {
        name: float(np.ptp(np.asarray(results["runs"][name].u).ravel()[late]))
        for name in (NETWORK, WEIGHTS)
    }
    return [
        Claim(f"The motion and its voltage are interpolated to {error:.1e}.", error < 1e-6),
        Claim(
            f"On plants held out, at the regulator's own cost: {shown} of the regulator's mean; "
            f"{sum(x.lost for x in rows.values())} are lost.",
            min(ratios.values()) < 0.95 and not any(x.lost for x in rows.values()),
        ),
        Claim(
            f"Tuning cuts the servo-constraint's cost {before / after:.3g}-fold on those plants.",
            after < before,
        ),
        Claim(
            f"The law and the arm's length together do better than a law alone, {joint:.3g} of the "
            f"regulator's mean where the best law makes {fixed:.3g}: regulator and network ask for "
            f"an arm of {lengths[0]:.3g} and {lengths[1]:.3g} m in place of {NOMINAL.length:g} m, "
            f"near the shortest allowed, {LENGTHS[0]:g} m. A shorter arm is lighter to turn.",
            joint < 0.7 * fixed and LENGTHS[0] < max(lengths) < NOMINAL.length,
        ),
        Claim(
            "A cost is not all there is: on the hardest plant the network ends in a swing, of "
            f"{swing[NETWORK]:.2g} V over the last half second, the tuned weights at rest, "
            f"{swing[WEIGHTS]:.2g} V.",
            swing[NETWORK] > 2 * swing[WEIGHTS],
        ),
    ]


SHOWN = ("LQR", WEIGHTS, NETWORK, WEIGHTS + AND_ARM, NETWORK + AND_ARM)


def draw(results: dict, path: Path) -> None:
    """Program and voltage on the plant that costs the regulator most, of the better half."""
    runs = {name: x for name, x in results["runs"].items() if name in SHOWN}
    ts = runs["LQR"].ts
    off = {
        name: np.asarray(jax.vmap(x.system.program)(ts, x.q, x.v))[:, 0] for name, x in runs.items()
    }
    volts = {name: np.asarray(x.u).ravel() for name, x in runs.items()}
    panels = {"program f [m²]": off, "voltage [V]": volts}
    save_figure(plot_series(ts, panels, title="Mirror, hardest plant"), path)


REPORT = Report("mirror_tuning", "Mirror", TEXT, claims, draw, {"length": "length of the arm [m]"})


if __name__ == "__main__":
    main(__doc__, study, 40, Size(), REPORT)
