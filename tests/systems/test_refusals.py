"""What a user may get wrong: each refusal names the thing, the amount and the remedy."""

import math
import warnings
from typing import Any, ClassVar

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import Point
from jaxdae import Multipliers, simulate, State
from jaxdae.systems import check_system

STATE = State([1.0, 0.0], [0.0, 0.0])


def declared(**functions):
    """The point, with functions of its own."""
    return type("Wrong", (Point,), functions)()


def run(system=None, state=STATE, formulation=None, **options: Any):
    system = Point() if system is None else system
    formulation = Multipliers() if formulation is None else formulation
    options = {"t1": 0.1} | options
    return simulate(system, formulation, state, **options)


def energy(value):
    return declared(potential_energy=lambda self, t, q: value(q))


def constraint(value):
    return declared(position_constraints=lambda self, t, q: value(q))


DECLARATIONS = [
    (energy(lambda _: 3), r"potential_energy returned integers.* return floating-point"),
    (energy(lambda q: q[0] > 0), r"returned booleans \(bool\).*jnp\.where\(condition, a, b\)"),
    (energy(lambda q: q[0] * 1j), r"potential_energy returned complex numbers.*jnp\.real"),
    (constraint(lambda q: [q @ q]), r"returned a list; expected a vector.*jnp\.stack"),
    (constraint(lambda _: jnp.ones((1, 1))), r"returned shape \(1, 1\); expected a vector"),
    (energy(lambda q: np.sin(q[0])), r"line \d+ of test_refusals.*np\.sin.*jnp\.sin for np\.sin"),
    (energy(lambda q: math.sin(q[0])), r"cannot be traced by JAX \(line.*jnp\.sin for math\.sin"),
    (energy(lambda q: q[0].item()), r"it makes a Python number of a traced array"),
    (energy(lambda q: q[0] if q[0] > 0 else 0.0), r"line \d+ of.*jnp\.where\(condition, a, b\)"),
    (energy(lambda q: jnp.sum(q[q > 0])), r"selects by a condition.*jnp\.where\(condition, x"),
    (energy(lambda q: [1.0, 2.0][q[0].astype(int)]), r"as an integer of Python.*jnp\.take"),
    (
        energy(lambda q: q[{}["absent"]]),
        r"KeyError: 'absent' \(line \d+ of test_refusals",
    ),
    (
        declared(potential_energy=lambda t, q: q[0]),
        r"declared with the parameters \(t, q\); it must take \(self, t, q\)",
    ),
    (declared(kinetic_energy=lambda self, q, v: v @ v), r"must take \(self, t, q, v\)"),
    (energy(lambda q: q[5]), r"potential_energy reads entry 5 of 2 .*\(line \d+ of test_refusals"),
    (
        energy(lambda q: q[-3]),
        r"reads entry -3 of 2 \(they count from 0\), for which JAX takes the",
    ),
    (energy(lambda q: jax.jit(lambda q, i: q[i])(q, 4)), "reads entry 4 of 2"),
    (energy(lambda q: jnp.sum(q[jnp.array([0, 3])])), "reads entry 3 of 2"),
    (
        energy(lambda q: jax.lax.fori_loop(0, 2, lambda i, x: x + q[i] * q[6], 0.0)),
        "reads entry 6 of 2",
    ),
    (declared(force=lambda self, t, q, v, w, u: v[jnp.array([[1, 2]])][0]), "force reads entry 2"),
    (declared(force=3.0), r"force is 3\.0; it must be a function of \(t, q, v, w, u\)"),
]


@pytest.mark.parametrize(("system", "message"), DECLARATIONS)
def test_a_function_that_cannot_be_is_refused_with_its_line(system, message):
    with pytest.raises(ValueError, match=message):
        check_system(system, STATE)


INSIDE = [
    lambda q: q[-2] + q[1],
    lambda q: jnp.take(q, 5, mode="clip"),
    lambda q: q.at[5].get(mode="fill", fill_value=0.0),
    lambda q: q[jnp.argmax(q)],
    lambda q: jnp.interp(q[0], jnp.array([0.0, 1.0]), jnp.array([2.0, 3.0])),
    lambda q: jax.lax.fori_loop(0, 2, lambda i, x: x + q[i], 0.0),
    lambda q: jnp.roll(q, 3)[0] + jnp.cross(jnp.ones(3), jnp.append(q, 1.0))[2],
    lambda q: q[np.array([True, False])][0] + jax.random.normal(jax.random.key(0)),
]


@pytest.mark.parametrize("value", INSIDE)
def test_an_index_that_is_inside_or_has_a_mode_of_its_own_passes(value):
    check_system(energy(value), STATE)


def fails():
    raise KeyError("absent")


LABELS = [
    (lambda self: fails(), r"Wrong\.labels failed with KeyError: 'absent' \(line \d+ of test_ref"),
    (lambda: None, r"Wrong\.labels is declared with the parameters \(\); it must take \(self\)"),
    (
        lambda self: jaxdae.Labels(coordinates=("x", "y", "z")),
        r"gives 3 coordinates \(x, y, z\), but the system has 2 coordinates",
    ),
    (
        lambda self: jaxdae.Labels(constraints=("rod",)),
        r"gives 1 constraints \(rod\), but the system has 0 constraints; name position constraints",
    ),
]


@pytest.mark.parametrize(("labels", "message"), LABELS)
def test_labels_that_fail_or_name_too_much(labels, message):
    with pytest.raises(ValueError, match=message):
        check_system(declared(labels=labels), STATE)


@pytest.mark.parametrize("labels", [None, ("x", "y"), {"x": 1}])
def test_labels_of_another_kind(labels):
    system = declared(labels=lambda self: labels)
    with pytest.raises(
        TypeError, match=r"Wrong\.labels returned .*a function that returns jaxdae\.Labels"
    ):
        check_system(system, STATE)


def test_labels_that_are_no_function():
    with pytest.raises(
        TypeError, match=r"Wrong\.labels is Labels.*must be a function that returns"
    ):
        check_system(declared(labels=jaxdae.Labels(coordinates=("x", "y"))), STATE)


def test_names_are_tuples_of_texts():
    assert jaxdae.Labels(coordinates=["x", "y"]).coordinates == ("x", "y")  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"labels are tuples of names.* got 'xy'"):
        jaxdae.Labels(coordinates="xy")  # pyright: ignore[reportArgumentType]


def test_states_that_are_none():
    with pytest.raises(TypeError, match=r"State: v is None.* zeros at rest"):
        State([1.0], None)
    with pytest.raises(TypeError, match="State: q is None"):
        jaxdae.equilibrium(Point(), None)
    with pytest.raises(ValueError, match=r"q, v and w must be vectors of real numbers.*'a'"):
        State(["a"], [0.0])
    with pytest.raises(TypeError, match="must be vectors of real numbers"):
        State({"x": 1.0}, [0.0])
    with pytest.raises(ValueError, match=r"no coordinates \(n = 0\); give one at least"):
        run(state=State([], []))
    with pytest.raises(ValueError, match=r"the state is of type float16.* give float32"):
        run(state=State(np.ones(2, np.float16), np.zeros(2, np.float16)))
    assert State([1, 0], [0, 0]).q.dtype == jnp.float64
    with pytest.raises(TypeError, match=r"State: q holds booleans, \[True, False\].* 1\.0 for"):
        State([True, False], [0.0, 0.0])
    with pytest.raises(TypeError, match="State: v holds booleans"):
        State([1.0, 0.0], np.zeros(2, bool))


CALLS = [
    ({"t1": None}, TypeError, "t1 must be a number; got None"),
    ({"t1": math.nan}, ValueError, "t1 is not finite: nan"),
    ({"dt": -0.0}, ValueError, "dt = -0.0 does not lead"),
    ({"max_steps": 2**40}, ValueError, r"max_steps = 1099511627776 is more than the 2147483647"),
    ({"max_steps": True}, ValueError, "max_steps must be a positive integer"),
    ({"start_tolerance": "a"}, TypeError, "start_tolerance must be None or a number; got 'a'"),
    (
        {"stepsize_controller": diffrax.PIDController(rtol=-1e-6, atol=1e-6)},
        ValueError,
        "rtol of PIDController must be a finite number not below zero; got -1e-06",
    ),
    (
        {"stepsize_controller": diffrax.PIDController(rtol=0.0, atol=0.0)},
        ValueError,
        "PIDController has rtol = atol = 0",
    ),
    (
        {"controller": lambda t, q, v: q},
        ValueError,
        r"the controller is declared with the parameters \(t, q, v\); it must take \(t, q, v, w\)",
    ),
    ({"throw": "no"}, TypeError, "throw is 'no'; give True or False"),
    ({"work": 1}, TypeError, "work is 1; give True or False"),
    (
        {"system": Point(mass=jaxdae.tuning.Positive(1.0))},
        TypeError,
        r"Point\.mass is a Positive, not a n",
    ),
    ({"system": Point}, TypeError, "system is the class Point; give an instance"),
    ({"controller": jaxdae.PD}, TypeError, "controller is the class PD; give a callable"),
    ({"controller": lambda *_: None}, ValueError, "the controller returned nothing"),
    ({"controller": lambda *_: "a"}, ValueError, "the controller returned 'a'"),
    (
        {"controller": lambda t, q, v, w: q if q[0] > 0 else v},
        ValueError,
        r"the controller cannot be traced by JAX \(line \d+ of test_refusals",
    ),
    (
        {"controller": jaxdae.PD(lambda t, q: -q, jaxdae.tuning.Positive(1.0), 1.0)},
        ValueError,
        r"K_P is a Positive, not a number; .*jaxdae\.tuning\.resolve",
    ),
]


@pytest.mark.parametrize(("options", "kind", "message"), CALLS)
def test_an_argument_that_cannot_be(options, kind, message):
    with pytest.raises(kind, match=message):
        run(**options)


def test_tolerances_below_zero():
    with pytest.raises(ValueError, match="tolerance must be None or a number not below zero; got"):
        jaxdae.consistent_state(Point(), [1.0, 0.0], [0.0, 0.0], tolerance=-1e-3)
    with pytest.raises(ValueError, match="tolerance must be None or a number not below zero; got"):
        jaxdae.equilibrium(Point(), [1.0, 0.0], tolerance=-1e-3)

    with pytest.raises(
        ValueError, match="rcond of MinimumNormSolve must be a number not below zero"
    ):
        jaxdae.MinimumNormSolve(rcond=-1e-3)


@pytest.mark.slow
def test_a_mass_matrix_that_is_not_symmetric_or_not_finite():
    lopsided = declared(mass_matrix=lambda self, t, q: jnp.array([[1.0, 0.5], [0.0, 1.0]]))
    with pytest.raises(ValueError, match=r"not symmetric: \[0, 1\] = 0\.5, but \[1, 0\] = 0 "):
        run(lopsided)
    with pytest.raises(ValueError, match=r"not symmetric: \[0, 1\] = 0\.5"):
        jaxdae.linearize(lopsided, jaxdae.equilibrium(lopsided, [1.0, 0.0]))
    with pytest.raises(TypeError, match=r"equilibrium is None; give what jaxdae\.equ"):
        jaxdae.linearize(Point(), None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"mass matrix is not finite: \[0, 0\] = nan"):
        run(Point(mass=math.nan))


def test_fields_that_are_not_declared_and_fields_that_do_not_change():
    class Undeclared(Point):
        def __init__(self, width):
            self.width = width

    with pytest.raises(AttributeError, match=r"no field 'width'; declare it in the body of the cl"):
        Undeclared(1.0)
    with pytest.raises(AttributeError, match=r"make another one, dataclasses\.replace\(sys"):
        Point().mass = 2.0  # pyright: ignore[reportAttributeAccessIssue]


class Unannotated(Point):
    """A number that looks like a parameter, one that is none on purpose, and an old default."""

    gravity = 9.81
    turns: ClassVar[int] = 3
    mass = 2.0


def test_a_number_without_an_annotation_is_warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_system(Unannotated(), STATE)
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert any(
        "gravity = 9.81 has no annotation" in x and "gravity: float = 9.81" in x for x in texts
    )
    assert any("mass = 2.0" in x and "inherited default stays" in x for x in texts)
    assert Unannotated().mass == 1.0
    tuned = declared(mass=jaxdae.tuning.Positive(2.0))
    with pytest.warns(UserWarning, match=r"mass is a Positive in the body of the cla.*tune"):
        check_system(tuned, STATE)


class Undefined(Point):
    """A force or a potential that is defined until a time, or up to a place."""

    until: float = 0.05
    place: float = 5.0

    def force(self, t, q, v, w, u):
        return jnp.where(t < self.until, q, jnp.nan)

    def potential_energy(self, t, q):
        return jnp.sqrt(self.place - q[0])


@pytest.mark.slow
def test_a_run_that_meets_nan_names_the_function_and_the_time():
    with pytest.raises(jaxdae.SimulationError, match=r"force is not finite: entry 0 is nan at t ="):
        run(Undefined(), solver=diffrax.Heun(), backend="plain")
    with pytest.raises(
        jaxdae.SimulationError, match=r"t = 0 s .*Undefined\.potential_energy \(its slope\)"
    ):
        run(Undefined(until=1.0, place=0.5), solver=diffrax.Heun(), backend="plain")
    nowhere = constraint(lambda q: jnp.sqrt(q[:1] - 2.0))
    with pytest.raises(ValueError, match="constraint 'f1' is nan at position level at the start"):
        run(nowhere)
    with pytest.raises(jaxdae.ConsistencyError, match="constraint 'f1' is nan at q ="):
        jaxdae.consistent_state(nowhere, [1.0, 0.0], [0.0, 0.0])


@pytest.mark.slow
def test_a_controller_that_meets_nan_is_named_and_not_the_force():
    pushed = declared(force=lambda self, t, q, v, w, u: u)
    lost = lambda t, q, v, w: jnp.where(t < 0.05, q, jnp.nan)  # noqa: E731
    with pytest.raises(jaxdae.SimulationError, match=r"the controller is not finite: entry 0"):
        run(pushed, controller=lost, solver=diffrax.Heun(), backend="plain")


@pytest.mark.slow
def test_inside_a_transformation_the_same_is_refused():
    with pytest.raises(ValueError, match="cannot be traced by JAX"):
        jax.vmap(lambda q: run(energy(lambda q: np.sin(q[0])), State(q, q)).q)(jnp.ones((2, 2)))
