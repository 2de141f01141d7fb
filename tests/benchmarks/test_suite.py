"""The suite of mechanisms: references against a second method, exact motions and this library."""

import numpy as np
import pytest

gmpy2 = pytest.importorskip("gmpy2")


@pytest.fixture(scope="module")
def suite(benchmark):
    """Modules of the suite by their names."""
    return lambda name: benchmark(f"suite.{name}")


def test_there_are_more_than_twenty_mechanisms_of_all_kinds_with_references(suite):
    catalogue, mechanism = suite("catalogue"), suite("mechanism")
    files = {x.stem for x in catalogue.FOLDER.glob("*.json")}
    assert files == set(catalogue.MECHANISMS)
    assert len(files) > 20
    kinds = {x for one in catalogue.MECHANISMS.values() for x in one.kinds}
    assert kinds == set(mechanism.KINDS)


def test_files_are_of_the_mechanisms_as_they_are_declared(suite):
    import json

    catalogue = suite("catalogue")
    for file in catalogue.FOLDER.glob("*.json"):
        name, one = file.stem, catalogue.MECHANISMS[file.stem]
        data = json.loads(file.read_text())
        assert data["values"] == one.values, name
        assert tuple(data["by"]) == one.by, name
        assert data["t"][-1] == one.t1, name
        assert len(data["impacts"]["t"]) == one.events, name
        # Two computations, of which the rougher has increments of 1e-9: errors of 1e-15 and less.
        assert max(data["agreement"].values()) < 1e-12, name


def test_the_reference_is_the_exact_motion_of_a_knife_edge(suite):
    """Its speed is that of a start and an integral of a cosine."""
    catalogue = suite("catalogue")
    p = catalogue.MECHANISMS["knife-edge"].values
    wanted = catalogue.reference("knife-edge")
    pull = p["gravity"] * np.sin(p["slope"]) / p["turn"]
    heading = 0.5 + p["turn"] * wanted.t
    speed = p["speed"] + pull * (np.sin(heading) - np.sin(0.5))
    # Round-off of a few operations in double precision.
    exact = np.stack([speed * np.cos(heading), speed * np.sin(heading)], axis=1)
    np.testing.assert_allclose(wanted.rows[:, 3:5], exact, atol=1e-14)
    by_speed = np.stack([np.cos(heading), np.sin(heading)], axis=1)
    np.testing.assert_allclose(wanted.first[:, 3:5, 2], by_speed, atol=1e-14)


@pytest.mark.parametrize("name", ["parallelogram", "knife-edge", "folded-four-bars"])
def test_a_second_method_finds_the_same(suite, name):
    """Other equations, another integrator, exact derivatives: up to the first saved time."""
    catalogue = suite("catalogue")
    mechanism, wanted = catalogue.MECHANISMS[name], catalogue.reference(name)
    found = suite("extrapolation").again(mechanism, wanted.t[:2], step=0.1)
    n, p = 2 * len(mechanism.coordinates), len(mechanism.by)
    value = np.array(found.value, float).reshape(2, n)
    first = np.array(found.first, float).reshape(p, 2, n).transpose(1, 2, 0)
    second = np.array(found.second, float).reshape(p, p, 2, n).transpose(2, 3, 0, 1)
    # Both are exact to more digits than a double has; numbers are up to a hundred.
    for one, other in (
        (value, wanted.rows), (first, wanted.first), (second, wanted.second),
    ):  # fmt: skip
        np.testing.assert_allclose(one, other[:2, :n], rtol=1e-14, atol=1e-13)


def test_files_say_how_far_the_second_method_is_from_them(suite):
    """At all times, of all derivatives, for every mechanism that is reduced by hand."""
    import json

    folder, reduced = suite("catalogue").FOLDER, suite("reduced").REDUCED
    data = {x.stem: json.loads(x.read_text()) for x in folder.glob("*.json")}
    assert {name for name, x in data.items() if "second_method" in x} == set(reduced)
    assert len(reduced) > 10
    for name in reduced:
        assert max(data[name]["second_method"].values()) < 1e-14, name


@pytest.mark.parametrize("name", ["parallelogram", "pendulum-stop", "snakeboard"])
def test_series_find_the_file_again(suite, name):
    """Up to the first saved time, with another order and tolerance."""
    catalogue, taylor = suite("catalogue"), suite("taylor")
    mechanism, wanted = catalogue.MECHANISMS[name], catalogue.reference(name)
    reference = taylor.Reference(mechanism, gmpy2.mpfr("1e-25"), 30)
    times = wanted.t[:2]
    found = reference.run([*mechanism.values.values()], times)
    found = np.array([float(x) for x in found[: wanted.rows[:2].size]])
    np.testing.assert_allclose(found, wanted.rows[:2].ravel(), rtol=1e-15, atol=1e-15)


def test_the_reference_of_andrews_mechanism_is_the_published_one(suite):
    """Of the test set: its torque, stiffness and masses, computed with PSIDE at 1e-14."""
    from jaxdae.models.andrews import END_REFERENCE

    wanted = suite("catalogue").reference("andrews").rows[-1]
    # What is published has nine digits of coordinates and seven of velocities (tests/models).
    np.testing.assert_allclose(wanted[:7], END_REFERENCE.q, rtol=1e-9)
    np.testing.assert_allclose(wanted[7:14], END_REFERENCE.v, rtol=1e-6)


def test_dependent_constraints_are_found_where_none_are_left_out(suite):
    catalogue, taylor = suite("catalogue"), suite("taylor")
    declared = type(catalogue.MECHANISMS["parallelogram"])
    undeclared = type("Undeclared", (declared,), {"kept": None})()
    reference = taylor.Reference(undeclared)
    with pytest.raises(ZeroDivisionError, match="the constraints are not independent"):
        reference.run([*undeclared.values.values()], [0.0, 0.1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pendulum", "rolling-disk", "folded-four-bars"])
def test_this_library_is_exact_at_its_tightest_setting(suite, name):
    catalogue, answers = suite("catalogue"), suite("answers")
    mechanism, wanted = catalogue.MECHANISMS[name], catalogue.reference(name)
    program = suite("ours").CODES["jaxdae, forward"](mechanism, wanted)
    found = answers.errors(program.run(program.settings[-1]), wanted, mechanism)
    assert found["motion"] < 1e-9
    assert found["multipliers"] < 1e-9
    assert found["first"] < 1e-7


def test_errors_leave_out_what_a_code_does_not_give_and_refuse_what_is_not_finite(suite):
    catalogue, answers = suite("catalogue"), suite("answers")
    mechanism, wanted = catalogue.MECHANISMS["pendulum"], catalogue.reference("pendulum")
    first = wanted.first.copy()
    first[..., 0] = np.nan
    first[-1, 0, 1] += 0.5
    rows = wanted.rows.copy()
    rows[-1, -1] += 3.0
    found = answers.errors(answers.Answer(rows, first), wanted, mechanism)
    assert found["motion"] == 0.0
    # Relative to the largest number of the column.
    assert found["multipliers"] == pytest.approx(3.0 / np.abs(wanted.rows[:, -1]).max())
    assert found["first"] == pytest.approx(0.5 / max(1.0, np.abs(wanted.first[:, 0]).max()))
    rows[1] = np.nan
    with pytest.raises(answers.RefusedError, match="not finite"):
        answers.errors(answers.Answer(rows), wanted, mechanism)


def test_a_page_for_each_mechanism_has_its_numbers(suite):
    import importlib
    import sys
    from pathlib import Path

    scripts = str(Path(__file__).parents[2] / "docs" / "scripts")
    sys.path.insert(0, scripts)
    try:
        pages = dict(importlib.import_module("suite_pages").pages())
    finally:
        sys.path.remove(scripts)
    files = suite("catalogue").FOLDER.glob("*.json")
    assert set(pages) == {f"suite/{x.stem}.md" for x in files}
    pendulum = pages["suite/pendulum.md"]
    assert "| x | 7.8590270817027294847e-01 |" in pendulum
    # The declaration, and a picture of five times.
    assert "class Pendulum(Mechanism):" in pendulum
    assert pendulum.count("<polyline") == 5
    for name, page in pages.items():
        assert all(x in page for x in ("<polyline", " kinetic_energy", "## Reference")), name
