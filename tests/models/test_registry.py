"""The registry, and what every ready system must satisfy."""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae.models
from jaxdae.cli import main
from jaxdae.models import CartesianPendulum, get_model, Model, MODELS, rest_of, UnknownModelError
from jaxdae.models.registry import catalogue, Entry
from jaxdae.models.studies import studies
from jaxdae.systems import evaluate, State

NAMES = tuple(MODELS)


@eqx.filter_jit
def _rates(system, formulation, state):
    """Rates of the coordinates and of the velocities under a formulation."""
    field = formulation.vector_field(system, 0.0, formulation.init(system, 0.0, state), None)
    rate = formulation.recover(system, 0.0, field)
    return rate.q, rate.v


def test_names_are_the_documented_ones():
    holonomic = {"pendulum", "chain", "two-link", "two-link-reachable", "slider-crank", "andrews"}
    nonholonomic = {"sleigh", "disk", "knife-edge", "robot"}
    assert set(NAMES) == holonomic | nonholonomic | {
        "kepler",
        "mirror",
        "arm",
        "surface-arm",
        "constant-speed",
        "appell-hamel",
        "circuit",
        "five-bar",
        "four-bar",
        "motor",
        "motor-actuator",
        "ball-beam",
        "ball-beam-simplified",
    }
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in NAMES)
    assert all(MODELS[name].name == name for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_default_start_is_consistent_and_regular(name, dynamics):
    entry = get_model(name)
    system = entry.system()
    q, v = entry.start()
    d = dynamics(system, 0.0, q, v, system.actuators())
    # residuals are sums of a few terms of order one (velocities: of order |J v|, below 10)
    assert np.max(np.abs(d.phi), initial=0.0) < 4 * np.finfo(float).eps
    assert np.max(np.abs(d.phi_dot), initial=0.0) < 40 * np.finfo(float).eps
    singular_values = np.linalg.svd(np.asarray(d.jac), compute_uv=False)
    # chain: least value of the difference operator of 4 links, 2 l 2 sin(pi/18) = 0.17;
    # andrews: lengths of centimetres, cubed in the 6 x 6 determinant; both well away from zero
    assert singular_values.min(initial=np.inf) > 0.1 * singular_values.max(initial=0.0)


@pytest.mark.parametrize("name", NAMES)
def test_labels_name_every_coordinate_and_constraint(name, dynamics):
    entry = get_model(name)
    system = entry.system()
    q, v = entry.start()
    labels = system.labels()
    m = dynamics(system, 0.0, q, v, system.actuators()).phi_dot.size
    assert len(labels.coordinates) == len(labels.units) == q.size
    assert len(labels.constraints) == len(labels.constraint_units) == m
    assert len(set(labels.coordinates + labels.constraints)) == q.size + m


@pytest.mark.parametrize("name", NAMES)
def test_default_formulation_accepts_the_start(name):
    entry = get_model(name)
    system, formulation = entry.system(), entry.formulation()
    state = State(*entry.start(), system.actuators())
    formulation.check(system, state)
    v, a = _rates(system, formulation, state)
    np.testing.assert_array_equal(v, state.v)
    assert np.all(np.isfinite(a))


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_stays_single_precision(name):
    entry = get_model(name)
    q, v = (x.astype(jnp.float32) for x in entry.start())
    system = entry.system()
    d = jax.eval_shape(evaluate, system, 0.0, q, v, system.actuators().astype(jnp.float32))
    assert {x.dtype for x in (d.mass, d.force, d.jac, d.gamma, d.phi, d.phi_dot)} == {q.dtype}


@pytest.mark.parametrize("name", NAMES)
def test_every_model_names_its_source_and_references(name):
    entry = get_model(name)
    assert entry.summary
    assert entry.source
    assert entry.t1 > 0
    references = entry.system().references()
    assert references
    assert all(reference.quantity and reference.source for reference in references)


def test_start_belongs_to_the_system_that_is_given():
    q, _ = get_model("pendulum").start(CartesianPendulum(length=2.5))
    assert float(jnp.linalg.norm(q)) == pytest.approx(2.5, rel=1e-15)


def test_entry_is_immutable():
    entry = get_model("pendulum")
    assert isinstance(entry, Model)
    with pytest.raises(AttributeError, match="cannot assign to field 't1'"):
        entry.t1 = 1.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(
    ("given", "closest"),
    [("two_link", "two-link"), ("Pendulum", "pendulum"), ("andrew", "andrews")],
)
def test_unknown_name_suggests_the_closest(given, closest):
    message = f"No model is named '{given}'. Did you mean '{closest}'\\? Available: pendulum, chain"
    with pytest.raises(UnknownModelError, match=message):
        get_model(given)


@pytest.mark.slow
def test_unknown_name_without_a_close_one_lists_all():
    with pytest.raises(
        UnknownModelError, match=r"'xyz'\. Available: .*slider-crank, four-bar, andrews, .*\.$"
    ):
        get_model("xyz")


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
    assert "new                   a pendulum of another name" in capsys.readouterr().out
    assert list(MODELS)[-1] == "new"
    assert isinstance(get_model("new").system(), CartesianPendulum)
    (study,) = studies("new")
    assert study.dt == 0.01
    assert study.goal.integrand == "|phi|^2 + (0.02 s)^2 |phi_dot|^2"
    np.testing.assert_array_equal(rest_of("new").guess(study.system), [0.0, -1.0])
