"""How instructions become steps: functions of which threads take part."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from helpers.ptx.operands import Operands, Step, Where

# What makes a step of the operands of an instruction.
Builder: TypeAlias = Callable[[Operands], Step]


def elementwise(function: np.ufunc, source: str, result: str = "") -> Builder:
    """An instruction that is a function of NumPy.

    Args:
        function: of one number or two.
        source: type of what is read.
        result: type of what is written, if it is another one.
    """

    def build(at: Operands) -> Step:
        target, *sources = at.expect(1 + function.nin)
        out = at.target(target, result or source)
        arrays = [at.source(x, source) for x in sources]
        return lambda where: function(*arrays, out=out, where=where)

    return build


def computed(function: Callable[..., Any], *kinds: str) -> Builder:
    """An instruction whose result a function of arrays returns.

    Args:
        function: from arrays to an array.
        kinds: type of the result, then those of what is read.
    """

    def build(at: Operands) -> Step:
        target, *sources = at.expect(len(kinds))
        out = at.target(target, kinds[0])
        arrays = [at.source(x, name) for x, name in zip(sources, kinds[1:], strict=True)]

        def step(where: Where) -> None:
            np.copyto(out, function(*arrays), where=where)

        return step

    return build
