"""`solref` and `solimp` against MuJoCo itself: accelerations of a slide.

Run it where MuJoCo is installed (extra `bench`): `python benchmarks/other_engines.py`. It prints
the digits of tests/formulations/test_other_engines.py and ends with an error where ours differ.
"""

from typing import Any, NamedTuple

import jax
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
    import mujoco  # pyright: ignore[reportMissingImports]

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


def main() -> None:
    """Compare, print, and fail where the two differ by more than round-off."""
    jax.config.update("jax_enable_x64", True)
    worst, cases = 0.0, [*CASES, *random_cases(200)]
    for i, case in enumerate(cases):
        wanted, found = by_mujoco(*case), ours(*case)
        worst = max(worst, *np.abs(np.subtract(found, wanted)) / (1 + np.abs(wanted)))
        if i < len(CASES):
            print(*case, *(f"{x:.16g}" for x in wanted))
    print(f"largest relative difference of {len(cases)} cases: {worst:.2g}")
    if not worst < 1e-9:
        raise SystemExit("the conversion differs from MuJoCo's")


if __name__ == "__main__":
    main()
