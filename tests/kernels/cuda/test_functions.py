"""Functions of threads: which are called, and where their arguments are."""

import re

import numpy as np

from jaxdae.kernels.cuda.assembler import assemble
from jaxdae.kernels.cuda.functions import for_threads, unrolled
from jaxdae.kernels.cuda.ptx import ptx
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.llvm.module import Definition, Module

LONG, SHORT = 400, 20


def body(name: str, length: int, more: str = "") -> Definition:
    """r = a + b + b + …, so many instructions long."""
    lines = [
        "  %r1 = load double, ptr %a0_",
        "  %r2 = load double, ptr %a1_",
        "  %r3 = fmul double %r1, %r2",
    ]
    lines += [f"  %r{i} = fadd double %r{i - 1}, %r2" for i in range(4, length)]
    lines.append(f"  store double %r{length - 1}, ptr %r0_")
    parameters = "ptr noalias %a0_, ptr noalias readonly %a1_, ptr noalias %r0_"
    head = f"define internal void @{name}({parameters}) {more}{{\nentry:\n"
    return Definition(name, head + "\n".join([*lines, "  ret void ", "}"]))


def entry(*calls: str) -> Definition:
    """Two arrays of the thread's own, a global one, and calls."""
    lines = [
        "  %r1 = alloca <1 x double>, i64 3, align 64",
        "  %r2 = alloca <1 x double>, i64 1, align 64",
        "  %r3 = addrspacecast ptr addrspace(1) %x to ptr",
        "  %r4 = getelementptr <1 x double>, ptr %r1, i64 1",
        *calls,
        "  %r5 = load double, ptr %r2",
        "  store double %r5, ptr %r3",
        "  ret void",
        "}",
    ]
    head = "define ptx_kernel void @kernel(ptr addrspace(1) %x) {\nentry:\n"
    return Definition("kernel", head + "\n".join(lines))


OWN = "  call void @f(ptr %r4, ptr %r1, ptr %r2)"
GLOBAL = "  call void @f(ptr %r3, ptr %r1, ptr %r2)"


def made(*definitions: Definition) -> str:
    """The text, which LLVM and the assembler accept."""
    text = Module(for_threads(definitions)).text
    assemble(ptx(text), "sm_70")
    return text


def head(text: str, name: str) -> str:
    found = re.search(rf"^define .*@{name}\(.*$", text, re.MULTILINE)
    assert found is not None
    return found[0]


def test_of_a_long_function_there_are_no_copies():
    text = made(body("f", LONG), entry(OWN, OWN, OWN))
    assert "noinline" in head(text, "f")
    assert ptx(text).count("add.rn.f64") < 2 * LONG


def test_what_is_short_or_called_once_becomes_part_of_its_caller():
    for one in (
        made(body("f", SHORT), entry(OWN, OWN, OWN)),
        made(body("f", LONG), entry(OWN)),
    ):
        assert "noinline" not in one
        assert ".func" not in ptx(one)


def test_loops_stay_functions():
    f = body("f", SHORT)
    looped = f.text.replace("entry:\n", "entry:\n  br label %more\nmore:\n")
    assert "noinline" in head(made(f._replace(text=looped), entry(OWN)), "f")


def test_arrays_of_a_thread_are_in_local_memory():
    text = made(body("f", LONG), entry(OWN, OWN, OWN))
    assert head(text, "f").count("ptr addrspace(5)") == 3
    code = ptx(text)
    assert "ld.local." in code
    assert "st.local." in code
    assert re.search(r"\b(ld|st)\.[bf]64", code) is None


def test_an_array_that_is_not_always_the_thread_s_own_has_a_general_address():
    text = made(body("f", LONG), entry(OWN, GLOBAL, OWN))
    first, second, third = head(text, "f").split(", ")
    assert "addrspace" not in first
    assert "ptr addrspace(5) noalias readonly" in second
    assert "ptr addrspace(5)" in third


def test_addresses_are_followed_through_functions():
    """g hands on what it is given."""
    g = Definition(
        "g",
        "define internal void @g(ptr noalias %a0_, ptr noalias %a1_, ptr noalias %r0_) {\nentry:\n"
        "  %r1 = getelementptr double, ptr %a0_, i64 0\n"
        + "  call void @f(ptr %r1, ptr %a1_, ptr %r0_)\n" * 3
        + "  ret void \n}",
    )
    calls = {name: x.replace("@f", "@g") for name, x in (("own", OWN), ("global", GLOBAL))}
    own = made(body("f", LONG), g, entry(calls["own"]))
    assert head(own, "f").count("addrspace(5)") == 3
    other = made(body("f", LONG), g, entry(calls["global"]))
    assert head(other, "f").count("addrspace(5)") == 2


def test_attributes_are_kept():
    text = made(body("f", LONG, "cold "), entry(OWN, OWN, OWN))
    assert "cold noinline {" in head(text, "f")


def test_arrays_lie_close_together():
    """Three numbers and one take 32 bytes, and not a line of a cache each."""
    text = made(body("f", LONG), entry(OWN, OWN, OWN))
    assert "align 8" in text
    assert "align 64" not in text
    assert re.findall(r"\.local .*\[(\d+)\];", ptx(text)) == ["32"]


def test_loops_of_adjoints_are_not_unrolled():
    assert unrolled([body("rhs_4", SHORT)])
    assert not unrolled([body("rhs_4_transposed_by_0", SHORT)])


def test_elementary_functions_are_called():
    """In a kernel with many sines the numbers of a sine wait beside no others."""
    sine = elementary_functions.function("sin", 1, np.float64)
    text = Module(for_threads(sine)).text
    assert "noinline" not in head(Module(sine).text, "vector_sin")
    assert "noinline" in head(text, "vector_sin")
    assert text.count("noinline") == 3  # two more for large angles, which were so before


def test_loops_become_straight_lines_where_that_is_wanted():
    """Eight numbers are doubled."""
    lines = [
        "  br label %more",
        "more:",
        "  %i = phi i64 [ 0, %entry ], [ %j, %more ]",
        "  %p = getelementptr double, ptr addrspace(1) %x, i64 %i",
        "  %a = load double, ptr addrspace(1) %p",
        "  %b = fadd double %a, %a",
        "  store double %b, ptr addrspace(1) %p",
        "  %j = add i64 %i, 1",
        "  %c = icmp slt i64 %j, 8",
        "  br i1 %c, label %more, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    text = "define ptx_kernel void @kernel(ptr addrspace(1) %x) {\nentry:\n" + "\n".join(lines)
    straight, looped = (ptx(text, unrolled=x) for x in (True, False))
    assert "bra" not in straight
    assert "bra" in looped
