"""Launches of kernels on GPUs: what the driver is asked for when XLA calls, through C."""

import ctypes
import re
import threading

import numpy as np
import pytest

from helpers.fake_cuda import CONTEXT, Device, FakeCuda
from helpers.xla_calls import address_of, Call, INITIALIZE, MADE, NO_STREAM, words
from jaxdae.kernels.cuda import launch
from jaxdae.kernels.cuda.driver import Driver
from jaxdae.kernels.cuda.launch import Handler, Modules
from jaxdae.kernels.cuda.ptx import DeviceKernel
from jaxdae.kernels.llvm import xla_interface


def text(parameters: int) -> str:
    """PTX with an entry of so many parameters; nobody reads more of it here."""
    listed = ",\n".join(f"  .param .u64 kernel_param_{i}" for i in range(parameters))
    head = ".version 6.0\n.target sm_70\n.address_size 64\n"
    return f"{head}.visible .entry kernel(\n{listed}\n)\n{{ ret; }}"


# Of an argument with the batch, a shared one, and a result: 3 + 2 + 4 words, and the members.
KERNEL = DeviceKernel(text(10), 2, 128, 64)


class Machine:
    """A handler on a machine with a driver."""

    def __init__(self, *devices: Device, kernel: DeviceKernel = KERNEL, **settings):
        self.cuda = FakeCuda(*devices, **settings)
        self.modules = Modules(Driver(self.cuda.library()))
        self.handler = Handler(kernel, lambda: self.modules)

    def call(self, members=(2, 75), device: int = 0, **settings) -> Call:
        self.cuda.make_current(device)
        arrays = np.ones(members), np.ones(7)
        made = Call(arrays, [np.zeros((*members, 4))], **settings)
        made.stream = settings.get("stream", self.cuda.stream(device))
        return made


def test_parameters_are_pointers_dimensions_and_the_number_of_members():
    machine = Machine()
    first, shared, result = np.ones((2, 75)), np.ones(7), np.zeros((2, 75, 4))
    machine.cuda.make_current(0)
    assert Call([first, shared], [result]).make(machine.handler.entry) is None
    (done,) = machine.cuda.launches
    assert done.words == (
        first.ctypes.data, 2, 75, shared.ctypes.data, 7, result.ctypes.data, 2, 75, 4, 150,
    )  # fmt: skip
    assert (done.grid, done.block, done.shared) == ((2, 1, 1), (64, 1, 1), 0)
    assert (done.context, done.stream, done.text) == (CONTEXT, 0x2000, KERNEL.ptx)


@pytest.mark.parametrize(("members", "blocks"), [((1, 64), 1), ((1, 65), 2), ((9, 900), 2)])
def test_no_more_blocks_run_than_members_need(members, blocks):
    machine = Machine()
    assert machine.call(members).make(machine.handler.entry) is None
    assert machine.cuda.launches[0].grid == (blocks, 1, 1)


def test_an_empty_batch_launches_nothing():
    machine = Machine()
    assert machine.call((0, 5)).make(machine.handler.entry) is None
    assert machine.cuda.calls == ["cuInit"]


# Modules.


def test_one_context_compiles_a_kernel_once_and_two_compile_it_twice():
    machine = Machine(Device(), Device())
    for device in (0, 1, 0, 1):
        assert machine.call(device=device).make(machine.handler.entry) is None
    assert [x.context for x in machine.cuda.loads] == [CONTEXT, CONTEXT + 1]
    assert [x.context for x in machine.cuda.launches] == [CONTEXT, CONTEXT + 1] * 2


def test_the_context_is_that_of_the_stream_and_another_one_is_current_again_afterwards():
    machine = Machine(Device(), Device())
    call = machine.call(device=1)
    machine.cuda.make_current(0)
    assert call.make(machine.handler.entry) is None
    assert machine.cuda.launches[0].context == CONTEXT + 1
    assert machine.cuda.current == [CONTEXT]
    call.stream = None
    assert call.make(machine.handler.entry) == NO_STREAM
    machine.cuda.failures["cuLaunchKernel"] = 701
    call.stream = machine.cuda.stream(1)
    assert call.make(machine.handler.entry) == MADE
    assert machine.cuda.current == [CONTEXT]


def test_the_stage_before_execution_compiles_and_launches_nothing():
    machine = Machine()
    # XLA need not say where arrays are.
    assert Call([], [], stage=INITIALIZE).make(machine.handler.entry) is None
    assert (len(machine.cuda.loads), machine.cuda.launches) == (1, [])
    assert machine.call().make(machine.handler.entry) is None
    assert (len(machine.cuda.loads), len(machine.cuda.launches)) == (1, 1)


def test_several_threads_compile_a_kernel_once_and_launch_all_they_were_asked_for():
    machine = Machine()
    began, results = threading.Event(), []

    def serve():
        results.append(machine.call().make(machine.handler.entry))

    machine.cuda.compiling = lambda: began.wait(5)
    threads = [threading.Thread(target=serve) for _ in range(4)]
    for x in threads:
        x.start()
    began.set()
    for x in threads:
        x.join(10)
    assert results == [None] * 4
    assert (len(machine.cuda.loads), len(machine.cuda.launches)) == (1, 4)


# XLA's interface.


def test_xla_learns_the_version_and_that_launches_are_not_recorded():
    machine = Machine()
    metadata = words(48, 24, 0, -1, -1, 0)
    extension = words(32, 1, 0, ctypes.addressof(metadata))
    call = Call([], [])
    call._frame[1] = ctypes.addressof(extension)
    call._frame[2] = 0  # XLA asks without its functions
    assert call.make(machine.handler.entry) is None
    major, minor = xla_interface.version() or (-1, -1)
    assert metadata[3] == major | minor << 32
    assert metadata[4] & 0xFFFFFFFF == 0


@pytest.mark.parametrize(
    "changed",
    [{"frame": 112}, {"arguments": 48}, {"results": 32}, {"buffer": 40}, {"api": 64}],
    ids=str,
)
def test_a_call_of_another_layout_is_an_error_and_is_not_read(changed):
    machine = Machine()
    found = machine.call(sizes=changed).error(machine.handler.entry)
    assert "by a layout that this release does not know; use another jaxlib" in found
    assert machine.cuda.launches == []


def test_nothing_is_raised_through_xla():
    def broken():
        raise KeyboardInterrupt("at the worst moment")

    found = Call([], [np.zeros(3)]).error(Handler(KERNEL, broken).entry)
    assert found == "jaxdae: KeyboardInterrupt: at the worst moment"


# Errors.


ERRORS = [
    ("cuLaunchKernel", 700, r"ILLEGAL_ADDRESS \(700\): an illegal .* restart the process", 13),
    (
        "cuLaunchKernel", 701,
        r"OUT_OF_RESOURCES \(701\).* backend='plain'.* 2 blocks of 64 .*256 at most.* 255 reg",
        13,
    ),
    ("cuLaunchKernel", 2, r"MEMORY \(2\).*MEM_FRACTION.* 3568 bytes .* with 3 MiB of 81920 MiB", 8),
    ("cuModuleLoadDataEx", 2, r"MEMORY \(2\): out of memory.*MEM_FRACTION", 8),
    ("cuModuleLoadDataEx", 222, r"UNSUPPORTED_PTX_VERSION \(222\).*too old.* update it", 13),
    ("cuStreamGetCtx", 700, r"ILLEGAL_ADDRESS.* restart", 13),
    ("cuLaunchKernel", 12345, r"an unknown error \(12345\).*Use backend='plain'", 13),
]  # fmt: skip


@pytest.mark.parametrize(("function", "code", "words", "kind"), ERRORS)
def test_errors_of_the_driver_are_errors_of_xla_with_the_remedy(function, code, words, kind):
    machine = Machine()
    machine.cuda.failures[function] = code
    call = machine.call()
    found = call.error(machine.handler.entry)
    assert re.search(f"jaxdae: {function} gave .*{words}", found), found
    assert call.errors[0][1] == kind
    # It is not remembered: what was missing may be there the next time.
    machine.cuda.failures.clear()
    assert machine.call().make(machine.handler.entry) is None


def test_what_the_compiler_says_is_part_of_the_error():
    machine = Machine()
    machine.cuda.log = b"ptxas application ptx input, line 9; fatal: unknown instruction\n"
    found = machine.call().error(machine.handler.entry)
    assert "CUDA_ERROR_INVALID_PTX (218)" in found
    assert found.endswith(
        "compiler says: ptxas application ptx input, line 9; fatal: unknown instruction"
    )


def test_a_gpu_that_is_too_old_is_named():
    machine = Machine(Device("NVIDIA GeForce GTX 1080", (6, 1)))
    call = machine.call()
    found = call.error(machine.handler.entry)
    words = "has compute capability 6.1, and kernels need 7.0 at least; use backend='plain'."
    assert found == f"jaxdae: NVIDIA GeForce GTX 1080 {words}"
    assert call.errors[0][1] == 9  # a precondition that failed
    assert machine.cuda.loads == []


def test_a_module_without_the_kernel_is_freed_again():
    machine = Machine(kernel=KERNEL._replace(ptx=".version 6.0"))
    found = machine.call().error(machine.handler.entry)
    assert "cuModuleGetFunction gave CUDA_ERROR_NOT_FOUND (500)" in found
    assert machine.cuda.unloaded == [0x3000]


# Names.


def test_a_name_tells_the_content_and_then_the_kernel():
    name = launch.register(KERNEL, "what it computes")
    assert launch.register(KERNEL, "what it computes") == name
    other = launch.register(KERNEL._replace(threads=256), "what it computes")
    third = launch.register(KERNEL, "another thing")
    assert len({name, other, third}) == 3
    assert name.split("_")[:2] == other.split("_")[:2] != third.split("_")[:2]
    assert address_of(launch._REGISTERED[name].entry) != 0
