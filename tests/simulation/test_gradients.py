"""Derivatives through `simulate`: forward mode, reverse mode and differences agree."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxdae
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    consistent_state,
    MinimumNormSolve,
    Multipliers,
    Penalty,
    simulate,
    State,
)
from jaxdae.solvers import RK4


class Bead(jaxdae.System):
    """A bead with unequal inertia on the curve where a sphere meets a saddle: one freedom."""

    mass1: float = 1.0
    mass2: float = 2.0
    length: float = 1.2

    def kinetic_energy(self, t, q, v):
        return 0.5 * (self.mass1 * v[0] ** 2 + self.mass2 * (v[1] ** 2 + v[2] ** 2))

    def potential_energy(self, t, q):
        return 9.81 * (self.mass1 + self.mass2) * q[2]

    def position_constraints(self, t, q):
        return jnp.stack([q @ q - self.length**2, q[0] * q[1] - 0.5 * q[2]])


Q0, V0 = jnp.array([0.9, 0.35, 0.7]), jnp.array([0.5, -0.4, 0.3])  # near both surfaces
SPD = np.array([[20.0, 4.0], [4.0, 10.0]])
END = diffrax.SaveAt(t1=True)
GAINS = {"diagonal": np.array([20.0, 10.0]), "matrix": SPD}

# formulation, form of its gains; every form, and every way of solving, is met
CASES = [
    ("penalty", "diagonal"),
    ("augmented", "matrix"),
    ("minimum norm", "matrix"),
]
IDS = ["-".join(case) for case in CASES]


def _formulation(name, gains):
    stabilization = Baumgarte(gains["K_D"], gains["K_P"])
    if name == "minimum norm":
        return Multipliers(stabilization, solve=MinimumNormSolve())
    kind = Penalty if name == "penalty" else AugmentedLagrangian
    # alpha is symmetric: a difference in one entry alone would leave its domain.
    alpha = gains["alpha"]
    return kind((alpha + alpha.T) / 2 if alpha.ndim == 2 else alpha, stabilization)


def _parameters(form):
    """All that is differentiated: gains, masses, a length, and the initial state."""
    gain = jnp.asarray(GAINS[form])
    return {
        "gains": {"K_D": gain, "K_P": 5 * gain, "alpha": gain / 2},
        "system": jax.tree.map(jnp.asarray, Bead()),
        "q": Q0,
        "v": V0,
    }


def _loss(name, params, adjoint=None):
    """A scalar of the end of eight Runge-Kutta steps: states and violation."""
    system = params["system"]
    run = simulate(
        system,
        _formulation(name, params["gains"]),
        State(params["q"], params["v"]),
        start_tolerance=None,
        t1=0.16,
        dt=0.02,
        solver=RK4(),
        saveat=END,
        adjoint=adjoint,
        max_steps=8,
    )
    q, v = run.final_state.q, run.final_state.v
    return q @ v + 100 * jnp.sum(system.position_constraints(0.16, q) ** 2)


def _problem(name, form):
    """The loss as a function of a vector, that vector, and the structure behind it."""
    x, unravel = ravel_pytree(_parameters(form))
    return (lambda x, adjoint=None: _loss(name, unravel(x), adjoint)), x, unravel


def _slopes(function, x):
    """Central differences in every direction, Richardson-extrapolated, and what they resolve.

    Steps h of 1e-3 relative: truncation h^4, cancellation eps |loss| / h.
    """
    step = 1e-3 * jnp.maximum(jnp.abs(x), 0.1)
    points = jnp.stack([x + s * jnp.diag(step) for s in (2, 1, -1, -2)])
    far_up, up, down, far_down = jax.jit(jax.vmap(jax.vmap(function)))(points)
    slopes = (8 * (up - down) - (far_up - far_down)) / (12 * step)
    return slopes, 1e-15 * np.abs(up).max() / step


@pytest.mark.slow
@pytest.mark.newest
@pytest.mark.parametrize(("name", "form"), CASES, ids=IDS)
def test_gradients_agree_in_both_modes_and_with_differences(name, form):
    """By every gain, mass, length and initial value: two modes agree, and differences to 1e-6."""
    function, x, unravel = _problem(name, form)
    reverse = jax.jit(jax.grad(function))(x)
    forward = jax.jit(jax.jacfwd(lambda x: function(x, diffrax.ForwardMode())))(x)
    # The same products in another order; the terms cancel to a thousandth at most.
    np.testing.assert_allclose(forward, reverse, rtol=1e-10, atol=1e-13 * np.abs(reverse).max())
    slopes, resolved = _slopes(function, x)
    assert np.all(np.abs(slopes - reverse) <= 1e-6 * np.abs(reverse) + resolved)
    # Every parameter matters, but alpha where there is none.
    gradient = unravel(reverse)
    unused = gradient["gains"].pop("alpha") if name == "minimum norm" else 0.0
    np.testing.assert_array_equal(unused, 0.0)
    resolution = 100 * float(resolved.max())
    assert all(np.all(np.abs(part) > resolution) for part in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_gradients_under_vmap_are_those_of_each_lane():
    """vmap of grad, grad of the sum over vmap, and vmap of forward mode, give one answer."""
    function, x, _ = _problem(*CASES[1])
    lanes = jnp.stack([x, 1.02 * x])
    alone = jax.jit(jax.grad(function))
    each = jax.jit(jax.vmap(jax.grad(function)))(lanes)
    of_sum = jax.jit(jax.grad(lambda lanes: jnp.sum(jax.vmap(function)(lanes))))(lanes)
    forward = jax.vmap(jax.jacfwd(lambda x: function(x, diffrax.ForwardMode())))
    expected = jnp.stack([alone(lane) for lane in lanes])
    for values in (each, of_sum, jax.jit(forward)(lanes)):
        np.testing.assert_allclose(
            values, expected, rtol=1e-10, atol=1e-13 * np.abs(expected).max()
        )


@pytest.mark.slow
def test_single_precision_gradients():
    """In float32 the same gradient comes out in float32, to a thousandth."""
    params = _parameters("diagonal")
    single = jax.tree.map(lambda x: x.astype(jnp.float32), params)
    gradient = jax.jit(jax.grad(lambda p: _loss("penalty", p)))
    got, expected = gradient(single), gradient(params)
    assert {str(x.dtype) for x in jax.tree.leaves(got)} == {"float32"}
    # Round-off 6e-8 times the conditioning of eight stiff steps and of the mass matrix, near 1e3.
    scale = np.abs(ravel_pytree(expected)[0]).max()
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4 * scale), got, expected
    )


@pytest.mark.slow
def test_gradient_through_the_projection_of_the_start():
    """With `consistent_state` inside, d/d(length) agrees with differences, in both modes.

    The start moves with the length, so the derivative passes through the implicit function theorem.
    """

    def loss(length, adjoint=None):
        system, gains = Bead(length=length), Multipliers(Baumgarte(20.0, 100.0))
        run = simulate(
            system, gains, consistent_state(system, Q0, V0), t1=0.1, dt=0.05, solver=RK4(),
            saveat=END, adjoint=adjoint, max_steps=4,
        )  # fmt: skip
        return jnp.sum(run.final_state.q * run.final_state.v)

    length, h = 1.2, 1e-3
    value_and_slope = jax.jit(jax.value_and_grad(loss))
    up2, up, down, down2 = (value_and_slope(length + n * h)[0] for n in (2, 1, -1, -2))
    reverse = value_and_slope(length)[1]
    forward = jax.jit(jax.jacfwd(lambda x: loss(x, diffrax.ForwardMode())))(length)
    slope = (8 * (up - down) - (up2 - down2)) / (12 * h)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    np.testing.assert_allclose(slope, reverse, rtol=1e-6)


def test_gradient_of_an_adaptive_run_agrees_with_differences():
    """The default solver and step control are differentiable too."""

    def loss(gain):
        system = Bead()
        run = simulate(
            system, Penalty(10.0, Baumgarte(gain, 100.0)), State(Q0, V0), t1=0.1,
            saveat=END, max_steps=256,
        )  # fmt: skip
        return jnp.sum(system.position_constraints(0.1, run.final_state.q) ** 2)

    gain, h = jnp.asarray(20.0), 1e-2
    slope = jax.jit(jax.grad(loss))(gain)
    up, down = jax.jit(jax.vmap(loss))(gain + h * jnp.array([1.0, -1.0]))
    # The loss itself is good to the run's tolerance only: 1e-8 of 1e-4, over 2 h.
    np.testing.assert_allclose((up - down) / (2 * h), slope, rtol=1e-3)
