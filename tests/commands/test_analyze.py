"""`jaxdae analyze` as a user calls it, and what it says against independent derivations."""

from types import SimpleNamespace

import equinox as eqx
import numpy as np
import pytest
import scipy.linalg

import jaxdae
from helpers.roots import as_roots, PENDULUM, rested, sorted_roots, system_of, TIGHT
from jaxdae.commands.analyze import solvers
from jaxdae.commands.choice import chosen_formulation as formulation_of_options
from jaxdae.commands.report import warnings
from jaxdae.formulations import LinearLaw
from jaxdae.models import get_model

# Real stability intervals: 2 for Euler and Heun; of 1 + z + z^2/2 + z^3/6 + z^4/24 = 1 for RK4;
# 1, 6/11 and 3/10 for the Adams-Bashforth methods of 2, 3 and 4 steps (Hairer, Norsett, Wanner).
REAL_INTERVALS = {"euler": 2.0, "heun": 2.0, "rk4": 2.785293563405282}
REAL_INTERVALS |= {"ab2": 1.0, "ab3": 6 / 11, "ab4": 0.3}


@pytest.mark.slow
def test_the_hanging_pendulum(analyzed, capsys):
    """Motion ±i sqrt(g/l), constraint roots -K_D/2 ± sqrt(K_D²/4 - K_P), multiplier m g / 2 l."""
    run = analyzed(*PENDULUM, capsys=capsys)
    result = run.result
    swing = np.sqrt(9.81)
    stabilized = -15 + np.array([-1, 1]) * np.sqrt(15**2 - 100)
    np.testing.assert_allclose(
        as_roots(result["spectrum"]["motion"]), [-1j * swing, 1j * swing], rtol=TIGHT
    )
    np.testing.assert_allclose(as_roots(result["stabilization"]["roots"]), stabilized, rtol=TIGHT)
    both = sorted_roots([*stabilized, -1j * swing, 1j * swing])
    np.testing.assert_allclose(as_roots(result["integrated"]["roots"]), both, rtol=TIGHT)
    assert result["equilibrium"]["q"] == pytest.approx({"x": 0.0, "y": -1.0}, abs=1e-12)
    assert result["equilibrium"]["multipliers"]["rod"] == pytest.approx(9.81 / 2, rel=1e-12)
    assert result["spectrum"]["verdict"] == "stable"
    assert result["spectrum"]["constraint_zeros"] == 1
    assert "STABILITY: stable" in run.text
    assert "±3.13209i 2 - 2.006 motion" in run.text
    assert "K_D = 30, K_P = 100" in run.text
    assert "Gamma" not in run.text


@pytest.mark.slow
def test_step_limits_of_the_pendulum(analyzed, capsys):
    limits = analyzed(*PENDULUM, capsys=capsys).result["step_limits"]
    fastest = 15 + np.sqrt(15**2 - 100)
    for name, interval in REAL_INTERVALS.items():
        # Bisected to double precision; ab4 has its root at 0.3 to the round-off of a companion.
        assert limits[name]["stabilization"] == pytest.approx(interval / fastest, rel=1e-6)
    # The swing is undamped: these amplify it however small the step is.
    assert [limits[name]["all_roots"] for name in ("euler", "heun", "ab2")] == [0, 0, 0]
    assert limits["rk4"]["set_by"] == pytest.approx([-fastest, 0.0], rel=TIGHT)
    assert [x for x in solvers(["bosh3"]) if x not in limits] == ["bosh3"]  # asked for
    assert limits["kvaerno5"]["unlimited"] is True
    assert limits["kvaerno5"]["all_roots"] is None
    assert limits["ab2"]["lyapunov_norm"] is None
    for name in ("euler", "heun", "rk4", "dopri5"):
        assert 0 < limits[name]["lyapunov_norm"] < limits[name]["stabilization"]


@pytest.mark.slow
def test_a_step_outside_the_limits_is_pointed_out(analyzed, capsys):
    run = analyzed(*PENDULUM, capsys=capsys)
    h, fastest, swing = 0.08, 15 + np.sqrt(15**2 - 100), np.sqrt(9.81)
    limits = run.result["step_limits"]
    # |1 - h z| beyond 2, and for Heun |R(iy)|² = 1 + y⁴/4 on the imaginary axis.
    assert limits["euler"]["growth"]["stabilization"] == pytest.approx(h * fastest - 1, rel=TIGHT)
    heun = np.sqrt(1 + (h * swing) ** 4 / 4)
    assert limits["heun"]["growth"]["all_roots"] == pytest.approx(
        max(heun, abs(1 - h * fastest + (h * fastest) ** 2 / 2)), rel=TIGHT
    )
    assert (limits["rk4"]["inside"], limits["ab4"]["inside"]) == (True, False)
    message = "with a step of 0.08 s these make the constraint violation grow: heun (limit 0.07639"
    assert f"WARNING: {message}" in run.text
    first, *_ = run.result["warnings"]
    assert first.startswith(message)
    assert "rk4" not in first


@pytest.mark.slow
def test_another_equilibrium_is_found_and_called_unstable(analyzed, capsys):
    run = analyzed("pendulum", "--at", "y=1", capsys=capsys)
    np.testing.assert_allclose(
        as_roots(run.result["spectrum"]["motion"]), [-np.sqrt(9.81), np.sqrt(9.81)], rtol=TIGHT
    )
    assert run.result["spectrum"]["verdict"] == "unstable"
    assert "EQUILIBRIUM: the one near y = 1 " in run.text
    assert "hanging" not in run.text
    assert "its root 3.13209 makes a deviation grow e-fold in 0.3193 s." in run.text
    assert "Growing roots are left out." in run.text
    # The other root of the motion is slower than the stabilization's -10.
    assert run.result["step_limits"]["rk4"]["all_roots"] == pytest.approx(
        REAL_INTERVALS["rk4"] / 10, rel=1e-6
    )


def ball_beam_matrices(s):
    """Krasinskaya, Krasinskii (2013), eq. 37, by hand; states (r, theta, r', theta', i)."""
    b, weight = s.wheel_radius / s.beam_length, s.ball_mass * s.gravity
    rolling = s.ball_inertia * b / s.ball_radius
    turning = s.wheel_inertia + b**2 * (s.ball_mass * s.rest_position**2 + s.ball_inertia)
    mass = np.array([[s.ball_mass + s.ball_inertia / s.ball_radius**2, -rolling]])
    mass = np.concatenate([mass, [[-rolling, turning]]])
    forces = [[0, -weight * b, 0, 0, 0], [-weight * b, 0, 0, -s.wheel_damping, s.torque_constant]]
    A = np.zeros((5, 5))
    A[0, 2] = A[1, 3] = 1
    A[2:4] = np.linalg.solve(mass, forces)
    A[4, 3:] = np.array([-s.emf_constant, -s.resistance]) / s.inductance
    B = np.zeros((5, 1))
    B[4] = s.supply_gain / s.inductance
    return A, B


@pytest.mark.slow
def test_the_ball_and_beam(analyzed, capsys):
    run = analyzed("ball-beam", capsys=capsys)
    result, system = run.result, system_of("ball-beam")
    A, B = ball_beam_matrices(system)
    spectrum = result["spectrum"]
    np.testing.assert_allclose(
        as_roots(spectrum["motion"]), sorted_roots(np.linalg.eigvals(A)), rtol=1e-9
    )
    assert spectrum["constraint_zeros"] == 1
    assert as_roots(spectrum["roots"]).size == 6
    assert spectrum["verdict"] == "unstable"
    assert "the root 0.568716 has a positive real part" in run.text
    current = system.wheel_radius * system.ball_mass * system.gravity * system.rest_position
    current /= system.beam_length * system.torque_constant
    np.testing.assert_allclose(result["equilibrium"]["w"], [current], rtol=TIGHT)
    np.testing.assert_allclose(result["equilibrium"]["u"], [system.resistance * current])
    inputs = result["inputs"]
    assert (inputs["rank"], inputs["size"], inputs["redundant_size"]) == (5, 5, 6)
    states = result["linearization"]["state"][:5]
    order = [states.index(x) for x in ("r", "theta", "d(r)/dt", "d(theta)/dt", "w1")]
    P = scipy.linalg.solve_continuous_are(A, B, np.eye(5), np.eye(1))
    # Two Riccati solvers at a condition number of 1e9.
    np.testing.assert_allclose(np.array(inputs["K"])[:, order], B.T @ P, rtol=1e-6)
    assert max(real for real, _ in inputs["regulated_roots"]) < -0.4
    assert "The regulator above stabilizes it." in run.text
    # The current is stiff: -1.4e4 bounds every explicit step.
    electrical = np.abs(np.linalg.eigvals(A)).max()
    assert result["step_limits"]["euler"]["all_roots"] == pytest.approx(2 / electrical, rel=1e-6)


@pytest.mark.slow
def test_the_slider_crank_swings_about_its_lowest_position(analyzed, capsys):
    """Crank down: slider and rod move with r theta', so A = r² (m1/3 + m2 + m3)."""
    run = analyzed("slider-crank", capsys=capsys)
    frequency = np.sqrt(9.81 / (1 / 3 + 2))
    np.testing.assert_allclose(
        as_roots(run.result["spectrum"]["motion"]), np.array([-1j, 1j]) * frequency, rtol=TIGHT
    )
    assert "links of equal length" in run.text
    assert "linearizing the constraint first loses stiffness" in run.text


@pytest.mark.slow
def test_the_penalty_form_rests_off_its_constraints(analyzed, capsys):
    """By lam / (alpha K_P), and its roots tend to those of the constraints and of the motion."""
    result = analyzed("slider-crank", capsys=capsys).result
    lam = np.array(list(result["equilibrium"]["multipliers"].values()))
    alpha, K_P = (float(result["stabilization"]["gains"][name]) for name in ("alpha", "K_P"))
    # To first order in 1 / alpha.
    assert result["integrated"]["violation"] == pytest.approx(
        np.abs(lam).max() / (alpha * K_P), rel=1e-3
    )
    expected = sorted(
        [abs(complex(*z)) for z in result["spectrum"]["motion"]]
        + [abs(complex(*z)) for z in result["stabilization"]["roots"]]
    )
    # Double roots of critical damping move with the square root of the perturbation, 1e-4.
    np.testing.assert_allclose(
        sorted(abs(complex(*z)) for z in result["integrated"]["roots"]), expected, rtol=3e-2
    )


@pytest.mark.slow
def test_constraints_that_nothing_stabilizes_are_pointed_out():
    found, _ = rested(system_of("pendulum"), jaxdae.Multipliers(), q=(0.0, -1.0))
    assert found.spectrum.verdict == "stable"
    assert any("nothing stabilizes the 1 constraint" in x for x in warnings(found))


def test_velocities_that_cannot_leave_their_constraints_need_no_gains():
    """Velocity elimination: the motion, and positions that decay as is asked for."""
    form = jaxdae.VelocityElimination("x", decay=5.0)
    found, _ = rested(system_of("pendulum"), form, q=(0.0, -1.0))
    assert warnings(found) == []
    moving = found.field.roots[np.abs(found.field.roots) > 1e-6]
    swing = np.sqrt(9.81)
    np.testing.assert_allclose(
        sorted_roots(moving), sorted_roots([-5.0, 1j * swing, -1j * swing]), rtol=TIGHT
    )


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ({"formulation": "velocity-elimination", "decay": 3.0}, "decay", 3.0),
        ({"formulation": "realizing-forces", "k": 7.0}, "law", LinearLaw(7.0)),
        ({"solve": "singularity-robust"}, "solve", jaxdae.SingularityRobust()),
        ({"unstabilized": True}, "stabilization", None),
    ],
)
def test_parts_of_a_formulation_are_chosen_by_name(asked, field, value):
    options = SimpleNamespace(**{"formulation": None} | asked)
    chosen = formulation_of_options(get_model("pendulum"), options, 1, 0)
    assert eqx.tree_equal(getattr(chosen, field), value)


@pytest.mark.slow
def test_the_parked_robot_is_not_linearly_controllable(analyzed, capsys):
    run = analyzed("robot", capsys=capsys)
    s, inputs = system_of("robot"), run.result["inputs"]
    travel = -2 * s.friction / (s.mass * s.wheel_radius**2 + 2 * s.wheel_inertia)
    half = s.half_track / s.wheel_radius
    inertia = s.inertia + s.mass * s.offset**2 + 2 * s.wheel_inertia * half**2
    turning = -2 * s.friction * half**2 / inertia
    np.testing.assert_allclose(
        as_roots(run.result["spectrum"]["motion"]), sorted([travel, turning, 0, 0]), atol=1e-12
    )
    assert (inputs["rank"], inputs["size"]) == (4, 7)
    np.testing.assert_allclose(inputs["fixed_roots"], np.zeros((3, 2)), atol=1e-12)
    names = "error of x, error of y, error of theta"
    assert "reach 4 of 7 directions of the linear motion" in run.text
    assert f"nothing moves the roots 0, 0, 0, those of {names}" in run.text
    assert run.result["spectrum"]["nonholonomic_zeros"] == 3
    assert "STABILITY: undecided" in run.text
    assert run.result["stabilization"]["gains"] == {"Gamma": 10.0}


@pytest.mark.slow
def test_the_mirror_held_by_its_motor(analyzed, capsys):
    """One zero root: the motor holds any angle. The others solve a cubic."""
    result = analyzed("mirror", capsys=capsys).result
    s, phi = system_of("mirror"), result["equilibrium"]["q"]["phi"]
    back = s.torque_constant * s.back_emf_constant / (s.gear_ratio * s.inductance)
    # (s² - (g/l) sin phi) (s + R/L) + back / (m l²) = 0
    cubic = np.polymul(
        [1, 0, -s.gravity / s.length * np.sin(phi)], [1, s.resistance / s.inductance]
    )
    cubic[-1] += back / (s.mass * s.length**2)
    expected = sorted_roots([0, *np.roots(cubic)])
    np.testing.assert_allclose(as_roots(result["spectrum"]["motion"]), expected, atol=1e-8)
    torque = s.mass * s.gravity * s.length * np.cos(phi)
    np.testing.assert_allclose(result["equilibrium"]["w"], [torque, 0], atol=1e-9)
    assert result["inputs"]["rank"] == 4
