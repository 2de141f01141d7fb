"""Laws that hold for every mechanism, of mechanisms that nobody chose.

Plane bodies in the coordinates of their centres and angles: a chain whose pivot is shaken and whose
end runs in a slot, and one that floats on a blade, open and with velocity constraints. Masses,
places of the pins, springs, dampers and states are drawn; they are arguments of one compiled
program for each kind.
"""

from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, Phase, settings, strategies as st
from hypothesis.extra.numpy import arrays

import jaxdae
from jaxdae import evaluate, State
from jaxdae.kernels import native
from jaxdae.systems import generalized_energy, power_balance

BODIES = 2
KINDS = ["closed", "blade"]
FORMULATIONS = {
    "multipliers": jaxdae.Multipliers(),
    "minimum norm": jaxdae.Multipliers(solve=jaxdae.MinimumNormSolve()),
    "Hamiltonian": jaxdae.Hamiltonian(),
    "null space": jaxdae.NullSpace(),
    "velocity elimination": jaxdae.VelocityElimination(),
    "quasi-velocities": jaxdae.QuasiVelocities(),
}


class Mechanism(jaxdae.System):
    """Bodies in a chain: each is pinned at a place of its own to a place of the one before.

    Coordinates `(x, y, angle)` of each body. Closed, the first is pinned to a pivot that is shaken
    along x, and a place of the last runs in a slot; on a blade neither is held.
    """

    kind: str = eqx.field(static=True)
    masses: jax.Array  # (bodies,)
    inertias: jax.Array  # (bodies,)
    pins: jax.Array  # (bodies, 2), on the body itself
    others: jax.Array  # (bodies, 2), on the body before, or the frame
    tip: jax.Array  # (2,), on the last body
    slot: jax.Array  # (), direction of the slot
    offset: jax.Array  # (), of the slot from the origin
    stiffness: jax.Array  # (), of a spring from the tip to the origin
    damping: jax.Array  # ()
    shake: jax.Array  # ()

    def place(self, body, point, q):
        c, s = jnp.cos(q[3 * body + 2]), jnp.sin(q[3 * body + 2])
        x, y = point
        return q[3 * body : 3 * body + 2] + jnp.stack([c * x - s * y, s * x + c * y])

    def kinetic_energy(self, t, q, v):
        rates = v.reshape(-1, 3)
        squares = self.masses * jnp.sum(rates[:, :2] ** 2, 1) + self.inertias * rates[:, 2] ** 2
        return 0.5 * jnp.sum(squares)

    def potential_energy(self, t, q):
        end = self.place(BODIES - 1, self.tip, q)
        return 9.81 * self.masses @ q[1::3] + 0.5 * self.stiffness * end @ end

    def dissipation(self, t, q, v):
        return 0.5 * self.damping * jnp.sum(v[2::3] ** 2)

    def position_constraints(self, t, q):
        pivot = self.others[0] + self.shake * jnp.stack([jnp.sin(3 * t), jnp.zeros_like(t)])
        rows = [] if self.kind == "blade" else [self.place(0, self.pins[0], q) - pivot]
        rows += [
            self.place(i, self.pins[i], q) - self.place(i - 1, self.others[i], q)
            for i in range(1, BODIES)
        ]
        if self.kind == "closed":
            rows.append((self.normal() @ self.place(BODIES - 1, self.tip, q) - self.offset)[None])
        return jnp.concatenate(rows)

    def normal(self):
        return jnp.stack([jnp.cos(self.slot), jnp.sin(self.slot)])

    def velocity_constraints(self, t, q, v):
        if self.kind != "blade":
            return jnp.zeros(0, q.dtype)
        return (jnp.cos(q[2]) * v[1] - jnp.sin(q[2]) * v[0])[None]


class Drawn(NamedTuple):
    """Numbers that make a mechanism and its state."""

    masses: Any
    inertias: Any
    pins: Any
    others: Any
    tip: Any
    terms: Any  # direction of the slot, stiffness, damping, shaking, time
    angles: Any
    place: Any
    v: Any


DRAWN_ONCE = Drawn(
    *(np.zeros(x) for x in (BODIES, BODIES, (BODIES, 2), (BODIES, 2), 2, 5, BODIES, 2, 3 * BODIES))
)


def numbers(low, high, *shape):
    return arrays(float, shape, elements=st.floats(low, high, width=32))


DRAWN = st.builds(
    Drawn,
    masses=numbers(0.5, 2, BODIES),
    inertias=numbers(0.25, 1, BODIES),
    pins=numbers(-1, 1, BODIES, 2),
    others=numbers(-1, 1, BODIES, 2),
    tip=numbers(-1, 1, 2),
    terms=numbers(0, 3, 5),
    angles=numbers(-3, 3, BODIES),
    place=numbers(-1, 1, 2),
    v=numbers(-2, 2, 3 * BODIES),
)


def made(kind, drawn: Drawn):
    """The mechanism with a consistent state, its time, and the condition of its constraints."""
    slot, stiffness, damping, shake, t = drawn.terms
    zero = jnp.zeros(())
    system = Mechanism(kind, *drawn[:5], slot, zero, stiffness, damping, shake)
    # Body by body: each where its pin is, the first where it likes.
    q = jnp.zeros(3 * BODIES).at[2::3].set(drawn.angles)
    pivot = drawn.others[0] + shake * jnp.stack([jnp.sin(3 * t), zero])
    for i in range(BODIES):
        free = drawn.place if kind == "blade" else pivot
        at = free if i == 0 else system.place(i - 1, drawn.others[i], q)
        q = q.at[3 * i : 3 * i + 2].set(at - system.place(i, drawn.pins[i], q))
    offset = system.normal() @ system.place(BODIES - 1, drawn.tip, q)
    system = eqx.tree_at(lambda x: x.offset, system, offset)
    d = evaluate(system, t, q, drawn.v)
    weighted = jnp.linalg.solve(d.mass, d.jac.T)
    schur = d.jac @ weighted
    v = drawn.v - weighted @ jnp.linalg.solve(schur, d.phi_dot)
    return system, t, State(q, v), jnp.linalg.cond(schur)


def motion(formulation, system, t, state):
    """Velocity, acceleration and multipliers under a formulation."""
    y = formulation.init(system, t, state)
    rate = formulation.vector_field(system, t, y, None)
    back = lambda t, y: formulation.recover(system, t, y)  # noqa: E731
    _, moved = jax.jvp(back, (t, y), (jnp.ones_like(t), rate))
    return moved.q, moved.v, formulation.multipliers(system, t, y, None)


def acceleration(kind, drawn):
    system, t, state, _ = made(kind, drawn)
    return motion(FORMULATIONS["multipliers"], system, t, state)


@eqx.filter_jit
def laws(kind, drawn: Drawn) -> "Laws":
    """All that is compared of motions, from one program."""
    system, t, state, condition = made(kind, drawn)
    q, v = state.q, state.v
    d = evaluate(system, t, q, v)
    motions = {name: motion(x, system, t, state) for name, x in FORMULATIONS.items()}
    _, a, lam = motions["multipliers"]
    tangents = jnp.ones_like(t), v, a
    energy = lambda t, q, v: generalized_energy(system, t, q, v)  # noqa: E731
    _, change = jax.jvp(energy, (t, q, v), tangents)
    power = jnp.stack(power_balance(system, t, q, v, state.w, None, lam))
    consistent = jnp.append(d.phi, d.phi_dot)
    return Laws(condition, jnp.abs(v).max(), consistent, motions, change, jnp.sum(power))


class Laws(NamedTuple):
    """What was computed of a mechanism at a state."""

    condition: jax.Array
    speed: jax.Array
    residuals: jax.Array
    motions: dict
    change: jax.Array  # of the generalized energy, along the motion
    power: jax.Array


few = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


def of_regular(function, kind, drawn):
    """Of a mechanism that is not near a singular position, where all digits are lost."""
    result = function(kind, jax.tree.map(jnp.asarray, drawn))
    assume(result.condition < 1e4)
    assume(result.speed < 20)
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@few
@given(drawn=DRAWN)
def test_formulations_agree_and_energy_changes_by_the_power(kind, drawn):
    result = of_regular(laws, kind, drawn)
    # Round-off of a solve with the condition above, and of the speeds.
    np.testing.assert_allclose(result.residuals, 0.0, atol=1e-10)
    expected = result.motions["multipliers"]
    for name, motion in result.motions.items():
        for one, other in zip(motion, expected, strict=True):
            size = 1 + np.abs(other).max()
            np.testing.assert_allclose(one / size, other / size, atol=1e-9, err_msg=name)
    size = 1 + np.abs(expected[1]).max() * float(result.speed)
    np.testing.assert_allclose(result.change / size, result.power / size, rtol=0, atol=1e-9)


@cache
def kernel(kind):
    shapes = jax.tree.map(jnp.asarray, DRAWN_ONCE)
    return native(lambda *drawn: acceleration(kind, Drawn(*drawn)), *shapes)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@few
@given(drawn=DRAWN)
def test_kernels_are_plain_jax_to_round_off(kind, drawn):
    result = of_regular(laws, kind, drawn)
    expected = result.motions["multipliers"]
    for one, other in zip(kernel(kind)(*map(jnp.asarray, drawn)), expected, strict=True):
        size = (1 + np.abs(other).max()) * (1 + float(result.condition))
        np.testing.assert_allclose(one / size, other / size, rtol=0, atol=1e-13)
