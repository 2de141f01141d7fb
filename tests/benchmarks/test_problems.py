"""What the codes are given is one problem: the starts, the equations, the coordinates."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import evaluate, State

CASES = (
    "two_link", "andrews", "chain", "plate", "car_axis", "flexible_slider_crank", "fekete",
)  # fmt: skip


@pytest.fixture(scope="module")
def cases(benchmark):
    problems = benchmark("problems")
    return {x: problems.chain(3) if x == "chain" else getattr(problems, x)() for x in CASES}


@pytest.mark.parametrize("name", CASES)
def test_starts_fulfil_the_constraints_so_that_exact_codes_can_take_them(cases, name):
    case = cases[name]
    d = jax.jit(evaluate)(case.system, 0.0, case.state.q, case.state.v)
    # Round-off of coordinates of order one; the test set prints its start to 30 digits.
    np.testing.assert_allclose(d.phi, 0.0, atol=1e-15)
    speed = max(1.0, float(np.abs(case.state.v).max()))
    np.testing.assert_allclose(d.phi_dot, 0.0, atol=1e-15 * speed)


@pytest.mark.parametrize("name", CASES)
def test_the_competitors_equations_are_ours(benchmark, cases, name, rng):
    """Derived by CasADi, which the extra `test` has."""
    mechanics, base = benchmark("competitors.mechanics"), benchmark("competitors.base")
    case, problem = cases[name], cases[name].problem
    size = 1e-5 if name == "flexible_slider_crank" else 0.02  # of vibrations
    q, v = (x + size * rng.normal(size=x.shape) for x in (problem.q, problem.v))
    equations = mechanics.derive(mechanics.declare(problem))
    d = equations.declaration
    arguments = [d.t, d.q, d.v, equations.K_D, equations.K_P]
    solved = [mechanics.acceleration(equations)]
    function = base.package("casadi").Function("a", arguments, solved)
    gains = np.diag(problem.K_D), np.diag(problem.K_P)
    theirs = np.array(function(0.1, q, v, *gains)).ravel()
    ours = eqx.filter_jit(case.formulation.vector_field)(case.system, 0.1, State(q, v), None).v
    # Two orders of elimination; Andrews' matrix has a condition number of some thousands.
    np.testing.assert_allclose(theirs, ours, atol=1e-12 * float(jnp.max(jnp.abs(ours))))


@pytest.mark.parametrize("name", CASES[:3])
def test_joint_coordinates_of_mujoco_and_back_are_the_identity_on_the_constraints(
    benchmark, cases, name, rng
):
    mujoco_codes, problem = benchmark("competitors.mujoco_codes"), cases[name].problem
    n = len(problem.q)
    y = np.tile(problem.y, (4, 1))
    if name == "chain":
        # Bent anywhere: links of the right length in any direction, turning at any speed.
        angles, spins = rng.uniform(-3, 3, (2, 4, n // 2))
        along = np.stack([np.cos(angles), np.sin(angles)], -1) * 2 / n
        across = np.stack([-along[..., 1], along[..., 0]], -1) * spins[..., None]
        y = np.concatenate([x.cumsum(1).reshape(4, n) for x in (along, across)], axis=1)
    else:
        y[:, :n] += rng.normal(size=(4, n))  # angles are free
    joints = mujoco_codes._from_problem(problem, y)
    back = mujoco_codes._to_problem(problem, joints, joints.shape[1] // 2)
    np.testing.assert_allclose(back, y, atol=1e-13)  # round-off of sums of a few terms


@pytest.mark.slow
def test_the_c_code_by_hand_takes_the_steps_of_the_plain_backend(benchmark, cases):
    hand_written = benchmark("competitors.hand_written")
    batch, ours = benchmark("batch"), benchmark("ours")
    y = batch.starts(cases["two_link"], 128)
    run = hand_written.rk4(np.float64, 5, 1e-3)  # needs a C compiler, as test_c_codes.py does
    expected = ours.vmap_loop(cases["two_link"], jnp.float64, 5, 1e-3)(jnp.asarray(y))
    # Taylor's series of sine and cosine to double precision, and other orders of summation.
    np.testing.assert_allclose(run(np.ascontiguousarray(y.T)).T, expected, rtol=1e-13)
    with pytest.raises(ValueError, match="must be a multiple of 64; got 100"):
        run(np.zeros((4, 100)))
