"""Four-bar design: links that lead a load along a path, and ask little torque of their motor.

Ten numbers of a crank-rocker, and six of the progress along its path, are fitted by
Levenberg-Marquardt from thousands of random starts at once: the coupler point at equal crank angles
against the path wanted, and the torque that inverse dynamics asks of a motor at constant speed.
`CrankRocker` keeps the crank turning all round, hence the branch of the assembly as well. First a
path that a known linkage draws is given back: the fit finds that linkage and the one cognate that a
crank drives, which asks for another torque.

    python experiments/four_bar_design.py [--starts 2048] [--out results/four_bar_design]

Writes figures, `report.md` and `result.json`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
from claims import block, Claim, finish, listed, options
from four_bar_drawing import compared
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float
from periodic import interpolated, Periodic

from jaxdae import Multipliers, simulate, State
from jaxdae.control import Feedforward, inverse_dynamics, motion_derivatives
from jaxdae.kernels import native
from jaxdae.models.four_bar import FourBar
from jaxdae.plotting import save_figure
from jaxdae.solvers import RK4
from jaxdae.tuning import CrankRocker

POINTS, STEPS = 24, 60
SPEED = 2 * np.pi / 0.8  # of the crank [rad/s]
# Deviations that count one: of the path [m], of the torque [N m].
PATH, TORQUE = 1e-3, 1.0
# Weights of the torque; one unit of it against one of the path.
WEIGHTS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)
CHOSEN = 1.0
# A fit of the path that is one but for round-off and the last step [m].
RECOVERED = 1e-7
# A fit of the leg's path that is as good as any [m].
CLOSE = 2e-4


class Design(eqx.Module):
    """A crank-rocker as ten free numbers.

    Args:
        lengths: of crank, coupler, rocker, ground.
        point: of the coupler, in its frame [m].
        origin: pivot of the crank [m].
        tilt: of the ground [rad].
        phase: of the crank at the first point of the path [rad].
        timing: sines and cosines of the crank's angle by which the progress along the path is
            ahead of it, shape (2, 3) [rad].
    """

    lengths: CrankRocker
    point: Float[Array, " 2"]
    origin: Float[Array, " 2"]
    tilt: Float[Array, ""]
    phase: Float[Array, ""]
    timing: Float[Array, "2 3"]

    def progress(self, angle) -> Float[Array, ""]:
        """Place along the path at an angle of the crank past the first [rad]."""
        multiples = jnp.arange(1, 4) * angle
        return angle + self.timing[0] @ jnp.sin(multiples) + self.timing[1] @ jnp.cos(multiples)

    def linkage(self, branch) -> FourBar:
        """Of uniform bars, with the load."""
        return FourBar.of_bars(
            self.lengths.value, self.point, origin=self.origin, tilt=self.tilt, branch=branch
        )


def first() -> Design:
    """About which the starts are."""
    zero, point = jnp.zeros(()), jnp.asarray(FourBar().point)
    lengths = CrankRocker(FourBar().lengths)
    return Design(lengths, point, jnp.zeros(2), zero, zero, jnp.zeros((2, 3)))


def off_and_torque(design: Design, path: Periodic, branch, angle) -> Float[Array, " 3"]:
    """Way off the path [m] and torque [N m], at an angle of the crank past the first."""
    linkage = design.linkage(branch)
    motion = linkage.crank_motion(SPEED, design.phase + angle)
    q, v, a = motion_derivatives(motion, jnp.zeros_like(design.phase))
    torque = inverse_dynamics(linkage, 0.0, q, v, a, controls=1).u
    return jnp.concatenate([linkage.tracer(q) - path(design.progress(angle)), torque])


def crank_angles() -> Float[Array, " points"]:
    """Past the first [rad]."""
    return jnp.arange(POINTS) * 2 * jnp.pi / POINTS


class Fits(NamedTuple):
    """What became of the starts; arrays have their axis first.

    Args:
        designs: the last of each.
        branch: of each, 1 or -1.
        path: root mean square distance from the path [m].
        torque: root mean square [N m].
        weight: of the torque.
    """

    designs: Design
    branch: np.ndarray
    path: np.ndarray
    torque: np.ndarray
    weight: np.ndarray


class Fitter(eqx.Module):
    """Levenberg-Marquardt from many starts at once, the mechanics in native kernels.

    Args:
        path: wanted, from the progress along it [rad] to a place [m], shape (2,).
    """

    path: Periodic

    def readings(self, design: Design, branch) -> Float[Array, "points 3"]:
        """Way off the path and torque at all angles."""
        kernel = native(off_and_torque, design, self.path, jnp.ones(()), jnp.zeros(()))
        return jax.vmap(lambda angle: kernel(design, self.path, branch, angle))(crank_angles())

    def residuals(self, design: Design, arguments) -> Float[Array, " r"]:
        """Their sum of squares is the objective; NaN is no step of the optimizer."""
        branch, weight = arguments
        rows = self.readings(design, branch)
        parts = rows / jnp.array([PATH, PATH, TORQUE]) * jnp.stack([1.0, 1.0, weight])
        return parts.ravel() / jnp.sqrt(float(POINTS))

    @eqx.filter_jit
    def _fit(self, designs, branches, weights):
        solver = optimistix.LevenbergMarquardt(rtol=1e-10, atol=1e-12)

        def one(design, branch, weight):
            answer = optimistix.least_squares(
                self.residuals, solver, design, (branch, weight), max_steps=STEPS, throw=False
            )
            rows = self.readings(answer.value, branch)
            squares = jnp.mean(rows**2, axis=0)
            return answer.value, jnp.sqrt(squares[0] + squares[1]), jnp.sqrt(squares[2])

        return jax.vmap(one)(designs, branches, weights)

    def fit(self, key, starts: int, weights: Sequence[float]) -> Fits:
        """From random starts, shared out among the weights of the torque and both branches."""
        about, unravel = ravel_pytree(first())
        centre = jnp.mean(jax.vmap(self.path)(crank_angles()), axis=0)
        keys = jax.random.split(key, 2)
        # Ratios of lengths by e-folds, places by the size of the path, directions all round.
        spread = jnp.array([0.5] * 4 + [0.15] * 4 + [0.0] * 8)
        count = starts - starts % len(WEIGHTS)
        random = about + spread * jax.random.normal(keys[0], (count, 16))
        random = random.at[:, 6:8].add(centre)
        turns = jax.random.uniform(keys[1], (count, 2), float, -np.pi, np.pi)
        designs = jax.vmap(unravel)(random.at[:, 8:10].set(turns))
        branches = jnp.where(jnp.arange(count) % 2 == 0, 1.0, -1.0)
        each = jnp.repeat(jnp.asarray(weights, dtype=float), count // len(weights))
        designs, path, torque = self._fit(designs, branches, each)
        return Fits(designs, *map(np.asarray, (branches, path, torque, each)))


def chosen(fits: Fits, weight: float) -> int:
    """The start that ended with the least objective for a weight."""
    objective = (fits.path / PATH) ** 2 + (weight * fits.torque / TORQUE) ** 2
    return int(np.nanargmin(np.where(fits.weight == weight, objective, np.nan)))


class Result(NamedTuple):
    """A design by itself.

    Args:
        design: its numbers.
        linkage: it makes.
        path: root mean square distance from the path [m].
        torque: root mean square [N m].
    """

    design: Design
    linkage: FourBar
    path: float
    torque: float

    @classmethod
    def of(cls, fits: Fits, i: int) -> "Result":
        """The one of a start."""
        design = jax.tree.map(lambda x: x[i], fits.designs)
        linkage = design.linkage(float(fits.branch[i]))
        return cls(design, linkage, float(fits.path[i]), float(fits.torque[i]))


def known_linkage() -> FourBar:
    """What draws the path that is to be given back."""
    default = FourBar()
    return FourBar.of_bars(default.lengths, jnp.asarray(default.point), tilt=default.tilt)


def leg_path(s) -> Float[Array, " 2"]:
    """A foot's: 20 cm long, flat below, 5 cm high [m]."""
    return jnp.stack([0.2 + 0.1 * jnp.cos(s), -0.25 + 0.012 * (1 + jnp.sin(s)) ** 2])


@jax.jit
def margins(designs: Design, branches) -> tuple:
    """Slack of the inequalities by the crank, and least sine between coupler and rocker, of each.

    The sine has the sign of the branch: positive for all that stayed on it.
    """

    def one(design, branch):
        linkage = design.linkage(branch)
        a, b, c, d = design.lengths.value
        sines = linkage.transmission(jax.vmap(linkage.at_crank)(crank_angles()))
        left = jnp.minimum(b + c - a - d, d - a - jnp.abs(b - c))
        return left / a, jnp.min(-branch * sines)

    return jax.vmap(one)(designs, branches)


def balance(result: Result) -> dict[str, float]:
    """The torque by inverse dynamics against the rate of the energy, and against a simulation."""
    linkage = result.linkage
    motion = linkage.crank_motion(SPEED, result.design.phase)

    def energy(t):
        q, v, _ = motion_derivatives(motion, t)
        return linkage.kinetic_energy(t, q, v) + linkage.potential_energy(t, q)

    turn = 2 * np.pi / SPEED
    torque = interpolated(eqx.filter_jit(Feedforward(linkage, motion, 1)), turn, 64)
    ts = crank_angles() / SPEED
    rates = jax.jit(jax.vmap(jax.grad(energy)))(ts)
    off = jnp.abs(rates - SPEED * jax.vmap(torque.function)(ts)[:, 0]).max()
    q, v, _ = motion_derivatives(motion, 0.0)
    run = simulate(
        linkage,
        Multipliers(),
        State(q, v),
        t1=turn,
        dt=turn / 1000,
        solver=RK4(),
        controller=lambda t, q, v, w: torque.function(t),  # noqa: ARG005
    )
    drift = jnp.abs(run.v[:, 0] / SPEED - 1).max()
    return {"power": float(off / jnp.abs(rates).max()), "speed": float(drift)}


def study(starts: int) -> dict:
    """Give a known path back; then fit the leg's path for each weight of the torque."""
    known = known_linkage()
    drawn = interpolated(lambda x: known.tracer(known.at_crank(x)), 2 * np.pi)
    given = Fitter(drawn.function).fit(jax.random.key(0), starts, (0.0,))
    leg = interpolated(leg_path, 2 * np.pi)
    fits = Fitter(leg.function).fit(jax.random.key(1), starts, WEIGHTS)
    front = {weight: Result.of(fits, chosen(fits, weight)) for weight in WEIGHTS}
    close = np.flatnonzero((fits.weight == 0) & (fits.path < CLOSE))
    by_torque = close[np.argsort(fits.torque[close])]
    kept = [np.asarray(x) for x in margins(fits.designs, jnp.asarray(fits.branch))]
    return {
        "known": known,
        "error": float(max(drawn.error, leg.error)),
        "given": given,
        "front": front,
        "close": np.stack([fits.path[by_torque], fits.torque[by_torque]]),
        "heavy": Result.of(fits, int(by_torque[int(0.9 * len(by_torque))])),
        "kept": kept,
        "starts": len(fits.path),
        "balance": balance(front[CHOSEN]),
    }


def recovered(known: FourBar, given: Fits) -> dict[str, dict]:
    """How many starts ended at the known linkage and at its cognate, and with which torque."""
    lengths = np.asarray(jax.vmap(lambda x: x.lengths.value)(given.designs))
    exact = given.path < RECOVERED
    wanted = {"known": known, "cognate": known.cognates()[0]}
    counts = {}
    for name, linkage in wanted.items():
        same = exact & (np.abs(lengths - np.asarray(linkage.lengths)).max(axis=1) < 1e-3)
        same &= given.branch == float(linkage.branch)
        torque = float(np.median(given.torque[same])) if same.any() else np.nan
        counts[name] = {"starts": int(same.sum()), "torque": torque}
    return counts | {"exact": {"starts": int(exact.sum())}}


def claims(results: dict) -> list[Claim]:
    """What the fits show."""
    counts = recovered(results["known"], results["given"])
    known, cognate, exact = (counts[x] for x in ("known", "cognate", "exact"))
    starts, front, (slack, sines) = results["starts"], results["front"], results["kept"]
    light, (paths, torques) = front[CHOSEN], results["close"]
    off = results["balance"]
    return [
        Claim(
            f"Of {starts} starts {exact['starts']} give the known path back to {RECOVERED:g} m. "
            f"{known['starts']} of them ended at the linkage that drew it, {cognate['starts']} at "
            "the cognate that a crank drives, and none elsewhere. As bars of one material they ask "
            f"for {known['torque']:.3f} and {cognate['torque']:.3f} N m (rms) on the same path.",
            min(known["starts"], cognate["starts"]) > 0
            and known["starts"] + cognate["starts"] == exact["starts"],
        ),
        Claim(
            f"Kinematics leaves the torque open: of {len(torques)} fits of the leg's path alone "
            f"that came within {1e3 * CLOSE:g} mm (rms) the torques run from {torques[0]:.3f} to "
            f"{torques[-1]:.3f} N m, {results['heavy'].torque:.3f} at the ninth decile. With the "
            f"torque in the objective it is {light.torque:.3f} N m at {1e3 * light.path:.3f} mm, "
            "less than that of every one as near to the path, with links of up to "
            f"{max(light.linkage.lengths):.2f} m.",
            light.path < CLOSE
            and light.torque < min(torques[paths <= light.path], default=np.inf)
            and light.torque < 0.5 * results["heavy"].torque,
        ),
        Claim(
            f"All {starts} ended as crank-rockers on the branch they began on: the least slack of "
            f"the inequalities is {slack.min():.2e} of the crank, the least sine between coupler "
            f"and rocker {sines.min():.2e}, of the chosen design {_least_sine(light):.2f}.",
            slack.min() > 0 and sines.min() > 0,
        ),
        Claim(
            f"The torque is right: its power is the rate of the energy to {off['power']:.1e}, and "
            f"a simulated turn under it keeps the crank's speed to {off['speed']:.1e}.",
            off["power"] < 1e-6 and off["speed"] < 1e-5,
        ),
    ]


def _least_sine(result: Result) -> float:
    linkage = result.linkage
    return float(jnp.abs(linkage.transmission(jax.vmap(linkage.at_crank)(crank_angles()))).min())


def rows(results: dict) -> list[list]:
    """Table of the front."""
    return [
        [
            weight,
            f"{1e3 * x.path:.4f}",
            f"{x.torque:.4f}",
            f"{_least_sine(x):.2f}",
            *(f"{length:.4f}" for length in x.linkage.lengths),
        ]
        for weight, x in results["front"].items()
    ]


HEADINGS = (
    "weight", "path [mm]", "torque [N m]", "least sine", "crank [m]", "coupler", "rocker", "ground",
)  # fmt: skip


def draw(results: dict, path: Path) -> None:
    """The chosen design beside fits of the path alone."""
    cases = {
        f"torque of weight {CHOSEN:g}": results["front"][CHOSEN],
        "kinematics alone, ninth decile of torque": results["heavy"],
        "kinematics alone, nearest to the path": results["front"][0.0],
    }
    motions = {name: x.linkage.crank_motion(SPEED, x.design.phase) for name, x in cases.items()}
    save_figure(compared(motions, leg_path), path)


def main() -> None:
    """Run the study and write what it found."""
    options_chosen = options(__doc__, "results/four_bar_design", starts=(2048, "of each fit"))
    results = study(options_chosen.starts)
    sentences = claims(results)
    text = "\n".join(
        [
            "# Four-bar along a foot's path",
            "",
            *block("The best of each weight of the torque", HEADINGS, rows(results)),
            listed(sentences),
        ]
    )
    draw(results, options_chosen.out / "design.png")
    record = {
        "front": {
            str(w): {"path": x.path, "torque": x.torque} for w, x in results["front"].items()
        },
        "recovered": recovered(results["known"], results["given"]),
        "balance": results["balance"],
    }
    finish(options_chosen.out, text, record, sentences)


if __name__ == "__main__":
    main()
