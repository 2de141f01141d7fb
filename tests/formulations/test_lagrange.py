"""Multipliers, penalty and augmented Lagrangian: closed forms, laws, singular problems."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    SingularMassSolve,
    State,
)
from jaxdae.diagnosis import preconditions
from jaxdae.formulations import FullRankSolve
from jaxdae.models import Chain
from jaxdae.systems import constraint_residuals, evaluate

# Sums and solves of systems of at most six unknowns with condition numbers below 1e3.
ROUND_OFF: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-11}

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)


@eqx.filter_jit
def rates(system, formulation, state, t=0.0, u=None):
    """Rate of the state and multipliers, through the public methods of a formulation."""
    y = formulation.init(system, t, state)
    return formulation.vector_field(system, t, y, u), formulation.multipliers(system, t, y, u)


def motion(*args):
    """Acceleration and multipliers."""
    rate, lam = rates(*args)
    return rate.v, lam


@eqx.filter_jit
def perturbation(system, t, state, a):
    """Residuals of the constraints, and their rates along a motion."""
    residual = lambda t, q, v: constraint_residuals(system, t, q, v)  # noqa: E731
    return jax.jvp(residual, (t, state.q, state.v), (jnp.ones_like(t), state.v, a))


def _random_state(rng, n, k=0):
    return State(*(jnp.asarray(rng.normal(size=size)) for size in (n, n, k)))


FORMULATIONS = [
    Multipliers(GAINS),
    Multipliers(GAINS, solve=MinimumNormSolve()),
    Multipliers(GAINS, solve=SingularMassSolve()),
    Penalty(10.0, GAINS),
    AugmentedLagrangian(10.0, GAINS),
]
NAMES = ["full rank", "minimum norm", "singular mass", "penalty", "augmented"]


@pytest.mark.parametrize("formulation", FORMULATIONS, ids=NAMES)
def test_vector_field_and_multipliers_satisfy_the_equations_of_motion(formulation, everything, rng):
    """M a + J^T lam = f holds for the returned pair, at states off the constraints too."""
    state = _random_state(rng, 3, 1)
    y_dot, lam = rates(everything, formulation, state, 0.3, 1.5)
    d = jax.jit(evaluate)(everything, 0.3, state.q, state.v, state.w, 1.5)
    np.testing.assert_allclose(d.mass @ y_dot.v + d.jac.T @ lam, d.force, **ROUND_OFF)
    np.testing.assert_array_equal(y_dot.q, state.v)
    expected = 1.5 - state.w[0] - 0.2 * state.v[2] + 0.1 * state.q[0]
    np.testing.assert_allclose(y_dot.w, [expected], **ROUND_OFF)


@pytest.mark.slow
@pytest.mark.parametrize("solve", [FullRankSolve(), MinimumNormSolve(), SingularMassSolve()])
def test_perturbation_equation_holds_along_the_vector_field(solve, everything, rng):
    """d(phi_dot)/dt along the flow is -K_D df/dt - K_P f and -Gamma g, anywhere."""
    state, t = _random_state(rng, 3, 1), 0.3
    formulation = Multipliers(Baumgarte(K_D=3.0, K_P=7.0, Gamma=11.0), solve=solve)
    a, _ = motion(everything, formulation, state, t, 1.5)
    now, rate = perturbation(everything, jnp.asarray(t), state, a)
    expected = [-3.0 * now.phi_dot[0] - 7.0 * now.phi[0], -11.0 * now.phi_dot[1]]
    np.testing.assert_allclose(rate.phi_dot, expected, **ROUND_OFF)


@pytest.fixture(scope="module")
def two_links():
    """A chain off its constraints, with its exact motion under GAINS."""
    system = Chain.uniform(2)
    rng = np.random.default_rng(5)
    q, v = system.start()
    state = State(q + 0.05 * rng.normal(size=q.size), v + rng.normal(size=q.size))
    return system, state, motion(system, Multipliers(GAINS), state)


@pytest.mark.slow
def test_augmented_lagrangian_converges_geometrically_at_the_rate_of_its_docstring(two_links):
    """Errors fall by 1 / (1 + alpha a_min) an iteration, for small and large alpha."""
    system, state, (a, lam) = two_links
    d = jax.jit(evaluate)(system, 0.0, state.q, state.v)
    least = np.linalg.eigvalsh(d.jac @ np.linalg.solve(d.mass, d.jac.T))[0]
    iterations = (20, 21, 30)
    for alpha in (0.3 / least, 1 / least):
        runs = [motion(system, AugmentedLagrangian(alpha, GAINS, k), state) for k in iterations]
        errors = [np.linalg.norm(run[1] - lam) for run in runs]
        # After twenty iterations the other eigenvalues' parts have died out.
        np.testing.assert_allclose(errors[1] / errors[0], 1 / (1 + alpha * least), rtol=1e-3)
    # 2^-30 of the first error remains.
    np.testing.assert_allclose(runs[-1][1], lam, atol=1e-8 * np.abs(lam).max())
    np.testing.assert_allclose(runs[-1][0], a, atol=1e-8 * np.abs(a).max())


class Held(jaxdae.System):
    """Two masses whose coordinates themselves must vanish: `J = I`."""

    masses: tuple[float, float] = (13.0, 1.0)

    def kinetic_energy(self, t, q, v):
        return 0.5 * jnp.asarray(self.masses, v.dtype) @ v**2

    def position_constraints(self, t, q):
        return q


WEIGHT = np.array([[27.0, -13.0], [-13.0, 7.0]])
STIFFNESS, DAMPING = np.array([[17.0, 13.0], [13.0, 22.0]]), 0.4 * np.eye(2)
INERTIA = np.diag([13.0, 1.0]) + WEIGHT


def _energy_form():
    """Redundant, eq. 27: damping and stiffness of the violation as they are, by eq. 28's `Phi`."""
    inverse = np.linalg.inv(WEIGHT)
    law = jaxdae.LinearStabilization(-inverse @ STIFFNESS, -inverse @ DAMPING)
    return Penalty(jnp.asarray(WEIGHT), law)


def test_redundant_28_is_27_with_damping_and_stiffness_times_the_constraint_mass(rng):
    """27, from energies: `(M + A) a = -(K_D y' + K_P y)`. 28, which is used: `-A` times that."""
    y, y_dot = rng.normal(size=2), rng.normal(size=2)
    used = Penalty(jnp.asarray(WEIGHT), Baumgarte(jnp.asarray(DAMPING), jnp.asarray(STIFFNESS)))
    load = DAMPING @ y_dot + STIFFNESS @ y
    for formulation, push in ((_energy_form(), load), (used, WEIGHT @ load)):
        a, _ = motion(Held(), formulation, State(y, y_dot))
        np.testing.assert_allclose(a, -np.linalg.solve(INERTIA, push), **ROUND_OFF)


@pytest.mark.slow
def test_full_weights_of_28_may_be_unstable_where_27_dissipates():
    """All three matrices are positive definite; `A K_P` is not symmetric, so no energy exists."""
    used = Penalty(jnp.asarray(WEIGHT), Baumgarte(jnp.asarray(DAMPING), jnp.asarray(STIFFNESS)))
    state = State([0.0, 0.0], [0.0, 0.0])

    def growth(formulation):
        H = formulation.perturbation_matrix(Held(), jnp.zeros(()), state)
        return np.linalg.eigvals(np.asarray(H)).real.max()

    def warning(formulation):
        found = preconditions.growth_warning(Held(), formulation, None, state, jnp.zeros(()))
        return "" if found is None else found

    # By hand: det((M + A) s^2 + A K_D s + A K_P) = 0.
    block = np.linalg.solve(INERTIA, WEIGHT)
    by_hand = np.block([[np.zeros((2, 2)), np.eye(2)], [-block @ STIFFNESS, -block @ DAMPING]])
    assert growth(used) == pytest.approx(np.linalg.eigvals(by_hand).real.max(), rel=1e-10)
    assert growth(used) > 0.9
    unstable = jaxdae.LinearStabilization(-STIFFNESS, DAMPING)
    assert "spectrum is in the left half-plane" in warning(Multipliers(unstable))
    assert "root 0.9" in warning(used)
    with pytest.warns(RuntimeWarning, match=r"violations grow with these .* alpha a number or dia"):
        jaxdae.simulate(Held(), used, state, t1=0.01, dt=0.01, solver=diffrax.Euler())
    assert growth(_energy_form()) < -1e-3
    diagonal = Penalty(jnp.diag(jnp.asarray(WEIGHT)), Baumgarte(0.4, jnp.array([17.0, 22.0])))
    assert growth(diagonal) < -1e-3
    assert warning(diagonal) == warning(_energy_form()) == ""


class Rotated(jaxdae.System):
    """A point in space on two surfaces whose two constraint functions are mixed by a matrix."""

    mix: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * (v @ v + 0.5 * v[0] * v[1])

    def potential_energy(self, t, q):
        return 9.81 * q[2]

    def position_constraints(self, t, q):
        return self.mix @ jnp.stack([q @ q - 1, q[0] * q[1] - 0.3 * q[2]])


def _families(gain_d, gain_p, alpha):
    stabilization = Baumgarte(gain_d, gain_p)
    return (
        Multipliers(stabilization),
        Penalty(alpha, stabilization),
        AugmentedLagrangian(alpha, stabilization),
    )


@pytest.mark.parametrize("index", range(3), ids=["multipliers", "penalty", "augmented"])
def test_equal_scalar_diagonal_and_matrix_gains_give_equal_motions(index, rng):
    """k, (k, k) and k I are one gain; (k1, k2) and diag(k1, k2) are another."""
    system, state = Rotated(jnp.eye(2)), _random_state(rng, 3)

    def run(*gains):
        return motion(system, _families(*gains)[index], state)

    ones, eye = np.ones(2), np.eye(2)
    scalar, vector, matrix = run(8.0, 16.0, 5.0), *(run(8 * x, 16 * x, 5 * x) for x in (ones, eye))
    two = np.array([3.0, 9.0])
    diagonal, full = run(two, 2 * two, two), run(np.diag(two), 2 * np.diag(two), np.diag(two))
    for got, expected in ((vector, scalar), (matrix, scalar), (full, diagonal)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **ROUND_OFF), got, expected)
    assert np.abs(diagonal[0] - scalar[0]).max() > 1e-2


# what is built, and what the message must say
BAD_FORMULATIONS = [
    (lambda: Penalty(-1.0), r"alpha must be positive definite, but has a value -1; give positive"),
    (lambda: Penalty(0.0), r"alpha must be positive definite, but has a value 0"),
    (lambda: AugmentedLagrangian(-2.0), r"alpha must be positive definite, but has a value -2"),
    (lambda: Penalty(jnp.array([[1.0, 2.0], [2.0, 1.0]])), r"alpha .* has an eigenvalue -1"),
    (lambda: Penalty(np.inf), r"alpha is not finite: inf"),
    (lambda: AugmentedLagrangian(1.0, iterations=0), r"an integer, at least 1; got 0"),
    (lambda: AugmentedLagrangian(1.0, iterations=2.5), r"an integer, at least 1; got 2\.5"),  # pyright: ignore[reportArgumentType]
]


@pytest.mark.parametrize(("build", "message"), BAD_FORMULATIONS)
def test_inadmissible_weights_are_refused_when_built(build, message):
    """A penalty weight that is not positive definite is named with its value."""
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.slow
@pytest.mark.parametrize("formulation", [Penalty, AugmentedLagrangian])
def test_weight_that_does_not_fit_the_constraints_is_refused(formulation, everything, rng):
    """alpha of three entries for two constraints."""
    message = (
        r"alpha has shape \(3,\), which does not fit 2 constraints; give a scalar, a vector of 2"
    )
    with pytest.raises(ValueError, match=message):
        formulation(jnp.ones(3), GAINS).check(everything, _random_state(rng, 3, 1))


@pytest.mark.slow
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 2.0, -0.5)])
def test_minimum_norm_shares_the_reaction_of_a_repeated_constraint(weights, repeated_rod, rng):
    """Same acceleration as with one row; multipliers in proportion to the rows."""
    state = _random_state(rng, 2)
    gains = Baumgarte(20.0, 100.0)
    a, lam = motion(repeated_rod((1.0,)), Multipliers(gains), state)
    formulation = Multipliers(gains, solve=MinimumNormSolve())
    many_a, many = motion(repeated_rod(weights), formulation, state)
    c = np.array(weights)
    np.testing.assert_allclose(many_a, a, **ROUND_OFF)
    np.testing.assert_allclose(many, lam * c / (c @ c), **ROUND_OFF)


def test_full_rank_policy_is_not_finite_where_the_constraints_depend(repeated_rod):
    """No finite garbage: a singular J gives NaN or infinity, never a plausible number."""
    state = State(jnp.array([1.0, 0.0]), jnp.zeros(2))
    a, lam = motion(repeated_rod((1.0, 1.0)), Multipliers(), state)
    assert not np.isfinite(np.concatenate([a, lam])).any()


def _massless_exact(system, q, v):
    """Reduced system: m x'' = -k x^3 / 2, y = x^2 / 2; the multiplier balances y's force."""
    ax = -system.stiffness * q[0] ** 3 / (2 * system.mass)
    return np.array([ax, q[0] * ax + v[0] ** 2]), np.array([-system.stiffness * q[1]])


@pytest.mark.parametrize("inner", [FullRankSolve(), MinimumNormSolve()])
def test_singular_mass_agrees_with_the_reduced_system(inner, massless):
    """A massless coordinate: acceleration and multiplier are those of the eliminated system."""
    q, v = jnp.array([0.9, 0.405]), jnp.array([1.3, 1.17])
    a, lam = motion(massless, Multipliers(solve=SingularMassSolve(inner)), State(q, v))
    exact_a, exact_lam = _massless_exact(massless, q, v)
    np.testing.assert_allclose(a, exact_a, **ROUND_OFF)
    np.testing.assert_allclose(lam, exact_lam, **ROUND_OFF)


class Guided(jaxdae.System):
    """A point without inertia, led along `y = x^2` with `x = sin(rate t)`, and pulled down."""

    frequency: float = 2.0
    weight: float = 3.0

    def kinetic_energy(self, t, q, v):
        return 0.0 * v @ v

    def potential_energy(self, t, q):
        return self.weight * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q[0] - jnp.sin(self.frequency * t), q[1] - q[0] ** 2])


@pytest.mark.parametrize("inner", [FullRankSolve(), MinimumNormSolve()])
def test_singular_mass_may_be_zero_where_the_constraints_determine_everything(inner):
    """M = 0: the acceleration is that of the guide, and J^T lam = f balances the weight."""
    system, t = Guided(), 0.3
    x, rate = np.sin(2 * t), 2 * np.cos(2 * t)
    state = State(jnp.array([x, x**2]), jnp.array([rate, 2 * x * rate]))
    a, lam = motion(system, Multipliers(GAINS, solve=SingularMassSolve(inner)), state, t)
    exact = [-4 * x, 2 * rate**2 - 8 * x**2]
    np.testing.assert_allclose(a, exact, **ROUND_OFF)
    np.testing.assert_allclose(lam, [-6 * x, -3], **ROUND_OFF)


def test_penalty_stands_a_singular_mass_matrix(massless):
    """Penalty and the augmented Lagrangian approach the reduced system as alpha grows."""
    q, v = jnp.array([0.9, 0.405]), jnp.array([1.3, 1.17])
    exact_a, exact_lam = _massless_exact(massless, q, v)
    for formulation in (Penalty(1e8), AugmentedLagrangian(1e4, iterations=4)):
        a, lam = motion(massless, formulation, State(q, v))
        # 1/alpha = 1e-8, or 1e-16 after four iterations; round-off alpha eps = 1e-8.
        np.testing.assert_allclose(a, exact_a, atol=1e-6)
        np.testing.assert_allclose(lam, exact_lam, atol=1e-6)
