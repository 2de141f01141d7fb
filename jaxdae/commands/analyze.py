"""`jaxdae analyze MODEL`: equilibrium, stability, certificates, step limits, regulator."""

import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae.commands.findings import analyze
from jaxdae.commands.report import content, report, root_sets
from jaxdae.commands.tables import output_folder, write_json
from jaxdae.formulations import Baumgarte
from jaxdae.models import get_model, Model
from jaxdae.models.equilibria import Rest, rest_of
from jaxdae.models.studies import formulation_of, method_of, studies
from jaxdae.plotting import plot_roots, save_figure
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.precision import in_dtype
from jaxdae.tuning import resolve

_GAINS = ("K_D", "K_P", "Gamma", "alpha")
# Where a model has no constraint mass of its own: that with which its tuning starts.
_ALPHA = 10.0


def run(options) -> int:
    """Run the command; 0 when the analysis was done, whatever it found."""
    began = time.perf_counter()
    model, rest = get_model(options.model), rest_of(options.model)
    system = (rest.system or model.system)()
    dtype = jnp.dtype(options.dtype)
    guess = _guess(system, rest, options.at or {}, dtype)
    formulation = in_dtype(_formulation(model, options, *constraint_counts(system, guess)), dtype)
    formulation.check(system, guess)
    found = analyze(system, rest, formulation, guess, t1=model.t1, dt=options.dt)
    out = output_folder(options.out, model.name)
    print(report(found, model, rest))
    title = f"{model.name}: roots at the equilibrium"
    save_figure(plot_roots(root_sets(found), title=title), out / "roots.png")
    seconds = time.perf_counter() - began
    write_json(out / "analysis.json", content(found, model, rest, options, seconds))
    print(f"\n{seconds:.0f} s; roots.png and analysis.json are in {out}")
    return 0


def _guess(system, rest: Rest, at: dict[str, float], dtype) -> State:
    q = np.array(rest.guess(system), np.float64)
    for name, value in at.items():
        q[system.labels().coordinate_index(name, q.size)] = value
    return State(jnp.asarray(q, dtype), jnp.zeros(q.size, dtype), system.actuators().astype(dtype))


def _formulation(model: Model, options, m: int, r: int):
    """The model's formulation, or the one asked for, with the gains that are given.

    Raises:
        ValueError: for a gain that has nothing to act on.
    """
    first = _first(model, options.formulation)
    given = {name: getattr(options, name) for name in _GAINS}
    given = {name: value for name, value in given.items() if value is not None}
    _refuse_idle(given, model.name, m, r, hasattr(first, "alpha"), type(first).__name__)
    changes: dict[str, Any] = {"alpha": given.pop("alpha")} if "alpha" in given else {}
    if given:
        before = first.stabilization
        gains = {name: getattr(before, name, None) for name in ("K_D", "K_P", "Gamma")}
        changes["stabilization"] = Baumgarte(**(gains | given))
    return dataclasses.replace(first, **changes)


def _first(model: Model, method: str | None) -> Any:
    """As `jaxdae simulate` chooses; models without a tuning study keep their own gains."""
    own: Any = model.formulation()
    if method is None:
        return own
    try:
        return resolve(studies(model.name, method)[-1].formulation)
    except ValueError:
        if method == method_of(own):
            return own
        kind: Any = type(formulation_of(method, 1.0, 1.0, _ALPHA))
        alpha = {} if method == "multipliers" else {"alpha": getattr(own, "alpha", _ALPHA)}
        return kind(stabilization=own.stabilization, **alpha)


def _refuse_idle(given, name: str, m: int, r: int, weighted: bool, kind: str) -> None:
    for gain, count, what in (
        ("K_D", m, "position constraints"),
        ("K_P", m, "position constraints"),
        ("Gamma", r, "velocity constraints"),
        ("alpha", m + r, "constraints"),
    ):
        if gain in given and not count:
            raise ValueError(
                f"--{gain} is for {what}, which the model {name!r} does not have; leave it out."
            )
    if "alpha" in given and not weighted:
        raise ValueError(
            f"--alpha is for the penalty and augmented forms, not for {kind}; leave it out, or "
            "choose --formulation penalty."
        )
