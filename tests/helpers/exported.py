"""Exported runs in programs without Python."""

import json
import platform
import re
import shutil
import subprocess
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from llvmlite.binding import get_host_cpu_features

import jaxdae
from jaxdae.solvers import RK4

# The machine that tests run on, at its oldest; it has no instruction for fused products on x86-64.
HERE = {"x86_64": "x86-64-v2", "aarch64": "aarch64"}.get(platform.machine(), "")
# The same with vectors of a batch's members.
_FEATURES = get_host_cpu_features()
VECTORS = "x86-64-v3" if _FEATURES.get("avx2") and _FEATURES.get("fma") else HERE
COMPILER = shutil.which("cc") or shutil.which("gcc")
NODE = shutil.which("node")
with_compiler = pytest.mark.skipif(
    COMPILER is None or HERE == "" or platform.system() != "Linux",
    reason="a C compiler for files that the code is written in",
)
with_node = pytest.mark.skipif(NODE is None, reason="node executes the module")
MEMBERS = 5

BAUMGARTE = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=20.0, K_P=100.0))


class Pendulum(jaxdae.System):
    """A point on a rod, in Cartesian coordinates."""

    length: float = 1.0
    mass: float = 1.3
    ceiling: float = 1e3

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def potential_energy(self, t, q):
        return self.mass * 9.81 * jnp.minimum(q[1], self.ceiling)

    def position_constraints(self, t, q):
        return jnp.array([q @ q - self.length**2])

    def force(self, t, q, v, w, u):
        return jnp.zeros_like(v) if u is None else jnp.stack([u, 0 * u])


PENDULUM, HANGING = Pendulum(), jaxdae.State([0.6, -0.8], [0.4, 0.3])
# Starts of members are off the constraints.
ANY = {"start_tolerance": None}
FIXED = {"t1": 0.5, "dt": 0.02, "solver": RK4(), **ANY}


class Filtered(jaxdae.control.AbstractDynamicController):
    """A force that follows the position with a lag."""

    gain: float = 2.0

    def initial(self, t, state):
        return state.q[:1]

    def rate(self, t, q, v, w, c):
        return 5.0 * (q[:1] - c)

    def output(self, t, q, v, w, c):
        return -self.gain * c[0]


def export_pendulum(folder, system=PENDULUM, **changed):
    given = {"directory": folder, "name": "pendulum", "target": "aarch64", **FIXED, **changed}
    return jaxdae.export(system, BAUMGARTE, HANGING, **given)


# The example by itself, then members whose start and last input differ.
_PROGRAM = """
#include <stdio.h>
#include "NAME.h"

int main(void) {
  static NAME_times times;
  static NAME_inputs inputs[MEMBERS];
  static NAME_outputs one, all[MEMBERS];
  NAME_set_times(START, END, &times);
  for (int i = 0; i < MEMBERS; i++) {
    inputs[i] = NAME_example;
    inputs[i].v[0] += i * (NUMBER)0.125;
    inputs[i].FIELD *= 1 + i * (NUMBER)0.25;
  }
  double status = NAME(&NAME_example, &times, &one);
  double failed = (double)NAME_batch(MEMBERS, inputs, &times, all);
  fwrite(&status, sizeof status, 1, stdout);
  fwrite(&failed, sizeof failed, 1, stdout);
  fwrite(&one, sizeof one, 1, stdout);
  fwrite(all, sizeof all, 1, stdout);
  return 0;
}
"""


class Outputs(NamedTuple):
    """What one run gives."""

    time: float
    result: int
    steps: int
    accepted: int
    rows: int
    final: np.ndarray
    ts: np.ndarray
    states: np.ndarray


class Executed(NamedTuple):
    """Of a program: status of a single run, members that failed, outputs of one and of all."""

    status: int
    failed: int
    one: Outputs
    members: list[Outputs]


def executed(files, field, t0, t1, dtype=np.float64) -> Executed:
    """Compile and run a C program against object file and header.

    Args:
        files: what was exported.
        field: input that members scale.
        t0: start.
        t1: end.
        dtype: of the numbers.
    """
    name, folder = files.code.stem, files.code.parent
    number = "double" if dtype == np.float64 else "float"
    words = {"NAME": name, "MEMBERS": MEMBERS, "START": t0, "END": t1, "NUMBER": number}
    text = re.sub("|".join(words), lambda x: str(words[x[0]]), _PROGRAM).replace("FIELD", field)
    source, program = folder / f"{name}_main.c", folder / f"{name}_main"
    source.write_text(text)
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    # Without the library of mathematics.
    command = [str(COMPILER), *options, "-o", str(program), str(source), str(files.code)]
    subprocess.run(command, check=True)
    data = subprocess.run([program], check=True, capture_output=True).stdout
    status, failed = np.frombuffer(data[:16])
    numbers = np.frombuffer(data[16:], dtype).reshape(1 + MEMBERS, -1)
    sizes = dict(re.findall(rf"{name.upper()}_(STATES|ROWS) (\d+)", files.header.read_text()))
    one, *members = [outputs(x, int(sizes["STATES"]), int(sizes["ROWS"])) for x in numbers]
    return Executed(int(status), int(failed), one, members)


def outputs(numbers, states, rows) -> Outputs:
    """Parts of what a run gives."""
    final, ts, saved = np.split(numbers[5:], [states, states + rows])
    result, steps, accepted, reached = map(int, numbers[1:5])
    saved = saved.reshape(rows, states)
    return Outputs(float(numbers[0]), result, steps, accepted, reached, final, ts, saved)


def in_node(files, script):
    """What a script prints as JSON, with `run`, `batch` and `inputs` of the module.

    Args:
        files: what was exported.
        script: in JavaScript; `print(value)` prints.
    """
    text = f"""
    import {{ readFileSync }} from "node:fs";
    import {{ inputs, load }} from "{files.header.as_uri()}";
    const {{ run, batch }} = await load(readFileSync("{files.code}"));
    const print = (x) => console.log(JSON.stringify(x, (_, y) =>
      ArrayBuffer.isView(y) ? [...y] : y));
    {script}
    """
    command = [str(NODE), "--input-type=module", "--eval", text]
    # A module without a package beside it is one of the language's older kind.
    (files.code.parent / "package.json").write_text('{"type": "module"}')
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
