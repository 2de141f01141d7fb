"""What experiments share: sentences held against the numbers of a run, tables, the command line."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxdae.storage.files import write_json
from jaxdae.tables import table


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
    """Write `report.md`, `result.json`, `claims.json` and print; end in an error if a claim fails.

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
    write_json(out / "claims.json", {"claims": [x._asdict() for x in claims]})
    print(text)
    failed = [x for x in claims if not x.holds]
    if failed:
        raise SystemExit(f"{len(failed)} claims do not hold in this run:\n{listed(failed)}")


def block(heading: str, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of a section with one table.

    Args:
        heading: of the section.
        headings: of the columns.
        rows: of the table.
    """
    return [f"## {heading}", "", *fenced(table(headings, rows)), ""]


def fenced(text: str) -> list[str]:
    """Lines of a text whose columns are aligned."""
    return ["```", text, "```"]


def options(doc: str | None, out: str, **arguments: tuple[Any, str | None]) -> argparse.Namespace:
    """What the command line of an experiment says; sets double precision.

    Args:
        doc: docstring of the script.
        out: default of `--out`, a folder.
        arguments: defaults of further options, and what they are.
    """
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    for name, (default, text) in arguments.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--out", type=Path, default=Path(out))
    jax.config.update("jax_enable_x64", True)
    return parser.parse_args()
