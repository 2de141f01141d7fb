"""Closed mechanisms drawn by seeds, and their accelerations and reactions by Pinocchio.

Trees of hinges, slides, balls and free bodies, closed by points and welds. Closures are placed
where a random state has them, and velocities are projected onto them, so that the state is
consistent by construction. Accelerations and forces of closures are those of Pinocchio's
`constraintDynamics` without stabilization; reactions in joints those of its `rnea`, which takes no
part in the former. `MECHANISMS` keeps inputs and outputs. Where the package `pin` is installed,
`python tests/oracles/pinocchio_mechanisms.py` makes them anew.

All vectors are in SI units. Quaternions have the scalar part first. Velocities are those of
`jaxdae.multibody`: of a free body that of its origin in axes of space, then the spin in its own.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np

MECHANISMS = Path(__file__).parents[1] / "data" / "pinocchio_mechanisms.json"
# Mechanisms of one seed differ in numbers alone. The first body may be free, and the first closure
# one to the ground.
TOPOLOGIES = (
    {"seed": 1, "bodies": 4, "free": False, "ground": True, "closures": ["point"]},
    {"seed": 2, "bodies": 5, "free": True, "ground": True, "closures": ["weld", "point"]},
    {"seed": 4, "bodies": 8, "free": False, "ground": False, "closures": ["point", "weld"]},
)
GRAVITY = (0.3, -0.2, -9.81)
FREEDOMS = {"hinge": 1, "slide": 1, "ball": 3, "free": 6}
ROWS = {"point": 3, "weld": 6}
# Of the Jacobian's singular values, smallest to largest: closures well apart from singular ones.
WELL_POSED = 0.03
STILL = 0.05  # [rad/s or m/s]


def topology(
    seed: int, bodies: int, free: bool, ground: bool, closures: list[str]
) -> dict[str, Any]:
    """Which body hangs on which, by which joints, and what is closed; freedoms are left."""
    rng = np.random.default_rng(seed)
    while True:
        # Depth first, which Pinocchio's factorization takes for granted: a body hangs on the one
        # before it or on an ancestor of that.
        parents: list[int | None] = [None]
        for i in range(1, bodies):
            above: list[int | None] = [i - 1]
            while above[-1] is not None:
                above.append(parents[above[-1]])
            parents.append(above[rng.integers(len(above))])
        rows = [["hinge"], ["slide"], ["ball"], ["slide", "hinge"], ["hinge"]]
        joints = [rows[rng.integers(len(rows))] for _ in range(bodies)]
        if free:
            joints[0] = ["free"]
        pairs: list[tuple[int, int | None]] = [
            (int(x), int(y)) for x, y in (rng.choice(bodies, 2, replace=False) for _ in closures)
        ]
        if ground:
            pairs[0] = pairs[0][0], None
        left = sum(FREEDOMS[x] for row in joints for x in row) - sum(ROWS[x] for x in closures)
        if left < 1:
            continue
        made = {"parents": parents, "joints": joints, "closures": closures, "pairs": pairs}
        generic = np.random.default_rng(0)
        if any(_solved(numbers(made, generic)) is not None for _ in range(5)):
            return made


def numbers(made: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Bodies of a topology, and a state of the open tree."""

    def vector(size=0.4):
        return (size * rng.normal(size=3)).tolist()

    def quaternion():
        found = rng.normal(size=4)
        return (found / np.linalg.norm(found)).tolist()

    bodies = []
    for i, (parent, kinds) in enumerate(zip(made["parents"], made["joints"], strict=True)):
        parts, axes = rng.uniform(0.02, 0.1, 3), np.linalg.qr(rng.normal(size=(3, 3)))[0]
        joints = []
        for k, kind in enumerate(kinds):
            joint: dict[str, Any] = {"kind": kind, "name": f"j{i}{'ab'[k]}"}
            if kind in ("hinge", "slide"):
                axis = rng.normal(size=3)
                joint["axis"] = (axis / np.linalg.norm(axis)).tolist()
                joint |= {k: rng.uniform(0.1, 0.5) for k in ("stiffness", "relaxed", "damping")}
                joint["armature"] = rng.uniform(0.01, 0.05)
                joint["q"], joint["v"] = [rng.uniform(-1, 1)], [3 * rng.normal()]
            elif kind == "ball":
                joint["q"], joint["v"] = quaternion(), vector(3.0)
            else:
                joint["q"], joint["v"] = vector() + quaternion(), vector(3.0) + vector(3.0)
            if kind in ("hinge", "ball"):
                joint["anchor"] = vector(0.2)
            joints.append(joint)
        inertia = axes @ np.diag(parts.sum() - parts) @ axes.T
        bodies.append(
            {
                "name": f"b{i}",
                "parent": None if parent is None else f"b{parent}",
                "position": vector(),
                "orientation": quaternion(),
                "mass": rng.uniform(0.5, 2.0),
                "centre": vector(0.2),
                "inertia": ((inertia + inertia.T) / 2).tolist(),
                "joints": joints,
            }
        )
    closures = [
        {
            "kind": kind,
            "name": f"c{i}",
            "first": f"b{one}",
            "second": None if other is None else f"b{other}",
            "anchor": vector(0.3),
        }
        for i, (kind, (one, other)) in enumerate(zip(made["closures"], made["pairs"], strict=True))
    ]
    return {"bodies": bodies, "closures": closures, "gravity": list(GRAVITY)}


def _turn(pin, quaternion):
    w, x, y, z = quaternion
    return pin.Quaternion(w, x, y, z).toRotationMatrix()


def _model(pin, mechanism: dict[str, Any]):
    """The open tree in Pinocchio, and a place in it of each point of a body.

    A body with several joints in a row is the last of as many, the others without mass. Frames of
    joints lie at their anchors.
    """
    model = pin.Model()
    model.gravity.linear = np.array(mechanism["gravity"])
    # By body: its last joint, and that one's anchor in the body; the ground is `None`.
    last: dict[str | None, tuple[int, np.ndarray]] = {None: (0, np.zeros(3))}
    armature = []
    for body in mechanism["bodies"]:
        above, anchor = last[body["parent"]]
        place = pin.SE3(_turn(pin, body["orientation"]), np.array(body["position"]) - anchor)
        for joint in body["joints"]:
            anchor, kind = np.array(joint.get("anchor", np.zeros(3))), joint["kind"]
            if kind == "hinge":
                moving = pin.JointModelRevoluteUnaligned(np.array(joint["axis"]))
            elif kind == "slide":
                moving = pin.JointModelPrismaticUnaligned(np.array(joint["axis"]))
            elif kind == "ball":
                moving = pin.JointModelSpherical()
            else:
                moving, place = pin.JointModelFreeFlyer(), pin.SE3.Identity()
            at = place * pin.SE3(np.eye(3), anchor)
            above = model.addJoint(above, moving, at, joint["name"])
            armature += [joint.get("armature", 0.0)] * FREEDOMS[kind]
            place = pin.SE3(np.eye(3), -anchor)
        last[body["name"]] = above, anchor
        centre = np.array(body["centre"]) - anchor
        inertia = pin.Inertia(body["mass"], centre, np.array(body["inertia"]))
        model.appendBodyToJoint(above, inertia, pin.SE3.Identity())
    model.armature = np.array(armature)
    return model, last


def _state(pin, joints: list[dict[str, Any]]):
    """Pinocchio's coordinates and velocities: quaternions end with their scalar part."""
    q, v = [], []
    for joint in joints:
        kind, at, speed = joint["kind"], np.array(joint["q"]), np.array(joint["v"])
        if kind == "ball":
            at = np.roll(at, -1)
        elif kind == "free":
            speed[:3] = _turn(pin, at[3:]).T @ speed[:3]
            at[3:] = np.roll(at[3:], -1)
        q.append(at)
        v.append(speed)
    return np.concatenate(q), np.concatenate(v)


def _solved(mechanism: dict[str, Any]) -> dict[str, Any] | None:
    """Closed at its state, with what Pinocchio computes; `None` near a singular state.

    The same where a joint stands still, as those of a locked loop do.
    """
    pin: Any = importlib.import_module("pinocchio")
    joints = [x for body in mechanism["bodies"] for x in body["joints"]]
    closures = mechanism["closures"]
    model, last = _model(pin, mechanism)
    data, (q, v) = model.createData(), _state(pin, joints)
    pin.computeJointJacobians(model, data, q)

    ends, rows = [], []
    for closure in closures:
        (one, shift), (other, other_shift) = last[closure["first"]], last[closure["second"]]
        first = pin.SE3(np.eye(3), np.array(closure["anchor"]) - shift)
        second = data.oMi[other].inverse() * data.oMi[one] * first
        closure["other"] = (second.translation + other_shift).tolist()
        if closure["kind"] == "weld":  # of the second body's axes in those of the first
            turn = pin.Quaternion(second.rotation.T).coeffs()
            closure["orientation"] = np.roll(turn, 1).tolist()
        ends.append((one, first, other, second))
        # How the first body moves relative to the second, in axes of the closure.
        jac_first, jac_second = (
            pin.getJointJacobian(model, data, x, pin.LOCAL) for x in (one, other)
        )
        apart = first.inverse().action @ jac_first - second.inverse().action @ jac_second
        rows.append(apart[: ROWS[closure["kind"]]])
    jac = np.vstack(rows)
    sizes = np.linalg.svd(jac, compute_uv=False)
    v -= np.linalg.pinv(jac) @ (jac @ v)
    if sizes[-1] < WELL_POSED * sizes[0] or np.abs(v).min() < STILL:
        return None

    kinds = {"point": pin.ContactType.CONTACT_3D, "weld": pin.ContactType.CONTACT_6D}
    models, facts = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
    for closure, end in zip(closures, ends, strict=True):
        made = pin.RigidConstraintModel(kinds[closure["kind"]], model, *end, pin.LOCAL)
        models.append(made)
        facts.append(made.createData())
    tau = np.zeros(model.nv)
    for joint in joints:
        if joint["kind"] in ("hinge", "slide"):
            i = model.joints[model.getJointId(joint["name"])].idx_v
            stretch = joint["q"][0] - joint["relaxed"]
            tau[i] = -joint["stiffness"] * stretch - joint["damping"] * v[i]
    pin.initConstraintDynamics(model, data, models, facts)
    precise = pin.ProximalSettings(1e-14, 1e-14, 1e-10, 50)
    a = pin.constraintDynamics(model, data, q, v, tau, models, facts, precise).copy()

    forces = pin.StdVec_Force()
    forces.extend([pin.Force.Zero() for _ in range(model.njoints)])
    for closure, fact, (one, first, other, second) in zip(closures, facts, ends, strict=True):
        exerted = fact.contact_force  # on the first body, in axes of the closure
        turn = (data.oMi[one] * first).rotation
        closure["force"] = (turn @ exerted.linear).tolist()
        closure["moment"] = (turn @ exerted.angular).tolist()
        forces[one] += first.act(exerted)
        forces[other] -= second.act(exerted)
    needed = pin.rnea(model, data, q, v, a, forces)
    np.testing.assert_allclose(needed, tau, rtol=0, atol=1e-10 * np.abs(a).max())
    for joint in joints:
        i, kind = model.getJointId(joint["name"]), joint["kind"]
        part = slice(model.joints[i].idx_v, model.joints[i].idx_v + FREEDOMS[kind])
        speed, rate, turn = v[part].copy(), a[part].copy(), data.oMi[i].rotation
        if kind == "free":
            rate[:3] = turn @ (rate[:3] + np.cross(speed[3:], speed[:3]))
            speed[:3] = turn @ speed[:3]
        joint["v"], joint["a"] = speed.tolist(), rate.tolist()
        joint["force"] = (turn @ data.f[i].linear).tolist()
        joint["moment"] = (turn @ data.f[i].angular).tolist()
    return mechanism


def main():
    """Three mechanisms of each topology."""
    pin: Any = importlib.import_module("pinocchio")
    kept = []
    for wanted in TOPOLOGIES:
        made, rng, found = topology(**wanted), np.random.default_rng(wanted["seed"]), []
        while len(found) < 3:
            mechanism = _solved(numbers(made, rng))
            if mechanism is not None:
                found.append(mechanism)
        kept.append(found)
    about = {"pinocchio": pin.__version__, "numpy": np.__version__, "by": Path(__file__).name}
    MECHANISMS.write_text(json.dumps({"versions": about, "topologies": kept}) + "\n")


if __name__ == "__main__":
    main()
