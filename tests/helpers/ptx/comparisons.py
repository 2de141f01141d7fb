"""Comparisons and choices."""

import numpy as np

from helpers.ptx.building import Builder, computed, elementwise
from helpers.ptx.kinds import BITS, FLOATS, SIGNED, UNSIGNED

_ORDERED = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
}  # fmt: skip
# True where its opposite is not, that is also where one of them is no number.
_UNORDERED = {"ltu": np.greater_equal, "leu": np.greater, "gtu": np.less_equal, "geu": np.less}
_OF_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def _nan(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.isnan(a) | np.isnan(b)


def _of_floats(name: str) -> dict[str, Builder]:
    table = {x: elementwise(f, name, "pred") for x, f in _ORDERED.items()}
    table |= {
        x: computed(lambda a, b, f=f: ~f(a, b), "pred", name, name) for x, f in _UNORDERED.items()
    }
    table["neu"] = elementwise(np.not_equal, name, "pred")
    table["ne"] = computed(lambda a, b: (a < b) | (a > b), "pred", name, name)
    table["equ"] = computed(lambda a, b: ~((a < b) | (a > b)), "pred", name, name)
    table["nan"] = computed(_nan, "pred", name, name)
    table["num"] = computed(lambda a, b: ~_nan(a, b), "pred", name, name)
    return {f"setp.{x}.{name}": build for x, build in table.items()}


def _of_integers(name: str) -> dict[str, Builder]:
    functions = {"eq": np.equal, "ne": np.not_equal}
    if name in (*SIGNED, *UNSIGNED):
        functions |= _ORDERED
    if name in UNSIGNED:
        functions |= _OF_UNSIGNED
    return {f"setp.{x}.{name}": elementwise(f, name, "pred") for x, f in functions.items()}


def _choice(name: str) -> Builder:
    return computed(lambda a, b, p: np.where(p, a, b), name, name, name, "pred")


_INTEGERS = (*SIGNED, *UNSIGNED, *BITS)
INSTRUCTIONS = {
    **{opcode: build for x in FLOATS for opcode, build in _of_floats(x).items()},
    **{opcode: build for x in _INTEGERS for opcode, build in _of_integers(x).items()},
    **{f"selp.{x}": _choice(x) for x in (*_INTEGERS, *FLOATS)},
}
