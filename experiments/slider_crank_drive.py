"""Slider-crank drive: flywheel and speed controller tuned together, against a design by hand.

A direct-current motor turns the crank of a pump through a gear. The piston is pushed against a
pressure on its way out alone, so that the load on the crank comes in pulses; after a second it
doubles. A flywheel smooths the speed and weighs something; a PI controller holds the speed and
makes current of its ripple. The mass of the flywheel and both gains are tuned by
L-BFGS through the simulation of the closed loop. By hand the flywheel is that of the
textbook's coefficient of fluctuation, and the gains place two poles.

    python experiments/slider_crank_drive.py [--steps 30] [--out results/slider_crank_drive]

Writes a figure, `report.md` and `result.json`.
"""

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from claims import block, Claim, finish, listed, options
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

import jaxdae
from jaxdae.control import AbstractDynamicController
from jaxdae.multibody import (
    Body,
    Connection,
    ElectricMotor,
    Hinge,
    Load,
    Multibody,
    Slide,
    UserForce,
    Wrench,
)
from jaxdae.plotting import save_figure
from jaxdae.plotting.style import new_axes, PALETTE, QUIET
from jaxdae.solvers import RK4
from jaxdae.tuning import Positive

CRANK, ROD, PISTON = 0.05, 0.2, 1.0  # lengths [m], mass [kg]
RADIUS = 0.2  # of the flywheel, a disc [m]
PRESSURE, SMOOTH = 100.0, 0.05  # force [N], and speed at which it is there [m/s]
LOADED, T1, DT, ROWS = 1.0, 3.0, 0.002, 301  # times [s]
SPEED = 20.0  # wanted [rad/s]
RESISTANCE, INDUCTANCE, CONSTANT, GEAR, ROTOR = 0.5, 2e-3, 0.1, 5.0, 1e-3
BEARINGS = 0.02  # [N m s/rad]
# What counts one: deviation of the speed [rad/s], current [A], mass [kg].
DEVIATION, CURRENT, MASS = 0.4, 4.0, 40.0
WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the mass
CHOSEN = 1.0
FLUCTUATION, POLES = 0.04, 5.0  # by hand: of the speed, and both poles [rad/s]


class Drive(eqx.Module):
    """What is designed.

    Args:
        flywheel: mass [kg].
        K_P: gain of the controller [V s/rad].
        K_I: of its integral [V/rad].
    """

    flywheel: Any
    K_P: Any
    K_I: Any

    @property
    def inertia(self):
        """Of the flywheel, and of the rotor on the side of the crank [kg m^2]."""
        return self.flywheel * RADIUS**2 / 2 + GEAR**2 * ROTOR

    def mechanism(self) -> Multibody:
        """Crank with flywheel, rod and piston; the loop is closed by the piston's pin."""
        disc = self.flywheel * RADIUS**2 / 4 * jnp.array([1.0, 2.0, 1.0])
        down = (0.0, -1.0, 0.0)
        rotor = GEAR**2 * ROTOR
        shaft = Hinge("crank", down, damping=BEARINGS, armature=rotor)
        return Multibody(
            [
                Body("flywheel", shaft, mass=self.flywheel, inertia=disc),
                Body("rod", Hinge("rod", down), "flywheel", (CRANK, 0, 0), mass=0.3,
                     centre=(ROD / 2, 0, 0), inertia=(0, 1e-3, 1e-3)),
                Body("piston", Slide("piston"), None, (CRANK + ROD, 0, 0), mass=PISTON),
            ],
            [Connection("pin", "rod", "piston", (ROD, 0, 0), axes="xz")],
            motors=[ElectricMotor("voltage", "crank", RESISTANCE, INDUCTANCE, CONSTANT,
                                  gear=GEAR)],
            forces=[UserForce("pressure", pressure)],
        )  # fmt: skip

    def controller(self) -> "SpeedControl":
        """The controller with these gains."""
        return SpeedControl(self.K_P, self.K_I)


def force(t, speed):
    """On the piston [N]: against its way out, twice as much from the time of the step on."""
    share = 1.0 + 0.5 * (1 + jnp.tanh((t - LOADED) / 0.01))
    return -PRESSURE * share * 0.5 * (1 + jnp.tanh(speed / SMOOTH))


def pressure(t, motion, w, u):
    """The force on the piston as a load."""
    del w, u
    along = force(t, motion.speeds["piston"][0])
    zero = jnp.zeros_like(along)
    return Load({"piston": Wrench(jnp.stack([along, zero, zero]), jnp.zeros(3))})


def steady_current() -> float:
    """Mean current before the step: work of the load and the bearings at constant speed [A]."""
    torque = PRESSURE * 2 * CRANK / (2 * np.pi) + BEARINGS * SPEED
    return torque / (GEAR * CONSTANT)


class SpeedControl(AbstractDynamicController):
    """`u = u0 + K_P e + K_I c`, `c' = e`, of the error `e` of the speed.

    Args:
        K_P: [V s/rad].
        K_I: [V/rad].
    """

    K_P: Any
    K_I: Any

    def initial(self, t, state):
        return jnp.zeros(1, state.q.dtype)

    def rate(self, t, q, v, w, c):
        return (SPEED - v[0])[None]

    def output(self, t, q, v, w, c):
        steady = CONSTANT * GEAR * SPEED + RESISTANCE * steady_current()
        return (steady + self.K_P * (SPEED - v[0]) + self.K_I * c[0])[None]


def driven(drive: Drive, rows: int = ROWS, **settings) -> jaxdae.Trajectory:
    """The closed loop from its speed on, crank at the outer dead centre."""
    q, v = jnp.zeros(3), SPEED * jnp.array([1.0, -1 - CRANK / ROD, 0.0])
    return jaxdae.simulate(
        drive.mechanism(),
        jaxdae.Multipliers(jaxdae.Baumgarte.critical(50.0)),
        jaxdae.State(q, v, jnp.array([steady_current()])),
        t1=T1,
        dt=DT,
        solver=RK4(),
        saveat=diffrax.SaveAt(ts=jnp.linspace(0, T1, rows)),
        controller=drive.controller(),
        throw=False,
        **settings,
    )


class Aim(eqx.Module):
    """Means of squares of the speed's deviation and of the current, and the mass.

    Args:
        weight: of the mass.
    """

    weight: Any

    def __call__(self, drive: Drive) -> Float[Array, ""]:
        return self.of(driven(drive), drive)

    def of(self, run: jaxdae.Trajectory, drive: Drive) -> Float[Array, ""]:
        """The same of a run."""
        speed, current = (run.v[:, 0] - SPEED) / DEVIATION, run.w[:, 0] / CURRENT
        return jnp.mean(speed**2) + jnp.mean(current**2) + self.weight * drive.flywheel / MASS


def by_hand() -> Drive:
    """The textbook's flywheel, and gains that place both poles of the loop without inductance.

    The flywheel stores the largest difference of energies `E` between load and mean torque at
    constant speed, `I = E / (delta omega^2)`; of `I omega' = k (u - k omega) / R` with
    `u = -K_P omega - K_I phi` the poles are those of `s^2 + (k^2 + k K_P) / (I R) s + k K_I / (I
    R)`.
    """
    inertia = stored_energy() / (FLUCTUATION * SPEED**2)
    k = CONSTANT * GEAR
    flywheel = (inertia - GEAR**2 * ROTOR) * 2 / RADIUS**2
    K_P = 2 * POLES * inertia * RESISTANCE / k - k
    return Drive(flywheel, K_P, POLES**2 * inertia * RESISTANCE / k)


def stored_energy() -> float:
    """Largest difference of the work of load and mean torque in a turn, after the step [J]."""
    angle = np.linspace(0, 2 * np.pi, 3601)
    lean = np.sqrt(ROD**2 - (CRANK * np.sin(angle)) ** 2)
    slope = -CRANK * np.sin(angle) * (1 + CRANK * np.cos(angle) / lean)
    torque = np.asarray(force(2 * LOADED, slope * SPEED)) * slope
    work = np.concatenate([[0.0], np.cumsum((torque[1:] + torque[:-1]) / 2)]) * angle[1]
    return float(np.ptp(work - work[-1] * angle / (2 * np.pi)))


class Measured(NamedTuple):
    """A drive along a run.

    Args:
        mass: of the flywheel [kg].
        deviation: root mean square of the speed's [rad/s].
        fluctuation: largest less smallest speed in the last turn, relative to the wanted one.
        dip: largest fall of the speed after the step [rad/s].
        current: root mean square [A].
        heat: mean power of the winding [W].
        cost: the objective at the chosen weight.
    """

    mass: float
    deviation: float
    fluctuation: float
    dip: float
    current: float
    heat: float
    cost: float


def measured(drive: Drive) -> Measured:
    """Speed and current of a drive."""
    run = driven(drive)
    speed, current, ts = (np.asarray(x) for x in (run.v[:, 0], run.w[:, 0], run.ts))
    last = speed[ts > T1 - 2 * np.pi / SPEED]
    return Measured(
        float(drive.flywheel),
        float(np.sqrt(np.mean((speed - SPEED) ** 2))),
        float(np.ptp(last) / SPEED),
        float(SPEED - speed[ts > LOADED].min()),
        float(np.sqrt(np.mean(current**2))),
        float(RESISTANCE * np.mean(current**2)),
        float(Aim(CHOSEN).of(run, drive)),
    )


def tuned(weight: float, steps: int) -> jaxdae.tuning.TuningResult:
    """The drive with the least objective for a weight of the mass, from the one by hand."""
    first, aim = jax.tree.map(Positive, by_hand()), Aim(jnp.asarray(weight))
    return jaxdae.tune(aim, first, optimizer="l-bfgs", steps=steps)


def gradients(drive: Drive) -> dict[str, np.ndarray]:
    """Of the objective by the logarithms of all three numbers, three ways."""
    flat, unravel = ravel_pytree(jax.tree.map(jnp.log, drive))

    @jax.jit
    def cost(x):
        return Aim(CHOSEN)(jax.tree.map(jnp.exp, unravel(x)))

    h = 1e-4 * np.eye(3)
    return {
        "forward": np.asarray(jax.jit(jax.jacfwd(cost))(flat)),
        "reverse": np.asarray(jax.jit(jax.grad(cost))(flat)),
        "differences": np.array([(cost(flat + x) - cost(flat - x)) / 2e-4 for x in h]),
    }


def power_balance(drive: Drive) -> float:
    """Electrical work less all that becomes of it, relative to it.

    It is heat of the winding and of the bearings, energy of the field and of the mechanism, and
    work against the load.
    """
    run = driven(drive, 3001)
    ts, v, i = (np.asarray(x) for x in (run.ts, run.v, run.w[:, 0]))
    piston = np.asarray(jax.vmap(force)(run.ts, run.v[:, 2])) * v[:, 2]
    power = np.asarray(run.u)[:, 0] * i
    used = RESISTANCE * i**2 + BEARINGS * v[:, 0] ** 2 - piston
    kept = np.asarray(run.energy) + INDUCTANCE * i**2 / 2
    work, lost = (np.trapezoid(x, ts) for x in (power, used))
    return float(abs(work - lost - kept[-1] + kept[0]) / work)


def study(steps: int, weights=WEIGHTS) -> dict:
    """Tune for each weight of the mass; measure; compare gradients."""
    hand = jax.tree.map(jnp.asarray, by_hand())
    found = {weight: tuned(weight, steps) for weight in weights}
    best = found[CHOSEN].params
    return {
        "drives": {"by hand": hand, "tuned": best},
        "measured": {"by hand": measured(hand), "tuned": measured(best)},
        "front": {weight: measured(x.params) for weight, x in found.items()},
        "ending": found[CHOSEN].ending,
        "gradients": gradients(hand),
        "slope": gradients(best)["forward"],
        "balance": power_balance(best),
    }


def claims(results: dict) -> list[Claim]:
    """What the numbers show."""
    hand, best = results["measured"]["by hand"], results["measured"]["tuned"]
    slopes, front = results["gradients"], results["front"]
    size = np.abs(slopes["forward"]).max()
    off = {x: float(np.abs(slopes[x] - slopes["forward"]).max() / size) for x in slopes}
    left = float(np.abs(results["slope"]).max() / size)
    masses = [front[x].mass for x in sorted(front)]
    deviations = [front[x].deviation for x in sorted(front)]
    drive = results["drives"]["tuned"]
    return [
        Claim(
            "The gradient by flywheel and gains is one: reverse mode agrees with forward mode to "
            f"{off['reverse']:.1e} of its largest entry, central differences to "
            f"{off['differences']:.1e}. At the tuned drive it is {left:.1e} of that by hand.",
            off["reverse"] < 1e-9 and off["differences"] < 1e-6 and left < 1e-3,
        ),
        Claim(
            f"The objective falls from {hand.cost:.3f} by hand to {best.cost:.3f}: the flywheel "
            f"goes from {hand.mass:.1f} to {best.mass:.1f} kg, the gains to {drive.K_P:.2f} "
            f"V s/rad and {drive.K_I:.1f} V/rad. The speed deviates by {best.deviation:.3f} "
            f"instead of {hand.deviation:.3f} rad/s (rms), the winding takes {best.heat:.1f} "
            f"instead of {hand.heat:.1f} W.",
            best.cost < 0.95 * hand.cost,
        ),
        Claim(
            "A larger weight of the mass gives a lighter flywheel and a larger deviation of the "
            f"speed, from {masses[0]:.1f} kg and {deviations[0]:.3f} rad/s to {masses[-1]:.1f} kg "
            f"and {deviations[-1]:.3f} rad/s.",
            bool(np.all(np.diff(masses) < 0) and np.all(np.diff(deviations) > 0)),
        ),
        Claim(
            "Electrical work becomes heat, stored energy and work against the load, to "
            f"{results['balance']:.1e} of it.",
            results["balance"] < 1e-4,
        ),
    ]


HEADINGS = (
    "drive", "flywheel [kg]", "rms deviation [rad/s]", "fluctuation [%]", "dip [rad/s]",
    "rms current [A]", "heat [W]", "objective",
)  # fmt: skip


def rows(measures: dict[Any, Measured]) -> list[list]:
    """Of a table."""
    return [
        [name, f"{x.mass:.2f}", f"{x.deviation:.3f}", f"{100 * x.fluctuation:.2f}",
         f"{x.dip:.2f}", f"{x.current:.2f}", f"{x.heat:.1f}", f"{x.cost:.3f}"]
        for name, x in measures.items()
    ]  # fmt: skip


def drawn(results: dict):
    """Speed and current by hand and tuned, and the front of masses and deviations."""
    figure, axes = new_axes(1, 3, title="Slider-crank drive", sharex=False)
    figure.set_size_inches(14, 4.5)
    for color, (name, drive) in zip(PALETTE, results["drives"].items(), strict=False):
        run = driven(drive)
        label = f"{name}: {float(drive.flywheel):.1f} kg"
        axes[0, 0].plot(run.ts, run.v[:, 0], color=color, label=label)
        axes[0, 1].plot(run.ts, run.w[:, 0], color=color, label=name)
        one = results["measured"][name]
        label = f"{name}: {one.heat:.1f} W of heat"
        axes[0, 2].plot(one.mass, one.deviation, "o", color=color, label=label, zorder=3)
    front = [results["front"][x] for x in sorted(results["front"])]
    masses, deviations = ([getattr(x, y) for x in front] for y in ("mass", "deviation"))
    axes[0, 2].plot(masses, deviations, ".-", color=QUIET, label="tuned, by weight of the mass")
    for weight, x in zip(sorted(results["front"]), front, strict=True):
        place = (x.mass, x.deviation)
        axes[0, 2].annotate(f"{weight:g}", place, xytext=(5, 5), textcoords="offset points")
    words = ("speed of the crank [rad/s]", "current [A]")
    for ax, word in zip(axes[0], words, strict=False):
        ax.set(xlabel="time [s]", ylabel=word)
        ax.axvline(LOADED, color=QUIET, linestyle=":")
    axes[0, 0].axhline(SPEED, color="black", linewidth=0.8, linestyle="--")
    axes[0, 2].set(xlabel="mass of the flywheel [kg]", ylabel="rms deviation [rad/s]")
    for ax in axes[0]:
        ax.legend(fontsize="small")
    return figure


def main() -> None:
    """Run the study and write what it found."""
    chosen = options(__doc__, "results/slider_crank_drive", steps=(30, "of each weight"))
    results = study(chosen.steps)
    sentences = claims(results)
    text = "\n".join(
        [
            "# Slider-crank drive",
            "",
            *block("By hand and tuned", HEADINGS, rows(results["measured"])),
            *block("By weight of the mass", HEADINGS, rows(results["front"])),
            listed(sentences),
        ]
    )
    save_figure(drawn(results), chosen.out / "drive.png")
    record = {
        "drives": {
            name: {key: float(x) for key, x in vars(drive).items()}
            for name, drive in results["drives"].items()
        },
        "front": {str(weight): x._asdict() for weight, x in results["front"].items()},
        "balance": results["balance"],
    }
    finish(chosen.out, text, record, sentences)


if __name__ == "__main__":
    main()
