"""Instructions of scalar programs, counted as a GPU executes them."""

import re
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from jaxdae.kernels.cuda.schedule import dependencies
from jaxdae.kernels.emission import elementary_functions
from jaxdae.kernels.graph.dense_products import Product
from jaxdae.kernels.graph.expressions import CALL, CONSTANT, Graph, INPUT, RESULT
from jaxdae.kernels.graph.fused_terms import fused_terms
from jaxdae.kernels.graph.maps import Map
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.tracing.subprograms import Subprogram
from jaxdae.kernels.tracing.trace import ScalarProgram

CLASSES = ("fma", "add", "mul", "div", "sqrt", "other")
# What gives a class its name in LLVM's language.
_NAMED = {
    "fadd": "add", "fsub": "add", "fmul": "mul", "fdiv": "div", "llvm.fma": "fma",
    "llvm.fmuladd": "fma", "llvm.sqrt": "sqrt",
}  # fmt: skip
_CLASS = {"add": "add", "sub": "add", "mul": "mul", "div": "div", "sqrt": "sqrt"}
# Instructions that wait for each other in a division, or a square root.
_LONG = 9
# Signs are part of the instructions that read them; all others of these are none.
_FREE = (
    "fneg", "insertvalue", "extractvalue", "insertelement", "extractelement", "bitcast", "phi",
    "getelementptr", "alloca",
)  # fmt: skip


# Blocks begin with names; those that call other functions are for rare arguments.
_BLOCK, _OTHER = re.compile(r"^\w+:\n", re.MULTILINE), re.compile(r"call .*@(?!llvm)")


class Count(NamedTuple):
    """Instructions.

    Args:
        classes: how many, by `CLASSES`.
        depth: those on the longest way from an input to a result, by class.
        numbers: that go from functions to others, or back, in memory.
    """

    classes: Counter[str]
    depth: Counter[str]
    numbers: int = 0

    def __add__(self, other: "Count") -> "Count":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Count(
            self.classes + other.classes, self.depth + other.depth, self.numbers + other.numbers
        )

    def times(self, count: int, one_after_the_other: bool = False) -> "Count":
        """The same so many times."""
        classes = Counter({x: n * count for x, n in self.classes.items()})
        depth = Counter({x: n * count for x, n in self.depth.items()})
        return Count(classes, depth if one_after_the_other else self.depth, self.numbers * count)


NONE = Count(Counter(), Counter())


def counted(one: Subprogram) -> Count:
    """Instructions of a program and of all that it calls."""
    return _called(one, one.program.inputs[0].dtype if one.program.inputs else np.float64)


def _called(callee: Any, dtype: Any) -> Count:
    if isinstance(callee, Product):
        m, k, n = callee.shape
        numbers = m * k + k * n + m * n
        return Count(Counter(fma=m * k * n), Counter(fma=k), numbers)
    if isinstance(callee, Map):
        one = _operation(callee.operation, dtype).times(callee.size)
        return one._replace(numbers=callee.size * (1 + len(callee.single)))
    if isinstance(callee, Subprogram):
        own = _program(callee.program, dtype)
        if callee.entries is not None:
            own = own.times(callee.entries)
        looped = callee.looped or (False,) * len(callee.program.inputs)
        sizes = [
            callee.entries if one else int(np.prod(x.shape))
            for x, one in zip(callee.program.inputs, looped, strict=True)
        ]
        sizes += [int(np.prod(x.shape)) for x in callee.results]
        return own._replace(numbers=own.numbers + sum(x or 0 for x in sizes))
    turns = callee.length or 1  # of a loop; of one without an end at least one
    return _called(callee.turn, dtype).times(turns, one_after_the_other=True)


def _program(program: ScalarProgram, dtype: Any) -> Count:
    graph = program.graph
    needed = graph.needed(program.outputs)
    terms = fused_terms(graph, needed, program.outputs)
    within = {x for term in terms.values() for x in term.within}
    both = _pairs(graph, needed)
    depths: dict[int, Counter[str]] = {}
    classes, numbers = Counter(), 0
    for node in needed:
        operation, arguments = graph.nodes[node]
        before = max((depths[x] for x in graph.operands(node)), key=_length, default=Counter())
        own = NONE
        if operation == CALL:
            own = _called(arguments[0], dtype)
        elif node in terms:
            own = _single("fma")
        elif operation not in (INPUT, CONSTANT, RESULT) and node not in within:
            name = both.get(node, operation)
            own = _operation(name, dtype) if name else NONE
        classes, numbers = classes + own.classes, numbers + own.numbers
        depths[node] = before + own.depth
    longest = max((depths[int(x)] for x in program.outputs), key=_length, default=Counter())
    return Count(classes, longest, numbers)


def _length(depth: Counter[str]) -> int:
    return depth.total() + (_LONG - 1) * (depth["div"] + depth["sqrt"])


def _pairs(graph: Graph, needed: list[int]) -> dict[int, str]:
    """Sines and cosines of one angle: the first is both, the other is nothing more."""
    first: dict[int, int] = {}
    result = {}
    for node in needed:
        operation, arguments = graph.nodes[node]
        if operation in ("sin", "cos"):
            other = first.setdefault(arguments[0], node)
            if other != node:
                result |= {other: elementary_functions.BOTH, node: ""}
    return result


def _single(name: str) -> Count:
    return Count(Counter({name: 1}), Counter({name: 1}))


def _operation(name: str, dtype: Any) -> Count:
    if name == "neg":
        return NONE
    if name == elementary_functions.BOTH or OPERATIONS[name].function:
        return _function(name, str(np.dtype(dtype)))
    return _single(_CLASS.get(name, "other"))


@cache
def _function(name: str, dtype: str) -> Count:
    """Of an elementary function where its argument is not large."""
    definition = elementary_functions.function(name, 1, np.dtype(dtype))[0]
    blocks = _BLOCK.split(definition.text.partition("entry:\n")[2])
    usual = "\n".join(x for x in blocks if _OTHER.search(x) is None)
    lines = [x for x in usual.split("\n") if " = " in x]
    classes = [_class_of(x.partition(" = ")[2]) for x in lines]
    d, depths = dependencies(lines), []
    for operands, own in zip(d.operands, classes, strict=True):
        before = max((depths[x] for x in operands), key=_length, default=Counter())
        depths.append(before + Counter({own: 1} if own else {}))
    return Count(Counter(x for x in classes if x), max(depths, key=_length, default=Counter()))


def _class_of(instruction: str) -> str | None:
    first = instruction.split(maxsplit=1)[0]
    if first in _FREE:
        return None
    if first == "call":
        called = instruction.partition("@")[2].partition("(")[0]
        return _NAMED.get(called.rpartition(".v1")[0], "other")
    return _NAMED.get(first, "other")
