"""XLA's interface for native functions: sizes are checked before anything else is read."""

import ctypes

import pytest

from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.module import Definition, LlvmModule
from jaxdae.kernels.llvm.xla_interface import handler

# In place of the threads: it writes the number of members that it gets.
SHARE = """
define internal void @share(ptr %a, ptr %r, i64 %members) {
  %first = load ptr, ptr %a
  store i64 %members, ptr %first
  ret void
}
"""
MAKE_ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
# As XLA 0.3 to 0.5 gives them: of the call frame, its two tables, and a buffer, in bytes.
SIZES = {"frame": 168, "arguments": 40, "results": 40, "buffer": 48}


@pytest.fixture(scope="module")
def call():
    module = LlvmModule([Definition("share", SHARE), *handler(2)])
    (address,) = machine_code.functions(module, ["handler"])
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


def numbers(*values):
    return (ctypes.c_int64 * len(values))(*values)


def called(call, **changed):
    """The number of members that was served, and the message of the error."""
    size = SIZES | changed
    served, messages = numbers(-1), []

    def error(arguments):
        words = ctypes.cast(arguments, ctypes.POINTER(ctypes.c_int64))
        assert (words[0], words[1], words[3] & 0xFFFFFFFF) == (28, 0, 13)
        messages.append(ctypes.string_at(words[2]).decode())
        return 7

    make = MAKE_ERROR(error)
    at = ctypes.addressof
    shape = numbers(3, 5)
    buffer = numbers(size["buffer"], 0, 12, 0, 2, at(shape))
    given, results = numbers(at(served)), numbers(at(buffer))
    table = numbers(0, 0, 24, 0, 0, 0, ctypes.cast(make, ctypes.c_void_p).value or 0)
    frame = numbers(
        size["frame"], 0, at(table), 0, 3, size["arguments"], 0, 1, 0, at(given),
        size["results"], 0, 1, 0, at(results), *[0] * 6,
    )  # fmt: skip
    found = call(at(frame))
    assert found == (7 if messages else None)
    return served[0], messages


def test_a_frame_of_the_known_layout_is_served(call):
    assert called(call) == (15, [])


def test_a_longer_frame_or_buffer_is_one_of_a_later_version(call):
    assert called(call, frame=200, buffer=64) == (15, [])


@pytest.mark.parametrize(
    "changed", [{"frame": 112}, {"arguments": 48}, {"results": 32}, {"buffer": 40}]
)
def test_a_frame_of_another_layout_is_an_error_and_is_not_read(call, changed):
    served, (message,) = called(call, **changed)
    assert served == -1
    assert "a layout that this release does not know; use simulate(..., backend='plain')" in message
