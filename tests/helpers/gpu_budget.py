"""Registers, spills and stacks of kernels for GPUs: which are measured, and what they may take.

PYTHONPATH=.:tests python -m helpers.gpu_budget            # budgeted kernels beside their budget
PYTHONPATH=.:tests python -m helpers.gpu_budget --renew    # write tests/kernels/cuda/budget.json
PYTHONPATH=.:tests python -m helpers.gpu_budget --matrix   # all models in all formulations
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.commands.choice import chosen_controller, chosen_formulation
from jaxdae.files import write_json
from jaxdae.kernels.cuda.assembler import architectures, assemble
from jaxdae.kernels.cuda.kernel import DeviceKernel
from jaxdae.kernels.launch import platforms
from jaxdae.models import get_model
from jaxdae.models.chain import Chain
from jaxdae.simulation.choices import FORMULATIONS
from jaxdae.solvers import RK4
from jaxdae.systems.checks import constraint_counts

BUDGET = Path(__file__).parents[1] / "kernels" / "cuda" / "budget.json"
ARCHITECTURES = ("sm_70", "sm_80", "sm_90", architectures()[-1])
KINDS = ("fixed", "adaptive", "tangent", "adjoint")
# By how much a kernel may exceed its budget before that is worth a word: another LLVM or assembler
# takes a few registers more here and fewer there.
REGISTERS, SHARE, BYTES = 8, 1.1, 16


class Case(NamedTuple):
    """A kernel.

    Args:
        model: a name of the registry, or `chain-10`.
        kind: "fixed", "adaptive", "tangent" or "adjoint".
        dtype: "float64" or "float32".
        formulation: name, or that of the model.
    """

    model: str
    kind: str = "fixed"
    dtype: str = "float64"
    formulation: str | None = None

    @property
    def name(self) -> str:
        """In the file of budgets."""
        words = (self.model, self.kind, self.dtype, self.formulation)
        return " ".join(x for x in words if x is not None)


# Of each system what the issue of registers is about: small ones stay in registers, of larger ones
# functions are called, adjoints have the most numbers.
QUICK = (
    Case("two-link"), Case("two-link", dtype="float32"), Case("pendulum", "adaptive"),
    Case("pendulum", "adjoint"),
)  # fmt: skip
SLOW = (
    Case("andrews"), Case("andrews", dtype="float32"), Case("four-bar"), Case("chain-10"),
    Case("two-link", "adjoint"), Case("four-bar", "tangent"), Case("andrews", "adjoint"),
)  # fmt: skip


def kernels(function: Callable, *arguments) -> list[DeviceKernel]:
    """Kernels for GPUs that a compiled function has, the last one first."""
    with _recorded() as made:
        jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",))
    return made[::-1]


@contextmanager
def _recorded() -> Iterator[list[DeviceKernel]]:
    made, make = [], platforms.device_kernel

    def record(work, dtype):
        kernel = make(work, dtype)
        # The examination of a start is a kernel, too; integrations call programs of steps.
        names = {x.name for x in work.definitions}
        if any(x.startswith(("step", "advance", "transposed_step")) for x in names):
            made.append(kernel)
        return kernel

    platforms.device_kernel = record
    try:
        yield made
    finally:
        platforms.device_kernel = make


def kernel_of(case: Case) -> DeviceKernel:
    """The kernel of a case; of derivatives the one that gives them."""
    system, formulation, controller, start = _problem(case)
    fixed: Any = {"dt": 0.001, "solver": RK4()}
    how: Any = {"solver": diffrax.Dopri5()} if case.kind == "adaptive" else fixed

    def end(q):
        made = simulate(
            system, formulation, State(q, start.v, start.w), t1=0.01, controller=controller,
            saveat=diffrax.SaveAt(t1=True), throw=False, start_tolerance=None, backend="native",
            **how,
        )  # fmt: skip
        return made.q

    functions = {
        "tangent": lambda q: jax.jvp(end, (q,), (jnp.ones_like(q),))[1],
        "adjoint": jax.grad(lambda q: jnp.sum(end(q))),
    }
    function = functions.get(case.kind, end)
    return kernels(jax.vmap(function), jnp.tile(start.q, (8, 1)))[0]


def _problem(case: Case) -> tuple[Any, Any, Any, State]:
    dtype = jnp.dtype(case.dtype)
    if case.model == "chain-10":
        system, gains = Chain.uniform(10), Baumgarte.critical(20.0)
        start = State(*system.straight(0.5 * jnp.pi))
        return system, Multipliers(gains), None, jax.tree.map(lambda x: x.astype(dtype), start)
    model = get_model(case.model)
    system = model.system()
    start = State(*system.start(), system.actuators())
    start = jax.tree.map(lambda x: jnp.asarray(x, dtype), start)
    options = SimpleNamespace(formulation=case.formulation)
    formulation = chosen_formulation(model, options, *constraint_counts(system, start))
    return system, formulation, chosen_controller(model, system, False), start


def measured(case: Case, names: tuple[str, ...] = ARCHITECTURES) -> dict[str, dict[str, int]]:
    """Registers, spilled bytes and bytes of the stack, by architecture."""
    kernel = kernel_of(case)
    results = {}
    for name in names:
        x = assemble(kernel.ptx, name).resources
        results[name] = {
            "registers": x.registers, "spilled": x.spill_bytes, "stack": x.stack_bytes
        }  # fmt: skip
    return results


def budget() -> dict[str, dict[str, dict[str, int]]]:
    """What kernels may take."""
    return json.loads(BUDGET.read_text())


def excess(case: Case) -> list[str]:
    """What a kernel takes beyond its budget and the margin, in words."""
    return [
        f"{case.name} on {name}: {value} {kind}, budget {allowed}"
        for name, row in measured(case).items()
        for kind, value in row.items()
        if value > _most(kind, allowed := budget()[case.name][_budgeted(name)][kind])
    ]


def _budgeted(name: str) -> str:
    """The newest architecture has one budget, whichever it is."""
    return "newest" if name == ARCHITECTURES[-1] else name


def _most(kind: str, allowed: int) -> float:
    return allowed + REGISTERS if kind == "registers" else SHARE * allowed + BYTES


def _renew(cases: tuple[Case, ...]) -> None:
    rows = {x.name: {_budgeted(name): row for name, row in measured(x).items()} for x in cases}
    write_json(BUDGET, rows)


def matrix(kinds: list[str]) -> Iterator[tuple[Case, str]]:
    """All models in all formulations: what their kernels take, or why there is none."""
    from jaxdae.models.registry import catalogue

    for model in catalogue():
        for formulation in FORMULATIONS:
            for kind in kinds:
                case = Case(model, kind, "float64", formulation)
                began = time.process_time()
                try:
                    rows = measured(case)
                except (ValueError, RuntimeError, IndexError) as error:
                    yield case, f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
                    break
                seconds = time.process_time() - began
                yield case, f"{[tuple(x.values()) for x in rows.values()]} {seconds:.1f} s"


def main() -> None:
    """Measure kernels, beside what they may take."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--renew", action="store_true", help="write the budget anew")
    parser.add_argument(
        "--matrix", nargs="+", choices=KINDS, help="kinds of kernels of all models and formulations"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    if options.renew:
        _renew(QUICK + SLOW)
    elif options.matrix:
        for case, words in matrix(options.matrix):
            print(f"{case.name:60} {words}", flush=True)
    else:
        for case in QUICK + SLOW:
            print(f"{case.name}: {measured(case)}, budget {budget()[case.name]}", flush=True)


if __name__ == "__main__":
    main()
