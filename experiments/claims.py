"""Sentences of a report, each held against the numbers of the run that reports them."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jaxdae.commands.tables import write_json


class Claim(NamedTuple):
    """A sentence, and whether this run bears it out.

    Args:
        text: the sentence, with the numbers of the run.
        holds: what the numbers say.
    """

    text: str
    holds: bool


def listed(claims: Sequence[Claim]) -> str:
    """The claims as a list; one that the run contradicts says so."""
    lines = [
        ("" if x.holds else "**NOT IN THIS RUN:** ") + " ".join(x.text.split()) for x in claims
    ]
    return "\n".join(textwrap.fill(f"- {x}", 100, subsequent_indent="  ") for x in lines)


def finish(out: Path, text: str, result: dict[str, Any], claims: Sequence[Claim]) -> None:
    """Write `report.md` and `result.json` and print; end in an error where a claim fails.

    Args:
        out: folder; it is made.
        text: the report.
        result: the numbers.
        claims: what the report says.

    Raises:
        SystemExit: naming the claims that the run contradicts, after everything is written.
    """
    out.mkdir(parents=True, exist_ok=True)
    (out / "report.md").write_text(text.rstrip() + "\n")
    write_json(out / "result.json", result)
    print(text)
    failed = [x for x in claims if not x.holds]
    if failed:
        raise SystemExit(f"{len(failed)} claims do not hold in this run:\n{listed(failed)}")
