"""Stored trajectories written out by hand, without a run; and short runs to be stored."""

from typing import Any

import numpy as np

from jaxdae import Baumgarte, Labels, Multipliers, simulate, State, Trajectory
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4
from jaxdae.storage.runs import About

LABELS = Labels(
    coordinates=("r", "angle"),
    units=("m", "rad"),
    constraints=("rod", "rolling"),
    constraint_units=("m^2", "m/s"),
    inputs=("torque",),
    input_units=("N m",),
)


def stored(shape=(), *, rows=5, dtype="f8", ts=None, failed=(), **more) -> Any:
    """Cosines; members along the first axis differ by a factor, failed ones end after two rows."""
    ts = np.linspace(0.0, 2.0, rows) if ts is None else np.asarray(ts)
    ts = np.broadcast_to(ts, (*shape, rows)).astype(dtype)
    factor = 1.0 + np.arange(np.prod(shape, dtype=int)).reshape(shape)[..., None]
    x = factor * np.cos(ts)
    columns = lambda *parts: np.stack(parts, axis=-1)  # noqa: E731
    arrays = {
        "ts": ts, "q": columns(x, ts), "v": columns(-factor * np.sin(ts), np.ones_like(ts)),
        "w": np.zeros((*ts.shape, 0)), "u": columns(0.5 * x), "multipliers": columns(x, 2 * x),
        "phi": columns(1e-3 * x), "phi_dot": columns(2e-3 * x, 3e-3 * x), "energy": 5.0 + 0.1 * ts,
        "kinetic_energy": 2.0 + ts, "potential_energy": 3.0 - 0.9 * ts,
    }  # fmt: skip
    arrays = {name: np.array(a, dtype) for name, a in arrays.items()}
    result = np.full(shape, "successful", "U32")
    for member in failed:
        for name, a in arrays.items():
            a[member][2:] = np.inf if name == "ts" else np.nan
        result[member] = "nonfinite"
    last = np.where(result == "successful", 2.0, 0.5).astype(dtype)
    arrays |= {"final_time": last, "result": result, "stats.num_steps": np.full(shape, rows - 1)}
    arrays |= {f"{x}_state.{c}": arrays[c][..., 1, :] for c in "qvw" for x in ("final", "last")}
    about = About(model="Made up", labels=vars(LABELS), versions={"jaxdae": "0", "jax": "0"})
    return Trajectory.from_arrays(arrays | more, about)


def released(length, angle=0.3, **how):
    """Four steps of a pendulum let go at an angle; one of no known length fails at once."""
    system = CartesianPendulum(length=length)
    state = State(*system.released_from(angle))
    formulation = Multipliers(Baumgarte(10.0, 25.0))
    return simulate(system, formulation, state, t1=0.5, dt=0.125, solver=RK4(), **how)
