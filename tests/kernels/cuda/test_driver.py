"""The driver of GPUs: what it is asked, what it answers, and what keeps kernels from running."""

import ctypes
import sys

import pytest

from helpers.fake_cuda import CONTEXT, Device, FakeCuda, PROTOTYPES, STREAM
from jaxdae.kernels.cuda import driver as module, launch
from jaxdae.kernels.cuda.driver import Driver, DriverError, installed
from jaxdae.kernels.cuda.ptx import DeviceKernel
from jaxdae.kernels.llvm import xla_interface

TEXT = ".visible .entry kernel(\n.param .u64 a,\n.param .u64 b\n)"


def a_driver(*devices: Device, **settings) -> tuple[FakeCuda, Driver]:
    cuda = FakeCuda(*devices, **settings)
    cuda.make_current(0)
    return cuda, Driver(cuda.library())


def test_functions_are_declared_as_they_are_in_the_header():
    sizes = {"p": 8, "s": 8, "i": 4, "u": 4}
    for name, kinds in PROTOTYPES.items():
        assert [ctypes.sizeof(x) for x in module.PROTOTYPES[name]] == [sizes[x] for x in kinds]
    assert module.PROTOTYPES.keys() == PROTOTYPES.keys()


def test_the_compiler_gets_text_that_ends_and_room_for_its_words():
    cuda, driver = a_driver()
    handle = driver.load(TEXT)
    (load,) = cuda.loads
    assert (load.text, load.context) == (TEXT, CONTEXT)
    assert load.options.keys() == {5, 6}  # CU_JIT_ERROR_LOG_BUFFER and its size in bytes
    assert load.options[6] == 8192
    assert driver.needs(driver.function(handle, "kernel")) == [255, 3568, 256]
    driver.unload(handle)
    assert cuda.unloaded == [handle]


def test_a_launch_has_one_row_of_blocks_and_parameters_of_64_bits():
    cuda, driver = a_driver()
    function = driver.function(driver.load(TEXT), "kernel")
    driver.launch(function, 2**31 - 1, 1024, STREAM, (2**64 - 1, 0))
    (launched,) = cuda.launches
    assert (launched.grid, launched.block) == ((2**31 - 1, 1, 1), (1024, 1, 1))
    assert (launched.shared, launched.stream) == (0, STREAM)
    assert launched.words == (2**64 - 1, 0)


REMEDIES = [
    (2, r"out of memory\. Leave the GPU more memory .* XLA_PYTHON_CLIENT_MEM_FRACTION .* 0\.75"),
    (3, "made by fork start a new interpreter"),
    (100, "Check with nvidia-smi that there is a GPU, and CUDA_VISIBLE_DEVICES"),
    (209, "GPU is too old for the kernel: use backend='plain'"),
    (218, "mistake in jaxdae; please report it, and use backend='plain' until then"),
    (221, "libnvidia-ptxjitcompiler.so.1"),
    (222, "too old for the kernel: update it, or use backend='plain'"),
    (223, "Unset CUDA_DISABLE_PTX_JIT"),
    (701, "need more registers than the GPU has: use backend='plain'"),
    (702, "restart the process.* A GPU with a display stops long kernels: take fewer steps"),
    (803, "restart the machine"),
    *((x, "restart the process") for x in (201, 214, 220, 700, 709, 710, *range(714, 720), 999)),
    (46, "Use backend='plain'"),
]


@pytest.mark.parametrize(("code", "words"), REMEDIES)
def test_each_error_comes_with_what_is_to_be_done(code, words):
    cuda, driver = a_driver()
    cuda.failures["cuDriverGetVersion"] = code
    with pytest.raises(DriverError, match=rf"^cuDriverGetVersion gave .* \({code}\): .*{words}"):
        driver.version()


# What keeps kernels from running.


@pytest.mark.parametrize(("system", "name"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_no_driver_is_an_obstacle_in_words(system, name, monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(module, "installed", installed.__wrapped__)
    words = rf"not installed: {name} does not load \({name}: cannot open shared object"
    with pytest.raises(DriverError, match=words):
        module.installed()
    assert f"is not installed: {name} does not load" in str(launch.obstacle())


def test_a_driver_that_finds_no_gpu_is_an_obstacle(monkeypatch):
    cuda = FakeCuda()
    cuda.failures["cuInit"] = 100
    monkeypatch.setattr(ctypes, "CDLL", lambda _: cuda.library())
    monkeypatch.setattr(module, "installed", installed.__wrapped__)
    words = r"cuInit gave CUDA_ERROR_NO_DEVICE \(100\): no CUDA-capable .* nvidia-smi .*VISIBLE_DEV"
    with pytest.raises(DriverError, match=words) as error:
        module.installed()
    assert error.value.code == 100
    assert "CUDA_ERROR_NO_DEVICE" in str(launch.obstacle())


def test_functions_that_are_missing_are_named():
    library = FakeCuda().library()
    del library.cuCtxGetId
    with pytest.raises(DriverError, match=r"has no cuCtxGetId: it is older than CUDA 12\.0, which"):
        Driver(library)


@pytest.mark.parametrize(
    ("devices", "version", "reason"),
    [
        ([Device()], 12000, None),
        ([Device("V100", (7, 0)), Device()], 13010, None),
        ([Device()], 11080, "knows CUDA 11.8, and kernels need 12.0 at least: update it"),
        (
            [Device(), Device("NVIDIA Tesla P100", (6, 0))], 12080,
            "NVIDIA Tesla P100 has compute capability 6.0, and kernels need 7.0 at least",
        ),
    ],
)  # fmt: skip
def test_old_drivers_and_old_gpus_are_named(devices, version, reason, monkeypatch):
    _, driver = a_driver(*devices, version=version)
    monkeypatch.setattr(module, "installed", lambda: driver)
    found = launch.obstacle()
    assert found is None if reason is None else reason in str(found)


def test_an_unknown_interface_of_xla_is_an_obstacle(monkeypatch):
    monkeypatch.setattr(xla_interface, "version", lambda: (0, 99))
    assert "jaxlib has version 0.99 of the interface" in str(launch.obstacle())


def test_the_driver_is_not_loaded_before_a_kernel_runs(monkeypatch):
    """Programs for GPUs are made where there are none."""
    asked = []
    monkeypatch.setattr(ctypes, "CDLL", asked.append)
    launch.register(DeviceKernel("of this test alone", 1, 64, 64), "")
    assert asked == []
