"""The slider-crank through its singular positions: its branch, what is said, where it fails."""

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers
from jaxdae.linalg.saddle_point import FullRankSolve, MinimumNormSolve
from jaxdae.models.slider_crank import SliderCrank
from jaxdae.solvers import GeneralizedAlpha, HalfExplicit, Projected

CRANK = SliderCrank()
START = jaxdae.State(*CRANK.start())
# Both links stand upright, where the slider may also rest and the links turn as one.
UPRIGHT = jaxdae.State(jnp.array([0.5 * np.pi, -0.5 * np.pi, 0.0]), jnp.array([5.0, -5.0, -10.0]))
SOLVERS = [Projected(diffrax.Dopri8()), HalfExplicit()]


def run(state, solver, law, t1=1.0, tolerance=1e-8, **options):
    control = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    given = {"t1": t1, "solver": solver, "stepsize_controller": control} | options
    return jaxdae.simulate(CRANK, law, state, **given)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "tolerance"),
    [*((x, 1e-8) for x in SOLVERS), (GeneralizedAlpha(), 1e-6)],
    ids=["Dopri8", "HalfExplicit", "GeneralizedAlpha"],
)
def test_it_passes_on_its_branch_and_says_so(solver, tolerance):
    law = Multipliers(solve=FullRankSolve())  # of full rank in all states but the position itself
    with pytest.warns(RuntimeWarning, match=r"passed 2 near-singular position.* 0.24988\d, 0.9315"):
        found = run(START, solver, law, tolerance=tolerance)
    assert float(found.q[-1, 0]) > 1.5 * np.pi
    # On the other branch the links would turn together; projections leave 1e-13.
    np.testing.assert_allclose(found.q[:, 0], -found.q[:, 1], atol=1e-12)
    # The error estimate's share of some 50 to 400 steps, of 50 J.
    np.testing.assert_allclose(found.energy, found.energy[0], atol=5e3 * tolerance)


def test_a_start_in_it_is_refused_by_a_policy_of_full_rank():
    with pytest.raises(ValueError, match=r"dependent at t = 0: .* rank 1 of 2 .* 'loop y'"):
        run(UPRIGHT, HalfExplicit(), Multipliers(solve=FullRankSolve()))


def test_a_start_in_it_is_refused_where_a_rank_is_to_be_held():
    """Also where a row is zero there, which otherwise means a constraint that is released."""
    with pytest.raises(ValueError, match=r"rank 1 of 2 .*The rank is larger around the start"):
        run(UPRIGHT, SOLVERS[0], Multipliers(), t1=0.3, max_steps=2000)


@pytest.mark.slow
def test_a_rank_held_from_a_start_in_it_is_named_where_the_run_fails():
    held = Multipliers(solve=MinimumNormSolve(rank=1.0))
    with pytest.raises(
        jaxdae.SimulationError, match=r"The rank of the constraints changed: .* rank 1 .* it is 2"
    ):
        run(UPRIGHT, SOLVERS[0], held, t1=0.3, max_steps=2000)
