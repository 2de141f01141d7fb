"""MuJoCo's C engine and MJX, on the same mechanisms.

MuJoCo works in joint coordinates, and closes loops by soft constraints: springs and dampers with a
little regularization, without the acceleration `gamma` of the constraints. For the two-link arm and
Andrews' mechanism it therefore solves a neighbouring problem, and no step makes its error vanish;
the open chain has no constraints in joint coordinates, and there it is exact. The constraints get
the shortest time constant that its own safety rule allows, two steps.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .base import MissingCodeError, package, Problem, Run

# Point masses need some inertia; this much is not seen beside m l^2.
_TINY = "1e-14 1e-14 1e-14"

# The way XLA fuses operations by default computes shared terms of nested bodies many times: a step
# of six links takes 50 times longer with it, one of ten does not end in minutes.
_COMPILER = {"xla_cpu_use_fusion_emitters": False}

_PAGE = """
<mujoco>
  <compiler angle="radian" balanceinertia="true" boundmass="0" boundinertia="0"/>
  <option timestep="{h}" integrator="RK4" gravity="0 {gravity} 0" solver="Newton"
          iterations="20" tolerance="1e-12" jacobian="dense"/>
  <default><equality solref="{time} 1" solimp="0.9999 0.9999 0.001"/></default>
  <worldbody>{bodies}</worldbody>
  {rest}
</mujoco>
"""


def step(problem: Problem, steps: int) -> Run:
    """One trajectory by so many steps of `mj_step`, on one core."""
    began = time.perf_counter()
    mujoco = package("mujoco")
    model = _model(problem, problem.t1 / steps)
    data, full = mujoco.MjData(model), mujoco.mjtState.mjSTATE_FULLPHYSICS
    start = _full_states(model, problem, problem.y[None])[0]

    def solve() -> np.ndarray:
        mujoco.mj_setState(model, data, start, full)
        mujoco.mj_step(model, data, nstep=steps)
        results = np.concatenate([data.qpos, data.qvel])
        return _to_problem(problem, results[None], model.nq)[0]

    return Run(solve, time.perf_counter() - began)


def rollout(problem: Problem, y: np.ndarray, steps: int, h: float) -> Callable[[], np.ndarray]:
    """Batches by `mujoco.rollout` on all cores; starts and results of shape (batch, 2n)."""
    mujoco = package("mujoco")
    code = package("mujoco.rollout", "mujoco")
    model = _model(problem, h)
    states = _full_states(model, problem, y)
    data = [mujoco.MjData(model) for _ in range(os.cpu_count() or 1)]

    def run() -> np.ndarray:
        results, _ = code.rollout(model, data, states, nstep=steps, persistent_pool=True)
        return _to_problem(problem, results[:, -1, 1 : 1 + model.nq + model.nv], model.nq)

    return run


def mjx_batch(
    problem: Problem, y: np.ndarray, steps: int, h: float, engine: str | None = None
) -> Callable[[], np.ndarray]:
    """Batches by MJX with `jax.vmap`; starts and results of shape (batch, 2n).

    Args:
        problem: what is integrated.
        y: starts.
        steps: how many.
        h: of each [s].
        engine: "warp" for the one of NVIDIA's Warp, in single precision; MJX's own by default.
    """
    jax, mjx = package("jax"), package("mujoco.mjx", "mujoco-mjx")
    if engine == "warp":
        package("warp", "warp-lang")
    chosen = {} if engine is None else {"impl": engine}
    model = _model(problem, h)
    device_model = mjx.put_model(model, **chosen)
    base = mjx.make_data(model, **chosen)
    nq = model.nq

    def advance(_, data):
        # With double precision a step returns some counts as longer integers than it took.
        following = mjx.step(device_model, data)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), following, data)

    def one(state):
        data = base.replace(qpos=state[:nq], qvel=state[nq:])
        data = jax.lax.fori_loop(0, steps, advance, data)
        return jax.numpy.concatenate([data.qpos, data.qvel])

    batch = jax.jit(jax.vmap(one), compiler_options=_COMPILER)
    states = jax.numpy.asarray(_from_problem(problem, y))
    return lambda: _to_problem(problem, np.asarray(batch(states)), nq)


def violation(problem: Problem, y: np.ndarray) -> float:
    """Largest residual of the constraints at the end of a run, from the problem's own equations."""
    from .mechanics import declare

    ca = package("casadi")
    d = declare(problem)
    residual = ca.Function("residual", [d.t, d.q], [d.constraints])
    return float(np.abs(np.array(residual(problem.t1, y[: len(problem.q)]))).max())


def _model(problem: Problem, h: float) -> Any:
    """The mechanism in MuJoCo's own description."""
    build = {"two-link": _two_link, "andrews": _andrews, "chain": _chain}.get(problem.mechanism)
    if build is None:
        raise MissingCodeError(f"the {problem.mechanism} is not modelled in MuJoCo here")
    bodies, rest = build(len(problem.q))
    gravity = 0.0 if problem.mechanism == "andrews" else -9.81
    page = _PAGE.format(h=h, time=2 * h, gravity=gravity, bodies=bodies, rest=rest)
    return package("mujoco").MjModel.from_xml_string(page)


def _body(
    place: str, mass: float, inertia: float | None, centre: str, inner: str = "", joint: str = ""
) -> str:
    """A body with a hinge about z at its origin."""
    own = f"{inertia} {inertia} {inertia}" if inertia else _TINY
    hinge = joint or '<joint type="hinge" axis="0 0 1"/>'
    frame = f'<inertial pos="{centre} 0" mass="{mass}" diaginertia="{own}"/>'
    return f'<body pos="{place} 0">{hinge}{frame}{inner}</body>'


def _site(name: str, place: str) -> str:
    return f'<site name="{name}" pos="{place} 0"/>'


def _two_link(size: int) -> tuple[str, str]:
    """The tip is tied to a body so heavy that it keeps its speed."""
    del size
    second = _body("1 0", 1.0, 1 / 48, "0.25 0", _site("tip", "0.5 0"))
    slide = '<joint type="slide" axis="1 0 0"/>'
    target = _body("0.295953 0.5", 1e9, 1.0, "0 0", _site("target", "0 0"), slide)
    target = target.replace("<body ", '<body gravcomp="1" ')
    bodies = _body("0 0", 2.0, 1 / 6, "0.5 0", second) + target
    return bodies, '<equality><connect site1="tip" site2="target"/></equality>'


def _chain(size: int) -> tuple[str, str]:
    """Point masses at the ends of massless links, relative angles as coordinates."""
    links = size // 2
    length, inner = 1 / links, ""
    for i in reversed(range(links)):
        inner = _body(f"{length if i else 0} 0", 1 / links, None, f"{length} 0", inner)
    return inner, ""


def _andrews(size: int) -> tuple[str, str]:
    """Seven bodies, hinged so that the joint angles are the coordinates of the problem."""
    del size
    a, b = "-0.06934 -0.00227", "-0.03635 0.03273"
    joint = '<joint name="motor" type="hinge" axis="0 0 1"/>'
    k2 = _body("0.007 0", 0.00365, 4.410e-7, "-0.0115 0", _site("P2", "-0.028 0"))
    k1 = _body("0 0", 0.04325, 2.194e-6, "0.00092 0", k2, joint)
    ends = _site("P3", "0 -0.035") + _site("D", "0.02 -0.018")
    k3 = _body(b, 0.02373, 5.255e-6, "0.01043 -0.01874", ends)
    k4 = _body("0.04 0", 0.00706, 5.667e-7, f"0 {0.01421 - 0.02}", _site("P4", "0 -0.02"))
    k5 = _body(a, 0.07050, 1.169e-5, "0.02308 0.00916", k4)
    k6 = _body("0 -0.04", 0.00706, 5.667e-7, f"{0.02 - 0.01421} 0", _site("P6", "0.02 0"))
    k7 = _body(a, 0.05498, 1.912e-5, "-0.00449 -0.01228", k6)
    loops = "".join(f'<connect site1="P2" site2="P{i}"/>' for i in (3, 4, 6))
    rest = f"""
      <equality>{loops}</equality>
      <tendon><spatial name="spring" springlength="0.07785" stiffness="4530">
        <site site="C"/><site site="D"/></spatial></tendon>
      <actuator><general joint="motor" gainprm="0" biastype="affine" biasprm="0.033 0 0"/>
      </actuator>"""
    return k1 + k3 + k5 + k7 + _site("C", "0.014 0.072"), rest


def _full_states(model: Any, problem: Problem, y: np.ndarray) -> np.ndarray:
    """Starts as MuJoCo's full states: time first, then coordinates and velocities."""
    mujoco = package("mujoco")
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    states = np.zeros((len(y), size))
    joints = _from_problem(problem, y)
    states[:, 1 : 1 + joints.shape[1]] = joints
    return states


def _from_problem(problem: Problem, y: np.ndarray) -> np.ndarray:
    """(q, v) of the problem to joint coordinates and velocities, trajectories first."""
    n = len(problem.q)
    q, v = y[:, :n], y[:, n:]
    if problem.mechanism == "two-link":
        place, speed = np.zeros((len(y), 1)), np.full((len(y), 1), -0.6)
        return np.concatenate([q, place, v, speed], axis=1)
    if problem.mechanism == "andrews":
        # The joints come body by body: K1, K2, K3, K5, K4, K7, K6.
        order = [0, 1, 2, 4, 3, 6, 5]
        return np.concatenate([q[:, order], v[:, order]], axis=1)
    points, speeds = (x.reshape(len(y), -1, 2) for x in (q, v))
    steps, rates = (np.diff(x, axis=1, prepend=0.0) for x in (points, speeds))
    angle = np.unwrap(np.arctan2(steps[..., 1], steps[..., 0]), axis=1)
    turn = steps[..., 0] * rates[..., 1] - steps[..., 1] * rates[..., 0]
    spin = turn / np.sum(steps**2, axis=-1)
    relative = [np.diff(x, axis=1, prepend=0.0) for x in (angle, spin)]
    return np.concatenate(relative, axis=1)


def _to_problem(problem: Problem, joints: np.ndarray, nq: int) -> np.ndarray:
    """Joint coordinates and velocities to (q, v) of the problem, trajectories first."""
    q, v = joints[:, :nq], joints[:, nq:]
    if problem.mechanism == "two-link":
        return np.concatenate([q[:, :2], v[:, :2]], axis=1)
    if problem.mechanism == "andrews":
        order = [0, 1, 2, 4, 3, 6, 5]  # its own inverse
        return np.concatenate([q[:, order], v[:, order]], axis=1)
    angle, spin = np.cumsum(q, axis=1), np.cumsum(v, axis=1)
    length = 1.0 / nq
    along = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    across = np.stack([-np.sin(angle), np.cos(angle)], axis=-1) * spin[..., None]
    parts = [np.cumsum(length * x, axis=1).reshape(len(joints), -1) for x in (along, across)]
    return np.concatenate(parts, axis=1)
