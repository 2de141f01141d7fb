"""What the docstrings cite: papers, books and test sets, by the keys of `references.bib`.

A docstring cites as `[Baumgarte1972]`, with a place as `[Mukharlyamov2019, eqs. 2.6-2.9]`, and more
than one as `[Ascher1994; Bayo1988, section 2]`.
"""

import re
from functools import cache
from importlib.resources import files

from jaxdae.version import __version__

TITLE = "Differentiable simulation, tuning and analysis of constrained mechanical systems in JAX"
AUTHOR = "The jaxdae maintainers"


def citation(key: str | None = None) -> str:
    """BibTeX entry of jaxdae, or of a reference that its docstrings cite.

    Args:
        key: as in the docstrings, such as `"Baumgarte1972"`; by default jaxdae itself.

    Raises:
        KeyError: for a key that is not one of `references.bib`, with those that are.
    """
    if key is None:
        return (
            f"@software{{jaxdae,\n  author = {{{{{AUTHOR}}}}},\n  title = {{jaxdae: {TITLE}}},\n"
            f"  version = {{{__version__}}},\n}}"
        )
    if key not in entries():
        raise KeyError(f"no reference has the key {key!r}; there are {', '.join(entries())}.")
    return entries()[key]


@cache
def entries() -> dict[str, str]:
    """BibTeX entries by key, in the order of the file."""
    text = files("jaxdae").joinpath("references.bib").read_text("utf-8")
    return {x[1]: x[0].rstrip() for x in re.finditer(r"^@\w+\{(\w+),.*?^\}", text, re.M | re.S)}
