"""Runs as data sets, tables and text: every number is in its place, under its name and unit."""

import csv
import sys
from typing import Any

import numpy as np
import pytest

from helpers.stored_runs import stored
from jaxdae import Labels, Trajectory
from jaxdae.results.tables import columns
from jaxdae.storage.runs import About, WORKS
from jaxdae.systems import Power

HEADINGS = [
    "time [s]", "r [m]", "angle [rad]", "d(r)/dt [m/s]", "d(angle)/dt [rad/s]", "torque [N m]",
    "lambda(rod)", "lambda(rolling)", "phi(rod) [m^2]", "phi_dot(rod) [m^2/s]",
    "phi_dot(rolling) [m/s]", "energy [J]", "kinetic_energy [J]", "potential_energy [J]",
]  # fmt: skip


def batch():
    """Two by three members, of which one ends after two rows."""
    run = stored((2, 3), failed=[(1, 1)])
    mass = np.arange(6.0).reshape(2, 3)
    return run.varying(("speed", "gains"), speed=[0.1, 0.2], gains=["a", "b", "c"], mass=mass)


def test_a_table_of_pandas_is_tidy():
    """One row for each time that a member has come to; what tells members apart comes first."""
    run = batch()
    table = run.to_dataframe()
    assert list(table.columns[:5]) == ["speed", "gains", "mass", "time", "r"]
    assert len(table) == 5 * 5 + 2
    assert table.attrs["units"]["d(angle)/dt"] == "rad/s"
    assert "lambda(rod)" not in table.attrs["units"]
    chosen = table[(table.speed == 0.2) & (table.gains == "b")]
    assert set(chosen.mass) == {4.0}
    np.testing.assert_array_equal(chosen["lambda(rolling)"], run.multipliers[1, 1, :2, 1])
    one = stored().to_dataframe()
    assert [*one.columns] == [heading.partition(" [")[0] for heading in HEADINGS]
    assert one.attrs["model"] == "Made up"


def test_a_data_set_of_xarray_has_dimensions_names_and_units():
    run = batch()
    data = run.to_xarray()
    assert data.q.dims == ("speed", "gains", "time", "coordinate")
    assert dict(data.sizes) == {
        "speed": 2, "gains": 3, "time": 5, "coordinate": 2, "actuator": 0, "input": 1,
        "constraint": 2, "position_constraint": 1,
    }  # fmt: skip
    chosen = data.sel(speed=0.2, gains="c", constraint="rolling")
    np.testing.assert_array_equal(chosen.multipliers, run.multipliers[1, 2, :, 1])
    np.testing.assert_array_equal(chosen.phi_dot, run.violation.phi_dot[1, 2, :, 1])
    assert (float(chosen.mass), bool(chosen.success)) == (5.0, True)
    np.testing.assert_array_equal(data.time, run.ts[0, 0])
    assert [*data.q_unit.values, *data.v_unit.values] == ["m", "rad", "m/s", "rad/s"]
    assert data.time.attrs["units"] == "s"
    assert data.energy.attrs == {"long_name": "generalized energy", "units": "J"}
    assert "units" not in data.q.attrs
    assert data.phi.attrs["units"] == "m^2"
    assert str(data.result.sel(speed=0.2, gains="b").values) == "nonfinite"
    assert np.isnan(data.q.sel(speed=0.2, gains="b")[2:]).all()
    assert (data.attrs["model"], data.attrs["rows_not_reached"]) == ("Made up", 0)


def test_rows_that_nobody_came_to_are_counted():
    """And are not there: a time of infinity would be no coordinate."""
    data = stored(failed=[()]).to_xarray()
    assert (data.sizes["time"], data.attrs["rows_not_reached"]) == (2, 3)
    assert not data.success


def test_members_with_different_times_have_rows():
    ts = np.linspace(0.0, [1.0, 1.0, 2.0], 5, axis=1)
    run = stored((3,), ts=ts)
    data = run.to_xarray()
    assert data.time.dims == ("member", "row")
    np.testing.assert_array_equal(data.time, ts)
    np.testing.assert_array_equal(data.member, [0, 1, 2])
    np.testing.assert_array_equal(data.q.sel(member=2, coordinate="r"), run.q[2, :, 0])


def test_parameters_and_statistics_are_variables():
    inertia: Any = {"parameters.system.inertia": np.ones((3, 2, 2))}
    run = stored((3,), **inertia)
    data = run.to_xarray()
    assert data["system.inertia"].dims == ("member", "system.inertia_1", "system.inertia_2")
    np.testing.assert_array_equal(data.num_steps, [4, 4, 4])


def test_text_has_every_digit(tmp_path):
    for dtype in ("f4", "f8"):
        run = stored(dtype=dtype)
        run.q[1, 0] = np.nan
        path = run.to_csv(tmp_path / "made" / "run.csv")
        with open(path, newline="") as file:
            heading, *rows = csv.reader(file)
        assert heading == HEADINGS
        values = np.array(rows, dtype)
        blocks = ("ts", "q", "v", "u", "multipliers", "phi", "phi_dot", "energy")
        expected = np.column_stack([run.known[name] for name in blocks])
        np.testing.assert_array_equal(values[:, :12], expected)


@pytest.mark.parametrize("shape", [(5,), (5, 2, 2)])
def test_inputs_of_any_shape_have_columns(shape):
    run = stored(u=np.ones(shape))
    count = int(np.prod(shape[1:], dtype=int))
    assert len(columns(run)) == len(HEADINGS) - 1 + count
    assert run.to_xarray().u.shape == (5, *([count] if shape[1:] else []))


def test_inputs_in_a_tree_have_their_names():
    run = stored()
    arrays = {name: x for name, x in run.known.items() if name != "u"}
    arrays |= {"u.arm": np.ones(5), "u.wheels": np.zeros((5, 2))}
    other = Trajectory.from_arrays(arrays, run.about)
    assert {*other.u} == {"arm", "wheels"}
    names = [part.name for part in columns(other)]
    assert names[5:8] == ["u.arm", "u.wheels1", "u.wheels2"]
    assert other.to_xarray()["u.wheels"].shape == (5, 2)


@pytest.mark.parametrize("library", ["xarray", "pandas"])
def test_without_the_libraries_it_is_said_how_to_get_them(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    method = {"xarray": "to_xarray", "pandas": "to_dataframe"}[library]
    text = rf"{method} needs {library}, which is not installed: pip install 'jaxdae\[data\]'"
    with pytest.raises(ImportError, match=text):
        getattr(stored(), method)()


def test_names_are_told_apart():
    """Columns by a number; axes of a batch are refused."""
    labels = vars(Labels(coordinates=("energy", "energy")))
    names = [x.name for x in columns(Trajectory.from_arrays(stored().known, About(labels=labels)))]
    assert names[1:3] == ["energy", "energy (2)"]
    assert names[-3:] == ["energy (3)", "kinetic_energy", "potential_energy"]
    for name in ("time", "q"):
        text = f"a batch axis is called '{name}', which is the name of"
        with pytest.raises(ValueError, match=text):
            stored((3,)).varying(name).to_xarray()


def test_names_of_works_are_those_of_powers():
    assert tuple(f"work.{name}" for name in Power._fields) == WORKS
