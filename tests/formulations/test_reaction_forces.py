"""Forces that depend on the multipliers: friction against closed forms."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Multipliers, SimulationError, SingularMassSolve, State
from jaxdae.formulations.reaction_forces import reaction_law, solve_together
from jaxdae.solvers import GeneralizedAlpha, HalfExplicit, Projected, RadauIIA, Rattle, RK4
from jaxdae.solvers.projected import parts_of

OPTIONS: dict[str, Any] = {"dt": 0.02, "solver": RK4()}


class RoughWire(jaxdae.System):
    """A bead on a rough circular wire, without gravity: `v = v0 exp(-mu theta)`."""

    friction: float = 0.3
    mass: float = 1.4
    radius: float = 0.8

    def kinetic_energy(self, t, q, v):
        return 0.5 * self.mass * v @ v

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.radius**2])

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        normal = 2 * jnp.sqrt(q @ q) * jnp.abs(lam[0])
        return -self.friction * normal * v / jnp.sqrt(v @ v)


class BrakedCar(jaxdae.System):
    """A rigid body on two sliding supports: braking moves load from the rear to the front.

    Coordinates: centre of mass `(x, z)` and pitch, positive nose up; supports at `front` and
    `-rear` along the body, `height` below the centre. Friction acts at the ground.
    """

    friction: float = 0.4
    mass: float = 1.5
    inertia: float = 0.7
    front: float = 0.9
    rear: float = 0.6
    height: float = 0.5
    gravity: float = 9.81

    def kinetic_energy(self, t, q, v):
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + self.inertia * v[2] ** 2)

    def potential_energy(self, t, q):
        return self.mass * self.gravity * q[1]

    def position_constraints(self, t, q):
        z, pitch = q[1], q[2]
        along = jnp.stack([self.front, -self.rear]) * jnp.sin(pitch)
        return z + along - self.height * jnp.cos(pitch)

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        # The ground pushes up with -lam. A force along x at the ground turns the nose down.
        drag = -self.friction * jnp.sign(v[0]) * jnp.sum(-lam)
        return jnp.stack([drag, jnp.zeros_like(drag), drag * self.height * jnp.cos(q[2])])


class SlidingRod(jaxdae.System):
    """Painleve's rod: its lower end slides on a rough line; `q = (x, z, angle)` of the centre."""

    friction: float = 0.3
    mass: float = 1.0
    half: float = 1.0

    def kinetic_energy(self, t, q, v):
        inertia = self.mass * self.half**2 / 3
        return 0.5 * (self.mass * (v[0] ** 2 + v[1] ** 2) + inertia * v[2] ** 2)

    def potential_energy(self, t, q):
        return self.mass * 9.81 * q[1]

    def position_constraints(self, t, q):
        return jnp.stack([q[1] - self.half * jnp.sin(q[2])])

    def reaction_dependent_force(self, t, q, v, w, u, lam):
        # Of the end `(x - half cos angle, z - half sin angle)`, which slides along x.
        slip = v[0] + self.half * jnp.sin(q[2]) * v[2]
        drag = -self.friction * jnp.abs(lam[0]) * jnp.sign(slip)
        return jnp.stack([drag, jnp.zeros_like(drag), drag * self.half * jnp.sin(q[2])])


WIRE, WIRE_START = RoughWire(), State([0.8, 0.0], [0.0, 1.5])


@pytest.mark.slow
def test_bead_on_a_rough_wire_follows_its_closed_form():
    run = jaxdae.simulate(WIRE, Multipliers(), WIRE_START, t1=1.0, work=True, backend="native")
    speed = np.linalg.norm(run.v, axis=1)
    angle = np.unwrap(np.arctan2(run.q[:, 1], run.q[:, 0]))
    # v = v0 / (1 + mu v0 t / r); the tolerance of the run is 1e-8.
    exact = 1.5 / (1 + 0.3 * 1.5 * np.asarray(run.ts) / 0.8)
    np.testing.assert_allclose(speed, exact, rtol=1e-6)
    np.testing.assert_allclose(speed, 1.5 * np.exp(-0.3 * angle), rtol=1e-6)
    np.testing.assert_allclose(run.multipliers[:, 0], 1.4 * exact**2 / (2 * 0.8**2), rtol=1e-5)
    # All energy that is lost is the work of the friction.
    assert run.work.force[-1] == pytest.approx(float(run.energy[-1] - run.energy[0]), abs=1e-7)
    assert run.energy[-1] < 0.6 * run.energy[0]


def braked(car):
    start = State([0.0, car.height, 0.0], [3.0, 0.0, 0.0])
    return Multipliers().motion(car, jnp.zeros(()), start, None)


def test_braking_moves_load_to_the_front_by_statics():
    """N_front = m g (rear + mu height) / base: coupled, affine, and not symmetric."""
    car = BrakedCar()
    a, lam = jax.jit(braked)(car)
    weight, base = car.mass * car.gravity, car.front + car.rear
    loads = np.array([car.rear + car.friction * car.height, car.front - car.friction * car.height])
    np.testing.assert_allclose(-lam, weight * loads / base, rtol=1e-12)
    np.testing.assert_allclose(a, [-car.friction * car.gravity, 0, 0], atol=1e-12)


@pytest.mark.slow
def test_derivatives_of_every_kind_are_those_of_the_statics():
    """N_front is linear, the deceleration's product with it quadratic in the coefficient."""

    def product(mu):
        a, lam = braked(BrakedCar(friction=mu))
        return a[0] * lam[0]

    car = BrakedCar()
    scale = car.mass * car.gravity**2 / (car.front + car.rear)
    first = scale * (car.rear + 2 * 0.4 * car.height)
    for derivative in (jax.grad, jax.jacfwd):
        assert jax.jit(derivative(product))(0.4) == pytest.approx(first, rel=1e-12)
    second = jax.jit(jax.hessian(product))(0.4)
    assert second == pytest.approx(2 * scale * car.height, rel=1e-11)


def rod_state(angle, speed=1.0):
    return State([0.0, np.sin(angle), angle], [speed, 0.0, 0.0])


@jax.jit
def margin_and_acceleration(mu, state):
    rod = SlidingRod(friction=mu)
    law = reaction_law(rod, 0.0, state, None)
    assert law is not None
    d = jaxdae.evaluate(rod, 0.0, state.q, state.v, lam=law.none)
    both = solve_together(law, d, -d.gamma)
    return both.margin, Multipliers().motion(rod, 0.0, state, None)[0]


@pytest.mark.parametrize("angle", [0.6, float(np.arctan(2.0)), 1.3])
def test_painleves_rod_is_determined_up_to_its_known_coefficient(angle):
    """Uniform rod: `mu < (1 + 3 cos^2) / (3 sin cos)`, whose least value is 4/3 at `tan = 2`."""
    sin, cos = np.sin(angle), np.cos(angle)
    critical = (1 + 3 * cos**2) / (3 * sin * cos)
    assert critical >= 4 / 3 - 1e-12
    state = rod_state(angle)
    # det(A -+ mu B) / A = 1 -+ mu / critical.
    for share in (0.5, 0.99, 1.01, 1.5):
        margin, a = margin_and_acceleration(share * critical, state)
        assert margin == pytest.approx(1 - share, abs=1e-12)
        assert bool(np.isfinite(np.asarray(a)).all()) == (share < 1)


def test_a_start_in_painleves_paradox_is_refused():
    message = r"undetermined at t = 0, or nearly so.*Painleve.s paradox.*-0\.5 and must be posi"
    with pytest.raises(ValueError, match=message):
        jaxdae.simulate(SlidingRod(friction=2.0), Multipliers(), rod_state(np.arctan(2.0)), t1=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"max_steps": 2000}, {"dt": 0.002, "solver": RK4()}])
def test_a_run_into_painleves_paradox_says_so(how):
    """It slides upright at first, and turns towards the angle where friction wedges it."""
    start = State([0.0, np.sin(1.45), 1.45], [4.0, -3.0 * np.cos(1.45), -3.0])
    with pytest.raises(SimulationError, match="Painleve's paradox of rigid bodies") as found:
        jaxdae.simulate(SlidingRod(friction=1.5), Multipliers(), start, t1=1.0, **how)
    assert "step is too large" not in str(found.value)


def test_a_law_without_a_value_at_rest_is_named():
    with pytest.raises(ValueError, match=r"are not finite at t = 0.*no direction: write a smooth"):
        jaxdae.simulate(WIRE, Multipliers(), State([0.8, 0.0], [0.0, 0.0]), t1=0.1)


@pytest.mark.slow
def test_a_batch_marks_the_member_in_paradox_and_leaves_the_others():
    """Beside it a member gives what it gives alone; both backends."""

    def run(mu, backend: Any):
        rod = SlidingRod(friction=mu)
        options = {**OPTIONS, "throw": False, "backend": backend}
        sol = jaxdae.simulate(rod, Multipliers(), rod_state(np.arctan(2.0)), t1=0.04, **options)
        return sol.final_state.v, sol.success

    native, plain = (
        jax.vmap(lambda mu, backend=backend: run(mu, backend))(jnp.array([0.3, 2.0, 0.5]))
        for backend in ("native", "plain")
    )
    np.testing.assert_array_equal(native[1], [True, False, True])
    np.testing.assert_array_equal(plain[1], native[1])
    np.testing.assert_allclose(plain[0], native[0], rtol=1e-12)
    np.testing.assert_allclose(run(0.5, "native")[0], native[0][2], rtol=1e-12)


def final(mu, backend: Any = "native"):
    wire = RoughWire(friction=mu)
    run = jaxdae.simulate(wire, Multipliers(), WIRE_START, t1=0.2, backend=backend, **OPTIONS)
    return run.final_state.v[0]


@pytest.mark.slow
def test_gradients_of_runs_agree():
    value, reverse = jax.jit(jax.value_and_grad(final))(0.3)
    plain = jax.jit(lambda mu: final(mu, "plain"))
    # Ten steps of round-off; differences have an error of 1e-10.
    assert value == pytest.approx(float(plain(0.3)), rel=1e-12)
    differences = (plain(0.3 + 1e-5) - plain(0.3 - 1e-5)) / 2e-5
    assert reverse == pytest.approx(float(differences), rel=1e-6)


def test_others_refuse_such_forces_with_a_word():
    state = WIRE_START
    for formulation in (
        jaxdae.Penalty(1e3), jaxdae.Hamiltonian(), jaxdae.VelocityElimination(),
        jaxdae.NullSpace(), Multipliers(solve=jaxdae.formulations.SparseSolve()),
        Multipliers(solve=SingularMassSolve()),
    ):  # fmt: skip
        message = r"RoughWire declares reaction_dependent_force.*Multipliers\(\) on indep"
        with pytest.raises(ValueError, match=message):
            jaxdae.simulate(WIRE, formulation, state, t1=0.1)
    with pytest.raises(ValueError, match="equilibria and linearization cannot take such forces"):
        jaxdae.equilibrium(WIRE, [0.8, 0.0])
    with pytest.raises(ValueError, match="declares reaction_dependent_force"):
        jaxdae.evaluate(WIRE, 0.0, state.q, state.v)


def test_solvers_that_enforce_constraints_name_one_that_finds_such_forces():
    """The formulation is the right one already."""
    for solver in (HalfExplicit(), Rattle(), GeneralizedAlpha(), RadauIIA(), Projected(Rattle())):
        name = type(parts_of(solver).method).__name__
        message = rf"{name} does not find.*Keep .*Multipliers\(\).*in place of {name}, such as"
        with pytest.raises(ValueError, match=message):
            jaxdae.simulate(WIRE, Multipliers(), WIRE_START, t1=0.1, dt=0.05, solver=solver)


@pytest.mark.slow
def test_dependent_constraints_leave_friction_open():
    class Twice(RoughWire):
        def position_constraints(self, t, q):
            one = super().position_constraints(t, q)
            return jnp.concatenate([one, 2 * one])

    with pytest.raises(ValueError, match="Dependent constraints leave the multipliers open"):
        jaxdae.simulate(Twice(), Multipliers(), WIRE_START, t1=0.1)


@pytest.mark.slow
def test_a_force_of_a_wrong_shape_is_named():
    class Wrong(RoughWire):
        def reaction_dependent_force(self, t, q, v, w, u, lam):
            return lam

    with pytest.raises(ValueError, match=r"reaction_dependent_force returned shape \(1,\); expec"):
        jaxdae.simulate(Wrong(), Multipliers(), WIRE_START, t1=0.1)
