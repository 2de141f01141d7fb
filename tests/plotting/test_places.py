"""Where runs and pictures can be written, and what is said where they cannot."""

import pytest

from helpers.stored_runs import stored
from jaxdae import Trajectory


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("there/", IsADirectoryError, r"is a folder; name a file in it, such as 'run\.npz'"),
        ("there", IsADirectoryError, "is a folder"),
        ("new/", IsADirectoryError, "is a folder"),
        ("file/run.npz", NotADirectoryError, r"its folder '.*file' leads through a file"),
        ("file/deep/run", NotADirectoryError, r"its folder '.*deep' leads through a file"),
        ("closed/run", PermissionError, r"its folder '.*closed' may not be written: '.*run'"),
        (
            "run.csv",
            ValueError,
            r"writes \.npz files, not .*; other kinds are .* run\.to_csv",
        ),
        ("run.NC", ValueError, r"other kinds are .* run\.to_xarray"),
    ],
)
def test_places_where_no_run_can_be_saved(tmp_path, monkeypatch, name, error, words):
    for folder in ("there", "closed"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file").write_text("")
    # As of a user who is not the administrator.
    monkeypatch.setattr("os.access", lambda path, _: path.name != "closed")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=words):
        stored().save(f"{tmp_path}/{name}")
    assert sorted(tmp_path.rglob("*")) == before
    if error is IsADirectoryError:
        with pytest.raises(error, match=r"such as 'run\.csv'"):
            stored().to_csv(f"{tmp_path}/{name}")


def test_other_places_of_runs(tmp_path, monkeypatch):
    """The home folder; suffixes in capitals; names with dots that mean no format."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for name, written in (("~/a/run", "a/run.npz"), ("~/b.NPZ", "b.NPZ"), ("~/v1.5", "v1.5.npz")):
        assert stored().save(name) == tmp_path / written
        assert (Trajectory.load(name).q == stored().q).all()
    assert stored().to_csv("~/run.csv") == tmp_path / "run.csv"
    with pytest.raises(FileNotFoundError, match=r"no file .*a\.npz\. .*a is a folder: name a file"):
        Trajectory.load(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match=r"\. is a folder: name a file"):
        Trajectory.load(".")
