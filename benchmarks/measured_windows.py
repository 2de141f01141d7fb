"""Windows of measured motions: our fit, and SciPy's over a simulator that is written for them.

The records are those of `experiments/measured_pendulum.py`, of a real double pendulum with geared
drives, here at every 20 ms. Windows of two seconds are fitted with the state at the start of each,
the zeros of both encoders in each record, and nine numbers of the model: the same unknowns, from
the same start, by the same steps to the same residuals. SciPy's `least_squares(method="lm")` runs
MINPACK over a loop of classical Runge-Kutta steps, all windows at once and compiled, with
differences as derivatives, or with those by forward differentiation, window by window.

Fits begin at a rough guess, and once more near where ours has ended. SciPy's have a limit of
evaluations, and the time at which they had come as low as ours is kept.

    JAX_COMPILATION_CACHE_DIR=results/empty python benchmarks/measured_windows.py
"""

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import harness
import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import least_squares

import jaxdae
from jaxdae.control import Recorded
from jaxdae.identification import Channel, Experiment, Identification, Measurement, UnknownStart
from jaxdae.solvers import RK4
from jaxdae.tables import table

sys.path.append(str(Path(__file__).parents[1] / "experiments"))
pendulum: Any = importlib.import_module("measured_pendulum")
DoublePendulum: Any = pendulum.DoublePendulum

NAMES = (
    "inertia_1", "inertia_2", "rotor", "moment_1", "moment_2", "viscous_1", "viscous_2", "dry_1",
    "dry_2",
)  # fmt: skip
# Fitted by their logarithms; the others may be zero.
POSITIVE = np.array([name not in ("rotor", "viscous_1", "viscous_2") for name in NAMES])
LAW = jaxdae.Multipliers()
SAMPLES, STEPS, STEP = 100, 2, 0.01  # of a window; between samples; [s]
NOISE = 0.021  # about what is left by the best fit, in both joints [rad]
LENGTH, SLIP, GRAVITY = 0.2, 0.1, 9.81
MOST = 200  # evaluations of SciPy's fits


class Windows(NamedTuple):
    """What was measured in each window, at the start and every 20 ms."""

    angles: np.ndarray  # [rad], shape `(windows, samples + 1, 2)`
    speeds: np.ndarray  # by differences, at the start [rad/s], shape `(windows, 2)`
    torques: np.ndarray  # [N m], shape `(windows, samples + 1, 2)`
    record: np.ndarray  # which record it is of, shape `(windows,)`


class Start(NamedTuple):
    """Where a fit begins."""

    params: np.ndarray  # by `NAMES`
    zeros: np.ndarray  # of the encoders [rad], shape `(records, 2)`
    states: np.ndarray  # angles and speeds, shape `(windows, 4)`


def windows(count: int | None = None) -> Windows:
    """The first windows of all records that are not held out, or all of them."""
    h, angles, speeds, torques, which = STEPS * STEP, [], [], [], []
    others = pendulum.HELD_OUT + pendulum.OVER_THE_TOP
    kept = [x for name, x in pendulum.records().items() if name not in others]
    for i, record in enumerate(kept):
        grid = h * np.arange(int(record.ts[-1] / h) + 1)
        columns = [*record.outputs.values(), *record.inputs.T]
        made = np.stack([np.interp(grid, record.ts, x) for x in columns], axis=1)
        v = np.gradient(made[:, :2], h, axis=0)
        for k in range(0, grid.size - SAMPLES, SAMPLES):
            rows = slice(k, k + SAMPLES + 1)
            angles.append(made[rows, :2])
            torques.append(made[rows, 2:])
            speeds.append(v[k])
            which.append(i)
    return Windows(*(np.stack(x)[:count] for x in (angles, speeds, torques, which)))


def guess(found: Windows) -> Start:
    """Numbers about right, encoders without zeros, starts by differences."""
    default = DoublePendulum()
    params = np.array([getattr(default, name) for name in NAMES])
    zeros = np.zeros((found.record.max() + 1, 2))
    return Start(params, zeros, np.concatenate([found.angles[:, 0], found.speeds], axis=1))


def near(result: Identification) -> Start:
    """Parameters one per cent beside an estimate, up and down, the rest as it is."""
    off = 1 + 0.01 * (-1.0) ** np.arange(len(NAMES))
    params = np.array([result[name] for name in NAMES]) * off
    states = np.stack([np.concatenate([x.q, x.v]) for x in result.starts])
    return Start(params, np.asarray(result.params["zeros"]), states)


# Ours.


def build(params, record):
    """What is simulated; the zeros are those of the record, chosen by its conditions."""
    numbers = {name: params[name] for name in NAMES}
    return Encoders(**numbers, zeros=record @ params["zeros"]), LAW


class Encoders(DoublePendulum):
    """With what the encoders add [rad]."""

    zeros: Any = (0.0, 0.0)


CHANNELS = {
    "shoulder": Channel(lambda run: run.q[:, 0] + run.system.zeros[0], unit="rad"),
    "elbow": Channel(lambda run: run.q[:, 1] + run.system.zeros[1], unit="rad"),
}


def fitted(found: Windows, start: Start, **options) -> Identification:
    """Our fit."""
    ts = STEPS * STEP * np.arange(SAMPLES + 1)
    rows = np.eye(len(start.zeros))
    experiments = [
        Experiment(
            ts[1:],
            {n: Measurement(found.angles[i, 1:, j], NOISE) for j, n in enumerate(CHANNELS)},
            UnknownStart(jaxdae.State(start.states[i, :2], start.states[i, 2:])),
            controller=Recorded(ts, found.torques[i]),
            conditions=rows[found.record[i]],
        )
        for i in range(len(found.angles))
    ]
    first: dict[str, Any] = {
        name: jaxdae.tuning.Positive(x) if positive else jnp.array(x)
        for name, x, positive in zip(NAMES, start.params, POSITIVE, strict=True)
    }
    first["zeros"] = jnp.asarray(start.zeros)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # what is left is no independent noise
        return jaxdae.identify(
            build, first, experiments, channels=CHANNELS, dt=STEP, solver=RK4(), **options
        )


# SciPy's, and the simulator it is given.


class Simulated(NamedTuple):
    """Residuals of all windows by one vector of unknowns."""

    residuals: Callable[[np.ndarray], np.ndarray]
    jacobian: Callable[[np.ndarray], np.ndarray]
    first: np.ndarray


def simulated(found: Windows, start: Start) -> Simulated:
    """The simulator; unknowns are numbers of the model, zeros by record, states by window."""
    n, shared = len(NAMES), len(NAMES) + start.zeros.size
    count = len(found.angles)
    halves = np.arange(SAMPLES * STEPS + 1) / STEPS  # torques at the ends of steps
    low = np.minimum(halves.astype(int), SAMPLES - 1)
    part = (halves - low)[:, None]
    torques = jnp.asarray((1 - part) * found.torques[:, low] + part * found.torques[:, low + 1])
    angles, record = jnp.asarray(found.angles), jnp.asarray(found.record)

    def rate(p, s, u):
        v, both, cosine, sine = s[2:], s[2] + s[3], jnp.cos(s[1]), jnp.sin(s[1])
        k = p["moment_2"] * LENGTH
        m12 = p["inertia_2"] + k * cosine
        m11, m22 = p["inertia_1"] + m12 + k * cosine, p["inertia_2"] + p["rotor"]
        fall = GRAVITY * p["moment_2"] * jnp.sin(s[0] + s[1])
        friction_1 = p["viscous_1"] * v[0] + p["dry_1"] * jnp.tanh(v[0] / SLIP)
        friction_2 = p["viscous_2"] * v[1] + p["dry_2"] * jnp.tanh(v[1] / SLIP)
        turn = k * sine * v[1] * (v[0] + both)
        f1 = u[0] - friction_1 + turn - GRAVITY * p["moment_1"] * jnp.sin(s[0]) - fall
        f2 = u[1] - friction_2 - k * sine * v[0] ** 2 - fall
        det = m11 * m22 - m12**2
        return jnp.stack([v[0], v[1], (m22 * f1 - m12 * f2) / det, (m11 * f2 - m12 * f1) / det])

    def window(common, state, u, i, measured):
        p = dict(zip(NAMES, jnp.where(POSITIVE, jnp.exp(common[:n]), common[:n]), strict=True))

        def step(s, ends):
            u0, u1 = ends
            um, h = (u0 + u1) / 2, STEP
            k1 = rate(p, s, u0)
            k2 = rate(p, s + h / 2 * k1, um)
            k3 = rate(p, s + h / 2 * k2, um)
            s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + rate(p, s + h * k3, u1))
            return s, s[:2]

        _, shown = jax.lax.scan(step, state, (u[:-1], u[1:]))
        zeros = common[n:].reshape(-1, 2)[i]
        return ((shown[STEPS - 1 :: STEPS] + zeros - measured[1:]) / NOISE).ravel()

    @jax.jit
    def values(x):
        states = x[shared:].reshape(count, 4)
        return jax.vmap(window, (None, 0, 0, 0, 0))(x[:shared], states, torques, record, angles)

    @jax.jit
    def slopes(x):
        states = x[shared:].reshape(count, 4)
        of = jax.jacfwd(window, (0, 1))
        return jax.vmap(of, (None, 0, 0, 0, 0))(x[:shared], states, torques, record, angles)

    def jacobian(x):
        by_shared, by_state = map(np.asarray, slopes(x))
        rows = by_shared.shape[1]
        full = np.zeros((count, rows, x.size))
        full[..., :shared] = by_shared
        for i, block in enumerate(by_state):
            full[i, :, shared + 4 * i : shared + 4 * i + 4] = block
        return full.reshape(-1, x.size)

    logarithms = np.where(POSITIVE, np.log(np.where(POSITIVE, start.params, 1.0)), start.params)
    first = np.concatenate([logarithms, start.zeros.ravel(), start.states.ravel()])
    return Simulated(lambda x: np.asarray(values(x)).ravel(), jacobian, first)


class Found(NamedTuple):
    """How a fit went."""

    chi_square: float
    evaluations: int  # of the residuals at points that were tried
    by_rule: bool  # whether it ended so, and not by their number
    # At each evaluation: processors' time since the beginning [s], least chi-square so far.
    times: list[float]
    least: list[float]

    def reached(self, chi_square: float) -> tuple[int, float] | None:
        """After how many evaluations and seconds it was as low; `None` where it never was."""
        pairs = zip(self.times, self.least, strict=True)
        found = ((i + 1, t) for i, (t, x) in enumerate(pairs) if x <= chi_square)
        return next(found, None)


def by_scipy(sim: Simulated, derivatives: str, most: int = MOST) -> Found:
    """SciPy's fit; `derivatives` are by "differences" or by "jacfwd"."""
    began, times, least = time.process_time(), [], []

    def residuals(x):
        r = sim.residuals(x)
        times.append(time.process_time() - began)
        least.append(min(float(r @ r), least[-1] if least else np.inf))
        return r

    def differences(x):
        # As MINPACK's own, which are not counted among evaluations here.
        base, h = sim.residuals(x), np.sqrt(np.finfo(float).eps) * np.where(x == 0, 1.0, np.abs(x))
        columns = [(sim.residuals(x + d) - base) / d.sum() for d in np.diag(h)]
        return np.stack(columns, axis=1)

    jac: Any = sim.jacobian if derivatives == "jacfwd" else differences
    given: Any = {"method": "lm", "x_scale": "jac", "max_nfev": most}
    result = least_squares(residuals, sim.first, jac=jac, **given)
    return Found(least[-1], len(times), bool(result.status > 0), times, least)


def seconds(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its processors' time [s]."""
    began = time.process_time()
    return call(), time.process_time() - began


def main() -> None:
    """Measure, print a table, write `results/measured_windows.json`."""
    given = harness.arguments(__doc__, 3)
    found, rows = windows(), []
    result, first = seconds(lambda: fitted(found, guess(found)))
    starts = {"rough guess": guess(found), "near the end": near(result)}
    first_of = {"jaxdae": first}
    for place, start in starts.items():
        again = [seconds(lambda: fitted(found, start)) for _ in range(given.repetitions)]  # noqa: B023
        ours = again[0][0]
        common = {"problem": place, "missing": None, "windows": len(found.angles)}
        rows.append({
            **common, "code": "jaxdae", "seconds": [t for _, t in again],
            "first": first_of.pop("jaxdae", None), "chi_square": ours.chi_square,
            "evaluations": ours.evaluations, "by_rule": ours.stop_reason == "converged",
            "evaluations_to_ours": ours.evaluations, "seconds_to_ours": min(t for _, t in again),
        })  # fmt: skip
        for derivatives, rounds in (("jacfwd", 2), ("differences", 1)):
            code = f"SciPy lm, {derivatives}"
            sim = simulated(found, start)
            # Compiling and the first evaluations are what a first call takes more.
            _, compiling = seconds(lambda: by_scipy(sim, derivatives, 2))  # noqa: B023
            made = [seconds(lambda: by_scipy(sim, derivatives)) for _ in range(rounds)]  # noqa: B023
            theirs, reached = made[0][0], made[0][0].reached(ours.chi_square)
            rows.append({
                **common, "code": code, "seconds": [t for _, t in made],
                "first": compiling + min(t for _, t in made) if place == "rough guess" else None,
                "chi_square": theirs.chi_square, "evaluations": theirs.evaluations,
                "by_rule": theirs.by_rule,
                "evaluations_to_ours": None if reached is None else reached[0],
                "seconds_to_ours": None if reached is None else reached[1],
            })  # fmt: skip
    harness.finish("measured_windows", given, rows, "one fit, of the processors")
    print(text(rows))


def text(rows: list[dict]) -> str:
    """The results as a table."""
    heads = ("problem", "code", "first", "evaluations", "by_rule", "chi_square")
    shown = lambda x: "–" if x is None else x if isinstance(x, str) else f"{x:.4g}"  # noqa: E731
    lines = [
        [*(shown(x[k]) for k in heads), shown(min(x["seconds"])), shown(x["seconds_to_ours"])]
        for x in rows
    ]
    return table([*heads, "again", "as low as ours"], lines)


if __name__ == "__main__":
    harness.run(main)
