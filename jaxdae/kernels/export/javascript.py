"""The module for pages that wraps an exported run."""

import json
import math
import re

import numpy as np

from jaxdae.kernels.export.interface import Interface, StructureType

_TEXT = """\
ABOUT

const layout = LAYOUT;

const Numbers = layout.bytes === 8 ? Float64Array : Float32Array;

/** The start and the parameters with which the run was exported, by name. */
export const inputs = Object.freeze(Object.fromEntries(
  layout.inputs.map(({ name, value }) => [name, numbers(value)])));

/** Load the module: from beside this file, or from its bytes. */
export async function load(bytes) {
  bytes ??= await (await fetch(new URL("./NAME.wasm", import.meta.url))).arrayBuffer();
  const { instance } = await WebAssembly.instantiate(bytes, {});
  const exported = instance.exports;

  /** Runs of several members: their inputs by name, others as in `inputs`; times for all. */
  function batch(members, { t0 = layout.t0, t1 = layout.t1 } = {}) {
    const sizes = [members.length * size(layout.inputs), size(layout.times),
      members.length * layout.outputs];
    const [given, times, results] = rooms(exported, sizes);
    members.forEach((member, i) => given.set(packed(member), i * size(layout.inputs)));
    times.set(timesBetween(t0, t1));
    exported.NAME_batch(
      BigInt(members.length), given.byteOffset, times.byteOffset, results.byteOffset);
    const n = layout.outputs;
    return members.map((_, i) => unpacked(results.slice(i * n, (i + 1) * n)));
  }

  /** One run: `{status, time, steps, accepted, rows, ts, q, v, w, final}`. */
  const run = (member = {}, times = {}) => batch([member], times)[0];
  return { run, batch };
}

const size = (fields) => fields.reduce((total, x) => total + x.size, 0);

/** Arrays of so many numbers behind the module's own memory, which is enlarged where needed. */
function rooms(exported, sizes) {
  const start = Math.ceil(exported.__heap_base.value / 16) * 16;
  const end = start + layout.bytes * sizes.reduce((a, b) => a + b, 0);
  const missing = end - exported.memory.buffer.byteLength;
  if (missing > 0) exported.memory.grow(Math.ceil(missing / 65536));
  let at = start;
  return sizes.map((count) => {
    const array = new Numbers(exported.memory.buffer, at, count);
    at += layout.bytes * count;
    return array;
  });
}

function packed(member) {
  for (const name of Object.keys(member)) {
    if (!(name in inputs)) throw new Error(
      `no input is named ${name}; there are ${Object.keys(inputs).join(", ")}`);
  }
  return layout.inputs.flatMap(({ name, size }) => {
    const given = [member[name] ?? inputs[name]].flat(Infinity).flatMap((x) =>
      ArrayBuffer.isView(x) ? [...x] : [x]);
    if (given.length !== size) throw new Error(`${name} has ${size} numbers, got ${given.length}`);
    return given;
  });
}

/** JSON has no infinities. */
function numbers(x) {
  return Array.isArray(x) ? x.map(numbers) : { inf: Infinity, "-inf": -Infinity, nan: NaN }[x] ?? x;
}

function timesBetween(t0, t1) {
  return layout.times.flatMap(({ name, size, value }) => {
    if (name === "t0") return [t0];
    if (name === "t1") return [t1];
    if (name === "dt0") return [value];
    const fractions = value ?? Array.from({ length: size }, (_, i) => i / (size - 1));
    return fractions.map((x, i) => {
      const last = value === null ? i === size - 1 : x === 1;
      const t = value === null ? i * ((t1 - t0) / (size - 1)) + t0 : t0 + x * (t1 - t0);
      return last || (t1 - t0) * (t - t1) > 0 ? t1 : t;
    });
  });
}

function unpacked(numbers) {
  const n = size(layout.state);
  const [time, code, steps, accepted, rows] = numbers;
  const split = (at) => {
    let from = at;
    return Object.fromEntries(layout.state.map(({ name, size }) =>
      [name, numbers.slice(from, (from += size))]));
  };
  const final = split(5);
  const ts = numbers.slice(5 + n, 5 + n + layout.rows);
  const states = Array.from({ length: layout.rows }, (_, i) => split(5 + n + layout.rows + i * n));
  const columns = Object.fromEntries(layout.state.map(({ name }) =>
    [name, states.map((x) => x[name])]));
  return { status: layout.statuses[code], time, steps, accepted, rows, ts, ...columns, final };
}
"""


def javascript(interface: Interface, about: list[str], statuses: dict[str, int]) -> str:
    """Text of the module."""
    t0, t1 = interface.ends
    data = {
        "bytes": interface.dtype.itemsize,
        "inputs": _fields(interface.inputs, values=True),
        "times": [
            {"name": x.name, "size": x.size, "value": _time(interface, x.name, x.value)}
            for x in interface.times.fields
        ],
        "state": _fields(interface.state, values=False),
        "rows": interface.rows,
        "outputs": interface.outputs.size,
        "t0": float(t0),
        "t1": float(t1),
        "statuses": {i: name for name, i in statuses.items()},
    }
    words = {
        "ABOUT": "\n".join(f"// {x}".rstrip() for x in about),
        "LAYOUT": json.dumps(data, indent=2, allow_nan=False),
        "NAME": interface.name,
    }
    return re.sub("|".join(words), lambda found: words[found[0]], _TEXT)


def _fields(structure: StructureType, values: bool) -> list[dict]:
    return [
        {"name": x.name, "size": x.size, **({"value": _plain(x.value)} if values else {})}
        for x in structure.fields
    ]


def _time(interface: Interface, name: str, value):
    """Of saved times where they are between the ends; those of steps divide the time equally."""
    if name == "saved":
        return interface.fractions(value).tolist()
    return _plain(value) if name == "dt0" else None


def _plain(value):
    """Lists of numbers, and words for those that JSON does not have."""
    value = np.asarray(value).tolist()
    if isinstance(value, list):
        return [_plain(x) for x in value]
    return value if math.isfinite(value) else str(value)
