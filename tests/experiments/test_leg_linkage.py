"""Leg linkage: loops closed as by two triangles, derivatives, and what does not close."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import AssemblyError
from jaxdae.tuning import resolve


@pytest.fixture(scope="module")
def leg_linkage(experiment):
    return experiment("leg_linkage")


@pytest.fixture(scope="module")
def first(leg_linkage):
    return resolve(leg_linkage.first())


def corner(one, other, a, b, side):
    """The point at `a` from one place and at `b` from the other, on one side of their line."""
    apart = other - one
    distance = np.linalg.norm(apart)
    along = (a**2 - b**2 + distance**2) / (2 * distance)
    u = apart / distance
    return one + along * u + side * np.sqrt(a**2 - along**2) * np.array([-u[1], u[0]])


def attached(one, other, place):
    """A point of the bar from one place to the other, in the frame of the bar."""
    u = (other - one) / np.linalg.norm(other - one)
    return one + place[0] * u + place[1] * np.array([-u[1], u[0]])


def foot_by_triangles(leg, angle):
    """By two dyads, with numbers of NumPy alone."""
    x = {name: np.asarray(value) for name, value in vars(leg).items()}
    pin = x["axle"] + x["crank"] * np.array([np.cos(angle), np.sin(angle)])
    joint = corner(pin, x["axle"] + x["lower_pivot"], x["arm"], x["lower"], -1)
    knee = attached(pin, joint, x["knee"])
    hip = corner(knee, x["axle"] + x["upper_pivot"], x["hip"], x["upper"], -1)
    return attached(knee, hip, x["foot"])


def test_loops_close_all_round_as_two_triangles_do(leg_linkage, first):
    found = leg_linkage.examined(first)
    angles = float(first.phase) + np.arange(leg_linkage.FINE + 1) * 2 * np.pi / leg_linkage.FINE
    exact = [foot_by_triangles(first, x) for x in angles]
    np.testing.assert_allclose(found.turn.foot, exact, atol=1e-11)  # of residuals that are zero
    assert found.reopened < 1e-11
    assert found.sine > 0.3


def test_sines_are_the_determinant_of_the_loops(leg_linkage, first):
    """Singular positions: `det dphi/dx = a b c d sin sin` with the lengths of the four bars."""
    system, q = first.mechanism(), jnp.array([0.3, *leg_linkage.GUESS])
    slopes = jax.jacfwd(lambda q: system.position_constraints(0.0, q))(q)[:, 1:]
    arm, leg = q[0] + q[1], q[0] + q[1] + q[2]
    sines = np.sin(arm - q[3]) * np.sin(leg - q[4])
    wanted = first.arm * first.lower * first.hip * first.upper * sines
    np.testing.assert_allclose(abs(np.linalg.det(slopes)), abs(wanted), rtol=1e-12)


def test_a_leg_that_does_not_close_is_refused_by_loop_amount_and_angle(leg_linkage, first):
    away = first.upper_pivot + jnp.array([0.0, 1.0])
    broken = eqx.tree_at(lambda x: x.upper_pivot, first, away)
    words = r"0 degrees past its phase, the mechanism does not close: .*loop 'hip' is open by .* m"
    with pytest.raises(AssemblyError, match=words):
        leg_linkage.examined(broken)


def test_a_leg_between_whose_places_is_a_singular_position_is_refused(leg_linkage, first):
    """A loop that closes, but not where Newton's method began."""
    found = leg_linkage.Turn(*(np.zeros((2, 5)),) * 4)
    with pytest.raises(AssemblyError, match="not next to where they were"):
        leg_linkage._refuse(first, found._replace(q=np.array([[6.0, *leg_linkage.GUESS]] * 2)), 1)


@pytest.mark.slow
def test_some_steps_bring_the_foot_closer(leg_linkage):
    found = leg_linkage.fitted(1, 6)
    assert found.loss < 0.3 * found.initial_loss


@pytest.mark.slow
def test_three_ways_to_differentiate_agree(leg_linkage, first):
    off = leg_linkage.gradients(first)
    assert off["differences"] < 1e-7  # of the second order at steps of 1e-5
    assert off["simulation"] < 1e-6  # a hundred steps of the fourth order, stabilized


@pytest.mark.slow
def test_the_state_nearest_to_a_place_of_the_turn_is_that_place(leg_linkage, first):
    found = leg_linkage.examined(first)
    near = jnp.asarray(found.turn.q[30]).at[1:].add(1e-3)
    state = jaxdae.consistent_state(first.mechanism(), near, jnp.zeros(5), fixed="crank")
    np.testing.assert_allclose(state.q, found.turn.q[30], atol=1e-10)


def test_claims_that_a_run_contradicts_do_not_hold(leg_linkage):
    before = leg_linkage.Examined(None, 0.04, 0.6, 0.05, 0.4, 0.3, 0.0)
    after = leg_linkage.Examined(None, 0.004, 0.3, 0.11, 0.38, 0.25, 0.0)
    known = {
        "examined": {"first": before, "fitted": after},
        "loss": (400.0, 5.0),
        "ends": np.array([20.0, 5.0]),
        "refused": 3,
        "gradients": {"differences": 1e-9, "simulation": 1e-7},
        "refusal": "loop 'pin' is open by 0.1 m",
    }
    assert all(x.holds for x in leg_linkage.claims(known))
    worse = (
        {"examined": {"first": before, "fitted": after._replace(lift=0.2)}},
        {"examined": {"first": before, "fitted": after._replace(sine=0.1)}},
        {"gradients": {"differences": 1e-3, "simulation": 1e-7}},
        {"ends": np.array([4.0, 5.0])},
        {"refusal": ""},
    )
    for i, change in enumerate(worse):
        holds = [x.holds for x in leg_linkage.claims(known | change)]
        assert holds == [j != i for j in range(5)]
