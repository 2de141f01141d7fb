"""Multiplication and addition with one rounding, on arrays: `llvm.fma` on this machine.

Where the processor has no such instruction, LLVM calls the C library's function, which is exact,
too; tests compare both with fractions.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np

_TEXT = """
declare {kind} @llvm.fma.{name}({kind}, {kind}, {kind})
define void @fused_{name}(ptr %a, ptr %b, ptr %c, ptr %d, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %j, %loop ]
  %pa = getelementptr {kind}, ptr %a, i64 %i
  %pb = getelementptr {kind}, ptr %b, i64 %i
  %pc = getelementptr {kind}, ptr %c, i64 %i
  %pd = getelementptr {kind}, ptr %d, i64 %i
  %x = load {kind}, ptr %pa
  %y = load {kind}, ptr %pb
  %z = load {kind}, ptr %pc
  %w = call {kind} @llvm.fma.{name}({kind} %x, {kind} %y, {kind} %z)
  store {kind} %w, ptr %pd
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""
_KINDS = {"f32": "float", "f64": "double"}


@cache
def _engine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=2, jit=True
    )
    module = llvm.parse_assembly("".join(_TEXT.format(name=x, kind=y) for x, y in _KINDS.items()))
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    return engine


def fused(kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> Callable[[Any], np.ndarray]:
    """What computes `a b + c`, rounded once, each time it is called with the arrays as they are.

    Args:
        kind: `f32` or `f64`.
        a, b, c: contiguous arrays of that type, of one shape, which stay where they are.

    Returns:
        The function; it fills and returns one array, the same each time. Its argument is not used.
    """
    out = np.empty_like(a)
    arrays = a, b, c, out
    address = _engine().get_function_address(f"fused_{kind}")
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(address)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in arrays]
    count = ctypes.c_int64(a.size)

    def compute(_: Any) -> np.ndarray:
        call(*pointers, count)
        return arrays[-1]

    return compute
