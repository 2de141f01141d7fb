"""Runs as Functional Mock-up Units: what importers get of them is what `simulate` and JAX give."""

import re
import shutil
import subprocess
import threading
import zipfile
from importlib.resources import files as package_files
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fmpy import simulate_fmu
from fmpy.fmi1 import FMICallException

import jaxdae
from helpers.exported import (
    BAUMGARTE,
    COMPILER,
    export_pendulum,
    FIXED,
    HANGING,
    PENDULUM,
    Pendulum,
    with_compiler,
)
from helpers.mockups import Mockup, states_of
from jaxdae.kernels.export import functional_mockup
from jaxdae.models.registry import get_model
from jaxdae.solvers import RK4

pytestmark = with_compiler
QUANTITIES = ("energy", "multipliers")
SETTINGS = {**FIXED, "start_tolerance": 1e-6, "quantities": QUANTITIES, "inputs": 0.3}


@pytest.fixture(scope="module")
def third(tmp_path_factory):
    """The pendulum under a force, as FMI 3.0."""
    folder = tmp_path_factory.mktemp("third")
    return Mockup(export_pendulum(folder, target="fmi3", **SETTINGS).code, folder / "unpacked")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """The same as FMI 2.0."""
    folder = tmp_path_factory.mktemp("second")
    return Mockup(export_pendulum(folder, target="fmi2", **SETTINGS).code, folder / "unpacked")


@pytest.fixture(params=["second", "third"])
def mockup(request):
    """Each version."""
    return request.getfixturevalue(request.param)


def pushed(t, q, v, w):
    return 0.3


def reference(system=PENDULUM, start=HANGING, controller=pushed, **changed):
    settings = {"t1": 0.5, "dt": 0.02, "solver": RK4(), "controller": controller, **changed}
    return jaxdae.simulate(system, BAUMGARTE, start, **settings)


# Descriptions.


def test_descriptions_are_valid_and_have_names_units_and_values(mockup):
    assert mockup.problems == []
    names = list(mockup.variables)
    assert names[:5] == ["time", "q[0]", "q[1]", "v[0]", "v[1]"]
    assert names[5:9] == ["der(q[0])", "der(q[1])", "der(v[0])", "der(v[1])"]
    assert names[9:] == [
        "energy", "multipliers[0]", "system.length", "system.mass", "system.ceiling",
        "formulation.stabilization.K_D", "formulation.stabilization.K_P", "u",
    ]  # fmt: skip
    gain = mockup.variables["formulation.stabilization.K_D"]
    assert (gain.causality, gain.variability, gain.unit) == ("parameter", "tunable", "1/s")
    assert float(gain.start) == 20.0
    assert mockup.variables["energy"].unit == "J"
    assert mockup.variables["u"].causality == "input"
    assert float(mockup.variables["q[1]"].start) == -0.8
    velocity = [x for x in mockup.description.derivatives if x.variable.name == "der(q[0])"]
    assert [x.name for x in velocity[0].dependencies] == ["v[0]"]  # the rate of q is v


class Odd(jaxdae.System):
    """Labels, dictionaries and lists with what names of XML or C cannot have.

    Args:
        masses: of both <bodies> & "parts" [kg].
        springs: stiffness [N/m].
    """

    masses: dict
    springs: list

    def kinetic_energy(self, t, q, v):
        return 0.5 * (self.masses["left one"] * v[0] ** 2 + self.masses["größe"] * v[1] ** 2)

    def potential_energy(self, t, q):
        return 0.5 * jnp.sum(self.springs[0] @ q) ** 2 + 0.5 * self.springs[1][1] * q @ q

    def labels(self):
        return jaxdae.Labels(coordinates=('a "b" <c> & \\d', "θ₁"), units=("m", "furlong"))


@pytest.mark.parametrize("target", ["fmi2", pytest.param("fmi3", marks=pytest.mark.slow)])
def test_odd_names_are_written_so_that_importers_read_them(tmp_path, target):
    system = Odd({"left one": 1.0, "größe": 2.0}, [jnp.ones((1, 2)), jnp.array([1.0, np.inf, 3.0])])
    system = Odd(system.masses, [jnp.ones((1, 2)), jnp.array([np.inf, 2.0, 3.0])])
    files = jaxdae.export(
        system, jaxdae.Multipliers(), jaxdae.State([0.1, 0.2], [0.0, 0.0]), directory=tmp_path,
        name="odd", target=target, t1=0.1, dt=0.01, solver=RK4(),
    )  # fmt: skip
    odd = Mockup(files.code, tmp_path / "unpacked")
    assert odd.problems == []
    parameters = odd.named("system.")
    assert parameters == [
        "system.masses.'gr__e'", "system.masses.'left one'", "system.springs[0,0,0]",
        "system.springs[0,0,1]", "system.springs[1,0]", "system.springs[1,1]",
        "system.springs[1,2]",
    ]  # fmt: skip
    left = odd.variables["system.masses.'left one'"]
    assert (left.description, left.unit) == ('of both <bodies> & "parts"', "kg")
    assert odd.variables["q[1]"].description == "coordinate θ₁"
    assert odd.variables["q[1]"].unit is None  # of a unit that nobody knows nothing is said
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), jaxdae.State([0.1, 0.2], [0.0, 0.0]), t1=0.1, dt=0.01,
        solver=RK4(),
    )  # fmt: skip
    rows = odd.instance("steps").initialize().steps(0.01, 10)
    np.testing.assert_allclose(rows, states_of(run)[1:], rtol=0, atol=1e-13)


class Coupled(jaxdae.System):
    """`q'' = u - K q`, by a matrix that need not be symmetric.

    Args:
        matrix: stiffness [N/m].
    """

    matrix: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def force(self, t, q, v, w, u):
        return u - self.matrix @ q


MATRIX = jnp.array([[4.0, 0.5], [-0.25, 3.0]])


@pytest.fixture(scope="module")
def coupled(tmp_path_factory):
    """With arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    files = jaxdae.export(
        Coupled(MATRIX), jaxdae.Multipliers(), jaxdae.State([0.1, 0.2], [0.0, 0.3]),
        directory=folder, name="coupled", target="fmi3", t1=0.1, dt=0.01, solver=RK4(),
        inputs=jnp.array([0.5, -0.5]), arrays=True,
    )  # fmt: skip
    return Mockup(files.code, folder / "unpacked")


def test_arrays_are_single_variables(coupled):
    assert coupled.problems == []
    shapes = {x.name: x.shape for x in coupled.variables.values()}
    assert shapes == {
        "time": (), "q": (2,), "v": (2,), "der(q)": (2,), "der(v)": (2,), "system.matrix": (2, 2),
        "u": (2,),
    }  # fmt: skip
    assert coupled.states == ["q", "v"]
    matrix = coupled.variables["system.matrix"]
    assert (matrix.unit, matrix.description) == ("N/m", "stiffness")
    assert matrix.start == "4.0 0.5 -0.25 3.0"
    assert coupled.variables["der(v)"].description == "derivative of v"
    known = {x.variable.name: x.dependencies for x in coupled.description.derivatives}
    # Parameters are none of what a derivative depends on while a run goes on.
    assert {k: [x.name for x in x] for k, x in known.items()} == {
        "der(q)": ["v"], "der(v)": ["q", "u"],
    }  # fmt: skip


def test_arrays_are_read_set_and_differentiated_in_one_piece(coupled):
    run = jaxdae.simulate(
        Coupled(MATRIX), jaxdae.Multipliers(), jaxdae.State([0.1, 0.2], [0.0, 0.3]), t1=0.1,
        dt=0.01, solver=RK4(), controller=lambda t, q, v, w: jnp.array([0.5, -0.5]),
    )  # fmt: skip
    found = simulate_fmu(str(coupled.path), output=["q", "v"], output_interval=0.1)
    last = np.concatenate([found[-1]["q"], found[-1]["v"]])
    np.testing.assert_allclose(last, states_of(run)[-1], rtol=0, atol=1e-13)
    one, other = coupled.instance("exchange"), np.array([[1.0, 2.0], [3.0, 5.0]])
    places = [coupled.places[x] for x in ("system.matrix", "u")]
    one.fmu.setFloat64(places, [*other.ravel(), 7.0, 8.0])
    one.initialize()
    q, v, dq = np.array([0.3, -0.4]), np.array([0.1, 0.2]), np.array([0.7, 0.9])
    rates = np.array((*v, *([7.0, 8.0] - other @ q)))
    given, room = (np.ctypeslib.as_ctypes(x) for x in (np.array([*q, *v]), np.zeros(4)))
    one.fmu.setContinuousStates(given, 4)
    one.fmu.getContinuousStateDerivatives(room, 4)
    np.testing.assert_allclose(np.array(room), rates, rtol=1e-15)
    change = np.array([[0.1, 0.2], [0.3, 0.4]])
    rate, by = [coupled.places["der(v)"]], [coupled.places[x] for x in ("system.matrix", "q")]
    along = one.fmu.getDirectionalDerivative(rate, by, [*change.ravel(), *dq], 2)
    np.testing.assert_allclose(along, -change @ q - other @ dq, rtol=1e-14)
    bar = np.array([2.0, -1.0])
    back = one.fmu.getAdjointDerivative(rate, by, list(bar), 6)
    np.testing.assert_allclose(back[:4], -np.outer(bar, q).ravel(), rtol=1e-14)
    np.testing.assert_allclose(back[4:], -other.T @ bar, rtol=1e-14)


def test_wrong_calls_of_arrays_say_what_is_wrong(coupled):
    one = coupled.instance("exchange").initialize()

    def refused(function, *arguments):
        with pytest.raises(FMICallException):
            function(*arguments)
        return one.messages[-1]

    q = coupled.places["q"]
    assert "3 values are given for 1 variables, which have 2 numbers" in refused(
        one.fmu.setFloat64, [q], [1.0, 2.0, 3.0]
    )
    entry = "the value reference 2 is that of q[1], an entry of an array"
    assert entry in refused(one.fmu.getFloat64, [q + 1])
    assert "name each variable once" in refused(one.fmu.getFloat64, [q] * 10, 20)


def test_arrays_are_of_the_third_version(tmp_path):
    with pytest.raises(ValueError, match="arrays=True is of target 'fmi3', and the target is 'fmi"):
        export_pendulum(tmp_path, target="fmi2", **SETTINGS, arrays=True)


class Free(jaxdae.System):
    """A particle without a parameter."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return jnp.cos(q[0]) * jnp.sin(t)


def test_a_model_without_parameters_inputs_and_constraints(tmp_path):
    """`q'' = sin(q) sin(t)`, by the derivatives."""
    files = jaxdae.export(
        Free(), jaxdae.Multipliers(), jaxdae.State([0.5], [0.25]), directory=tmp_path, name="free",
        target="fmi3", t1=1.0, dt=0.1, solver=RK4(),
    )  # fmt: skip
    free = Mockup(files.code, tmp_path / "unpacked")
    assert free.problems == []
    assert list(free.places) == ["time", "q[0]", "v[0]", "der(q[0])", "der(v[0])"]
    one = free.instance("exchange").initialize()
    np.testing.assert_allclose(one.rates(1.5, [0.7, 0.2]), [0.2, np.sin(0.7) * np.sin(1.5)])
    by = one.along(["der(v[0])"], ["time", "q[0]"], [1.0, 2.0])
    exact = np.sin(0.7) * np.cos(1.5) + 2 * np.cos(0.7) * np.sin(1.5)
    np.testing.assert_allclose(by, [exact], rtol=1e-14)
    assert free.variables["der(v[0])"].description == "derivative of v[0]"


# Runs.


def test_co_simulation_takes_the_steps_of_simulate(mockup):
    """25 steps of numbers of about one, a rounding each."""
    one = mockup.instance("steps").initialize()
    run = reference()
    np.testing.assert_allclose(one.steps(0.02, 25), states_of(run)[1:], rtol=0, atol=4e-14)
    np.testing.assert_allclose(one.get("energy", "multipliers[0]"),
                               [run.energy[-1], run.multipliers[-1, 0]], rtol=1e-12)  # fmt: skip
    assert one.get("time") == 0.5


def test_communication_steps_that_steps_do_not_divide_are_divided_equally(third):
    one = third.instance("steps").initialize()
    rows = one.steps(0.05, 10)
    run = reference(dt=0.05 / 3)
    np.testing.assert_allclose(rows, states_of(run)[3::3], rtol=0, atol=4e-14)
    short = third.instance("steps").initialize()
    run = reference(dt=0.003, t1=0.03)
    np.testing.assert_allclose(short.steps(0.003, 10), states_of(run)[1:], rtol=0, atol=4e-14)


def test_model_exchange_gives_the_equations_of_motion(mockup):
    """Steps of the classical method, written out here."""
    one, h = mockup.instance("exchange").initialize(), 0.02
    x = one.get(*mockup.states)
    for i in range(25):
        k1 = one.rates(i * h, x)
        k2 = one.rates(i * h + h / 2, x + h / 2 * k1)
        k3 = one.rates(i * h + h / 2, x + h / 2 * k2)
        k4 = one.rates(i * h + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    np.testing.assert_allclose(x, states_of(reference())[-1], rtol=0, atol=4e-14)


@pytest.mark.slow
def test_an_importer_runs_both_kinds(mockup):
    """fmpy itself, with its solver of variable steps; the reference has small ones."""
    run = reference(dt=0.001)
    for kind in ("ModelExchange", "CoSimulation"):
        rows = simulate_fmu(
            str(mockup.path), fmi_type=kind, stop_time=0.5, output_interval=0.001,
            step_size=0.001, relative_tolerance=1e-12, solver="CVode",
        )  # fmt: skip
        found = np.array([rows[-1][x] for x in mockup.states])
        np.testing.assert_allclose(found, states_of(run)[-1], rtol=0, atol=1e-9)


MODELS = [
    "sleigh",
    *(
        pytest.param(x, marks=pytest.mark.slow)
        for x in ("two-link", "five-bar", "disk", "four-bar", "slider-crank", "robot", "andrews")
    ),
]


@pytest.mark.parametrize("name", MODELS)
def test_models_run_as_simulate_runs_them_and_have_derivatives_of_jax(tmp_path, name):
    """Eight mechanisms, with all states and a few parameters moved."""
    model = get_model(name)
    system, formulation = model.system(), model.formulation()
    start = model.start(system)
    start = start if isinstance(start, jaxdae.State) else jaxdae.State(*start)
    settings = {"t1": 0.01, "dt": 0.001 if name != "andrews" else 1e-5, "solver": RK4()}
    settings["t1"] = 10 * settings["dt"]
    files = jaxdae.export(
        system, formulation, start, directory=tmp_path, name="model", target="fmi3", **settings
    )
    unit = Mockup(files.code, tmp_path / "unpacked")
    assert unit.problems == []
    run = jaxdae.simulate(system, formulation, start, **settings)
    rows = unit.instance("steps").initialize().steps(settings["dt"], 10)
    np.testing.assert_allclose(rows, states_of(run)[1:], rtol=1e-9, atol=1e-9)
    one = unit.instance("exchange").initialize()
    leaves, structure = jax.tree.flatten(system)
    numbers = [i for i, x in enumerate(leaves) if jnp.issubdtype(jnp.result_type(x), jnp.floating)]

    def rate(state, moved):
        changed = list(leaves)
        for i, x in zip(numbers, moved, strict=True):
            changed[i] = x
        system = jax.tree.unflatten(structure, changed)
        n, m = start.q.size, start.v.size
        given = jaxdae.State(state[:n], state[n : n + m], state[n + m :])
        made = formulation.vector_field(system, jnp.zeros(()), given, None)
        return jnp.concatenate(jax.tree.leaves(made))

    state = jnp.concatenate([start.q, start.v, start.w])
    values = [jnp.asarray(leaves[i], float) for i in numbers]
    rng = np.random.default_rng(0)
    moves = [jnp.asarray(rng.normal(size=x.shape)) for x in values]
    move, bar = rng.normal(size=(2, state.size))
    bar = bar * (1 if name != "andrews" else 1e-9)  # rates of this one are of 1e6 to 1e9
    _, along = jax.jvp(rate, (state, values), (jnp.asarray(move), moves))
    _, pull = jax.vjp(rate, state, values)
    by_state, by_values = pull(jnp.asarray(bar))
    parameters = unit.named("system.")
    seed = np.concatenate([move, *(np.ravel(x) for x in moves)])
    knowns = [*unit.states, *parameters]
    size = float(jnp.abs(along).max())
    found = one.along(unit.derivatives, knowns, seed)
    np.testing.assert_allclose(found, along, rtol=1e-8, atol=1e-8 * size)
    pulled = np.concatenate([by_state, *(np.ravel(x) for x in by_values)])
    size = float(np.abs(pulled).max())
    found = one.back(unit.derivatives, knowns, bar)
    np.testing.assert_allclose(found, pulled, rtol=1e-8, atol=1e-8 * size)


# Derivatives.


def test_derivatives_by_everything_that_can_be_set(mockup):
    """Against differences; outputs among them, and states that are outputs themselves."""
    one = mockup.instance("exchange", u=0.7)
    one.initialize()
    unknowns = [*mockup.derivatives, "energy", "multipliers[0]", "q[0]"]
    knowns = [*mockup.states, "u"]
    x = np.array([0.61, -0.79, 0.42, 0.31])

    def values(numbers):
        one.rates(0.0, numbers[:4])
        one.set(u=numbers[4])
        return one.get(*unknowns)

    direction, h = np.array([0.3, -0.5, 0.2, 0.8, -0.4]), 1e-5
    point = np.array([*x, 0.7])
    ahead, behind = values(point + h * direction), values(point - h * direction)
    values(point)
    # Second differences have errors of h^2, and roundings of 1e-14 are divided by h.
    np.testing.assert_allclose(one.along(unknowns, knowns, direction), (ahead - behind) / (2 * h),
                               rtol=1e-7, atol=1e-7)  # fmt: skip
    if one.is_third:
        bar = np.linspace(-1, 1, len(unknowns))
        forward = bar @ one.along(unknowns, knowns, direction)
        np.testing.assert_allclose(direction @ one.back(unknowns, knowns, bar), forward, rtol=1e-12)


@pytest.fixture(scope="module")
def momenta(tmp_path_factory):
    """States that are calculated from the start, and a parameter in them."""
    folder = tmp_path_factory.mktemp("momenta")
    formulation = jaxdae.Hamiltonian(BAUMGARTE.stabilization)
    files = jaxdae.export(
        PENDULUM, formulation, HANGING, directory=folder, name="momenta", target="fmi3", t1=0.5,
        dt=0.02, solver=RK4(), quantities=("energy",),
    )  # fmt: skip
    return Mockup(files.code, folder / "unpacked")


def test_states_of_formulations_are_calculated_from_the_start(momenta):
    """Momenta `m v` of the start that is set, and derivatives of them."""
    assert momenta.problems == []
    assert momenta.named("start.") == ["start.v[0]", "start.v[1]"]
    start = jaxdae.State(HANGING.q, HANGING.v * 0.5)
    one = momenta.instance("steps", **{"start.v[0]": 0.2, "start.v[1]": 0.15, "system.mass": 2.0})
    one.fmu.enterInitializationMode(startTime=0.0)
    np.testing.assert_allclose(one.get("state.p[0]", "state.p[1]"), [0.4, 0.3], rtol=1e-14)
    moved = one.along(["state.p[0]"], ["start.v[0]", "system.mass"], [1.0, 10.0])
    np.testing.assert_allclose(moved, [2.0 + 10 * 0.2], rtol=1e-14)
    pulled = one.back(["state.p[0]", "energy"], ["start.v[0]", "system.mass"], [1.0, 0.5])
    # energy = m v^2 / 2 + m g y
    exact = [2.0 + 0.5 * 2.0 * 0.2, 0.2 + 0.5 * (0.5 * 0.0625 + 9.81 * -0.8)]
    np.testing.assert_allclose(pulled, exact, rtol=1e-12)
    one.fmu.exitInitializationMode()
    for i in range(25):
        one.fmu.doStep(i * 0.02, 0.02)
    run = jaxdae.simulate(
        Pendulum(mass=2.0), jaxdae.Hamiltonian(BAUMGARTE.stabilization), start, t1=0.5, dt=0.02,
        solver=RK4(),
    )  # fmt: skip
    found = one.get("q[0]", "q[1]", "v[0]", "v[1]")
    np.testing.assert_allclose(found, states_of(run)[-1], rtol=0, atol=1e-13)
    with pytest.raises(FMICallException):
        one.set(**{"start.v[0]": 1.0})
    assert "can be set before the end of the initialization" in one.messages[-1]


# Instances.


def test_runs_go_back_to_states_that_were_kept(mockup):
    """In the instance, and in another one through bytes."""
    one = mockup.instance("steps").initialize()
    one.steps(0.02, 5)
    kept = one.fmu.getFMUState() if one.is_third else one.fmu.getFMUstate()
    first = one.steps(0.02, 5, start=0.1)
    other = mockup.instance("steps").initialize()
    if one.is_third:
        data = one.fmu.serializeFMUState(kept)
        one.fmu.setFMUState(kept)
        other.fmu.setFMUState(other.fmu.deserializeFMUState(data))
    else:
        data = one.fmu.serializeFMUstate(kept)
        one.fmu.setFMUstate(kept)
        other.fmu.setFMUstate(other.fmu.deSerializeFMUstate(data))
    np.testing.assert_array_equal(one.steps(0.02, 5, start=0.1), first)
    np.testing.assert_array_equal(other.steps(0.02, 5, start=0.1), first)
    one.fmu.reset()
    one.initialize()
    np.testing.assert_allclose(one.steps(0.02, 25), states_of(reference())[1:], rtol=0, atol=4e-14)


def test_instances_in_several_threads_are_their_own(third):
    found = {}

    def runs(i):
        one = third.instance("steps", u=0.1 * i).initialize()
        found[i] = one.steps(0.02, 25)

    threads = [threading.Thread(target=runs, args=(i,)) for i in range(4)]
    for x in threads:
        x.start()
    for x in threads:
        x.join()
    for i, rows in found.items():
        run = reference(controller=lambda t, q, v, w, u=0.1 * i: u)
        np.testing.assert_allclose(rows, states_of(run)[1:], rtol=0, atol=4e-14)


def test_parameters_changed_between_steps(third):
    """A mass changes what comes after it; a length leaves the constraint, and that is said."""
    one = third.instance("steps").initialize()
    first = one.steps(0.02, 10)
    one.set(**{"system.mass": 2.6, "u": -0.5})
    rows = one.steps(0.02, 10, start=0.2)
    start = jaxdae.State(first[-1][:2], first[-1][2:])
    run = reference(Pendulum(mass=2.6), start, lambda t, q, v, w: -0.5, t0=0.2, t1=0.4,
                    start_tolerance=None)  # fmt: skip
    np.testing.assert_allclose(rows, states_of(run)[1:], rtol=0, atol=4e-14)
    assert one.messages == []
    one.set(**{"system.length": 1.25})
    one.steps(0.02, 1, start=0.4)
    (message,) = one.messages
    # q.q - l^2 changes from nearly nothing to 1 - 1.25^2
    assert "does not satisfy the constraint 'f1' any more" in message
    assert "is 0.562" in message


def refused(one, call, words):
    """That a call fails and says why."""
    with pytest.raises(FMICallException):
        call()
    assert re.search(words, one.messages[-1]), one.messages[-1]


def test_wrong_calls_say_what_is_wrong(third):
    one = third.instance("steps")
    refused(one, lambda: one.fmu.doStep(0.0, 0.1), "fmi3DoStep is not allowed in the mode Instan")
    refused(one, lambda: one.fmu.getFloat64([99]), "no variable with the value reference 99; the")
    refused(one, lambda: one.set(energy=1.0), "energy cannot be set .* it is calculated")
    refused(one, lambda: one.set(**{"system.mass": np.nan}), "system.mass is to be set to what is")
    refused(one, lambda: one.initialize(start=np.inf), "does not go forward between finite times")
    one.initialize(stop=0.1)
    refused(one, lambda: one.fmu.doStep(0.05, 0.02), "asked for from t = 0.05.*ended at t = 0")
    refused(one, lambda: one.fmu.doStep(0.0, -0.02), "step size is -0.02, must be a positive")
    refused(one, lambda: one.fmu.doStep(0.0, 0.2), "goes beyond the stop time 0.1")
    refused(one, lambda: one.set(**{"q[0]": 1.0}), r"q\[0\] can be set before the end of the init")
    refused(one, lambda: one.fmu.getInt32([1]), "no variables of the type Int32")
    refused(one, lambda: one.along(["u"], ["u"], [1.0]), "derivative of u is asked for, which is")
    refused(one, lambda: one.along(["energy"], ["energy"], [1.0]), "by energy is asked for, which")
    refused(one, lambda: one.fmu.enterEventMode(), "not allowed in the mode Step Mode")
    refused(one, lambda: one.fmu.enterConfigurationMode(), "which this FMU does not have")
    one.fmu.terminate()
    refused(one, lambda: one.fmu.doStep(0.0, 0.02), "not allowed in the mode Terminated")
    exchange = third.instance("exchange").initialize()
    refused(exchange, lambda: exchange.set(**{"system.mass": 2.0}), "Event Mode, and not in Contin")
    refused(exchange, lambda: exchange.rates(0.0, [1.0]), "4 continuous states, not 1")
    refused(exchange, lambda: exchange.rates(0.0, [np.nan] * 4), "is no finite number at t = 0")
    used = third.description.guid
    try:
        third.description.guid = "{other}"
        with pytest.raises(Exception, match="instantiate"):
            third.instance("steps")
    finally:
        third.description.guid = used


def test_wrong_calls_of_the_second_version(second):
    one = second.instance("steps")
    failed = "one: status 3, logStatusError"
    refused(one, lambda: one.fmu.doStep(0.0, 0.1), failed)
    refused(one, lambda: one.fmu.getReal([99]), failed)
    refused(one, lambda: one.fmu.getInteger([1]), failed)
    refused(one, lambda: one.set(energy=1.0), failed)
    refused(one, lambda: one.initialize(start=1.0, stop=0.0), failed)
    one.initialize(stop=0.1)
    refused(one, lambda: one.fmu.doStep(0.0, 0.2), failed)
    refused(one, lambda: one.fmu.cancelStep(), failed)
    assert one.fmu.getRealStatus(2) == 0.0  # the time of the last step
    one.fmu.doStep(0.0, 0.1)
    one.set(**{"system.length": 1.25})
    count = len(one.messages)
    one.fmu.reset()
    one.initialize()
    one.set(**{"system.length": 1.25})
    one.fmu.doStep(0.0, 0.1)
    assert one.messages[count:] == ["one: status 1, logStatusWarning"]


def test_starts_off_the_constraints_are_refused(third, tmp_path):
    one = third.instance("steps", **{"q[0]": 0.7})
    # q.q - l^2 = 0.49 + 0.64 - 1
    words = "constraint 'f1' is violated by 0.13 at position level.*consistent_state"
    refused(one, one.initialize, words)
    one = third.instance("steps", **{"v[0]": 0.5})
    refused(one, one.initialize, "violated by 0.12 at velocity level")
    one = third.instance("steps", **{"q[0]": np.inf})
    refused(one, one.initialize, r"the start of q\[0\] is no finite number")


def test_a_step_that_breaks_leaves_the_state(third):
    one = third.instance("steps", **{"formulation.stabilization.K_D": 1e200}).initialize()
    before = one.get(*third.states)
    refused(one, lambda: one.fmu.doStep(0.0, 0.02), "too long there, or the position is singular")
    np.testing.assert_array_equal(one.get(*third.states), before)
    assert one.get("time") == 0.0


# Together with others.

CONTROLLER = package_files("helpers").joinpath("controller_fmu.c")
_CONTROLLER_XML = """<?xml version="1.0" encoding="UTF-8"?>
<fmiModelDescription fmiVersion="3.0" modelName="controller" instantiationToken="{controller}">
  <CoSimulation modelIdentifier="controller" canHandleVariableCommunicationStepSize="true"/>
  <ModelVariables>
    <Float64 name="time" valueReference="0" causality="independent" variability="continuous"/>
    <Float64 name="angle" valueReference="1" causality="input" start="0"/>
    <Float64 name="speed" valueReference="2" causality="input" start="0"/>
    <Float64 name="torque" valueReference="3" causality="output"/>
  </ModelVariables>
  <ModelStructure>
    <Output valueReference="3"/>
    <InitialUnknown valueReference="3"/>
  </ModelStructure>
</fmiModelDescription>
"""


def controller_unit(folder):
    """The controller written by hand in C, compiled and packed."""
    source = folder / "controller.c"
    source.write_text(CONTROLLER.read_text())
    library = folder / "controller.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    path = folder / "controller.fmu"
    place, ending = functional_mockup._platform(3)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("modelDescription.xml", _CONTROLLER_XML)
        file.write(library, f"binaries/{place}/controller{ending}")
    return Mockup(path, folder / "controller")


def test_a_closed_loop_in_co_simulation_with_a_controller_in_c(tmp_path):
    """A four-bar linkage whose crank is held to a speed; `simulate` samples the same law."""
    model = get_model("four-bar")
    system, formulation = model.system(), model.formulation()
    start = jaxdae.State(*model.start(system))
    settings = {"t1": 0.1, "dt": 0.001, "solver": RK4()}
    files = jaxdae.export(
        system, formulation, start, directory=tmp_path, name="four_bar", target="fmi3",
        inputs=[0.0], **settings,
    )  # fmt: skip
    plant = Mockup(files.code, tmp_path / "plant").instance("steps").initialize()
    control = controller_unit(tmp_path).instance("steps").initialize()
    (torque,) = [x for x, y in plant.mockup.variables.items() if y.causality == "input"]
    rows = []
    for i in range(20):
        angle, speed = plant.get("q.crank", "v.crank")
        control.set(angle=angle, speed=speed)
        control.fmu.doStep(i * 0.005, 0.005)
        plant.set(**{torque: control.get("torque")[0]})
        plant.fmu.doStep(i * 0.005, 0.005)
        rows.append(plant.get(*plant.mockup.states))

    def policy(t, q, v, w, memory):
        return jnp.stack([0.3 * (8.0 - v[0]) - 0.5 * jnp.sin(q[0])]), memory

    law = jaxdae.Sampled(policy, 0.005)
    run = jaxdae.simulate(system, formulation, start, controller=law, **settings)
    # The controller's own states come behind those of the system.
    found = states_of(run)[5::5, : start.q.size + start.v.size]
    np.testing.assert_allclose(rows, found, rtol=0, atol=1e-11)


def test_sources_are_c_that_compiles_without_a_warning(third, second, tmp_path):
    """As an importer on another machine compiles them, and with names of its own."""
    for unit, version in ((third, 3), (second, 2)):
        folder = tmp_path / f"v{version}"
        shutil.copytree(f"{unit.folder}/sources", folder)
        prefix = f"-DFMI{version}_FUNCTION_PREFIX=mine_"
        options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter",
                   "-Wno-unused-but-set-variable", "-O0"]  # fmt: skip
        command = [str(COMPILER), *options, prefix, "-c", f"fmi{version}.c", "-o", "model.o"]
        subprocess.run(command, cwd=folder, check=True)
    text = (tmp_path / "v3" / "model.c").read_text()
    assert "malloc" not in text
    assert 'SourceFile name="fmi3.c"' in (tmp_path / "v3" / "buildDescription.xml").read_text()


def test_what_both_versions_share_stands_once():
    """No function of more than three lines stands in both interfaces."""
    folder = Path(functional_mockup.__file__).parent / "fmi"
    bodies = []
    for version in "23":
        text = (folder / f"fmi{version}.c").read_text().replace(f"fmi{version}", "fmi")
        found = re.findall(r"^\S[^;{}]*\{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
        bodies.append({x for x in found if x.count("\n") > 3})
    assert bodies[0] & bodies[1] == set()


def test_the_units_of_the_documentation(tmp_path, monkeypatch):
    """The page's own code, of this file's pendulum."""
    guide = Path(__file__).parents[2] / "docs" / "export.md"
    code = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    made, run = [x for x in code if "fmi3" in x or "fmpy" in x]
    monkeypatch.chdir(tmp_path)
    names = {"jaxdae": jaxdae, "RK4": RK4, "system": PENDULUM, "formulation": BAUMGARTE}
    names["state"] = HANGING
    for block in (made, run):
        exec(block, names)
    steady = reference(Pendulum(mass=2.0), controller=lambda t, q, v, w: 0.5, dt=0.01, t1=0.1)
    np.testing.assert_allclose(names["rows"]["energy"], steady.energy, rtol=1e-12)


# Refusals.


def test_what_an_fmu_cannot_hold_is_refused(tmp_path, monkeypatch):
    def given(**changed):
        return lambda: export_pendulum(tmp_path, **{"target": "fmi3", **changed})

    backend, value = jaxdae.BackendError, ValueError
    refusals = [
        (given(dt=None), backend, "adaptive steps: give dt and no stepsize_controller"),
        (given(saveat=diffrax.SaveAt(t1=True)), value, "saves nothing"),
        (given(dt=-0.02), value, "runs forward in time"),
        (given(inputs=0.0, controller=pushed), value, "a controller and inputs"),
        (given(events=[jaxdae.Event(lambda t, q, v, w: q[0])]), backend, "no runs with events"),
        (given(solver=jaxdae.solvers.AdamsBashforth(2)), backend, "depend on those before"),
    ]
    for call, error, words in refusals:
        with pytest.raises(error, match=words):
            call()
    sampled = jaxdae.Sampled(lambda t, q, v, w, c: (jnp.zeros(()), c), 0.1)
    with pytest.raises(backend, match="sampled"):
        given(controller=sampled)()
    single = jaxdae.State(HANGING.q.astype(np.float32), HANGING.v.astype(np.float32))
    with pytest.raises(backend, match="FMUs calculate in double precision, and the start has"):
        jaxdae.export(PENDULUM, BAUMGARTE, single, directory=tmp_path, name="x", target="fmi3",
                      **FIXED)  # fmt: skip
    monkeypatch.setattr(functional_mockup, "compiler", lambda: None)
    with pytest.raises(ImportError, match="no C compiler"):
        given()()
