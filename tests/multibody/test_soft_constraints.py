"""What solref and solimp mean, and which suit a step: MuJoCo itself is the other code."""

from typing import Any

import mujoco
import numpy as np
import pytest

from jaxdae.multibody.soft_constraints import setting_for_step, Softness
from jaxdae.multibody.soft_runs import equalities, run, SoftStart, start_of

MUJOCO: Any = mujoco
INTEGRATORS = ("Euler", "implicit", "implicitfast", "RK4", "discrete")
STEP, GRAVITY = 0.005, 9.81


def block(solref, solimp="0.9 0.9", integrator="Euler", gravity=0.0):
    """A block on a guide, which an equality constraint holds: one coordinate is its residual."""
    return MUJOCO.MjModel.from_xml_string(
        f"<mujoco><option timestep='{STEP}' integrator='{integrator}' gravity='0 0 {-gravity}'/>"
        "<worldbody><body><joint name='x' type='slide' axis='0 0 1'/><geom size='.1'/></body>"
        f"</worldbody><equality><joint joint1='x' solref='{solref}' solimp='{solimp}'/></equality>"
        "</mujoco>"
    )


def softness(model) -> Softness:
    loops = equalities(mujoco, model, str)
    return run(mujoco, model, loops, start_of(mujoco, model, loops, None), STEP).softness[0]


@pytest.mark.parametrize("solref", ["0.03 0.7", "-4000 -90", "0.001 1"])
@pytest.mark.parametrize("integrator", ["Euler", "discrete"])
def test_a_soft_constraint_is_the_oscillator_of_its_softness(solref, integrator):
    """`r'' = (1 - d) a0 - B r' - K r`; the last time constant is less than two steps."""
    model = block(solref, integrator=integrator, gravity=GRAVITY)
    soft, data = softness(model), MUJOCO.MjData(model)
    data.qpos[:], data.qvel[:] = 1e-3, 0.02
    MUJOCO.mj_forward(model, data)
    r, rate = data.qpos[0], data.qvel[0]
    if integrator == "discrete":  # whose oscillator is that of the end of the step
        r, rate = r + STEP * (rate + STEP * data.qacc[0]), rate + STEP * data.qacc[0]
    expected = -(1 - soft.impedance) * GRAVITY - soft.damping * rate - soft.stiffness * r
    # Round-off of forces; a constraint solver that stops at a residual of 1e-8.
    np.testing.assert_allclose(data.qacc[0], expected, rtol=1e-6)
    assert soft.impedance == 0.9


def test_softness_says_where_a_constraint_rests_under_a_load():
    model = block("0.03 0.7", gravity=GRAVITY)
    soft, data = softness(model), MUJOCO.MjData(model)
    for _ in range(400):  # more than ten of its time constants, so that e^-60 of a motion is left
        MUJOCO.mj_step(model, data)
    np.testing.assert_allclose(data.qpos[0], -soft.compliance * GRAVITY, rtol=1e-6)


def step_matrix(model) -> np.ndarray:
    """By which MuJoCo's step multiplies `(r, r')`, which is linear here."""
    columns = []
    for state in ((1e-3, 0.0), (0.0, 1e-3)):
        data = MUJOCO.MjData(model)
        data.qpos[:], data.qvel[:] = state
        MUJOCO.mj_step(model, data)
        columns.append([data.qpos[0] / 1e-3, data.qvel[0] / 1e-3])
    return np.transpose(columns)


@pytest.mark.parametrize("integrator", INTEGRATORS)
@pytest.mark.parametrize("solref", ["0.02 1", "-2000 -40", "-100 -1"])
def test_the_factor_of_a_step_is_the_spectral_radius_of_that_of_mujoco(integrator, solref):
    model = block(solref, "0.9999 0.9999", integrator)
    largest = np.abs(np.linalg.eigvals(step_matrix(model))).max()
    np.testing.assert_allclose(softness(model).factor(integrator.lower(), STEP), largest, rtol=1e-3)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_the_suggestion_damps_a_violation_as_theory_says(integrator):
    setting = setting_for_step(integrator.lower(), STEP, (0.9, 0.95, 0.001, 0.5, 2.0))
    assert setting is not None
    assert setting.solimp == (0.9999, 0.9999, 0.001, 0.5, 2.0)
    model = block("1 1", integrator=integrator)
    model.eq_solref[0], model.eq_solimp[0] = setting
    twice = np.linalg.matrix_power(step_matrix(model) * [[1, 1 / STEP], [STEP, 1]], 2)
    # Gone after two steps, to the part 1e-4 of the load that the impedance leaves; implicit Euler
    # has the matrix [[21, 1], [-100, 1]] / 121, whose square has entries up to 0.15.
    assert np.abs(twice).max() < (0.2 if integrator == "discrete" else 1e-3)
    if integrator in ("Euler", "implicit", "implicitfast"):
        np.testing.assert_allclose(setting.solref, (2 * STEP, 0.5))
    softer = setting_for_step(integrator.lower(), STEP, (0.9, 0.95, 0.001, 0.5, 2.0), 4)
    assert softer is not None
    model.eq_solref[0], model.eq_solimp[0] = softer
    radius = np.abs(np.linalg.eigvals(step_matrix(model))).max()
    np.testing.assert_allclose(softness(model).factor(integrator.lower(), STEP), radius, rtol=1e-3)
    assert radius < 1


def test_an_unknown_integrator_has_no_suggestion():
    assert setting_for_step("leapfrog", STEP, (0.9, 0.95, 0.001, 0.5, 2.0)) is None
    assert np.isnan(Softness(100.0, 20.0, 0.9).factor("leapfrog", STEP))


def test_a_run_that_mujoco_gives_up_says_when_and_writes_no_file(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    model = block("-1e7 -1")
    loops = equalities(mujoco, model, str)
    start = SoftStart(np.full(1, 1e-3), np.zeros(1), np.zeros(0), 0.0)
    done = run(mujoco, model, loops, start, 1.0)
    # Violations grow to more than 1e10 within some steps, as the spectral radius says.
    assert done.given_up is not None
    assert 0.0 < done.given_up < 0.1
    assert done.softness[0].factor("euler", STEP) > 100
    assert [*tmp_path.iterdir()] == []
    assert capfd.readouterr() == ("", "")
