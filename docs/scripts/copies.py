"""Pages whose text has its home elsewhere in the project."""

import re
from collections.abc import Iterator

from names import ROOT

# From the file to its page, and to where its links lead from there.
COPIES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}


def pages() -> Iterator[tuple[str, str]]:
    """Paths below `docs/` and contents."""
    for source, page in COPIES.items():
        yield page, re.sub(r"\]\(docs/", "](", (ROOT / source).read_text())
