"""An evaluation of the equations of motion of bodies, and its derivatives, beside Pinocchio's.

Ours is a quarter of a step of RK4 in a kernel, and of its gradient by the start. Pinocchio's
algorithms are called from C++ in a loop on one state, on one thread: `aba` and
`computeABADerivatives`, of a closed loop `constraintDynamics` and, with it,
`computeConstraintDynamicsDerivatives`. Its derivatives are all entries of matrices by coordinates,
velocities and forces; a gradient of ours takes their products with one vector. Needs a compiler of
C++; headers and library are those of the packages libpinocchio and cmeel-eigen.

    pip install --target pinocchio libpinocchio cmeel-eigen
    python benchmarks/pinocchio_bodies.py --pinocchio pinocchio/cmeel.prefix
"""

import argparse
import subprocess
from pathlib import Path
from typing import Any

import bodies
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.multibody import Free, rotations

STEPS = 200
OURS, ACCELERATIONS, DERIVATIVES = "jaxdae", "accelerations", "derivatives"
PROBLEMS = ("chain-10", "ant", "ant-loop", "chain-40")
DRIVER = Path(__file__).resolve().parent / "competitors" / "pinocchio_times.cpp"
DEFINES = (
    "NDEBUG", "BOOST_MPL_LIMIT_LIST_SIZE=30", "BOOST_MPL_LIMIT_VECTOR_SIZE=30",
    "BOOST_MPL_CFG_NO_PREPROCESSED_HEADERS", "BOOST_FUSION_INVOKE_MAX_ARITY=12",
)  # fmt: skip


def compiled(prefix: Path) -> Path:
    """The driver, compiled in the working directory."""
    program = Path("pinocchio_times").resolve()
    words = ["g++", "-w", "-std=c++17", "-O2", "-march=native", *(f"-D{x}" for x in DEFINES)]
    words += [f"-I{prefix / 'include'}", f"-I{prefix / 'include' / 'eigen3'}", str(DRIVER)]
    words += ["-o", str(program), f"-L{prefix / 'lib'}", "-lpinocchio_default"]
    subprocess.run([*words, f"-Wl,-rpath,{prefix / 'lib'}"], check=True)
    return program


def described(given: Any) -> str:
    """A mechanism and its start as the driver reads them: joints at their anchors."""
    system = given.system
    lines = [_words(system.gravity)]
    # By body: its joint, and where the body lies in it; bodies without joints are merged.
    place: dict[Any, tuple[int, np.ndarray, np.ndarray]] = {None: (0, np.zeros(3), np.eye(3))}
    joints: list[dict[str, Any]] = []
    for body in system.bodies:
        above, shift, turn = place[body.parent]
        shift = shift + turn @ np.array(body.position)
        turn = turn @ np.array(rotations.from_quaternion(body.orientation))
        for joint in body.joints:
            free = isinstance(joint, Free)
            anchor = np.zeros(3) if joint.at is None else np.array(joint.at)
            at = shift + turn @ anchor
            joints.append({
                "parent": above, "free": free, "axis": None if free else np.array(joint.axis),
                "place": np.zeros(3) if free else at, "turn": np.eye(3) if free else turn,
                "armature": float(np.max(joint.armature)), "mass": 0.0, "first": np.zeros(3),
                "second": np.zeros((3, 3)),
            })  # fmt: skip
            above, shift, turn = len(joints), -anchor, np.eye(3)
        place[body.name] = above, shift, turn
        one, mass = joints[above - 1], float(body.mass)
        centre = shift + turn @ np.array(body.centre)
        one["mass"] += mass
        one["first"] += mass * centre
        own = turn @ np.array(body.inertia) @ turn.T
        one["second"] += own + mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
    lines.append(str(len(joints)))
    for x in joints:
        kind = "free" if x["free"] else _axis(x["axis"])
        mass = x["mass"]
        centre = x["first"] / mass if mass else np.zeros(3)
        about = x["second"] - mass * (centre @ centre * np.eye(3) - np.outer(centre, centre))
        lines += [f"{x['parent']} {kind}", _words(x["place"]), _words(x["turn"])]
        lines += [f"{x['armature']!r} {mass!r}", _words(centre), _words(about)]
    lines.append(str(len(system.loops)))
    for loop in system.loops:
        ends = ((loop.first, loop.anchor), (loop.second, loop.other))
        found = [(place[name], np.array(point)) for name, point in ends]
        lines.append(" ".join(str(x[0]) for x, _ in found))
        lines += [_words(shift + turn @ point) for (_, shift, turn), point in found]
    q, v = np.array(given.q), np.array(given.v)
    if joints[0]["free"]:
        turn = np.array(rotations.from_quaternion(jnp.asarray(q[3:7])))
        q[3:7], v[:3] = np.roll(q[3:7], -1), turn.T @ v[:3]
    return "\n".join([*lines, _words(q), _words(v)])


def _axis(axis: np.ndarray) -> str:
    """The letter of an axis of coordinates, or the axis itself."""
    for name, unit in zip("xyz", np.eye(3), strict=True):
        if np.array_equal(axis, unit):
            return name
    return "any " + _words(axis)


def _words(values: Any) -> str:
    return " ".join(repr(float(x)) for x in np.ravel(values))


def accelerations(given: Any) -> np.ndarray:
    """Without motors and dampers, by dense algebra; of a free body as Pinocchio has them."""
    system, q, v = given.system, given.q, given.v
    mass, bias = system.mass_matrix(0.0, q), system.bias_force(0.0, q, v)
    found = jaxdae.evaluate(system, 0.0, q, v, u=jnp.zeros(given.inputs))
    jac, gamma = np.asarray(found.jac), np.asarray(found.gamma)
    matrix = np.block([[np.asarray(mass), jac.T], [jac, np.zeros((len(jac),) * 2)]])
    a = np.linalg.lstsq(matrix, np.concatenate([-np.asarray(bias), gamma]), 1e-11)[0][: v.size]
    if isinstance(system.joints()[0], Free):
        turn, spin = np.array(rotations.from_quaternion(q[3:7])), np.array(v[3:6])
        a[:3] = turn.T @ a[:3] - np.cross(spin, turn.T @ np.array(v[:3]))
    return a


def theirs(program: Path, given: Any, rounds: int) -> tuple[dict[str, list[float]], np.ndarray]:
    """Times of its algorithms [s], and accelerations."""
    done = subprocess.run(
        [program, str(rounds)], input=described(given), capture_output=True, text=True, check=True
    )
    *timed, found = (line.split() for line in done.stdout.strip().splitlines())
    times = {name: [1e-9 * float(x) for x in each] for name, *each in timed}
    return times, np.array(found[1:], float)


def ours(given: Any) -> dict[str, Any]:
    """Calls of `STEPS` steps, and of their gradient by the start where a kernel has one."""
    weights = jnp.asarray(np.random.default_rng(1).normal(size=given.q.size))
    scalar = lambda q, v: weights @ bodies.end(given, q, v, STEPS)  # noqa: E731
    run, gradient = jax.jit(scalar), jax.jit(jax.grad(scalar, argnums=(0, 1)))
    calls: dict[str, Any] = {ACCELERATIONS: lambda: run(given.q, given.v)}
    jax.block_until_ready(run(given.q, given.v))
    try:
        jax.block_until_ready(gradient(given.q, given.v))
        calls[DERIVATIVES] = lambda: gradient(given.q, given.v)
    except jaxdae.BackendError:
        pass
    return calls


def measure(program: Path, problems: list[str], rounds: int) -> list[dict[str, Any]]:
    """Rows of both codes."""
    import harness

    rows = []
    for problem in problems:
        given = bodies.mechanism(problem)
        calls = ours(given)
        times = harness.interleaved(calls, rounds)
        found, there = theirs(program, given, rounds)
        error = float(np.abs(accelerations(given) - there).max() / np.abs(there).max())
        for kind in (ACCELERATIONS, DERIVATIVES):
            missing = None if kind in times else "no kernel has it"
            each = [x / (4 * STEPS) for x in times.get(kind, ())]
            row = {"problem": problem, "code": OURS, "kind": kind, "error": error}
            rows.append({**row, "algorithm": None, "missing": missing, "seconds": each})
        for kind, (name, each) in zip((ACCELERATIONS, DERIVATIVES), found.items(), strict=True):
            row = {"problem": problem, "code": "Pinocchio", "kind": kind, "error": error}
            rows.append({**row, "algorithm": name, "missing": None, "seconds": each})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    mine = {
        (x["problem"], x["kind"]): min(x["seconds"])
        for x in rows
        if x["code"] == OURS and x["seconds"]
    }
    lines = []
    for x in (x for x in rows if x["seconds"]):
        ours = mine.get((x["problem"], x["kind"]))
        factor = "" if ours is None else f"{min(x['seconds']) / ours:.2f}"
        name = x["code"] if x["algorithm"] is None else f"{x['code']} {x['algorithm']}"
        times = harness.shown(x["seconds"], 1e-6)
        lines.append((x["problem"], x["kind"], name, times, factor, f"{x['error']:.0e}"))
    return table(("of", "what", "by", "microseconds", "times ours", "difference"), lines)


def main() -> None:
    """Measure, print a table, write `results/pinocchio_bodies.json`."""
    import harness

    def more(parser: argparse.ArgumentParser):
        text = "folder with Pinocchio's headers and libraries"
        parser.add_argument("--pinocchio", type=Path, required=True, help=text)

    args = harness.arguments(__doc__, 7, PROBLEMS, ("chain-10", "ant"), more)
    args.pinocchio = args.pinocchio.resolve()
    with harness.scratch_folder():
        rows = measure(compiled(args.pinocchio), args.problems, args.repetitions)
    print(text(rows))
    timed = "an evaluation of the accelerations, or of their derivatives"
    harness.finish("pinocchio_bodies", args, rows, timed)


if __name__ == "__main__":
    import harness

    harness.run(main)
