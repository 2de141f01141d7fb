"""Velocities that are not rates of coordinates: a body in quaternions and angular velocities."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from scipy.spatial.transform import Rotation

import jaxdae
from helpers.top import Top
from jaxdae.plotting import plot_histories, plot_mechanism
from jaxdae.solvers import RK4
from jaxdae.systems import constraint_residuals

INERTIA = np.array([1.0, 2.0, 3.5])


def rotated(p, x):
    """`R(p) x` of a unit quaternion."""
    e, u = p[0], p[1:]
    return x + 2 * jnp.cross(u, jnp.cross(u, x) + e * x)


def test_a_free_body_obeys_eulers_equations():
    dynamics = jaxdae.evaluate(
        Top(jnp.array(INERTIA)), 0.0, [0.5, 0.1, -0.7, 0.5], [0.3, -0.2, 0.9]
    )
    omega = np.array([0.3, -0.2, 0.9])
    np.testing.assert_allclose(dynamics.mass, np.diag(INERTIA))
    np.testing.assert_allclose(dynamics.force, -np.cross(omega, INERTIA * omega), atol=1e-15)


class HeavyTop(Top):
    """The same with its centre of mass on a rod to a fixed point: 7 coordinates, 6 velocities."""

    mass: float = 1.5
    rod: float = 0.8

    def rate(self, t, q, v):
        return jnp.concatenate([v[:3], super().rate(t, q[3:], v[3:])])

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v[:3] @ v[:3] + super().kinetic_energy(t, q[3:], v[3:])

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[2]

    def position_constraints(self, t, q):
        return q[:3] - rotated(q[3:], jnp.array([0.0, 0.0, 1.0]) * self.rod)

    def points(self, t, q):
        return jaxdae.Points({"pivot": jnp.zeros(3), "centre": q[:3]}, links=(("pivot", "centre"),))


TOP = HeavyTop(jnp.array(INERTIA))
TILT = np.array([np.cos(0.3), np.sin(0.3), 0.0, 0.0])
SPIN = np.array([0.4, -0.3, 6.0])
LAW = jaxdae.Baumgarte(20.0, 100.0)


def start(system=TOP, spin=SPIN):
    centre = rotated(jnp.array(TILT), jnp.array([0.0, 0.0, 1.0]) * system.rod)
    velocity = jnp.cross(rotated(jnp.array(TILT), jnp.array(spin)), centre)
    return jaxdae.State(jnp.concatenate([centre, jnp.array(TILT)]), [*velocity, *spin])


def exact(ts, mass=1.5, rod=0.8):
    """Quaternion and angular velocity by Euler's equations about the fixed point."""
    about = INERTIA + mass * rod**2 * np.array([1.0, 1.0, 0.0])

    def rates(t, y):
        e, u, w = y[0], y[1:4], y[4:]
        up = np.array(rotated(np.array([e, *-u]), np.array([0.0, 0.0, 1.0])))
        torque = np.cross([0.0, 0.0, rod], -mass * 9.81 * up)
        w_dot = (torque - np.cross(w, about * w)) / about
        return np.concatenate([[-0.5 * u @ w], 0.5 * (e * w + np.cross(u, w)), w_dot])

    with jax.disable_jit():
        return solve_ivp(
            rates, (0.0, ts[-1]), [*TILT, *SPIN], "DOP853", ts, rtol=1e-11, atol=1e-11
        ).y.T


FORMULATIONS = {
    "multipliers": jaxdae.Multipliers(LAW),
    "null space": jaxdae.NullSpace(LAW),
    "penalty": jaxdae.Penalty(1e7, jaxdae.Baumgarte(200.0, 1e4)),
    "augmented": jaxdae.AugmentedLagrangian(1e4, LAW, iterations=8),
    "elimination": jaxdae.VelocityElimination(decay=20.0),
    "momenta": jaxdae.Hamiltonian(LAW),
    "quasi-velocities": jaxdae.QuasiVelocities(),
}


@pytest.fixture(scope="module")
def reference():
    return exact(np.linspace(0.0, 0.5, 6))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("null space", "native"),
        pytest.param("multipliers", "native", marks=pytest.mark.slow),
        pytest.param("penalty", "native", marks=pytest.mark.slow),
        pytest.param("augmented", "plain", marks=pytest.mark.slow),
        pytest.param("elimination", "native", marks=pytest.mark.slow),
        pytest.param("momenta", "native", marks=pytest.mark.slow),
        pytest.param("quasi-velocities", "plain", marks=pytest.mark.slow),
    ],
)
def test_a_heavy_top_moves_as_eulers_equations_say(name, backend, reference):
    """The penalty of 1e7 kg gives way by less than 1e-5."""
    run = jaxdae.simulate(TOP, FORMULATIONS[name], start(), t1=0.5, dt=1e-3, backend=backend)
    found = np.concatenate([run.q[::100, 3:], run.v[::100, 3:]], axis=1)
    np.testing.assert_allclose(found, reference, atol=2e-5 if name == "penalty" else 1e-8)
    assert run.backend == backend
    assert (run.q.shape, run.v.shape, run.multipliers.shape) == ((501, 7), (501, 6), (501, 3))
    assert float(run.energy_error) < (1e-3 if name == "penalty" else 1e-7)
    np.testing.assert_allclose(np.linalg.norm(run.q[:, 3:], axis=1), 1.0, atol=1e-9)
    assert np.isfinite(run.least_singular_value)


@pytest.mark.slow
def test_starts_are_projected_along_the_rates():
    """Off the constraint by 0.1 m and turning the wrong way: the quaternion stays one."""
    given = start()
    q = given.q.at[0].add(0.1).at[2].add(-0.05)
    found, report = jaxdae.consistent_state(TOP, q, given.v.at[1].add(0.3), report=True)
    residual = constraint_residuals(TOP, 0.0, found.q, found.v)
    assert max(np.abs(residual.phi).max(), np.abs(residual.phi_dot).max()) < 1e-10
    assert np.linalg.norm(found.q[3:]) == pytest.approx(1.0, abs=1e-6)
    assert (report.dq.shape, report.dv.shape) == ((7,), (6,))
    # By the program of the motion above.
    run = jaxdae.simulate(
        TOP, FORMULATIONS["multipliers"], found, t1=0.5, dt=1e-3, backend="native"
    )
    projected = jaxdae.simulate(
        TOP, jaxdae.Multipliers(), found, t1=0.5, dt=0.01, solver=jaxdae.Projected(RK4())
    )
    assert np.abs(projected.violation.phi).max() < 1e-12
    np.testing.assert_allclose(projected.final_state.q, run.final_state.q, atol=1e-5)


class Geared(Top):
    """With an actuator state."""

    def actuator_rate(self, t, q, v, w, u):
        return -w


@pytest.mark.slow
def test_programs_hold_at_the_nearest_start():
    """Tilt and spin as asked for, against SciPy's minimum over rotation vectors."""
    q, v, w = np.array(TILT), np.array([0.4, -0.3, 2.0]), np.array([1.5])
    axis, metric = np.array([0.0, 0.0, 1.0]), np.r_[INERTIA, INERTIA, 1.0]

    def program(t, q, v, w):
        return jnp.stack([rotated(q, jnp.array(axis))[2] - 0.7, v[2] - w[0]])

    def at(x):
        turn = Rotation.from_quat(np.roll(q, -1)) * Rotation.from_rotvec(x[:3])
        return [turn.apply(axis)[2] - 0.7, v[2] + x[5] - w[0] - x[6]]

    found = jaxdae.consistent_state(Geared(jnp.array(INERTIA)), q, v, w=w, program=program)
    nearest = minimize(
        lambda x: x @ (metric * x) / 2, np.full(7, 0.1), jac=lambda x: metric * x,
        constraints={"type": "eq", "fun": at}, options={"ftol": 1e-15, "maxiter": 200},
    )  # fmt: skip
    turn = Rotation.from_quat(np.roll(q, -1)) * Rotation.from_rotvec(nearest.x[:3])
    np.testing.assert_allclose(program(0.0, found.q, found.v, found.w), 0.0, atol=1e-10)
    # As far as SLSQP's differences of the constraints bring it.
    np.testing.assert_allclose(found.q, np.roll(turn.as_quat(), 1), atol=1e-5)
    np.testing.assert_allclose(np.r_[found.v, found.w], np.r_[v, w] + nearest.x[3:], atol=1e-5)
    kept = jaxdae.consistent_state(
        Geared(jnp.array(INERTIA)), q, v, w=w, program=lambda *x: program(*x)[1:], fixed="w1"
    )
    np.testing.assert_array_equal(kept.w, w)
    np.testing.assert_allclose(kept.v, [0.4, -0.3, 1.5], atol=1e-12)


def height(name, inertia, spin):
    run = jaxdae.simulate(
        HeavyTop(inertia), FORMULATIONS[name], start(TOP, spin), t1=0.3, dt=2e-3,
        solver=RK4(), backend="native", start_tolerance=None, throw=False,
    )  # fmt: skip
    return run.final_state.q[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["multipliers", "elimination", "momenta"])
def test_gradients_by_parameters_and_spin_are_those_of_differences(name):
    point, of = (jnp.array(INERTIA), jnp.array(SPIN)), partial(height, name)
    reverse = jax.grad(of, (0, 1))(*point)
    forward = jax.jacfwd(of, (0, 1))(*point)
    for one, other in zip(reverse, forward, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    for k in range(2):
        for i in range(3):
            step = [jnp.zeros(3), jnp.zeros(3)]
            step[k] = step[k].at[i].set(1e-5)
            ends = [of(*(x + s * d for x, d in zip(point, step, strict=True))) for s in (1, -1)]
            difference = (ends[0] - ends[1]) / 2e-5
            assert reverse[k][i] == pytest.approx(float(difference), rel=1e-6, abs=1e-8)


@pytest.mark.slow
def test_files_tables_and_pictures_know_velocities_by_their_own_names(tmp_path):
    run = jaxdae.simulate(TOP, FORMULATIONS["multipliers"], start(), t1=0.3, dt=0.01)
    loaded = jaxdae.Trajectory.load(run.save(tmp_path / "run"))
    np.testing.assert_array_equal(loaded.coordinate_rates, run.coordinate_rates)
    np.testing.assert_array_equal(loaded.v, run.v)
    assert not loaded.velocities_are_rates
    assert list(run.to_dataframe().columns)[8:14] == [f"v{i}" for i in range(1, 7)]
    assert run.to_xarray().v.dims == ("time", "velocity")
    for one in (run, loaded):
        assert len(plot_histories(one, quantities=("q", "v")).axes) > 1
        assert plot_mechanism(one).axes
    # Rates are slopes of the coordinates.
    slopes = np.gradient(np.asarray(run.q), 0.01, axis=0, edge_order=2)
    np.testing.assert_allclose(run.coordinate_rates[3:-3], slopes[3:-3], atol=2e-2)


@pytest.mark.slow
def test_rates_that_depend_on_time_keep_the_balance_of_energy():
    """A point whose velocity is read in a frame of growing scale moves as it does in any other."""

    class Scaled(jaxdae.System):
        def rate(self, t, q, v):
            return (1 + 0.5 * t) * v

        def kinetic_energy(self, t, q, v):
            return 0.5 * (1 + 0.5 * t) ** 2 * v @ v

        def potential_energy(self, t, q):
            return 9.81 * q[1] + 0.5 * q @ q

    run = jaxdae.simulate(
        Scaled(),
        jaxdae.Multipliers(),
        jaxdae.State([0.3, 1.0], [0.5, -0.2]),
        t1=1.0,
        dt=0.01,
        work=True,
    )
    ts = np.asarray(run.ts)
    x = 0.3 * np.cos(ts) + 0.5 * np.sin(ts)
    y = -9.81 + (1.0 + 9.81) * np.cos(ts) - 0.2 * np.sin(ts)
    np.testing.assert_allclose(run.q, np.stack([x, y], axis=1), atol=1e-11)
    assert float(run.energy_error) < 1e-11


def test_coordinates_are_held_with_all_that_their_velocities_move():
    """A place by itself, at both levels; of a quaternion all four or none."""
    given = start()
    off = given.q.at[1].add(0.01)
    held = jaxdae.consistent_state(TOP, off, given.v, fixed=[1])
    assert float(held.q[1]) == float(off[1])
    assert float(held.v[1]) == float(given.v[1])
    assert np.abs(constraint_residuals(TOP, 0.0, held.q, held.v).phi).max() < 1e-9
    compiled = jax.jit(lambda system, q: jaxdae.consistent_state(system, q, given.v, fixed=[1]).q)
    np.testing.assert_allclose(compiled(TOP, off), held.q, atol=1e-9)
    turned = jaxdae.consistent_state(TOP, off, given.v, fixed=[3, 4, 5, 6])
    np.testing.assert_array_equal(turned.q[3:], TILT)
    np.testing.assert_array_equal(turned.v[3:], SPIN)
    np.testing.assert_allclose(turned.q[:3], given.q[:3], atol=1e-9)
    words = "q4 cannot be held without q5, q6, q7, which the same velocities move; hold all of them"
    with pytest.raises(ValueError, match=words):
        jaxdae.consistent_state(TOP, off, given.v, fixed=[0, 3])


def test_velocities_that_do_not_fit_the_rates_are_refused():
    given = start()
    with pytest.raises(
        ValueError, match="rate takes 6 velocities for 7 coordinates; the state has 7"
    ):
        jaxdae.simulate(TOP, jaxdae.Multipliers(), jaxdae.State(given.q, given.q), t1=0.1)

    class Wrong(HeavyTop):
        def rate(self, t, q, v):
            return super().rate(t, q, v)[:5]

    with pytest.raises(ValueError, match=r"Wrong.rate gives no rates of shape \(7,\)"):
        jaxdae.simulate(
            Wrong(jnp.array(INERTIA)), jaxdae.Multipliers(), jaxdae.State(given.q, given.v), t1=0.1
        )


@pytest.mark.parametrize("wrong", ["square", "constant"])
def test_rates_that_are_not_linear_are_refused(wrong):
    """The equations take `N(t, q) v`; other rates would make a motion, and a wrong one."""

    class Wrong(Top):
        def rate(self, t, q, v):
            rate = super().rate(t, q, v)
            return rate * (1 + v[0] ** 2) if wrong == "square" else rate + 0.1

    system = Wrong(jnp.array(INERTIA))
    start = jaxdae.State([1.0, 0.0, 0.0, 0.0], [0.1, 0.0, 0.2])
    message = r"Wrong\.rate is not linear in the velocities: .* Return N\(t, q\) @ v"
    with pytest.raises(ValueError, match=message):
        jaxdae.simulate(system, jaxdae.Multipliers(), start, t1=0.1)
    with pytest.raises(ValueError, match=message):
        jaxdae.check_system(system, start)
