"""The page of benchmarks, from files that scripts of `benchmarks/` wrote into `docs/data/`.

Times are the least of all rounds: a busy machine makes calls longer, never shorter.
"""

import json
import math
import re
import statistics
from collections.abc import Callable
from typing import Any

import timing_plots
from names import DATA, first_line, ROOT
from timing_text import number, power, table, time_text

Row = dict[str, Any]

TARGETS = (1e-6, 1e-9)
WORK_TARGETS = (1e-4, 1e-7)
KERNEL = "jaxdae, native"
NOTHING = "–"
# As on the page: titles of problems, and sections by their files.
TITLES = {
    "andrews": "Andrews",
    "two-link": "two-link arm",
    "ant-loop": "ant with a four-bar leg",
}
SECTIONS = {
    "single_run": "One adaptive run, called from Python",
    "work_precision": "Work against precision",
    "batch": "Batches of fixed steps",
    "adaptive_batch": "Batches of adaptive steps",
    "gradient": "Gradients through batches",
    "identification": "Identification",
    "scaling": "Many bodies",
    "right_hand_side": "One evaluation of the equations of motion",
}


def filled(markdown: str) -> str:
    """The page with tables and plots in the place of `{{ timings NAME }}` and `{{ plot NAME }}`."""
    markdown = re.sub(r"{{ timings (\w+) }}", lambda x: MAKERS[x[1]](), markdown)
    return re.sub(r"{{ plot (\w+) }}", lambda x: plot(x[1]), markdown)


def title(problem: str) -> str:
    """A problem as the page names it."""
    return TITLES.get(problem, problem)


def plot(name: str) -> str:
    """The drawing of a file, its problems by their titles."""
    rows = [{**x, "problem": title(x["problem"])} for x in rows_of(name)]
    return timing_plots.drawn(name, rows)


def read(name: str) -> dict[str, Any]:
    """A file of results, as `benchmarks/harness.py` writes them."""
    return json.loads((DATA / f"{name}.json").read_text())


def rows_of(name: str) -> list[Row]:
    """Its rows that have times."""
    return [row for row in read(name)["rows"] if row.get("seconds")]


def least(row: Row) -> float:
    """The shortest round [s]."""
    return min(row["seconds"])


def link(name: str) -> str:
    """To the section of a file."""
    anchor = re.sub(r"[^a-z ]", "", SECTIONS[name].lower()).replace(" ", "-")
    return f"[{SECTIONS[name]}](#{anchor})"


def unique(rows: list[Row], key: str) -> list[Any]:
    """Values in the order in which they come."""
    return list(dict.fromkeys(row[key] for row in rows))


def fastest(rows: list[Row], target: float = math.inf) -> Row | None:
    """The row of the least time among those whose error is not above the target."""
    able = [x for x in rows if x["error"] is not None and x["error"] <= target]
    return min(able, key=least, default=None)


def times(row: Row | None, base: Row | None) -> str:
    """A time in times of another; bold where it is shorter."""
    if row is None:
        return NOTHING
    if base is None:
        return time_text(least(row))
    ratio = number(least(row) / least(base))
    return f"**{ratio}**" if least(row) < least(base) else ratio


def is_kernel(row: Row) -> bool:
    """Whether it is this library's kernel, by any of its methods, with all processors."""
    return row["code"].startswith(KERNEL) and "thread" not in row["code"]


def against_kernel(rows: list[Row], columns: dict[str, list[Row]], target: float) -> str:
    """A line for each code, in times of the kernel, whose own times are the first line."""
    bases = {
        name: fastest([x for x in part if is_kernel(x)], target) for name, part in columns.items()
    }
    first = [KERNEL, *(time_text(least(x)) if x else NOTHING for x in bases.values())]
    lines = [first]
    codes = dict.fromkeys(x["code"] for x in rows if not is_kernel(x))
    for code in sorted(codes, key=lambda x: not x.startswith("jaxdae")):
        cells = [
            times(fastest([x for x in part if x["code"] == code], target), bases[name])
            for name, part in columns.items()
        ]
        lines.append([code, *cells])
    return table(["code", *columns], lines)


def by_problem(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of each problem, by its title."""
    return {
        title(name): [x for x in rows if x["problem"] == name] for name in unique(rows, "problem")
    }


def made(name: str) -> str:
    """How and on what a file was made."""
    data = read(name)
    machine, settings = data["machine"], data["settings"]
    words = ["--quick"] * settings["quick"]
    words += ["--problems", *settings["problems"]] if settings["problems"] else []
    command = " ".join(["python", f"benchmarks/{name}.py", *words])
    load = " to ".join(f"{x:.1f}" for x in machine["load"] if x is not None)
    versions = machine["versions"]
    processor = machine["processor"] or machine["machine"]
    counts = sorted({len(x["seconds"]) for x in rows_of(name)})
    rounds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    return (
        f"`{command}`; {data['timed']}; the least of {rounds} "
        f"round{'s' * (counts[-1] > 1)}. {machine['cores']} cores of {processor}, load average "
        f"{load}; Python {versions['python']}, JAX {versions['jax']}."
    )


def at_equal_error(name: str) -> str:
    """Tables of ladders of settings: what each code needs for an error."""
    rows = rows_of(name)
    parts = []
    for target in TARGETS:
        shown = against_kernel(rows, by_problem(rows), target)
        parts += [f"Error at most {power(target)}:", "", shown, ""]
    return "\n".join([*parts, *left_out(name), made(name)])


def left_out(name: str) -> list[str]:
    """Why codes have no times, with the problems where that is so."""
    known, reasons = {(x["code"], x["problem"]) for x in rows_of(name)}, {}
    for x in read(name)["rows"]:
        if x.get("missing") and (x["code"], x["problem"]) not in known:
            reason = x["missing"].removeprefix("missing: ").removeprefix("left out: ")
            reasons.setdefault((x["code"], reason), []).append(x["problem"])
    lines = [
        f"    - {code} ({', '.join(title(x) for x in dict.fromkeys(on))}): {reason}"
        for (code, reason), on in reasons.items()
    ]
    return ['??? note "Codes without times"', "", *lines, ""] if lines else []


def batch() -> str:
    """Fixed steps of batches: a column for each problem and precision."""
    rows = rows_of("batch")
    columns = {
        f"{name}, {precision.removeprefix('float')} bits": [
            x for x in part if x["precision"] == precision
        ]
        for name, part in by_problem(rows).items()
        for precision in unique(part, "precision")
    }
    return "\n".join(
        [against_kernel(rows, columns, math.inf), "", *left_out("batch"), made("batch")]
    )


def gradient() -> str:
    """A table for each task."""
    parts = []
    for name, part in by_problem(rows_of("gradient")).items():
        base = next(x for x in part if is_kernel(x))
        lines = [
            [
                x["code"], time_text(least(x)), times(x, base),
                number(least(x) / min(x["cost_seconds"])) if x["cost_seconds"] else NOTHING,
                NOTHING if x["error"] is None else power(x["error"]),
            ]
            for x in part
        ]  # fmt: skip
        head = ["code", "a trajectory", "times the kernel", "times its cost alone", "error"]
        parts += [f"{name}, {part[0]['parameters']} parameters:", "", table(head, lines), ""]
    return "\n".join([*parts, *left_out("gradient"), made("gradient")])


def identification() -> str:
    """A line for each fit."""
    rows = rows_of("identification")
    lines = [
        [x["code"], time_text(x["first"]), time_text(least(x)), times(x, rows[0]), number(x["off"])]
        for x in rows
    ]
    head = ["code", "first call", "again", "times ours", "off ours [standard errors]"]
    return "\n".join([table(head, lines), "", *left_out("identification"), made("identification")])


def measured_windows() -> str:
    """A line for each start and code; where a fit did not end by its rule it says so."""
    lines = []
    for x in rows_of("measured_windows"):
        lower = x["evaluations_to_ours"], x["seconds_to_ours"]
        reached = [NOTHING] * 2 if None in lower else [str(lower[0]), time_text(lower[1])]
        lines.append([
            x["problem"], x["code"], time_text(x["first"]) if x["first"] else NOTHING,
            time_text(least(x)), f"{x['evaluations']}{'' if x['by_rule'] else ', the limit'}",
            f"{x['chi_square']:.0f}", *(reached if not _is_ours(x) else [NOTHING] * 2),
        ])  # fmt: skip
    head = ["start", "code", "first call", "again", "evaluations", "chi-square",
            "evaluations until as low as ours", "time of these"]  # fmt: skip
    return "\n".join([table(head, lines), "", made("measured_windows")])


def scaling() -> str:
    """Times of steps by the number of links, how they grow, and runs at equal error."""
    rows = rows_of("scaling")
    steps, runs = ([x for x in rows if x["section"] == name] for name in ("steps", "runs"))
    lines = []
    for code in unique(steps, "code"):
        own = {x["links"]: x for x in steps if x["code"] == code}
        cells = [time_text(least(own[n])) if n in own else NOTHING for n in unique(steps, "links")]
        lines.append([code, *cells, number(exponent(list(own.values())))])
    head = ["code, links:", *map(str, unique(steps, "links")), "power of the number of links"]
    parts = [table(head, lines), "", _runs(runs), "", *left_out("scaling"), made("scaling")]
    return "\n".join(parts)


def exponent(rows: list[Row]) -> float:
    """`p` of time ~ N^p, by least squares of logarithms."""
    points = [(math.log(x["links"]), math.log(least(x))) for x in rows]
    mean = [sum(column) / len(points) for column in zip(*points, strict=True)]
    over = sum((x - mean[0]) * (y - mean[1]) for x, y in points)
    return over / sum((x - mean[0]) ** 2 for x, _ in points)


def _runs(rows: list[Row]) -> str:
    """For settings of Exudyn, each at most half the error of the one before: others' times."""
    codes = [x for x in unique(rows, "code") if x != "Exudyn"]
    lines = []
    for links in unique(rows, "links"):
        part = [x for x in rows if x["links"] == links]
        for base in octaves([x for x in part if x["code"] == "Exudyn"]):
            able = [
                fastest([x for x in part if x["code"] == code], base["error"]) for code in codes
            ]
            cells = [time_text(least(x)) if x else NOTHING for x in able]
            lines.append([str(links), power(base["error"]), time_text(least(base)), *cells])
    return table(["links", "error of Exudyn", "Exudyn", *codes], lines)


def octaves(rows: list[Row]) -> list[Row]:
    """Settings that no other beats in both time and error, by errors that at least halve."""
    results: list[Row] = []
    front = [x for x in rows if x["error"] is not None and fastest(rows, x["error"]) is x]
    for row in sorted(front, key=lambda x: -x["error"]):
        if not results or 2 * row["error"] <= results[-1]["error"]:
            results.append(row)
    return results


def first_result() -> str:
    """Imports and commands, and first runs, with each state of the cache."""
    rows = rows_of("first_result")
    imports = [x for x in rows if x["section"] == "imports"]
    parts = [table(["", "s"], [[x["problem"], time_text(least(x))] for x in imports]), ""]
    titles = {"commands": "command", "first run": "first run", "second run": "second run"}
    for section, title in titles.items():
        part = [x for x in rows if x["section"] == section]
        lines = []
        for problem, code in dict.fromkeys((x["problem"], x["code"]) for x in part):
            own = {x["cache"]: x for x in part if (x["problem"], x["code"]) == (problem, code)}
            cells = [time_text(min(own[x][key])) for x in own for key in ("seconds", "cpu_seconds")]
            lines.append(
                [f"`{problem}`" if section == "commands" else f"{problem}, {code}", *cells]
            )
        head = ["caches empty", "of the processors", "caches filled", "of the processors"]
        parts += [table([title, *head], lines), ""]
    return "\n".join([*parts, made("first_result")])


def repeated_calls() -> str:
    """Calls beside the compiled run, and what a process takes for each new system."""
    rows = rows_of("repeated_calls")
    calls = [x for x in rows if x["section"] == "calls"]
    base = next(x for x in calls if x["code"] == "jaxdae, jax.jit")
    lines = [[x["problem"], x["code"], time_text(least(x)), times(x, base)] for x in calls]
    systems = [x for x in rows if x["section"] == "new systems"]
    memory = [
        [x["problem"], x["code"], f"{statistics.median(x['megabytes']):.1f}", time_text(least(x))]
        for x in systems
    ]
    head = ["of a new system", "by", "MB (median)", "on the clock"]
    first = table(["given", "by", "a call", "times `jax.jit`"], lines)
    return "\n".join([first, "", table(head, memory), "", made("repeated_calls")])


def bodies() -> str:
    """Steps of trees of bodies, beside MuJoCo's of the same file."""
    rows = rows_of("bodies")
    theirs = {x["problem"]: least(x) for x in rows if x["code"] == "MuJoCo RK4"}
    lines = [
        [
            title(x["problem"]),
            x["code"],
            time_text(least(x)),
            f"{least(x) / theirs[x['problem']]:.2f}",
            f"{x['error']:.0e}",
        ]
        for x in rows
    ]
    head = ["of", "by", "a step", "times MuJoCo's", "difference of coordinates"]
    return "\n".join([table(head, lines), "", made("bodies")])


def body_gradients() -> str:
    """Derivatives of runs of bodies, in times of the run."""
    rows = rows_of("body_gradients")
    runs = {(x["problem"], x["members"]): least(x) for x in rows if x["kind"] == "run"}
    lines = [
        [
            title(x["problem"]),
            x["members"],
            x["kind"],
            time_text(least(x)),
            f"{least(x) / runs[x['problem'], x['members']]:.2f}",
        ]
        for x in rows
    ]
    head = ["of", f"by {rows[0]['code']}", "what", "a step", "times the run"]
    return "\n".join([table(head, lines), "", made("body_gradients")])


def pinocchio_bodies() -> str:
    """Evaluations of the equations of motion and of derivatives, beside Pinocchio's."""
    rows = [x for x in rows_of("pinocchio_bodies") if x["seconds"]]
    ours = {(x["problem"], x["kind"]): least(x) for x in rows if x["code"] == "jaxdae"}
    lines = [
        [
            title(x["problem"]),
            x["kind"],
            x["code"] if x["algorithm"] is None else f"{x['code']}, `{x['algorithm']}`",
            time_text(least(x)),
            f"{least(x) / ours[x['problem'], x['kind']]:.1f}",
            f"{x['error']:.0e}",
        ]
        for x in rows
        if (x["problem"], x["kind"]) in ours
    ]
    head = ["of", "what", "by", "an evaluation", "times ours", "difference of accelerations"]
    return "\n".join([table(head, lines), "", made("pinocchio_bodies")])


def predictive() -> str:
    """A sample of predictive control by both methods, and how good the inputs are."""
    rows = rows_of("predictive")
    best = "{:.2g} %".format
    lines = [
        [
            x["problem"],
            x["code"],
            f"{x['iterations']}",
            time_text(least(x)),
            best(100 * x["excess"]),
        ]
        for x in rows
    ]
    head = ["of", "by", "iterations", "a sample", "cost above the least found"]
    return "\n".join([table(head, lines), "", made("predictive")])


def right_hand_side() -> str:
    """One evaluation by both solves, with and without XLA's option."""
    lines = []
    rows = rows_of("right_hand_side")
    for x in rows:
        same = (x["problem"], x["setting"])
        base = next(y for y in rows if (y["problem"], y["setting"]) == same)
        run = time_text(min(x["run_seconds"]))
        lines.append(
            [x["problem"], x["setting"], x["code"], time_text(least(x)), times(x, base), run]
        )
    head = ["problem (coordinates + constraints)", "XLA", "solve", "evaluation", "times ours"]
    return "\n".join([table([*head, "adaptive run"], lines), "", made("right_hand_side")])


def losses() -> str:
    """Every place where another code is faster than the kernel, or than what is ours there."""
    lines = []
    for name in ("single_run", "work_precision", "adaptive_batch"):
        targets = WORK_TARGETS if name == "work_precision" else TARGETS
        for problem, part in by_problem(rows_of(name)).items():
            for target in targets:
                own = [x for x in part if _is_ours(x)]
                lines += _faster(name, f"{problem}, error {power(target)}", own, part, target)
    for name in ("batch", "right_hand_side", "identification", "gradient", "scaling"):
        for what, part in _same_task(rows_of(name)).items():
            lines += _faster(name, what, [x for x in part if _is_ours(x)], part, math.inf)
    first = [{**x, "seconds": [x["first"]], "error": 0.0} for x in rows_of("identification")]
    own = [x for x in first if _is_ours(x)]
    lines += _faster("identification", "rotary pendulum, first call", own, first, math.inf)
    for start, part in _same_task(rows_of("measured_windows")).items():
        reached = [
            {**x, "seconds": [x["seconds_to_ours"]], "error": 0.0}
            for x in part
            if x["seconds_to_ours"] is not None
        ]
        own, what = [x for x in reached if _is_ours(x)], f"measured windows, {start}, until as low"
        lines += _faster("identification", what, own, reached, math.inf)
    head = ["where", "problem", "code", "its time in times of ours"]
    return table(head, lines) if lines else "No code is faster than this library in these files."


def _is_ours(row: Row) -> bool:
    return row["code"].startswith("jaxdae")


def _same_task(rows: list[Row]) -> dict[str, list[Row]]:
    """Rows of codes that do the same, by a name of what they do."""
    results: dict[str, list[Row]] = {}
    for row in rows:
        if row.get("section") != "runs":
            keys = ("problem", "precision", "setting")
            words = [str(row[key]) for key in keys if row.get(key)]
            what = ", ".join(title(x) for x in words)
            results.setdefault(what, []).append({**row, "error": 0.0})
    return results


def _faster(
    name: str, what: str, own: list[Row], part: list[Row], target: float
) -> list[list[str]]:
    """Lines of codes that beat ours."""
    base, lines = fastest(own, target), []
    for code in dict.fromkeys(x["code"] for x in part if x not in own):
        best = fastest([x for x in part if x["code"] == code], target)
        if best and (base is None or least(best) < least(base)):
            ratio = number(least(best) / least(base)) if base else "ours does not reach it"
            lines.append([link(name), what, code, ratio])
    return lines


def work_precision() -> str:
    """Tables of each problem: least time at an error, with the steps and right-hand sides of it."""
    rows = rows_of("work_precision")
    parts = []
    for name, part in by_problem(rows).items():
        lines = []
        for code in unique(part, "code"):
            line = [code if code.startswith("jaxdae") else f"*{code}*"]
            for target in WORK_TARGETS:
                able = [x for x in part if x["code"] == code and x["error"] <= target]
                # Of the fewest steps, which other work on the machine does not change.
                best = min(able, key=lambda x: x["steps"] or least(x), default=None)
                line.append(NOTHING if best is None else time_text(least(best)))
                counts = [best[key] for key in ("steps", "evaluations")] if best else []
                line.append(" / ".join(str(x or NOTHING) for x in counts) or NOTHING)
            lines.append(line)
        heads = [
            x for target in WORK_TARGETS
            for x in (f"error {power(target)}", "steps / right-hand sides")
        ]  # fmt: skip
        parts += [f"### {name}", "", table(["code", *heads], lines), ""]
    return "\n".join([*parts, *left_out("work_precision"), made("work_precision")])


def multistep() -> str:
    """The fastest of ours, and the fastest one-step and multistep codes in C, at equal errors."""
    lines = []
    for problem, part in by_problem(rows_of("work_precision")).items():
        for target in WORK_TARGETS:
            ours = fastest([x for x in part if _is_ours(x)], target)
            in_c = [x for x in part if x["code"].startswith("C, ")]
            groups = [
                [x for x in in_c if ("SUNDIALS" in x["code"]) == one] for one in (False, True)
            ]
            if ours is None:
                continue
            line = [problem, power(target), f"{ours['code']}: {time_text(least(ours))}"]
            for group in groups:
                best = fastest(group, target)
                name = "" if best is None else f"{best['code'].removeprefix('C, ')}: "
                line.append(name + times(best, ours))
            lines.append(line)
    return table(["problem", "error", "ours", "one-step, in C", "multistep, in C"], lines)


def scripts() -> str:
    """What each of the scripts measures, in its own words."""
    lines = [
        [f"`{path.name}`", first_line(path)]
        for path in sorted((ROOT / "benchmarks").glob("*.py"))
        if 'if __name__ == "__main__"' in path.read_text()
    ]
    return table(["script", "what it measures"], lines)


def versions() -> str:
    """Of all codes."""
    own = read("single_run")["machine"]["versions"]
    return ", ".join(f"{name} {version}" for name, version in own.items()) + "."


MAKERS: dict[str, Callable[[], str]] = {
    "single_run": lambda: at_equal_error("single_run"),
    "adaptive_batch": lambda: at_equal_error("adaptive_batch"),
    "batch": batch,
    "gradient": gradient,
    "identification": identification,
    "measured_windows": measured_windows,
    "scaling": scaling,
    "first_result": first_result,
    "repeated_calls": repeated_calls,
    "bodies": bodies,
    "body_gradients": body_gradients,
    "pinocchio_bodies": pinocchio_bodies,
    "predictive": predictive,
    "right_hand_side": right_hand_side,
    "losses": losses,
    "work_precision": work_precision,
    "multistep": multistep,
    "scripts": scripts,
    "versions": versions,
}
