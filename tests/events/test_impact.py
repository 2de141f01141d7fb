"""Newton's law of restitution: balances of impulses, constraints and rates, of single states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.systems import DoublePendulum, Massless, RepeatedRod, Turning
from jaxdae import SingularMassSolve
from jaxdae.formulations import NullSpace
from jaxdae.systems import constraint_residuals
from jaxdae.systems.dynamics import mass_and_jacobian
from jaxdae.systems.kinematics import along_motion


class Skate(jaxdae.System):
    """A body in a plane that moves along its own direction."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v**2) @ jnp.array([1.0, 1.0, 0.3])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[0] * jnp.sin(q[2]) - v[1] * jnp.cos(q[2])])


CASES = {
    "free": (DoublePendulum(), [0.3, -0.4], [1.0, 2.0], lambda t, q: q[0] + q[1] ** 2),
    "dependent": (RepeatedRod(), [0.6, -0.8], [0.8, 0.6], lambda t, q: q[0] - 0.3),
    "moving wall": (RepeatedRod(), [0.6, -0.8], [0.8, 0.6], lambda t, q: q[0] - jnp.sin(3 * t)),
    "singular mass": (Massless(), [0.6, 0.18], [1.0, 0.6], lambda t, q: q[1] - t),
    "rates": (
        Turning(), [0.9, 0.1, 0.2, 0.3], [1.0, 2.0, 0.5], lambda t, q: q[0] - q[1] * q[2]
    ),
    "nonholonomic": (Skate(), [0.1, 0.2, 0.5], [1.0, 0.5, 0.7], lambda t, q: q[0] + 0.1 * q[2]),
}  # fmt: skip


@pytest.mark.parametrize(
    "case", [pytest.param(x, marks=pytest.mark.slow) if x == "rates" else x for x in CASES]
)
@pytest.mark.parametrize("restitution", [0.0, 0.7])
def test_an_impact_balances_impulses_and_keeps_constraints(case, restitution):
    """All to round-off: solves of a few equations."""
    system, q, v, gap = CASES[case]
    q, v, t = jnp.array(q), jnp.array(v), jnp.array(0.2)
    if case in ("rates", "nonholonomic"):
        start = jaxdae.consistent_state(system, q, v)
        q, v = start.q, start.v
    solve = SingularMassSolve() if case == "singular mass" else None
    event = jaxdae.impact(system, gap, restitution, name="touch", solve=solve)
    assert event.one_sided
    after = event.after(t, jaxdae.State(q, v))
    np.testing.assert_array_equal(after.q, q)
    rate = lambda v: jax.jvp(gap, (t, q), along_motion(system, t, q, v))[1]  # noqa: E731
    np.testing.assert_allclose(rate(after.v), -restitution * rate(v), rtol=0, atol=1e-12)
    mass, jac = mass_and_jacobian(system, t, q, v)
    np.testing.assert_allclose(jac @ after.v, jac @ v, rtol=0, atol=1e-12)
    # Impulses are those of constraints and contact: what they are not is orthogonal to both.
    impulse, rows = mass @ (after.v - v), jnp.concatenate([jac, jax.grad(rate)(v)[None]])
    rest = impulse - rows.T @ jnp.linalg.lstsq(rows.T, impulse)[0]
    np.testing.assert_allclose(rest, 0, rtol=0, atol=1e-11)
    # The energy falls by (1 - e^2) g'^2 / (2 G), walls that stand still.
    if case in ("free", "dependent", "rates", "nonholonomic"):
        change = after.v - v
        unit = -change / ((1 + restitution) * rate(v))
        gain = jax.grad(rate)(v) @ unit
        energy = 0.5 * (after.v @ mass @ after.v - v @ mass @ v)
        np.testing.assert_allclose(gain, 1.0, rtol=1e-12)
        compliance = 1 / (unit @ mass @ unit)
        expected = -(1 - restitution**2) * rate(v) ** 2 / (2 * compliance)
        np.testing.assert_allclose(energy, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_run_with_dependent_constraints_bounces():
    """A rod that is stated twice, with multipliers of least norm: `v+ = -e v-`.

    But for the part off the constraint, errors of steps of 1e-8, which an impact keeps.
    """
    system = RepeatedRod()
    wall = jaxdae.impact(system, lambda t, q: q[0], 0.8, name="wall")
    state = jaxdae.State(jnp.array([0.6, -0.8]), jnp.zeros(2))
    run = jaxdae.simulate(system, jaxdae.Multipliers(), state, t1=3.0, events=wall, max_events=9)
    count = len(run.events)
    assert count >= 3
    before, after = run.events.before.v[:count], run.events.after.v[:count]
    np.testing.assert_allclose(after, -0.8 * before, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_a_run_in_angular_velocities_bounces():
    """The rate of the gap is that of the coordinates, which velocities are not."""
    system = Turning()
    start = system.start()
    gap = lambda t, q: q[0] - 0.5  # noqa: E731
    run = jaxdae.simulate(
        system, NullSpace(), start, t1=3.0, events=jaxdae.impact(system, gap, 0.5), max_events=9
    )
    count = len(run.events)
    assert count >= 1
    rate = lambda q, v: system.rate(0.0, q, v)[0]  # noqa: E731
    for i in range(count):
        states = run.events.before, run.events.after
        before, after = (jax.tree.map(lambda x, i=i: x[i], s) for s in states)
        expected = -0.5 * rate(before.q, before.v)
        np.testing.assert_allclose(rate(after.q, after.v), expected, rtol=0, atol=1e-12)
        off = constraint_residuals(system, 0.0, after.q, after.v)
        np.testing.assert_allclose(off.phi_dot, 0, rtol=0, atol=1e-7)
