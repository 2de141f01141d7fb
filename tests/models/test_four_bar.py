"""Four-bar: against an equation in its crank, cognates, Grashof's condition, power."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.control import inverse_dynamics, motion_derivatives
from jaxdae.models.four_bar import FourBar
from jaxdae.tuning import CrankRocker

SYSTEM = FourBar()
ANGLES = jnp.linspace(0.0, 2 * jnp.pi, 13)
K = complex(*SYSTEM.point) / SYSTEM.lengths[1]


def positions(linkage):
    return jax.vmap(linkage.at_crank)(ANGLES)


def rates_by_hand(q, turn):
    """Rates by the sines of the angles between the links; none of it the library's.

    psi' = a sin(chi - theta) / (b sin(psi - chi)) theta',
    chi' = a sin(psi - theta) / (c sin(psi - chi)) theta'.
    """
    a, b, c, _ = SYSTEM.lengths
    theta, psi, chi = q
    across = np.sin(psi - chi)
    return turn * np.array(
        [1.0, a * np.sin(chi - theta) / (b * across), a * np.sin(psi - theta) / (c * across)]
    )


def energies_by_hand(q, v):
    """Kinetic and potential energy of points in complex numbers."""
    a, _, _, d = SYSTEM.lengths
    crank, coupler, rocker = np.exp(1j * np.asarray(q))
    s = [complex(*x) for x in SYSTEM.centres]
    pin, pivot = a * crank, d * np.exp(1j * SYSTEM.tilt)
    places = [s[0] * crank, pin + s[1] * coupler, pivot + s[2] * rocker]
    places += [pin + complex(*SYSTEM.point) * coupler]
    speeds = [v[0] * s[0] * crank, v[0] * pin + v[1] * s[1] * coupler, v[2] * s[2] * rocker]
    speeds += [v[0] * pin + v[1] * complex(*SYSTEM.point) * coupler]
    masses = np.array([*SYSTEM.masses, SYSTEM.load])
    turning = np.array(SYSTEM.inertias) @ np.asarray(v) ** 2
    kinetic = 0.5 * (masses @ np.abs(speeds) ** 2 + turning)
    return kinetic, SYSTEM.gravity * masses @ np.imag(places)


def test_positions_rates_and_energies_are_those_by_hand():
    for angle in (0.3, 2.0, 4.5):
        q, v = jax.jvp(SYSTEM.at_crank, (angle,), (3.0,))
        np.testing.assert_allclose(SYSTEM.position_constraints(0.0, q), 0.0, atol=1e-15)
        np.testing.assert_allclose(v, rates_by_hand(np.asarray(q), 3.0), rtol=1e-12)
        kinetic, potential = energies_by_hand(q, v)
        assert float(SYSTEM.kinetic_energy(0.0, q, v)) == pytest.approx(kinetic, rel=1e-13)
        assert float(SYSTEM.potential_energy(0.0, q)) == pytest.approx(potential, rel=1e-13)


def torque_by_hand(angle, turn):
    """`Q = A' turn^2 / 2 + V'` of the one equation in the crank, by differences."""
    h = 1e-3

    def reduced(x):
        q = np.asarray(SYSTEM.at_crank(x))
        kinetic, potential = energies_by_hand(q, rates_by_hand(q, 1.0))
        return np.array([2 * kinetic, potential])

    weights = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}
    parts = np.array([c * reduced(angle + k * h) for k, c in weights.items()])
    slope = parts.sum(axis=0) / h
    return slope[0] * turn**2 / 2 + slope[1]


@pytest.mark.parametrize("angle", [0.4, 3.3])
def test_inverse_dynamics_is_the_equation_of_the_crank_alone(angle):
    q, v, a = motion_derivatives(SYSTEM.crank_motion(7.0, angle), 0.0)
    found = inverse_dynamics(SYSTEM, 0.0, q, v, a, controls=1)
    # Differences of fourth order with steps of 1e-3: 1e-12, and round-off over the step.
    assert float(found.u[0]) == pytest.approx(torque_by_hand(angle, 7.0), rel=1e-8)


@pytest.mark.slow
def test_the_motors_work_is_the_energy_and_none_in_a_turn():
    turn, motion = 7.0, SYSTEM.crank_motion(7.0)

    def torque(angle):
        q, v, a = motion_derivatives(motion, angle / turn)
        return inverse_dynamics(SYSTEM, 0.0, q, v, a, controls=1).u[0]

    def energy(angle):
        q, v, _ = motion_derivatives(motion, angle / turn)
        return SYSTEM.kinetic_energy(0.0, q, v) + SYSTEM.potential_energy(0.0, q)

    torques, slopes = jax.jit(jax.vmap(lambda x: (torque(x), jax.grad(energy)(x))))(ANGLES)
    np.testing.assert_allclose(torques, slopes, rtol=1e-11, atol=1e-11)
    # Trapezoids of a periodic analytic function converge faster than any power.
    many = jnp.arange(128) * 2 * jnp.pi / 128
    around = jax.jit(jax.vmap(torque))(many)
    assert abs(float(around.mean())) < 1e-12 * float(jnp.abs(around).max()) * len(many)


def test_the_three_cognates_draw_one_curve():
    """Roberts and Chebyshev; the coordinates of the others follow from those of the first."""
    q = positions(SYSTEM)
    curve = jax.vmap(SYSTEM.tracer)(q)
    driven, other = SYSTEM.cognates()
    x = np.angle(1 - K)
    mapped = jnp.stack([q[:, 0] + x, q[:, 2] + x + np.pi, q[:, 1] + x + np.pi], axis=1)
    swapped = jnp.stack([q[:, 1], q[:, 0], q[:, 2]], axis=1) + np.angle(K)
    for linkage, coordinates in ((driven, mapped), (other, swapped)):
        residual = jax.vmap(lambda q, linkage=linkage: linkage.position_constraints(0.0, q))
        np.testing.assert_allclose(residual(coordinates), 0.0, atol=1e-15)
        np.testing.assert_allclose(jax.vmap(linkage.tracer)(coordinates), curve, atol=1e-15)
    # The one with a crank is assembled on its own branch by itself.
    again = jax.vmap(driven.tracer)(jax.vmap(driven.at_crank)(ANGLES + x))
    np.testing.assert_allclose(again, curve, atol=1e-14)


def test_bars_are_as_their_material():
    """A triangle of three bars by quadrature along each, exact for squares."""
    lengths, point, density = (0.1, 0.3, 0.25, 0.32), jnp.array([0.2, 0.12]), 1.7
    system = FourBar.of_bars(lengths, point, density)
    corners = np.array([[0.0, 0.0], [0.3, 0.0], [0.2, 0.12]])
    nodes, weights = np.polynomial.legendre.leggauss(2)
    s, w = 0.5 * (nodes + 1), 0.5 * weights
    places, masses = [], []
    for first, second in ((0, 1), (0, 2), (1, 2)):
        edge = corners[second] - corners[first]
        places += [corners[first] + x * edge for x in s]
        masses += [density * np.hypot(*edge) * x for x in w]
    places, masses = np.array(places), np.array(masses)
    centre = masses @ places / masses.sum()
    inertia = masses @ np.sum((places - centre) ** 2, axis=1)
    assert float(system.masses[1]) == pytest.approx(masses.sum(), rel=1e-14)
    np.testing.assert_allclose(system.centres[1], centre, rtol=1e-14)
    assert float(system.inertias[1]) == pytest.approx(inertia, rel=1e-13)
    assert float(system.inertias[2]) == pytest.approx(density * 0.25**3 / 12, rel=1e-14)


@pytest.mark.parametrize("lengths", [(0.1, 0.3, 0.25, 0.32), (0.05, 1.0, 0.9, 0.2)])
def test_crank_rockers_are_held_exactly(lengths):
    np.testing.assert_allclose(CrankRocker(lengths).value, lengths, rtol=1e-13)


def test_every_step_of_an_optimizer_leaves_a_crank_that_turns_all_round():
    raw = 2.0 * np.random.default_rng(3).normal(size=(200, 4))
    about = CrankRocker(SYSTEM.lengths)

    def one(raw):
        lengths = jax.tree.map(lambda _: raw, about).value
        q = jax.vmap(FourBar(lengths).at_crank)(ANGLES)
        return lengths, FourBar(lengths).transmission(q)

    lengths, sines = jax.jit(jax.vmap(one))(jnp.asarray(raw))
    a, b, c, d = np.asarray(lengths).T
    # Grashof's condition, with the crank the shortest.
    assert (a < np.minimum(np.minimum(b, c), d)).all()
    assert (np.abs(b - c) < d - a).all()
    assert (a + d < b + c).all()
    # The branch is kept: coupler and rocker never come in line.
    assert (np.asarray(sines) < 0).all()


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((0.1, 0.1, 0.1, 0.5), r"crank \+ ground < coupler \+ rocker does not hold, 0\.6 against"),
        ((0.3, 0.4, 0.1, 0.5), r"\|coupler - rocker\| < ground - crank does not hold, 0\.3 agai"),
        ((0.0, 0.4, 0.1, 0.5), "must be positive numbers"),
        ((0.1, np.nan, 0.1, 0.5), "must be positive numbers"),
        ((0.1, 0.3), r"got shape \(2,\), needs \(4,\)"),
    ],
)
def test_what_is_no_crank_rocker_is_refused(lengths, message):
    with pytest.raises(ValueError, match=message):
        CrankRocker(lengths)


def test_a_crank_that_does_not_reach_is_refused_and_marked_under_jit():
    short = FourBar(lengths=(0.1, 0.1, 0.1, 0.5))
    with pytest.raises(ValueError, match=r"crank at 3\.14159 rad: its pin is 0\.59\d+ m"):
        short.at_crank(np.pi)
    assert np.isnan(jax.jit(short.at_crank)(np.pi)).any()
