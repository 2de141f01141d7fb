"""Timing, choosing and reporting; a code that is missing or fails is named, never left out."""

import json
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[2]


def test_a_missing_package_is_named_with_what_to_install(benchmark):
    base = benchmark("competitors.base")
    with pytest.raises(base.MissingCodeError, match="wanted-code is not installed"):
        base.package("no_such_module", "wanted-code")
    assert base.version_of("wanted-code") == "not installed"


def test_a_failing_code_does_not_stop_a_ladder_and_a_missing_one_ends_it(benchmark):
    ladder, base = benchmark("ladder"), benchmark("competitors.base")
    wanted = ladder.np.ones(2)

    def fails_when_tight(tolerance):
        if tolerance < 1e-7:
            raise ArithmeticError("too tight")
        return base.Run(lambda: wanted + tolerance, 0.5)

    found = ladder.climb("code", fails_when_tight, (1e-6, 1e-8), wanted)
    assert [x.missing for x in found] == [None, "failed: ArithmeticError: too tight"]
    assert [x.setting for x in found] == ["1e-06", "1e-08"]
    assert found[0].error == pytest.approx(0.5e-6, rel=1e-6)  # relative to 1 + |1|

    def missing(tolerance):
        raise base.MissingCodeError(f"x is not installed ({tolerance})")

    found = ladder.climb("code", missing, (1e-6, 1e-8), wanted)
    assert [x.missing for x in found] == ["missing: x is not installed (1e-06)"]


def test_calls_are_timed_in_turn_and_short_ones_repeated(benchmark):
    harness, order = benchmark("harness"), []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = harness.interleaved(calls, 2, least=0.0, spend=0.0)
    assert order == list("ababab")  # once to measure, then two rounds
    assert [len(x) for x in times.values()] == [2, 2]
    harness.interleaved({"a": lambda: order.append("c")}, 1, least=1e-3, spend=0.0)
    assert order.count("c") > 2  # an append takes far less than a millisecond


def test_the_fastest_setting_is_among_those_that_reach_the_error(benchmark):
    ladder = benchmark("ladder")
    rows = [
        {"code": "x", "error": 1e-5, "median": 1.0},
        {"code": "x", "error": 1e-7, "median": 3.0},
        {"code": "x", "error": 1e-8, "median": 2.0},
        {"code": "x", "error": 1e-8, "missing": "failed"},
        {"code": "y", "error": 1e-9, "median": 0.1},
    ]
    assert ladder.fastest(rows, "x", 1e-6) == rows[2]
    assert ladder.fastest(rows, "x", 1e-10) is None
    assert ladder.front(rows, "x") == [rows[0], rows[2]]  # the other takes longer and errs more


def test_runs_are_compared_at_an_error_that_is_not_larger(benchmark):
    scaling = benchmark("scaling")

    def row(code, error, seconds):
        found = {"links": 4, "code": code, "setting": "s", "error": error, "missing": None}
        return found | {"seconds": [seconds], "median": seconds, "problem": "chain"}

    exudyn = [row("Exudyn", e, t) for e, t in ((1e-3, 1.0), (9e-4, 1.1), (1e-4, 4.0))]
    own = [row("jaxdae, native", e, t) for e, t in ((2e-3, 0.01), (5e-4, 0.2), (1e-5, 0.4))]
    found = scaling.pairs(exudyn + own)
    # 9e-4 is no other error than 1e-3; what errs 2e-3 does not count.
    assert [(x["exudyn"]["error"], x["ratio"]) for x in found] == [(1e-3, 5.0), (1e-4, 10.0)]
    assert "5 to 10 times faster than Exudyn" in scaling.run_text(exudyn + own)


def test_tables_and_figures_name_missing_codes(benchmark):
    batch, single_run, gradient = (benchmark(x) for x in ("batch", "single_run", "gradient"))
    gone = {"code": "X", "missing": "missing: x is not installed", "setup_s": 0.0, "error": None}
    rows = [{"problem": "two-link", "precision": "float64", **gone}]
    assert "missing: x is not installed" in batch.text(rows)
    rows = [{"problem": "gains", "parameters": 8, **gone}]
    assert "missing: x is not installed" in gradient.text(rows)
    assert gradient.figure(rows).axes[0].get_title() == "gains"
    rows = [{"problem": "two-link", "setting": 1e-6, **gone}]
    assert single_run.summary(rows)[0][-1] == "missing: x is not installed"


def test_results_state_what_was_run_on_what(benchmark, tmp_path, monkeypatch, capsys):
    harness, out = benchmark("harness"), tmp_path / "new" / "name.json"
    monkeypatch.setattr("sys.argv", ["script", "--quick", "--out", str(out)])
    given = harness.arguments("text", 9)
    rows = [{"error": float("inf"), "seconds": [1.23456e-5]}, {"code": "x"}]
    harness.finish("name", given, rows, "one run")
    found = json.loads(out.read_text())
    assert (found["benchmark"], found["timed"]) == ("name", "one run")
    assert found["settings"] == {"quick": True, "rounds": 3, "problems": []}
    machine = found["machine"]
    assert machine["versions"]["jax"] == jax.__version__
    assert machine["cores"] >= 1
    assert len(machine["load"]) == 2
    # Four digits; what is not finite is no number of JSON.
    assert found["rows"] == [{"error": None, "seconds": [1.235e-5]}, {"code": "x"}]
    assert str(out) in capsys.readouterr().out


SCRIPTS = sorted(
    x.stem for x in (ROOT / "benchmarks").glob("*.py") if '"__main__"' in x.read_text()
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_what_it_measures_and_takes_quick_and_out(
    benchmark, monkeypatch, capsys, name
):
    script = benchmark(name)
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        script.main()
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert script.__doc__.partition("\n")[0] in said
    assert {"--quick", "--out", "--repetitions"} <= set(said.split())
