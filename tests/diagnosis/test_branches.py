"""Near-singular positions at a distance: runs that leave their branch say so, and no others."""

import warnings

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.dependent_mechanisms import on_curve, Table
from helpers.systems import UnitMass
from jaxdae import Baumgarte, Multipliers, Penalty, simulate, SingularityRobust
from jaxdae.models import SliderCrank
from jaxdae.solvers import RK4
from jaxdae.systems import State

GAINS, STIFF = Baumgarte.critical(20.0), Baumgarte.critical(100.0)
ROBUST = Multipliers(solve=SingularityRobust())
CHANGED = "changed to another branch"


class Eight(UnitMass):
    """A free particle of 1 kg on `y^2 = x^2 (1 - x^2) + e`, an eight that `e` opens.

    With `e > 0` it is one closed curve, whose upper part stays above `x = 0`; with `e < 0` there
    are two, one on each side of it.
    """

    e: float = 0.0

    def position_constraints(self, t, q):
        x, y = q
        return (y**2 - x**2 * (1 - x**2) - self.e)[None]

    def at(self, x, speed):
        """A state on the upper right, on its way to the middle."""
        y = jnp.sqrt(x**2 * (1 - x**2) + self.e)
        slope = jnp.stack([-2 * x + 4 * x**3, 2 * y])
        along = jnp.stack([-slope[1], slope[0]]) / jnp.linalg.norm(slope)
        return State(jnp.stack([jnp.asarray(x), y]), speed * along)


def said(system, formulation, state, t1, **how):
    """A run, and what it has warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = simulate(system, formulation, state, t1=t1, **how)
    return run, [str(x.message) for x in caught]


def leaves(q, e):
    """Whether a run leaves the part of the curve on which it has begun."""
    if e < 0:
        return bool((q[:, 0] < 0).any())
    return bool((q[np.abs(q[:, 0]) < 0.3, 1] < 0).any())


METHODS = {
    "Multipliers": (Multipliers(GAINS), {}),
    "fixed steps": (Multipliers(GAINS), {"solver": RK4(), "dt": 0.005}),
    "Penalty": (Penalty(1e4, STIFF), {}),
    "robust": (ROBUST, {}),
}
QUICK = ("Multipliers", "Penalty")
PARAMS = [pytest.param(x, marks=[] if x in QUICK else [pytest.mark.slow]) for x in METHODS]


@pytest.mark.parametrize("name", PARAMS)
def test_a_run_says_that_it_left_its_branch_just_where_it_did(name):
    formulation, how = METHODS[name]
    found = []
    for size in (1e-2, 1e-6, 1e-10, 1e-13):
        for e in (size, -size):
            system = Eight(e)
            run, texts = said(system, formulation, system.at(0.6, 1.0), 1.2, **how)
            left = leaves(np.asarray(run.q), e)
            assert any(CHANGED in x for x in texts) == left, (e, texts)
            found.append(left)
            # By its tolerance it follows each turn of 1e-5 m.
            if name == "Multipliers" and size >= 1e-10:
                assert texts == []
    assert not any(found[:2])
    # Damping is relative to the largest constraint: of one alone nothing fades.
    assert any(found) or name == "robust"


# sqrt(2 sqrt(3) gap): of (x, y, y - x) next to the position with y^2 - x^2 = 2 gap, the shortest.
DISTANCE = np.sqrt(2 * np.sqrt(3.0))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("formulation", "gap", "how"),
    [
        (ROBUST, 1e-12, {}),
        (Penalty(1e4, STIFF), 1e-6, {"saveat": diffrax.SaveAt(t1=True), "work": True}),
        (Penalty(1e4, STIFF), 1e-6, {"saveat": diffrax.SaveAt(ts=jnp.array([0.0, 0.6]))}),
        (Multipliers(GAINS), 1e-14, {"backend": "plain"}),
    ],
    ids=["robust", "only the end, with its work", "two times", "multipliers"],
)
def test_nearly_equal_links_say_how_near_the_branches_are(formulation, gap, how):
    system = SliderCrank(rod_length=1.0 + gap)
    run, texts = said(system, formulation, State(*system.at_crank(0.25 * np.pi, 4.0)), 0.6, **how)
    psi = -np.arcsin(np.sin(run.q[-1, 0]) / (1 + gap))  # above -pi/2 for ever
    assert abs(float(run.q[-1, 1]) - psi) > 1.0
    (text,) = [x for x in texts if CHANGED in x]
    assert f"constraint 'loop y' changed by {1.0 + gap - 1.0:.3g} m" in text
    distance = float(text.split("at the distance ")[1].split(" ")[0])
    # Printed to three digits; the length itself has but two of a gap of 1e-14 m.
    assert distance == pytest.approx(DISTANCE * np.sqrt(gap), rel=2e-2)
    # Equal links are in line at 0.24988 s; rows are 0.003 s apart.
    assert float(text.split("at t = ")[1].split(" ")[0]) == pytest.approx(0.2499, abs=0.004)


@pytest.mark.parametrize(
    ("backend", "end"), [("native", 1.0), pytest.param("plain", -1.0, marks=pytest.mark.slow)]
)
def test_few_rows_are_those_of_a_run_that_is_not_monitored(backend, end):
    """Bit for bit, in any order of equal times: rows on the way are saved, and left out again."""
    system = Eight(1e-2)
    asked = diffrax.SaveAt(ts=end * jnp.array([0.0, 0.3, 0.3, 0.7]))
    how = {"saveat": asked, "backend": backend, "work": True}
    state = system.at(0.6, 1.0)
    run, alone = (simulate(system, ROBUST, state, t1=end, throw=x, **how) for x in (True, False))
    read = lambda x: (x.ts, x.states, x.work, x.final_state, x.final_time)  # noqa: E731
    jax.tree.map(np.testing.assert_array_equal, read(run), read(alone))
    np.testing.assert_array_equal(run.ts, end * np.array([0.0, 0.3, 0.3, 0.7]))
    np.testing.assert_array_equal(run.q[1], run.q[2])
    assert run.final_time == end


@pytest.mark.slow
def test_a_reaction_that_fades_is_reported_before_the_branch_is_lost():
    """The least relative singular value is 1.4e-3 sqrt(gap / 1e-6), the damping 1e-3."""
    formulation = Multipliers(solve=SingularityRobust(damping=1e-3))
    for gap, fades in ((1e-3, False), (1e-4, False), (1e-5, True)):
        system = SliderCrank(rod_length=1.0 + gap)
        _, texts = said(system, formulation, State(*system.at_crank(0.25 * np.pi, 4.0)), 0.6)
        assert [("their reactions fade" in x, "0.001" in x) for x in texts] == [
            (True, True)
        ] * fades


@pytest.mark.slow
def test_damped_solves_stay_in_single_precision():
    """Equal links to round-off: the exact motion goes straight on, and warnings are errors."""
    system = SliderCrank()
    state = jax.tree.map(lambda x: x.astype(jnp.float32), State(*system.start()))
    run = simulate(system, ROBUST, state, t1=0.5)
    assert run.q.dtype == jnp.float32
    # Steps to a tolerance of 1e-5.
    np.testing.assert_allclose(run.q[-1, 1], -run.q[-1, 0], atol=1e-3)


@pytest.mark.slow
def test_superfluous_constraints_are_no_near_singular_position():
    """Off the constraints by the reaction over alpha, they have singular values of that order."""
    system = Table()
    run = simulate(system, Penalty(1e5, STIFF), on_curve(system, 0.9, 0.4), t1=1.0)
    assert bool(run.success)
