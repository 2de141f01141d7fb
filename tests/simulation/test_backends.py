"""Which backend makes a run: the choice, its reasons, and that nothing remembered is stale."""

import importlib.util
import re
from types import SimpleNamespace

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.fake_cuda import FakeCuda
from helpers.spring import run, Spring
from jaxdae import MinimumNormSolve, Multipliers, runs, simulate, State
from jaxdae.kernels.cuda import driver as driver_of_gpus
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.launch import obstacles
from jaxdae.kernels.llvm import machine_code, xla_interface
from jaxdae.kernels.llvm.module import LlvmModule
from jaxdae.memory import Memory
from jaxdae.models import CartesianPendulum, Chain
from jaxdae.simulation.backends import BackendError
from jaxdae.solvers import RK4


@pytest.fixture(autouse=True)
def _machines_that_change(monkeypatch):
    """Runs are made ready anew: the machine is another one from test to test, and within some."""
    monkeypatch.setattr(runs, "_READY", Memory(1))
    monkeypatch.setattr(runs, "_FRAMES", Memory(0))


SaveAt, PID = diffrax.SaveAt, diffrax.PIDController
LOOSE = PID(rtol=1e-4, atol=1e-6)


# The choice.


class OwnStep(diffrax.Tsit5):
    """A tableau, but steps of its own."""

    def step(self, *arguments, **named):
        return super().step(*arguments, **named)


class OwnPID(diffrax.PIDController):
    """A step size controller that may do anything."""


OBSTACLES = [
    ({"solver": diffrax.ImplicitEuler(), "dt": None}, "ImplicitEuler is no explicit or diag"),
    ({"solver": diffrax.Euler()}, "Euler is no explicit or diagonally implicit"),
    ({"solver": OwnStep()}, "OwnStep has a method step of its own"),
    (
        {"solver": diffrax.Tsit5(), "stepsize_controller": OwnPID(1e-3, 1e-3)},
        "steps are chosen by OwnPID, not by diffrax.PIDController",
    ),
    ({"saveat": SaveAt(dense=True)}, "SaveAt asks for more than plain states"),
    ({"saveat": SaveAt(t1=True, fn=lambda t, y, args: y.q)}, "more than plain states"),
    ({"saveat": SaveAt(subs=[diffrax.SubSaveAt(t1=True)])}, "more than plain states"),
    ({"saveat": SaveAt(steps=True, ts=[0.1])}, "asks for times and steps together"),
    (
        {
            "saveat": SaveAt(steps=2, t1=True), "stepsize_controller": LOOSE, "max_steps": 64,
            "solver": diffrax.Tsit5(),
        },
        "some of the steps and the end",
    ),
    ({"progress": diffrax.TextProgressMeter()}, "a progress meter is to be shown"),
    ({"adjoint": diffrax.ImplicitAdjoint()}, "ImplicitAdjoint is an adjoint of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "reason"), OBSTACLES, ids=[x for _, x in OBSTACLES])
def test_what_a_kernel_cannot_do_is_refused_by_name(settings, reason):
    with pytest.raises(BackendError, match=rf"native backend cannot serve.*{reason}.*'plain'"):
        run(backend="native", **settings)


@pytest.mark.slow
def test_by_default_obstacles_are_told_and_diffrax_serves():
    found = run(progress=diffrax.TextProgressMeter())
    assert found.backend == "plain"
    assert found.why_not_native == "a progress meter is to be shown"
    np.testing.assert_allclose(found.q, run(backend="native").q, rtol=1e-14)


@pytest.mark.slow
def test_work_is_integrated_beside_the_motion():
    works = [run(backend=name, work=True).work for name in ("native", "plain")]
    # Four integrals of the order of 1 J, summed in another order.
    for one, other in zip(*map(jax.tree.leaves, works), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_many_bodies_are_left_to_diffrax():
    links = Chain.uniform(257)
    q = jnp.stack([jnp.arange(1, 258) / 257, jnp.zeros(257)], 1).ravel()
    start = State(q, jnp.zeros(514))
    small = {"t1": 1e-3, "dt": 1e-3, "solver": RK4(), "backend": "native"}
    with pytest.raises(BackendError, match="1028 states are more than 1024"):
        simulate(links, jaxdae.Multipliers(), start, **small)
    with pytest.raises(BackendError, match=r"SparseSolve\(\) is for more bodies"):
        simulate(links, Multipliers(solve=jaxdae.formulations.SparseSolve()), start, **small)


@pytest.mark.slow
def test_by_default_the_native_backend_serves_where_it_can():
    found = run()
    assert (found.backend, found.why_not_native) == ("native", None)
    plain = run(backend="plain")
    assert (plain.backend, plain.why_not_native) == ("plain", None)


@pytest.mark.parametrize("broken", [False, True], ids=["missing", "broken"])
def test_without_llvmlite_diffrax_serves_and_says_so_once(broken, monkeypatch):
    if broken:
        monkeypatch.setattr(machine_code, "_llvm", does_not_load)
        reason = "llvmlite is installed, but does not load: wrong ABI"
    else:
        find = importlib.util.find_spec
        lacking = lambda x: None if x == "llvmlite" else find(x)  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", lacking)
        reason = "llvmlite is not installed: pip install llvmlite"
    obstacles.warn.cache_clear()
    with pytest.warns(RuntimeWarning, match=f"plain backend, slower .* last digits: {reason}"):
        found = run()
    assert (found.backend, found.why_not_native) == ("plain", reason)
    assert run().backend == run(backend="plain").backend == "plain"
    with pytest.raises(BackendError, match=reason):
        run(backend="native")


def does_not_load():
    raise ImportError("llvmlite is installed, but does not load: wrong ABI")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 99",
            r"has version 0\.99 .*0\.3 to",
        ),
        ("#define XLA_FFI_API_MAJOR 1\n#define XLA_FFI_API_MINOR 3", r"has version 1\.3 of the in"),
        ("#define XLA_FFI_API_MINOR 3", "does not say which version its interface"),
        (None, "does not say which version its interface"),
    ],
)
def test_another_interface_of_xla_is_not_trusted(text, reason, tmp_path, monkeypatch):
    header = tmp_path / "xla" / "ffi" / "api" / "c_api.h"
    header.parent.mkdir(parents=True)
    if text is not None:
        header.write_text(text)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    monkeypatch.setattr(xla_interface, "version", xla_interface.version.__wrapped__)
    found = run()
    assert found.backend == "plain"
    assert re.search(reason, str(found.why_not_native))
    with pytest.raises(BackendError, match=reason):
        run(backend="native")
    with pytest.raises(
        machine_code.MachineCodeError, match=f"{reason}.*; use the function without"
    ):
        machine_code.register(LlvmModule([]))


def on_a_gpu(monkeypatch, driver):
    """As if JAX computed on GPUs by NVIDIA, of which a driver knows this."""
    monkeypatch.setattr(obstacles, "platform", lambda: "cuda")
    monkeypatch.setattr(driver_of_gpus, "installed", driver)
    obstacles.warn.cache_clear()


def test_where_a_gpu_cannot_run_kernels_diffrax_serves_and_says_so_once(monkeypatch):
    on_a_gpu(monkeypatch, lambda: Driver(FakeCuda(version=11080).library()))
    reason = r"GPUs knows CUDA 11\.8, and kernels need 12\.0 at least: update it"
    with pytest.warns(RuntimeWarning, match=f"plain backend, slower .* last digits: .*{reason}"):
        found = run()
    assert found.backend == "plain"
    assert re.search(reason, str(found.why_not_native))
    assert run().backend == "plain"
    with pytest.raises(BackendError, match=f"{reason}. Use backend='auto' or 'plain'"):
        run(backend="native")


def test_where_a_gpu_can_run_kernels_they_are_taken(monkeypatch):
    on_a_gpu(monkeypatch, lambda: Driver(FakeCuda().library()))
    assert run().backend == "native"


def test_on_a_gpu_llvm_is_needed_and_no_library_of_c(monkeypatch):
    on_a_gpu(monkeypatch, lambda: Driver(FakeCuda().library()))
    monkeypatch.setattr(machine_code, "_WANTED", ("no_such_function",))
    assert obstacles.obstacle() is None
    monkeypatch.setattr(machine_code, "_llvm", does_not_load)
    assert obstacles.obstacle() == "llvmlite is installed, but does not load: wrong ABI"


def test_on_other_devices_diffrax_serves(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    assert str(obstacles.obstacle()).startswith("JAX computes on tpu, kernels on processors")
    for client, name in (("rocm 7.0", "rocm"), ("oneapi", "gpu")):
        device = SimpleNamespace(client=SimpleNamespace(platform_version=f"PJRT C API\n{client}"))
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(jax, "devices", lambda device=device: [device])
        words = f"JAX computes on {name}, kernels on processors and on GPUs by NVIDIA"
        with pytest.raises(BackendError, match=words):
            run(backend="native")


def test_gpus_by_nvidia_have_the_name_of_their_lowering_rules(monkeypatch):
    device = SimpleNamespace(client=SimpleNamespace(platform_version="PJRT C API\ncuda 12090"))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert obstacles.platform() == "cuda"


def test_backends_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match="backend is 'fast'; give 'auto', 'plain' or 'native'"):
        run(backend="fast")  # pyright: ignore[reportArgumentType]


def test_a_number_of_fixed_steps_must_be_known():
    reason = "number of fixed steps is known only when the run is made"
    with pytest.raises(BackendError, match=reason):
        jax.jit(lambda dt: run(dt=dt, backend="native", saveat=SaveAt(t1=True)).q)(0.1)


class Spun(Spring):
    """A force by a singular value decomposition."""

    def force(self, t, q, v, w, u):
        return -jnp.linalg.svd(jnp.outer(q, q) + jnp.eye(2))[1] * q


@pytest.mark.slow
def test_operations_without_a_rule_are_named_with_their_line():
    with pytest.raises(BackendError, match=r"svd(?s:.)*test_backends\.py:\d+ \(Spun\.force\)"):
        run(Spun(), backend="native")
    found = run(Spun())
    assert found.backend == "plain"
    assert "svd" in str(found.why_not_native)
    pendulum = CartesianPendulum()
    settings = {"t1": 0.1, "dt": 0.1, "solver": RK4()}
    formulation = Multipliers(solve=MinimumNormSolve(rcond=1e-3))
    found = simulate(pendulum, formulation, State(*pendulum.start()), **settings)
    assert found.backend == "plain"
    assert found.why_not_native is not None


class Chosen(Spring):
    """A stiffness taken from a table by a number in an array."""

    number: jax.Array = eqx.field(default_factory=lambda: jnp.array(1))

    def force(self, t, q, v, w, u):
        return -jnp.array([1.0, 2.0])[self.number] * q


@pytest.mark.slow
def test_arrays_of_whole_numbers_are_refused():
    with pytest.raises(BackendError, match="an array that holds no floating-point numbers"):
        run(Chosen(), backend="native")
    assert run(Chosen()).backend == "plain"


def test_controllers_that_close_over_numbers_of_a_trace_are_refused():
    """Never may a number of one trace stay in a kernel that another one uses."""

    def end(gain):
        return run(controller=lambda t, q, v, w: -gain * q[0]).q[-1]

    with pytest.raises(ValueError, match="controller closes over a value that is being"):
        jax.jit(end)(3.0)


# Times.

ORDER = "between t0 and t1, in the order in which the times are reached"


@pytest.mark.parametrize("ts", [[0.1, 0.3, 0.2], [0.1, 0.2, 0.4], [-0.1, 0, 0.1]])
def test_saved_times_that_do_not_fit_are_refused_when_traced(ts):
    ends = eqx.filter_jit(lambda ts: run(saveat=SaveAt(ts=ts), backend="native").q)
    with pytest.raises(Exception, match=ORDER):
        jax.block_until_ready(ends(jnp.array(ts)))


@pytest.mark.slow
def test_times_computed_on_the_way_are_checked():
    settings = {"solver": diffrax.Tsit5(), "stepsize_controller": LOOSE, "backend": "native"}
    end = eqx.filter_jit(lambda t1: run(t1=t1, dt=None, saveat=SaveAt(ts=[0.1]), **settings).q)
    with pytest.raises(Exception, match=ORDER):
        jax.block_until_ready(end(jnp.array(0.05)))
    first = eqx.filter_jit(lambda dt: run(dt=dt, saveat=SaveAt(t1=True), **settings).q)
    with pytest.raises(Exception, match="dt does not lead from t0 to t1"):
        jax.block_until_ready(first(jnp.array(-0.1)))


# Where JAX does other things than usual.


class CalledBack(Spring):
    """A force whose reverse derivative is a call back to the host."""

    def force(self, t, q, v, w, u):
        return _called_back(super().force(t, q, v, w, u))


@jax.custom_vjp
def _called_back(x):
    return 2 * x


def _pulled(_, x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return (jax.pure_callback(lambda x: 2 * np.asarray(x), shape, x, vmap_method="sequential"),)


_called_back.defvjp(lambda x: (2 * x, None), _pulled)


@pytest.mark.slow
def test_a_derivative_that_cannot_be_a_kernel_is_told_with_the_remedy():
    def end(stiffness, backend):
        return run(CalledBack(stiffness), backend=backend).q[-1].sum()

    # The force and its derivative are twice those of a spring.
    twice = jax.grad(lambda k: run(Spring(2 * k)).q[-1].sum())(2.0)
    auto = jax.jit(jax.grad(lambda k: end(k, "auto")))(2.0)
    np.testing.assert_allclose(auto, twice, rtol=1e-12)
    message = "native kernel, but not this derivative: pure_callback.*backend='plain'"
    with pytest.raises(jaxdae.BackendError, match=message):
        jax.grad(end)(2.0, "native")


@pytest.mark.slow
def test_names_of_kernels_tell_their_content_on_every_machine(monkeypatch):
    def text(stiffness):
        lower = jax.jit(lambda k: run(Spring(k), backend="native").q).lower(stiffness)
        return lower.as_text()

    here = text(2.0)
    monkeypatch.setattr(machine_code, "default_threads", lambda: 7)
    jax.clear_caches()
    elsewhere = text(2.0)
    assert here != elsewhere
    assert machine_code.portable_names(here) == machine_code.portable_names(elsewhere)
    other = jax.jit(lambda k: run(Spring(k, sign=-1), backend="native").q).lower(2.0).as_text()
    assert machine_code.portable_names(other) != machine_code.portable_names(elsewhere)
