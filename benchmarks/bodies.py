"""Steps of trees of bodies: one run, and batches, against MuJoCo on the same files.

All take RK4 steps of one length without contacts and limits, MuJoCo by `mj_step` on one thread. A
batch of ours has the members on all cores; its times are of one member and one core. The error is
the largest difference of coordinates from MuJoCo's after the run. Files are those of the package
gymnasium, chains of hinges, and the ant with a leg that a four-bar mechanism moves: its loop is
exact here, by multipliers, and soft in MuJoCo.

    python benchmarks/bodies.py
    python benchmarks/bodies.py --problems ant --quick
"""

import warnings
from pathlib import Path
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.formulations import MinimumNormSolve
from jaxdae.multibody import read_mujoco
from jaxdae.solvers import RK4

STEP, STEPS, MEMBERS = 1e-4, 500, 4096
LINK = (
    '<body pos="{place} 0 0"><joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0.2 0 0" '
    'size="0.02" contype="0" conaffinity="0"/>{rest}</body>'
)
# With one of its legs as a parallelogram: a crank at its thigh moves the shank by a coupler.
CRANK = """
<body name="crank" pos="0.1 0.1 0">
  <joint name="crank" axis="-1 1 0" limited="false" type="hinge"/>
  <geom fromto="0 0 0 0 0 0.1" size="0.02" type="capsule"/>
  <body name="coupler" pos="0 0 0.1">
    <joint name="coupler" axis="-1 1 0" limited="false" type="hinge"/>
    <geom fromto="0 0 0 0.1 0.1 0" size="0.02" type="capsule"/>
  </body>
</body>
"""
CLOSED = """</worldbody>
<equality><connect body1="coupler" body2="shank" anchor="0.1 0.1 0"/></equality>
"""
# Of violations of closed loops [1/s].
RATE = 50.0
PROBLEMS = ("chain-3", "chain-10", "ant", "ant-loop", "humanoid", "chain-40")


def source(problem: str) -> str:
    """The text of a file."""
    if problem.startswith("chain"):
        links = ""
        for i in reversed(range(int(problem[6:]))):
            links = LINK.format(place=0.2 if i else 0.0, rest=links)
        return f"<mujoco><worldbody>{links}</worldbody></mujoco>"
    if problem == "ant-loop":
        shank = '<body pos="0.2 0.2 0">'
        thigh, rest = source("ant").split(shank, 1)
        closed = rest.replace("</worldbody>", CLOSED)
        return thigh + CRANK + shank.replace("<body", '<body name="shank"') + closed
    import gymnasium

    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    return (assets / f"{problem}.xml").read_text()


class Mechanism(NamedTuple):
    """What a file describes, and where its motion begins.

    Args:
        system: as it is read.
        formulation: for which loops are exact.
        q: coordinates of the start.
        v: velocities of it.
        inputs: number of motors, which are off.
        model: as MuJoCo reads the file, by RK4, without contacts and limits.
    """

    system: Any
    formulation: Any
    q: Any
    v: Any
    inputs: int
    model: Any


def mechanism(problem: str) -> Mechanism:
    """What the file of a problem describes."""
    import mujoco

    text = source(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # contacts and limits are left out by both
        system = read_mujoco(text).system
    model = mujoco.MjModel.from_xml_string(text)  # pyright: ignore[reportAttributeAccessIssue]
    bits = mujoco.mjtDisableBit  # pyright: ignore[reportAttributeAccessIssue]
    model.opt.disableflags |= int(bits.mjDSBL_CONTACT) | int(bits.mjDSBL_LIMIT)
    model.opt.timestep = STEP
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4  # pyright: ignore
    rng = np.random.default_rng(0)
    place, speeds = np.array(model.qpos0), rng.normal(size=model.nv)
    mujoco.mj_integratePos(model, place, rng.normal(size=model.nv), 0.3)  # pyright: ignore
    q, v, formulation = jnp.asarray(place), jnp.asarray(speeds), jaxdae.Multipliers()
    if system.loops:
        start = jaxdae.consistent_state(system, q, v)
        # A loop that moves in a plane, closed by a point: its equations are dependent.
        law = jaxdae.Baumgarte.critical(RATE)
        q, v, formulation = start.q, start.v, jaxdae.Multipliers(law, solve=MinimumNormSolve())
    return Mechanism(system, formulation, q, v, model.nu, model)


def end(mechanism: Mechanism, q, v, steps: int):
    """Coordinates after steps of a start."""
    none = np.zeros(mechanism.inputs)
    return jaxdae.simulate(
        mechanism.system, mechanism.formulation, jaxdae.State(q, v), t1=steps * STEP, dt=STEP,
        solver=RK4(), saveat=diffrax.SaveAt(t1=True), throw=False,
        controller=(lambda *_: none) if mechanism.inputs else None, backend="native",
    ).q[-1]  # fmt: skip


def calls(problem: str, members: int) -> tuple[dict[str, Any], dict[str, float], float]:
    """What is timed, how many steps of members and cores a call is, and how far the ends differ."""
    import harness
    import mujoco

    given = mechanism(problem)
    model, q, v = given.model, given.q, given.v
    data: Any = mujoco.MjData(model)  # pyright: ignore[reportAttributeAccessIssue]
    place, speeds = np.array(q), np.array(v)

    def theirs():
        data.qpos, data.qvel, data.qacc_warmstart = place, speeds, 0.0
        mujoco.mj_step(model, data, STEPS)  # pyright: ignore[reportAttributeAccessIssue]

    one = jax.jit(lambda q, v: end(given, q, v, STEPS))
    few = max(1, STEPS // 25)
    batch = jax.jit(jax.vmap(lambda q, v: end(given, q, v, few)))
    many = jnp.tile(q, (members, 1)), jnp.tile(v, (members, 1))
    found = {
        "jaxdae, one run": lambda: one(q, v),
        f"jaxdae, {members} members": lambda: batch(*many),
        "MuJoCo RK4": theirs,
    }
    reached = np.asarray(one(q, v))
    jax.block_until_ready(batch(*many))
    theirs()
    steps = dict(zip(found, (STEPS, few * members / harness.cores(), STEPS), strict=True))
    return found, steps, float(np.abs(reached - data.qpos).max())


def measure(problems: list[str], rounds: int, quick: bool) -> list[dict[str, Any]]:
    """Rows of all codes."""
    import harness

    rows = []
    for problem in problems:
        found, steps, error = calls(problem, MEMBERS // 8 if quick else MEMBERS)
        timed = harness.interleaved(found, rounds)
        for code, seconds in timed.items():
            each = [x / steps[code] for x in seconds]
            row = {"problem": problem, "code": code, "missing": None, "error": error}
            rows.append({**row, "seconds": each})
    return rows


def text(rows: list[dict[str, Any]]) -> str:
    """The measurements as text."""
    import harness

    from jaxdae.tables import table

    of_mujoco = {x["problem"]: min(x["seconds"]) for x in rows if x["code"] == "MuJoCo RK4"}
    lines = [
        (
            x["problem"], x["code"], harness.shown(x["seconds"], 1e-6),
            f"{min(x['seconds']) / of_mujoco[x['problem']]:.2f}", f"{x['error']:.0e}",
        )
        for x in rows
    ]  # fmt: skip
    return table(("of", "by", "microseconds a step", "of MuJoCo's", "difference"), lines)


def main() -> None:
    """Measure, print a table, write `results/bodies.json`."""
    import harness

    args = harness.arguments(__doc__, 7, PROBLEMS, ("chain-3", "ant"))
    rows = measure(args.problems, args.repetitions, args.quick)
    print(text(rows))
    harness.finish("bodies", args, rows, "a step of RK4; of a batch, of one member on one core")


if __name__ == "__main__":
    import harness

    harness.run(main)
