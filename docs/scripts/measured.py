"""Pages of numbers, from files that scripts wrote and that are committed in `docs/data/`.

python docs/scripts/measured.py results    # gather what experiments wrote to that folder
"""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import bibliography
import timings
from names import DATA, first_line, ROOT

PICTURES = ROOT / "docs" / "images" / "papers"
# The scripts of each paper, in the order of the page: (folder of results, picture of it).
PAPERS = {
    "MukharlyamovDeressa2015": {"two_link": "reachable-violation.png"},
    "Krasinskaya2013": {"ball_beam": "returns.png"},
    "Shemelova": {"hamilton": "drift.png", "hamilton_blocks": ""},
    "Mukharlyamov2019": {"mirror": "violation.png", "kepler": "drift.png"},
    "Matyukhin1999": {"realization": "linear-errors.png"},
}


def filled(markdown: str) -> str:
    """A page with its numbers in the place of `{{ claims }}` and the like."""
    if "{{ claims }}" in markdown:
        markdown = markdown.replace("{{ claims }}", _papers(read("claims.json")))
    if "{{ two-link }}" in markdown:
        markdown = markdown.replace("{{ two-link }}", _gains(read("two_link.json")))
    return timings.filled(markdown)


def read(name: str) -> dict[str, Any]:
    """A file of numbers."""
    return json.loads((DATA / name).read_text())


def _papers(data: dict[str, Any]) -> str:
    scripts, versions = data["scripts"], data["versions"]
    claims = [x for one in scripts.values() for x in one["claims"]]
    failed = sum(not x["holds"] for x in claims)
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    head = (
        f"{len(claims)} sentences, of which {failed} do{'es' if failed == 1 else ''} not hold in "
        f"this run ({made})."
    )
    parts = [part for key, names in PAPERS.items() for part in _paper(key, names, scripts)]
    return "\n".join([head, "", *parts])


def _paper(key: str, names: dict[str, str], scripts: dict[str, Any]) -> list[str]:
    lines = [f"## {bibliography.heading(key)}", "", f"[{key}]", ""]
    for name, picture in names.items():
        one = scripts[name]
        lines += [f"`python experiments/{name}.py`: {one['summary']}", "", "| holds | sentence |"]
        lines += ["|---|---|", *map(_row, one["claims"]), ""]
        if picture and (PICTURES / f"{name}.png").exists():
            lines += [f"![{one['summary']}](images/papers/{name}.png)", ""]
    return lines


def _row(claim: dict[str, Any]) -> str:
    text = " ".join(claim["text"].split()).replace("|", "\\|")
    return f"| {'yes' if claim['holds'] else '**not in this run**'} | {text} |"


def _gains(study: dict[str, Any]) -> str:
    """The table of the main job: sets of gains, and what each costs on what it was not tuned on."""
    sets, dt = list(study["gains"]), study["dt"]
    what = study["integrand"].replace("|", "\\|")
    lines = [f"| mean integrated {what} | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for gain, power in (("K_D", 1), ("K_P", 2)):
        cells = [_numbers(study["gains"][x][gain], dt**power) for x in sets]
        lines.append(f"| {gain} h{'²' if power == 2 else ''} | {' | '.join(cells)} |")
    for name, costs in study["checks"].items():
        lines.append(f"| {name} | {' | '.join(_cost(costs[x]) for x in sets)} |")
    return "\n".join(lines)


def _numbers(gains: list[float], unit: float) -> str:
    return ", ".join(f"{x * unit:.4g}" for x in gains)


def _cost(check: dict[str, Any]) -> str:
    return "runs fail" if check["failed"] or check["cost"] is None else f"{check['cost']:.2g}"


def gather(results: Path) -> dict[str, Any]:
    """What the experiments wrote, with what they say of themselves and the versions here."""
    import jax

    import jaxdae

    names = [name for scripts in PAPERS.values() for name in scripts]
    versions = {"jaxdae": jaxdae.__version__, "jax": jax.__version__}
    versions["python"] = platform.python_version()
    return {"versions": versions, "scripts": {name: _script(results, name) for name in names}}


def _script(results: Path, name: str) -> dict[str, Any]:
    summary = first_line(ROOT / "experiments" / f"{name}.py")
    return {"summary": summary, **json.loads((results / name / "claims.json").read_text())}


def _pictures(results: Path) -> None:
    """Small copies of the pictures, with 64 colours."""
    from PIL import Image

    PICTURES.mkdir(parents=True, exist_ok=True)
    for scripts in PAPERS.values():
        for name, picture in scripts.items():
            if picture:
                image = Image.open(results / name / picture).convert("RGB")
                image.thumbnail((1400, 1400))
                image.quantize(64).save(PICTURES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    DATA.mkdir(exist_ok=True)
    (DATA / "claims.json").write_text(json.dumps(gather(folder), indent=1) + "\n")
    _pictures(folder)
