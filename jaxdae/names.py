"""Names: those that packages export, and those that users give."""

import difflib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any


def public(members: Mapping[str, Any]) -> list[str]:
    """What a package exports, for its `__all__`: names that it imports, its modules left out."""
    return sorted(
        name
        for name, x in members.items()
        if not name.startswith("_") and not isinstance(x, ModuleType)
    )


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """That nothing has a name, the closest one that something has, and all of them.

    Args:
        kind: of what is named, one word.
        name: what was asked for.
        known: all names there are.
    """
    known = list(known)
    close = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1, cutoff=0.5)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"No {kind} is named {name!r}.{hint} Available: {', '.join(known)}."
