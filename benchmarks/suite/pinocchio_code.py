"""Pinocchio on the suite: its constrained forward dynamics and their derivatives, by RK4.

Loops are closed by constraints at points, whose gains of correction are zero, as the starts are
exact. Derivatives of accelerations by configuration, velocity and torque, which Pinocchio has,
drive the variational equation; those by geometry and masses it does not have.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from competitors.base import package

from .answers import Answer, Program, RefusedError
from .catalogue import Motion
from .mechanism import Mechanism, named
from .mujoco_code import _joints, _row

STEPS = (400, 1600, 6400)


class _Builder:
    """A model of hinges about z and slides along x.

    Args:
        pin: the package.
        gravity: along -y [m/s^2].
    """

    def __init__(self, pin: Any, gravity: float):
        self.pin, self.model, self.loops = pin, pin.Model(), []
        self.model.gravity.linear = np.array([0.0, -gravity, 0.0])

    def place(self, x: float, y: float = 0.0) -> Any:
        """A shift."""
        return self.pin.SE3(np.eye(3), np.array([x, y, 0.0]))

    def body(
        self, parent: int, x: float, mass: float, length: float, *, slide: bool = False
    ) -> int:
        """A uniform rod along x on a joint; a point mass where it slides."""
        joint = self.pin.JointModelPX() if slide else self.pin.JointModelRZ()
        name = f"joint {self.model.njoints}"
        number = self.model.addJoint(parent, joint, self.place(x), name)
        inertia = np.eye(3) * mass * length**2 / 12
        own = self.pin.Inertia(mass, np.array([length / 2, 0.0, 0.0]), inertia)
        self.model.appendBodyToJoint(number, own, self.pin.SE3.Identity())
        return number

    def close(self, one: int, x: float, other: int, y: float) -> None:
        """A pin between places on two bodies."""
        kind, frame = self.pin.ContactType.CONTACT_3D, self.pin.ReferenceFrame.LOCAL
        self.loops.append(
            self.pin.RigidConstraintModel(
                kind, self.model, one, self.place(x), other, self.place(y), frame
            )
        )


def _slider_crank(b: _Builder, p: Any) -> None:
    crank = b.body(0, 0.0, p.crank_mass, p.crank)
    rod = b.body(crank, p.crank, p.rod_mass, p.rod)
    b.close(rod, p.rod, b.body(0, 0.0, p.slider_mass, 0.0, slide=True), 0.0)


def _four_bar(b: _Builder, p: Any) -> None:
    crank = b.body(0, 0.0, p.density * p.crank, p.crank)
    coupler = b.body(crank, p.crank, p.density * p.coupler, p.coupler)
    b.close(coupler, p.coupler, b.body(0, p.base, p.density * p.rocker, p.rocker), p.rocker)


def _parallelogram(b: _Builder, p: Any) -> None:
    crank = b.body(0, 0.0, p.crank_mass, p.crank)
    coupler = b.body(crank, p.crank, p.coupler_mass, 2 * p.pitch)
    for i in (1, 2):
        other = b.body(0, i * p.pitch, p.crank_mass, p.crank)
        b.close(coupler, i * p.pitch, other, p.crank)


_BUILD: dict[str, Callable[[_Builder, Any], None]] = {
    "slider-crank": _slider_crank, "four-bar": _four_bar, "parallelogram": _parallelogram,
}  # fmt: skip


def program(*, derivatives: bool) -> Callable[[Mechanism, Motion], Program]:
    """Runs of RK4.

    Args:
        derivatives: with the variational equation, by values of the start and a torque.
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        pin, name = package("pinocchio", "pin"), mechanism.name
        if name not in _BUILD:
            raise RefusedError("not modelled in Pinocchio here")
        p = named([*mechanism.values], [*mechanism.values.values()])
        builder = _Builder(pin, p.gravity)
        _BUILD[name](builder, p)
        model, loops = builder.model, pin.StdVec_RigidConstraintModel()
        data, parts = model.createData(), pin.StdVec_RigidConstraintData()
        for loop in builder.loops:
            loops.append(loop)
            parts.append(loop.createData())
        pin.initConstraintDynamics(model, data, loops, parts)
        prox = pin.ProximalSettings(1e-14, 1e-12, 20)
        n = 2 * len(mechanism.coordinates)
        tau = np.zeros(model.nv)
        tau[0] = mechanism.values.get("torque", 0.0)
        by = [i for i, x in enumerate(mechanism.by) if x in ("angle", "rate", "torque")]

        def rates(y: np.ndarray, s: Any) -> tuple[np.ndarray, Any]:
            q, v = np.split(y, 2)
            a = pin.constraintDynamics(model, data, q, v, tau, loops, parts, prox)
            dy = np.concatenate([v, a])
            if s is None:
                return dy, None
            pin.computeConstraintDynamicsDerivatives(model, data, loops, parts, prox)
            sq, sv = np.split(s, 2)
            da = data.ddq_dq @ sq + data.ddq_dv @ sv
            for k, i in enumerate(by):
                if mechanism.by[i] == "torque":
                    da[:, k] += data.ddq_dtau[:, 0]
            return dy, np.concatenate([sv, da])

        def start() -> tuple[np.ndarray, np.ndarray]:
            """Joint coordinates and rates, and their derivatives by the start."""

            def joints(x: Any, values: dict[str, Any]) -> np.ndarray:
                return np.concatenate(_joints(name, x, named([*values], [*values.values()])))

            y, columns = joints(wanted.rows[0, :n], mechanism.values), []
            for i in by:
                moved = dict(mechanism.values) | {
                    mechanism.by[i]: mechanism.values[mechanism.by[i]] + 1e-30j
                }
                x = wanted.rows[0, :n] + 1e-30j * wanted.first[0, :n, i]
                columns.append(np.imag(joints(x, moved)) / 1e-30)
            return y, np.stack(columns, axis=-1)

        def row(y: Any) -> np.ndarray:
            qpos, qvel = np.split(y, 2)
            return np.array(_row(name, np, qpos, qvel, p))

        def run(steps: int) -> Answer:
            y, s = start()
            slopes: Any = s if derivatives else None
            h, rows, first = mechanism.t1 / steps, [row(y)], []
            first.append(np.imag(np.stack([row(y + 1e-30j * x) for x in s.T], axis=-1)) / 1e-30)
            for i in range(1, steps + 1):
                k1, s1 = rates(y, slopes)
                k2, s2 = rates(y + h / 2 * k1, _moved(slopes, h / 2, s1))
                k3, s3 = rates(y + h / 2 * k2, _moved(slopes, h / 2, s2))
                k4, s4 = rates(y + h * k3, _moved(slopes, h, s3))
                y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
                if slopes is not None:
                    slopes = slopes + h / 6 * (s1 + 2 * s2 + 2 * s3 + s4)
                if i % (steps // (len(wanted.t) - 1)) == 0:
                    rows.append(row(y))
                    if slopes is not None:
                        moved = [np.imag(row(y + 1e-30j * x)) / 1e-30 for x in slopes.T]
                        first.append(np.stack(moved, axis=-1))
            if not derivatives:
                return Answer(np.array(rows))
            full = np.full((len(rows), n, len(mechanism.by)), np.nan)
            full[..., by] = first
            return Answer(np.array(rows), full)

        return Program(run, STEPS)

    return prepared


def _moved(s: Any, h: float, rate: Any) -> Any:
    return None if s is None else s + h * rate


CODES: dict[str, Any] = {
    "Pinocchio": program(derivatives=False),
    "Pinocchio, forward": program(derivatives=True),
}
