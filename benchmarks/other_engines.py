"""`solref` and `solimp` against MuJoCo itself: accelerations of a slide.

Run it where MuJoCo is installed (extra `bench`): `python benchmarks/other_engines.py`. It prints
the digits of tests/formulations/test_other_engines.py and ends with an error where ours differ.
"""

from typing import Any, NamedTuple

import harness
import numpy as np

from jaxdae.formulations import read_solref

MASS = 1.3
# `solref`, `solimp`, residual [m], its rate [m/s], weight [m/s^2].
CASES = (
    ((0.02, 1.0), (0.9, 0.95, 1e-3, 0.5, 2.0), 5e-4, 0.3, -9.81),
    ((0.05, 0.7), (0.8, 0.97, 2e-3, 0.3, 3.0), -1.5e-3, 0.3, -9.81),
    ((-2500.0, -80.0), (0.9, 0.95, 1e-3, 0.4, 1.5), 2e-4, -0.2, -9.81),
    ((-2500.0, -80.0), (0.9, 0.95, 1e-3, 0.4, 1.5), 0.2, -0.2, 2.0),
)


class Accelerations(NamedTuple):
    """What a constraint asks for, and what is reached."""

    reference: float
    reached: float


def by_mujoco(solref, solimp, r, v, weight) -> Accelerations:
    """`efc_aref` and `qacc` of a slide whose coordinate an equality holds at zero."""
    import mujoco as module  # pyright: ignore[reportMissingImports]

    mujoco: Any = module  # compiled, without stubs

    words = [" ".join(f"{x:.17g}" for x in numbers) for numbers in (solref, solimp)]
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco>
        <option timestep="0.01" gravity="0 0 {weight}"><flag refsafe="disable"/></option>
        <worldbody><body><joint name="slide" type="slide" axis="0 0 1"/>
        <geom type="sphere" size="0.1" mass="{MASS}"/></body></worldbody>
        <equality><joint joint1="slide" solref="{words[0]}" solimp="{words[1]}"/></equality>
        </mujoco>"""
    )
    data = mujoco.MjData(model)
    data.qpos[0], data.qvel[0] = r, v
    mujoco.mj_forward(model, data)
    return Accelerations(float(data.efc_aref[0]), float(data.qacc[0]))


def ours(solref, solimp, r, v, weight) -> Accelerations:
    """The same by `read_solref` and the equation of the penalty form of one coordinate."""
    law = read_solref(solref, solimp)
    gains: Any = law.reference(r)
    penalty: Any = law.penalty(1 / MASS, r)
    reference = float(-gains.K_D * v - gains.K_P * r)
    reached = (MASS * weight + penalty.alpha * reference) / (MASS + penalty.alpha)
    return Accelerations(reference, float(reached))


def random_cases(count: int):
    """More cases, of every sign and on both sides of the width."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        positive = rng.random() < 0.5
        solref = (rng.uniform(0.01, 0.2), rng.uniform(0.3, 2)) if positive else (
            -rng.uniform(10, 1e4), -rng.uniform(1, 200))  # fmt: skip
        low, high = np.sort(rng.uniform(0.1, 0.99, 2))
        solimp = (low, high, rng.uniform(1e-3, 1e-2), rng.uniform(0.1, 0.9), rng.uniform(1, 4))
        yield solref, solimp, rng.normal(0, 5e-3), rng.normal(), rng.normal(0, 10)


def compared(cases: list) -> list[dict[str, Any]]:
    """A row for each printed case, and one for the others: relative differences."""
    rows, worst = [], 0.0
    for i, case in enumerate(harness.progress(cases, "cases")):
        wanted, found = by_mujoco(*case), ours(*case)
        error = float(max(np.abs(np.subtract(found, wanted)) / (1 + np.abs(wanted))))
        if i < len(CASES):
            print(*case, *(f"{x:.16g}" for x in wanted))
            rows.append(_row(f"solref {case[0]}, solimp {case[1]}", error) | wanted._asdict())
        worst = max(worst, error)
    return [*rows, _row(f"largest of all {len(cases)} cases", worst)]


def _row(setting: str, error: float) -> dict[str, Any]:
    return {"problem": "slide", "code": "read_solref", "setting": setting, "error": error}


def main() -> None:
    """Compare, print, write `results/other_engines.json`; fail at more than round-off."""
    args = harness.arguments(__doc__, 1)
    cases = [*CASES, *random_cases(20 if args.quick else 200)]
    rows = compared(cases)
    print(f"largest relative difference of {len(cases)} cases: {rows[-1]['error']:.2g}")
    harness.finish("other_engines", args, rows, "nothing: accelerations are compared")
    if not rows[-1]["error"] < 1e-9:
        raise SystemExit("the conversion differs from MuJoCo's")


if __name__ == "__main__":
    harness.run(main)
