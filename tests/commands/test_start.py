"""`jaxdae simulate --start`: the state that a run starts from, by name."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxdae.commands.start import chosen_start, near
from jaxdae.models import get_model
from jaxdae.systems import constraint_residuals

# Of consistent states: the 2/3 power of the round-off, for lengths of 1 m.
CONSISTENT = 1e-10


def start(name, dtype="float64", **given):
    model = get_model(name)
    values = {key.replace("rate_", "d(") + ")/dt" * ("rate_" in key): x for key, x in given.items()}
    return chosen_start(model, model.system(), values, np.dtype(dtype))


def test_a_coordinate_holds_and_the_others_meet_the_constraint():
    """From the horizontal start, where the rod's constraint does not depend on `y`."""
    found = start("pendulum", x=0.5)
    assert float(found.q[0]) == 0.5
    np.testing.assert_allclose(found.q @ found.q, 1.0, atol=CONSISTENT)
    np.testing.assert_allclose(found.q @ found.v, 0.0, atol=CONSISTENT)


def test_velocities_and_actuator_states_have_names_too():
    found = start("motor-actuator", current=1.5)
    assert float(found.w[0]) == 1.5
    found = start("pendulum", y=-0.8, rate_x=0.8)
    np.testing.assert_allclose(found.v, [0.8, 0.6], atol=CONSISTENT)
    np.testing.assert_allclose(found.q, [0.6, -0.8], atol=CONSISTENT)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("pendulum", {"y": -1.0, "rate_x": 2.0}),
        ("slider-crank", {"slider": 2.0, "rate_crank": 3.0}),  # links of 1 m in one line
    ],
)
def test_the_last_value_that_the_constraint_allows_is_a_start(name, given):
    """There, as at any dead centre, the constraint does not depend on what is free."""
    found, system = start(name, **given), get_model(name).system()
    names = [system.labels().coordinate(i) for i in range(found.q.size)]
    assert found.q[names.index(next(iter(given)))] == next(iter(given.values()))
    left = constraint_residuals(system, 0.0, found.q, found.v)
    np.testing.assert_allclose(left.phi, 0.0, atol=CONSISTENT)
    np.testing.assert_allclose(left.phi_dot, 0.0, atol=CONSISTENT)
    assert np.abs(found.v).max() == np.abs([*given.values()][1])


def test_links_of_a_chain_come_along():
    model = get_model("chain")
    system: Any = model.system()
    found = start("chain", y2=-0.3)
    assert float(found.q[3]) == -0.3
    np.testing.assert_allclose(system.position_constraints(0.0, found.q), 0.0, atol=CONSISTENT)


def test_of_two_places_the_nearer_one_is_taken():
    def circle(x):
        return x[:1] ** 2 + x[1:] ** 2 - 1.0

    for y in (0.2, -0.2):
        found, left, allowed = near(circle, np.array([0.6, y]), [0])
        assert np.abs(left).max() <= allowed
        np.testing.assert_allclose(found, [0.6, np.copysign(0.8, y)], atol=CONSISTENT)


def test_a_constraint_that_is_said_twice_is_no_fold():
    def twice(x):
        rod = x @ x - 1.0
        return np.array([1.0, 2.0]) * rod

    found, left, allowed = near(twice, np.array([0.6, 1.0, 1.0]), [0])
    assert np.abs(left).max() <= allowed
    # Both others by as much: sqrt(0.64 / 2).
    np.testing.assert_allclose(found, [0.6, 0.32**0.5, 0.32**0.5], atol=1e-7)


def test_single_precision():
    jax.config.update("jax_enable_x64", False)
    try:
        found = start("pendulum", "float32", y=-0.8, rate_x=0.8)
    finally:
        jax.config.update("jax_enable_x64", True)
    assert found.q.dtype == np.float32
    np.testing.assert_allclose(found.q, [0.6, -0.8], atol=1e-7)  # its round-off
    np.testing.assert_allclose(found.v, [0.8, 0.6], atol=1e-6)


def test_without_values_it_is_the_start_of_the_model():
    model = get_model("ball-beam")
    system = model.system()
    found = chosen_start(model, system, None, np.dtype("float64"))
    assert float(found.q[0]) != float(system.start()[0][0])  # the ball is put aside
    assert float(start("ball-beam", r=0.25).q[0]) == 0.25
