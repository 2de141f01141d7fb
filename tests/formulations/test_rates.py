"""Formulations in velocities that are not rates of coordinates, `q' = N(t, q) v`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.hung_rods import hung
from helpers.top import Top
from jaxdae.formulations import choose_independent, LinearLaw, SparseSolve
from jaxdae.solvers import RK4

LAW = jaxdae.Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


class Framed(jaxdae.System):
    """A system in other velocities, `q' = N(t, q) v`, which also turn in time.

    Its motions are those of the inner one, by the chain rule alone.
    """

    inner: jaxdae.System

    def frame(self, t, q):
        shift = 0.3 * jnp.sin(jnp.outer(q, jnp.arange(1.0, q.size + 1)) + t)
        return jnp.eye(q.size, dtype=q.dtype) * (2 + jnp.cos(t)) + shift

    def rate(self, t, q, v):
        return self.frame(t, q) @ v

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(t, q, self.rate(t, q, v))

    def potential_energy(self, t, q):
        return self.inner.potential_energy(t, q)

    def dissipation(self, t, q, v):
        return self.inner.dissipation(t, q, self.rate(t, q, v))

    def force(self, t, q, v, w, u):
        return self.frame(t, q).T @ self.inner.force(t, q, self.rate(t, q, v), w, u)

    def position_constraints(self, t, q):
        return self.inner.position_constraints(t, q)

    def velocity_constraints(self, t, q, v):
        return self.inner.velocity_constraints(t, q, self.rate(t, q, v))

    def actuator_rate(self, t, q, v, w, u):
        return self.inner.actuator_rate(t, q, self.rate(t, q, v), w, u)


def own_forms(t, q, v):
    """Two quasi-velocities of four, affine in the velocities."""
    return jnp.stack([v[0] + q[2] * v[3], v[3] - jnp.sin(t) * v[1] + 0.2])


@pytest.mark.parametrize(
    "formulation",
    [
        jaxdae.Hamiltonian(LAW),
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (
                jaxdae.VelocityElimination((0, 3)),
                jaxdae.VelocityElimination(),
                jaxdae.QuasiVelocities(),
                jaxdae.QuasiVelocities(own_forms, LAW),
                jaxdae.Multipliers(LAW, SparseSolve()),
                jaxdae.RealizingForces(LinearLaw(3.0)),
            )
        ),
    ],
    ids=lambda x: type(x).__name__,
)
def test_motions_do_not_depend_on_the_velocities_they_are_written_in(formulation, driven, flow):
    """`q'`, `q''`, rates of actuators and multipliers, of a frame that turns with `q` and `t`."""
    t, plain, system = 0.3, driven.start(0.3), Framed(driven)
    reference = jaxdae.Multipliers(LAW)
    if isinstance(formulation, jaxdae.RealizingForces):  # they act off the constraints
        plain, reference = jaxdae.State(plain.q, plain.v + 0.1, plain.w), formulation
    _, expected, lam = flow(driven, reference, plain, t, 1.5)
    v = jnp.linalg.solve(system.frame(t, plain.q), plain.v)
    state, motion, found = flow(system, formulation, jaxdae.State(plain.q, v, plain.w), t, 1.5)
    along = (jnp.ones(()), motion.q, motion.v)
    rate, change = jax.jvp(system.rate, (jnp.asarray(t), state.q, state.v), along)
    # Solves with conditions below 1e3.
    np.testing.assert_allclose(rate, plain.v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(motion.q, plain.v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(change, expected.v, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(motion.w, expected.w, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found, lam, rtol=1e-10, atol=1e-10)
    assert np.abs(lam).min() > 1e-2


class NamedTop(Top):
    """One whose velocities have names."""

    def labels(self):
        return jaxdae.Labels(velocities=("roll", "pitch", "yaw"))


def in_space(q, x):
    """A vector of a body's axes in space, of quaternions `(times, 4)`, by Rodrigues' formula."""
    e, u = q[:, :1], q[:, 1:]
    return x + 2 * np.cross(u, np.cross(u, x) + e * x)


INERTIA = np.array([1.0, 2.0, 3.5])
TUMBLING = jaxdae.State([0.5, 0.1, -0.7, 0.5], [0.01, 1.5, 0.02])


@pytest.mark.parametrize(
    "formulation",
    [jaxdae.Hamiltonian(), pytest.param(jaxdae.VelocityElimination(), marks=pytest.mark.slow)],
    ids=lambda x: type(x).__name__,
)
def test_a_tumbling_top_keeps_its_momentum_in_space(formulation):
    """It turns over about its middle axis; RK4 with 500 steps a turn loses 1e-9."""
    run = jaxdae.simulate(
        NamedTop(jnp.array(INERTIA)), formulation, TUMBLING, t1=10.0, dt=8e-3, solver=RK4()
    )
    q, v = np.asarray(run.q), np.asarray(run.v)
    momentum = in_space(q, INERTIA * v)
    assert v[:, 1].min() < -1.4
    np.testing.assert_allclose(momentum, momentum[:1].repeat(len(q), 0), rtol=0, atol=1e-7)
    np.testing.assert_allclose(0.5 * (INERTIA * v**2).sum(1), run.energy[0], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "formulation",
    [jaxdae.VelocityElimination(), jaxdae.Hamiltonian(LAW), jaxdae.QuasiVelocities()],
    ids=lambda x: type(x).__name__,
)
def test_rods_on_balls_accelerate_alike(formulation, flow):
    """18 velocities and 12 equations, at a state of fast motion."""
    system, start = hung()
    _, expected, lam = flow(system, jaxdae.Multipliers(LAW), start)
    _, motion, found = flow(system, formulation, start)
    np.testing.assert_allclose(motion.q, expected.q, rtol=0, atol=1e-12)
    for one, other in ((motion.v, expected.v), (found, lam)):
        # Conditions below 1e3.
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10 * np.abs(other).max())


class Held(NamedTop):
    """A top that cannot yaw."""

    def velocity_constraints(self, t, q, v):
        return v[2:] + 0.01 * v[1:2]


def test_velocities_are_chosen_by_their_names():
    system = Held(jnp.array(INERTIA))
    q, v = TUMBLING.q, jnp.array([0.2, 1.0, -0.01])
    assert choose_independent(system, 0.0, q) == ("roll", "pitch")

    def run(formulation):
        return jaxdae.simulate(system, formulation, jaxdae.State(q, v), t1=0.1)

    with pytest.raises(
        ValueError, match=r"must name 2 different velocities of roll, pitch, yaw \(3 velocities"
    ):
        run(jaxdae.VelocityElimination("roll"))
    words = (
        r"the independent velocities \(roll, yaw\) do not determine the velocities \(pitch\) at "
        r"t = 0: .* use VelocityElimination\(independent=\('roll', 'pitch',\)\)"
    )
    with pytest.raises(ValueError, match=words):
        run(jaxdae.VelocityElimination(("roll", "yaw"), limit=50.0))
    with pytest.raises(ValueError, match="3 velocities with 1 constraints have 2 free"):
        run(jaxdae.QuasiVelocities(lambda t, q, v: v))
