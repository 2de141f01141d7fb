"""The C header of an exported run."""

import numpy as np

from jaxdae.kernels.export.interface import Interface, StructureField, StructureType

_MEANINGS = {
    "successful": "the end was reached",
    "max_steps_reached": "too many adaptive steps; final is where they ended",
    "nonfinite": "a state is no finite number; final is the last row that was, or the start",
    "dt_min_reached": "adaptive steps became too small; final is where they ended",
    "invalid_times": "a time is no finite number, or does not follow the one before; no step",
}


def header(interface: Interface, about: list[str], statuses: dict[str, int]) -> str:
    """Text of the header."""
    name, number = interface.name, _number(interface)
    guard = f"{name.upper()}_H"
    comment = "\n".join(["/*", *(f" * {x}".rstrip() for x in about), " */"])
    parts = [
        comment,
        f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>",
        _sizes(interface),
        _enumeration(name, statuses),
        *(_structure(interface, x) for x in (interface.state, interface.inputs)),
        *(_structure(interface, x) for x in (interface.times, interface.outputs)),
        _example(interface),
        _set_times(interface, number),
        _functions(interface),
        "#endif",
    ]
    return "\n\n".join(parts) + "\n"


def _number(interface: Interface) -> str:
    return "double" if interface.dtype.itemsize == 8 else "float"


def _sizes(interface: Interface) -> str:
    prefix = interface.name.upper()
    grid = interface.times.length("grid")
    sizes = {
        "STATES": interface.state.size, "ROWS": interface.rows, "INPUTS": interface.inputs.size,
        "TIMES": interface.times.size, "OUTPUTS": interface.outputs.size,
        **({"STEPS": grid - 1} if grid else {}),
    }  # fmt: skip
    lines = [f"#define {prefix}_{key} {value}" for key, value in sizes.items()]
    words = "/* Numbers of a state, rows, numbers of the structures"
    return "\n".join([f"{words}{', fixed steps. */' if grid else '. */'}", *lines])


def _enumeration(name: str, statuses: dict[str, int]) -> str:
    entries = "\n".join(
        f"  {name.upper()}_{key.upper()} = {i}, /* {_MEANINGS[key]} */"
        for key, i in statuses.items()
    )
    return f"/* How a run ended. */\nenum {name}_status {{\n{entries}\n}};"


def _structure(interface: Interface, structure: StructureType) -> str:
    lines = []
    for x in structure.fields:
        of_states = structure.name == "outputs" and x.name in ("final", "states")
        kind = f"{interface.name}_state" if of_states else _number(interface)
        axes = _axes(x.shape[:-1] if of_states else x.shape)
        lines.append(f"  {kind} {x.name}{axes}; /* {_comment(x.about)} */")
    return "\n".join(["typedef struct {", *lines, f"}} {interface.name}_{structure.name};"])


def _comment(text: str) -> str:
    """What does not end a comment, or begin another one."""
    return " ".join(text.split()).replace("*/", "* /").replace("/*", "/ *")


def _axes(shape: tuple[int, ...]) -> str:
    return "".join(f"[{x}]" for x in shape)


def _example(interface: Interface) -> str:
    values = ",\n".join(f"  {_literal(x, interface)}" for x in interface.inputs.fields)
    kind, name = f"{interface.name}_inputs", f"{interface.name}_example"
    words = "/* The start and the parameters with which the run was exported. */"
    return f"{words}\nstatic const {kind} {name} = {{\n{values}\n}};"


def _literal(field: StructureField, interface: Interface) -> str:
    return _nested(np.asarray(field.value, interface.dtype), interface)


def _nested(value: np.ndarray, interface: Interface) -> str:
    if value.ndim:
        return "{" + ", ".join(_nested(x, interface) for x in value) + "}"
    suffix = "" if interface.dtype.itemsize == 8 else "f"
    if np.isnan(value):
        return f"(0.0{suffix} / 0.0{suffix})"
    if np.isinf(value):
        return f"({'-' if value < 0 else ''}1.0{suffix} / 0.0{suffix})"
    return f"{float(value)!r}{suffix}"


def _set_times(interface: Interface, number: str) -> str:
    fields = {x.name: x for x in interface.times.fields}
    lines = []
    if "saved" in fields:
        value = _nested(interface.fractions(fields["saved"].value), interface)
        lines += [f"  static const {number} fractions[{fields['saved'].size}] = {value};"]
    if "grid" in fields:
        last = fields["grid"].size - 1
        lines += [
            f"  {number} step = (t1 - t0) / {last};",
            f"  for (int i = 0; i < {last}; i++) times->grid[i] = i * step + t0;",
            f"  times->grid[{last}] = t1;",
        ]
    else:
        lines += ["  times->t0 = t0;", "  times->t1 = t1;"]
    if "dt0" in fields:
        lines += [f"  times->dt0 = {_literal(fields['dt0'], interface)};"]
    if "saved" in fields:
        lines += [
            f"  for (int i = 0; i < {fields['saved'].size}; i++) {{",
            f"    {number} t = t0 + fractions[i] * (t1 - t0);",
            "    times->saved[i] = (t1 - t0) * (t - t1) > 0 || fractions[i] == 1 ? t1 : t;",
            "  }",
        ]
    about = "/* Times from t0 to t1 that are divided as those of the export. */"
    head = (
        f"static inline void {interface.name}_set_times({number} t0, {number} t1, "
        f"{interface.name}_times *times) {{"
    )
    return "\n".join([about, head, *lines, "}"])


def _functions(interface: Interface) -> str:
    name = interface.name
    arguments = f"const {name}_inputs *inputs, const {name}_times *times, {name}_outputs *outputs"
    return f"""#ifdef __cplusplus
extern "C" {{
#endif

/* One run; returns its status. */
int32_t {name}({arguments});

/* `count` runs: arrays of inputs and outputs, the same times; returns how many ended with another
 * status than 0. */
int64_t {name}_batch(int64_t count, {arguments});

#ifdef __cplusplus
}}
#endif"""
