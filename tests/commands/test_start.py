"""`jaxdae simulate --start`: the state that a run starts from, by name."""

import re

import numpy as np
import pytest

from jaxdae.cli import main
from jaxdae.commands.start import chosen_start
from jaxdae.models import get_model


def start(name, **given):
    model = get_model(name)
    values = {key.replace("rate_", "d(") + ")/dt" * ("rate_" in key): x for key, x in given.items()}
    return chosen_start(model, model.system(), values, np.dtype("float64"))


def test_a_coordinate_holds_and_the_others_meet_the_constraint():
    """From the horizontal start, where the rod's constraint does not depend on `y`."""
    found = start("pendulum", x=0.5)
    assert float(found.q[0]) == 0.5
    np.testing.assert_allclose(found.q @ found.q, 1.0, atol=1e-10)  # that of consistent states
    np.testing.assert_allclose(found.q @ found.v, 0.0, atol=1e-10)


def test_velocities_and_actuator_states_have_names_too():
    found = start("motor-actuator", current=1.5)
    assert float(found.w[0]) == 1.5
    found = start("pendulum", y=-0.8, rate_x=0.8)
    np.testing.assert_allclose(found.v, [0.8, 0.6], atol=1e-10)
    np.testing.assert_allclose(found.q, [0.6, -0.8], atol=1e-10)


def test_without_values_it_is_the_start_of_the_model():
    model = get_model("ball-beam")
    system = model.system()
    found = chosen_start(model, system, None, np.dtype("float64"))
    assert float(found.q[0]) != float(system.start()[0][0])  # the ball is put aside
    assert float(start("ball-beam", r=0.25).q[0]) == 0.25


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "height=1",
            "nothing is named 'height'; give a coordinate: x, y; a velocity, such as",
        ),
        (
            "x=2",
            "the values x = 2 do not fit the constraints near the model's start: .*'rod'.* by 3",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_words(words, message, capsys, tmp_path):
    arguments = ["simulate", "pendulum", "--start", words, "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()
