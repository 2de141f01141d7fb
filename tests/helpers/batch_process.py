"""One process of the tests: computes batches and prints what it found, as JSON.

Its one argument is a JSON object: `devices`, and where there are several processes `address`,
`processes`, `process` and `patience` (how long to wait for the others at the very end, in seconds);
`directory` for results; `kind`, a function of this file, and what else that takes.
"""

import hashlib
import json
import os
import sys
import time
import warnings
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.models import get_model
from jaxdae.parallel import BatchError, map_batch, simulate_batch, StoredBatchError
from jaxdae.storage.batches import Store

LANES, BLOCK = 50, 8


def rotation(dtype):
    """A matrix that keeps the iteration below away from its fixed point."""
    return jnp.asarray(np.linalg.qr(np.random.default_rng(5).normal(size=(7, 7)))[0], dtype)


def iterate(lane):
    """An iteration whose length is the lane's own; its last bits depend on how XLA compiles it.

    `jax.vmap` makes one product of matrices of the seven sums of all lanes: alone, its numbers
    differ with the number of lanes.
    """
    turn = rotation(lane["x"].dtype)

    def again(carry):
        return (carry[1] < lane["steps"]) & jnp.all(jnp.isfinite(carry[0]))

    def step(carry):
        return jnp.sin(turn @ carry[0]) + jnp.tanh(carry[0]) / 2, carry[1] + 1

    x, steps = jax.lax.while_loop(again, step, (lane["x"], jnp.zeros((), jnp.int32)))
    return {"x": x, "norm": jnp.sum(x * x), "ok": steps == lane["steps"], "none": x[:0]}


def starts():
    """Lanes of which the one with number 13 fails at once."""
    x = np.random.default_rng(7).normal(size=(LANES, 7))
    x[13, 2] = np.nan
    return {"x": x, "steps": np.arange(LANES, dtype=np.int32)}


def slowly(lane):
    """The same, with a pause for each lane as long as the environment says."""

    def pause(x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return x

    shape = jax.ShapeDtypeStruct((), jnp.int32)
    steps = jax.pure_callback(pause, shape, lane["steps"], vmap_method="sequential")
    return iterate(lane | {"steps": steps})


def pendulums():
    """Starts and gains, the last of them too stiff for the largest number of steps."""
    system = get_model("pendulum").system()
    q, v = (jnp.asarray(x) for x in system.start())
    speeds = jnp.linspace(-1.0, 1.0, 10)
    states = jax.vmap(lambda s: jaxdae.State(q, v + s * jnp.stack([-q[1], q[0]])))(speeds)
    rates = jnp.array([5.0, 10.0] * 4 + [5.0, 1e5])
    gains = jax.vmap(lambda rate: jaxdae.Multipliers(jaxdae.Baumgarte.critical(rate)))(rates)
    # A method of few stages, and no times to save, because that compiles quickly.
    options = {"solver": diffrax.Bosh3(), "saveat": diffrax.SaveAt(t1=True), "max_steps": 2000}
    axes = {"state": 0, "formulation": 0}
    return (system, gains, states), options | {"t1": 0.5, "in_axes": axes}


def digest(results) -> str:
    """Of all bits of all arrays."""
    arrays = (np.ascontiguousarray(x).tobytes() for x in jax.tree.leaves(results))
    return hashlib.sha256(b"".join(arrays)).hexdigest()


def splits(task: dict[str, Any]) -> dict[str, str]:
    """The same batches, split in many ways."""
    found = {}
    for chunk in (None, 1, 3 * BLOCK):
        result = map_batch(iterate, starts(), block_size=BLOCK, chunk_size=chunk)
        found[f"chunks of {chunk}"] = digest(result)
    stored = map_batch(
        iterate, starts(), block_size=BLOCK, chunk_size=BLOCK, directory=task["directory"]
    )
    found["chunks, stored"] = digest(stored)
    if task["simulate"]:
        arguments, options = pendulums()
        runs = simulate_batch(*arguments, **options, block_size=4, chunk_size=4)
        found["simulated"] = digest(runs)
    return found


def stored(task: dict[str, Any]) -> dict[str, str]:
    """A batch that takes its time, in small chunks."""
    results = map_batch(
        slowly, starts(), block_size=BLOCK, chunk_size=BLOCK, directory=task["directory"]
    )
    return {"stored": digest(results)}


def errors(task: dict[str, Any]) -> dict[str, str]:
    """What goes wrong in one of two processes; both must come to the same end of it."""
    found = {}
    try:
        map_batch(jnp.sin, np.full((4, 1), float(task["process"])))
    except BatchError as error:
        found["other batches"] = str(error)

    write = Store.write

    def failing(self, start, stop, arrays):
        if task["process"] == 1 and start >= 2 * BLOCK:
            raise OSError("disk full")
        write(self, start, stop, arrays)

    Store.write = failing
    found |= one_way_or_the_other(task, "full disk")
    Store.write = write
    found |= one_way_or_the_other(task, "resumed")
    try:
        map_batch(jnp.sin, np.arange(LANES), directory=task["directory"])
    except StoredBatchError as error:
        found["other directory"] = str(error)
    return found


def one_way_or_the_other(task: dict[str, Any], name: str) -> dict[str, str]:
    """Results of the batch of `stored`, or what prevented them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {name: stored(task)["stored"]}
        except BatchError as error:
            found = {name: str(error)}
    said = [str(x.message) for x in caught if x.category is RuntimeWarning]
    return found | {f"warning, {name}": message for message in said}


def main(task: dict[str, Any]) -> None:
    """Do what a task asks for."""
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", task["devices"])
    if "address" in task:
        where = (task["address"], task["processes"], task["process"])
        patience = task.get("patience", 60)
        jax.distributed.initialize(*where, shutdown_timeout_seconds=patience)
    assert jax.local_device_count() == task["devices"]
    print(json.dumps(globals()[task["kind"]](task)), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
