"""Benchmark problems of the IFToMM library: coupled four-bars that fold, and a stiff governor.

    python experiments/iftomm.py [--out results/iftomm] [--loops 2 40]

Parameters as the Library of Computational Benchmark Problems of the IFToMM Technical Committee for
Multibody Dynamics has them, A02 and A05 (M. Gonzalez, D. Dopico, U. Lugris, J. Cuadrado: A
benchmarking system for MBS simulation software, Multibody System Dynamics 16, 2006).
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from claims import Claim, finish, listed
from scipy.integrate import solve_ivp

import jaxdae
from jaxdae import multibody as mb

GRAVITY = 9.81


class FourBars(jaxdae.System):
    """Coupled four-bars in natural coordinates: places of the upper ends of their cranks.

    Bars of length 1 and mass 1: `loops + 1` cranks on pivots at a distance of 1, and between their
    ends as many couplers as there are loops. With the speeds `v1`, `v2` of its ends a uniform bar
    has `T = (v1^2 + v1 v2 + v2^2) / 6`.

    Args:
        loops: their number.
    """

    loops: int

    def kinetic_energy(self, t, q, v):
        v = v.reshape(-1, 2)
        one, two = v[:-1], v[1:]
        return (jnp.sum(v * v) + jnp.sum(one * one + one * two + two * two)) / 6

    def potential_energy(self, t, q):
        height = q.reshape(-1, 2)[:, 1]
        return 0.5 * GRAVITY * (jnp.sum(height) + jnp.sum(height[1:] + height[:-1]))

    def position_constraints(self, t, q):
        end = q.reshape(-1, 2)
        pivot = jnp.arange(self.loops + 1.0, dtype=q.dtype)
        cranks = (end[:, 0] - pivot) ** 2 + end[:, 1] ** 2
        couplers = jnp.sum((end[1:] - end[:-1]) ** 2, axis=1)
        return 0.5 * (jnp.concatenate([cranks, couplers]) - 1.0)

    def parallel(self, angle, rate=0.0) -> jaxdae.State:
        """On the branch of the parallelograms, at an angle of the cranks [rad]."""
        along = np.array([np.cos(angle), np.sin(angle)])
        q = np.stack([np.arange(self.loops + 1.0), np.zeros(self.loops + 1)], axis=1) + along
        v = np.broadcast_to(rate * np.array([-along[1], along[0]]), q.shape)
        return jaxdae.State(jnp.asarray(q.ravel()), jnp.asarray(v.ravel().copy()))


def jointed_four_bars(loops: int) -> mb.Multibody:
    """The same as bodies: cranks on the ground, couplers on cranks, and a pin to close each loop.

    Args:
        loops: their number.
    """
    down = (0, -1, 0)
    bar: dict[str, Any] = {"mass": 1.0, "centre": (0.5, 0, 0), "inertia": (0.0, 1 / 12, 1 / 12)}
    bodies = [mb.Body("crank 0", mb.Hinge("crank 0", down), **bar)]
    pins = []
    for i in range(1, loops + 1):
        on, place = f"crank {i - 1}", (float(i), 0, 0)
        bodies += [
            mb.Body(f"coupler {i}", mb.Hinge(f"coupler {i}", down), on, (1, 0, 0), **bar),
            mb.Body(f"crank {i}", mb.Hinge(f"crank {i}", down), None, place, **bar),
        ]
        pins.append(
            mb.Connection(f"pin {i}", f"coupler {i}", f"crank {i}", (1, 0, 0), (1, 0, 0), "xz")
        )
    return mb.Multibody(bodies, pins, gravity=(0, 0, -GRAVITY))


def parallel(loops: int, angle: float, rate: float = 0.0) -> jaxdae.State:
    """Angles of the bodies on the branch of the parallelograms: couplers do not turn.

    Args:
        loops: their number.
        angle: of the cranks [rad].
        rate: of it [rad/s].
    """
    q = np.array([1.0, *[-1.0, 1.0] * loops])
    return jaxdae.State(jnp.asarray(angle * q), jnp.asarray(rate * q))


def crank_angle(loops: int, times) -> np.ndarray:
    """The motion of the parallelograms in one coordinate, from upright at -1 rad/s, by SciPy.

    `(n + 1) / 3 + n` times its second derivative is `-((n + 1) / 2 + n) g cos(angle)`.
    """
    ratio = GRAVITY * ((loops + 1) / 2 + loops) / ((loops + 1) / 3 + loops)
    found = solve_ivp(
        lambda t, y: [y[1], -ratio * np.cos(y[0])], (0.0, times[-1]), [np.pi / 2, -1.0],
        method="DOP853", t_eval=times, rtol=1e-13, atol=1e-13,
    )  # fmt: skip
    return found.y[0]


# Of the governor: lengths [m], masses [kg], a spring with a damper [N/m, N s/m, m].
LENGTH, WIDTH, SLIDER, DENSITY, BALL = 1.0, 0.01, 0.1, 3000.0, 5.0
STIFFNESS, DAMPING, RELAXED = 8e5, 4e4, 0.5
ROD = DENSITY * LENGTH * WIDTH**2
BLOCK = DENSITY * SLIDER**3
# Rods begin 60 degrees from the shaft, which turns once a second; the slider in the middle.
OPENING, SPIN, HEIGHT = np.pi / 3, 2 * np.pi, 0.5


def governor() -> mb.Multibody:
    """A shaft with a slider, two rods on its upper end with balls, springs from slider to rods."""
    across, along = ROD * (LENGTH**2 + WIDTH**2) / 12, ROD * WIDTH**2 / 6
    block = BLOCK * SLIDER**2 / 6
    mass, lever = ROD + BALL, ROD * LENGTH / 2 + BALL * LENGTH
    centre = lever / mass
    about = across + ROD * (LENGTH / 2 - centre) ** 2 + BALL * (LENGTH - centre) ** 2
    bodies = [
        mb.Body("shaft", mb.Hinge("turn"), mass=ROD, centre=(0, 0, LENGTH / 2),
                inertia=(across, across, along)),
        mb.Body("slider", mb.Slide("height", (0, 0, 1)), "shaft", mass=BLOCK,
                inertia=(block, block, block)),
    ]  # fmt: skip
    springs = []
    for name, side in (("left", 1.0), ("right", -1.0)):
        # Hanging at rest, opening to its side.
        bodies.append(
            mb.Body(
                name,
                mb.Hinge(name, (0, -side, 0)),
                "shaft",
                (0, 0, LENGTH),
                mass=mass,
                centre=(0, 0, -centre),
                inertia=(about, about, along),
            )
        )
        ends = mb.Marker("slider"), mb.Marker(name, (0, 0, -LENGTH / 2))
        springs.append(
            mb.SpringDamper(f"spring {name}", mb.Distance(*ends), STIFFNESS, RELAXED, DAMPING)
        )
    return mb.Multibody(bodies, forces=springs, gravity=(0, 0, -GRAVITY))


def governor_start() -> jaxdae.State:
    """Springs without force."""
    q = jnp.array([0.0, HEIGHT, OPENING, OPENING])
    return jaxdae.State(q, jnp.array([SPIN, 0.0, 0.0, 0.0]))


def governor_rates(t: float, y, xp=np) -> list:
    """Rates of turn, height and opening and of their rates, from equations derived by hand.

    `xp` is `numpy`, or `jax.numpy` where they are differentiated.
    With the rods' moments `I` about their hinges and `I0` about themselves, the length `d` of a
    spring and its force `F = k (d - d0) + c d'`, and the opening `b` of both rods:

        I b'' = (I - I0) sin b cos b turn'^2 - (m / 2 + M) g l sin b - F dd/db
        m_s s'' = -m_s g - 2 F dd/ds
        (J + 2 (I sin^2 b + I0 cos^2 b)) turn'' = -4 (I - I0) sin b cos b b' turn'
    """
    del t
    own = ROD * WIDTH**2 / 6
    rod = ROD * (LENGTH**2 + WIDTH**2) / 12 + ROD * LENGTH**2 / 4 + BALL * LENGTH**2
    fixed = own + BLOCK * SLIDER**2 / 6
    _, s, b, spin, s_dot, b_dot = y
    sin, cos = xp.sin(b), xp.cos(b)
    up, out = LENGTH - 0.5 * LENGTH * cos - s, 0.5 * LENGTH * sin
    d = xp.hypot(up, out)
    by_b, by_s = 0.5 * LENGTH * (out * cos + up * sin) / d, -up / d
    force = STIFFNESS * (d - RELAXED) + DAMPING * (by_b * b_dot + by_s * s_dot)
    opening = (rod - own) * sin * cos * spin**2 - force * by_b
    opening -= (ROD / 2 + BALL) * GRAVITY * LENGTH * sin
    moment = fixed + 2 * (rod * sin**2 + own * cos**2)
    slower = -4 * (rod - own) * sin * cos * b_dot * spin / moment
    lifted = -GRAVITY - 2 * force * by_s / BLOCK
    return [spin, s_dot, b_dot, slower, lifted, opening / rod]


def governor_motion(times, **options) -> np.ndarray:
    """Turn, height and opening of the governor by SciPy, shape `(3, times)`."""
    settings = {"method": "Radau", "rtol": 1e-11, "atol": 1e-13} | options
    y0 = [0.0, HEIGHT, OPENING, SPIN, 0.0, 0.0]
    # SciPy's own differences scale their steps by what they find: by `turn`, on which nothing
    # depends, they grow until they overflow.
    jacobian = jax.jit(jax.jacfwd(lambda t, y: jnp.stack(governor_rates(t, y, jnp)), argnums=1))
    found = solve_ivp(
        governor_rates, (0.0, times[-1]), y0, t_eval=times, jac=jacobian, **settings
    )  # fmt: skip
    return found.y[:3]


def folded(loops: int, *, jointed: bool, t1: float = 10.0) -> dict[str, Any]:
    """Ten seconds of coupled four-bars by `solver="auto"`: how far from the motion they are.

    Args:
        loops: their number.
        jointed: whether bodies on joints, in place of natural coordinates.
        t1: end [s].
    """
    if jointed:
        system, begin = jointed_four_bars(loops), parallel(loops, np.pi / 2, -1.0)
    else:
        system = FourBars(loops)
        begin = system.parallel(np.pi / 2, -1.0)
    clock = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run = jaxdae.simulate(system, jaxdae.Multipliers(), begin, t1=t1, solver="auto")
    seconds = time.perf_counter() - clock[0], time.process_time() - clock[1]
    ts, q = np.asarray(run.ts), np.asarray(run.q)
    angle = crank_angle(loops, ts)
    if jointed:
        cranks, couplers = q[:, [0, *range(2, 2 * loops + 1, 2)]], q[:, 1::2]
        branch = max(np.abs(cranks - cranks[:, :1]).max(), np.abs(couplers + cranks[:, :-1]).max())
        motion = np.abs(cranks[:, 0] - angle).max()
    else:
        ends = q.reshape(len(ts), -1, 2) - np.arange(loops + 1.0)[:, None] * [1.0, 0.0]
        branch = np.abs(ends - ends[:, :1]).max()
        motion = np.abs(ends[:, 0] - np.stack([np.cos(angle), np.sin(angle)], axis=1)).max()
    energy = np.asarray(run.energy)
    return {
        "problem": "four-bars", "loops": loops,
        "coordinates": "joints" if jointed else "natural",
        "turns": float(abs(angle[-1] - angle[0]) / (2 * np.pi)),
        "branch": float(branch), "motion": float(motion),
        "energy": float(np.abs(energy - energy[0]).max()),
        "steps": int(run.stats["num_steps"]), "seconds": seconds[0], "cpu": seconds[1],
        "solver": f"{run.solver}", "why": run.why_solver,
        "backend": run.backend.split(",")[0].split(" ")[0],
        "warnings": [str(x.message) for x in said],
    }  # fmt: skip


def governed(solver, t1: float = 10.0, **options) -> dict[str, Any]:
    """Ten seconds of the governor by a solver: how far from SciPy's motion it is, in what time.

    Args:
        solver: of `simulate`.
        t1: end [s].
        **options: of `simulate`.
    """
    system, begin = governor(), governor_start()
    ts = np.linspace(0.0, t1, 201)

    def run():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "stability and not accuracy")
            return jaxdae.simulate(
                system, jaxdae.Multipliers(), begin, t1=t1, solver=solver, **options
            )

    clock = time.perf_counter()
    found = run()
    first = time.perf_counter() - clock
    again = []
    for _ in range(5):
        clock = time.perf_counter()
        jax.block_until_ready(run().q)
        again.append(time.perf_counter() - clock)
    turn, height, opening = np.abs(np.asarray(found.q).T[:3] - governor_motion(ts)).max(axis=1)
    return {
        "problem": "governor", "asked": solver if isinstance(solver, str) else "explicit",
        "solver": f"{found.solver}", "why": found.why_solver,
        "turn": float(turn), "height": float(height), "opening": float(opening),
        "steps": int(found.stats["num_steps"]), "first": first, "seconds": min(again),
    }  # fmt: skip


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """What the runs show."""
    found = []
    for row in rows:
        if row["problem"] == "four-bars":
            text = (
                f"{row['loops']} four-bars in coordinates of the kind {row['coordinates']!r} stay "
                f"on the branch of parallelograms to {row['branch']:.1e}."
            )
            found.append(Claim(text, row["branch"] < 1e-6))
        else:
            error = max(row[x] for x in ("turn", "height", "opening"))
            text = f"The governor by {row['solver']} is off by {error:.1e}."
            found.append(Claim(text, error < 1e-6))
    return found


def main() -> None:
    """As the first lines say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/iftomm"))
    parser.add_argument("--only", help="one of four-bars, governor")
    parser.add_argument("--loops", type=int, nargs="*", default=[2, 40])
    parser.add_argument("--coordinates", nargs="*", default=["natural", "joints"])
    words = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows: list[dict[str, Any]] = []
    if words.only != "governor":
        rows += [folded(n, jointed=x == "joints") for n in words.loops for x in words.coordinates]
    if words.only != "four-bars":
        rows += [governed("auto"), governed(diffrax.Dopri8())]
    before = words.out / "result.json"
    known = json.loads(before.read_text())["rows"] if before.exists() else []
    key = lambda x: [x.get(k) for k in ("problem", "loops", "coordinates", "asked")]  # noqa: E731
    made = [*map(key, rows)]
    rows = sorted([*(x for x in known if key(x) not in made), *rows], key=lambda x: str(key(x)))
    versions = {"jaxdae": jaxdae.__version__, "jax": jax.__version__}
    found = claims(rows)
    text = "\n".join(["# Problems of the IFToMM library", "", listed(found)])
    finish(words.out, text, {"versions": versions, "rows": rows}, found)


if __name__ == "__main__":
    main()
