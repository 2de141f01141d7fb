"""The suite of mechanisms: the table of all codes, and a page for each mechanism.

From `docs/data/suite/`, references that `benchmarks/suite/references.py` wrote, and
`docs/data/suite.json`, what `benchmarks/suite_runs.py` measured.
"""

import ast
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import suite_sketches
import timing_plots
from names import DATA, ROOT
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
    """What the page of the suite shows: codes, times, mechanisms."""
    records, known = data["records"], references()
    made = ", ".join(f"{k} {v}" for k, v in sorted(data["versions"].items()) if _used(k, records))
    parts = [
        "## Which codes are right", _codes(records, len(known)),
        "## Error against time", timing_plots.drawn("suite", records), _times(known, records),
        f"Measured on {data['machine']['processor']} with {data['machine']['cores']} cores while "
        "other work ran on them, so that times say orders of magnitude alone: the least of up to "
        f"four runs, compiling apart. Versions: {made}.",
        "## Errors of this library", _own(known, records),
        "## Mechanisms", _mechanisms(known),
    ]  # fmt: skip
    return "\n\n".join(parts)


def _used(package: str, records: list[Record]) -> bool:
    codes = " ".join(x["code"] for x in records).lower()
    names = {"mujoco-core": "mujoco", "mujoco-mjx": "mjx", "pin": "pinocchio"}
    return package in ("jax", "numpy", "python") or names.get(package, package) in codes


def _link(one: dict[str, Any], folder: str = "suite/") -> str:
    return f"[{one['mechanism']}]({folder}{one['mechanism']}.md)"


def _mechanisms(known: list[dict[str, Any]]) -> str:
    lines = []
    for one in known:
        n = _coordinates(one)
        multipliers = len(one["columns"]) - 2 * n
        agreement = "; ".join(f"{x:.0e}" for x in one["agreement"].values())
        second = "; ".join(f"{x:.0e}" for x in one.get("second_method", {}).values())
        lines.append([
            _link(one), ", ".join(one["kinds"]), str(n), str(multipliers), f"{one['t'][-1]:g} s",
            ", ".join(one["by"]), agreement, second,
        ])  # fmt: skip
    heads = ["mechanism", "kinds", "coordinates", "multipliers", "length", "derivatives by",
             "two computations differ by: motion; first; second",
             "a second method by: motion; first; second"]  # fmt: skip
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


def verdict(records: list[Record], kind: str) -> tuple[str, float | None]:
    """Whether a code was right on a mechanism, by its best program, and the least error.

    Args:
        records: of its programs on the mechanism.
        kind: of what.

    Returns:
        "right", "wrong", "said" (wrong with a warning), "slow" or "refused"; and the error.
    """
    asked = [x for x in records if x["rows"]]
    errors = [x for x in (finest(one, kind) for one in asked) if x is not None]
    if not errors:
        return "refused", None
    if min(errors) <= RIGHT[kind]:
        return "right", min(errors)
    if any(x.get("slow") for x in asked):
        return "slow", min(errors)
    said = any("said" in row for one in asked for row in one["rows"])
    return "said" if said else "wrong", min(errors)


def compared(code: str, kind: str) -> str:
    """Under which name a program counts: motions are those of all programs of a code."""
    if kind != "motion":
        return code
    for end in (", forward", ", reverse", ", adjoint", ", differences", ", second derivatives"):
        code = code.removesuffix(end)
    return code


def _codes(records: list[Record], count: int) -> str:
    """For each program, on which mechanisms it is right, refuses, or is wrong."""
    parts = []
    for kind, limit in RIGHT.items():
        lines = []
        programs = [x for x in records if kind in ("motion", kind_of(x["code"]))]
        for code in sorted({compared(x["code"], kind) for x in programs}):
            made: dict[str, list[str]] = {}
            own = [x for x in programs if compared(x["code"], kind) == code]
            for name in sorted({x["mechanism"] for x in own}):
                found, least = verdict([x for x in own if x["mechanism"] == name], kind)
                shown = name if least is None or found == "right" else f"{name} ({least:.0e})"
                made.setdefault(found, []).append(shown)
            silent, said = (", ".join(made.get(x, [])) for x in ("wrong", "said"))
            cells = [
                str(len(made.get("right", []))),
                f"**{silent}**" if silent else "–",
                said or "–",
                ", ".join(made.get("refused", [])) or "–",
                ", ".join(made.get("slow", [])) or "–",
                str(count - sum(map(len, made.values()))),
            ]
            lines.append([code, *cells])
        heads = [KINDS[kind], "right", "wrong in silence", "wrong, with a warning",
                 "refuses or fails", "too slow for an error", "not run"]  # fmt: skip
        parts.append(f"{KINDS[kind].capitalize()}: right is an error of at most {limit:.0e}.\n\n"
                     + table(heads, lines))  # fmt: skip
    return "\n\n".join(parts)


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
                elif least is not None:
                    wrong = least > RIGHT[kind]
                    cells.append(f"**({least:.0e})**" if wrong else f"({least:.0e})")
                else:
                    own = (one["mechanism"], code)
                    asked = any((x["mechanism"], x["code"]) == own for x in records)
                    cells.append("refused" if asked else "")
            lines.append([_link(one), *cells])
        parts.append(
            f"{KINDS[kind].capitalize()}, to an error of {target:.0e}; where none is as exact, the "
            "least error in brackets, in bold where it is wrong; nothing where a code was not "
            "run:\n\n" + table(["mechanism", *codes], lines)
        )
    return "\n\n".join(parts)


@cache
def declarations() -> dict[str, tuple[str, str]]:
    """By the names of mechanisms, the file of a declaration and its text."""
    found = {}
    for file in ("planar", "spatial", "nonholonomic"):
        text = (ROOT / "benchmarks" / "suite" / f"{file}.py").read_text()
        for node in ast.parse(text).body:
            body = getattr(node, "body", [])
            for line in body if isinstance(node, ast.ClassDef) else ():
                written = ast.get_source_segment(text, line) or ""
                if written.startswith("name"):
                    name = written.partition('"')[2].partition('"')[0]
                    found[name] = f"{file}.py", ast.get_source_segment(text, node) or ""
    return found


def _page(one: dict[str, Any], records: list[Record]) -> str:
    name, kinds = one["mechanism"], ", ".join(one["kinds"]).capitalize()
    file, text = declarations()[name]
    lines = [
        f"# {name.replace('-', ' ').capitalize()}", "", one["summary"], "",
        f"{kinds}. Source: {one['source']}. [All mechanisms](../suite.md).", "",
        suite_sketches.drawing(one), "",
        "At t = " + ", ".join(f"{x:g}" for x in one["t"]) + " s, the last in colour.", "",
    ]  # fmt: skip
    values = [[k, f"{v:g}", "yes" if k in one["by"] else ""] for k, v in one["values"].items()]
    lines += ["## Values", "", table(["value, in SI units", "", "derivatives by it"], values), ""]
    lines += [
        "## Equations", "",
        "$$\\frac{d}{dt} \\frac{\\partial T}{\\partial v} - "
        "\\frac{\\partial (T - V)}{\\partial q} + J^{\\mathsf T} \\lambda = F, "
        "\\qquad \\varphi(t, q) = 0, \\qquad g(t, q, v) = 0$$", "",
        "with the rows of $J$ those of $\\partial \\varphi / \\partial q$, then "
        "$\\partial g / \\partial v$, and $T$ `kinetic_energy`, $V$ `potential_energy`, $F$ "
        "`force`, $\\varphi$ `position_constraints`, $g$ `velocity_constraints`; those that are "
        "not declared are zero. " + _completed(text) + f"(`benchmarks/suite/{file}`)", "",
        "```python", text, "```", "",
    ]  # fmt: skip
    lines += [
        f"## Reference at t = {one['t'][-1]:g} s", "",
        f"All times and second derivatives are in `docs/data/suite/{name}.json`.", "",
    ]  # fmt: skip
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


def _completed(text: str) -> str:
    """Of a declaration, what must be known of its start."""
    if " free = " not in text and " free," not in text and "free, kept" not in text:
        return ""
    return (
        "Of the start the coordinates and velocities in the places `free` hold; the others are "
        "guesses, completed by the constraints. "
    )
