"""`Multipliers(solve=SparseSolve())` at a cost that grows with the number of bodies."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from helpers.hung_rods import Hung, hung
from jaxdae.formulations import SparseSolve
from jaxdae.formulations.sparse_solve import dependence, find_sparsity
from jaxdae.models.chain import Chain

STABILIZATION = jaxdae.Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
SPARSE = jaxdae.Multipliers(STABILIZATION, SparseSolve())
DENSE = jaxdae.Multipliers(STABILIZATION)


class Rods(jaxdae.System):
    """Point masses in the plane, tied by rods of any topology."""

    masses: jax.Array
    pairs: tuple = eqx.field(static=True)

    def kinetic_energy(self, t, q, v):
        return 0.5 * jnp.sum(self.masses * jnp.sum(v.reshape(-1, 2) ** 2, axis=1))

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(self.masses * q[1::2])

    def position_constraints(self, t, q):
        # The last position is the support.
        places = jnp.concatenate([q.reshape(-1, 2), jnp.zeros((1, 2), q.dtype)])
        first, second = np.array(self.pairs).T
        return jnp.sum((places[first] - places[second]) ** 2, axis=1) - 1


class PinnedBodies(jaxdae.System):
    """Rigid bodies in the plane, each pinned to the one before it, off its centre of mass.

    The mass matrix couples the three coordinates of each body, and depends on its angle.
    """

    lever: float = 0.3
    count: int = eqx.field(static=True, default=4)

    def kinetic_energy(self, t, q, v):
        angle, (vx, vy, rate) = q[2::3], v.reshape(-1, 3).T
        swing = rate * (vy * jnp.cos(angle) - vx * jnp.sin(angle))
        return jnp.sum(0.5 * (vx**2 + vy**2) + 0.4 * rate**2 + self.lever * swing)

    def potential_energy(self, t, q):
        return 9.81 * jnp.sum(q[1::3] + self.lever * jnp.sin(q[2::3]))

    def position_constraints(self, t, q):
        x, y, angle = q.reshape(-1, 3).T
        along = jnp.stack([jnp.cos(angle), jnp.sin(angle)], axis=1)
        near = jnp.stack([x, y], axis=1)
        tips = jnp.concatenate([jnp.zeros((1, 2), q.dtype), (near + along)[:-1]])
        return (near - tips).reshape(-1)


def state_of(n, seed=0, dtype: type = np.float64):
    rng = np.random.default_rng(seed)
    return jaxdae.State(*(jnp.asarray(rng.uniform(-1, 1, n), dtype) for _ in "qv"))


# A support, then a branching, then a branching of three.
BRANCHES = ((0, 9), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (7, 6), (8, 6))
SYSTEMS = {
    "tree": (Rods(jnp.linspace(0.5, 1.5, 9), BRANCHES), 18),
    "closed loop": (Rods(jnp.ones(6), tuple((i, (i + 1) % 6) for i in range(6))), 12),
    "bodies": (PinnedBodies(), 12),
    "no constraints": (Rods(jnp.ones(2), ((0, 2),)), 4),
}


@eqx.filter_jit
def motion(formulation, system, state, u=None):
    return formulation.motion(system, 0.3, state, u)


def assert_same_motion(system, state, u=None):
    dtype = state.q.dtype
    ours, expected = (motion(f, system, state, u) for f in (SPARSE, DENSE))
    for a, b in zip(ours, expected, strict=True):
        assert a.dtype == dtype
        scale = np.abs(b).max(initial=1.0)
        # Conditions of J M^-1 J^T below 1e3 at these states: a thousand times round-off and sums.
        np.testing.assert_allclose(a / scale, b / scale, atol=1e4 * np.finfo(dtype).eps)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_motion_and_multipliers_are_those_of_dense_matrices(name):
    system, n = SYSTEMS[name]
    assert_same_motion(system, state_of(n))


@pytest.mark.slow
def test_bodies_on_balls_are_as_in_dense_matrices():
    """Velocities that are not rates: 18 of 21 coordinates."""
    assert_same_motion(*hung())


@pytest.mark.slow
def test_velocity_constraints_actuators_and_time_are_as_in_dense_matrices(everything):
    state = jaxdae.State([1.2, -0.9, 0.3], [0.5, 0.4, -0.3], [0.7])
    assert_same_motion(everything, state, u=jnp.array(0.4))


@pytest.mark.slow
def test_gradients_of_both_modes_are_those_of_the_dense_route():
    system, n = SYSTEMS["bodies"]
    arrays, rest = eqx.partition(jax.tree.map(jnp.asarray, system), eqx.is_inexact_array)

    def cost(arrays, q, formulation):
        a, lam = formulation.motion(eqx.combine(arrays, rest), 0.3, jaxdae.State(q, 0.5 * q), None)
        return jnp.sum(jnp.tanh(a)) + jnp.sum(jnp.tanh(lam))

    q = state_of(n).q
    reverse, dense = (
        jax.jit(jax.grad(lambda x, f=f: cost(x[0], x[1], f)))((arrays, q)) for f in (SPARSE, DENSE)
    )
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in (reverse, dense)]
    # Gradients of up to a hundred times the condition.
    np.testing.assert_allclose(flat[0], flat[1], rtol=1e-9, atol=1e-9)
    value = jax.jit(lambda x: cost(x[0], x[1], SPARSE))
    direction = jax.tree.map(jnp.ones_like, (arrays, q))
    forward = jax.jvp(value, ((arrays, q),), (direction,))[1]
    assert float(forward) == pytest.approx(flat[0].sum(), rel=1e-9)


@pytest.mark.slow
def test_dependent_constraints_are_refused_at_the_start():
    system = Rods(jnp.ones(2), ((0, 2), (1, 0), (0, 1)))
    start = jaxdae.State([0.6, 0.8, 1.6, 0.8], [0.0] * 4)
    with pytest.raises(ValueError, match=r"constraints are dependent at t = 0: .* rank 2 of 3"):
        jaxdae.simulate(system, SPARSE, start, t1=0.1, dt=0.01, backend="plain")


def test_no_array_is_as_large_as_a_matrix():
    n = 400
    system, state = Chain.uniform(n // 2), state_of(n)
    jaxpr = jax.make_jaxpr(lambda y: SPARSE.motion(system, 0.0, y, None))(state)
    largest = largest_array(jaxpr.jaxpr)
    # Four directional derivatives of two coordinates a link are the largest.
    assert n <= largest <= 10 * n


def largest_array(jaxpr):
    """Entries of the largest array that a program makes, in what it calls too."""
    found = [np.prod(v.aval.shape) for e in jaxpr.eqns for v in e.outvars]
    values = [list(e.params.values()) for e in jaxpr.eqns]
    inner = [x for x in jax.tree.leaves(values, is_leaf=is_program) if is_program(x)]
    found += [largest_array(getattr(x, "jaxpr", x)) for x in inner]
    return int(max(found, default=0))


def is_program(x):
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")


def test_sparsity_of_a_chain_is_its_bandwidth():
    pattern = find_sparsity(Chain.uniform(5), state_of(10))
    rows, columns = pattern.mass
    np.testing.assert_array_equal(rows, columns)
    expected = [(i, j) for i in range(5) for j in range(10) if j // 2 in (i, i - 1)]
    assert list(map(tuple, pattern.jac.T.tolist())) == expected
    assert find_sparsity(Chain.uniform(5), state_of(10, seed=1)) is pattern


class Coupled(jaxdae.System):
    """Masses whose inertial coupling is a parameter, which may be zero."""

    coupling: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v + jnp.sum(self.coupling * v[:-1] * v[1:])


def test_a_parameter_that_is_zero_now_is_not_zero_by_structure():
    pattern = find_sparsity(Coupled(jnp.zeros(2)), state_of(3))
    rows, columns = pattern.mass
    np.testing.assert_array_equal(np.abs(rows - columns) <= 1, True)
    assert rows.size == 7
    assert_same_motion(Coupled(jnp.full(2, 0.3)), state_of(3))


def test_dependence_follows_every_kind_of_operation():
    def function(x):
        turned = jax.lax.fori_loop(0, 2, lambda _, y: jnp.roll(y, 1), x)
        chosen = jnp.where(x[3] > 0, turned[0], 1.0)
        return jnp.stack([jnp.sum(x[:2] * 0.0), jnp.sin(turned[0]), chosen, x[0] * x[1]])

    found = dependence(function, 0, jnp.zeros(4))
    # turned[0] is x[2].
    expected = [[0, 0, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1], [1, 1, 0, 0]]
    np.testing.assert_array_equal(found, np.array(expected, bool))


def test_a_mass_matrix_that_couples_too_much_is_refused():
    formulation = jaxdae.Multipliers(solve=SparseSolve())
    state = state_of(17)
    with pytest.raises(ValueError, match=r"couples 17 coordinates.*up to 16.*or Multipliers"):
        formulation.check(Coupled(jnp.ones(16)), state)


def test_it_is_a_way_to_solve_for_multipliers_alone():
    with pytest.raises(ValueError, match=r"Hamiltonian takes matrices .* use Multipliers"):
        jaxdae.Hamiltonian(solve=jaxdae.formulations.SparseSolve())  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        ValueError, match=r"takes arrays, SparseSolve has none; give SingularMassSolve\(\)"
    ):
        jaxdae.SingularMassSolve(jaxdae.formulations.SparseSolve())  # pyright: ignore[reportArgumentType]


class Iterated(Coupled):
    """A constraint that is the limit of an iteration."""

    def position_constraints(self, t, q):
        limit = jax.lax.while_loop(lambda x: x > 0.5, lambda x: 0.5 * x, q[0])
        return jnp.stack([limit + q[1]])


@pytest.mark.slow
def test_a_declaration_that_cannot_be_followed_is_refused():
    with pytest.raises(ValueError, match=r"cannot be found: while .* Leave SparseSolve\(\) out"):
        find_sparsity(Iterated(jnp.ones(2)), state_of(3))


def test_the_sparse_solve_makes_no_matrix_of_all_rates():
    """80 bodies: of 480 velocities no array has more than some entries each."""
    bodies, rng = 80, np.random.default_rng(0)
    state = jaxdae.State(*(rng.normal(size=k * bodies) for k in (7, 6)))
    system = Hung(jnp.ones((bodies, 3)))
    program = jax.make_jaxpr(lambda y: SPARSE.motion(system, 0.0, y, None))(state)
    # Six directional derivatives of all velocities, and blocks of a body, are the largest.
    assert largest_array(program.jaxpr) <= 60 * bodies * 6


class CoupledRates(jaxdae.System):
    """Rates that all depend on all velocities."""

    def rate(self, t, q, v):
        return v + jnp.sum(v) * 0.1

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v


def test_rates_that_couple_too_much_are_refused_by_the_sparse_solve():
    state = jaxdae.State(jnp.ones(40), jnp.ones(40))
    message = r"N\^T N of the rates \(System.rate\) couples 40 coordinates with each other"
    with pytest.raises(ValueError, match=message):
        jaxdae.simulate(CoupledRates(), SPARSE, state, t1=0.1)
