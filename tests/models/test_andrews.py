"""Andrews' squeezing mechanism against the test set."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Multipliers, simulate
from jaxdae.models import AndrewsMechanism
from jaxdae.models.andrews import END_REFERENCE, START_REFERENCE
from jaxdae.systems import State

SYSTEM = AndrewsMechanism()


def closed_form_mass_matrix(q):
    """Mass matrix as Hairer and Wanner print it (VII.7), by bodies."""
    s = SYSTEM
    m1, m2, m3, m4, m5, m6, m7 = s.masses
    i1, i2, i3, i4, i5, i6, i7 = s.inertias
    _, theta, _, phi, _, omega, _ = q
    rod4, rod6 = s.e - s.ea, s.zf - s.fa
    coupler = m2 * s.da**2 + i2
    coupling12 = coupler - m2 * s.da * s.rr * jnp.cos(theta)
    link4, link6 = m4 * rod4**2 + i4, m6 * rod6**2 + i6
    coupling45 = link4 + m4 * s.zt * rod4 * jnp.sin(phi)
    coupling67 = link6 - m6 * s.u * rod6 * jnp.sin(omega)
    diagonal = [
        m1 * s.ra**2 + i1 + m2 * s.rr**2 + 2 * coupling12 - coupler,
        coupler,
        m3 * (s.sa**2 + s.sb**2) + i3,
        link4,
        m4 * s.zt**2 + 2 * coupling45 - link4 + m5 * (s.ta**2 + s.tb**2) + i5,
        link6,
        m6 * s.u**2 + 2 * coupling67 - link6 + m7 * (s.ua**2 + s.ub**2) + i7,
    ]
    matrix = jnp.diag(jnp.stack([jnp.asarray(x) for x in diagonal]))
    for (i, j), entry in (((0, 1), coupling12), ((3, 4), coupling45), ((5, 6), coupling67)):
        matrix = matrix.at[i, j].set(entry).at[j, i].set(entry)
    return matrix


closed_form_slope = jax.jit(jax.jacfwd(closed_form_mass_matrix))


def spring_torque(gamma):
    """Moment about B of the spring's pull on D, force times lever arm."""
    s = SYSTEM
    b, c = np.array(s.point_b), np.array(s.point_c)
    turn = np.array([[np.cos(gamma), -np.sin(gamma)], [np.sin(gamma), np.cos(gamma)]])
    arm = turn @ np.array([s.sd, -s.sc])
    spring = b + arm - c
    length = np.hypot(*spring)
    pull = -s.c0 * (length - s.l0) * spring / length
    return arm[0] * pull[1] - arm[1] * pull[0]


@pytest.mark.parametrize("seed", range(3))
def test_equations_of_motion_are_the_published_ones(seed, dynamics):
    rng = np.random.default_rng(seed)
    q, v = rng.uniform(-np.pi, np.pi, size=7), 100.0 * rng.normal(size=7)
    d = dynamics(SYSTEM, 0.0, q, v)
    np.testing.assert_allclose(d.mass, closed_form_mass_matrix(q), rtol=1e-12, atol=1e-20)
    # Coriolis forces by Christoffel's symbols of the published matrix
    slope = np.asarray(closed_form_slope(jnp.asarray(q)))
    coriolis = np.einsum("ijk,j,k", slope, v, v) - 0.5 * np.einsum("jki,j,k", slope, v, v)
    force = -coriolis
    force[0] += SYSTEM.mom
    force[2] += spring_torque(q[2])
    np.testing.assert_allclose(d.force, force, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("reference", "residual", "rtol"),
    [
        # 16 digits of the start, through a solve of condition 5e4
        (START_REFERENCE, 1e-17, 1e-11),
        # positions carry PSIDE's tolerance 1e-14; its velocities leave a residual of 1e-9 m/s,
        # which moves the accelerations and multipliers by 1e-6 of their size
        (END_REFERENCE, 1e-15, 1e-5),
    ],
    ids=["start", "end"],
)
def test_references_satisfy_the_equations(reference, residual, rtol, dynamics, saddle_point):
    q, v = jnp.array(reference.q), jnp.array(reference.v)
    d = dynamics(SYSTEM, reference.t, q, v)
    np.testing.assert_allclose(d.phi, 0.0, atol=residual)
    a, lam = saddle_point(SYSTEM, reference.t, q, v)
    np.testing.assert_allclose(a, np.array(reference.a), rtol=rtol, atol=1e-10)
    np.testing.assert_allclose(lam, np.array(reference.multipliers), rtol=rtol, atol=1e-12)


@pytest.mark.slow
def test_solution_has_the_published_digits():
    state = State(*SYSTEM.start())
    sol = simulate(
        SYSTEM,
        Multipliers(),
        state,
        t1=0.03,
        dt=1e-5,
        solver=diffrax.Dopri8(),
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-13),
        saveat=diffrax.SaveAt(t0=True, t1=True),
    )
    assert sol.success
    angle, velocity = (np.asarray(x[-1]) for x in (sol.q, sol.v))
    digits = -np.log10(np.abs(angle / np.array(END_REFERENCE.q) - 1))
    # 9.6 agree at least; integrators of ours at these tolerances agree further with each other
    assert digits.min() > 9.0
    # the reference's own velocities hold to about 1e-8
    np.testing.assert_allclose(velocity, np.array(END_REFERENCE.v), rtol=1e-6)
    # the motor's torque is constant: its work is torque times angle
    work = SYSTEM.mom * float(sol.q[1, 0] - sol.q[0, 0])
    assert float(sol.energy[1] - sol.energy[0]) == pytest.approx(work, rel=1e-9)
