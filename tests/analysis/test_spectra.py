"""Theorems about linearization and spectra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.analysis import equilibrium, linearize, spectrum
from jaxdae.formulations import Multipliers
from jaxdae.solvers import RK4
from jaxdae.systems import evaluate

# Eigenvalues of small matrices of order one to a hundred.
TIGHT = 1e-10


def sorted_roots(roots):
    return np.array(sorted(np.asarray(roots), key=lambda z: (round(z.real, 7), round(z.imag, 7))))


def bead_roots(system, stiffness=None):
    """Roots of the bead at the origin, by hand: m s^2 + c s + k + (m g - lift) curvature."""
    k = system.stiffness + (system.mass * system.gravity - system.lift) * system.curvature
    return np.roots([system.mass, system.drag, k if stiffness is None else stiffness])


@pytest.mark.slow
def test_the_bead_has_the_roots_of_its_equation_and_one_zero(bead):
    system = bead()
    linear = linearize(system, equilibrium(system, jnp.zeros(2), u=jnp.zeros(1)))
    found = spectrum(linear)
    np.testing.assert_allclose(
        sorted_roots(found.others), sorted_roots(bead_roots(bead())), atol=TIGHT
    )
    assert found.constraint_zeros == 1
    assert len(found.roots) == 3
    assert found.verdict == "asymptotically stable"
    assert "1 zero roots belong to position constraints" in found.reason
    # The error of the dependent coordinate has rows that are zero exactly.
    assert not np.any(linear.A_full[-1])
    assert not np.any(linear.B_full[-1])


def test_the_redundant_matrix_is_that_of_the_motion_off_the_constraints(bead):
    """Against finite differences of the raw constrained motion in `(x, y, v_x)`."""
    system = bead()
    eq = equilibrium(system, jnp.array([0.3, 0.0]), u=jnp.array([3.0]))
    lin = linearize(system, eq, independent=("x",))

    def motion(s):
        x, y, v = s
        slope = system.curvature * x
        dyn = evaluate(system, 0.0, jnp.stack([x, y]), jnp.stack([v, slope * v]), u=eq.u)
        kkt = np.block([[dyn.mass, dyn.jac.T], [dyn.jac, np.zeros((1, 1))]])
        a = np.linalg.solve(kkt, np.concatenate([dyn.force, -dyn.gamma]))
        return np.array([v, slope * v, a[0]])

    base, h = np.array([eq.q[0], eq.q[1], 0.0]), 1e-5
    columns = [(motion(base + h * e) - motion(base - h * e)) / (2 * h) for e in np.eye(3)]
    raw = np.linalg.eigvals(np.array(columns).T)
    # Central differences: h^2 = 1e-10 of the third derivative, round-off 1e-16 * 10 / 1e-5.
    np.testing.assert_allclose(
        sorted_roots(raw), sorted_roots(np.linalg.eigvals(lin.A_full)), atol=1e-8
    )


@pytest.mark.slow
def test_a_knife_edge_is_stable_and_no_more(knife):
    """Same negative roots as a holonomic system; its equilibria form a line."""
    found = spectrum(linearize(knife, equilibrium(knife, jnp.zeros(3))))
    assert (found.constraint_zeros, found.nonholonomic_zeros) == (0, 1)
    # m x'' + c x' + k x = 0 and I a'' + c a' + k a = 0.
    by_hand = np.concatenate(
        [np.roots([1, knife.drag, knife.spring]), np.roots([0.5, knife.drag, knife.twist])]
    )
    np.testing.assert_allclose(sorted_roots(found.others), sorted_roots(by_hand), atol=TIGHT)
    assert found.verdict == "stable"
    assert "equilibria form a 1-dimensional manifold" in found.reason


@pytest.mark.slow
def test_gyroscopes_alone_leave_the_decision_to_higher_order():
    class Free(jaxdae.System):
        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ v

    found = spectrum(linearize(Free(), equilibrium(Free(), jnp.zeros(2))))
    assert found.verdict == "undecided"
    assert found.accidental_zeros == 4
    assert "zero roots beyond those of the constraints" in found.reason


@pytest.mark.slow
def test_an_undamped_swing_is_stable_by_its_energy():
    class Pendulum(jaxdae.System):
        sign: float = 1.0

        def kinetic_energy(self, t, q, v):
            return 0.5 * v @ v

        def potential_energy(self, t, q):
            return 9.81 * self.sign * q[1]

        def position_constraints(self, t, q):
            return jnp.stack([q @ q - 1.0])

    down, up = (equilibrium(Pendulum(), jnp.array([0.1, y])) for y in (-1.0, 1.0))
    hanging, standing = (spectrum(linearize(Pendulum(), eq)) for eq in (down, up))
    assert hanging.verdict == "stable"
    assert "Lagrange and Dirichlet" in hanging.reason
    np.testing.assert_allclose(np.abs(hanging.others), np.sqrt(9.81), rtol=TIGHT)
    assert standing.verdict == "unstable"
    np.testing.assert_allclose(standing.others.real.max(), np.sqrt(9.81), rtol=TIGHT)
    assert "3.13209 has a positive real part" in standing.reason


def test_a_controller_closes_the_loop(bead):
    system = bead()
    eq = equilibrium(system, jnp.zeros(2), u=jnp.zeros(1))
    closed = linearize(system, eq, controller=lambda *tqvw: -5.0 * tqvw[1][:1])
    k = system.stiffness + system.mass * system.gravity * system.curvature + 5.0
    np.testing.assert_allclose(
        sorted_roots(spectrum(closed).others), sorted_roots(bead_roots(system, k)), atol=TIGHT
    )


@pytest.mark.slow
def test_a_repeated_constraint_changes_no_root(repeated_rod):
    """The hanging pendulum: its two roots, and a zero for the one constraint that counts."""
    eq = equilibrium(repeated_rod((1.0, 2.0)), jnp.array([0.0, -1.0]))
    found = spectrum(linearize(repeated_rod((1.0, 2.0)), eq))
    alone = equilibrium(repeated_rod((1.0,)), jnp.array([0.0, -1.0]))
    wanted = spectrum(linearize(repeated_rod((1.0,)), alone))
    np.testing.assert_allclose(
        sorted_roots(found.others), sorted_roots(wanted.others), rtol=TIGHT, atol=TIGHT
    )
    assert found.constraint_zeros == wanted.constraint_zeros == 1


def test_what_does_not_fit_is_refused(bead):
    system = bead()
    eq = equilibrium(system, jnp.zeros(2), u=jnp.zeros(1))
    with pytest.raises(ValueError, match="2 independent coordinates were given"):
        linearize(system, eq, independent=("x", "y"))
    with pytest.raises(ValueError, match="independent coordinate 5 is out of range: there are 2"):
        linearize(system, eq, independent=(5,))
    # The same coordinate by its index from the end; y cannot be independent at the vertex.
    with pytest.raises(ValueError, match=r"coordinates x by the others.*singular values \[0\."):
        linearize(system, eq, independent=(-1,))
    with pytest.raises(ValueError, match="do not determine the coordinates x"):
        linearize(system, eq, independent=("y",))
    with pytest.raises(ValueError, match="they differ by 1"):
        linearize(system, eq, controller=lambda *_: jnp.ones(1))
    with pytest.raises(ValueError, match="returns 2 controls, the equilibrium has 1"):
        linearize(system, eq, controller=lambda *_: jnp.ones(2))
    with pytest.raises(ValueError, match="name them"):
        jax.jit(lambda eq: linearize(system, eq).A)(eq)


def test_an_equilibrium_found_before_a_compiled_program_is_as_one_found_in_it(bead):
    eq = equilibrium(bead(), jnp.zeros(2), u=jnp.zeros(1))
    with pytest.raises(ValueError, match="name them"):
        jax.jit(lambda x: x * linearize(bead(), eq).A)(1.0)
    for controller in (None, lambda *_: eq.u * 1.0):
        found = lambda x, law=controller: (  # noqa: E731
            x * linearize(bead(), eq, independent=("x",), controller=law).A
        )
        # Round-off of another order of operations.
        np.testing.assert_allclose(jax.jit(found)(1.0), found(1.0), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_roots_have_the_right_derivative_through_the_equilibrium(bead):
    @jax.jit
    def trace_of_square(push):
        eq = equilibrium(bead(), jnp.array([0.2, 0.0]), u=push[None])
        A = linearize(bead(), eq, independent=("x",)).A
        return jnp.trace(A @ A)

    push, h = jnp.array(3.0), 1e-4
    slope = jax.grad(trace_of_square)(push)
    np.testing.assert_allclose(jax.jacfwd(trace_of_square)(push), slope, rtol=1e-10)
    difference = (trace_of_square(push + h) - trace_of_square(push - h)) / (2 * h)
    # h^2 / 6 of a third derivative of order one, round-off 1e-12 / h.
    np.testing.assert_allclose(difference, slope, rtol=1e-6)


STEPS, COUNT = 1500, 32


@eqx.filter_jit
def _linearizations(systems, independent):
    def one(system):
        eq = equilibrium(system, jnp.zeros(4))
        return linearize(system, eq, independent=independent)

    return eqx.filter_vmap(one)(systems)


@eqx.filter_jit
def _consistent_starts(systems, q, v):
    return eqx.filter_vmap(jaxdae.consistent_state)(systems, q, v)


@eqx.filter_jit
def _growth(systems, starts, horizons):
    """Size of `(q, v)` in the first and in the last tenth of the motion from a small start.

    Along one motion the tangent directions come from projecting at the start only.
    """

    def one(system, start, horizon):
        run = jaxdae.simulate(
            system,
            Multipliers(),
            start,
            t1=horizon,
            dt=horizon / STEPS,
            solver=RK4(),
            throw=False,
            start_tolerance=None,
            max_steps=STEPS + 2,
        )
        size = jnp.sqrt(jnp.sum(run.q**2 + run.v**2, axis=1))
        tenth = size.shape[0] // 10
        return jnp.max(size[:tenth]), jnp.max(size[-tenth:]), jnp.max(size)

    return eqx.filter_vmap(one)(systems, starts, horizons)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["general", "rolling"])
def test_no_verdict_is_contradicted_by_simulation(kind, make_random_forces, take_lane):
    """64 random systems, at least 56 of them put to the test: decay, growth or a bounded motion."""
    systems = make_random_forces(kind, COUNT, seed=len(kind))
    independent = (1, 2) if kind == "rolling" else (1, 2, 3)
    batch = jax.tree.map(np.asarray, _linearizations(systems, independent))
    spectra = [spectrum(take_lane(batch, i)) for i in range(COUNT)]
    rng = np.random.default_rng(7)
    size = 1e-5
    starts = _consistent_starts(systems, *(size * rng.normal(size=(2, COUNT, 4))))
    fastest = np.array([np.abs(s.others).max() for s in spectra])
    slowest = np.array([np.abs(s.others.real.max()) for s in spectra])
    # Six time constants of the slowest root, within the accuracy of the fixed step; an unstable
    # motion stays small enough to be governed by its linear part.
    horizons = np.minimum(6 / np.maximum(slowest, 1e-3), 0.5 * STEPS / fastest)
    first, last, largest = map(np.asarray, _growth(systems, starts, jnp.asarray(horizons)))
    verdicts = np.array([s.verdict for s in spectra])
    decided = slowest * horizons > 3
    for i in range(COUNT):
        if verdicts[i] == "asymptotically stable" and decided[i]:
            assert last[i] < 0.5 * first[i], (i, spectra[i])
        elif verdicts[i] == "unstable" and decided[i]:
            assert last[i] > 2 * first[i], (i, spectra[i])
        elif verdicts[i] == "stable":
            # A condition number of the energy, or of the eigenvectors, bounds the transient.
            assert largest[i] < 1e3 * size, (i, spectra[i])
    expected = {
        "general": {"asymptotically stable", "unstable"},
        "rolling": {"stable", "unstable"},
    }[kind]
    assert set(verdicts) == expected
    # At least 28 of each of the two families were put to the test.
    assert (decided | (verdicts == "stable")).sum() >= 28


class Sliding(jaxdae.System):
    """Velocities of which one follows another: `g` vanishes at rest, its terms cancel there.

    With `unit = 1` the drift comes out as -1.4e-17 in place of zero.
    """

    unit: float = 1.0

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.unit * v @ v

    def potential_energy(self, t, q):
        return self.unit * (3.0 * q[2] ** 2 / 1.5 + q[0] ** 2)

    def dissipation(self, t, q, v):
        return 0.25 * self.unit * v @ v

    def velocity_constraints(self, t, q, v):
        gap = v[1] - q[0] * v[2] + 0.1 * (0.2 * (3 * q[2])) - 0.06 * q[2]
        return self.unit * jnp.array([gap])


@pytest.mark.parametrize("unit", [1e-6, 1.0])
def test_a_drift_of_round_off_is_none(unit):
    """`V` does not depend on `q1`: one zero root belongs to the velocity constraint."""
    system = Sliding(unit)
    lin = jaxdae.linearize(system, jaxdae.equilibrium(system, jnp.zeros(3)))
    # Rounded in another order, or not at all, it is the same.
    for drift in (lin.drift, 0 * lin.drift, 0 * lin.drift - 1.4e-17):
        found = jaxdae.spectrum(eqx.tree_at(lambda x: x.drift, lin, drift))
        assert found.nonholonomic_zeros == 1
        assert found.verdict == "stable"
        assert len(found.others) == 4
    moving = eqx.tree_at(lambda x: x.drift, lin, lin.drift + 0.1)
    assert jaxdae.spectrum(moving).nonholonomic_zeros == 0
