"""Threads that share a batch: their stacks hold what they run."""

import subprocess
import sys

import pytest

from jaxdae.kernels.llvm.module import stack_need
from jaxdae.kernels.llvm.writer import Writer

# Each part of a batch writes to a large array on the stack, from its top downwards; without a limit
# of the stack, glibc gives threads that do not ask for more two megabytes.
PROGRAM = """
import jax, jax.numpy as jnp
from jaxdae.kernels.launch.platforms import assembled
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.llvm.batch_loops import Lanes

size = 2_000_000
w = Lanes(1, "float64")
room = w.room(size, "double")
with w.turns(0, size) as turns:
    last = w.put("i64", f"sub i64 {size - 1}, {turns.index}")
    w.line(f"  store volatile double 1.0, ptr {w.place('double', room, last)}")
name = machine_code.register(assembled([w.finish()], 1, 4, 1))
call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((64,), jnp.float32))
jax.block_until_ready(jax.jit(call)(jnp.zeros(64)))
print("done")
"""


@pytest.mark.slow
def test_large_arrays_fit_where_the_stack_has_no_limit():
    """16 MB for each thread."""
    raised = 'ulimit -s "$(ulimit -H -s)" && exec "$@"'
    command = ["sh", "-c", raised, "sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=-1, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


def functions():
    """Two functions, of which one calls the other at two places."""
    inner, outer = Writer(8, "float64"), Writer(8, "float64")
    inner.room(100)
    inner.room(1, "<8 x float>")
    outer.room(40, "i8")
    outer.put("<8 x double>", "fadd <8 x double> %x, %y")
    outer.put("double", "fadd double %x, %y")
    outer.invoke("void", "inner", "ptr %a")
    outer.invoke("void", "inner", "ptr %a")
    return [inner.define("inner", "ptr %a"), outer.define("run", "ptr %a")]


def test_the_need_of_a_stack_counts_arrays_and_registers():
    inner = 100 * 8 * 8 + 8 * 4
    outer = 40
    # Each of two places may have its own; registers wait there one by one, or a quarter of them.
    assert stack_need(functions(), quickly=True) == 2 * inner + outer + 64 + 8
    assert stack_need(functions(), quickly=False) == 2 * inner + outer + (64 + 8) // 4
