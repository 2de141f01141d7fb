"""Records from files, arrays and tables: values, units, missing samples, what is refused."""

import numpy as np
import pytest

import jaxdae
from jaxdae.identification import Channel, Measurement, read_record, UnknownStart
from jaxdae.identification.units import factor, split

CHANNELS = {
    "angle": Channel(lambda run: run.q[:, 0], unit="rad"),
    "rate": Channel(lambda run: run.v[:, 0], unit="rad/s"),
}
TIMES = np.array([0.0, 0.01, 0.025, 0.03])
ANGLES = np.array([0.0, 0.1, np.nan, 0.3])
TORQUES = np.array([1.0, 2.0, 3.0, 4.0])
START = UnknownStart(jaxdae.State([0.0], [0.0]))
TEXT = """# from the laboratory
time [ms], angle [deg], rate, torque (mN m)
0, 0, 1.5, 1000

10, 5.729577951308232, , 2000
25, NaN, 1.7, 3000
30, 17.188733853924695, 1.8, 4000
"""


def saved(tmp_path, text):
    path = tmp_path / "swing.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text,
        lambda text: text.replace(", ", "\t"),
        lambda text: text.replace(",", ";").replace(".", ","),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("25, NaN", "nan, NaN, , -\n25, NaN"),
    ],
)
def test_a_file_is_read_in_the_units_of_its_headings(tmp_path, change):
    """Separators, a byte order mark, lines of Windows, a row in which nothing was measured."""
    record = read_record(saved(tmp_path, change(TEXT)), CHANNELS, inputs=["torque"])
    np.testing.assert_allclose(record.ts, TIMES, rtol=1e-15)
    np.testing.assert_allclose(record.outputs["angle"], ANGLES, rtol=1e-15)
    np.testing.assert_array_equal(record.outputs["rate"], [1.5, np.nan, 1.7, 1.8])
    np.testing.assert_allclose(record.inputs[:, 0], TORQUES, rtol=1e-15)
    assert record.name == "swing"


def pandas_table(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def pandas_indexed(time, **columns):
    pandas = pytest.importorskip("pandas")
    dates = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(time, unit="s")
    return pandas.DataFrame(columns, index=dates)


def xarray_set(time, **columns):
    xarray = pytest.importorskip("xarray")
    rows = {name: ("time", x) for name, x in columns.items()}
    return xarray.Dataset(rows, {"time": ("time", 1e3 * time, {"units": "ms"})})


def structured(**columns):
    found = np.zeros(4, [(name, float) for name in columns])
    for name, x in columns.items():
        found[name] = x
    return found


@pytest.mark.parametrize("table", [dict, structured, pandas_table, pandas_indexed, xarray_set])
def test_arrays_and_tables_are_read_as_files_are(table):
    source = table(time=TIMES, angle=ANGLES, torque=TORQUES)
    record = read_record(source, CHANNELS, inputs=["torque"], name="swing")
    # Dates are in units of nanoseconds or microseconds.
    np.testing.assert_allclose(record.ts, TIMES, atol=1e-9)
    np.testing.assert_array_equal(record.outputs["angle"], ANGLES)
    np.testing.assert_array_equal(record.inputs[:, 0], TORQUES)
    assert [*record.outputs] == ["angle"]


def test_a_record_becomes_an_experiment():
    source = {"t": TIMES + 5, "shoulder": ANGLES, "tau1": TORQUES, "tau2": -TORQUES}
    record = read_record(
        source, CHANNELS, time="t", outputs={"angle": "shoulder"}, inputs=["tau1", "tau2"],
        units={"shoulder": "deg"}, name="swing",
    )  # fmt: skip
    one = record.experiment(START, every=2, sigma=0.1)
    assert one.t0 == 5.0
    np.testing.assert_array_equal(one.ts, [5.0, 5.025])
    measured = one.measurements["angle"]
    np.testing.assert_allclose(measured.values, np.radians(ANGLES[::2]))
    np.testing.assert_array_equal(measured.sigma, [0.1, 0.1])
    # Of the inputs nothing is left out.
    assert one.controller is not None
    np.testing.assert_allclose(one.controller(5.02), np.array([1, -1]) * (2 + 2 / 3), rtol=1e-12)
    built = record.experiment(START, sigma={"angle": 0.2}, input_to="build")
    assert built.controller is None
    np.testing.assert_array_equal(built.conditions(5.0), [1.0, -1.0])
    part = record.between(5.005, 5.027)
    np.testing.assert_array_equal(part.ts, [5.01, 5.025])
    assert "swing" in repr(record)


def test_windows_are_the_samples_of_a_record_each_once():
    """Parts of equal length, but for one that lies in a gap."""
    ts = np.r_[np.arange(10) / 10, 3.1 + np.arange(11) / 10]
    source = {"time": ts, "angle": np.sin(ts), "torque": np.cos(ts)}
    record = read_record(source, CHANNELS, inputs=["torque"], name="swing")
    parts = record.windows(1.0)
    assert [x.name for x in parts] == ["swing from 0 s", "swing from 3.1 s"]
    np.testing.assert_array_equal(np.concatenate([x.ts for x in parts]), ts)
    found = np.concatenate([x.outputs["angle"] for x in parts])
    np.testing.assert_array_equal(found, np.sin(ts))
    np.testing.assert_array_equal(np.concatenate([x.inputs[:, 0] for x in parts]), np.cos(ts))
    (one,) = record.windows(100.0)
    np.testing.assert_array_equal(one.ts, ts)


def test_a_record_without_inputs_has_no_controller():
    record = read_record({"time": TIMES, "angle": ANGLES}, CHANNELS)
    assert record.input is None
    assert record.experiment(START).controller is None


def test_missing_samples_of_an_input_are_bridged_and_said():
    source = {"time": TIMES, "angle": ANGLES, "torque": [1.0, np.nan, np.nan, 4.0]}
    with pytest.warns(RuntimeWarning, match="2 of 4 samples of the input are missing, at most fro"):
        record = read_record(source, CHANNELS, inputs="torque")
    assert record.input is not None
    np.testing.assert_allclose(record.input(0.015), [2.5])


@pytest.mark.filterwarnings("ignore:read_record")
@pytest.mark.parametrize("kind", ["linear", "held"])
def test_inputs_with_samples_at_different_times_keep_all_of_them(kind):
    """Each goes on from its own samples, in a part of the record too; by hand."""
    nan, fast = np.nan, [0.0, 5.0, -5.0, 7.0, 1.0]
    source = {"time": np.arange(5.0), "angle": np.ones(5), "fast": fast}
    source |= {"slow": [0.0, nan, nan, nan, 4.0], "late": [nan, 1.0, nan, 3.0, nan]}
    record = read_record(source, CHANNELS, inputs=("fast", "slow", "late"), kind=kind)
    slow, late = ([0, 1, 2, 3, 4], [1, 1, 2, 3, 3])
    if kind == "held":
        slow, late = ([0, 0, 0, 0, 4], [1, 1, 1, 3, 3])
    wanted = np.stack([fast, slow, late], axis=1)
    part = record.between(1.0, 3.0)
    for one, rows in ((record, wanted), (part, wanted[1:4])):
        assert one.input is not None
        found = [one.input(t) for t in one.ts]
        np.testing.assert_allclose(found, rows, rtol=1e-15)


def masked_rows():
    rows = np.ma.zeros(4, dtype=[("time", float), ("angle", float)])
    rows["time"], rows["angle"] = TIMES, np.ma.masked_equal([0.0, 0.1, 99.0, 0.3], 99.0)
    return rows


@pytest.mark.parametrize(
    "source", [masked_rows(), {"time": TIMES, "angle": masked_rows()["angle"]}]
)
def test_samples_that_are_masked_are_missing(source):
    found = read_record(source, CHANNELS).outputs["angle"]
    np.testing.assert_array_equal(found, ANGLES)
    np.testing.assert_array_equal(Measurement(source["angle"]).values, ANGLES)


def test_dates_may_know_their_zone():
    pandas = pytest.importorskip("pandas")
    index = pandas.date_range("2026-03-29", periods=4, freq="10ms", tz="Europe/Berlin")
    record = read_record(pandas.DataFrame({"angle": ANGLES}, index=index), CHANNELS)
    np.testing.assert_allclose(record.ts, [0.0, 0.01, 0.02, 0.03], rtol=1e-15)


def test_numbers_of_rows_are_no_times():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match="no column is named 'time'; there are t, angle"):
        read_record(pandas.DataFrame({"t": TIMES, "angle": ANGLES}), CHANNELS)


def test_columns_along_another_dimension_are_refused():
    xarray = pytest.importorskip("xarray")
    columns = {"angle": ("time", ANGLES), "torque": ("k", TORQUES[:3])}
    with pytest.raises(ValueError, match="'torque': it has 3 samples, where 'time' has 4"):
        read_record(xarray.Dataset(columns, {"time": TIMES}), CHANNELS, inputs="torque")


def test_files_in_other_encodings_are_refused(tmp_path):
    path = tmp_path / "swing.csv"
    path.write_bytes("time,größe,angle\n0,1,2\n".encode("latin-1"))
    with pytest.raises(ValueError, match="swing: the file is no text in UTF-8"):
        read_record(path, CHANNELS)


def arrays(**columns):
    return {"time": TIMES, "angle": ANGLES, "torque": TORQUES} | columns


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (arrays(), {"inputs": ["tau"]}, "no column is named 'tau'; there are time, angle, torque"),
        (
            arrays(time=TIMES[::-1]),
            {},
            "'time', row 1: the time 0.025 s is not behind 0.03 s, that",
        ),
        (arrays(time=TIMES * [1, 1, 1, 0]), {}, "row 3: the time 0 s is not behind 0.025 s"),
        (arrays(time=[0, np.nan, 1, 2]), {}, "'time', row 1: the time is missing, in 1 of 4 rows"),
        (arrays(angle=["a", 1, 2, 3]), {}, "'angle', row 0: 'a' is no number; leave the field"),
        (arrays(angle=[1, np.inf, 2, 3]), {}, "'angle', row 1: the value is infinite"),
        (arrays(angle=[np.nan] * 4), {}, "column 'angle' has no sample; leave it out"),
        (arrays(torque=[np.nan] * 4), {"inputs": ["torque"]}, "input 'torque' has no sample"),
        (arrays(angle=[1.0, 2.0]), {}, "columns have different shapes, 'time' .4,., 'angle' .2,."),
        (
            arrays(),
            {"units": {"angle": "mm"}},
            "'angle': 'mm' is a unit of length, 'rad' one of an",
        ),
        (
            arrays(),
            {"units": {"angle": "foo"}},
            "'angle': the unit 'foo' is not known; there are r?",
        ),
        (arrays(), {"units": {"angel": "deg"}}, "no column is named 'angel'"),
        (arrays(), {"outputs": {"angel": "angle"}}, "the channel 'angel'; there are angle, rate"),
        ({"time": TIMES, "x": ANGLES}, {}, "no column has the name of a channel .angle, rate.; th"),
        ({"time": [0.0], "angle": [1.0]}, {}, "1 rows; a record has two samples or more"),
        (
            {"time": TIMES, "a [m]": TIMES, "a [s]": TIMES},
            {"outputs": {"angle": "a"}},
            "2 columns ar",
        ),
        (arrays(angle=np.zeros((4, 2))), {}, "have different shapes"),
        (arrays(angle=1j * TIMES), {}, "column 'angle': the numbers are complex; give their real"),
        (arrays(), {"kind": "cubic"}, "No interpolation is named 'cubic'"),
    ],
)
def test_what_is_no_record_is_refused(source, options, message):
    with pytest.raises(ValueError, match=message):
        read_record(source, CHANNELS, **options)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("1.7", "x"), "swing, column 'rate', line 6: 'x' is no number"),
        (TEXT.replace("1.7", "1_7"), "swing, column 'rate', line 6: '1_7' is no number"),
        (TEXT.replace("25, NaN", "25"), "swing, line 6: 3 fields, where the headings are 4"),
        (TEXT.replace("\n25,", "\n5,"), "'time', line 6: the time 0.005 s is not behind 0.01"),
        (TEXT.replace("rate", "angle [deg]"), "'angle .deg.' head more than one column"),
        ("1, 2\n3, 4\n", "the first line is one of numbers; write the names of the columns"),
        ("# nothing\n", "the file is empty"),
    ],
)
def test_errors_of_a_file_name_column_and_line(tmp_path, text, message):
    with pytest.raises(ValueError, match=message):
        read_record(saved(tmp_path, text), CHANNELS)


def test_sources_and_settings_of_another_kind_are_refused():
    with pytest.raises(TypeError, match="the source is a ndarray, must be the path of a file"):
        read_record(np.zeros((4, 2)), CHANNELS)
    record = read_record({"time": TIMES, "angle": ANGLES}, CHANNELS)
    with pytest.raises(ValueError, match="No receiver of inputs is named 'system'"):
        record.experiment(START, input_to="system")
    with pytest.raises(ValueError, match="every is 0, must be a number of samples"):
        record.experiment(START, every=0)
    with pytest.raises(ValueError, match="sigma of 'rate' is given, but there are angle"):
        record.experiment(START, sigma={"rate": 1.0})
    with pytest.raises(ValueError, match="has 1 samples between"):
        record.between(0.005, 0.02)
    with pytest.raises(ValueError, match="the length of windows is 0, must be positive"):
        record.windows(0)
    with pytest.raises(ValueError, match=r"fewer than two samples in each part of 0\.001 s"):
        record.windows(0.001)


@pytest.mark.parametrize(
    ("stated", "wanted", "value"),
    [
        ("deg", "rad", np.pi / 180), ("rpm", "rad/s", 2 * np.pi / 60), ("N*mm", "N m", 1e-3),
        ("Nm", "N m", 1.0), ("km/h", "m/s", 1 / 3.6), ("deg/s²", "rad/s^2", np.pi / 180),
        ("", "rad", 1.0), ("foo", "foo", 1.0), ("mm", "cm", 0.1), ("kN", "", 1e3), ("N·m", "", 1.0),
    ],
)  # fmt: skip
def test_units_are_converted_by_their_factors(stated, wanted, value):
    np.testing.assert_allclose(factor(stated, wanted), value, rtol=1e-15)


def test_headings_are_split_into_name_and_unit():
    found = [split(x) for x in ("a [deg]", "a(deg) ", "a", "f(x) [N m]", "[m]")]
    assert found == [("a", "deg"), ("a", "deg"), ("a", ""), ("f(x)", "N m"), ("[m]", "")]
