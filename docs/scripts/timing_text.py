"""Numbers, times and tables as the page of benchmarks writes them."""

from collections.abc import Iterable

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def number(x: float) -> str:
    """Three digits, without powers of ten where they can be avoided."""
    if x == 0:
        return "0"
    if not 1e-2 <= abs(x) < 1e5:
        return f"{x:.1e}"
    return f"{x:.3g}" if abs(x) < 100 else f"{float(f'{x:.3g}'):.0f}"


def time_text(seconds: float) -> str:
    """A time in the unit that suits it."""
    unit = next((u for u, x in UNITS.items() if seconds >= x), "ns")
    return f"{number(seconds / UNITS[unit])} {unit}"


def power(x: float) -> str:
    """A power of ten as it is written in code."""
    return f"{x:.0e}".replace("e-0", "e-")


def table(headings: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    head = list(headings)
    rows = [head, ["---"] * len(head), *map(list, lines)]
    return "\n".join("| " + " | ".join(x.replace("|", "\\|") for x in row) + " |" for row in rows)
