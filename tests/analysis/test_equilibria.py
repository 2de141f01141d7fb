"""Theorems about equilibria."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.analysis import equilibrium, EquilibriumError

# Newton's method ends at round-off of numbers of order 1 to 100.
TIGHT = 1e-11


def test_a_pushed_bead_balances_where_the_slope_holds_it(bead):
    system = bead()
    push = 3.0
    found = equilibrium(system, jnp.array([0.3, 0.1]), u=jnp.array([push]))
    # Along the parabola: (k + m g c) x = push, y = c x^2 / 2, and lam_y = -m g.
    x = push / (system.stiffness + system.mass * system.gravity * system.curvature)
    np.testing.assert_allclose(found.q, [x, 0.5 * system.curvature * x**2], atol=TIGHT)
    np.testing.assert_allclose(found.multipliers, [-system.mass * system.gravity], atol=TIGHT)
    assert max(np.abs(x).max() for x in found.residual if x.size) < TIGHT


def test_controls_are_found_for_a_place_that_is_held(bead):
    system = bead()
    found = equilibrium(
        system, jnp.array([0.5, 0.0]), u=jnp.zeros(1), free_controls=True, fixed=("x",)
    )
    stiffness = system.stiffness + system.mass * system.gravity * system.curvature
    np.testing.assert_allclose(found.q[0], 0.5, atol=0)
    np.testing.assert_allclose(found.u, [0.5 * stiffness], atol=TIGHT)


@pytest.mark.slow
def test_derivatives_of_an_equilibrium_are_those_of_its_formula(bead):
    def place(stiffness, push):
        system = bead(stiffness=stiffness)
        return equilibrium(system, jnp.array([0.2, 0.0]), u=push[None]).q[0]

    weight = bead().mass * bead().gravity * bead().curvature
    k, push = jnp.array(2.0), jnp.array(3.0)
    exact = (-3.0 / (2.0 + weight) ** 2, 1 / (2.0 + weight))
    # One linear solve at a root known to round-off.
    np.testing.assert_allclose(jax.grad(place, argnums=(0, 1))(k, push), exact, rtol=1e-9)
    np.testing.assert_allclose(jax.jacfwd(place, argnums=(0, 1))(k, push), exact, rtol=1e-9)
    step = 1e-4
    difference = (place(k + step, push) - place(k - step, push)) / (2 * step)
    # Truncation h^2 f''' / 6 is below 1e-9.
    np.testing.assert_allclose(difference, exact[0], atol=1e-8)
    batch = jax.vmap(place, in_axes=(None, 0))(k, jnp.array([1.0, 3.0]))
    np.testing.assert_allclose(batch, np.array([1.0, 3.0]) / (2.0 + weight), rtol=1e-9)


def test_a_slope_without_a_rest_is_refused_with_the_amount(bead):
    with pytest.raises(EquilibriumError, match=r"x held.*the force on .x. by 5\.26"):
        equilibrium(bead(), jnp.array([0.5, 0.1]), u=jnp.zeros(1), fixed=("x",))


def test_under_a_transformation_there_is_nan_instead(bead):
    find = jax.jit(lambda q: equilibrium(bead(), q, u=jnp.zeros(1), fixed=("x",)).q)
    assert np.isnan(find(jnp.array([0.5, 0.1]))).all()


@pytest.mark.slow
def test_a_moving_constraint_has_no_equilibrium(led_point):
    with pytest.raises(EquilibriumError, match=r"'leader' at rest by 0\.5"):
        equilibrium(led_point(0.5), jnp.array([0.1, 1.0]))


class Swinging(jaxdae.System):
    """A spring whose end moves."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * (q[0] - jnp.sin(2.0 * t)) ** 2


def test_a_moment_of_balance_is_not_an_equilibrium():
    with pytest.raises(EquilibriumError, match=r"only for a moment.* rate 2 per second"):
        equilibrium(Swinging(), jnp.array([0.1]))


@pytest.mark.slow
def test_free_controls_need_a_guess(bead):
    with pytest.raises(ValueError, match="needs a guess of the controls"):
        equilibrium(bead(), jnp.zeros(2), free_controls=True)
    with pytest.raises(ValueError, match="fixed coordinate 5 is out of range"):
        equilibrium(bead(), jnp.zeros(2), u=jnp.zeros(1), fixed=(5,))
    with pytest.raises(ValueError, match="no coordinate is called 'z'"):
        equilibrium(bead(), jnp.zeros(2), u=jnp.zeros(1), fixed=("z",))
