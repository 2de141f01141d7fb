"""A process of the tests that shares a batch between two GPUs, and prints what they were given.

Its devices, and how JAX compiles, are set by its environment.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np

from helpers.gpu import Gpu, lowered
from helpers.spring import run, Spring, START
from jaxdae import State

GPU = Gpu()


def ends(stiffness):
    """Of springs, by the rows of a batch of different ones; and a sum that needs all of them."""
    found = jax.vmap(lambda k: run(Spring(k), backend="native", throw=False).q)(stiffness)
    return found, jax.lax.psum(found.sum(), "members")


def gradient(stiffness, push):
    """Of a sum over all springs by a velocity that they share."""

    def cost(push):
        return jnp.sum(jax.vmap(lambda k: _end(k, push))(stiffness))

    return jax.lax.psum(jax.grad(cost)(jax.lax.pcast(push, "members", to="varying")), "members")


def _end(stiffness, push):
    start = State(START.q, push, START.w)
    return run(Spring(stiffness), start, backend="native", throw=False).q[-1]


def main() -> None:
    """Both devices serve a half of the members."""
    mesh = jax.make_mesh((2,), ("members",), (jax.sharding.AxisType.Auto,))
    own, every = jax.P("members"), jax.P()
    stiffness = np.linspace(1.0, 3.0, 140)
    both = jax.shard_map(ends, mesh=mesh, in_specs=own, out_specs=(own, every))
    pulled = jax.shard_map(gradient, mesh=mesh, in_specs=(own, every), out_specs=every)
    differences = []
    for function, arguments in ((both, (stiffness,)), (pulled, (stiffness, jnp.ones(2)))):
        traced = jax.jit(function).trace(*arguments)
        found = jax.block_until_ready(GPU.compiled(lowered(traced))(*arguments))
        wanted = traced.lower().compile()(*arguments)
        pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
        differences += [float(np.max(np.abs(a - b) / np.abs(b))) for a, b in pairs]
    found = {
        "differences": differences,
        "contexts": sorted(x.context for x in GPU.cuda.launches),
        "loaded": sorted(x.context for x in GPU.cuda.loads),
        "members": [x.words[-1] for x in GPU.cuda.launches],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
