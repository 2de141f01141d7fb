"""The page of references, from the bibliography of the package."""

import re
from collections.abc import Iterator

from names import PACKAGE

ENTRY = re.compile(r"^@(\w+)\{(\w+),\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (\w+) = \{(.*)\},$", re.MULTILINE)


def entries() -> dict[str, dict[str, str]]:
    """Fields of each entry, by its key."""
    text = (PACKAGE / "references.bib").read_text()
    return {x[2]: dict(FIELD.findall(x[3])) for x in ENTRY.finditer(text)}


def heading(key: str) -> str:
    """A paper by its authors' last names and its title."""
    fields = entries()[key]
    names = [x.partition(",")[0] for x in fields["author"].split(" and ")]
    return _plain(f"{', '.join(names)}: {fields['title']}")


def pages() -> Iterator[tuple[str, str]]:
    """Its path below `docs/` and its content."""
    lines = [_line(key, fields) for key, fields in entries().items()]
    head = (
        "# References\n\nWhat docstrings cite. `jaxdae.citation(key)` gives an entry as BibTeX.\n"
    )
    yield "references.md", "\n".join([head, *lines, ""])


def _line(key: str, fields: dict[str, str]) -> str:
    who = fields.get("author", fields.get("editor", fields.get("organization", "")))
    names = [_name(x) for x in who.split(" and ")]
    where = [fields.get(x, "") for x in ("journal", "booktitle", "publisher", "institution")]
    place = ", ".join(x for x in (*where, fields.get("volume", ""), fields.get("pages", "")) if x)
    text = f"{', '.join(names)}: *{fields['title']}*. {place} ({fields.get('year', 'no year')})."
    return f'- <a id="{key}"></a>**{key}** {_plain(text)}'


def _name(name: str) -> str:
    last, _, first = name.partition(", ")
    return f"{first} {last}".strip()


def _plain(text: str) -> str:
    """BibTeX's braces and dashes as they are printed."""
    return text.replace("{", "").replace("}", "").replace("--", "–")
