"""PTX text into records; every directive that is not known is refused."""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from helpers.ptx.errors import PtxError
from helpers.ptx.kinds import KINDS
from helpers.ptx.records import (
    Address,
    Function,
    Immediate,
    Instruction,
    Operand,
    Program,
    Register,
    Several,
    Special,
    Symbol,
    Variable,
)

SPECIAL = tuple(f"%{x}.{axis}" for x in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz")
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)|(?P<string>"[^"\n]*")|(?P<number>[0-9][0-9A-Za-z_.]*)
    |(?P<name>[%$._A-Za-z][\w$.]*)|(?P<mark>[][(){}<>,;:@!=+|-])|(?P<wrong>.)""",
    re.DOTALL | re.VERBOSE,
)
_SPACES = (".global", ".const", ".shared", ".local")


class Token(NamedTuple):
    """A piece of the text, and its line."""

    text: str
    sort: str
    line: int


def tokens(text: str) -> Iterator[Token]:
    """The text without comments, and an end."""
    line = 1
    for match in _TOKEN.finditer(text):
        sort = match.lastgroup or "wrong"
        if sort == "wrong":
            raise PtxError(f"line {line}: unexpected {match[0]!r}")
        if sort != "skip":
            yield Token(match[0], sort, line)
        line += match[0].count("\n")
    yield Token("the end of the text", "end", line)


class Parser:
    """Reads one module.

    Args:
        text: of it.
    """

    def __init__(self, text: str):
        self._tokens, self._at = [*tokens(text)], 0
        self.program = Program()
        # Names that are visible here: registers and variables, the innermost scope last.
        self._scopes: list[dict[str, Register | Variable]] = [{}]
        self._directives: dict[str, Callable[[Function], None]] = {
            ".reg": self._registers,
            ".local": lambda x: x.variables.append(self._declared("local")),
            ".shared": lambda x: x.variables.append(self._declared("shared")),
            ".param": lambda x: x.variables.append(self._declared("param")),
            ".pragma": lambda _: self._pragma(),
        }

    def parse(self) -> Program:
        """All of the module."""
        while self._next.sort != "end":
            while self._next.text in (".visible", ".weak"):
                self._take()
            self._item(self._take())
        return self.program

    # Tokens.

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self, wanted: str = "") -> Token:
        token = self._next
        if wanted and token.text != wanted:
            raise self._error(f"expected {wanted!r}, not {token.text!r}")
        self._at += 1
        return token

    def _took(self, text: str) -> bool:
        """Whether a piece comes next, which is then taken."""
        if self._next.text != text:
            return False
        self._at += 1
        return True

    def _error(self, reason: str) -> PtxError:
        return PtxError(f"line {self._next.line}: {reason}")

    def _list(self, end: str, entry: Callable) -> list:
        """What is between here and an end, separated by commas."""
        entries = []
        while not self._took(end):
            if entries:
                self._take(",")
            entries.append(entry())
        return entries

    # The module.

    def _item(self, token: Token) -> None:
        if token.text in (".version", ".address_size"):
            number = self._take().text
            if token.text == ".address_size" and number != "64":
                raise PtxError(f"line {token.line}: addresses of {number} bits; only 64 are known")
        elif token.text == ".target":
            self._take()
        elif token.text in (".entry", ".func"):
            self._function(token.text == ".entry")
        elif token.text in (".global", ".const", ".shared"):
            self.program.variables.append(self._declared(token.text[1:]))
        else:
            raise PtxError(f"line {token.line}: unknown directive {token.text!r}")

    def _function(self, entry: bool) -> None:
        self._scopes.append({})
        results = []
        if not entry and self._took("("):
            results = self._list(")", lambda: self._parameter("result"))
        name = self._take().text
        self._take("(")
        parameters = self._list(")", lambda: self._parameter("param"))
        function = Function(name, entry, results, parameters)
        self._sizes(function)
        if not self._took(";"):
            if name in self.program.functions:
                raise self._error(f"{name} is defined twice")
            self._take("{")
            self._body(function, "")
            self.program.functions[name] = function
        self._scopes.pop()

    def _parameter(self, what: str) -> Variable:
        self._take(".param")
        variable = self._declared("param", end=False)
        if variable.values is not None:
            raise self._error(f"a {what} has a value")
        return variable

    def _sizes(self, function: Function) -> None:
        while self._next.text in (".maxntid", ".reqntid", ".minnctapersm", ".maxnreg"):
            directive, count = self._take().text, int(self._take().text)
            while self._took(","):
                count *= int(self._take().text)
            if directive == ".reqntid":
                function.block = count
            elif directive == ".maxntid":
                function.largest = count

    # Declarations.

    def _declared(self, space: str, end: bool = True) -> Variable:
        """A variable in memory, from behind its space on."""
        alignment, kinds = 0, []
        while self._next.text.startswith("."):
            word = self._take().text[1:]
            if word == "align":
                alignment = int(self._take().text)
            elif word == "ptr":  # what a parameter points to, which nothing here depends on
                while self._next.text in (".align", *_SPACES):
                    self._at += 2 if self._next.text == ".align" else 1
            else:
                kinds.append(word)
        if len(kinds) != 1:
            raise self._error(f"a variable of type {' '.join(kinds) or 'none'}")
        token, count = self._take(), 1
        while self._took("["):
            count *= int(self._take().text)
            self._take("]")
        values = self._values() if self._took("=") else None
        if end:
            self._take(";")
        size = self._size(kinds[0])
        name = self._unique(token)
        variable = Variable(space, name, kinds[0], count, max(alignment, size), values, token.line)
        self._scopes[-1][token.text] = variable
        return variable

    def _values(self) -> tuple[str, ...]:
        if self._took("{"):
            return tuple(self._list("}", self._number))
        return (self._number(),)

    def _number(self) -> str:
        sign = "-" if self._took("-") else ""
        token = self._take()
        if token.sort != "number":
            raise PtxError(f"line {token.line}: {token.text!r} is no number")
        return sign + token.text

    def _size(self, name: str) -> int:
        """Bytes of a type."""
        if name not in KINDS:
            raise self._error(f"unknown type .{name}")
        return KINDS[name].itemsize

    def _unique(self, token: Token) -> str:
        """A name that no other scope of the function gives to something else."""
        if token.text in self._scopes[-1]:
            raise PtxError(f"line {token.line}: {token.text} is declared twice")
        return token.text if len(self._scopes) < 4 else f"{token.text} of line {token.line}"

    def _registers(self, function: Function) -> None:
        del function
        name = self._take().text[1:]
        if name != "pred" and self._size(name) == 1:
            raise self._error(f"registers of type .{name}")
        while True:
            token = self._take()
            if self._took("<"):
                for i in range(int(self._take().text)):
                    self._register(Token(f"{token.text}{i}", token.sort, token.line), name)
                self._take(">")
            else:
                self._register(token, name)
            if self._took(";"):
                return
            self._take(",")

    def _register(self, token: Token, name: str) -> None:
        self._scopes[-1][token.text] = Register(self._unique(token), name)

    def _pragma(self) -> None:
        text = self._take().text
        if text != '"nounroll"':
            raise self._error(f"unknown pragma {text}")
        self._take(";")

    # Bodies.

    def _body(self, function: Function, label: str) -> None:
        """Statements up to the brace that closes them."""
        self._scopes.append({})
        while not self._took("}"):
            token = self._take()
            if token.text == "{":
                self._body(function, label)
            elif token.text in self._directives:
                self._directives[token.text](function)
            elif token.text == ".branchtargets":
                function.tables[label] = tuple(self._list(";", lambda: self._take().text))
            elif self._took(":"):
                label = token.text
                if label in function.labels:
                    raise PtxError(f"line {token.line}: label {label} is there twice")
                function.labels[label] = len(function.instructions)
            else:
                function.instructions.append(self._instruction(token))
        self._scopes.pop()

    def _instruction(self, token: Token) -> Instruction:
        guard, negated = None, False
        if token.text == "@":
            negated = self._took("!")
            guard = self._operand()
            token = self._take()
            if not isinstance(guard, Register) or guard.kind != "pred":
                raise PtxError(f"line {token.line}: {guard} is no predicate")
        if token.sort != "name" or token.text.startswith((".", "%", "$")):
            raise PtxError(f"line {token.line}: unknown directive {token.text!r}")
        operands = self._list(";", self._operand)
        return Instruction(token.line, token.text, tuple(operands), guard, negated)

    def _operand(self) -> Operand:
        if self._took("{"):
            return Several(tuple(self._list("}", self._operand)))
        if self._took("("):
            return Several(tuple(self._list(")", self._operand)))
        if self._took("["):
            return self._address()
        if self._next.sort == "number" or self._next.text == "-":
            return Immediate(self._number())
        token = self._take()
        if token.sort != "name":
            raise PtxError(f"line {token.line}: unexpected {token.text!r}")
        return self._named(token)

    def _named(self, token: Token) -> Register | Symbol | Special:
        for scope in reversed(self._scopes):
            if token.text in scope:
                result = scope[token.text]
                return result if isinstance(result, Register) else Symbol(result.name)
        if token.text in SPECIAL:
            return Special(token.text)
        if token.text.startswith("%"):
            raise PtxError(f"line {token.line}: unknown register {token.text}")
        return Symbol(token.text)

    def _address(self) -> Address:
        base = self._operand()
        if not isinstance(base, Register | Symbol):
            raise self._error("an address begins with a register or a variable")
        offset = 0
        if self._took("+") or self._next.text == "-":
            offset = int(self._number(), 0)
        self._take("]")
        return Address(base, offset)
