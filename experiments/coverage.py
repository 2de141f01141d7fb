"""How often confidence intervals of fits hold the true parameters, with correlated noise.

    python experiments/coverage.py [--seeds 600] [--keep 1]

A pendulum with viscous and dry friction swings in several records from starts that are estimated.
Its angle is sampled every 20 ms with noise that is correlated by 0.9 from sample to sample, as what
a model leaves of measured motions usually is. Each seed has its own starts and noise, and is a fit
of its own, by `jaxdae.identify`; counted are its 95 % intervals that hold the number with which the
motions were made, by another integrator.

A claim that the run contradicts ends it with an error.
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from claims import block, Claim, finish, listed, options
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.special import ndtri
from scipy.stats import binom

import jaxdae
from jaxdae.identification import (
    Channel,
    Experiment,
    Identification,
    identify,
    Measurement,
    UnknownStart,
)
from jaxdae.solvers import RK4
from jaxdae.storage.files import write_json
from jaxdae.tuning import Positive

DATA = Path(__file__).parents[1] / "docs" / "data" / "coverage.json"
TRUE = {"stiffness": 20.0, "viscous": 0.15, "dry": 0.3}
NOISE, RHO, STEP = 0.01, 0.9, 0.02  # [rad], from sample to sample, [s]
LEVEL, LEAST, MOST = 0.95, 0.93, 0.97
# Records, and samples of each.
CASES = {"two long records": (2, 600), "six records": (6, 250), "fifteen short": (15, 120)}
LAW = jaxdae.Multipliers()


class Pendulum(jaxdae.System):
    r"""By its moment of inertia, `q'' = -k sin q - d q' - c tanh(q' / v_s)`.

    Args:
        stiffness: k [1/s^2].
        viscous: d [1/s].
        dry: c [1/s^2].
        slip: v_s [rad/s].
    """

    stiffness: Any = 18.0
    viscous: Any = 0.2
    dry: Any = 0.2
    slip: float = 0.2

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return -self.stiffness * jnp.cos(q[0])

    def force(self, t, q, v, w, u):
        del t, q, w, u
        return -self.viscous * v - self.dry * jnp.tanh(v / self.slip)


def build(params):
    """What is simulated with these parameters."""
    return Pendulum(**params), LAW


def angle(run):
    """The channel [rad]."""
    return run.q[:, 0]


CHANNELS = {"angle": Channel(angle, unit="rad")}


def motion(ts: NDArray, start: NDArray) -> NDArray:
    """The true angle at some times [rad], by an integrator of SciPy's."""
    k, d, c = TRUE.values()

    def rate(t, y):
        del t
        return [y[1], -k * np.sin(y[0]) - d * y[1] - c * np.tanh(y[1] / Pendulum.slip)]

    return solve_ivp(rate, (0.0, ts[-1]), start, "DOP853", ts, rtol=1e-8, atol=1e-10).y[0]


def autoregressive(rng: np.random.Generator, n: int) -> NDArray:
    """Noise of unit variance, `e_(k+1) = rho e_k + sqrt(1 - rho^2) n_k`."""
    e = rng.normal(size=n)
    for k in range(1, n):
        e[k] = RHO * e[k - 1] + np.sqrt(1 - RHO**2) * e[k]
    return e


def experiments(seed: int, records: int, samples: int) -> list[Experiment]:
    """Records of one seed; guesses of starts are some tenth of a radian, and per second, off."""
    rng, ts, made = np.random.default_rng(seed), STEP * np.arange(1, samples + 1), []
    for _ in range(records):
        start = np.array([rng.choice([-1, 1]) * rng.uniform(0.8, 2.0), rng.uniform(-1, 1)])
        values = motion(ts, start) + NOISE * autoregressive(rng, samples)
        q, v = start + 0.1 * rng.normal(size=2)
        unknown = UnknownStart(jaxdae.State(np.array([q]), np.array([v])))
        made.append(Experiment(ts, {"angle": Measurement(values, NOISE)}, unknown))
    return made


def fitted(made: list[Experiment]) -> Identification:
    """The fit of one seed."""
    default = Pendulum()
    positive = ("stiffness", "dry")
    guess: dict[str, Any] = {name: Positive(getattr(default, name)) for name in positive}
    guess["viscous"] = jnp.array(default.viscous)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of noise that is correlated
        return identify(build, guess, made, channels=CHANNELS, dt=STEP, solver=RK4())


class Counts(NamedTuple):
    """Of the fits of a case, by parameter.

    Args:
        names: of the parameters.
        robust: how many intervals of the fits hold the number.
        classical: the same of estimates with so many classical errors on both sides.
        ratio: robust by classical errors, the median.
        converged: how many fits ended by their rule.
        seeds: how many there are.
    """

    names: list[str]
    robust: list[int]
    classical: list[int]
    ratio: list[float]
    converged: int
    seeds: int


def counted(results: list[Identification]) -> Counts:
    """What intervals hold."""
    names = list(results[0].names)
    true = np.array([TRUE[name] for name in names])
    ends = np.array([[r.intervals(LEVEL)[n] for n in names] for r in results])
    off = np.array([np.abs(r.values - true) / r.classical_errors for r in results])
    ratio = np.median([r.robust_errors / r.classical_errors for r in results], axis=0)
    held = (ends[..., 0] <= true) & (true <= ends[..., 1])
    return Counts(
        names,
        held.sum(axis=0).tolist(),
        (off <= ndtri(0.5 * (1 + LEVEL))).sum(axis=0).tolist(),
        ratio.tolist(),
        sum(r.stop_reason == "converged" for r in results),
        len(results),
    )


def within(held: int, seeds: int) -> bool:
    """Whether so many of so many fits are what intervals of 93 to 97 % may well hold.

    Counts scatter: not one of a hundred of such intervals would hold so few, or so many.
    """
    few, many = binom.cdf(held, seeds, LEAST), binom.sf(held - 1, seeds, MOST)
    return bool(few > 0.01 and many > 0.01)


def claims(found: dict[str, Counts]) -> list[Claim]:
    """What the run shows."""
    seeds = min(x.seeds for x in found.values())
    parts = [n / x.seeds for x in found.values() for n in x.robust]
    usual = [n / x.seeds for x in found.values() for n in x.classical]
    mean, scatter = float(np.mean(parts)), np.sqrt(LEVEL * (1 - LEVEL) / seeds)
    return [
        Claim(
            f"In {len(found)} cases, for each parameter, 95 % intervals hold the true number in "
            f"{100 * min(parts):.3g} to {100 * max(parts):.3g} % of {seeds} fits, in "
            f"{100 * mean:.3g} % in the mean of all; counts of so many fits scatter by "
            f"{100 * scatter:.2g} %.",
            LEAST <= mean <= MOST
            and all(within(n, x.seeds) for x in found.values() for n in x.robust),
        ),
        Claim(
            "With the errors of independent noise they would in "
            f"{100 * min(usual):.3g} to {100 * max(usual):.3g} %.",
            max(usual) < 0.8,
        ),
        Claim("All fits end by their rule.", all(x.converged == x.seeds for x in found.values())),
    ]


def rows(found: dict[str, Counts]) -> list[list[str]]:
    """The table, a line for each case and parameter."""
    return [
        [case, name, *(f"{100 * n / x.seeds:.1f} %" for n in (held, usual)), f"{ratio:.2g}"]
        for case, x in found.items()
        for name, held, usual, ratio in zip(x.names, x.robust, x.classical, x.ratio, strict=True)
    ]


def main() -> None:
    """Run, print and write."""
    chosen = options(
        __doc__,
        "results/coverage",
        seeds=(600, "fits of each case"),
        keep=(0, "1 to keep the numbers for the site, in docs/data"),
    )
    found = {
        case: counted([fitted(experiments(i, *size)) for i in range(chosen.seeds)])
        for case, size in CASES.items()
    }
    sentences = claims(found)
    heads = ["", "", "robust", "classical", "robust by classical error"]
    text = "\n".join(
        ["# Coverage", "", *block("95 % intervals", heads, rows(found)), listed(sentences), ""]
    )
    numbers = {
        "cases": {case: x._asdict() for case, x in found.items()},
        "sizes": CASES,
        "claims": [x._asdict() for x in sentences],
    }
    if chosen.keep:
        write_json(DATA, numbers)
    finish(chosen.out, text, numbers, sentences)


if __name__ == "__main__":
    main()
