"""Two-link manipulator against the textbook and its closed-form motion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, Penalty
from jaxdae.models import PAPER_RUNS, ReachableTwoLink, TwoLinkManipulator
from jaxdae.models.two_link import PAPER_START_Q, PAPER_START_V

PAPER = TwoLinkManipulator()
REACHABLE = ReachableTwoLink()
FOLDED = jnp.array([np.pi / 2, np.pi])


def constraint_jacobian(system, q):
    return np.asarray(jax.jacfwd(system.position_constraints, 1)(0.0, q))


def test_mass_matrix_is_the_textbook_one(dynamics):
    system = TwoLinkManipulator(length1=0.8, length2=0.6, mass1=1.7, mass2=0.9)
    q, v = np.random.default_rng(0).normal(size=(2, 2))
    l1, l2, m1, m2 = 0.8, 0.6, 1.7, 0.9
    # Spong, Hutchinson, Vidyasagar, Robot Modeling and Control, section on the planar elbow arm
    lc1, lc2, i1, i2 = l1 / 2, l2 / 2, m1 * l1**2 / 12, m2 * l2**2 / 12
    d22 = m2 * lc2**2 + i2
    d12 = d22 + m2 * l1 * lc2 * np.cos(q[1])
    d11 = m1 * lc1**2 + i1 + m2 * l1**2 + 2 * m2 * l1 * lc2 * np.cos(q[1]) + d22
    h = -m2 * l1 * lc2 * np.sin(q[1])
    coriolis = np.array([h * v[1] * (2 * v[0] + v[1]), -h * v[0] ** 2])
    second = m2 * lc2 * 9.81 * np.cos(q[0] + q[1])
    gravity = np.array([(m1 * lc1 + m2 * l1) * 9.81 * np.cos(q[0]) + second, second])
    d = dynamics(system, 0.0, q, v)
    np.testing.assert_allclose(d.mass, [[d11, d12], [d12, d22]], rtol=1e-14)
    np.testing.assert_allclose(d.force, -coriolis - gravity, rtol=1e-13)


def test_jacobian_loses_rank_only_where_the_links_are_in_line():
    for q in np.random.default_rng(1).uniform(-np.pi, np.pi, size=(10, 2)):
        determinant = np.linalg.det(constraint_jacobian(PAPER, q))
        # rows in the order (y, x): the sign of the textbook's L1 L2 sin q2 changes
        np.testing.assert_allclose(determinant, -0.5 * np.sin(q[1]), atol=1e-15)
    values = np.linalg.svd(constraint_jacobian(PAPER, FOLDED), compute_uv=False)
    assert values[0] > 0.5
    assert values[1] < 1e-15


def test_exact_motion_goes_smoothly_through_the_folded_configuration():
    time = float(PAPER.singular_time())
    assert time == pytest.approx(0.4933, abs=5e-5)
    q, v = PAPER.exact_motion(time)
    np.testing.assert_allclose(q, FOLDED, atol=1e-15)
    # q2' = -v / sqrt(L1 L2), and the tip moves across the folded links
    assert float(v[1]) == pytest.approx(-0.6 / np.sqrt(0.5), rel=1e-14)
    before, after = (PAPER.exact_position(time + dt)[1] - np.pi for dt in (-0.1, 0.1))
    assert before > 0.08
    assert after < -0.08


def test_target_leaves_the_reachable_disc_at_the_exit_time():
    time = float(PAPER.exit_time())
    assert time == pytest.approx(2.8503, abs=5e-5)
    # the links are stretched to within the square root of the step
    inside = PAPER.exact_position(time - 1e-9)
    assert float(inside[1]) == pytest.approx(0.0, abs=1e-4)
    assert np.all(np.isnan(PAPER.exact_position(time + 1e-9)))


def test_exact_motion_of_another_height_is_marked():
    system = TwoLinkManipulator(target_height=0.6)
    assert np.all(np.isnan(system.exact_position(0.1)))


def test_paper_start_is_the_exact_start_to_its_digits(dynamics):
    q, v = PAPER.start()
    d = dynamics(PAPER, 0.0, jnp.array(PAPER_START_Q), jnp.array(PAPER_START_V))
    # height and velocities hold to the six digits printed; the x0 printed does not: the tip of
    # the printed angles is at 0.2959655 m, off by 1.25e-5 m
    np.testing.assert_allclose(d.phi, [0.0, 1.25e-5], atol=1e-6)
    np.testing.assert_allclose(d.phi_dot, 0.0, atol=1e-6)
    np.testing.assert_allclose(q, PAPER_START_Q, atol=2e-5)
    np.testing.assert_allclose(v, PAPER_START_V, atol=5e-6)


def test_paper_runs_have_the_printed_gains():
    table = [(run.figure, *run.K_D, *run.K_P, run.alpha) for run in PAPER_RUNS]
    assert table == [
        (2, 20, 10, 100, 25, None),
        (3, 20, 10, 100, 25, 10),
        (4, 20, 10, 100, 250, 3),
        (5, 20, 10, 10, 2500, 50),
    ]
    assert [run.method for run in PAPER_RUNS] == ["multipliers"] + ["penalty"] * 3
    for run in PAPER_RUNS:
        formulation = run.formulation()
        assert isinstance(formulation, Multipliers if run.alpha is None else Penalty)
        assert getattr(formulation, "alpha", None) == run.alpha
        assert isinstance(formulation.stabilization, Baumgarte)
        np.testing.assert_array_equal(formulation.stabilization.K_D, run.K_D)
        np.testing.assert_array_equal(formulation.stabilization.K_P, run.K_P)


def test_reachable_target_stays_within_reach_and_passes_the_fold():
    ts = jnp.linspace(0.0, 20.0, 2001)
    x = jax.vmap(REACHABLE.target_abscissa)(ts)
    distance = np.hypot(x, 0.5)
    assert distance.max() < 1.5 - 0.3
    assert distance.min() >= 0.5
    times = REACHABLE.singular_times(20.0)
    assert np.count_nonzero(np.diff(np.sign(x))) == times.size == 4
    for t in times:
        q, v = REACHABLE.exact_motion(t)
        np.testing.assert_allclose(q, FOLDED, atol=1e-14)
        # through the fold at full speed, not resting on it
        assert abs(float(v[1])) == pytest.approx(0.6 / np.sqrt(0.5), rel=1e-12)
