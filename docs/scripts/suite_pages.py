"""The suite of mechanisms: the table of all codes, and a page for each mechanism.

From `docs/data/suite/`, references that `benchmarks/suite/references.py` wrote, and
`docs/data/suite.json`, what `benchmarks/suite_runs.py` measured.
"""

import json
from collections.abc import Iterator
from typing import Any

from names import DATA
from timing_text import number, table, time_text

FOLDER = DATA / "suite"
# What counts as right: far above errors of any code that solves the equations, far below others.
RIGHT = {"motion": 1e-5, "first": 1e-4, "second": 1e-3}
TARGETS = {"motion": 1e-8, "first": 1e-6}
KINDS = {"motion": "motion", "first": "first derivatives", "second": "second derivatives"}

Record = dict[str, Any]


def references() -> list[dict[str, Any]]:
    """All references, in the order of their names."""
    return [json.loads(x.read_text()) for x in sorted(FOLDER.glob("*.json"))]


def pages() -> Iterator[tuple[str, str]]:
    """A page for each mechanism."""
    records = _records()
    for one in references():
        yield f"suite/{one['mechanism']}.md", _page(one, records)


def _records() -> list[Record]:
    file = DATA / "suite.json"
    return json.loads(file.read_text())["records"] if file.exists() else []


def summary(data: dict[str, Any]) -> str:
    """What the page of the suite shows: references, codes, mechanisms."""
    records, known = data["records"], references()
    made = ", ".join(f"{k} {v}" for k, v in sorted(data["versions"].items()) if _used(k, records))
    parts = [
        _mechanisms(known), "## Which codes are right", _codes(records),
        "## Errors of this library", _own(known, records),
        "## Time to an error", _times(known, records),
        f"Measured on {data['machine']['processor']} with {data['machine']['cores']} cores while "
        "other work ran on them, so that times say orders of magnitude alone: the least of three "
        f"runs, compiling apart. Versions: {made}.",
    ]  # fmt: skip
    return "\n\n".join(parts)


def _used(package: str, records: list[Record]) -> bool:
    codes = " ".join(x["code"] for x in records).lower()
    return package in ("jax", "numpy", "python") or package.partition("-")[0].lower() in codes


def _link(one: dict[str, Any], folder: str = "suite/") -> str:
    return f"[{one['mechanism']}]({folder}{one['mechanism']}.md)"


def _mechanisms(known: list[dict[str, Any]]) -> str:
    lines = []
    for one in known:
        n = _coordinates(one)
        multipliers = len(one["columns"]) - 2 * n
        agreement = "; ".join(f"{x:.0e}" for x in one["agreement"].values())
        lines.append([
            _link(one), ", ".join(one["kinds"]), str(n), str(multipliers), f"{one['t'][-1]:g} s",
            ", ".join(one["by"]), agreement,
        ])  # fmt: skip
    heads = ["mechanism", "kinds", "coordinates", "multipliers", "length", "derivatives by",
             "two computations differ by: motion; first; second"]  # fmt: skip
    return table(heads, lines)


def _coordinates(one: dict[str, Any]) -> int:
    return sum(x.startswith("rate of ") for x in one["columns"])


def finest(record: Record, kind: str) -> float | None:
    """The least error of a kind over all settings."""
    errors = [x[kind] for x in record["rows"] if kind in x and x[kind] is not None]
    return min(errors) if errors else None


def kind_of(code: str) -> str:
    """What a program is for, by its name."""
    if "second" in code:
        return "second"
    return "first" if code.endswith(("forward", "reverse", "adjoint", "differences")) else "motion"


def _codes(records: list[Record]) -> str:
    """For each program, of how many mechanisms it is right, refuses, or is wrong."""
    lines = []
    for code in sorted({x["code"] for x in records}):
        own, kind = [x for x in records if x["code"] == code], kind_of(code)
        refused = [x for x in own if not x["rows"]]
        asked = [x for x in own if x["rows"]]
        wrong = [x for x in asked if (finest(x, kind) or 0.0) > RIGHT[kind]]
        slow = [x for x in wrong if x.get("slow")]
        wrong = [x for x in wrong if x not in slow]
        said = [x for x in wrong if any("said" in row for row in x["rows"])]
        silent = [x for x in wrong if x not in said]
        names = lambda xs: ", ".join(x["mechanism"] for x in xs) or "–"  # noqa: E731
        right = str(len(asked) - len(wrong) - len(slow))
        cells = map(names, (said, silent, refused, slow))
        lines.append([code, KINDS[kind], right, *cells])
    heads = [
        "code",
        "of",
        "right",
        "wrong, with a warning",
        "wrong in silence",
        "refused or failed",
    ]
    limits = ", ".join(f"{KINDS[k]} {v:.0e}" for k, v in RIGHT.items())
    text = f"Right is an error, at the best setting, of at most: {limits}."
    return f"{text}\n\n{table(heads, lines)}"


def _own(known: list[dict[str, Any]], records: list[Record]) -> str:
    own = [x for x in records if x["code"].startswith("jaxdae")]
    columns = [("", "motion"), ("", "multipliers"), ("forward", "first"), ("reverse", "first"),
               ("second derivatives", "second")]  # fmt: skip
    lines = []
    for one in known:
        cells = []
        for code, kind in columns:
            named = [x for x in own if x["mechanism"] == one["mechanism"] and code in x["code"]]
            errors = [x for x in (finest(y, kind) for y in named) if x is not None]
            nothing = "failed" if named else "not run"
            cells.append(f"{min(errors):.0e}" if errors else nothing)
        lines.append([_link(one), *cells])
    heads = ["mechanism", "motion", "multipliers", "first, forward", "first, reverse", "second"]
    return "At the tolerance where each is least:\n\n" + table(heads, lines)


def _times(known: list[dict[str, Any]], records: list[Record]) -> str:
    parts = []
    for kind, target in TARGETS.items():
        codes = sorted({x["code"] for x in records if kind_of(x["code"]) == kind})
        lines = []
        for one in known:
            cells = []
            for code in codes:
                rows = [
                    row for x in records
                    if (x["mechanism"], x["code"]) == (one["mechanism"], code) for row in x["rows"]
                ]  # fmt: skip
                good = [x["seconds"] for x in rows if kind in x and x[kind] <= target]
                least = min((x[kind] for x in rows if kind in x), default=None)
                if good:
                    cells.append(time_text(min(good)))
                else:
                    cells.append("–" if least is None else f"({least:.0e})")
            lines.append([_link(one), *cells])
        parts.append(
            f"{KINDS[kind].capitalize()}, to an error of {target:.0e}; where none is as exact, the "
            "least error in brackets:\n\n" + table(["mechanism", *codes], lines)
        )
    return "\n\n".join(parts)


def _page(one: dict[str, Any], records: list[Record]) -> str:
    name, kinds = one["mechanism"], ", ".join(one["kinds"]).capitalize()
    lines = [
        f"# {name.replace('-', ' ').capitalize()}", "", one["summary"], "",
        f"{kinds}. Source: {one['source']}. The declaration is the class with `name = \"{name}\"` "
        f"in `benchmarks/suite/`, the reference `docs/data/suite/{name}.json`. "
        "[All mechanisms](../suite.md).", "",
    ]  # fmt: skip
    values = [[k, f"{v:g}", "yes" if k in one["by"] else ""] for k, v in one["values"].items()]
    lines += [table(["value", "", "derivatives by it"], values), ""]
    lines += [f"## At t = {one['t'][-1]:g} s", ""]
    rows = []
    for i, column in enumerate(one["columns"]):
        slopes = [x[:12] + x[-4:] if "e" in x else x for x in one["first"][-1][i]]
        rows.append([column, one["rows"][-1][i], *slopes])
    lines += [table(["", "value", *(f"by {x}" for x in one["by"])], rows), ""]
    if one["impacts"]["t"]:
        lines += ["Impacts at " + ", ".join(one["impacts"]["t"]) + " s.", ""]
    codes = []
    for record in (x for x in records if x["mechanism"] == name):
        for row in record["rows"]:
            cells = [number(row[x]) if x in row else "" for x in ("motion", "multipliers", "first",
                                                                 "second")]  # fmt: skip
            codes.append([record["code"], f"{row['setting']:g}", time_text(row["seconds"]), *cells])
        if not record["rows"]:
            why = record.get("refused") or record.get("missing") or ""
            codes.append([record["code"], "", why.replace("`", "'"), "", "", "", ""])
    if codes:
        heads = ["code", "setting", "time", "motion", "multipliers", "first", "second"]
        lines += ["## Errors", "", table(heads, codes), ""]
    return "\n".join(lines)
