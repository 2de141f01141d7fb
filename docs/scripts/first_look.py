"""The two charts with which the README and the site begin, from files in `docs/data/`.

python docs/scripts/first_look.py    # writes them, after these files have changed

They are written by hand as SVG, so that equal numbers give equal files.
"""

import json
import math
from html import escape
from typing import Any

import timings
from names import DATA, ROOT
from timing_text import power, time_text

FOLDER = ROOT / "docs" / "images" / "first"
WIDTH, HEIGHT = 360, 270  # in the proportions of the films
OURS, TEXT, FAINT = "#0072b2", "#333333", "#dddddd"
# Steps at which gains of `jaxdae tune two-link` are evaluated, in steps that they were tuned at.
STEPS = {"half the step": 0.5, "as tuned": 1.0, "1.5 times the step": 1.5, "twice the step": 2.0}
# Sets of gains as the chart names them: colour, and where the name stands beside a point.
GAINS = {
    "first": ("guessed", "#c45100", ("as tuned", -9)),
    "theory": ("by theory, for 10 ms", "#777777", ("as tuned", 17)),
    "range": ("tuned for a range", OURS, ("1.5 times the step", -10)),
}
# Of the many codes one of each kind; as the chart names them.
CODES = {
    "heyoka": "heyoka",
    "C, DOP853": "DOP853 in C",
    "jaxdae, native": "jaxdae",
    "C, SUNDIALS CVODE Adams": "CVODE in C",
    "CasADi CVODES Adams": "CasADi",
    "SciPy DOP853": "SciPy",
    "MuJoCo RK4": "MuJoCo",
    "Exudyn trapezoidal": "Exudyn",
}


def charts() -> dict[str, str]:
    """Contents of the files by their names."""
    study = json.loads((DATA / "two_link.json").read_text())
    return {"gains.svg": gains(study), "others.svg": others(timings.rows_of("single_run"))}


def gains(study: dict[str, Any]) -> str:
    """What sets of gains cost, against the step of the run."""
    costs = {x: [study["checks"][step][x] for step in STEPS] for x in GAINS}
    good = [x["cost"] for row in costs.values() for x in row if _ran(x)]
    low, high = math.floor(math.log10(min(good))) - 1, math.ceil(math.log10(max(good))) + 1
    across = dict(zip(STEPS, (60.0, 150.0, 240.0, 330.0), strict=True))
    up = lambda cost: 225.0 - 170.0 * (math.log10(cost) - low) / (high - low)  # noqa: E731
    parts = [text(10, 18, "Violation left by gains, integrated square [m² s]", size=13)]
    for exponent in range(low + 1, high):
        y = up(10.0**exponent)
        parts.append(f'<path d="M45 {y:.1f}H345" stroke="{FAINT}"/>')
        parts.append(text(40, y + 4, f"1e{exponent}", anchor="end"))
    for step, x in across.items():
        parts.append(text(x, 243, f"{1e3 * STEPS[step] * study['dt']:g}", anchor="middle"))
    parts.append(text(195, 262, "step [ms]", anchor="middle"))
    parts.append(text(330, 46, "✕ runs fail", color=GAINS["theory"][1], anchor="end"))
    for name, (said, color, (beside, dy)) in GAINS.items():
        row = dict(zip(STEPS, costs[name], strict=True))
        points = [(across[x], up(y["cost"])) for x, y in row.items() if _ran(y)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
        parts += [
            text(across[x], 62, "✕", color=color, anchor="middle", size=14)
            for x, y in row.items()
            if not _ran(y)
        ]
        at = across[beside], up(row[beside]["cost"]) + dy
        parts.append(text(*at, said, color=color, anchor="middle", size=13))
    return drawing(
        "Violation left by guessed gains, gains by theory and tuned gains, against the step", parts
    )


def others(rows: list[dict[str, Any]]) -> str:
    """Times of one run of codes that reach an error."""
    target = timings.TARGETS[0]
    least = {}
    for row in rows:
        if row["problem"] == "two-link" and row["error"] and row["error"] <= target:
            seconds = timings.least(row)
            least[row["code"]] = min(seconds, least.get(row["code"], seconds))
    ranked = sorted(set(CODES) & set(least), key=least.__getitem__)
    low, high = math.log10(least[ranked[0]]) - 0.5, math.log10(least[ranked[-1]])
    parts = [text(10, 18, f"Two-link manipulator: one run, error {power(target)}", size=13)]
    for i, code in enumerate(ranked):
        y = 36 + 27 * i
        color = OURS if CODES[code] == "jaxdae" else "#8c8c8c"
        long = 160 * (math.log10(least[code]) - low) / (high - low)
        parts.append(text(98, y + 13, CODES[code], color=color if color == OURS else TEXT,
                          anchor="end", size=13))  # fmt: skip
        parts.append(f'<rect x="105" y="{y}" width="{long:.1f}" height="18" fill="{color}"/>')
        parts.append(text(111 + long, y + 13, time_text(least[code])))
    parts.append(text(195, 265, "logarithmic scale", color="#777777", anchor="middle"))
    return drawing(
        "Times of one run of the two-link manipulator by codes that reach an error", parts
    )


def _ran(check: dict[str, Any]) -> bool:
    return check["cost"] is not None and not check["failed"]


def text(
    x: float, y: float, said: str, color: str = TEXT, anchor: str = "start", size: int = 12
) -> str:
    """A line of text."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(said)}</text>'
    )


def drawing(title: str, parts: list[str]) -> str:
    """A file of SVG on a white ground."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" role="img" font-family="sans-serif">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
            *parts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Write the charts."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in charts().items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
