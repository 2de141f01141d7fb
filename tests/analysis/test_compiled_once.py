"""Another value of a parameter compiles nothing anew, and equations are compiled a few times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.analysis import characteristic_matrix
from jaxdae.analysis.equilibria import balance
from jaxdae.control.relative_degree import relative_degree
from jaxdae.systems import evaluate

_traces = []


class Crane(jaxdae.System):
    """A mass on a rod under a slider that a control pushes."""

    mass: float = 1.0
    length: float = 0.8
    drift: float = 0.0

    def kinetic_energy(self, t, q, v):
        _traces.append(1)
        # With a part linear in the velocities: gyroscopic forces, and a moving frame.
        return 0.5 * self.mass * v @ v + self.drift * (q[0] * v[1] + t * v[0])

    def potential_energy(self, t, q):
        return 9.81 * self.mass * q[2] + 0.5 * q[0] ** 2

    def dissipation(self, t, q, v):
        return 0.3 * v[0] ** 2 + 0.1 * v[1] ** 2 * (1 + q[0] ** 2)

    def force(self, t, q, v, w, u):
        push = 0.0 if u is None else u[0]
        return jnp.stack([push - 0.2 * v[1] * (1 + q[0]), 0.4 * q[0], 0.0])

    def position_constraints(self, t, q):
        return jnp.stack([(q[1] - q[0]) ** 2 + q[2] ** 2 - self.length**2])


class Turning(Crane):
    """One velocity constraint more, violated by displacement at rest, and not affine."""

    def velocity_constraints(self, t, q, v):
        return jnp.stack([v[0] + 0.2 * v[0] ** 2 - 0.1 * v[1] - 0.3 * q[0] * (1 + 0.5 * q[0])])


@pytest.fixture
def compilations():
    """The names of the programs that XLA compiles."""
    names = []

    def listen(event, duration_secs, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(about.get("fun_name", "?"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


GUESS = jnp.array([0.1, 0.2, -0.8])


def _place(t, q, v):
    return q[:1]


def _everything(mass):
    system = Crane(mass=mass)
    rest = jaxdae.equilibrium(system, GUESS, u=jnp.zeros(1))
    linear = jaxdae.linearize(system, rest)
    characteristic_matrix(system, rest)
    jaxdae.spectrum(linear)
    jaxdae.lqr(linear)
    relative_degree(
        system,
        jaxdae.Multipliers(jaxdae.Baumgarte(K_D=mass, K_P=mass)),
        _place,
        rest.state,
        controls=1,
    )
    return rest


@pytest.mark.slow
def test_another_value_of_a_parameter_compiles_nothing(compilations):
    _everything(1.0)
    assert compilations  # a first run is seen to compile
    compilations.clear()
    rest = _everything(1.3)
    assert not compilations
    np.testing.assert_allclose(rest.multipliers, [9.81 * 1.3 / 1.6], rtol=1e-9)


def test_the_equations_of_rest_are_traced_a_few_times_whatever_the_search_asks_for():
    """Programs grow by every trace: seventeen of them took a compiler minutes for nine joints."""
    _traces.clear()
    jaxdae.equilibrium(Turning(mass=1.1), GUESS, u=jnp.zeros(1))
    # Twice for the balance (`T` itself and its explicit rate): to check its shape, to know the
    # size of the loop's state, and in the loop.
    assert len(_traces) <= 10


def _oracle(system, eq):
    """Derivatives of the ideal accelerations by central differences of the general equations."""

    @jax.jit
    def accelerations(x):
        q, v = jnp.split(x, 2)
        dyn = evaluate(system, eq.t, q, v, eq.w, eq.u)
        c = len(dyn.gamma)
        matrix = jnp.block([[dyn.mass, dyn.jac.T], [dyn.jac, jnp.zeros((c, c))]])
        return jnp.linalg.solve(matrix, jnp.concatenate([dyn.force, -dyn.gamma]))[:3]

    x, h = jnp.concatenate([eq.q, jnp.zeros(3)]), 1e-5
    columns = [(accelerations(x + h * e) - accelerations(x - h * e)) / (2 * h) for e in np.eye(6)]
    return np.array(columns).T


@pytest.mark.slow
@pytest.mark.parametrize("model", [Crane, Turning])
def test_the_linear_equations_are_those_of_the_general_equations_of_motion(model):
    """Gyroscopic, circulatory and velocity-dependent forces, at a time that matters."""
    system = model(drift=0.7)
    guess = GUESS if model is Crane else GUESS.at[0].set(0.0)
    rest = jaxdae.equilibrium(system, guess, u=jnp.zeros(1), t=0.3)
    at_rest = evaluate(system, 0.3, rest.q, jnp.zeros(3), rest.w, rest.u)
    left = balance(system, rest.t, rest.q, rest.w, rest.u, rest.multipliers)
    np.testing.assert_allclose(
        left.force, at_rest.force - at_rest.jac.T @ rest.multipliers, atol=1e-13
    )
    np.testing.assert_allclose(left.phi_dot, at_rest.phi_dot, atol=1e-13)
    linear = jaxdae.linearize(system, rest)
    own = list(linear.partition.independent)
    d = len(own)
    rates = _oracle(system, rest) @ np.concatenate([linear.positions, linear.velocities])
    # Central differences: h^2 of third derivatives of order ten, round-off 1e-15 / h.
    np.testing.assert_allclose(linear.A_full[d : 2 * d], rates[own], atol=1e-8)
