"""A real double pendulum: parameters from measured motions, predictions beside the laboratory's.

    python experiments/measured_pendulum.py [--steps 40] [--keep 1]

Ten records of `data/double_pendulum`, by the DFKI Robotics Innovation Center: angles and torques of
two geared joints. Six records are fitted, with dry and viscous friction in both joints, the zero of
every encoder, and every start. Of the other four nothing is estimated but starts and zeros: two are
like the fitted ones but go further, two go over the top. Their motion is predicted over a second
from every place, by the fitted model and by the laboratory's own (`model_1.1`, which has no
friction), as it is and with the friction that was found here.

A claim that the run contradicts ends it with an error.
"""

import dataclasses
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from claims import block, Claim, finish, listed, options

import jaxdae
from jaxdae.identification import (
    Calibration,
    Channel,
    Identification,
    identify,
    read_record,
    Record,
    UnknownStart,
    validate,
    Validation,
)
from jaxdae.plotting import plot_predictions, plot_residuals, save_figure
from jaxdae.solvers import RK4
from jaxdae.storage.files import write_json
from jaxdae.tuning import Positive

DATA = Path(__file__).parents[1] / "docs" / "data" / "measured_pendulum.json"
FOLDER = Path(__file__).parent / "data" / "double_pendulum"
HELD_OUT = ("143524", "143601")
OVER_THE_TOP = ("154220", "154548")
INPUTS = ("shoulder torque", "elbow torque")
# Encoders are known to about this much at rest; the rest is what the model does not have [rad].
NOISE = {"shoulder": 0.02, "elbow": 0.03}
STEP, HORIZON, PAST = 0.01, 1.0, 0.1  # of runs; how far is predicted; what starts are made of [s]
EVALUATIONS = 40  # of the residuals, in which a fit has ended
LAW = jaxdae.Multipliers()
FRICTION = ("viscous_1", "viscous_2", "dry_1", "dry_2")


class DoublePendulum(jaxdae.System):
    r"""Two links with geared drives and friction; `q = (shoulder, elbow)`, elbow relative.

        2 T = J_1 v_1^2 + J_2 (v_1 + v_2)^2 + J_r v_2^2 + 2 G_2 l cos(q_2) v_1 (v_1 + v_2)
        V   = -g (G_1 cos q_1 + G_2 cos(q_1 + q_2))
        f   = u - d v - c tanh(v / v_s)

    These are all that motions can say: masses, centers and moments of inertia of the links enter by
    `J_1 = I_1 + m_2 l^2 + J_s`, `G_1 = m_1 r_1 + m_2 l`, `G_2 = m_2 r_2` alone.

    Args:
        inertia_1: J_1, of the upper link, the elbow's mass and the shoulder's rotor [kg m^2].
        inertia_2: J_2, of the lower link about the elbow [kg m^2].
        rotor: J_r, of the elbow's rotor, by its gear [kg m^2].
        moment_1: G_1 [kg m].
        moment_2: G_2 [kg m].
        viscous_1: d of the shoulder [N m s/rad].
        viscous_2: d of the elbow.
        dry_1: c of the shoulder [N m].
        dry_2: c of the elbow.
        length: l [m].
        slip: v_s, speed at which dry friction is three quarters of its size [rad/s].
        gravity: g [m/s^2].
    """

    inertia_1: Any = 0.055
    inertia_2: Any = 0.05
    rotor: Any = 0.005
    moment_1: Any = 0.22
    moment_2: Any = 0.16
    viscous_1: Any = 0.01
    viscous_2: Any = 0.01
    dry_1: Any = 0.2
    dry_2: Any = 0.15
    length: float = 0.2
    slip: float = 0.1
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        del t
        both = v[0] + v[1]
        own = self.inertia_1 * v[0] ** 2 + self.inertia_2 * both**2 + self.rotor * v[1] ** 2
        return 0.5 * own + self.moment_2 * self.length * jnp.cos(q[1]) * v[0] * both

    def potential_energy(self, t, q):
        del t
        height = self.moment_1 * jnp.cos(q[0]) + self.moment_2 * jnp.cos(q[0] + q[1])
        return -self.gravity * height

    def force(self, t, q, v, w, u):
        del t, q, w
        viscous = jnp.stack([self.viscous_1, self.viscous_2])
        dry = jnp.stack([self.dry_1, self.dry_2])
        return u - viscous * v - dry * jnp.tanh(v / self.slip)


# The laboratory's, of the same numbers: moments of inertia about the joints, masses, centers.
MODEL_1_1 = {
    "inertia_1": 0.031887 + 0.62557 * 0.2**2,
    "inertia_2": 0.050870,
    "rotor": 0.0,
    "moment_1": 0.52346 * 0.2 + 0.62557 * 0.2,
    "moment_2": 0.62557 * 0.25569,
    **dict.fromkeys(FRICTION, 0.0),
}
MODELS = ("fitted", "model_1.1", "model_1.1 with friction")


def build(params):
    """What is simulated with these parameters."""
    return DoublePendulum(**params), LAW


def channels(*, zeros: bool = True) -> dict[str, Channel]:
    """Both encoders, whose zeros are estimated in each record."""
    zero = Calibration(0.0, 0.1, per_record=True) if zeros else 0.0
    return {
        name: Channel(lambda run, i=i: run.q[:, i], "rad", zero)
        for i, name in enumerate(("shoulder", "elbow"))
    }


def records() -> dict[str, Record]:
    """All records by name."""
    files = sorted(FOLDER.glob("*.csv"))
    return {x.stem: read_record(x, channels(), inputs=INPUTS) for x in files}


def experiment(record: Record, *, at_rest: bool = False):
    """A record with guesses of its states by differences of its angles."""
    q = np.stack([record.outputs["shoulder"], record.outputs["elbow"]], axis=1)
    v = np.gradient(q, record.ts, axis=0)
    start = jaxdae.State(q[0], np.zeros(2) if at_rest else v[0])
    one = record.experiment(UnknownStart(start, v=0.0 if at_rest else np.inf), sigma=NOISE)
    return dataclasses.replace(one, guess=jaxdae.State(q, v, np.zeros((len(q), 0))))


class Fitted(NamedTuple):
    """A fit, and what it warned of."""

    result: Identification
    warned: list[str]


def fitted(found: dict[str, Record], steps: int) -> Fitted:
    """The fit to the records that are not held out, which begin at rest."""
    default = DoublePendulum()
    positive = ("inertia_1", "inertia_2", "moment_1", "moment_2", "dry_1", "dry_2")
    guess: dict[str, Any] = {name: Positive(getattr(default, name)) for name in positive}
    # These may be zero, whose logarithm a search would never reach.
    others = ("rotor", "viscous_1", "viscous_2")
    guess |= {name: jnp.array(getattr(default, name)) for name in others}
    kept = [x for name, x in found.items() if name not in HELD_OUT + OVER_THE_TOP]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        result = identify(
            build, guess, [experiment(x, at_rest=True) for x in kept], channels=channels(),
            dt=STEP, solver=RK4(), steps=steps,
        )  # fmt: skip
    return Fitted(result, [str(x.message) for x in caught])


def models(params: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The models that predict, by name."""
    own = {name: float(x) for name, x in params.items()}
    with_friction = MODEL_1_1 | {name: own[name] for name in FRICTION}
    return dict(zip(MODELS, (own, MODEL_1_1, with_friction), strict=True))


def predictions(found: dict[str, Record], params: dict[str, Any]) -> dict[str, Validation]:
    """Predictions of the records that are held out, by model."""
    held = [experiment(found[name]) for name in HELD_OUT + OVER_THE_TOP]
    return {
        name: validate(
            build, x, held, channels=channels(), horizon=HORIZON, past=PAST, dt=STEP / 2,
            solver=RK4(),
        )
        for name, x in models(params).items()
    }  # fmt: skip


def claims(
    errors: dict[str, dict[str, list[float]]], unseen: list[str], ended: dict[str, Any]
) -> list[Claim]:
    """What the run shows.

    Args:
        errors: root mean squares by model and channel, one for each of the records that are held
            out, those over the top last.
        unseen: what a fit of all numbers of the links does not determine, in words.
        ended: how the fit did: `stop_reason`, `evaluations`.
    """
    own, plain, rubbed = (errors[name] for name in MODELS)
    names = HELD_OUT + OVER_THE_TOP
    places = [(channel, i) for channel in own for i in range(len(names))]

    def better(other) -> bool:
        return all(own[x][i] < other[x][i] for x, i in places)

    worst = {k: max(own[k]) for k in own}
    closest, i = min(places, key=lambda at: rubbed[at[0]][at[1]] - own[at[0]][at[1]])
    least = rubbed[closest][i] - own[closest][i]
    return [
        Claim(
            f"The fit ends by its rule after {ended['evaluations']} evaluations, fewer than "
            f"{EVALUATIONS}.",
            ended["stop_reason"] == "converged" and ended["evaluations"] < EVALUATIONS,
        ),
        Claim(
            "On all records that are held out predictions over one second are better than by "
            f"model_1.1 as it is, in both joints; on those that go over the top "
            f"({', '.join(OVER_THE_TOP)}), further than any fitted one, errors are up to "
            f"{worst['shoulder']:.2f} and {worst['elbow']:.2f} rad.",
            better(plain),
        ),
        Claim(
            "They are better than by model_1.1 with the friction that was found here, too, in both "
            f"joints of every record, but at the {closest} of {names[i]} by {least:.1g} rad only, "
            f"of {own[closest][i]:.2g}: there the two models are as good as equal.",
            better(rubbed),
        ),
        Claim(
            "Masses, centers and moments of inertia of both links cannot be distinguished: "
            f"{'; '.join(unseen)}.",
            len(unseen) > 0,
        ),
    ]


def unidentifiable(found: dict[str, Record]) -> list[str]:
    """What a fit of all numbers of both links does not determine: a second of one record."""

    def links(p):
        return build(
            {
                "inertia_1": p["I_1"] + p["m_2"] * 0.2**2,
                "moment_1": p["m_1 r_1"] + p["m_2"] * 0.2,
                "moment_2": p["m_2"] * p["r_2"],
            }
        )

    guess = {"I_1": 0.03, "m_1 r_1": 0.1, "m_2": 0.6, "r_2": 0.25}
    record = found["143339"].between(0.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = identify(
            links, {k: jnp.array(x) for k, x in guess.items()}, experiment(record, at_rest=True),
            channels=channels(zeros=False), dt=STEP, solver=RK4(), steps=5,
        )  # fmt: skip
    return [*result.unidentifiable]


def errors_of(found: dict[str, Validation]) -> dict[str, dict[str, list[float]]]:
    """Root mean squares by model and channel, one for each record."""
    return {n: {c: x.rms(c).tolist() for c in x.channels} for n, x in found.items()}


def report(fit: Fitted, errors: dict[str, dict[str, list[float]]]) -> list[str]:
    """Tables of parameters and predictions."""
    result = fit.result
    known = zip(result.names, result.values, result.standard_errors, strict=True)
    rows = [[n, f"{x:.5g}", f"{s:.2g}", f"{MODEL_1_1[n]:.5g}"] for n, x, s in known]
    names = HELD_OUT + OVER_THE_TOP
    ahead = [
        [model, channel, *(f"{x:.4f}" for x in values)]
        for model, by_channel in errors.items()
        for channel, values in by_channel.items()
    ]
    return [
        *block("Parameters", ["", "estimate", "standard error", "model_1.1"], rows),
        *block("Errors of predictions over one second [rad]", ["", "", *names], ahead),
        *(f"- {x}" for x in fit.warned),
        "",
    ]


def main() -> None:
    """Run, print and write."""
    chosen = options(
        __doc__,
        "results/measured_pendulum",
        steps=(40, "largest number of steps of the fit"),
        keep=(0, "1 to keep the numbers for the site, in docs/data"),
    )
    found = records()
    fit = fitted(found, chosen.steps)
    predicted = predictions(found, fit.result.params)
    errors = errors_of(predicted)
    ended = {"stop_reason": fit.result.stop_reason, "evaluations": fit.result.evaluations}
    sentences = claims(errors, unidentifiable(found), ended)
    chosen.out.mkdir(parents=True, exist_ok=True)
    save_figure(plot_predictions(predicted), chosen.out / "predictions.png")
    save_figure(plot_residuals(fit.result), chosen.out / "residuals.png")
    text = "\n".join(
        ["# A measured double pendulum", "", *report(fit, errors), listed(sentences), ""]
    )
    result = fit.result
    numbers = {
        "names": result.names,
        "values": result.values.tolist(),
        "standard_errors": result.standard_errors.tolist(),
        **ended,
        "errors": errors,
        "records": HELD_OUT + OVER_THE_TOP,
        "model_1.1": MODEL_1_1,
        "claims": [x._asdict() for x in sentences],
    }
    if chosen.keep:
        write_json(DATA, numbers)
    finish(chosen.out, text, numbers, sentences)


if __name__ == "__main__":
    main()
