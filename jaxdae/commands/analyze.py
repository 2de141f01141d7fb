"""`jaxdae analyze MODEL`: equilibrium, stability, certificates, step limits, regulator."""

import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae import __version__
from jaxdae.analysis import EquilibriumError
from jaxdae.analysis.findings import Analysis, analyze, ControlAnalysis, SolverLimits
from jaxdae.commands.choice import chosen_formulation
from jaxdae.commands.output import output_folder
from jaxdae.commands.report import gains, inputs, report, warnings
from jaxdae.models import get_model, Model
from jaxdae.models.base import Rest
from jaxdae.models.registry import rest_of
from jaxdae.plotting import plot_roots, save_figure
from jaxdae.simulation.choices import make_solver
from jaxdae.solvers import AdamsBashforth
from jaxdae.storage.files import write_json
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.precision import in_dtype

# Methods whose step limits are shown; `--solver` adds more.
COMMON = ("dopri8", "dopri5", "tsit5", "rk4", "heun", "euler", "kvaerno5")


def run(options) -> int:
    """Run the command; 0 when the analysis was done, whatever it found."""
    began = time.perf_counter()
    model, rest = get_model(options.model), rest_of(options.model)
    out = output_folder(options.out, model.name)
    result, rest = _found(model, rest, options)
    print(report(result, model, rest))
    title = f"{model.name}: roots of small motions"
    save_figure(plot_roots(result.root_sets(), title=title), out / "roots.png")
    seconds = time.perf_counter() - began
    write_json(out / "analysis.json", content(result, model, rest, options, seconds))
    print(f"\n{seconds:.0f} s; roots.png and analysis.json are in {out}")
    return 0


def solvers(more: list[str]) -> dict[str, Any]:
    """Methods whose step limits are shown, by name."""
    results = {name: make_solver(name) for name in (*COMMON, *more)}
    return results | {f"ab{steps}": AdamsBashforth(steps) for steps in (2, 3, 4)}


def _found(model: Model, rest: Rest, options) -> tuple[Analysis, Rest]:
    """The findings, and the rest that they are about."""
    system = (rest.system or model.system)()
    dtype = jnp.dtype(options.dtype)
    guess = _guess(system, rest, options.at or {}, dtype)
    if options.at:  # what is known of the model's state of rest need not hold of another
        near = ", ".join(f"{name} = {value:g}" for name, value in options.at.items())
        rest = dataclasses.replace(rest, remark=f"the one near {near}")
    formulation = in_dtype(
        chosen_formulation(model, options, *constraint_counts(system, guess)), dtype
    )
    formulation.check(system, guess)
    chosen = {"inputs": rest.inputs, "fixed": rest.fixed, "t1": model.t1, "dt": options.dt}
    try:
        result = analyze(system, formulation, guess, solvers(options.solver or []), **chosen)
    except EquilibriumError as error:
        labels = system.labels()
        start = ", ".join(f"{labels.coordinate(i)} = {x:.6g}" for i, x in enumerate(guess.q))
        # What it advises are arguments of the function, not options of the command.
        finding, _, _ = str(error).partition(" Start nearer")
        raise EquilibriumError(
            f"{finding} The guess was {start}; give one nearer to a rest with --at NAME=VALUE,…"
        ) from error
    return result, rest


def _guess(system, rest: Rest, at: dict[str, float], dtype) -> State:
    q = np.array(rest.guess(system), np.float64)
    for name, value in at.items():
        q[system.labels().coordinate_index(name, q.size)] = value
    return State(jnp.asarray(q, dtype), jnp.zeros(q.size, dtype), system.actuators().astype(dtype))


def content(result: Analysis, model: Model, rest: Rest, options, seconds: float) -> dict[str, Any]:
    """The findings for `write_json`; roots are pairs `[real, imaginary]`."""
    eq, lin, labels = result.equilibrium, result.linearization, result.system.labels()
    spectrum, lost, stabilizer = result.spectrum, result.lost, result.stabilizer
    zeros = ("constraint_zeros", "nonholonomic_zeros", "accidental_zeros")
    return {
        "jaxdae": __version__,
        "model": model.name,
        "source": model.source,
        "remark": rest.remark,
        "options": {k: v for k, v in vars(options).items() if k != "command"},
        "seconds": seconds,
        "formulation": type(result.formulation).__name__,
        "equilibrium": {
            "q": {labels.coordinate(i): float(x) for i, x in enumerate(eq.q)},
            "guess": {labels.coordinate(i): float(x) for i, x in enumerate(result.guess.q)},
            "w": eq.w,
            "u": inputs(eq),
            "multipliers": {labels.constraint(i): float(x) for i, x in enumerate(eq.multipliers)},
            "residual": eq.residual._asdict(),
        },
        "spectrum": _fields(spectrum, "verdict", "reason", "roots", "tolerances", *zeros)
        | {
            "motion": _plain(spectrum.others),
            "linearized_constraint": lost and _fields(lost, "valid", "reason", "wrong_roots"),
        },
        "linearization": {
            "state": result.state_names(),
            **_fields(lin, "A", "B", "A_full", "B_full"),
        },
        "stabilization": stabilizer
        and {
            "gains": gains(result),
            "roots": _plain(stabilizer.roots),
            "baumgarte_certificate": stabilizer.baumgarte
            and _fields(stabilizer.baumgarte, "largest_eps", "eps", "rate", "growth"),
            "linear_certificate": _fields(stabilizer.linear, "m1", "m2", "s", "rate"),
        },
        "integrated": _fields(result.field, "roots", "violation"),
        "step_limits": {k: _limits(x, result.dt) for k, x in result.limits.items()},
        "inputs": _control(result.control),
        "warnings": warnings(result),
    }


def _limits(limits: SolverLimits, dt) -> dict[str, Any]:
    """`null` stands for no limit, which is not a number in JSON, and where there is nothing."""
    field, factors = limits.field, limits.growth or (None, None)
    return {
        "stabilization": limits.stabilizer and limits.stabilizer.limit,
        "lyapunov_norm": limits.norm and limits.norm.limit,
        "all_roots": field.limit,
        "set_by": None if field.root is None else [field.root.real, field.root.imag],
        "unlimited": bool(np.isinf(field.limit)),
        "inside": None if dt is None else bool(dt <= field.limit),
        "growth": {"stabilization": factors[0], "all_roots": factors[1]},
    }


def _control(control: ControlAnalysis | None) -> dict[str, Any] | None:
    if control is None:
        return None
    reach, redundant, regulator = control.reach, control.redundant, control.regulator
    return {
        "rank": reach.rank,
        "size": len(reach.basis),
        "stairs": reach.stairs,
        "redundant_rank": redundant.rank,
        "redundant_size": len(redundant.basis),
        "fixed_roots": _plain(reach.roots),
        "K": regulator and regulator.K,
        "regulated_roots": regulator and _plain(regulator.roots),
        "failure": control.failure or None,
    }


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: Any) -> Any:
    """Complex numbers as pairs."""
    if not np.iscomplexobj(value):
        return value
    return np.stack([np.real(value), np.imag(value)], axis=-1).tolist()
