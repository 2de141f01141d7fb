"""Files, tables and pictures of runs of differential-algebraic equations."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.daes import Circle, Cubic, Resonator
from jaxdae.plotting import plot_histories

ZERO = {"charge": 0.0, "flux": 0.0}, {"coil": 1.0, "current": 0.0}


def step(t, y, z):
    return 1.0


def ran(resistance: Any = 2.0, **options):
    settings = {"t1": 1.0, "dt": 0.1, "backend": "plain", "controller": step} | options
    array: Any = jnp.asarray(resistance)
    return jaxdae.solve(Resonator(array), *ZERO, **settings)


def same(one, other):
    """Two trees of the same values, bit for bit."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)


@pytest.mark.slow
def test_a_run_comes_back_from_a_file_bit_for_bit(tmp_path):
    run = ran()
    path = run.save(tmp_path / "folder" / "circuit")
    found = jaxdae.DAETrajectory.load(path)
    for name in ("ts", "y", "z", "y_dot", "u", "final", "last", "final_time", "success"):
        assert same(getattr(found, name), getattr(run, name)), name
    assert same(tuple(found.violation), tuple(run.violation))
    assert found.names == run.names
    assert found.violation_names == run.violation_names
    assert (found.index, found.backend, found.stats) == (run.index, run.backend, run.stats)
    assert str(found.result) == str(run.result)
    assert repr(found) == repr(run)
    assert same(found.parameters, run.parameters)
    assert found.parameters["dae.resistance"] == 2.0
    with np.load(path) as arrays:
        assert np.array_equal(arrays["y.charge"], run.y["charge"])
    again = found.save(tmp_path / "again.npz")
    assert same(jaxdae.DAETrajectory.load(again).z, run.z)


def test_a_file_has_no_declaration_and_is_of_its_own_kind(tmp_path):
    path = ran().save(tmp_path / "circuit")
    with pytest.raises(AttributeError, match="a trajectory from a file has no dae"):
        jaxdae.DAETrajectory.load(path).dae  # noqa: B018
    with pytest.raises(ValueError, match=r"of another kind: read it by DAETrajectory.load"):
        jaxdae.Trajectory.load(path)
    with pytest.raises(FileNotFoundError, match="there is no file"):
        jaxdae.DAETrajectory.load(tmp_path / "other")
    with pytest.raises(ValueError, match="saved no rows: leave dense out"):
        ran(saveat=diffrax.SaveAt(dense=True)).save(tmp_path / "dense")
    with pytest.raises(ValueError, match="has no numbers yet"):
        jax.jit(lambda: ran(throw=False).to_dataframe())()


@pytest.mark.slow
def test_batches_events_and_failures_are_in_files(tmp_path):
    """One that is no number among the members; rows and events of each."""
    event = jaxdae.Event(lambda t, y, z: z["current"] - 0.1, direction=1, name="up")
    how = {"events": event, "throw": False, "max_events": 2, "backend": "native"}
    batch = jax.vmap(lambda r: ran(r, **how))
    runs = batch(jnp.array([1.0, jnp.nan, 3.0]))
    found = jaxdae.DAETrajectory.load(runs.save(tmp_path / "batch"))
    assert found.success.tolist() == [True, False, True]
    assert same(found.saved, runs.saved)
    assert same(found.final, runs.final)
    assert found.events.names == ("up",)
    assert same(found.events, runs.events)
    assert same(found[2].events.times, runs[2].events.times)
    assert found[2].batch_shape == ()
    assert same(found[2].y_dot, runs[2].y_dot)
    table = found.to_dataframe()
    assert set(table["member"]) == {0, 2}  # of the other no row was reached but its start


@pytest.mark.slow
def test_tables_have_a_column_for_each_number(tmp_path):
    run = ran()
    table = run.to_dataframe()
    assert [*table.columns] == [
        "time", "charge", "flux", "coil", "current", "d(charge)/dt", "d(flux)/dt", "u",
        "residual of constraints['coil']", "residual of constraints['loop']",
    ]  # fmt: skip
    np.testing.assert_array_equal(table["current"], run.z["current"])
    text = run.to_csv(tmp_path / "run.csv").read_text().splitlines()
    assert len(text) == 12
    assert text[0].startswith("time [s],charge,flux")
    data = run.to_xarray()
    np.testing.assert_array_equal(data["z.current"], run.z["current"])
    vectors = jaxdae.solve(Circle(), jnp.array([0.0, 1.0]), 1.0, t1=0.2, dt=0.1, backend="plain")
    assert [*vectors.to_dataframe().columns][:4] == ["time", "y[0]", "y[1]", "z"]
    assert vectors.to_xarray()["y"].shape == (3, 2)


class Measured(Resonator):
    """With units of some variables."""

    def units(self):
        return {"y": "Wb", "y['charge']": "C", "z['current']": "A"}


def test_units_of_variables_and_their_rates_are_in_tables_and_pictures(tmp_path):
    run = jaxdae.solve(Measured(), *ZERO, t1=0.2, dt=0.1, backend="plain", controller=step)
    assert run.units == (["C", "Wb"], ["", "A"])
    found = jaxdae.DAETrajectory.load(run.save(tmp_path / "run"))
    assert found.units == run.units
    for one in (run, found):
        assert one.to_dataframe().attrs["units"] == {
            "time": "s", "charge": "C", "flux": "Wb", "current": "A",
            "d(charge)/dt": "A", "d(flux)/dt": "Wb/s",
        }  # fmt: skip
        headings = [ax.get_ylabel() for ax in plot_histories(one, quantities=["y", "y_dot"]).axes]
        assert list(dict.fromkeys(headings)) == [
            "variables y [C]", "variables y [Wb]", "rates dy/dt [A]", "rates dy/dt [Wb/s]",
        ]  # fmt: skip


def test_what_was_varied_goes_with_the_members_and_into_files(tmp_path):
    values = np.array([1.0, 2.0, 3.0])
    runs = jax.vmap(lambda r: ran(r, throw=False, t1=0.2))(jnp.asarray(values))
    named: Any = {"resistance": values, "maker": ["a", "b", "a"]}
    runs = runs.varying("resistance", **named)
    found = jaxdae.DAETrajectory.load(runs.save(tmp_path / "batch"))
    batch: Any
    for batch in (runs, found, found.varying("resistance", **named)):
        assert batch.varied.axes == ("resistance",)
        assert set(batch.to_dataframe()["resistance"]) == {1.0, 2.0, 3.0}
        one = batch[1]
        assert (one.varied.axes, one.varied.values["maker"]) == ((), "b")
        np.testing.assert_array_equal(one.z["current"], batch.z["current"][1])
        data = batch[1:].to_xarray().sel(resistance=3.0)
        np.testing.assert_array_equal(data["z.current"], runs.z["current"][2])
    with pytest.raises(ValueError, match="this is one run, not a batch"):
        runs[0].varying("resistance", resistance=values)


def test_histories_are_drawn_with_the_names_of_the_variables():
    figure = plot_histories(ran(), quantities=["y", "z", "y_dot", "u"], title="circuit")
    headings = [ax.get_ylabel() for ax in figure.axes]
    assert list(dict.fromkeys(headings)) == [
        "variables y", "algebraic variables z", "rates dy/dt", "controls u",
    ]  # fmt: skip
    names = {line.get_label() for ax in figure.axes for line in ax.lines}
    assert {"y['charge']", "z['current']"} <= names
    plain = jaxdae.solve(Cubic(), 0.0, 1.0, t1=0.2, dt=0.1, backend="plain")
    assert len(plot_histories(plain).axes) == 2
    with pytest.raises(ValueError, match="cannot draw the quantities 'q'; choose from 'y', 'z'"):
        plot_histories(plain, quantities=["q"])
