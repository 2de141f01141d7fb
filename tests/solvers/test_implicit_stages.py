"""Diagonally implicit methods of diffrax in kernels: its steps, their order, their derivatives."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from helpers.elastic_crank import CRANK, elastic_crank, ElasticCrank
from jaxdae.models import CartesianPendulum, Chain
from jaxdae.solvers import Projected

END = diffrax.SaveAt(t1=True)
LOOSE = diffrax.PIDController(rtol=1e-6, atol=1e-6)
NEWTON = optx.Newton(rtol=1e-9, atol=1e-9)
STIFF = jaxdae.Penalty(1e3, jaxdae.Baumgarte(20.0, 100.0))
START = jnp.array([0.6, -0.8])


def swing(solver, backend: Any, t1=0.3, q=START, gravity=9.81, **how):
    """A pendulum held by a penalty."""
    how = {"saveat": END, "throw": False, "start_tolerance": None} | how
    state = jaxdae.State(q, jnp.array([0.4, 0.3], q.dtype))
    pendulum = CartesianPendulum(gravity=gravity)
    return jaxdae.simulate(pendulum, STIFF, state, t1=t1, solver=solver, backend=backend, **how)


@pytest.mark.parametrize(
    ("solver", "how"),
    [
        (diffrax.Kvaerno5(root_finder=NEWTON), {"stepsize_controller": LOOSE}),
        pytest.param(
            diffrax.Kvaerno4(root_finder=diffrax.VeryChord(rtol=1e-8, atol=1e-8)),
            {"stepsize_controller": LOOSE, "saveat": diffrax.SaveAt(ts=jnp.linspace(0, 0.3, 7))},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            diffrax.Kvaerno3(root_finder=NEWTON), {"dt": -0.01, "t1": -0.3}, marks=pytest.mark.slow
        ),
        pytest.param(
            Projected(diffrax.Kvaerno5(root_finder=NEWTON)),
            {"stepsize_controller": LOOSE, "work": True},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["adaptive", "between", "backward", "projected"],
)  # fmt: skip
def test_a_kernel_makes_the_steps_of_diffrax(solver, how):
    """The same number, to the round-off that the penalty makes of that of its forces."""
    native, plain = (swing(solver, backend, **how) for backend in ("native", "plain"))
    assert (native.backend, native.why_not_native) == ("native", None)
    assert bool(plain.success)
    assert native.stats["num_steps"] == plain.stats["num_steps"]
    np.testing.assert_allclose(native.q, plain.q, atol=1e-10)
    np.testing.assert_allclose(native.v, plain.v, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "order", "steps"),
    [
        (diffrax.Kvaerno3(root_finder=NEWTON), 3, (32, 64)),
        (diffrax.Kvaerno5(root_finder=NEWTON), 5, (16, 32)),
    ],
)
def test_its_order_in_kernels(solver, order, steps):
    pendulum = CartesianPendulum()
    state = jaxdae.State(START, jnp.zeros(2))
    law = jaxdae.Multipliers()
    exact = jaxdae.simulate(
        pendulum, law, state, t1=1.0, saveat=END,
        stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13),
    )  # fmt: skip

    def error(count):
        run = jaxdae.simulate(
            pendulum, law, state, t1=1.0, dt=1.0 / count, solver=solver, saveat=END,
            backend="native",
        )  # fmt: skip
        return float(jnp.linalg.norm(run.q[-1] - exact.q[-1]))

    coarse, fine = map(error, steps)
    assert np.log2(coarse / fine) == pytest.approx(order, abs=0.15)


def cost(gravity, q, solver=None, backend: Any = "native", **how):
    how = how or {"stepsize_controller": LOOSE}
    solver = diffrax.Kvaerno5() if solver is None else solver
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 0.3, 4))
    run = swing(solver, backend, q=q, gravity=gravity, saveat=saveat, max_steps=1000, **how)
    return jnp.sum(run.q**2 * jnp.arange(1.0, 3.0)) + run.final_state.v[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["adaptive", "fixed"])
def test_derivatives_of_its_steps(kind):
    """Both modes, the plain program's, differences, and second ones."""
    solver = diffrax.Kvaerno3(root_finder=NEWTON)
    how: dict[str, Any] = {"dt": 0.02} if kind == "fixed" else {"stepsize_controller": LOOSE}
    call = lambda g, q, **more: cost(g, q, solver, **how, **more)  # noqa: E731
    point, by = (jnp.array(9.81), START), (0, 1)
    reverse, forward = jax.grad(call, by)(*point), jax.jacfwd(call, by)(*point)
    direct = diffrax.ForwardMode()
    plain = jax.jacfwd(lambda *x: call(*x, backend="plain", adjoint=direct), by)(*point)
    for one, other, third in zip(*map(jax.tree.leaves, (reverse, forward, plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
        # The last turns of an iteration may differ by round-off, times the stiffness.
        np.testing.assert_allclose(one, third, rtol=1e-8, atol=1e-9)
    if kind == "fixed":  # other steps are seen by differences of adaptive runs
        slope, h = jax.grad(call), 1e-3
        value = lambda g: call(g, START)  # noqa: E731
        difference = (value(9.81 + h) - value(9.81 - h)) / (2 * h)
        np.testing.assert_allclose(reverse[0], difference, rtol=1e-5)
        difference = (slope(9.81 + h, START) - slope(9.81 - h, START)) / (2 * h)
        np.testing.assert_allclose(jax.jacfwd(slope)(*point), difference, rtol=1e-5)


@pytest.mark.slow
def test_members_take_steps_of_their_own_and_fail_alone():
    gravities = jnp.array([9.81, jnp.nan, 2.0, 40.0])
    values, slopes = jax.vmap(jax.value_and_grad(cost), (0, None))(gravities, START)
    assert np.isfinite(values).tolist() == [True, False, True, True]
    assert not slopes[1] > 0
    alone = [jax.value_and_grad(cost)(gravities[i], START) for i in (0, 2, 3)]
    # Sums of products may be fused otherwise in vectors of another width.
    np.testing.assert_allclose(values[np.array([0, 2, 3])], [x for x, _ in alone], rtol=1e-11)
    np.testing.assert_allclose(slopes[np.array([0, 2, 3])], [x for _, x in alone], rtol=1e-9)


@pytest.mark.slow
def test_a_stiff_mechanism_agrees_with_radau():
    """With Newton's method; diffrax's own iteration refuses most steps of this one."""
    solver = diffrax.Kvaerno5(root_finder=optx.Newton(rtol=1e-7, atol=1e-7))
    run = jaxdae.simulate(
        ElasticCrank(), jaxdae.Multipliers(), CRANK, t1=0.3, solver=solver, saveat=END,
        stepsize_controller=diffrax.PIDController(rtol=1e-7, atol=1e-7), backend="native",
    )  # fmt: skip
    start = np.concatenate([CRANK.q, CRANK.v])
    exact = solve_ivp(elastic_crank, (0, 0.3), start, "Radau", rtol=1e-9, atol=1e-11).y[:, -1]
    # Errors of some hundred steps, each within 1e-7.
    np.testing.assert_allclose(np.concatenate([run.q[-1], run.v[-1]]), exact, atol=2e-5)
    assert run.stats["num_steps"] < 1000


@pytest.mark.slow
def test_single_precision():
    newton = diffrax.with_stepsize_controller_tols(optx.Newton)()
    solver = diffrax.Kvaerno5(root_finder=newton)
    single, double = (swing(solver, "native", q=START.astype(x)) for x in (jnp.float32, float))
    assert single.q.dtype == np.float32
    # Its tolerance is 1e-5, and round-off of forces of a penalty about as much.
    np.testing.assert_allclose(single.q, double.q, atol=1e-3)


def longest(x):
    """A norm of a user."""
    return optx.max_norm(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("root_finder", "reason"),
    [
        (diffrax.VeryChord(rtol=jnp.array(1e-8), atol=1e-8), "tolerances .* are arrays"),  # pyright: ignore[reportArgumentType]
        (diffrax.VeryChord(1e-8, 1e-8, norm=longest), "a norm that is none of optimistix's"),
    ],
    ids=["arrays", "norm"],
)
def test_an_iteration_that_kernels_cannot_make_stays_with_diffrax(root_finder, reason):
    solver = diffrax.Kvaerno5(root_finder=root_finder)
    with pytest.raises(jaxdae.BackendError, match=reason):
        swing(solver, "native", t1=0.01, stepsize_controller=LOOSE)
    assert swing(solver, "auto", t1=0.01, stepsize_controller=LOOSE).backend == "plain"


@pytest.mark.slow
def test_more_states_than_pivots_are_chosen_of():
    """Eliminated in an order that is known beforehand; derivatives in reverse mode, too."""
    chain = Chain(lengths=[0.2] * 5, masses=[1.0] * 5)  # of 20 states, 16 is the limit
    q, v = chain.start()

    def end(scale, backend: Any = "native"):
        run = jaxdae.simulate(
            chain, jaxdae.Multipliers(), jaxdae.State(q, scale + v), t1=0.05, backend=backend,
            solver=diffrax.Kvaerno3(root_finder=NEWTON), stepsize_controller=LOOSE,
            start_tolerance=None, saveat=END, throw=False,
        )  # fmt: skip
        return run.q[-1].sum(), (run.q[-1], run.stats["num_steps"])

    native, plain = end(0.1)[1], end(0.1, "plain")[1]
    np.testing.assert_allclose(native[0], plain[0], atol=1e-9)  # the tolerance of the iteration
    assert native[1] == plain[1]
    slope = jax.grad(lambda x: end(x)[0])(0.1)
    difference = (end(0.1 + 1e-4)[0] - end(0.1 - 1e-4)[0]) / 2e-4
    # Differences see other steps, each within its tolerance.
    np.testing.assert_allclose(slope, difference, rtol=1e-4)


def test_an_iteration_that_does_not_converge_is_named():
    """In fixed steps; an adaptive one becomes shorter."""
    impossible = diffrax.VeryChord(rtol=1e-15, atol=1e-15)
    with pytest.raises(jaxdae.SimulationError, match="iteration for its stages did not converge"):
        swing(diffrax.Kvaerno5(root_finder=impossible), "native", dt=0.1, throw=True)
