"""Functions as the threads of a GPU run them: few registers, short code, addresses of local memory.

What LLVM and the assembler are given decides how many registers a thread takes:

- A function of which a kernel would have many copies stays one that is called: parameters, which
  each step reads, are then loaded where they are used, and not kept in registers all the time.
- Pointers to a thread's own arrays are such of local memory, one register each instead of two.
- Instructions of a straight line are put in an order in which few numbers wait (`schedule`).
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from jaxdae.kernels.cuda.schedule import ordered
from jaxdae.kernels.llvm.module import Definition

# Instructions of all copies of a function that becomes part of those that call it, at most.
_COPIED = 1024
# In names of functions of adjoints.
_TRANSPOSED = "transposed"
# With which names of elementary functions begin.
_ELEMENTARY = "vector_"
_HEAD = re.compile(r"define internal void @([\w.]+)\(([^)]*)\)([^{]*)\{\nentry:\n")
_CALL = re.compile(r"^  call void @([\w.]+)\(([^)]*)\)", re.MULTILINE)
_ROOM = re.compile(r"(= alloca <?(?:1 x )?(\w+)>?.*, align )\d+$", re.MULTILINE)
_ADDRESS = re.compile(r"^  (%\w+) = getelementptr [^%]*?ptr (%\w+)", re.MULTILINE)
_OWN = re.compile(r"^  (%\w+) = alloca ", re.MULTILINE)
_LOCAL = "ptr addrspace(5)"


class _Function(NamedTuple):
    """What is read of a definition.

    Args:
        parameters: registers and what is written before each, in order; of the entry none.
        roots: of addresses in it, what they are derived from.
        calls: names of functions, and the registers that each call gives them.
    """

    parameters: dict[str, str]
    roots: dict[str, str]
    calls: list[tuple[str, list[str]]]


def for_threads(definitions: Iterable[Definition]) -> list[Definition]:
    """The same functions in the form in which they make the best PTX.

    Args:
        definitions: of a module, the entry among them.
    """
    each = [ordered(_aligned(_apart(x))) for x in definitions]
    functions = {x.name: _read(x) for x in each}
    called = {name for name, many in _sites(functions, each).items() if many}
    local = _local(functions)
    return [_written(x, functions[x.name], called, local) for x in each]


def unrolled(definitions: Iterable[Definition]) -> bool:
    """Whether loops may become straight lines: of adjoints, too many numbers would wait in them."""
    return not any(_TRANSPOSED in x.name for x in definitions)


def _apart(one: Definition) -> Definition:
    """An elementary function stays one that is called: its own numbers wait beside no others."""
    if not one.name.startswith(_ELEMENTARY) or "noinline" in one.text[: one.text.index("\n")]:
        return one
    return one._replace(text=one.text.replace(" nounwind {", " noinline nounwind {", 1))


def _aligned(one: Definition) -> Definition:
    """Arrays as close to each other as their numbers allow: a thread has no vector registers."""
    text = _ROOM.sub(lambda x: f"{x[1]}{4 if x[2] in ('float', 'i32') else 8}", one.text)
    return one._replace(text=text)


def _read(one: Definition) -> _Function:
    head = _HEAD.match(one.text)
    pieces = [x.rpartition(" ") for x in head[2].split(", ")] if head and head[2] else []
    roots = {x: x for x in _OWN.findall(one.text)}
    roots |= {register: register for _, _, register in pieces}
    for register, base in _ADDRESS.findall(one.text):
        roots[register] = roots.get(base, "")
    calls = [
        (name, [y.rpartition(" ")[2] for y in x.split(", ")]) for name, x in _CALL.findall(one.text)
    ]
    return _Function({register: about for about, _, register in pieces}, roots, calls)


def _sites(functions: dict[str, _Function], each: list[Definition]) -> dict[str, bool]:
    """Functions that can be called, and whether they stay so: loops, and what has long copies."""
    sites = Counter(name for x in functions.values() for name, _ in x.calls)
    lines = {x.name: x.text.split("\n") for x in each if _HEAD.match(x.text)}
    sizes = {name: sum("getelementptr" not in x for x in own) for name, own in lines.items()}
    loops = {name: any(x.startswith("  br ") for x in own) for name, own in lines.items()}
    return {
        name: loops[name] or (sites[name] > 1 and sites[name] * sizes[name] > _COPIED)
        for name in lines
        if functions[name].parameters
    }


def _local(functions: dict[str, _Function]) -> dict[str, list[bool]]:
    """For each parameter of functions, whether all calls give it an array of the thread's own."""
    local = {
        name: ["ptr" in about for about in x.parameters.values()] for name, x in functions.items()
    }
    changed = True
    while changed:
        changed = False
        for name, x in functions.items():
            numbers = {register: i for i, register in enumerate(x.parameters)}
            for callee, arguments in x.calls:
                for i, argument in enumerate(arguments):
                    root = x.roots.get(argument, "")
                    own = local[name][numbers[root]] if root in numbers else root != ""
                    if callee in local and local[callee][i] and not own:
                        local[callee][i] = False
                        changed = True
    return local


def _written(
    one: Definition, function: _Function, called: set[str], local: dict[str, list[bool]]
) -> Definition:
    count = itertools.count()

    def call(x: re.Match) -> str:
        if x[1] not in called:
            return x[0]
        casts, arguments = [], []
        for argument, own in zip(x[2].split(", "), local[x[1]], strict=True):
            register = f"%local{next(count)}"
            if own:
                casts.append(f"  {register} = addrspacecast {argument} to {_LOCAL}\n")
            arguments.append(f"{_LOCAL} {register}" if own else argument)
        return f"{''.join(casts)}  call void @{x[1]}({', '.join(arguments)})"

    text = _CALL.sub(call, one.text)
    if one.name in called:
        text = _HEAD.sub(lambda x: _head(x, function.parameters, local[one.name]), text, count=1)
    return one._replace(text=text)


def _head(x: re.Match, parameters: dict[str, str], local: list[bool]) -> str:
    """The first lines of a function that is called."""
    words, casts = [], []
    for (register, about), own in zip(parameters.items(), local, strict=True):
        words.append(
            f"{about.replace('ptr', _LOCAL, 1)} {register}own" if own else f"{about} {register}"
        )
        if own:
            casts.append(f"  {register} = addrspacecast {_LOCAL} {register}own to ptr\n")
    attributes = f"{x[3].rstrip()} noinline ".lstrip()
    start = f"define internal void @{x[1]}({', '.join(words)}) {attributes}{{\nentry:\n"
    return start + "".join(casts)
