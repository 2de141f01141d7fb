"""The page of benchmarks: its files have what it needs, and its rows are theirs."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMED = (
    "single_run", "batch", "adaptive_batch", "gradient", "identification", "scaling",
    "first_result", "repeated_calls", "predictive", "right_hand_side", "work_precision", "bodies",
    "body_gradients", "pinocchio_bodies", "measured_windows",
)  # fmt: skip
# What the page takes from rows of a file beside `code`, `problem` and `seconds`.
FIELDS = {
    "single_run": {"error", "setting"},
    "batch": {"precision", "error", "members"},
    "adaptive_batch": {"error", "setting", "members"},
    "gradient": {"parameters", "error", "cost_seconds"},
    "identification": {"first", "off"},
    "measured_windows": {"first", "evaluations", "by_rule", "chi_square", "seconds_to_ours"},
    "scaling": {"section", "links"},
    "first_result": {"section", "cpu_seconds"},
    "repeated_calls": {"section"},
    "predictive": {"iterations", "excess"},
    "bodies": {"error"},
    "body_gradients": {"members", "kind"},
    "pinocchio_bodies": {"kind", "algorithm", "error"},
    "right_hand_side": {"setting", "run_seconds"},
    "work_precision": {"setting", "error", "steps", "evaluations"},
}


@pytest.fixture(scope="module")
def timings():
    sys.path.insert(0, str(ROOT / "docs" / "scripts"))
    import timings

    yield timings
    sys.path.remove(str(ROOT / "docs" / "scripts"))


@pytest.mark.parametrize("name", TIMED)
def test_a_file_says_what_was_run_on_what_and_has_the_fields_of_the_page(name):
    data = json.loads((ROOT / "docs" / "data" / f"{name}.json").read_text())
    assert data["benchmark"] == name
    assert data["timed"]
    assert {"quick", "rounds", "problems"} <= set(data["settings"])
    assert {"cores", "machine", "processor", "load", "versions"} <= set(data["machine"])
    assert {"python", "jax", "jaxdae"} <= set(data["machine"]["versions"])
    timed = [x for x in data["rows"] if not x["missing"]]
    assert len(timed) > 1
    for row in timed:
        assert {"code", "problem", *FIELDS[name]} <= set(row)
        assert len(row["seconds"]) >= 1
        assert min(row["seconds"]) > 0
    # Of this library first: what the others are compared with.
    assert any(x["code"].startswith("jaxdae") for x in timed)


@pytest.mark.parametrize("name", TIMED)
def test_every_code_of_a_file_stands_on_the_page(timings, name):
    page = timings.filled(f"{{{{ timings {name} }}}}")
    assert "{{" not in page
    timed = timings.rows_of(name)
    kernel = [x for x in timed if name == "adaptive_batch" and timings.is_kernel(x)]
    for row in timed:
        assert row in kernel or row["code"] in page
        assert timings.title(row["problem"]) in page or name in (
            "identification",
            "scaling",
        )
    absent = [x for x in timings.read(name)["rows"] if x["missing"] and x not in timed]
    assert all(x["code"] in page for x in absent)


def test_the_page_takes_everything_from_files(timings):
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    others = [(ROOT / "docs" / "howto" / x).read_text() for x in ("solver.md", "predict.md")]
    found = re.findall(r"{{ timings (\w+) }}", "".join([page, *others]))
    assert set(found) == set(timings.MAKERS)
    assert set(timings.SECTIONS.values()) < set(re.findall(r"^## (.*)$", page, re.MULTILINE))


def test_multistep_codes_are_faster_where_the_page_of_solvers_says_it(timings):
    """On the wheelset alone, and slower there than a one-step code."""
    lines = [x.strip("| ").split(" | ") for x in timings.multistep().splitlines()[2:]]
    faster = [x for x in lines if "**" in x[-1]]
    assert {x[0] for x in faster} == {"wheelset"}
    for *_, one_step, multistep in faster:
        ratios = [float(x.split(": ")[1].strip("*")) for x in (one_step, multistep)]
        assert ratios[0] < ratios[1]


def test_from_where_lapack_is_called_is_what_the_page_says():
    from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT

    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert f"from {ELIMINATION_LIMIT + 1} unknowns on it calls LAPACK" in page


ROWS = [
    {"problem": "p", "code": code, "error": error, "seconds": seconds}
    for code, error, seconds in (
        ("jaxdae, native", 1e-7, [3e-3, 2e-3]),
        ("jaxdae, native", 1e-10, [4e-3, 5e-3]),
        ("jaxdae, native, 1 thread", 1e-7, [1.5e-3]),  # not what the others are compared with
        ("swift", 1e-7, [9e-3, 1e-3]),
        ("slow", 1e-10, [8e-3]),
        ("lost", None, [1e-6]),
    )
]


FITS = [
    {"problem": "rotary pendulum", "code": code, "first": first, "seconds": seconds}
    for code, first, seconds in (("jaxdae", 8.0, [0.3]), ("SciPy", 4.0, [4.0]))
]


def test_the_fastest_setting_that_reaches_the_error_is_compared(timings):
    columns = {"p": ROWS}
    coarse = timings.against_kernel(ROWS, columns, 1e-6).splitlines()
    assert coarse[2:] == [
        "| jaxdae, native | 2 ms |",
        "| jaxdae, native, 1 thread | **0.75** |",
        "| swift | **0.5** |",
        "| slow | 4 |",
        "| lost | – |",
    ]
    fine = timings.against_kernel(ROWS, columns, 1e-9).splitlines()
    assert fine[2:6] == [
        "| jaxdae, native | 4 ms |", "| jaxdae, native, 1 thread | – |", "| swift | – |",
        "| slow | 2 |",
    ]  # fmt: skip


def test_what_is_faster_is_listed_as_such(timings, monkeypatch):
    one = {"single_run": ROWS, "identification": FITS}
    monkeypatch.setattr(timings, "rows_of", lambda name: one.get(name, []))
    assert timings.losses().splitlines()[2:] == [
        "| [One adaptive run, called from Python](#one-adaptive-run-called-from-python) "
        "| p, error 1e-6 | swift | 0.667 |",
        "| [Identification](#identification) | rotary pendulum, first call | SciPy | 0.5 |",
    ]
    monkeypatch.setattr(timings, "rows_of", lambda _: [])
    assert "No code is faster" in timings.losses()


@pytest.mark.slow
def test_a_run_of_a_script_is_on_the_page(benchmark, timings, tmp_path, monkeypatch):
    """From the command to the table: two short chains, by the kernel and by what is missing."""
    scaling, base = benchmark("scaling"), benchmark("competitors.base")

    def missing(*_):
        raise base.MissingCodeError("x is not installed")

    codes = {"native": (scaling.own("native", sparse=False), 64), "other": (missing, 64)}
    monkeypatch.setattr(scaling, "CODES", codes)
    monkeypatch.setattr(scaling, "LINKS", (2, 3))
    out = tmp_path / "scaling.json"
    words = ["scaling.py", "--problems", "steps", "--repetitions", "1", "--out", str(out)]
    monkeypatch.setattr("sys.argv", words)
    scaling.main()
    monkeypatch.setattr(timings, "DATA", tmp_path)
    page = timings.filled("{{ timings scaling }}")
    rows = {x["links"]: x for x in timings.rows_of("scaling")}
    cells = [timings.time_text(min(rows[n]["seconds"])) for n in (2, 3)]
    assert f"| native | {cells[0]} | {cells[1]} | " in page
    assert "    - other (chain of 2, chain of 3): x is not installed" in page
    assert "`python benchmarks/scaling.py --problems steps`; one step" in page
