"""Mechanisms written to files: MuJoCo reads them, and has the same energies."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.multibody import (
    Ball,
    Body,
    Connection,
    Coupling,
    Free,
    Hinge,
    Motor,
    Multibody,
    read_mujoco,
    Screw,
    Slide,
    SpringDamper,
    Weld,
)

TURNED = (0.8, 0.2, -0.4, 0.4)


def body(name, joints, parent=None, **given):
    inertia = np.diag([0.2, 0.3, 0.4]) + 0.01
    numbers = {"position": (0.1, 0.2, 0.3), "orientation": TURNED, "centre": (0.3, 0.1, -0.1)}
    return Body(name, joints, parent, mass=1.3, inertia=inertia, **{**numbers, **given})


SYSTEM = Multibody(
    [
        body("crank", Hinge("swing", (0, 1, 2), 0.3, 2.0, -0.1, 0.4, 0.05, (0.1, 0.0, 0.2))),
        body("rod", [Slide("reach", (1, 2, 0), -0.2, 3.0, 0.1, 0.2, 0.01),
                     Hinge("bend", (1, 0, 0))], "crank"),
        body("bob", Ball("socket", (0.1, 0.2, 0.0), 0.3, 0.02), "rod"),
        body("plate", Free("flight", 0.1, 0.2, (1.0, 2.0, 3.0), TURNED)),
    ],
    loops=[
        Connection("pin", "bob", "plate", (0.1, 0.0, 0.2), (0.3, 0.2, 0.1)),
        Weld("glue", "rod", None, (0.2, 0.1, 0.0), (0.0, 0.3, 0.1), (0.9, 0.1, 0.2, 0.3)),
        Coupling("follow", "bend", "swing", (0.1, 2.0, 0.3), (0.0, 0.3)),
        Coupling("hold", "reach", None, (0.1,), (-0.2, 0.0)),
    ],
    motors=[
        Motor("drive", "swing", 3.0, (2.0, 0.1, 0.2), (0.1, -2.0, -0.3)),
        Motor("late", "reach", dynamics="filter", time_constant=0.2),
    ],
    gravity=(0.5, -1.0, -9.0),
)  # fmt: skip


def numbers(system, q, v, w, u):
    return {
        "energies": (system.kinetic_energy(0.0, q, v), system.potential_energy(0.0, q)),
        "losses": system.dissipation(0.0, q, v),
        "loops": system.position_constraints(0.0, q),
        "force": system.force(0.0, q, v, w, u),
        "rates": system.actuator_rate(0.0, q, v, w, u),
    }


@pytest.mark.slow
def test_what_is_written_is_read_again(rng):
    """Reading compares with MuJoCo; here are all digits of the numbers."""
    read = read_mujoco(SYSTEM.to_mjcf()).system
    q, v = jnp.asarray(rng.normal(size=14)), jnp.asarray(rng.normal(size=12))
    w, u = jnp.array([0.7]), jnp.array([0.3, -0.4])
    for system in (SYSTEM, read):
        assert system.labels().coordinates == SYSTEM.labels().coordinates
    ours, theirs = (jax.jit(numbers)(x, q, v, w, u) for x in (SYSTEM, read))
    for name, value in ours.items():
        for one, other in zip(jax.tree.leaves(value), jax.tree.leaves(theirs[name]), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(SYSTEM.start().q, read.start().q, atol=1e-12)


ARM = Multibody([body("arm", Hinge("swing"))])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"forces": [SpringDamper("strut", "swing", 1.0)]}, "the force 'strut' is a SpringDamper"),
        ({"bodies": [body("arm", Screw("turn"))]}, "the joint 'turn' is a Screw"),
        ({"loops": [Connection("pin", "arm", None, axes="xz")]}, "the loop 'pin' is a Connection"),
        ({"motors": [SpringDamper("strut", "swing")]}, "the motor 'strut' is a SpringDamper"),
        ({"bodies": [body("arm", Ball("turn", damping=jnp.arange(3.0)))]}, "values of damping"),
        ({"bodies": [Body("rod", Hinge("swing"), mass=2.0, inertia=(1.0, 1.0, 0.0))]},
         "the body 'rod' has the mass 2 kg and a least moment of inertia of 0"),
        ({"loops": [Coupling("c", "swing", None, (0.1,), (0.5, 0.0))]}, "from 0.5; files count it"),
        ({"loops": [Coupling("c", "swing", None, np.ones(6))]}, "has 6 coefficients"),
    ],
)  # fmt: skip
def test_what_files_have_not_is_refused(change, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        dataclasses.replace(ARM, **change).to_mjcf()
