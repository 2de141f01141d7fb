"""Pages of numbers, from files that scripts wrote and that are committed in `docs/data/`.

python docs/scripts/measured.py results    # gather what experiments and the command wrote there

Of the command: `jaxdae tune two-link` and `jaxdae analyze ball-beam --dt 0.001`. What an experiment
has not written there is kept as it was.
"""

import json
import platform
import sys
from pathlib import Path
from typing import Any

import bibliography
import suite_pages
import timings
from names import DATA, first_line, ROOT

IMAGES = ROOT / "docs" / "images"
PICTURES = IMAGES / "papers"
# The scripts of each paper, in the order of the page: (folder of results, picture of it).
PAPERS = {
    "MukharlyamovDeressa2015": {"two_link": "reachable-violation.png"},
    "Krasinskaya2013": {"ball_beam": "returns.png"},
    "Shemelova": {"hamilton": "drift.png", "hamilton_blocks": ""},
    "Mukharlyamov2019": {"mirror": "violation.png", "kepler": "drift.png"},
    "Matyukhin1999": {"realization": "linear-errors.png"},
}
# Studies of designs, in the order of their page, likewise.
DESIGNS = {"leg_linkage": "legs.png", "slider_crank_drive": "drive.png"}
# The notebooks of each paper begin with its number; their last heading is what came of it.
TUTORIALS = dict(zip(PAPERS, ("01", "02", "03", "04", "05"), strict=True))
VERDICTS = "# ## What holds, and what does not\n"


def filled(markdown: str) -> str:
    """A page with its numbers in the place of `{{ claims }}` and the like."""
    for place, (name, written) in PLACES.items():
        if place in markdown:
            markdown = markdown.replace(place, written(read(name)))
    return timings.filled(markdown)


def read(name: str) -> dict[str, Any]:
    """A file of numbers."""
    return json.loads((DATA / name).read_text())


def _papers(data: dict[str, Any]) -> str:
    scripts, versions = data["scripts"], data["versions"]
    claims = [x for one in scripts.values() for x in one["claims"]]
    failed = sum(not x["holds"] for x in claims)
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    agree = "all agree" if not failed else f"{len(claims) - failed} agree, {failed} do not agree"
    head = (
        f"Of {len(claims)} sentences of the reports {agree} with the numbers of the run ({made})."
    )
    parts = [part for key, names in PAPERS.items() for part in _paper(key, names, scripts)]
    return "\n".join([head, "", *parts])


def _paper(key: str, names: dict[str, str], scripts: dict[str, Any]) -> list[str]:
    lines = [f"## {bibliography.heading(key)}", "", f"[{key}]", "", *_verdicts(key)]
    for name, picture in names.items():
        one = scripts[name]
        lines += [f"`python experiments/{name}.py`: {one['summary']}", ""]
        lines += [*map(_sentence, one["claims"]), ""]
        if picture and (PICTURES / f"{name}.png").exists():
            lines += [f"![{one['summary']}](images/papers/{name}.png)", ""]
    return lines


def _designs(data: dict[str, Any]) -> str:
    """Each study with its sentences and its picture."""
    made = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    lines = []
    for name, picture in DESIGNS.items():
        one = data["scripts"][name]
        title, _, what = one["summary"].partition(": ")
        lines += [f"## {title}", "", f"{what[0].upper()}{what[1:]}", ""]
        lines += [f"![{title}](../images/designs/{name}.png)", ""] if picture else []
        lines += [f"`python experiments/{name}.py` ({made}):", ""]
        lines += [*map(_sentence, one["claims"]), ""]
    return "\n".join(lines)


def _verdicts(key: str) -> list[str]:
    """On the claims of a paper, as its notebooks end with them, and links to these."""
    lines = []
    for source in sorted((ROOT / "notebooks").glob(f"{TUTORIALS[key]}_*.py")):
        text = source.read_text()
        title = next(x for x in text.splitlines() if x.startswith("# # ")).removeprefix("# # ")
        found = text.partition(VERDICTS)[2].strip().splitlines()
        bullets = [x.removeprefix("#").removeprefix(" ") for x in found]
        lines += [f"[{title}](tutorials/{source.stem}.md):", *bullets, ""]
    return lines


def _sentence(claim: dict[str, Any]) -> str:
    text = " ".join(claim["text"].split())
    return f"- {'' if claim['holds'] else '**Not in this run:** '}{text}"


def _gains(study: dict[str, Any]) -> str:
    """The table of the main job: sets of gains, and what each costs on what it was not tuned on."""
    sets, dt = list(study["gains"]), study["dt"]
    what = study["integrand"].replace("|", "\\|")
    head = f"mean integrated {what}; h = {dt:g} s"
    lines = [f"| {head} | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
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


def _rest(found: dict[str, Any]) -> str:
    """What the analysis of ball and beam finds, in a sentence."""
    root = max(real for real, _ in found["motion"])
    slowest = max(real for real, _ in found["regulated_roots"])
    limit, fastest = found["step_limits"]["rk4"], found["set_by"]["rk4"][0]
    return (
        f"{found['verdict']} by the root {root:.3g} 1/s; with the regulator the slowest root is at "
        f"{slowest:.3g} 1/s; and RK4 needs steps below {1e3 * limit:.2g} ms because of the motor's "
        f"current (root {fastest:.3g} 1/s)."
    )


def _random(data: dict[str, Any]) -> str:
    """Mechanisms at random: by family, what was refused, and comparisons."""
    names = {
        "family": "family", "kinds": "structures", "number": "mechanisms", "moved": "simulated",
        "open": "do not close", "velocities": "no such velocities", "run": "stopped",
        "unexplained": "unexplained", "warned": "warned of", "silent": "wrong in silence",
        "residual": "largest residual", "balance": "worst balance",
    }  # fmt: skip
    lines = [f"| {' | '.join(names.values())} |", "|---" * len(names) + "|"]
    rows = data["families"]
    counted = ("kinds", "number", "moved", "open", "velocities", "run", "unexplained", "warned",
               "silent")  # fmt: skip
    total = {x: sum(row[x] for row in rows) for x in counted} | {"family": "**all**"}
    total |= {x: max(row[x] for row in rows) for x in ("residual", "balance")}
    lines += [f"| {' | '.join(_cell(row[x]) for x in names)} |" for row in (*rows, total)]
    lines.append("")
    for one in data["said"]:
        why = one.get("why") or one.get("unexplained") or "; ".join(one.get("warnings", ()))
        meant = "" if one.get("built_to_close", True) else " (not built to close)"
        lines.append(
            f"- {one['family']}, structure {one['kind']}, draw {one['draw']}{meant}: {why}"
        )
    for name, what in (
        ("mujoco", "accelerations of trees are those of MuJoCo"),
        ("absolute", "accelerations in coordinates of joints and in those of free bodies agree"),
    ):
        found = data["compared"][name]
        part = f"{found['worst']:.1e} of the largest"
        lines += ["", f"Of {found['number']} mechanisms the {what}, but for {part} at worst."]
    moved = data["compared"]["motion"]
    lines += [
        "",
        f"Of {moved['number']} mechanisms, one of each structure that has them, motions of half a "
        "second in both coordinates differ by less than "
        f"{moved['worst']:.1e} (places in metres and entries of rotation matrices; steps have a "
        "tolerance of 1e-10).",
    ]
    return "\n".join(lines)


def _cell(value) -> str:
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def _iftomm(data: dict[str, Any]) -> str:
    """Coupled four-bars and the governor."""
    bars = [x for x in data["rows"] if x["problem"] == "four-bars"]
    lines = ["| four-bars | coordinates | turns | off the branch | off the motion | change of the "
             "energy [J] | steps | processor time, compiling and both runs [s] |",
             "|---" * 8 + "|"]  # fmt: skip
    for x in bars:
        cells = [x["loops"], x["coordinates"], f"{x['turns']:.1f}", x["branch"], x["motion"],
                 x["energy"], x["steps"], f"{x['cpu']:.0f}"]  # fmt: skip
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    lines += ["", "| governor by | steps | worst error of turn, height, opening | a run [s] |",
              "|---" * 4 + "|"]  # fmt: skip
    for x in (x for x in data["rows"] if x["problem"] == "governor"):
        named = x["solver"]
        asked = f'`solver="auto"`: {named}' if x["asked"] == "auto" else named
        worst = max(x[y] for y in ("turn", "height", "opening"))
        lines.append(f"| {asked} | {x['steps']} | {worst:.1e} | {x['seconds']:.2f} |")
    return "\n".join(lines)


def _measured(data: dict[str, Any]) -> str:
    """Parameters of a measured double pendulum, and errors of predictions."""
    lines = ["| parameter | estimate | standard error | model_1.1 |", "|---" * 4 + "|"]
    rows = zip(data["names"], data["values"], data["standard_errors"], strict=True)
    for name, value, error in rows:
        lines.append(f"| {name} | {value:.4g} | {error:.1g} | {data['model_1.1'][name]:.4g} |")
    records = data["records"]
    lines += ["", f"| error of one second [rad] | | {' | '.join(records)} |"]
    lines += ["|---" * (2 + len(records)) + "|"]
    for model, channels in data["errors"].items():
        for name, values in channels.items():
            lines.append(f"| {model} | {name} | {' | '.join(f'{x:.4f}' for x in values)} |")
    return "\n".join([*lines, "", *map(_sentence, data["claims"])])


def _coverage(data: dict[str, Any]) -> str:
    """How often intervals of fits hold the true numbers."""
    head = "| records, samples of each | parameter | 95 % intervals | by classical errors | robust"
    lines = [f"{head} by classical error |", "|---" * 5 + "|"]
    for case, x in data["cases"].items():
        records, samples = data["sizes"][case]
        rows = zip(x["names"], x["robust"], x["classical"], x["ratio"], strict=True)
        for name, held, usual, ratio in rows:
            parts = (f"{100 * n / x['seeds']:.1f} %" for n in (held, usual))
            lines.append(f"| {records}, {samples} | {name} | {' | '.join(parts)} | {ratio:.2g} |")
    return "\n".join([*lines, "", *map(_sentence, data["claims"])])


def _certificates(data: dict[str, Any]) -> str:
    """Certificates of the gradients of the ready models."""
    lines = ["| model | certified | digits | digits lost | evaluations |", "|---" * 5 + "|"]
    for x in data["rows"]:
        held = "yes" if x["passed"] else f"no: {x['fault']}"
        numbers = f"{x['digits']:.1f} | {x['digits_lost']:.1f} | {x['evaluations']}"
        lines.append(f"| {x['model']} | {held} | {numbers} |")
    return "\n".join([*lines, "", *map(_sentence, data["claims"])])


# What stands for numbers on a page: the file that has them, and how they are written.
PLACES = {
    "{{ claims }}": ("claims.json", _papers),
    "{{ designs }}": ("designs.json", _designs),
    "{{ two-link }}": ("two_link.json", _gains),
    "{{ ball-beam }}": ("ball_beam.json", _rest),
    "{{ random-mechanisms }}": ("random_mechanisms.json", _random),
    "{{ iftomm }}": ("iftomm.json", _iftomm),
    "{{ measured-pendulum }}": ("measured_pendulum.json", _measured),
    "{{ coverage }}": ("coverage.json", _coverage),
    "{{ certificates }}": ("certificates.json", _certificates),
    "{{ suite }}": ("suite.json", suite_pages.summary),
}


def gather(results: Path, file: str, names: list[str]) -> dict[str, Any]:
    """What experiments wrote, with what they say of themselves and the versions here.

    Args:
        results: folder of results.
        file: in which they are kept.
        names: of the experiments, in their order.

    Raises:
        SystemExit: where some are kept from a run with other versions.
    """
    import jax

    import jaxdae

    versions = {"jaxdae": jaxdae.__version__, "jax": jax.__version__}
    versions["python"] = platform.python_version()
    written = {x: _script(results, x) for x in names if (results / x / "claims.json").exists()}
    known = read(file) if (DATA / file).exists() else {"versions": versions, "scripts": {}}
    if len(written) < len(names) and versions != known["versions"]:
        raise SystemExit(
            f"{results} has {len(written)} of {len(names)} experiments, run with {versions}; those "
            f"that would be kept ran with {known['versions']}. Run all of them."
        )
    kept = known["scripts"] | written
    return {"versions": versions, "scripts": {name: kept[name] for name in names if name in kept}}


def _script(results: Path, name: str) -> dict[str, Any]:
    summary = first_line(ROOT / "experiments" / f"{name}.py")
    return {"summary": summary, **json.loads((results / name / "claims.json").read_text())}


def _pictures(results: Path, folder: Path, scripts: dict[str, str]) -> None:
    """Small copies of the pictures."""
    from pictures import small_png
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for name, picture in scripts.items():
        if picture and (results / name / picture).exists():
            image = Image.open(results / name / picture)
            (folder / f"{name}.png").write_bytes(small_png(image))


def study(result: dict[str, Any]) -> dict[str, Any]:
    """Of the `result.json` of `jaxdae tune`: gains and costs of its first study."""
    first = result["studies"][0]
    checks = {
        check: {name: {x: one[x] for x in ("cost", "failed")} for name, one in sets.items()}
        for check, sets in first["checks"].items()
    }
    return {x: first[x] for x in ("dt", "t1", "integrand", "gains")} | {"checks": checks}


def analysis(found: dict[str, Any]) -> dict[str, Any]:
    """Of the `analysis.json` of `jaxdae analyze`: what a page says of it."""
    spectrum, limits = found["spectrum"], found["step_limits"]
    return {
        "versions": {"jaxdae": found["jaxdae"]},
        "verdict": spectrum["verdict"],
        "motion": spectrum["motion"],
        "regulated_roots": found["inputs"]["regulated_roots"],
        "step_limits": {name: x["all_roots"] for name, x in limits.items()},
        "set_by": {name: x["set_by"] for name, x in limits.items()},
    }


def _write(name: str, content: dict[str, Any]) -> None:
    (DATA / name).write_text(json.dumps(content, indent=1) + "\n")


def main(results: Path) -> None:
    """Take over what is in the folder."""
    DATA.mkdir(exist_ok=True)
    papers = {name: x for scripts in PAPERS.values() for name, x in scripts.items()}
    for file, folder, scripts in (
        ("claims.json", PICTURES, papers),
        ("designs.json", IMAGES / "designs", DESIGNS),
    ):
        if any((results / x / "claims.json").exists() for x in scripts):
            _write(file, gather(results, file, [*scripts]))
            _pictures(results, folder, scripts)
    if (path := results / "two-link" / "result.json").exists():
        _write("two_link.json", study(json.loads(path.read_text())))
    if (path := results / "ball-beam" / "analysis.json").exists():
        _write("ball_beam.json", analysis(json.loads(path.read_text())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
