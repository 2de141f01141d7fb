"""The page of benchmarks, from files that scripts of `benchmarks/` wrote into `docs/data/`."""

import json
from typing import Any

from names import DATA, first_line, ROOT

TARGETS = (1e-6, 1e-9)


def filled(markdown: str) -> str:
    """The page with its numbers in the place of `{{ benchmarks }}`."""
    if "{{ benchmarks }}" in markdown:
        markdown = markdown.replace("{{ benchmarks }}", _benchmarks())
    return markdown


def _benchmarks() -> str:
    """A table for each problem of the committed run; below, what the scripts do and what limits."""
    data = json.loads((DATA / "single_run.json").read_text())
    machine, rows = data["machine"], data["rows"]
    problems = dict.fromkeys(x["problem"] for x in rows)
    parts = [line for name in problems for line in _problem(name, rows)]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    made = f"{machine['cores']} cores, {machine['machine']}; {versions}."
    return "\n".join([*parts, made, "", *_described()])


def _problem(name: str, rows: list[dict[str, Any]]) -> list[str]:
    part = [x for x in rows if x["problem"] == name]
    bases = {target: _fastest(part, "jaxdae, native", target) for target in TARGETS}
    lines = [f"### {name[0].upper()}{name[1:]}", "", "| code | error 1e-6 | error 1e-9 |"]
    lines += ["|---|---|---|"]
    for code in dict.fromkeys(x["code"] for x in part):
        cells = [_cell(_fastest(part, code, x), bases[x]) for x in TARGETS]
        lines.append(f"| {code} | {' | '.join(cells)} |")
    return [*lines, ""]


def _fastest(part: list[dict[str, Any]], code: str, target: float) -> dict[str, Any] | None:
    able = [x for x in part if x["code"] == code and x["error"] <= target]
    return min(able, key=lambda x: min(x["seconds"]), default=None)


def _cell(best: dict[str, Any] | None, base: dict[str, Any] | None) -> str:
    """Milliseconds, and times the kernel."""
    if best is None:
        return "–"
    least = min(best["seconds"])
    times = "" if base is None else f" ({least / min(base['seconds']):.3g})"
    return f"{1e3 * least:.3g} ms{times}"


def _described() -> list[str]:
    """What each of the scripts measures, in its own words."""
    rows = [
        f"| `{path.name}` | {first_line(path)} |"
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        if 'if __name__ == "__main__"' in path.read_text()
    ]
    return ["## All benchmarks", "", "| script | what it measures |", "|---|---|", *rows, ""]
