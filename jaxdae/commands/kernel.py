"""`jaxdae kernel MODEL`: the kernel of a batch of runs on a GPU, and what it would do there."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp

from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.commands.output import output_folder
from jaxdae.kernels.cuda.report import ASSUMED, KernelReport
from jaxdae.kernels.integration.device_report import kernel_report
from jaxdae.models import get_model, Model
from jaxdae.runs import simulate
from jaxdae.simulation.choices import make_solver
from jaxdae.simulation.problem import default_tolerance
from jaxdae.storage.files import replace_file, write_json
from jaxdae.systems import State
from jaxdae.systems.checks import constraint_counts
from jaxdae.tables import table
from jaxdae.version import __version__

# Steps of a run of a model whose study names none.
_STEPS = 1000


def run(options) -> int:
    """Run the command; 0 when PTX is written, also where nothing can be said of registers."""
    model = get_model(options.model)
    out = output_folder(options.out, options.model)
    dt = _step(model, options)
    report = _report(model, options, dt)
    print(_text(report, options, dt), flush=True)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / "kernel.ptx", report.kernel.ptx.encode())
    about = {"jaxdae": __version__, "model": options.model, "solver": options.solver, "dt": dt}
    write_json(out / "report.json", about | report.as_json())
    print(f"\nkernel.ptx and report.json are in {out}", flush=True)
    return 0


def _step(model: Model, options) -> float:
    """The step that is asked for, or that of the model's study [s]."""
    if options.dt is not None:
        return options.dt
    return getattr(model.study, "dt", model.t1 / _STEPS)


def _report(model: Model, options, dt: float) -> KernelReport:
    system, dtype = model.system(), jnp.dtype(options.dtype)
    first = State(*system.start(), system.actuators())
    start = jax.tree.map(lambda x: jnp.asarray(x, dtype), first)
    formulation = chosen_formulation(model, options, *constraint_counts(system, start))
    controller = chosen_controller(model, system, options.uncontrolled)
    solver = make_solver(options.solver, default_tolerance(dtype))

    def end(q, v):
        made = simulate(
            system, formulation, State(q, v, start.w), t1=options.t1 or model.t1, dt=dt,
            solver=solver, controller=controller, saveat=diffrax.SaveAt(t1=True), throw=False,
            start_tolerance=None, backend="native",
        )  # fmt: skip
        return made.q, made.v

    how: dict[str, Any] = {"architecture": options.arch, "members": options.members}
    return kernel_report(end, start.q, start.v, **how)


def _text(report: KernelReport, options, dt: float) -> str:
    head = (
        f"{options.model}: {report.members} members in {report.dtype}, {report.steps} steps of "
        f"{options.solver}, {dt:g} s each"
    )
    lines = [head, "", table(("", report.architecture), _rows(report))]
    if report.missing is not None:
        lines += ["", f"No registers: {report.missing}"]
    return "\n".join([*lines, "", ASSUMED])


def _rows(report: KernelReport) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    if report.resources is not None:
        rows += [
            ("registers of a thread", report.resources.registers),
            ("bytes spilled", report.resources.spill_bytes),
            ("bytes of its stack", report.resources.stack_bytes),
        ]
    rows += [
        ("operations a step", report.operations),
        ("bytes a run, of a member", report.bytes_per_member),
    ]
    return rows + [(f"steps/s at most, {x}", y) for x, y in report.rooflines.items()]
