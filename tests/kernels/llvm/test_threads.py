"""Threads that share a batch: their stacks hold what they run."""

import subprocess
import sys

from jaxdae.kernels.llvm.threads import share, stack_need

# Each part of a batch writes to a large array on the stack, from its top downwards; without a limit
# of the stack, glibc gives threads that do not ask for more two megabytes.
RUN = """
define internal void @run(ptr %arguments, ptr %results, i64 %begin, i64 %end) {
entry:
  %room = alloca double, i64 2000000
  br label %turn
turn:
  %i = phi i64 [1999999, %entry], [%next, %turn]
  %place = getelementptr double, ptr %room, i64 %i
  store volatile double 1.0, ptr %place
  %next = sub i64 %i, 1
  %more = icmp sge i64 %next, 0
  br i1 %more, label %turn, label %done
done:
  ret void
}
"""
PROGRAM = """
import sys, jax, jax.numpy as jnp
from jaxdae.kernels.llvm import machine_code
from jaxdae.kernels.launch.assembly import assembled

name = machine_code.register(assembled([sys.argv[1]], 1, 4, 1))
call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((64,), jnp.float32))
jax.block_until_ready(jax.jit(call)(jnp.zeros(64)))
print("done")
"""


def test_large_arrays_fit_where_the_stack_has_no_limit():
    """16 MB for each thread."""
    raised = 'ulimit -s "$(ulimit -H -s)" && exec "$@"'
    command = ["sh", "-c", raised, "sh", sys.executable, "-c", PROGRAM, RUN]
    done = subprocess.run(command, stdout=-1, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


FUNCTIONS = """
define internal void @inner(ptr %a) {
  %r1 = alloca <8 x double>, i64 100, align 64
  %r2 = alloca <8 x float>
  ret void
}

define internal void @run(ptr %a) {
  %p = alloca %task
  %r1 = fadd <8 x double> %x, %y
  %r2 = fadd double %x, %y
  call void @inner(ptr %a)
  call void @inner(ptr %a)
  ret void
}
"""


def test_the_need_of_a_stack_counts_arrays_and_registers():
    inner = 100 * 8 * 8 + 8 * 4
    outer = 64
    # Each of two places may have its own; registers wait there one by one, or a quarter of them.
    assert stack_need(FUNCTIONS, quickly=True) == 2 * inner + outer + 64 + 8
    assert stack_need(FUNCTIONS, quickly=False) == 2 * inner + outer + (64 + 8) // 4


def test_only_what_needs_much_waits_for_threads_of_its_own():
    small, large = share(4, 8, 1000), share(4, 8, 10**7)
    assert "phi i64 [1, %prepare]" in small
    assert "phi i64 [0, %prepare]" in large
    assert f"setstacksize(ptr %attributes, i64 {2**20})" in small
    assert f"setstacksize(ptr %attributes, i64 {11 * 2**20})" in large
