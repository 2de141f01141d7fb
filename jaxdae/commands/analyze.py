"""`jaxdae analyze MODEL`: equilibrium, stability, certificates, step limits, regulator."""

import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae import __version__
from jaxdae.analysis import EquilibriumError
from jaxdae.analysis.findings import Analysis, analyze, Control, SolverLimits, Stabilizer
from jaxdae.commands.choice import chosen_formulation
from jaxdae.commands.output import output_folder
from jaxdae.commands.report import gains, inputs, report, warnings
from jaxdae.files import write_json
from jaxdae.models import get_model, Model
from jaxdae.models.base import Rest
from jaxdae.models.registry import rest_of
from jaxdae.plotting import plot_roots, save_figure
from jaxdae.simulation.choices import make_solver
from jaxdae.solvers import AdamsBashforth
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
    """Methods whose step limits are shown, by name.

    Args:
        more: names of those that are asked for besides the common ones.
    """
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
    """The findings for `write_json`; roots are pairs `[real, imaginary]`.

    Args:
        result: from `analyze`.
        model: entry of the registry.
        rest: its state of rest.
        options: of the command.
        seconds: what the command took.
    """
    eq, lin, labels = result.equilibrium, result.linearization, result.system.labels()
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
        "spectrum": _spectrum(result),
        "linearization": {
            "state": result.state_names(),
            **_fields(lin, "A", "B", "A_full", "B_full"),
        },
        "stabilization": _stabilizer(result, result.stabilizer),
        "integrated": {"roots": _pairs(result.field.roots), "violation": result.field.violation},
        "step_limits": {k: _limits(x, result.dt) for k, x in result.limits.items()},
        "inputs": _control(result.control),
        "warnings": warnings(result),
    }


def _spectrum(result: Analysis) -> dict[str, Any]:
    spectrum, lost = result.spectrum, result.lost
    zeros = ("constraint_zeros", "nonholonomic_zeros", "accidental_zeros")
    return {
        **_fields(spectrum, "verdict", "reason"),
        "roots": _pairs(spectrum.roots),
        "motion": _pairs(spectrum.others),
        **_fields(spectrum, "tolerances", *zeros),
        "linearized_constraint": None
        if lost is None
        else _fields(lost, "valid", "reason") | {"wrong_roots": _pairs(lost.wrong_roots)},
    }


def _stabilizer(result: Analysis, stabilizer: Stabilizer | None) -> dict[str, Any] | None:
    if stabilizer is None:
        return None
    b, names = stabilizer.baumgarte, ("largest_eps", "eps", "rate", "growth")
    return {
        "gains": gains(result),
        "roots": _pairs(stabilizer.roots),
        "baumgarte_certificate": None if b is None else _fields(b, *names),
        "linear_certificate": _fields(stabilizer.linear, "m1", "m2", "s", "rate"),
    }


def _limits(limits: SolverLimits, dt) -> dict[str, Any]:
    """`null` stands for no limit, which is not a number in JSON, and where there is nothing."""
    field, factors = limits.field, limits.growth or (None, None)
    return {
        "stabilization": limits.stabilizer.limit if limits.stabilizer else None,
        "lyapunov_norm": limits.norm.limit if limits.norm else None,
        "all_roots": field.limit,
        "set_by": None if field.root is None else [field.root.real, field.root.imag],
        "unlimited": bool(np.isinf(field.limit)),
        "inside": None if dt is None else bool(dt <= field.limit),
        "growth": {"stabilization": factors[0], "all_roots": factors[1]},
    }


def _control(control: Control | None) -> dict[str, Any] | None:
    if control is None:
        return None
    reach, redundant = control.reach, control.redundant
    return {
        "rank": reach.rank,
        "size": len(reach.basis),
        "stairs": reach.stairs,
        "redundant_rank": redundant.rank,
        "redundant_size": len(redundant.basis),
        "fixed_roots": _pairs(reach.roots),
        "K": control.regulator.K if control.regulator else None,
        "regulated_roots": _pairs(control.regulator.roots) if control.regulator else None,
        "failure": control.failure or None,
    }


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _pairs(roots) -> list[list[float]]:
    return np.stack([np.real(roots), np.imag(roots)], axis=-1).tolist()
