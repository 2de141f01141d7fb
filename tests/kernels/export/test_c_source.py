"""Kernels as C: what a compiler makes of them computes what JAX computes."""

import ctypes
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.exported import COMPILER, with_compiler
from jaxdae.kernels.emission.array_functions import library
from jaxdae.kernels.export.c_source import c_source, pointer_of, PRELUDE
from jaxdae.kernels.llvm.machine_code import MachineCodeError
from jaxdae.kernels.llvm.module import Definition, LlvmModule
from jaxdae.kernels.tracing.subprograms import Subprogram
from jaxdae.kernels.tracing.trace import scalarize


def compiled(folder, function, *shapes):
    """The function of a program in C, as a function of arrays."""
    program = Subprogram("made", scalarize(function, *shapes, loops=True, signed=True))
    module = LlvmModule(library([program], 1, np.dtype(float), 1))
    name = pointer_of("c_", "made")
    count = len(shapes) + len(program.results)
    given = ", ".join(f"char *x{i}" for i in range(count))
    call = f"void called({given}) {{ {name}({', '.join(f'x{i}' for i in range(count))}); }}"
    text = "\n".join([PRELUDE, c_source(module.definitions, "c_"), call])
    (folder / "made.c").write_text(text)
    options = ["-std=c99", "-O2", "-ffp-contract=off", "-shared", "-fPIC", "-Wall", "-Werror"]
    command = [str(COMPILER), *options, "-Wno-unused", "-o", "made.so", "made.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    loaded = ctypes.CDLL(str(folder / "made.so")).called

    def run(*arguments):
        arrays = [np.ascontiguousarray(x, float) for x in arguments]
        results = [np.zeros(x.shape) for x in program.results]
        loaded(*(ctypes.c_void_p(x.ctypes.data) for x in (*arrays, *results)))
        return results

    return run


def elementary(x):
    return [
        jnp.sin(x), jnp.cos(x), jnp.exp(x / 9), jnp.tanh(x), jnp.log(2 + jnp.abs(x)),
        jnp.arctan2(x, x - 3), jnp.abs(x) ** 1.7, jnp.sqrt(jnp.abs(x)), jnp.floor(x), jnp.ceil(x),
        jnp.round(x), jnp.sign(x), jnp.where(x > 0.3, x, -2 * x), jnp.minimum(x, 1.5),
        jnp.maximum(x, -0.5), jnp.isfinite(x).astype(float),
    ]  # fmt: skip


@with_compiler
def test_elementary_functions_also_far_out_and_of_what_is_not_finite(tmp_path):
    """Roundings of a few units in the last place; angles of 1e15 are reduced exactly."""
    points = [-7.3, -0.5, 0.0, -0.0, 0.4, 2.5, 31.0, 1e4, 1e15, np.inf, -np.inf, np.nan]
    run = compiled(tmp_path, elementary, jax.ShapeDtypeStruct((len(points),), float))
    with np.errstate(all="ignore"):
        expected = elementary(jnp.array(points))
    for found, exact in zip(run(points), expected, strict=True):
        np.testing.assert_allclose(found, exact, rtol=4e-15, atol=1e-300)


@with_compiler
def test_products_solves_and_loops(tmp_path):
    """Functions on arrays in memory, and tables of constants."""
    table = jnp.asarray(np.random.default_rng(0).normal(size=(24, 24)))

    def function(a, b):
        many = jax.scipy.linalg.solve(a @ a.T + 24 * jnp.eye(24), table @ b, assume_a="pos")
        turned = jax.lax.fori_loop(0, 40, lambda i, y: 0.9 * y + jnp.sin(many), jnp.zeros(24))
        return many, turned

    shapes = jax.ShapeDtypeStruct((24, 24), float), jax.ShapeDtypeStruct((24,), float)
    rng = np.random.default_rng(1)
    given = rng.normal(size=(24, 24)), rng.normal(size=24)
    run = compiled(tmp_path, function, *shapes)
    for found, exact in zip(run(*given), function(*map(jnp.asarray, given)), strict=True):
        # The matrix has a condition number below 100.
        np.testing.assert_allclose(found, exact, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "text",
    [
        "define void @f() {\nentry:\n  fence acquire\n  ret void \n}",
        "define void @f() {\nentry:\n  %r1 = frem double %a, %b\n  ret void \n}",
        "define void @f() {\nentry:\n  %r1 = call double @llvm.cosh.f64(double %a)\n  ret void \n}",
        "@table = private constant i64 3",
    ],
)
def test_what_is_not_known_is_an_error_that_names_it(text):
    with pytest.raises(MachineCodeError, match="C sources of a kernel lack what stands for '"):
        c_source([Definition("f", text)], "c_")
