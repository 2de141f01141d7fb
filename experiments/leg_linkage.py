"""Leg linkage: lengths and pivots of a walking leg, by gradients through the closing of its loops.

A crank turns an arm that is pinned to a lower rocker; the leg hangs on the arm and on an upper
rocker (the arrangement of Joe Klann, US patent 6 260 862). The foot is to stay on the ground at
constant speed for half a turn, and to be lifted and brought back in the other half. Sixteen numbers
are fitted by Levenberg-Marquardt: coordinates at equal crank angles close both loops, one place
after the other along the turn, and their derivatives are those of the implicit function theorem.
Where a loop comes near to a singular position it costs; where it does not close there is no step.

    python experiments/leg_linkage.py [--starts 48] [--steps 80] [--out results/leg_linkage]

Writes a figure, `report.md` and `result.json`.
"""

import dataclasses
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import block, Claim, finish, listed, options
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from leg_drawing import compared

import jaxdae
from jaxdae import Baumgarte, Multipliers
from jaxdae.multibody import (
    assemble,
    AssemblyError,
    Body,
    Connection,
    Hinge,
    Multibody,
    PrescribedJoint,
)
from jaxdae.plotting import save_figure
from jaxdae.solvers import RK4
from jaxdae.tuning import LeastSquares, Positive, resolve

ANGLES, FINE = 24, 144  # of a turn: those that are fitted, and those that are examined
STRIDE, LIFT = 0.4, 0.1  # of the foot [m]
SPEED = 2 * np.pi  # of the crank [rad/s]
AXIS = (0.0, -1.0, 0.0)
DENSITY = 1.0  # of bars [kg/m]
# Deviations that count one, along the path and across: on the ground and in the air [m].
GROUND, AIR = (2e-3, 1e-3), (20e-3, 10e-3)
# Sine between two links of a loop below which it costs, and by how much it costs one.
LEAST_SINE, SINE = 0.4, 0.05
# The same of pins above the ground [m].
LEAST_HEIGHT, HEIGHT = 0.15, 0.02
CLOSED, ITERATIONS = 1e-12, 8  # of residuals of loops [m], by Newton


class Leg(eqx.Module):
    """A leg as sixteen numbers, in the plane x, z; places of pivots are relative to the axle.

    Args:
        crank: length [m].
        arm: from the crank's pin to that of the lower rocker [m].
        knee: pin of the leg on the arm, in the frame of the arm [m].
        lower: length of the lower rocker [m].
        lower_pivot: of the lower rocker [m].
        hip: from the knee to the pin of the upper rocker [m].
        upper: length of the upper rocker [m].
        upper_pivot: of the upper rocker [m].
        foot: in the frame of the leg [m].
        axle: of the crank, relative to the middle of the path on the ground [m].
        phase: of the crank where the foot is put on the ground [rad].
    """

    crank: Any
    arm: Any
    knee: Any
    lower: Any
    lower_pivot: Any
    hip: Any
    upper: Any
    upper_pivot: Any
    foot: Any
    axle: Any
    phase: Any

    def mechanism(self) -> Multibody:
        """Uniform bars on hinges, both loops closed by pins."""

        def bar(name, length, place, parent=None):
            mass = DENSITY * length
            inertia = mass * length**2 / 12 * jnp.array([0.0, 1.0, 1.0])
            centre = _along(length / 2)
            return Body(name, Hinge(name, AXIS), parent, _at(place), (1, 0, 0, 0), mass, centre,
                        inertia)  # fmt: skip

        return Multibody(
            [
                bar("crank", self.crank, self.axle),
                bar("arm", self.arm, jnp.stack([self.crank, jnp.zeros(())]), "crank"),
                bar("leg", self.hip, self.knee, "arm"),
                bar("lower", self.lower, self.axle + self.lower_pivot),
                bar("upper", self.upper, self.axle + self.upper_pivot),
            ],
            [
                Connection("pin", "arm", "lower", _along(self.arm), _along(self.lower), "xz"),
                Connection("hip", "leg", "upper", _along(self.hip), _along(self.upper), "xz"),
            ],
        )


def _at(place):
    """A place of the plane in space."""
    return jnp.stack([place[0], jnp.zeros_like(place[0]), place[1]])


def _along(length):
    """The end of a bar in its own frame."""
    return jnp.stack([length, *jnp.zeros((2,))])


def first() -> Leg:
    """The best of many drawn at random, rounded; parametrizations keep lengths positive."""
    places = {
        "knee": (0.405, 0.132),
        "lower_pivot": (-0.28, -0.014),
        "upper_pivot": (-0.156, 0.312),
        "foot": (0.504, -0.481),
        "axle": (0.24, 0.46),
        "phase": 6.02,
    }
    lengths = {"crank": 0.1, "arm": 0.345, "lower": 0.29, "hip": 0.345, "upper": 0.327}
    return Leg(
        **{name: Positive(x) for name, x in lengths.items()},
        **{name: jnp.asarray(x) for name, x in places.items()},
    )


# Where the first leg is closed at its phase, from which the loops of all legs are closed.
GUESS = (2.56, -2.69, 1.03, -0.9)


def wanted(angle) -> Float[Array, " 2"]:
    """The foot's path, from the crank's angle past its phase [rad] to a place [m].

    Backwards at constant speed on the ground; then a lift of `sin^2`, with the same velocity at
    both ends.
    """
    s = jnp.mod(angle, 2 * jnp.pi) / jnp.pi
    air = s - 1
    back = STRIDE * (air - 0.5 - jnp.sin(2 * jnp.pi * air) / jnp.pi)
    on_ground = jnp.stack([STRIDE * (0.5 - s), 0.0 * s])
    return jnp.where(s < 1, on_ground, jnp.stack([back, LIFT * jnp.sin(jnp.pi * air) ** 2]))


def closed(leg: Leg, angle, guess: Float[Array, " 4"]) -> Float[Array, " 4"]:
    """Coordinates of the other bodies that close both loops; NaN where Newton finds none.

    The last step, with its matrix held, has the derivatives of the implicit function theorem.
    """

    def residuals(x, leg):
        return leg.mechanism().position_constraints(0.0, jnp.concatenate([angle[None], x]))

    held = jax.lax.stop_gradient
    fixed, slopes = held(leg), jax.jacfwd(residuals)

    def newton(_, x):
        return x - jnp.linalg.solve(slopes(x, fixed), residuals(x, fixed))

    x = held(jax.lax.fori_loop(0, ITERATIONS, newton, held(guess)))
    left = residuals(x, leg)
    x = x - jnp.linalg.solve(slopes(x, fixed), left)
    return jnp.where(jnp.abs(left).max() < CLOSED, x, jnp.nan)


class Turn(NamedTuple):
    """A leg along a turn of its crank, axes of places first.

    Args:
        q: coordinates [rad], shape (places, 5).
        foot: [m], shape (places, 2).
        sines: between arm and lower rocker, and between leg and upper rocker, with the sign of the
            first leg; zero in singular positions, shape (places, 2).
        heights: of both pivots of rockers, the knee and the hip [m], shape (places, 4).
    """

    q: Float[Array, "places 5"]
    foot: Float[Array, "places 2"]
    sines: Float[Array, "places 2"]
    heights: Float[Array, "places 4"]


def turn(leg: Leg, places: int = ANGLES, count: int | None = None) -> Turn:
    """Close the loops at equal angles, each from the two places before.

    Args:
        leg: its numbers, resolved.
        places: of a turn.
        count: how many of them; all by default.
    """

    def place(before, at):
        angle, is_first = at
        last, change = before
        x = closed(leg, angle, last + change)
        q = jnp.concatenate([angle[None], x])
        arm = angle + x[0]
        sines = jnp.sin(jnp.stack([arm - x[2], arm + x[1] - x[3]]))
        poses = leg.mechanism().poses(q)
        hip = poses["leg"].point(_along(leg.hip))[2]
        heights = jnp.stack([*(poses[name].place[2] for name in ("lower", "upper", "leg")), hip])
        change = jnp.where(is_first, 0.0, x - last)
        return (x, change), Turn(q, foot_of(leg, q), sines, heights)

    numbers = jnp.arange(count or places)
    at = (leg.phase + 2 * jnp.pi / places * numbers, numbers == 0)
    return jax.lax.scan(place, (jnp.array(GUESS), jnp.zeros(4)), at)[1]


def residuals(leg: Leg) -> Float[Array, " r"]:
    """Way off the path in units of what counts one, sines and heights that are too small."""
    found, angles = turn(leg), 2 * np.pi / ANGLES * np.arange(ANGLES)
    off = found.foot - jax.vmap(wanted)(angles)
    units = jnp.where(on_ground(angles)[:, None], jnp.array(GROUND), jnp.array(AIR))
    folded = jnp.maximum(LEAST_SINE - found.sines, 0.0) / SINE
    low = jnp.maximum(LEAST_HEIGHT - found.heights, 0.0) / HEIGHT
    parts = [(off / units).ravel(), folded.ravel(), low.ravel()]
    return jnp.concatenate(parts) / np.sqrt(ANGLES)


class Examined(NamedTuple):
    """What a leg does, at many places of its turn.

    Args:
        turn: the places; a last one ends the turn.
        ripple: largest height and depth of the foot on the ground [m].
        speed: largest deviation of its speed on the ground, relative to the one wanted.
        lift: largest height of the foot [m].
        sine: least one of both loops.
        height: least one of pins [m].
        reopened: largest difference of coordinates after the turn [rad].
    """

    turn: Turn
    ripple: float
    speed: float
    lift: float
    sine: float
    height: float
    reopened: float


def on_ground(angles) -> np.ndarray:
    """Which angles past the phase count as ground: but for the ends of its half of the turn."""
    return np.abs(np.asarray(angles) - np.pi / 2) < 0.42 * np.pi + 1e-9


def examined(leg: Leg) -> Examined:
    """A leg that closes all round.

    Raises:
        AssemblyError: naming the loop that does not close, by how much, and at which angle.
    """
    found = jax.tree.map(np.asarray, _fine(leg))
    angles = np.arange(FINE) * 2 * np.pi / FINE
    good = np.isfinite(found.q).all(axis=1)
    if not good.all():
        _refuse(leg, found, int(np.argmin(good)))
    foot, ground = found.foot[:-1], on_ground(angles)
    rate = np.fft.ifft(1j * np.fft.fftfreq(FINE, 1 / FINE) * np.fft.fft(foot[:, 0])).real
    turned = found.q[-1] - found.q[0]
    turned[:2] -= 2 * np.pi * np.array([1, -1])  # the arm's angle is relative to the crank's
    return Examined(
        found,
        float(np.abs(foot[ground, 1]).max()),
        float(np.abs(rate[ground] * np.pi / STRIDE + 1).max()),
        float(foot[:, 1].max()),
        float(found.sines.min()),
        float(found.heights.min()),
        float(np.abs(turned).max()),
    )


@jax.jit
def _fine(leg: Leg) -> Turn:
    return turn(leg, FINE, FINE + 1)


def _refuse(leg: Leg, found: Turn, place: int) -> None:
    """Say which loop is open where Newton's method closed none, or a few places further."""
    last = found.q[place - 1] if place else np.array([0.0, *GUESS])
    for k in range(place, place + 4):
        q = jnp.asarray(last).at[0].set(leg.phase + k * 2 * jnp.pi / FINE)
        try:
            assemble(leg.mechanism(), q, fixed="crank")
        except AssemblyError as error:
            text = f"{k * 360 / FINE:g} degrees past its phase, {error}"
            raise AssemblyError(text) from None
    raise AssemblyError(
        f"{place * 360 / FINE:g} degrees past its phase the loops close, but not next to where "
        "they were: there is a singular position between. Begin with a shorter crank."
    )


def driven(leg: Leg, t1: float) -> jaxdae.Trajectory:
    """The leg's mechanism as it moves, its crank at constant speed from the phase on."""
    system = leg.mechanism()
    turned = PrescribedJoint("drive", "crank", Steady(leg.phase))
    system = dataclasses.replace(system, loops=(*system.loops, turned))
    q = jnp.concatenate([leg.phase[None], closed(leg, leg.phase, jnp.array(GUESS))])
    jac = jax.jacfwd(lambda q: leg.mechanism().position_constraints(0.0, q))(q)
    v = SPEED * jnp.concatenate([jnp.ones(1), -jnp.linalg.solve(jac[:, 1:], jac[:, 0])])
    gains = Multipliers(Baumgarte.critical(20.0))
    start, adjoint = jaxdae.State(q, v), diffrax.ForwardMode()
    options = {"dt": 0.005, "solver": RK4(), "adjoint": adjoint, "throw": False}
    return jaxdae.simulate(system, gains, start, t1=t1, **options)


class Steady(eqx.Module):
    """An angle at constant speed.

    Args:
        phase: angle at the start [rad].
    """

    phase: Any

    def __call__(self, t):
        return self.phase + SPEED * t


def foot_of(leg: Leg, q) -> Float[Array, " 2"]:
    """Place of the foot in the plane [m]."""
    return leg.mechanism().poses(q)["leg"].point(_at(leg.foot))[jnp.array([0, 2])]


def gradients(leg: Leg) -> dict[str, float]:
    """Of the foot's place after a sixth of a turn by all sixteen numbers, three ways.

    Returns:
        Largest differences to the derivatives by implicit functions, relative to the largest
        derivative: of central differences, and of a simulation with its derivatives.
    """
    flat, unravel = ravel_pytree(leg)
    count = ANGLES // 6

    def by_assembly(x):
        return turn(unravel(x), ANGLES, count + 1).foot[-1]

    def by_simulation(x):
        leg = unravel(x)
        return foot_of(leg, driven(leg, 2 * np.pi / SPEED * count / ANGLES).q[-1])

    h = 1e-5
    implicit = jax.jit(jax.jacfwd(by_assembly))(flat)
    beside = jax.jit(jax.vmap(by_assembly))(flat + h * jnp.concatenate([jnp.eye(16), -jnp.eye(16)]))
    differences = (beside[:16] - beside[16:]).T / (2 * h)
    simulated = jax.jit(jax.jacfwd(by_simulation))(flat)
    size = np.abs(implicit).max()
    return {
        "differences": float(np.abs(differences - implicit).max() / size),
        "simulation": float(np.abs(simulated - implicit).max() / size),
    }


def fitted(starts: int, steps: int) -> jaxdae.tuning.TuningResult:
    """The best of several starts, the first of them the first leg."""
    return jaxdae.tune(
        LeastSquares(residuals),
        first(),
        steps=steps,
        starts=starts,
        spread=0.12,
        key=jax.random.key(1),
    )


def refusal(leg: Leg) -> str:
    """What is said of a leg whose upper rocker is out of reach."""
    away = leg.upper_pivot + jnp.array([0.0, 1.0])
    try:
        examined(eqx.tree_at(lambda x: x.upper_pivot, leg, away))
    except AssemblyError as error:
        return str(error)
    return ""


def study(starts: int, steps: int) -> dict:
    """Fit the leg; examine the first and the last; compare derivatives."""
    found = fitted(starts, steps)
    losses = np.asarray(found.histories.loss)
    ends = np.nanmin(np.where(np.isfinite(losses), losses, np.nan), axis=0)
    before = resolve(first())
    return {
        "legs": {"first": before, "fitted": found.params},
        "examined": {"first": examined(before), "fitted": examined(found.params)},
        "loss": (float(losses[0, 0]), found.loss),
        "ends": ends,
        "refused": int(np.asarray(found.histories.skipped).sum()),
        "gradients": gradients(before),
        "refusal": refusal(before),
    }


def claims(results: dict) -> list[Claim]:
    """What the numbers show."""
    before, after = results["examined"]["first"], results["examined"]["fitted"]
    loss, off, ends = results["loss"], results["gradients"], results["ends"]
    single = ends[0]
    return [
        Claim(
            f"From the first leg to the fitted one the loss falls from {loss[0]:.1f} to "
            f"{loss[1]:.2f}. On the ground the foot leaves its height by up to "
            f"{1e3 * after.ripple:.1f} mm instead of {1e3 * before.ripple:.1f}, its speed deviates "
            f"by up to {100 * after.speed:.0f} % instead of {100 * before.speed:.0f} %; it is "
            f"lifted by {1e3 * after.lift:.0f} mm instead of {1e3 * before.lift:.0f} of "
            f"{1e3 * LIFT:.0f} that are wanted.",
            after.ripple < 0.3 * before.ripple
            and after.speed < before.speed
            and abs(after.lift - LIFT) < 0.2 * LIFT,
        ),
        Claim(
            "Both loops close all round and come back to where they were, to "
            f"{after.reopened:.1e} rad. Their least sine is {after.sine:.2f}, of the first leg "
            f"{before.sine:.2f}: below {LEAST_SINE} it costs. All pins stay {after.height:.2f} m "
            "above the ground.",
            after.reopened < 1e-9
            and after.sine > 0.8 * LEAST_SINE
            and after.height > 0.8 * LEAST_HEIGHT,
        ),
        Claim(
            "Derivatives by the implicit functions are those of central differences to "
            f"{off['differences']:.1e} of the largest, and those of a simulation of the driven "
            f"mechanism to {off['simulation']:.1e}.",
            off["differences"] < 1e-7 and off["simulation"] < 1e-6,
        ),
        Claim(
            f"There are several minima: of {len(ends)} starts the best ends at {ends.min():.2f}, "
            f"the first leg at {single:.2f}, and {int((ends < 2 * ends.min()).sum())} within twice "
            f"the best. {results['refused']} steps had no finite loss, where a loop did not close, "
            "and were not made.",
            ends.min() < 0.9 * single,
        ),
        Claim(
            f"The first leg with the upper pivot a metre higher is refused: {results['refusal']}",
            "loop 'pin'" in results["refusal"] or "loop 'hip'" in results["refusal"],
        ),
    ]


def numbers(leg: Leg) -> dict[str, list[float] | float]:
    """Of a leg, by name."""
    return {name: np.asarray(x).tolist() for name, x in vars(leg).items()}


def main() -> None:
    """Run the study and write what it found."""
    chosen = options(
        __doc__, "results/leg_linkage", starts=(48, "of the fit"), steps=(80, "of each start")
    )
    results = study(chosen.starts, chosen.steps)
    sentences = claims(results)
    rows = [
        [name, f"{1e3 * x.ripple:.2f}", f"{100 * x.speed:.1f}", f"{1e3 * x.lift:.1f}",
         f"{x.sine:.3f}"]
        for name, x in results["examined"].items()
    ]  # fmt: skip
    text = "\n".join(
        [
            "# Leg linkage along a foot's path",
            "",
            *block("Before and after", HEADINGS, rows),
            listed(sentences),
        ]
    )
    record = {name: numbers(leg) for name, leg in results["legs"].items()}
    save_figure(compared(results, wanted), chosen.out / "legs.png")
    finish(chosen.out, text, record | {"gradients": results["gradients"]}, sentences)


HEADINGS = ("leg", "off the ground [mm]", "off its speed [%]", "lift [mm]", "least sine")


if __name__ == "__main__":
    main()
