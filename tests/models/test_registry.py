"""The registry, and what every ready system must satisfy."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae.models
from jaxdae.cli import main
from jaxdae.models import CartesianPendulum, get_model, MODELS, rest_of, UnknownModelError
from jaxdae.models.registry import catalogue, Entry
from jaxdae.models.studies import studies

NAMES = tuple(MODELS)


def test_names_are_words_for_the_command_line():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in NAMES)
    assert all(MODELS[name].name == name for name in NAMES)


def test_start_belongs_to_the_system_that_is_given():
    q, _ = get_model("pendulum").start(CartesianPendulum(length=2.5))
    assert float(jnp.linalg.norm(q)) == pytest.approx(2.5, rel=1e-15)


@pytest.mark.parametrize(
    ("given", "closest"),
    [("two_link", "two-link"), ("Pendulum", "pendulum"), ("andrew", "andrews")],
)
def test_unknown_name_suggests_the_closest(given, closest):
    message = f"No model is named '{given}'. Did you mean '{closest}'\\? Available: pendulum, chain"
    with pytest.raises(UnknownModelError, match=message):
        get_model(given)


def test_what_is_read_of_a_file_is_what_it_declares():
    """The text of the record is read without running the file."""
    for name, entry in catalogue().items():
        model = MODELS[name]
        assert all(getattr(model, x) == getattr(entry, x) for x in Entry._fields if x != "module")
    places = [entry.place for entry in catalogue().values()]
    assert places == sorted(set(places))


NEW_MODEL = '''
"""A model that a user adds."""

from jaxdae.models.base import ConstraintStudy, Model, Rest, stabilized
from jaxdae.models.pendulum import CartesianPendulum

MODELS = (
    Model(
        name="new",
        summary="a pendulum" " of another name",
        source="nowhere",
        place=99,
        system=CartesianPendulum,
        formulation=stabilized,
        t1=1.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=1e-3),
        rest=Rest(lambda system: system.released_from(0.0)[0]),
    ),
)
'''


@pytest.fixture
def added(tmp_path, monkeypatch):
    """A folder of models beside the library's, with one file."""
    (tmp_path / "new_model.py").write_text(NEW_MODEL)
    monkeypatch.setattr(jaxdae.models, "__path__", [*jaxdae.models.__path__, str(tmp_path)])
    catalogue.cache_clear()
    yield
    catalogue.cache_clear()


@pytest.mark.usefixtures("added")
def test_a_file_alone_adds_a_model(capsys):
    """Nothing else names it, and every command has what it needs."""
    assert main(["list"]) == 0
    assert re.search("^new +a pendulum of another name$", capsys.readouterr().out, re.MULTILINE)
    assert list(MODELS)[-1] == "new"
    assert isinstance(get_model("new").system(), CartesianPendulum)
    (study,) = studies("new")
    assert study.dt == 0.01
    assert study.goal.integrand == "|phi|^2 + (0.02 s)^2 |phi_dot|^2"
    np.testing.assert_array_equal(rest_of("new").guess(study.system), [0.0, -1.0])
