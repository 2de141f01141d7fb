"""The code of the pages: executed, and what it prints held against the page or written to it.

Blocks of a page run one after the other, after those of the first minute unless the page imports
jaxdae itself. A block ```text after a block of code is what that prints. The README is a page that
goes on from the first minute, which it shows, too.

    python docs/scripts/blocks.py            # what pages say and what their code prints
    python docs/scripts/blocks.py --write    # put it into the pages
"""

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

DOCS = Path(__file__).resolve().parents[1]
FIRST, README = DOCS / "index.md", DOCS.parent / "README.md"
# Executed by tests of their own: code in other languages belongs to it.
ELSEWHERE = {"export.md"}
BLOCK = re.compile(
    r"^(?P<indent> *)```python\n(?P<code>.*?)^(?P=indent)```\n"
    r"(?:\n```text\n(?P<printed>.*?)^```\n)?",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """Code of a page, and what the page says that it prints.

    Args:
        page: path of the page.
        code: as it is executed.
        printed: `None` where the page does not say.
    """

    page: Path
    code: str
    printed: str | None


def blocks(page: Path) -> list[Block]:
    """Blocks of code of a page, in its order."""
    return [_block(page, x) for x in BLOCK.finditer(page.read_text())]


def _block(page: Path, match: re.Match) -> Block:
    code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
    return Block(page, code, match["printed"])


def executed_pages() -> list[Path]:
    """Pages with code, the first minute first."""
    pages = [x for x in sorted(DOCS.rglob("*.md")) if x.name not in ELSEWHERE and blocks(x)]
    return [FIRST, README, *(x for x in pages if x != FIRST)]


def to_execute(page: Path) -> list[Block]:
    """Blocks of a page; of the README those that are not on the first page."""
    shown = {(x.code, x.printed) for x in blocks(FIRST)} if page == README else set()
    return [x for x in blocks(page) if (x.code, x.printed) not in shown]


def executed() -> Iterator[tuple[Block, str]]:
    """Every block with what it prints, in one process; an error names its page."""
    sys.path.append(str(DOCS.parent / "benchmarks"))  # where the page of the suite goes
    first: dict[str, Any] = {}
    for page in executed_pages():
        todo = to_execute(page)
        own = any("import jaxdae\n" in x.code for x in todo)
        names = {"__name__": "__main__"} if own else dict(first)
        for block in todo:
            yield block, _printed(block, names)
        first = first or names


def _printed(block: Block, names: dict[str, Any]) -> str:
    out = io.StringIO()
    name = block.page.relative_to(DOCS.parent).as_posix()
    with contextlib.redirect_stdout(out):
        exec(compile(block.code, name, "exec"), names)
    return out.getvalue()


def same(said: str, printed: str) -> bool:
    """Whether each line that a page shows is printed: words exactly, numbers to a part in twenty.

    Numbers below 1e-5 are errors, which another machine rounds otherwise: to a factor of three.
    """
    lines = printed.splitlines()
    return all(any(_same_line(x, line) for line in lines) for x in said.splitlines())


NUMBER = re.compile(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?")


def _same_line(said: str, printed: str) -> bool:
    if NUMBER.sub("#", said) != NUMBER.sub("#", printed):
        return False
    pairs = zip(NUMBER.findall(said), NUMBER.findall(printed), strict=True)
    return all(_near(float(a), float(b)) for a, b in pairs)


def _near(said: float, printed: float) -> bool:
    if abs(said) < 1e-5:
        return abs(printed) <= 3 * abs(said) and abs(said) <= 3 * abs(printed)
    return abs(said - printed) <= 0.05 * abs(said)


def shown(printed: str, said: str) -> str:
    """What is printed, as long as what the page shows, numbers shortened to three digits."""
    heads = [NUMBER.sub("#", x).split("#")[0] for x in said.splitlines()]
    lines = [x for x in printed.splitlines() if any(x.startswith(h) and h for h in heads)]
    return "".join(_shortened(x) + "\n" for x in lines or printed.splitlines())


def _shortened(line: str) -> str:
    return re.sub(r"\d+\.\d{4,}(e[-+]?\d+)?", lambda x: f"{float(x[0]):.3g}", line)


def main() -> None:
    """Execute all blocks; with `--write`, put what they print into the pages."""
    for block, printed in executed():
        name = block.page.relative_to(DOCS.parent)
        if block.printed is None or same(block.printed, printed):
            print(f"{name}: {block.code.splitlines()[0][:60]!r}: as said")
            continue
        print(f"{name} says\n{block.printed}and its code prints\n{printed}")
        if "--write" in sys.argv:
            new = block.page.read_text().replace(block.printed, shown(printed, block.printed))
            block.page.write_text(new)


if __name__ == "__main__":
    main()
