"""Closed mechanisms drawn by seeds against Pinocchio: accelerations, reactions of closures, joints.

`oracles/pinocchio_mechanisms.py` says how they were made.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import (
    Ball,
    Body,
    Connection,
    Free,
    Hinge,
    Multibody,
    reactions_at,
    Slide,
    Weld,
)
from oracles.pinocchio_mechanisms import MECHANISMS

JOINTS = {"hinge": Hinge, "slide": Slide, "ball": Ball, "free": Free}
CLOSURES = {"point": Connection, "weld": Weld}
RESULTS = {"kind", "q", "v", "a", "force", "moment"}


def given(entry):
    return {k: x for k, x in entry.items() if k not in RESULTS}


def mechanism(kept) -> Multibody:
    bodies = [
        Body(**body | {"joints": [JOINTS[x["kind"]](**given(x)) for x in body["joints"]]})
        for body in kept["bodies"]
    ]
    loops = [CLOSURES[x["kind"]](**given(x)) for x in kept["closures"]]
    return Multibody(bodies, loops, gravity=kept["gravity"])


def solve(system, q, v):
    rate, lam = jaxdae.Multipliers().rate_and_multipliers(
        system, 0.0, jaxdae.State(q, v, jnp.zeros(0)), jnp.zeros(0)
    )
    return rate.v, reactions_at(system, 0.0, q, v, rate.v, lam)


# One program for each topology: numbers of Python are its arguments too.
solved = jax.jit(solve)


def check(found, kept):
    """Round-off, some 1e-14 where closures are well posed; other machines may lose more."""
    for part in ("force", "moment"):
        size = max(np.abs(x[part]).max() for x in kept.values())
        for name, wanted in kept.items():
            ours = getattr(found[name], part)
            np.testing.assert_allclose(ours, wanted[part], rtol=0, atol=1e-9 * size)


@pytest.mark.parametrize(
    "topology",
    [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)],
)
def test_accelerations_and_reactions(topology):
    """Springs, dampers and rotors on hinges and slides, fast motions, gravity out of the axes."""
    for kept in json.loads(MECHANISMS.read_text())["topologies"][topology]:
        joints = [x for body in kept["bodies"] for x in body["joints"]]
        q, v, a = (jnp.concatenate([jnp.asarray(x[k]) for x in joints]) for k in "qva")
        found, acting = solved(mechanism(kept), q, v)
        # Round-off, as above.
        np.testing.assert_allclose(found, a, rtol=0, atol=1e-10 * np.abs(a).max())
        held = {x["name"]: x for x in joints if x["kind"] != "free"}
        closed = {x["name"]: x for x in kept["closures"]}
        check({**acting.joints, **acting.loops}, {**held, **closed})


@pytest.mark.slow
def test_accelerations_by_independent_velocities():
    """Four balls, a slide and hinges, two closures: velocities that are not rates."""
    kept = json.loads(MECHANISMS.read_text())["topologies"][2][0]
    joints = [x for body in kept["bodies"] for x in body["joints"]]
    q, v, a = (jnp.concatenate([jnp.asarray(x[k]) for x in joints]) for k in "qva")
    assert q.size - v.size == 4
    formulation, zero = jaxdae.VelocityElimination(), jnp.zeros(())

    @jax.jit
    def accelerate(system, q, v):
        y = formulation.init(system, 0.0, jaxdae.State(q, v))
        rate = formulation.vector_field(system, zero, y, jnp.zeros(0))
        velocities = lambda t, y: formulation.recover(system, t, y).v  # noqa: E731
        return jax.jvp(velocities, (zero, y), (jnp.ones(()), rate))[1]

    found = accelerate(mechanism(kept), q, v)
    np.testing.assert_allclose(found, a, rtol=0, atol=1e-10 * np.abs(a).max())
