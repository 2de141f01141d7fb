"""A batch of fixed-step runs on a GPU: one kernel for the whole integration, and `vmap` beside it.

Classical Runge–Kutta steps of the same batch by `jaxdae.kernels.pallas`, by `diffrax` and by
`jaxdae.simulate` under `jax.vmap`, taken in turn in one process, each beside the time that the
GPU cannot do without (roofline): operations of the scalar graph by its peak rate, or bytes of
states and saved rows by its bandwidth, whichever is longer. Take the peaks from the data sheet of
the device. Without a GPU the script says so and ends with code 2.

    python benchmarks/gpu_batch.py --peak-tflops 67 --peak-tbytes 4.8 --dtype float32
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.kernels import scalarize
from jaxdae.kernels.pallas import count_operations, pallas_integrate, stages
from jaxdae.models.andrews import AndrewsMechanism, START_Q
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V, TwoLinkManipulator
from jaxdae.solvers import RK4

RESULTS = pathlib.Path(__file__).parent / "results"
ARITHMETIC = {"add", "sub", "mul", "div", "neg", "abs", "sign", "max", "min", "select"}
SYSTEMS = ("two-link", "Andrews")


def case(name: str, batch: int, dtype):
    """System, formulation, starts and step [s] of a problem; starts differ by 1e-3 in velocity."""
    if name == "two-link":
        gains = Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=jnp.array([100.0, 25.0]))
        system, step, q, v = TwoLinkManipulator(), 1e-3, PAPER_START_Q, PAPER_START_V
    else:
        gains = Baumgarte(K_D=20.0, K_P=100.0)
        system, step, q, v = AndrewsMechanism(), 1e-4, START_Q, np.zeros(7)
    q, v = jnp.asarray(q, dtype), jnp.asarray(v, dtype)
    shifts = 1e-3 * jax.random.normal(jax.random.key(0), (batch, v.size), dtype)
    starts = State(jnp.tile(q, (batch, 1)), v + shifts, jnp.zeros((batch, 0), dtype))
    return system, Multipliers(gains), starts, step


def field(t, y, run):
    """Equations of motion, as pallas_integrate and diffrax take them."""
    system, formulation = run
    return formulation.vector_field(system, t, y, None)


def runs(case, steps: int, block: int, interpret: bool) -> dict[str, Callable]:
    """Compiled functions of the starts, which return the states at the end."""
    system, formulation, _, dt = case
    end = diffrax.SaveAt(t1=True)

    def kernel(starts):
        return pallas_integrate(
            field, starts, (system, formulation), tableau=RK4.tableau, t0=0.0, dt=dt,
            steps=steps, save_every=steps, block=block, interpret=interpret,
        )[1]  # fmt: skip

    def plain(start):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field), RK4(), 0.0, steps * dt, dt, start,
            args=(system, formulation), saveat=end, max_steps=steps + 1,
        ).ys  # fmt: skip

    def whole(start):
        return simulate(
            system, formulation, start, t1=steps * dt, dt=dt, solver=RK4(), saveat=end,
            throw=False,
        ).states  # fmt: skip

    lanes = {"vmap of diffrax": plain, "vmap of simulate": whole}
    return {"kernel": jax.jit(kernel)} | {k: jax.jit(jax.vmap(f)) for k, f in lanes.items()}


def operations(case, dtype) -> tuple[Counter[str], int]:
    """Operations of one evaluation of the equations of motion, and entries of the state."""
    system, formulation, starts, _ = case
    leaves, structure = jax.tree.flatten((system, formulation))
    first = jax.tree.map(lambda x: x[0], starts)
    size = sum(x.size for x in jax.tree.leaves(first))

    def flat(t, q, v, *leaves):
        rate = field(t, State(q, v, first.w), jax.tree.unflatten(structure, leaves))
        return jax.tree.leaves(rate)

    given = [jnp.asarray(x, dtype) for x in (0.0, first.q, first.v, *leaves)]
    return count_operations(scalarize(flat, *given)), size


def flops_per_step(counts: Counter[str], size: int, per_function: float) -> float:
    """Floating-point operations of one step of RK4.

    Args:
        counts: operations of one evaluation of the equations of motion.
        size: entries of the state.
        per_function: operations that an elementary function is counted as.
    """
    simple = sum(n for name, n in counts.items() if name in ARITHMETIC)
    evaluation = simple + per_function * (sum(counts.values()) - simple)
    tableau = RK4.tableau
    weights = [tableau.b_sol, *(tableau.a_lower[i - 1] for i in stages(tableau) if i)]
    # A product and a sum for each weight, and for the step.
    sums = sum(2 * (np.count_nonzero(w) + 1) for w in weights if np.any(w))
    return len(stages(tableau)) * evaluation + size * sums


def roofline(flops: float, bytes_: float, peak_flops: float, peak_bytes: float) -> dict:
    """Least time of so much work [s], and which of the two peaks sets it."""
    arithmetic, memory = flops / peak_flops, bytes_ / peak_bytes
    bound = "arithmetic" if arithmetic >= memory else "memory"
    return {"seconds": max(arithmetic, memory), "bound": bound, "intensity": flops / bytes_}


def seconds(call: Callable) -> float:
    """Time of one call, its result ready [s]."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def spread(times: list[float]) -> dict[str, float]:
    """Median, least and largest of times [s]."""
    return {"median": statistics.median(times), "min": min(times), "max": max(times)}


def disagreement(found, expected) -> float:
    """Largest difference of the states, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    flat = [(x.ravel(), y.ravel()) for x, y in pairs]
    a, b = (np.concatenate([np.asarray(pair[i]) for pair in flat]) for i in (0, 1))
    return float(np.max(np.abs(a - b)) / np.max(np.abs(b)))


def measure(name: str, args, interpret: bool = False) -> dict:
    """Everything about one problem."""
    dtype = jnp.dtype(args.dtype)
    problem = case(name, args.batch, dtype)
    starts = problem[2]
    calls = runs(problem, args.steps, args.block, interpret)
    first = {key: seconds(lambda f=f: f(starts)) for key, f in calls.items()}
    rounds = [
        {key: seconds(lambda f=f: f(starts)) for key, f in calls.items()}
        for _ in range(args.repetitions)
    ]
    times = {key: spread([r[key] for r in rounds]) for key in calls}
    counts, size = operations(problem, dtype)
    flops = flops_per_step(counts, size, args.function_flops) * args.steps * args.batch
    # A state is read at the start and written in each saved row, of which there is one.
    least = roofline(
        flops, 2 * size * dtype.itemsize * args.batch, args.peak_tflops * 1e12,
        args.peak_tbytes * 1e12,
    )  # fmt: skip
    found = {key: f(starts) for key, f in calls.items()}
    return {
        "system": name,
        "seconds": times,
        "first_call_s": first,
        "steps_per_second": {k: args.steps * args.batch / t["median"] for k, t in times.items()},
        "roofline": least,
        "share_of_roofline": {k: least["seconds"] / t["median"] for k, t in times.items()},
        "operations": dict(counts),
        "disagreement": {k: disagreement(x, found["kernel"]) for k, x in found.items()},
    }


def table(rows: list[dict]) -> str:
    """The measurements as text."""
    titles = ("ms", "min", "max", "steps/s", "roofline", "differs")
    lines = [f"{'':28}" + "".join(f"{title:>10}" for title in titles)]
    for row in rows:
        for key, t in row["seconds"].items():
            lines.append(
                f"{row['system']:10}{key:18}"
                + "".join(f"{1e3 * t[part]:10.3f}" for part in ("median", "min", "max"))
                + f"{row['steps_per_second'][key]:10.3g}{row['share_of_roofline'][key]:10.1%}"
                f"{row['disagreement'][key]:10.1e}"
            )
        bound = row["roofline"]
        lines.append(
            f"{'':10}roofline {1e3 * bound['seconds']:.3f} ms, set by {bound['bound']} "
            f"({bound['intensity']:.0f} operations for each byte)"
        )
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Arguments of the command."""
    found = argparse.ArgumentParser(description=main.__doc__)
    found.add_argument("--peak-tflops", type=_positive, required=True, help="of --dtype, without "
                       "tensor cores, 1e12 operations a second")  # fmt: skip
    found.add_argument("--peak-tbytes", type=_positive, required=True, help="1e12 bytes a second")
    found.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    found.add_argument("--batch", type=int, default=65536, help="trajectories (default 65536)")
    found.add_argument("--steps", type=int, default=300, help="of each (default 300)")
    found.add_argument("--block", type=int, default=128, help="of trajectories (default 128)")
    found.add_argument("--repetitions", type=int, default=9, help="rounds (default 9)")
    found.add_argument(
        "--function-flops", type=_positive, default=20.0,
        help="what an elementary function counts as in the roofline (default 20)",
    )  # fmt: skip
    return found


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive finite number")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Measure on the GPU, print a table, write `results/gpu_batch.json`."""
    args = parser().parse_args(arguments)
    if jax.default_backend() != "gpu":
        print(
            f"gpu_batch: no GPU, JAX runs on {jax.default_backend()}; nothing was measured. On a "
            "machine with one: pip install 'jaxdae[cuda]'.",
            file=sys.stderr,
        )
        return 2
    jax.config.update("jax_enable_x64", args.dtype == "float64")
    rows = [measure(name, args) for name in SYSTEMS]
    print(table(rows))
    machine = {"jax": jax.__version__, "device": jax.devices()[0].device_kind}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine, "arguments": vars(args), "rows": rows}, indent=2)
    (RESULTS / "gpu_batch.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
