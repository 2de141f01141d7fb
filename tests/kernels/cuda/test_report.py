"""Operations counted by hand, bytes of runs, what a report says where something is missing."""

import functools
import json
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Multipliers, simulate, State
from jaxdae.kernels import scalarize
from jaxdae.kernels.cuda import report as reports
from jaxdae.kernels.cuda.assembler import assemble, AssemblerMissingError
from jaxdae.kernels.cuda.report import DEVICES, operations
from jaxdae.kernels.integration.device_report import ASSUMED_STEPS, kernel_report, NoKernelError
from jaxdae.kernels.tracing.subprograms import Subprogram
from jaxdae.models import CartesianPendulum, TwoLinkManipulator
from jaxdae.simulation.backends import BackendError
from jaxdae.solvers import RK4

THREE = jax.ShapeDtypeStruct((3,), np.float64)


def program(function, *shapes, name="f", loops=False, **more) -> Subprogram:
    return Subprogram(name, scalarize(function, *shapes, loops=loops), **more)


def count(one: Subprogram) -> int:
    return operations(one, np.dtype(np.float64))


def test_operations_are_counted_as_their_instructions_take():
    def function(x):
        a, b, c = x
        return jnp.stack([a + b, a * c, a / b, jnp.sqrt(c), jnp.where(a < b, a, c), -a])

    # Quotients and roots take 16 each; a sign is part of what reads it.
    assert count(program(function, THREE)) == 1 + 1 + 16 + 16 + 2
    assert count(program(lambda x, y: jnp.dot(x, y), THREE, THREE)) == 5


def test_sine_and_cosine_of_one_angle_are_computed_at_once():
    one = count(program(lambda x: jnp.sin(x[0])[None], THREE))
    both = count(program(lambda x: jnp.stack([jnp.sin(x[0]), jnp.cos(x[0])]), THREE))
    two = count(program(lambda x: jnp.stack([jnp.sin(x[0]), jnp.cos(x[1])]), THREE))
    assert 20 < one <= both < 1.5 * one < 1.8 * one < two


SYSTEMS = {
    "two-link": TwoLinkManipulator,
    "pendulum": CartesianPendulum,
}


@functools.cache
def of(name: str, dtype: str = "float64", steps: int = 10, **more):
    system = SYSTEMS[name]()
    start = [jnp.asarray(x, dtype) for x in system.start()]
    how: Any = {"dt": 0.001, "solver": RK4(), "backend": "native", **more}

    def end(q, v):
        made = simulate(
            system, Multipliers(), State(q, v), t1=0.001 * steps, throw=False,
            saveat=diffrax.SaveAt(t1=True), start_tolerance=None, **how,
        )  # fmt: skip
        return made.q, made.v

    return kernel_report(end, *start, members=256)


def test_a_member_reads_its_start_and_writes_its_end():
    """Two coordinates and two velocities of eight bytes, twice."""
    report = of("pendulum", steps=10)
    assert (report.bytes_per_member, report.steps, report.members) == (64, 10, 256)
    assert report.bytes_per_step == 6.4
    assert of("pendulum", "float32").bytes_per_member == 32


@pytest.mark.slow
def test_of_adaptive_steps_a_number_is_assumed():
    report = of("pendulum", dt=None, solver=diffrax.Dopri5())
    assert report.steps == ASSUMED_STEPS
    # The summary, the number of steps and the last time beside the start and the end.
    assert report.bytes_per_member > 64


def test_the_two_link_arm_takes_160_registers_at_most_and_spills_nothing():
    report = of("two-link")
    for architecture in ("sm_70", "sm_80", "sm_90"):
        resources = assemble(report.kernel.ptx, architecture)
        assert resources.registers <= 160
        assert resources.spill_bytes == resources.stack_bytes == 0


def test_the_roofline_is_that_of_arithmetic_or_of_memory():
    report = of("two-link")
    assert report.rooflines.keys() == {"H100", "H200"}
    h100, *_ = DEVICES
    assert report.rooflines["H100"] == h100.float64_peak / report.operations
    saving = report._replace(bytes_per_member=10**9)
    assert saving.roofline(h100) == h100.bandwidth / (10**9 / report.steps)


def test_a_report_is_json_with_what_it_assumes():
    result = json.loads(json.dumps(of("pendulum").as_json()))
    assert {"registers", "spill_bytes", "operations", "bytes_per_member"} <= result.keys()
    assert result["roofline_steps_per_second"].keys() == {"H100", "H200"}
    assert "nothing was measured" in result["assumption"]


def test_without_an_assembler_all_else_is_there(monkeypatch):
    def missing(*_):
        raise AssemblerMissingError("there is no ptxas")

    monkeypatch.setattr(reports, "assemble", missing)
    report = of.__wrapped__("pendulum")
    result = report.as_json()
    assert ".entry kernel" in report.kernel.ptx
    assert (report.missing, report.resources) == ("there is no ptxas", None)
    assert result["registers"] is None
    assert result["missing"] == "there is no ptxas"
    assert result["operations"] > 0


def test_a_batch_has_arguments_and_members():
    with pytest.raises(ValueError, match="got 0 and 65536"):
        kernel_report(lambda: None)
    with pytest.raises(ValueError, match="got 1 and 0"):
        kernel_report(lambda x: x, 1.0, members=0)


def test_derivatives_and_several_runs_are_not_taken_for_one():
    """Their kernels need other registers than that of the run itself."""

    def end(q, t1=0.01):
        settings: Any = {"t1": t1, "dt": 0.005, "solver": RK4(), "backend": "native"}
        state = State(q, CartesianPendulum().start()[1])
        made = simulate(
            CartesianPendulum(), Multipliers(), state, throw=False, start_tolerance=None, **settings
        )
        return made.q[-1]

    q = jnp.asarray(CartesianPendulum().start()[0])
    with pytest.raises(ValueError, match="native_integration_tangents; give a function that calls"):
        kernel_report(lambda q: jax.jvp(end, (q,), (q,))[1], q)
    with pytest.raises(ValueError, match="has native_integration, native_integration; give"):
        kernel_report(lambda q: end(q) + end(q, t1=0.02), q)


def test_where_nothing_is_a_kernel_that_is_said():
    with pytest.raises(NoKernelError, match="nothing in this function is integrated by a kernel"):
        of("pendulum", backend="plain")
    with pytest.raises(BackendError, match="ImplicitEuler is no explicit or diagonally"):
        of("pendulum", dt=None, solver=diffrax.ImplicitEuler())
