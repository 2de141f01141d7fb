"""Recursive dynamics of trees: against the energies, and what is declared wrongly is found."""

import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import Ball, Body, Free, Hinge, Multibody, Slide
from jaxdae.systems import ForwardDynamics


def tree(rng) -> Multibody:
    """Two trees: a free one with all joints, bodies without joints and joints in a row."""

    def vector():
        return 0.3 * rng.normal(size=3)

    def solid():
        parts = 0.1 * rng.uniform(1, 2, 3)
        axes = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        inertia = axes @ np.diag(parts.sum() - parts) @ axes.T
        return {
            "mass": rng.uniform(1, 2),
            "centre": vector(),
            "inertia": inertia,
            "position": vector(),
            "orientation": rng.normal(size=4),
        }

    of_ball, of_base = (jnp.asarray(rng.uniform(0.1, 0.5, k)) for k in (3, 6))
    joints = (
        Hinge("h1", vector(), anchor=vector(), stiffness=2.0, damping=0.1, armature=0.02),
        Slide("s1", vector(), stiffness=3.0),
    )
    return Multibody(
        [
            Body("base", Free("base", armature=of_base), **solid()),
            Body("arm", joints, "base", **solid()),
            Body("plate", (), "arm", **solid()),
            Body(
                "wrist", Ball("ball", vector(), armature=of_ball, damping=0.2), "plate", **solid()
            ),
            Body("hand", Hinge("h2", vector(), anchor=vector()), "wrist", **solid()),
            Body("other", (Ball("ball2", vector()), Slide("s2", vector())), **solid()),
        ]
    )


@pytest.fixture(scope="module")
def moving():
    rng = np.random.default_rng(1)
    system = tree(rng)
    start = system.start()
    q = start.q + 0.3 * rng.normal(size=start.q.size)
    return system, jaxdae.State(q, rng.normal(size=start.v.size))


@pytest.mark.slow
def test_mass_matrix_inertial_forces_and_accelerations_are_those_of_the_energies(moving):
    jaxdae.check_system(*moving)


class Wrong(Multibody):
    """With one of the faster forms changed."""

    which: str = eqx.field(static=True, default="")

    def bias_force(self, t, q, v):
        bias = super().bias_force(t, q, v)
        return bias.at[1].add(1.0) if self.which == "bias" else bias

    def forward_dynamics(self, t, q, v, force) -> Any:
        found = super().forward_dynamics(t, q, v, force)
        assert found is not None
        if self.which == "acceleration":
            return ForwardDynamics(found.acceleration.at[0].add(1.0), found.solve)
        if self.which == "solve":
            return ForwardDynamics(found.acceleration, lambda b: 1.01 * found.solve(b))
        return found.acceleration if self.which == "kind" else found


@pytest.mark.parametrize(
    ("which", "error", "words"),
    [
        ("bias", ValueError, "Wrong.bias_force[1] = "),
        ("acceleration", ValueError, "Wrong.forward_dynamics[0] does not solve the equations of"),
        ("solve", ValueError, "Wrong.forward_dynamics(...).solve["),
        ("kind", TypeError, "Wrong.forward_dynamics returned shape (2,); return jaxdae.systems."),
    ],
)
def test_what_is_declared_wrongly_is_found(which, error, words):
    rod = {"mass": 1.0, "centre": (0, 0, -0.5), "inertia": (0.1, 0.1, 0.02)}
    bodies = [
        Body("upper", Hinge("a", (0, 1, 0)), **rod),
        Body("lower", Hinge("b", (0, 1, 0)), "upper", (0, 0, -1), **rod),
    ]
    state = jaxdae.State(jnp.array([0.3, -0.2]), jnp.array([1.0, 0.5]))
    with pytest.raises(error, match=re.escape(words)):
        jaxdae.check_system(Wrong(bodies, which=which), state)


def test_velocities_of_another_number_are_refused(moving):
    system, state = moving
    with pytest.raises(ValueError, match=re.escape("have 16 velocities; got shape (19,)")):
        system.speeds(state.q)
