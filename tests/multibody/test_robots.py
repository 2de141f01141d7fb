"""Files of robots with loops: degrees of freedom by hand, motions against MuJoCo and the energy."""

import functools
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import assemble, read_mujoco, read_surfaces
from jaxdae.plotting import plot_mechanism
from jaxdae.solvers import RK4

# Compiled, without stubs.
MUJOCO: Any = mujoco
FOLDER = Path(__file__).parents[1] / "data" / "robots"
CUTS = {
    "gripper.urdf": ("left pin", "right pin"),
    "ankle.urdf": ("left ball", "right ball"),
}


def in_a_plane(links, joints, beside=0):
    """Of Grübler: the ground is a link, each joint leaves one freedom."""
    return 3 * (links - 1) - 2 * joints + beside


def in_space(freedoms, loops):
    """Of Kutzbach: freedoms of all joints, and six equations for each loop."""
    return freedoms - 6 * loops


FREEDOMS = {
    "four_bar_leg.xml": in_a_plane(5, 5),
    "five_bar.xml": in_a_plane(5, 5),
    "v_engine.xml": in_a_plane(6, 7),
    "scissor_lift.xml": in_a_plane(8, 10),
    # The trunk is the ground of the leg, and flies.
    "pantograph_leg.xml": in_a_plane(5, 5, beside=6),
    "excavator.xml": in_a_plane(12, 15),
    # Fingers that mimic each other have one freedom less.
    "gripper.urdf": in_a_plane(7, 8, beside=-1),
    # Five hinges, a universal joint and a ball.
    "cassie_leg.xml": in_space(5 + 2 + 3, 1),
    # Three hinges, universal joints and balls; a platform with three slides.
    "delta.xml": in_space(3 * (1 + 2 + 3) + 3, 3),
    # Six universal joints, slides and balls; the platform is borne by them alone.
    "stewart.xml": in_space(6 * (2 + 1 + 3), 5),
    # A universal joint of the foot; two cranks, universal joints and balls.
    "ankle.urdf": in_space(2 + 2 * (1 + 2 + 3), 2),
}


@functools.cache
def read(name):
    found = read_mujoco(FOLDER / name, cuts=CUTS.get(name, ()))
    assert found.left_out == ()
    return found


def model_of(name):
    """With equality constraints as stiff as MuJoCo has them."""
    model = MUJOCO.MjModel.from_xml_path(str(FOLDER / name))
    model.opt.timestep, model.opt.tolerance = 2e-4, 1e-14
    model.opt.integrator = int(MUJOCO.mjtIntegrator.mjINT_RK4)
    model.eq_solref[:] = 2e-3, 1.0
    model.eq_solimp[:] = 0.9999, 0.9999, 0.001, 0.5, 2.0
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", FREEDOMS)
def test_robots_have_their_freedoms_and_accelerations(name):
    system, state, *_ = read(name)
    inputs = np.random.default_rng(0).normal(size=len(system.motors))
    terms = jax.jit(jaxdae.evaluate)(system, 0.0, state.q, state.v, u=jnp.asarray(inputs))
    # Closed to the digits of the file where it says where a loop closes, else by construction.
    np.testing.assert_allclose(terms.phi, 0.0, atol=1e-8)
    # The least singular value is not below a tenth of a lever; rounded ones are.
    rank = np.linalg.matrix_rank(terms.jac, 1e-3)
    assert state.v.size - rank == FREEDOMS[name]
    rows = np.zeros((terms.jac.shape[0],) * 2)
    matrix = np.block([[terms.mass, terms.jac.T], [terms.jac, rows]])
    a = np.linalg.lstsq(matrix, np.concatenate([terms.force, -terms.gamma]))[0][: state.v.size]
    if name.endswith("xml"):
        data = MUJOCO.MjData(model := model_of(name))
        data.ctrl[:] = inputs
        MUJOCO.mj_forward(model, data)
        # Its constraints take away 0.9999 of the acceleration without them.
        scale = np.abs(data.qacc_smooth).max()
        np.testing.assert_allclose(a, data.qacc, rtol=1e-3, atol=1e-3 * scale)
    else:
        np.testing.assert_allclose(terms.jac @ a, -terms.gamma, atol=1e-8)


@pytest.mark.parametrize("name", FREEDOMS)
def test_robots_have_shapes(name):
    pytest.importorskip("trimesh")
    surfaces = read_surfaces(FOLDER / name, cuts=CUTS.get(name, ()))
    if name in CUTS:  # MuJoCo reads trees alone
        links = ET.parse(FOLDER / name).getroot().findall("link")
        shapes, bodies = sum(len(x.findall("visual")) for x in links), len(links) - 1
    else:
        shapes, bodies = model_of(name).ngeom, model_of(name).nbody
    assert len(surfaces) == shapes >= bodies - 1


@pytest.mark.slow
def test_a_robot_moves_and_is_drawn():
    system, state, *_ = read("five_bar.xml")
    # A rough guess, of which no number is exact.
    guess = np.round(np.asarray(state.q) + 0.02, 2)
    start = assemble(system, guess)
    np.testing.assert_allclose(system.position_constraints(0.0, start.q), 0.0, atol=1e-12)
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), state, t1=0.5, dt=0.005, solver=RK4(), work=True
    )
    assert np.abs(run.q[-1] - run.q[0]).max() > 0.1
    # Errors of a method of order 4 at this step: of the loops, and of the balance of energy.
    assert np.abs(run.violation.phi).max() < 1e-7
    assert run.energy_error < 1e-6
    data = MUJOCO.MjData(model := model_of("five_bar.xml"))
    while data.time < 0.5 - 1e-9:
        MUJOCO.mj_step(model, data)
    # What loops that are not exact change.
    np.testing.assert_allclose(run.q[-1], data.qpos, atol=2e-3)
    figure = plot_mechanism(run, times=2)
    assert figure.axes[0].lines


@pytest.mark.slow
@pytest.mark.parametrize("name", [x for x in FREEDOMS if x != "five_bar.xml"])
def test_robots_fall_with_closed_loops(name):
    system, state, *_ = read(name)
    none = np.zeros(len(system.motors))
    run = jaxdae.simulate(
        system, jaxdae.Multipliers(), state, t1=0.05, dt=0.0025, solver=RK4(), work=True,
        controller=(lambda *_: none) if none.size else None, start_tolerance=1e-6,
    )  # fmt: skip
    assert np.abs(run.q[-1] - run.q[0]).max() > 1e-3
    # Errors of a method of order 4 at this step; springs of the legs swing within ten steps.
    assert np.abs(run.violation.phi).max() < 1e-5
    assert run.energy_error < 1e-3
    assert plot_mechanism(run, times=2).axes[0].lines
