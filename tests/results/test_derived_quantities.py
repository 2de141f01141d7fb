"""What is computed from the saved states of a native run is read by native kernels, too."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae import Baumgarte, Multipliers, simulate, State
from jaxdae.models import TwoLinkManipulator
from jaxdae.simulation.native import row_kernel
from jaxdae.solvers import RK4
from jaxdae.tuning import perturbed_states

QUANTITIES = (
    "violation",
    "jacobian",
    "multipliers",
    "kinetic_energy",
    "potential_energy",
    "energy",
)
SYSTEM = TwoLinkManipulator()
START = State(*SYSTEM.start())


def run(K_P, start=START, **settings):
    formulation = Multipliers(Baumgarte(K_D=jnp.array([20.0, 10.0]), K_P=K_P))
    settings = {"t1": 0.05, "dt": 0.01, "solver": RK4(), "throw": False, **settings}
    return simulate(SYSTEM, formulation, start, **settings)


def operations(function, *arguments):
    return str(eqx.filter_make_jaxpr(function)(*arguments)[0])


@pytest.mark.slow
def test_derived_quantities_are_those_of_the_plain_backend():
    """One run and a batch; steps are given, so that both backends make the same."""
    states = perturbed_states(START, jax.random.key(0), 11)

    def read(backend):
        def one(state):
            made = run(jnp.array([100.0, 25.0]), state, backend=backend)
            return {x: getattr(made, x) for x in QUANTITIES}

        return one

    alone = jax.jit(read("native"))(jax.tree.map(lambda x: x[3], states))
    found, expected = (jax.jit(jax.vmap(read(x)))(states) for x in ("native", "plain"))
    for name in QUANTITIES:
        parts = (jax.tree.leaves(x[name]) for x in (found, expected, alone))
        for many, plain, one in zip(*parts, strict=True):
            # Round-off of five steps and of the quantity.
            atol = 1e-12 * (1 + np.abs(plain).max())
            np.testing.assert_allclose(many, plain, rtol=0, atol=atol, err_msg=name)
            np.testing.assert_allclose(one, plain[3], rtol=0, atol=atol, err_msg=name)


def test_they_are_read_by_kernels_where_the_run_was_native():
    for backend, native in (("native", True), ("plain", False)):
        made = run(jnp.array([100.0, 25.0]), backend=backend)
        for name in QUANTITIES:
            found = operations(lambda made, name=name: getattr(made, name), made)
            assert ("native_kernel" in found) == native
    # Also where there is a controller that they do not depend on.
    law = lambda t, q, v, w: jnp.zeros(2) * q[:2]  # noqa: E731
    made = run(jnp.array([100.0, 25.0]), backend="native", controller=law)
    for name in ("violation", "jacobian", "energy"):
        assert "native_kernel" in operations(lambda made, name=name: getattr(made, name), made)


@pytest.mark.slow
def test_gradients_of_derived_quantities_are_those_of_the_plain_backend():
    """In both modes; of the plain program in the one that compiles faster."""
    states = perturbed_states(START, jax.random.key(1), 5)

    def cost(system, K_P, backend, adjoint):
        def one(state):
            gains = Baumgarte(K_D=20.0, K_P=K_P)
            made = simulate(
                system, Multipliers(gains), state, t1=0.05, dt=0.01, solver=RK4(), throw=False,
                backend=backend, adjoint=adjoint,
            )  # fmt: skip
            return jnp.sum(made.violation.phi**2) + 1e-6 * jnp.sum(made.energy)

        return jnp.mean(jax.vmap(one)(states))

    def gradient(backend, derivative, adjoint):
        def by(mass, K_P):
            return cost(eqx.tree_at(lambda s: s.mass1, SYSTEM, mass), K_P, backend, adjoint)

        given = (jnp.asarray(SYSTEM.mass1), jnp.array([100.0, 25.0]))
        return jax.jit(derivative(by, (0, 1)))(*given)

    forward = jax.jacfwd, diffrax.ForwardMode()
    reverse = jax.grad, diffrax.RecursiveCheckpointAdjoint()
    expected = gradient("plain", *forward)
    for mode in (forward, reverse):
        for one, other in zip(gradient("native", *mode), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=0)


@pytest.mark.slow
def test_rows_that_were_not_reached_spoil_no_gradient():
    def last(K_P):
        made = run(
            K_P, dt=None, t1=0.02, solver=diffrax.Tsit5(), saveat=diffrax.SaveAt(steps=True),
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-8), max_steps=64,
        )  # fmt: skip
        assert made.backend == "native"
        return jnp.nansum(made.energy), made.energy

    K_P = jnp.array([100.0, 25.0])
    gradient, energy = jax.jit(jax.grad(last, has_aux=True))(K_P)
    assert np.isnan(energy).any()
    assert np.isfinite(gradient).all()
    assert np.abs(gradient).max() > 0


class Weighted(jaxdae.System):
    """A potential with more parameters than a kernel keeps derivatives by."""

    weights: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return jnp.sum(self.weights * q[0] ** 2)


def test_many_parameters_are_left_to_the_plain_backend():
    made = simulate(
        Weighted(jnp.full(300, 1e-2)), Multipliers(), State([1.0], [0.0], jnp.zeros(0)), t1=0.1,
        dt=0.05, solver=RK4(), backend="native",
    )  # fmt: skip
    assert "native_kernel" not in operations(lambda made: made.energy, made)
    np.testing.assert_allclose(made.energy, 3.0, rtol=1e-6)  # of RK4's steps


_cosine = jax.custom_jvp(jnp.cos)


@_cosine.defjvp
def _cosine_jvp(primals, tangents):
    (x,), (move,) = primals, tangents
    nothing = 0.0 * jnp.real(jax.lax.complex(x, x))  # of which no kernel is made
    return jnp.cos(x), (nothing - jnp.sin(x)) * move


@pytest.mark.slow
def test_derivatives_of_derived_quantities_that_no_kernel_has_are_those_of_jax():
    """In every order of modes, for a batch."""
    rows, weights = np.array([[0.3, 0.5], [0.6, -0.2], [0.0, 1.0]]), np.array([1.0, 2.0])
    quantity = row_kernel(lambda x, a: jnp.sum(a * _cosine(x)) * x, rows[0], weights)
    assert quantity is not None
    forward, reverse = jax.jacfwd, jax.jacrev
    orders = [forward], [reverse], [forward, reverse], [reverse, forward], [reverse, reverse]

    def derivatives(x, modes):
        found = quantity
        for mode in modes:
            found = mode(found)
        return found(x, weights)

    batch = jax.vmap(lambda x: [derivatives(x, modes) for modes in orders])
    for modes, found in zip(orders, jax.jit(batch)(rows), strict=True):
        for x, one in zip(rows, found, strict=True):
            s, c, own = weights * np.sin(x), weights * np.cos(x), np.eye(2)
            if len(modes) == 1:
                expected = c.sum() * own - np.outer(x, s)
            else:
                expected = -np.einsum("ij,k->ijk", own, s) - np.einsum("ik,j->ijk", own, s)
                expected -= np.einsum("i,jk->ijk", x, np.diag(c))
            np.testing.assert_allclose(one, expected, rtol=1e-13, atol=1e-14)  # a few operations
