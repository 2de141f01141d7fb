"""Moves between registers, and addresses."""

import numpy as np

from helpers.ptx.building import Builder
from helpers.ptx.errors import PtxError
from helpers.ptx.kinds import FLOATS, kind
from helpers.ptx.operands import Operands, Step, Where
from helpers.ptx.records import Several, Symbol
from helpers.ptx.threads import generic

_MOVED = (*FLOATS, *(f"{x}{bits}" for x in "bus" for bits in (16, 32, 64)), "pred")


def _move(name: str) -> Builder:
    def build(at: Operands) -> Step:
        target, source = at.expect(2)
        if isinstance(target, Several):
            return _split(at, target, name)
        if isinstance(source, Several):
            return _joined(at, source, name)
        out, value = at.target(target, name), at.source(source, name)
        return lambda where: np.copyto(out, value, where=where)

    return build


def _part(name: str, whole: Several) -> str:
    if name[0] != "b":
        raise PtxError(f"a vector as .{name}")
    return f"b{int(name[1:]) // len(whole.entries)}"


def _split(at: Operands, target: Several, name: str) -> Step:
    """The lowest bits first."""
    part = _part(name, target)
    value = at.source(at.given[1], name)
    out = [at.target(x, part) for x in target.entries]

    def step(where: Where) -> None:
        pieces = value.view(kind(part)).reshape(value.size, -1)
        for i, x in enumerate(out):
            np.copyto(x, pieces[:, i], where=where)

    return step


def _joined(at: Operands, source: Several, name: str) -> Step:
    part = _part(name, source)
    out = at.target(at.given[0], name)
    values = [at.source(x, part) for x in source.entries]

    def step(where: Where) -> None:
        np.copyto(out, np.stack(values, 1).view(out.dtype)[:, 0], where=where)

    return step


def _window(space: str, to_generic: bool) -> Builder:
    """Between addresses in a space and generic ones."""
    start = np.uint64(generic(space))

    def build(at: Operands) -> Step:
        target, source = at.expect(2)
        out = at.target(target, "u64")
        if isinstance(source, Symbol) and at.address(source)[0] != space:
            raise PtxError(f"{source.name} is not in {space} memory")
        value = at.source(source, "u64")
        change = np.add if to_generic else np.subtract
        return lambda where: change(value, start, out=out, where=where)

    return build


INSTRUCTIONS = {
    **{f"mov.{name}": _move(name) for name in _MOVED},
    **{f"cvta.{x}.u64": _window(x, True) for x in ("global", "local", "shared", "const")},
    **{f"cvta.to.{x}.u64": _window(x, False) for x in ("global", "local", "shared", "const")},
}
