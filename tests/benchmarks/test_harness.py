"""Timing, choosing and reporting; a code that is missing or fails is named, never left out."""

import json
import os
import sys
from pathlib import Path

import jax
import pytest

from jaxdae.kernels.llvm import machine_code

ROOT = Path(__file__).parents[2]


def test_a_missing_package_is_named_with_what_to_install(benchmark):
    base = benchmark("competitors.base")
    with pytest.raises(base.MissingCodeError, match="wanted-code is not installed"):
        base.package("no_such_module", "wanted-code")
    assert base.version_of("wanted-code") == "not installed"


def test_a_package_that_is_installed_and_does_not_load_says_so(benchmark):
    base = benchmark("competitors.base")
    with pytest.raises(base.MissingCodeError, match=r"jax does not load \(No module named"):
        base.package("jax.no_such_module", "jax")


def test_a_machine_without_a_compiler_is_told(benchmark, monkeypatch):
    base = benchmark("competitors.base")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(base.MissingCodeError, match=r"no C compiler \(gcc, clang\)"):
        base.compiler()


def test_missing_and_failed_codes_are_told_apart(benchmark):
    harness, base = benchmark("harness"), benchmark("competitors.base")

    def missing():
        raise base.MissingCodeError("x is not installed")

    def failing():
        raise OSError("long story\nshort reason")

    assert harness.attempt(missing) == (None, "missing: x is not installed")
    assert harness.attempt(failing) == (None, "failed: OSError: short reason")
    assert harness.attempt(lambda: 3) == (3, None)


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


def test_a_run_that_takes_seconds_ends_its_ladder_and_is_not_run_again(benchmark, monkeypatch):
    ladder, base, calls = benchmark("ladder"), benchmark("competitors.base"), []
    wanted = ladder.np.ones(2)
    run = base.Run(lambda: calls.append(1) or wanted, 0.5)
    assert len(ladder.climb("code", lambda _: run, (1e-6, 1e-8), wanted)) == 2
    monkeypatch.setattr(ladder, "SLOW", 0.0)
    points = ladder.climb("code", lambda _: run, (1e-6, 1e-8), wanted)
    assert len(points) == 1
    before = len(calls)
    (row,) = ladder.timed("problem", points, 3)
    assert len(calls) == before
    assert row["seconds"] == [points[0].once_s] * 3


def test_settings_are_told_in_words(benchmark):
    ladder = benchmark("ladder")
    assert ladder.name(("Dopri8", 1e-8)) == "Dopri8 1e-08"
    assert ladder.name(("trapezoidal", 200, 1e-6)) == "trapezoidal 200 steps 1e-06"


def test_calls_are_timed_in_turn_and_short_ones_repeated(benchmark):
    harness, order = benchmark("harness"), []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    times = harness.interleaved(calls, 2, least=0.0, spend=0.0)
    assert order == list("ababab")  # once to measure, then two rounds
    assert [len(x) for x in times.values()] == [2, 2]
    harness.interleaved({"a": lambda: order.append("c")}, 1, least=1e-3, spend=0.0)
    assert order.count("c") > 2  # an append takes far less than a millisecond


def test_calls_that_take_little_have_more_rounds(benchmark):
    harness = benchmark("harness")
    calls = {"a": lambda: None, "b": lambda: None}
    # Two calls of a millisecond a round: room for 25 of them in a second.
    assert len(harness.interleaved(calls, 3, least=1e-3, spend=1.0)["a"]) == 25
    assert len(harness.interleaved(calls, 3, least=1e-3, spend=1e-3)["a"]) == 3


def test_ratios_compare_the_times_of_one_round(benchmark):
    harness = benchmark("harness")
    # A machine ten times slower in the second round changes no ratio.
    assert harness.ratio([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert harness.spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert harness.shown([3.0, 1.0, 2.0], 1e-1) == "20 (10-30)"


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


def test_exponents_of_a_power_law_are_its_power(benchmark):
    scaling = benchmark("scaling")
    times = [{"links": n, "code": "x", "median": 3e-6 * n**1.5, "min": 1e-6 * n} for n in (10, 80)]
    found = scaling.exponents([*times, {"links": 80, "code": "y", "missing": "failed"}])["x"]
    assert found["median"]["fitted"] == pytest.approx(1.5)
    assert found["min"]["between"] == pytest.approx([1.0])


def test_files_that_other_codes_leave_are_gone_with_their_folder(benchmark):
    harness, before = benchmark("harness"), Path.cwd()
    with harness.scratch_folder():
        Path("jit_tmp.c").write_text("left behind")
        folder = Path.cwd()
    assert Path.cwd() == before
    assert folder != before
    assert not folder.exists()


def test_a_choice_of_problems_names_its_results(benchmark, monkeypatch):
    harness = benchmark("harness")
    monkeypatch.setattr("sys.argv", ["script", "--quick", "--problems", "b"])
    chosen = harness.arguments("text", 9, ("a", "b"), ("a",))
    assert (chosen.problems, chosen.some, chosen.repetitions) == (["b"], "-b", 3)
    monkeypatch.setattr("sys.argv", ["script", "--quick"])
    fewer = harness.arguments("text", 9, ("a", "b"), ("a",))
    assert (fewer.problems, fewer.some, fewer.repetitions) == (["a"], "", 3)
    monkeypatch.setattr("sys.argv", ["script"])
    every = harness.arguments("text", 9, ("a", "b"), ("a",))
    assert (every.problems, every.some, every.repetitions) == (["a", "b"], "", 9)


def test_kernels_made_on_some_processors_have_as_many_threads(benchmark, monkeypatch):
    ours, base = benchmark("ours"), benchmark("competitors.base")
    used = {0, 1, 2}

    def use(_, some):
        used.clear()
        used.update(some)

    # Not every system has these functions; what is tested is what is made of them.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*used}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", use, raising=False)
    with ours.processors(1):
        assert machine_code.default_threads() == 1
    assert machine_code.default_threads() == 3
    with pytest.raises(base.MissingCodeError, match="this process has 3 processors"):
        ours.processors(4).__enter__()


def test_a_system_that_lets_no_process_choose_its_processors_is_named(benchmark, monkeypatch):
    ours, base = benchmark("ours"), benchmark("competitors.base")
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with pytest.raises(base.MissingCodeError, match="does not let a process choose"):
        ours.processors(1).__enter__()


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


def test_a_script_runs_with_one_thread_for_linear_algebra(benchmark, monkeypatch):
    harness, calls = benchmark("harness"), []
    monkeypatch.setattr(os, "execv", lambda *words: calls.append(words))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")  # as its user has it
    harness.run(lambda: calls.append("main"))
    assert calls == ["main"]
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    harness.run(lambda: None)
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    program, words = calls[1]
    assert (program, words[0], words[1:]) == (sys.executable, sys.executable, sys.orig_argv[1:])


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
