"""Functions whose arguments are mostly not large, and need more where they are."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from jaxdae.kernels.llvm.module import Definition
from jaxdae.kernels.llvm.registers import Number


class Limited(NamedTuple):
    """A function of vectors, in two steps of which the first is another one for large arguments.

    Args:
        name: of the first step where arguments are large; functions may share it.
        near: the first step, which is wrong where arguments are large: some numbers.
        far: the first step for one entry of each large argument: those numbers, perhaps more,
            which the second step takes, too.
        parts: how many numbers that gives.
        result: the second step, by the first argument and those numbers.
        size: of arguments; they are large where it is beyond the `largest_angle` of the precision.
        constants: of the module that the first step reads.
    """

    name: str
    near: Callable[..., Sequence[Number]]
    far: Callable[..., Sequence[Number]]
    parts: int
    result: Callable[[Number, Sequence[Number]], Sequence[Number]]
    size: Callable[..., Number]
    constants: Sequence[Definition] = ()

    def __call__(self, *arguments: Number) -> Sequence[Number]:
        """The function where arguments are not large."""
        return self.result(arguments[0], self.near(*arguments))
