"""`jaxdae analyze MODEL`: equilibrium, stability, certificates, step limits, regulator."""

import dataclasses
import time

import jax.numpy as jnp
import numpy as np

from jaxdae.commands.choice import chosen_formulation
from jaxdae.commands.findings import analyze
from jaxdae.commands.report import content, report, root_sets
from jaxdae.commands.tables import output_folder, write_json
from jaxdae.models import get_model
from jaxdae.models.equilibria import Rest, rest_of
from jaxdae.plotting import plot_roots, save_figure
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.precision import in_dtype


def run(options) -> int:
    """Run the command; 0 when the analysis was done, whatever it found."""
    began = time.perf_counter()
    model, rest = get_model(options.model), rest_of(options.model)
    out = output_folder(options.out, model.name)
    system = (rest.system or model.system)()
    dtype = jnp.dtype(options.dtype)
    guess = _guess(system, rest, options.at or {}, dtype)
    if options.at:  # what is known of the model's own state of rest need not hold of another
        near = ", ".join(f"{name} = {value:g}" for name, value in options.at.items())
        rest = dataclasses.replace(rest, remark=f"the one near {near}")
    formulation = in_dtype(
        chosen_formulation(model, options, *constraint_counts(system, guess)), dtype
    )
    formulation.check(system, guess)
    found = analyze(system, rest, formulation, guess, t1=model.t1, dt=options.dt)
    print(report(found, model, rest))
    title = f"{model.name}: roots of small motions"
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
