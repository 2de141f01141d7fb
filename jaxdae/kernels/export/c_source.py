"""Kernels for one member as C99, so that any compiler can make machine code of them.

Translated is the language that `jaxdae.kernels.llvm.writer` writes with vectors of one entry, which
are numbers here. Integers are unsigned, whose arithmetic wraps around as theirs does, and signed
where they are compared or become numbers. Each register is a variable, each block a label.
"""

import re
import struct
from typing import Any, NamedTuple

from jaxdae.kernels.llvm.machine_code import MachineCodeError
from jaxdae.kernels.llvm.module import Definition

_HEAD = re.compile(r"define (?:internal )?(.+?) @([\w.]+)\((.*?)\)[^(){}]*\{$")
_GLOBAL = re.compile(
    r"@([\w.]+) = internal unnamed_addr constant \[(\d+) x ([\w ]+)\] \[(.*)\](?:, align \d+)?$"
)
_TYPES = {"double": "double", "i64": "uint64_t", "i32": "uint32_t", "i1": "int", "ptr": "char *",
          "i8": "uint8_t", "void": "void", "pair": "kernel_pair",
          "triple": "kernel_triple"}  # fmt: skip
# Several numbers that a function returns.
_STRUCTURES = {"{double, double}": ("pair", 2), "{double, double, double}": ("triple", 3)}
_SIZES = dict(_STRUCTURES.values())
# What each comparison of numbers is in C; those that hold where an operand is no number are the
# opposite of others.
_COMPARED = {"oeq": "==", "olt": "<", "ole": "<=", "ogt": ">", "oge": ">="}
_OPPOSITE = {"une": "oeq", "ult": "oge", "ule": "ogt", "ugt": "ole", "uge": "olt"}
_INTEGERS = {"eq": "==", "ne": "!=", "slt": "<", "sle": "<=", "sgt": ">", "sge": ">="}
_UNSIGNED = {"ult": "<", "ule": "<=", "ugt": ">", "uge": ">="}
_ARITHMETIC = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>",
}  # fmt: skip
# Functions that numbers are put into; two of LLVM's, where NaN goes through, are written out.
_INTRINSICS = {
    "fabs": "fabs", "floor": "floor", "ceil": "ceil", "rint": "rint", "sqrt": "sqrt", "fma": "fma",
    "copysign": "copysign", "minimum": "kernel_minimum", "maximum": "kernel_maximum",
}  # fmt: skip

PRELUDE = """#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#else
#pragma STDC FP_CONTRACT OFF
#endif

typedef struct { double entry[2]; } kernel_pair;
typedef struct { double entry[3]; } kernel_triple;

static inline uint64_t kernel_bits(double x) { uint64_t y; memcpy(&y, &x, 8); return y; }
static inline double kernel_number(uint64_t x) { double y; memcpy(&y, &x, 8); return y; }
static inline double kernel_minimum(double a, double b) {
  return a != a ? a : b != b ? b : a == b ? (signbit(a) ? a : b) : a < b ? a : b;
}
static inline double kernel_maximum(double a, double b) {
  return a != a ? a : b != b ? b : a == b ? (signbit(a) ? b : a) : a > b ? a : b;
}
"""


def c_source(definitions: list[Definition], prefix: str) -> str:
    """Functions and tables of a module, in the order in which they are needed.

    Args:
        definitions: written for vectors of one entry, of double precision.
        prefix: before the names of all of them, which are known to this file alone.

    Raises:
        MachineCodeError: for an instruction that is not known here.
    """
    parts = [x.text for x in definitions]
    constants = [_constant(x, prefix) for x in parts if x.startswith("@")]
    inside = [y for x in parts if "\n@" in x for y in re.findall(r"^@.*$", x, re.MULTILINE)]
    constants += [_constant(x, prefix) for x in inside]
    texts = [re.findall(r"^define .*?^\}", x, re.MULTILINE | re.DOTALL) for x in parts]
    functions = [_Function(x, prefix) for each in texts for x in each]
    heads = [f"{x.head()};" for x in functions]
    return "\n\n".join(
        [*dict.fromkeys(constants), "\n".join(heads), *(x.text() for x in functions)]
    )


def pointer_of(prefix: str, name: str) -> str:
    """Name in C of a function of the module."""
    return prefix + name.replace(".", "_")


def _constant(text: str, prefix: str) -> str:
    match = _GLOBAL.match(text.strip())
    if match is None:
        raise _unknown(text[:200])
    name, count, kind, values = match.groups()
    entries = ", ".join(_value(x.split()[-1], kind, prefix) for x in values.split(","))
    head = f"static const {_TYPES[kind]} {pointer_of(prefix, name)}[{count}]"
    return f"{head} = {{{entries}}};"


def _unknown(text: str) -> MachineCodeError:
    return MachineCodeError(
        f"C sources of a kernel lack what stands for {text!r}. That is a mistake in jaxdae; please "
        "report it."
    )


def _plain(text: str) -> str:
    """Without vectors of one entry."""
    text = re.sub(r"<1 x (\w+)>", r"\1", text)
    for written, (name, _) in _STRUCTURES.items():
        text = text.replace(written, name)
    return re.sub(r"splat \(\w+ ([^()]*)\)", r"\1", text)


def _value(word: str, kind: str, prefix: str) -> str:
    """A register or constant."""
    if word.startswith("%"):
        return _register(word)
    if word.startswith("@"):
        return f"((char *)(uintptr_t){pointer_of(prefix, word[1:])})"
    if kind in ("double", "float"):
        return _literal(word)
    if word in ("poison", "zeroinitializer", "undef"):
        return "0"
    if kind == "i1":
        return {"true": "1", "false": "0"}.get(word, word)
    if kind == "ptr":
        return "(char *)0" if word == "null" else word
    return f"UINT{64 if kind == 'i64' else 32}_C({int(word) % 2 ** (64 if kind == 'i64' else 32)})"


def _literal(word: str) -> str:
    if word in ("poison", "zeroinitializer", "undef"):
        return "0.0"
    (value,) = struct.unpack(">d", int(word, 16).to_bytes(8, "big"))
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"({value!r})" if value < 0 or word.startswith("0x8") else repr(value)


def _register(word: str) -> str:
    return "v_" + word[1:].replace(".", "_")


def _arguments(text: str) -> list[tuple[str, str]]:
    """Types and words of `double %x, ptr %y`."""
    parts = [x.split() for x in text.split(", ")] if text.strip() else []
    return [(x[0], x[-1]) for x in parts]


class _Case(NamedTuple):
    """What a value is when a block is entered from another."""

    target: str
    kind: str
    value: str


class _Function:
    """One function."""

    def __init__(self, text: str, prefix: str):
        head, *self._lines = _plain(text).split("\n")
        match = _HEAD.match(head.strip())
        if match is None:
            raise _unknown(head)
        self._kind, self.name, arguments = match.groups()
        self._prefix, self._arguments_of = prefix, _arguments(arguments)
        self._declared: dict[str, list[str]] = {}
        self._arrays: list[str] = []
        self._cases: dict[tuple[str, str], list[_Case]] = {}
        self._block = "entry"

    def head(self) -> str:
        """Its declaration."""
        names = [
            f"{_TYPES[kind]}{'' if kind == 'ptr' else ' '}{'restrict ' * (kind == 'ptr')}"
            f"{_register(x)}"
            for kind, x in self._arguments_of
        ]
        name = pointer_of(self._prefix, self.name)
        return f"static {_TYPES[self._kind]} {name}({', '.join(names) or 'void'})"

    def text(self) -> str:
        """Its definition."""
        lines = [x.strip() for raw in self._lines for x in raw.split("\n")]
        lines = [x for x in lines if x and x not in ("}", "entry:")]
        self._note_cases(lines)
        self._block, body = "entry", []
        for line in lines:
            body += self._statements(line)
        declared = [
            f"  {kind}{'' if kind.endswith('*') else ' '}{', '.join(names)};"
            if not kind.endswith("*")
            else f"  char {', '.join('*' + x for x in names)};"
            for kind, names in self._declared.items()
        ]
        return "\n".join([f"{self.head()} {{", *declared, *self._arrays, *body, "}"])

    def _note_cases(self, lines: list[str]) -> None:
        """What each block hands on to those that follow it."""
        block = "entry"
        for line in lines:
            if line.endswith(":"):
                block = line[:-1]
            match = re.match(r"(%[\w.]+) = phi ([\w]+) (.*)$", line)
            if match:
                target, kind, cases = match.groups()
                for value, source in re.findall(r"\[ ?(\S+), %([\w.]+) ?\]", cases):
                    case = _Case(target, kind, value)
                    self._cases.setdefault((source, block), []).append(case)

    def _jump(self, label: str) -> str:
        """Go to a block, with values that it takes from here, all of them at once."""
        cases = self._cases.get((self._block, label), [])
        values = [self._word(x.value, x.kind) for x in cases]
        if len(cases) == 1:
            moved = f"{_register(cases[0].target)} = {values[0]}; "
        else:
            first = [
                f"{_TYPES[x.kind]} n{i} = {value};"
                for i, (x, value) in enumerate(zip(cases, values, strict=True))
            ]
            then = [f"{_register(x.target)} = n{i};" for i, x in enumerate(cases)]
            moved = " ".join([*first, *then, ""]) if cases else ""
        return f"{{ {moved}goto {self._label(label)}; }}"

    @staticmethod
    def _label(label: str) -> str:
        return f"L_{label.replace('.', '_')}"

    def _word(self, word: str, kind: str) -> str:
        return _value(word.rstrip(","), kind, self._prefix)

    def _statements(self, line: str) -> list[str]:
        if line.endswith(":"):
            self._block = line[:-1]
            return [f"{self._label(self._block)}:;"]
        if line.startswith("%"):
            register, instruction = line.split(" = ", 1)
            return self._made(register, instruction)
        if line.startswith("br label"):
            return [f"  {self._jump(line.split('%')[1])}"]
        match = re.match(r"br i1 (\S+), label %([\w.]+), label %([\w.]+)", line)
        if match:
            condition, yes, no = match.groups()
            test = self._word(condition, "i1")
            return [f"  if ({test}) {self._jump(yes)} else {self._jump(no)}"]
        match = re.match(r"store (\w+) (\S+), ptr ([^\s,]+)", line)
        if match:
            kind, value, place = match.groups()
            target = f"*({_TYPES[kind]} *){self._word(place, 'ptr')}"
            return [f"  {target} = {self._word(value, kind)};"]
        if line.startswith("ret"):
            words = line.split()
            return ["  return;" if words[1] == "void" else f"  return {self._word(*words[:0:-1])};"]
        if line.startswith("call"):
            return [f"  {self._call(line)[1]};"]
        raise _unknown(line)

    def _made(self, register: str, text: str) -> list[str]:
        """The instructions that give a value."""
        name, words = _register(register), text.replace(",", " ").split()
        operation = words[0]
        if operation == "alloca":
            kind, count = _TYPES[words[1]], words[3]
            self._arrays.append(
                f"  {kind} room_{name}[{count}]; char *{name} = (char *)room_{name};"
            )
            return []
        kind, value = self._value_of(operation, text, words)
        self._declared.setdefault(kind, []).append(name)
        return [] if value is None else [f"  {name} = {value};"]

    def _value_of(self, operation: str, text: str, words: list[str]) -> tuple[str, Any]:
        """Type and value of what an instruction gives."""
        of = lambda i, kind: self._word(words[i], kind)  # noqa: E731
        kind = words[1] if len(words) > 1 else ""
        if operation == "phi":
            return _TYPES[kind], None
        if operation == "load":
            return _TYPES[kind], f"*({_TYPES[kind]} *){self._word(words[3], 'ptr')}"
        if operation == "getelementptr":
            size = {"i8": 1, "i32": 4}.get(kind, 8)
            at = f"(int64_t){of(5, 'i64')}" if words[5].startswith("%") else words[5]
            return "char *", f"{of(3, 'ptr')} + {size} * ({at})"
        if operation == "call":
            return self._call(text)
        if operation == "fneg":
            return "double", f"-{of(2, 'double')}"
        if operation in ("fcmp", "icmp"):
            return "int", self._comparison(operation, words)
        if operation == "select":
            return _TYPES[words[3]], f"{of(2, 'i1')} ? {of(4, words[3])} : {of(6, words[5])}"
        return self._converted(operation, words)

    def _converted(self, operation: str, words: list[str]) -> tuple[str, str]:
        """Arithmetic, and the same numbers as another type."""
        of = lambda i, kind: self._word(words[i], kind)  # noqa: E731
        kind = words[1]
        if operation in _ARITHMETIC:
            return _TYPES[kind], f"{of(2, kind)} {_ARITHMETIC[operation]} {of(3, kind)}"
        if operation == "bitcast":
            called = "kernel_bits" if kind == "double" else "kernel_number"
            return _TYPES[words[4]], f"{called}({of(2, kind)})"
        if operation in ("sitofp", "uitofp"):
            sign = "(int64_t)" if operation == "sitofp" and kind != "i1" else ""
            return "double", f"(double){sign}{of(2, kind)}"
        if operation == "fptosi":
            return _TYPES[words[4]], f"({_TYPES[words[4]]})(int64_t){of(2, kind)}"
        if operation in ("zext", "trunc"):
            return _TYPES[words[4]], f"({_TYPES[words[4]]}){of(2, kind)}"
        if operation == "extractelement" or operation == "shufflevector":
            return _TYPES[kind], of(2, kind)
        if operation == "insertelement":
            return _TYPES[kind], of(4, words[3])
        if operation == "extractvalue":
            return "double", f"{_register(words[2])}.entry[{words[3]}]"
        if operation == "insertvalue":
            entries = [f"{_register(words[2])}.entry[{i}]" for i in range(_SIZES[kind])]
            if words[2] == "poison":
                entries = ["0.0"] * len(entries)
            entries[int(words[5])] = of(4, "double")
            return _TYPES[kind], f"({_TYPES[kind]}){{{{{', '.join(entries)}}}}}"
        raise _unknown(" ".join(words))

    def _comparison(self, operation: str, words: list[str]) -> str:
        name, kind = words[1], words[2]
        a, b = (self._word(x, kind) for x in words[3:5])
        if operation == "icmp":
            if name in _UNSIGNED:
                return f"{a} {_UNSIGNED[name]} {b}"
            signed = name not in ("eq", "ne") and kind != "i1"
            cast = f"({_TYPES[kind][1:]})" if signed else ""
            return f"{cast}{a} {_INTEGERS[name]} {cast}{b}"
        if name in ("uno", "ord"):
            return f"{a} != {a} || {b} != {b}" if name == "uno" else f"{a} == {a} && {b} == {b}"
        if name == "one":
            return f"{a} < {b} || {a} > {b}"
        if name == "ueq":
            return f"!({a} < {b} || {a} > {b})"
        if name in _OPPOSITE:
            return f"!({a} {_COMPARED[_OPPOSITE[name]]} {b})"
        return f"{a} {_COMPARED[name]} {b}"

    def _call(self, text: str) -> tuple[str, str]:
        match = re.match(r"call (\w+) @([\w.]+)\((.*)\)", text)
        if match is None:
            raise _unknown(text)
        kind, name, arguments = match.groups()
        each = [self._word(x, k) for k, x in _arguments(arguments)]
        result = _TYPES[kind]
        if name.startswith("llvm.memcpy"):
            return result, f"memcpy({', '.join(each[:2])}, (size_t){each[2]})"
        if name.startswith("llvm.vector.reduce"):
            return result, each[0]
        if name.startswith("llvm."):
            short = name.split(".")[1]
            if short == "fmuladd":
                return result, f"{each[0]} * {each[1]} + {each[2]}"
            if short not in _INTRINSICS:
                raise _unknown(text)
            return result, f"{_INTRINSICS[short]}({', '.join(each)})"
        return result, f"{pointer_of(self._prefix, name)}({', '.join(each)})"
