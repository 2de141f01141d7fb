"""RATTLE: order, constraints, symplecticity, reversibility, energies, derivatives, refusals."""

from functools import partial
from itertools import product
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.models.chain import Chain
from jaxdae.models.pendulum import CartesianPendulum
from jaxdae.models.slider_crank import SliderCrank
from jaxdae.solvers import ConstrainedTerm, Projected, Rattle, rattle as coefficients
from jaxdae.systems.dynamics import momentum

END = diffrax.SaveAt(t1=True)
BACKENDS = [pytest.param("plain"), pytest.param("native")]


class Pendulum(jaxdae.System):
    """Unit mass on a circle: `q = (cos a, sin a)`, `a' = exp(-t / 2)`, `lam = a'^2 / 2`."""

    copies: int = 1

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def dissipation(self, t, q, v):
        del t, q
        return 0.25 * v @ v

    def position_constraints(self, t, q):
        del t
        return (q @ q - 1.0) * jnp.arange(1.0, 1.0 + self.copies)


START = jaxdae.State(jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0]))


class Swing(jaxdae.System):
    """A mass that depends on its place, on a rope of varying length from a moving support."""

    def kinetic_energy(self, t, q, v):
        del t
        return 0.5 * v @ v * (1 + 0.1 * q[0] ** 2)

    def potential_energy(self, t, q):
        del t
        return 9.81 * q[1]

    def position_constraints(self, t, q):
        length = 1 + 0.1 * jnp.cos(2 * t)
        return jnp.stack([(q[0] - 0.2 * jnp.sin(3 * t)) ** 2 + q[1] ** 2 - length**2])


SWINGING = jaxdae.consistent_state(Swing(), jnp.array([0.5, -0.9]), jnp.array([0.3, 0.2]))


class Driven(Swing):
    """The same with momenta of a moving frame, friction, an actuator and a control input."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v * (1 + 0.1 * q[0] ** 2) + jnp.sin(t) * q[1] * v[0]

    def dissipation(self, t, q, v):
        del t, q
        return 0.3 * (v @ v) ** 1.5

    def force(self, t, q, v, w, u):
        del t, v
        return jnp.stack([w[0] * q[1], u])

    def actuator_rate(self, t, q, v, w, u):
        del q
        return jnp.stack([-5.0 * w[0] + v[0] + jnp.sin(t) * u])


DRIVEN = jaxdae.consistent_state(
    Driven(), jnp.array([0.5, -0.9]), jnp.array([0.3, 0.2]), w=jnp.array([0.4])
)


def feedback(t, q, v, w):
    del q
    return -0.5 * v[1] + 0.1 * w[0] + jnp.cos(3 * t)


class Rolling(jaxdae.System):
    """On a sphere, with a rolling contact that depends on time."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 3 * q[0] + q[1]

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q[:3] @ q[:3] - 1.0])

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[3] - q[0] * v[1] + 0.2 * jnp.sin(t)])


ROLLING = jaxdae.consistent_state(
    Rolling(), jnp.array([0.3, 0.1, 0.9, 0.0]), jnp.array([1.0, 0.5, 0.7, 0.1])
)


class AppellHamel(jaxdae.System):
    """A constraint that is not affine in the velocities."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        del t
        return 0.7 * q[2] + 0.5 * q[0] ** 2

    def velocity_constraints(self, t, q, v):
        del t, q
        return jnp.stack([v[0] ** 2 + v[1] ** 2 - v[2] ** 2])


PULLED = jaxdae.State(jnp.zeros(3), jnp.array([0.6, 0.8, 1.0]))


class Turning(jaxdae.System):
    """A rigid body in a field, by a quaternion and angular velocities, one point on a surface."""

    def rate(self, t, q, v):
        del t
        w, x, y, z = q
        return 0.5 * jnp.array([[-x, -y, -z], [w, -z, y], [z, w, -x], [-y, x, w]]) @ v

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * (v**2) @ jnp.array([1.0, 2.0, 3.0])

    def potential_energy(self, t, q):
        del t
        return 2.0 * (q[1] * q[3] - q[0] * q[2]) + q[0] ** 2 - q[1] ** 2

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q[1] * q[2] + q[0] * q[3]])


TURNING = jaxdae.consistent_state(
    Turning(), jnp.array([0.9, 0.1, 0.2, 0.3]) / 0.95**0.5, jnp.array([1.0, 2.0, 0.5])
)


def run(system: Any, state=START, **options):
    settings: dict[str, Any] = {"t1": 1.0, "solver": Rattle(), "saveat": END} | options
    return jaxdae.simulate(system, jaxdae.Multipliers(), state, **settings)


def stepped(system, state, order=2, control=None):
    """End and multipliers of a run by diffrax, a function of the step and the times."""
    term = ConstrainedTerm(lambda _, t, x: None if control is None else control(t, x.q, x.v, x.w))
    args = (system, None, None)

    @jax.jit
    def end(dt, t0=0.0, t1=1.0, state=state):
        made = diffrax.diffeqsolve(
            term,
            Rattle(order),
            t0,
            t1,
            dt,
            (state, None),
            args=args,
            saveat=END,
            max_steps=10**6,
            adjoint=diffrax.ForwardMode(),
        )
        assert made.ys is not None
        return jax.tree.map(lambda x: x[-1], made.ys[0])

    return end


def angle(t):
    return 2 * (1 - np.exp(-0.5 * t))


def largest(x):
    return np.abs(np.asarray(x)).max(initial=0.0)


@pytest.mark.parametrize("order", [2, 4, 6])
def test_compositions_satisfy_their_conditions(order):
    """`exp(g_k h A + g_k^3 h^3 B + g_k^5 h^5 C)` in a row is `exp(h A)` up to the order.

    In the free algebra of what a symmetric step is generated by [HairerLubichWanner2006, III.3].
    """
    weight = {"A": 1, "B": 3, "C": 5}

    def times(x, y):
        result: dict[str, float] = {}
        for (a, p), (b, q) in product(x.items(), y.items()):
            if sum(weight[letter] for letter in a + b) <= order:
                result[a + b] = result.get(a + b, 0.0) + p * q
        return result

    def exponential(g):
        generator = {x: g ** weight[x] for x in weight}
        total, power = {"": 1.0}, {"": 1.0}
        for k in range(1, order + 1):
            power = {x: p / k for x, p in times(power, generator).items()}
            total = {x: total.get(x, 0.0) + power.get(x, 0.0) for x in {*total, *power}}
        return total

    parts, found = coefficients._PARTS[order], {"": 1.0}
    assert parts == parts[::-1]
    ends = np.cumsum(parts)
    assert (ends > 0).all()
    assert (ends < 1 + 1e-15).all()
    for part in parts:
        found = times(found, exponential(part))
    exact = {"A" * k: 1 / float(np.prod(np.arange(1, k + 1))) for k in range(order + 1)}
    for word in {*found, *exact}:  # sums of a hundred terms of size one
        assert found.get(word, 0.0) == pytest.approx(exact.get(word, 0.0), abs=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "order", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(6, marks=pytest.mark.slow)]
)
def test_positions_velocities_and_multipliers_are_of_the_order(order, backend):
    errors = []
    for count in {2: (32, 64), 4: (16, 32), 6: (8, 16)}[order]:
        found = run(Pendulum(), dt=1 / count, solver=Rattle(order), backend=backend)
        assert found.backend == backend
        speed = np.exp(-0.5)
        direction = np.array([-np.sin(angle(1.0)), np.cos(angle(1.0))])
        exact = [[np.cos(angle(1.0)), np.sin(angle(1.0))], speed * direction, [speed**2 / 2]]
        values = found.q[-1], found.v[-1], found.multipliers[-1]
        errors.append([largest(x - np.asarray(y)) for x, y in zip(values, exact, strict=True)])
        assert max(largest(found.violation.phi), largest(found.violation.phi_dot)) < 1e-14
    np.testing.assert_allclose(np.log2(np.divide(*errors)), order, atol=0.15)


CASES = {
    "moving": (Swing(), SWINGING, None),
    "driven": (Driven(), DRIVEN, feedback),
    "rolling": (Rolling(), ROLLING, None),
    "nonlinear": (AppellHamel(), PULLED, None),
    "turning": (Turning(), TURNING, None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", [2, 4])
def test_whatever_acts_the_order_stays(name, order):
    """Beside a projected explicit method at a tolerance of 1e-12."""
    system, state, control = CASES[name]
    exact = run(
        system, state, solver=Projected(diffrax.Dopri8()), controller=control,
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
    ).last_state  # fmt: skip
    end, errors = stepped(system, state, order, control), []
    for count in {2: (100.0, 200.0), 4: (40.0, 80.0)}[order]:
        parts = zip(jax.tree.leaves(end(1 / count)), jax.tree.leaves(exact), strict=True)
        errors.append([largest(x - y) for x, y in parts if x.size])
    np.testing.assert_allclose(np.log2(np.divide(*errors)), order, atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernels_make_the_same_steps_and_rows_between_are_on_the_constraints(name):
    system, state, control = CASES[name]
    options: dict[str, Any] = {
        "dt": 0.05, "controller": control, "saveat": diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 7))
    }  # fmt: skip
    native, plain = (run(system, state, backend=x, **options) for x in ("native", "plain"))
    for found in (native, plain):
        violation = found.violation
        assert max(largest(violation.phi), largest(violation.phi_dot)) < 1e-13
    # Round-off of twenty steps.
    np.testing.assert_allclose(native.q, plain.q, atol=1e-13)
    np.testing.assert_allclose(native.v, plain.v, atol=1e-13)
    np.testing.assert_allclose(native.multipliers, plain.multipliers, atol=1e-12)


def test_dense_output_is_of_order_four():
    times = jnp.linspace(0.0, 1.0, 23)
    exact = np.stack([np.cos(angle(times)), np.sin(angle(times))], axis=1)
    errors = []
    for count in (5, 10):
        found = run(
            Pendulum(), dt=1 / count, solver=Rattle(6), saveat=diffrax.SaveAt(ts=times),
            backend="native",
        )  # fmt: skip
        errors.append(largest(found.q - exact))
    # The largest error is at other parts of the steps.
    assert np.log2(errors[0] / errors[1]) > 3.5


class DoublePendulum(jaxdae.System):
    """Masses `(1, 1)` on links `(1, 1)` by absolute angles: no constraints, mass of the angles."""

    def kinetic_energy(self, t, q, v):
        del t
        return v[0] ** 2 + 0.5 * v[1] ** 2 + v[0] * v[1] * jnp.cos(q[0] - q[1])

    def potential_energy(self, t, q):
        del t
        return -9.81 * (2 * jnp.cos(q[0]) + jnp.cos(q[1]))


class Rope(Swing):
    """The mass that depends on its place, on a rope that stays as it is."""

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q @ q - 1.0])


@pytest.mark.parametrize(
    ("system", "q"),
    [
        pytest.param(DoublePendulum(), [1.0, 2.0], marks=pytest.mark.slow, id="free"),
        pytest.param(Rope(), [0.6, -0.8], id="constrained"),
    ],
)
def test_a_step_is_symplectic_on_the_constraints(system, q):
    """`sum_i dp_i ^ dq_i` of two tangents of the constraints is the same at both ends."""
    q, v = jnp.array(q), jnp.array([0.8, 0.6])
    end = stepped(system, None)

    def motion(x):
        """Start and end, `(q, p)` of each, by `x` that moves along the constraints."""
        state = jaxdae.State(*jnp.split(x, 2))
        if isinstance(system, Rope):
            around, speed = x[0], x[1]
            q = jnp.array([jnp.sin(around), -jnp.cos(around)])
            state = jaxdae.State(q, speed * jnp.array([jnp.cos(around), jnp.sin(around)]))
        last = end(0.1, 0.0, 0.1, state)
        return [(s.q, momentum(system, 0.0, s.q, s.v)) for s in (state, last)]

    x = jnp.array([0.6, 1.0]) if isinstance(system, Rope) else jnp.concatenate([q, v])
    before, after = jax.jacfwd(motion)(x)

    def form(ends):
        dq, dp = ends
        return dp.T @ dq - dq.T @ dp

    assert largest(form(before)) > 0.5
    np.testing.assert_allclose(form(after), form(before), atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["moving", "rolling", "turning"])
def test_steps_back_undo_steps(name):
    system, state, _ = CASES[name]
    end = stepped(system, state, 4)
    there = end(0.01)
    back = end(-0.01, 1.0, 0.0, there)
    assert largest(there.q - state.q) > 0.1
    # Round-off of a thousand steps of order 2, grown along the motion.
    np.testing.assert_allclose(back.q, state.q, atol=1e-12)
    np.testing.assert_allclose(back.v, state.v, atol=1e-11)


def hanging(links=3):
    system = Chain([1 / links] * links, [1.0] * links)
    q = jnp.stack([jnp.arange(1.0, links + 1) / links, jnp.zeros(links)], axis=1).ravel()
    return system, jaxdae.State(q, jnp.zeros(2 * links))


@pytest.mark.slow
@pytest.mark.parametrize(("links", "dt"), [(1, 0.01), (3, 0.002)])
def test_energy_errors_are_bounded_without_a_trend(links, dt):
    """Over 1e5 steps; measured once over 1e6: 3.2e-3 J and 2.7e-2 J, no trend."""
    if links == 1:
        model = CartesianPendulum()
        system, state = model, jaxdae.State(*model.start())
    else:
        system, state = hanging(links)
    count = 10**5
    found = run(
        system, state, t1=count * dt, dt=dt, saveat=diffrax.SaveAt(steps=50), backend="native",
        max_steps=count + 1,
    )  # fmt: skip
    error = np.asarray(found.energy) - float(found.energy[0])
    early, late = error[:200], error[-200:]
    # The largest errors, of the order h^2, come where the motion is fastest; means over a tenth of
    # the run of the chaotic chain differ by what chance makes of them.
    assert largest(error) < 0.03
    assert largest(late) < 1.5 * largest(error[:1000])
    assert abs(late.mean() - early.mean()) < 0.2 * largest(error)
    assert max(largest(found.violation.phi), largest(found.violation.phi_dot)) < 1e-13


@pytest.mark.slow
def test_a_chain_of_sixty_coordinates():
    system, state = hanging(30)
    found = run(system, state, t1=0.1, dt=0.002, backend="plain")
    assert max(largest(found.violation.phi), largest(found.violation.phi_dot)) < 1e-12


@pytest.mark.slow
def test_single_precision():
    state = jax.tree.map(lambda x: x.astype(jnp.float32), SWINGING)
    for backend in ("plain", "native"):
        found = run(Swing(), state, dt=0.01, backend=backend)
        assert found.q.dtype == jnp.float32
        exact = run(Swing(), SWINGING, dt=0.01)
        np.testing.assert_allclose(found.q[-1], exact.q[-1], atol=2e-5)
        assert largest(found.violation.phi) < 1e-6


@pytest.mark.slow
def test_constraints_may_depend_on_each_other():
    """Motion and gradient are those of one of them."""

    def end(scale, copies):
        state = eqx.tree_at(lambda x: x.v, START, scale * START.v)
        return run(Pendulum(copies), state, t1=0.2, dt=0.05, backend="plain").q[-1, 0]

    one, several = (jax.value_and_grad(end)(1.0, x) for x in (1, 3))
    np.testing.assert_allclose(several, one, rtol=1e-11)  # round-off over a small diagonal


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("order", [2, 4])
def test_derivatives_in_both_modes(backend, order):
    """By a length, which the start depends on, too; of positions, velocities and multipliers."""
    base = SliderCrank()

    def end(length, adjoint=None, backend=backend):
        system = eqx.tree_at(lambda x: x.crank_length, base, length * base.crank_length)
        start = jaxdae.consistent_state(system, *base.start())
        made = run(
            system, start, t1=0.2, dt=0.02, backend=backend, adjoint=adjoint, solver=Rattle(order)
        )
        return jnp.sum(made.q[-1] * jnp.arange(1.0, 4.0)) + made.v[-1, 0] + made.multipliers[-1, 0]

    reverse = jax.grad(end)(1.0)
    forward = jax.jvp(lambda x: end(x, diffrax.ForwardMode()), (1.0,), (1.0,))[1]
    np.testing.assert_allclose(forward, reverse, rtol=1e-11)
    h = 1e-4
    near, far = (end(1 + x, backend="plain") - end(1 - x, backend="plain") for x in (h, 2 * h))
    np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-8)


def test_a_member_that_is_no_number_is_alone():
    def end(speed):
        state = eqx.tree_at(lambda x: x.v, START, speed * START.v)
        return run(Pendulum(), state, t1=0.1, dt=0.05, throw=False, start_tolerance=None).q[-1, 0]

    speeds = jnp.array([1.0, jnp.nan, 1.0])
    found, slopes = jax.vmap(end)(speeds), jax.vmap(jax.grad(end))(speeds)
    for x in (found, slopes):
        np.testing.assert_array_equal(x[0], x[2])
        assert np.isfinite(x[0])
    assert np.isnan(found[1])


def test_a_step_of_no_length_changes_nothing_and_has_a_derivative():
    term = ConstrainedTerm(lambda controller, t, state: None)  # noqa: ARG005

    def end(scale):
        state = eqx.tree_at(lambda x: x.v, SWINGING, scale * SWINGING.v)
        args = (Swing(), None, None)
        return Rattle().step(term, 0.0, 0.0, (state, None), args, None, made_jump=False)[0][0]

    value, slope = jax.jit(partial(jax.jvp, end))((1.0,), (1.0,))
    np.testing.assert_array_equal(value.q, SWINGING.q)
    np.testing.assert_array_equal(value.v, SWINGING.v)
    np.testing.assert_array_equal(slope.v, SWINGING.v)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"order is 3, must be one of \(2, 4, 6\)"):
        Rattle(3)
    with pytest.raises(ValueError, match=r"Rattle has no error estimate.*give dt"):
        run(Pendulum())
    stabilized = jaxdae.Multipliers(jaxdae.Baumgarte(K_D=1.0, K_P=1.0))
    with pytest.raises(ValueError, match=r"enforces the constraints itself.*Multipliers\(\)"):
        jaxdae.simulate(Pendulum(), stabilized, START, t1=1.0, dt=0.1, solver=Rattle())


def test_a_step_whose_iterations_do_not_converge_fails():
    fast = eqx.tree_at(lambda x: x.v, START, 20.0 * START.v)
    with pytest.raises(jaxdae.SimulationError, match=r"no longer finite after t = 0 s.*reduce dt"):
        run(Pendulum(), fast, t1=2.0, dt=1.0)


def test_long_steps_converge_where_there_is_an_end():
    """Of 0.8 rad without friction: an end further along the circle, at a distance of `h v`."""
    model, h, speed = CartesianPendulum(gravity=0.0), 0.02, 40.0
    state = jaxdae.State(jnp.array([1.0, 0.0]), jnp.array([0.0, speed]))
    found = run(model, state, t1=h, dt=h, backend="native")
    exact = [(1 - (h * speed) ** 2) ** 0.5, h * speed]
    np.testing.assert_allclose(found.q[-1], exact, atol=1e-14)
    assert np.linalg.norm(found.v[-1]) == pytest.approx(speed, rel=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_back_in_time_return(backend):
    there = run(Swing(), SWINGING, dt=0.01, backend=backend)
    saveat = diffrax.SaveAt(ts=jnp.linspace(1.0, 0.0, 5))
    back = run(Swing(), there.last_state, t0=1.0, t1=0.0, dt=-0.01, backend=backend, saveat=saveat)
    np.testing.assert_allclose(back.q[-1], SWINGING.q, atol=1e-13)


class Massless(jaxdae.System):
    """The height of a body on a curve has no mass of its own."""

    def kinetic_energy(self, t, q, v):
        del t, q
        return 0.5 * v[0] ** 2

    def potential_energy(self, t, q):
        del t
        return q[1]

    def position_constraints(self, t, q):
        del t
        return jnp.stack([q[1] - jnp.cos(q[0])])


@pytest.mark.slow
def test_the_mass_matrix_may_be_singular():
    state = jaxdae.State(jnp.array([0.5, np.cos(0.5)]), jnp.zeros(2))
    formulation = jaxdae.Multipliers(solve=jaxdae.SingularMassSolve())
    one, other = (
        jaxdae.simulate(Massless(), formulation, state, t1=1.0, saveat=END, dt=dt, solver=x).q[-1]
        for dt, x in ((0.005, Rattle(4)), (None, diffrax.Dopri8()))
    )
    np.testing.assert_allclose(one, other, atol=1e-8)  # the tolerance of the second
