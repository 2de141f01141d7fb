"""MuJoCo's C engine and MJX on the suite: joint coordinates, loops closed by soft constraints.

The constraints get the shortest time constant that MuJoCo's own rule allows, two steps, and almost
no softness; what they leave out of the equations does not vanish with the step. It has no
derivatives by parameters of models; those of the C engine are central differences of runs, those
of MJX are taken by JAX through its steps, by values of the start alone.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from competitors.base import package

from .answers import Answer, Program, RefusedError
from .catalogue import Motion
from .mechanism import Mechanism, named
from .reduced import REDUCED

STEPS = (400, 1600, 6400)  # of a motion
DIFFERENCE = 1e-5  # of parameters, relative: its square is below the errors of the steps

_PAGE = """
<mujoco>
  <compiler angle="radian" balanceinertia="true" boundmass="0" boundinertia="0"/>
  <option timestep="{h!r}" integrator="RK4" gravity="0 {gravity!r} 0" solver="Newton"
          iterations="50" tolerance="1e-14" jacobian="dense"/>
  <default><equality solref="{time!r} 1" solimp="0.9999 0.9999 0.001"/></default>
  <worldbody>{bodies}</worldbody>
  {rest}
</mujoco>
"""


def _body(place: Sequence[float], mass: float, inertia: float, centre: float, inner: str = "",
          joint: str = "hinge") -> str:  # fmt: skip
    """A body whose mass centre lies on its x axis."""
    axis = "0 0 1" if joint == "hinge" else "1 0 0"
    own = " ".join([repr(max(inertia, 1e-14))] * 3)
    return (
        f'<body pos="{place[0]!r} {place[1]!r} 0"><joint type="{joint}" axis="{axis}"/>'
        f'<inertial pos="{centre!r} 0 0" mass="{mass!r}" diaginertia="{own}"/>{inner}</body>'
    )


def _rod(place: Sequence[float], mass: float, length: float, inner: str = "") -> str:
    return _body(place, mass, mass * length**2 / 12, length / 2, inner)


def _site(name: str, x: float) -> str:
    return f'<site name="{name}" pos="{x!r} 0 0"/>'


def _tied(*pairs: tuple[str, str]) -> str:
    ties = "".join(f'<connect site1="{a}" site2="{b}"/>' for a, b in pairs)
    return f"<equality>{ties}</equality>"


def _pendulum(p: Any) -> tuple[str, str]:
    return _body((0.0, 0.0), p.mass, 0.0, p.length), ""


def _double(p: Any) -> tuple[str, str]:
    second = _body((p.length1, 0.0), p.mass2, 0.0, p.length2)
    return _body((0.0, 0.0), p.mass1, 0.0, p.length1, second), ""


def _slider_crank(p: Any) -> tuple[str, str]:
    second = _rod((p.crank, 0.0), p.rod_mass, p.rod, _site("end", p.rod))
    slider = _body((0.0, 0.0), p.slider_mass, 1.0, 0.0, _site("slider", 0.0), "slide")
    return _rod((0.0, 0.0), p.crank_mass, p.crank, second) + slider, _tied(("end", "slider"))


def _four_bar(p: Any) -> tuple[str, str]:
    coupler = _rod((p.crank, 0.0), p.density * p.coupler, p.coupler, _site("end", p.coupler))
    bodies = _rod((0.0, 0.0), p.density * p.crank, p.crank, coupler)
    bodies += _rod((p.base, 0.0), p.density * p.rocker, p.rocker, _site("rocker", p.rocker))
    bodies = bodies.replace("<joint ", '<joint name="crank" ', 1)
    motor = (
        '<actuator><general joint="crank" gainprm="0" biastype="affine" '
        f'biasprm="{p.torque!r} 0 0"/></actuator>'
    )
    return bodies, _tied(("end", "rocker")) + motor


def _parallelogram(p: Any) -> tuple[str, str]:
    sites = _site("one", p.pitch) + _site("two", 2 * p.pitch)
    width = 2 * p.pitch
    coupler = _rod((p.crank, 0.0), p.coupler_mass, width, sites)
    bodies = _rod((0.0, 0.0), p.crank_mass, p.crank, coupler)
    for i, name in ((1, "first"), (2, "second")):
        place = (i * p.pitch, 0.0)
        bodies += _rod(place, p.crank_mass, p.crank, _site(name, p.crank))
    return bodies, _tied(("one", "first"), ("two", "second"))


def _folded(p: Any) -> tuple[str, str]:
    mass, length, bodies = p.density * p.length, p.length, ""
    for i in range(3):
        inner = _site(f"crank{i}", length)
        if i < 2:
            inner += _rod((length, 0.0), mass, length, _site(f"coupler{i}", length))
        bodies += _rod((i * length, 0.0), mass, length, inner)
    return bodies, _tied(("coupler0", "crank1"), ("coupler1", "crank2"))


_BUILD: dict[str, Callable[[Any], tuple[str, str]]] = {
    "pendulum": _pendulum, "double-pendulum": _double, "slider-crank": _slider_crank,
    "four-bar": _four_bar, "parallelogram": _parallelogram, "folded-four-bars": _folded,
}  # fmt: skip
# Of an angle of a pendulum, which is zero where it hangs, from that of MuJoCo's joint.
_QUARTER = math.pi / 2


def _joints(name: str, y: Any, p: Any) -> tuple[list[Any], list[Any]]:
    """Joint coordinates and their rates from a start: q and v as the mechanism has them."""
    half = len(y) // 2
    q, v = y[:half], y[half:]
    if name == "pendulum":
        return [p.angle - _QUARTER], [p.rate]
    if name == "double-pendulum":
        return [p.angle1 - _QUARTER, p.angle2 - p.angle1], [p.rate1, p.rate2 - p.rate1]
    if name in ("slider-crank", "four-bar"):
        return [q[0], q[1] - q[0], q[2]], [v[0], v[1] - v[0], v[2]]
    a, w = p.angle, p.rate
    if name == "parallelogram":
        return [a, -a, a, a], [w, -w, w, w]
    return [a, -a, a, -a, a], [w, -w, w, -w, w]


def _row(name: str, m: Any, qpos: Any, qvel: Any, p: Any) -> list[Any]:
    """The mechanism's q and v from joint coordinates; of parallel bars by the first crank."""
    if name in ("slider-crank", "four-bar"):
        return [qpos[0], qpos[0] + qpos[1], qpos[2], qvel[0], qvel[0] + qvel[1], qvel[2]]
    y = [qpos[0], qvel[0]]
    if name == "pendulum":
        y = [qpos[0] + _QUARTER, qvel[0]]
    elif name == "double-pendulum":
        first, rate = qpos[0] + _QUARTER, qvel[0]
        y = [first, first + qpos[1], rate, rate + qvel[1]]
    return list(REDUCED[name].state(m, 0.0, y, p))


def _model(mujoco: Any, mechanism: Mechanism, p: Any, steps: int) -> Any:
    h = mechanism.t1 / steps
    bodies, rest = _BUILD[mechanism.name](p)
    page = _PAGE.format(h=h, time=2 * h, gravity=-p.gravity, bodies=bodies, rest=rest)
    return mujoco.MjModel.from_xml_string(page)


def _start(mechanism: Mechanism, wanted: Motion, by: Any) -> Any:
    """Coordinates and velocities at t = 0 for other values, to first order."""
    n = 2 * len(mechanism.coordinates)
    base = np.array([mechanism.values[x] for x in mechanism.by])
    return wanted.rows[0, :n] + wanted.first[0, :n] @ (by - base)


def _checked(mechanism: Mechanism) -> None:
    if mechanism.name not in _BUILD:
        raise RefusedError("not modelled in MuJoCo here")


def engine(*, differences: bool) -> Callable[[Mechanism, Motion], Program]:
    """Runs of `mj_step`.

    Args:
        differences: with derivatives by central differences of runs.
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        mujoco = package("mujoco")
        _checked(mechanism)
        base = np.array([mechanism.values[x] for x in mechanism.by])

        def rows(steps: int, by: Any) -> np.ndarray:
            values = mechanism.values | dict(zip(mechanism.by, map(float, by), strict=True))
            p = named([*values], [*values.values()])
            model = _model(mujoco, mechanism, p, steps)
            data = mujoco.MjData(model)
            joints = _joints(mechanism.name, _start(mechanism, wanted, by), p)
            data.qpos[:], data.qvel[:] = joints
            found = [_row(mechanism.name, np, data.qpos, data.qvel, p)]
            for _ in wanted.t[1:]:
                mujoco.mj_step(model, data, nstep=steps // (len(wanted.t) - 1))
                found.append(_row(mechanism.name, np, data.qpos, data.qvel, p))
            return np.array(found, float)

        def run(steps: int) -> Answer:
            middle = rows(steps, base)
            if not differences:
                return Answer(middle)
            columns = []
            for i in range(len(base)):
                h = DIFFERENCE * (abs(base[i]) or 1.0) * np.eye(len(base))[i]
                columns.append((rows(steps, base + h) - rows(steps, base - h)) / (2 * h[i]))
            return Answer(middle, np.stack(columns, axis=-1))

        return Program(run, STEPS)

    return prepared


def through_steps(mechanism: Mechanism, wanted: Motion) -> Program:
    """MJX with JAX's forward mode through its steps, by values of the start."""
    import jax
    import jax.numpy as jnp

    mujoco, mjx = package("mujoco"), package("mujoco.mjx", "mujoco-mjx")
    _checked(mechanism)
    # Values that only the start depends on; others change the model.
    free = [x for x in mechanism.by if x.startswith(("angle", "rate"))]
    if not free:
        raise RefusedError("no value of the start is among the parameters")
    places = [mechanism.by.index(x) for x in free]
    base = np.array([mechanism.values[x] for x in mechanism.by])
    p = named([*mechanism.values], [*mechanism.values.values()])

    def prepared(steps: int) -> Callable[[Any], Any]:
        model = mjx.put_model(_model(mujoco, mechanism, p, steps))
        empty = mjx.make_data(model)

        def advance(data, _):
            def one(_, data):
                following = mjx.step(model, data)
                return jax.tree.map(lambda new, old: new.astype(old.dtype), following, data)

            data = jax.lax.fori_loop(0, steps // (len(wanted.t) - 1), one, data)
            return data, (data.qpos, data.qvel)

        def motion(start):
            values = dict(mechanism.values) | dict(zip(free, start, strict=True))
            moved = named([*values], [*values.values()])
            y = _start(mechanism, wanted, jnp.asarray(base).at[jnp.array(places)].set(start))
            qpos, qvel = (jnp.stack(x) for x in _joints(mechanism.name, y, moved))
            _, rest = jax.lax.scan(
                advance, empty.replace(qpos=qpos, qvel=qvel), None, len(wanted.t) - 1
            )
            both = (jnp.concatenate([a[None], b]) for a, b in zip((qpos, qvel), rest, strict=True))
            row = lambda a, b: jnp.stack(_row(mechanism.name, jnp, a, b, moved))  # noqa: E731
            rows = jax.vmap(row)(*both)
            return rows, rows

        return jax.jit(
            jax.jacfwd(motion, has_aux=True),
            compiler_options={"xla_cpu_use_fusion_emitters": False},
        )

    known: dict[int, Callable[[Any], Any]] = {}

    def run(steps: int) -> Answer:
        if steps not in known:
            known[steps] = prepared(steps)
        some, rows = known[steps](jnp.asarray(base[places]))
        first = np.full((*rows.shape, len(base)), np.nan)
        first[..., places] = some
        return Answer(np.asarray(rows), first)

    return Program(run, STEPS[:2])


CODES: dict[str, Any] = {
    "MuJoCo": engine(differences=False),
    "MuJoCo, differences": engine(differences=True),
    "MJX, forward": through_steps,
}
