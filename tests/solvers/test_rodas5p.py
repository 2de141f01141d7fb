"""The Rosenbrock-Wanner method of order 5: its coefficients, its steps, and stiff motions."""

import warnings
from math import prod
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from helpers.elastic_crank import CRANK, elastic_crank, ElasticCrank
from jaxdae.analysis import step_limit
from jaxdae.diagnosis.preconditions import step_warning
from jaxdae.models import CartesianPendulum, Chain
from jaxdae.solvers import Rodas5P, rodas5p
from jaxdae.stability.stability_functions import amplification, stability_function, step_matrix

END = diffrax.SaveAt(t1=True)


def coefficients():
    """`(alpha, Gamma, m)`: `y_1 = y_0 + sum_j m_j u_j` of the published stages `u = Gamma k`."""
    gammas = np.linalg.inv(np.eye(8) / rodas5p._GAMMA - rodas5p._below(rodas5p._COUPLING))
    alphas = rodas5p._below(rodas5p._ALPHA)
    return alphas @ gammas, gammas, alphas[-1] + np.eye(8)[-1]


def rooted_trees(order):
    """All of so many nodes, each the sorted tuple of the subtrees at its root."""
    grown = {()}
    for _ in range(order - 1):
        grown = {larger for tree in grown for larger in with_one_more(tree)}
    return sorted(grown)


def with_one_more(tree):
    yield tuple(sorted((*tree, ())))
    for i, branch in enumerate(tree):
        for larger in with_one_more(branch):
            yield tuple(sorted((*tree[:i], larger, *tree[i + 1 :])))


def nodes(tree):
    return 1 + sum(map(nodes, tree))


def density(tree):
    return nodes(tree) * prod(density(x) for x in tree)


def residuals(b, order, part=1.0):
    """Of the order conditions of Rosenbrock methods for the state at a part of the step.

    A node with one branch has `beta = alpha + Gamma`, one with several has `alpha`
    (Hairer and Wanner, Solving Ordinary Differential Equations II, theorem IV.7.4).
    """
    alpha, gammas, _ = coefficients()

    def weight(tree):
        if len(tree) == 1:
            return (alpha + gammas) @ weight(tree[0])
        return np.prod([np.ones(8), *(alpha @ weight(x) for x in tree)], axis=0)

    return max(abs(b @ weight(x) - part**order / density(x)) for x in rooted_trees(order))


def test_coefficients_satisfy_the_order_conditions():
    """The solution to order 5, its estimate without the last stage and dense output to order 4."""
    alpha, gammas, m = coefficients()
    # Coefficients of up to 150, to 16 digits.
    exact = 1e-12
    np.testing.assert_allclose(np.diag(gammas), rodas5p._GAMMA, atol=exact)
    np.testing.assert_allclose(alpha.sum(1), rodas5p._TIMES, atol=exact)
    np.testing.assert_allclose(gammas.sum(1), rodas5p._SLOPES, atol=exact)
    assert max(residuals(m @ gammas, order) for order in range(1, 6)) < exact
    assert residuals(m @ gammas, 6) > 1e-3
    embedded = m - np.eye(8)[-1]
    assert max(residuals(embedded @ gammas, order) for order in range(1, 5)) < exact
    assert residuals(embedded @ gammas, 5) > 1e-3
    for x in (0.2, 0.5, 0.9):
        first, second, third = rodas5p._DENSE
        between = x * m + x * (1 - x) * (first + x * (second + x * third))
        assert max(residuals(between @ gammas, order, x) for order in range(1, 5)) < exact


def test_the_solution_is_the_last_stage_and_its_estimate_the_one_before():
    """Stiffly accurate both: infinitely stiff equations are satisfied at the end of a step."""
    alpha, gammas, m = coefficients()
    np.testing.assert_allclose(m @ gammas, (alpha + gammas)[-1], atol=1e-12)
    np.testing.assert_allclose(alpha[-1], (alpha + gammas)[-2], atol=1e-12)


def test_no_step_lets_a_decaying_mode_grow_and_long_ones_end_it():
    """A-stable by the maximum principle: no pole on the left, `|R| <= 1` on the imaginary axis."""
    solver = Rodas5P()
    axis = np.concatenate([np.linspace(0.0, 50.0, 5001), np.geomspace(50.0, 1e8, 500)])
    # A ratio of polynomials of degrees 7 and 8 with coefficients of either sign.
    assert amplification(solver, 1j * axis).max() < 1 + 1e-12
    far = stability_function(solver, -np.array([1e3, 1e6, 1e9]))
    np.testing.assert_array_less(np.abs(far), [2e-2, 2e-5, 2e-8])
    z = np.array([0.05, 0.1])
    size = np.log2(np.abs(stability_function(solver, z) - np.exp(z)))
    assert size[1] - size[0] > 5.85
    rates = np.array([[-1.0, 3.0], [0.0, -2.0]])
    found = np.linalg.eigvals(step_matrix(rates, 0.4, solver))
    expected = stability_function(solver, 0.4 * np.array([-1.0, -2.0]))
    np.testing.assert_allclose(np.sort(found), np.sort(np.real(expected)), atol=1e-12)


def test_gains_have_no_step_limit():
    gains = jaxdae.Baumgarte.critical(400.0)
    assert step_limit(jaxdae.Baumgarte(K_D=6.0, K_P=25.0), Rodas5P()).limit == np.inf
    system = CartesianPendulum()
    start = jaxdae.State(*system.start())
    stabilized = jaxdae.Multipliers(gains)
    assert step_warning(system, stabilized, None, start, jnp.zeros(()), Rodas5P(), 0.1) is None
    with pytest.raises(
        ValueError, match=r"Rodas5P is no Runge-Kutta method, .*stable for all gains"
    ):
        jaxdae.Baumgarte.for_step(Rodas5P(), 0.01)


def integrated(rate, y0, t1, saveat=END, **how) -> Any:
    """By diffrax alone."""
    how = {"dt0": None, "max_steps": 100_000} | how
    return diffrax.diffeqsolve(
        diffrax.ODETerm(rate), Rodas5P(), 0.0, t1, y0=jnp.asarray(y0), saveat=saveat, **how
    )


def moving(t):
    """A motion that is known."""
    return jnp.stack([jnp.exp(jnp.sin(t)), jnp.cos(t * t)])


def nonlinear(t, y, args):
    """A nonlinear equation that depends on time, of which `moving` is a solution."""
    x, rate = jax.jvp(moving, (t,), (jnp.ones_like(t),))
    return rate + jnp.stack([
        (y[0] ** 2 - x[0] ** 2) * jnp.sin(t) - y[0] * y[1] + x[0] * x[1],
        x[1] ** 3 - y[1] ** 3 + t * (y[0] - x[0]),
    ])  # fmt: skip


def orders(error, counts):
    """Slopes of the logarithm of errors over that of the step."""
    errors = [float(error(1.0 / count)) for count in counts]
    return np.diff(-np.log(errors)) / np.diff(np.log(counts))


def test_order_on_a_nonlinear_equation_that_depends_on_time():
    @jax.jit
    def error(h):
        found = integrated(nonlinear, moving(0.0), 1.5, dt0=1.5 * h).ys[-1]
        return jnp.abs(found - moving(1.5)).max()

    np.testing.assert_allclose(orders(error, [40, 80, 160]), 5.0, atol=0.15)


def test_order_between_steps():
    """From an exact start one step is off by the fifth power of its length."""

    def later(t, y, args):
        return nonlinear(t + 0.7, y, args)  # where no derivative of the motion vanishes

    @jax.jit
    def error(h):
        x = jnp.array([0.25, 0.5, 0.75])
        times = diffrax.SaveAt(ts=x * h)
        found = integrated(later, moving(0.7), h, dt0=h, saveat=times).ys
        return jnp.abs(found - jax.vmap(moving)(x * h + 0.7)).max()

    np.testing.assert_allclose(orders(error, [16, 64]), 5.0, atol=0.3)


@pytest.mark.parametrize("stiffness", [1e4, 1e7])
def test_a_stiff_part_that_follows_a_motion_costs_two_orders(stiffness):
    """Errors of the test equation of Prothero and Robinson fall with `h^3 / stiffness`."""

    def drive(t):
        return jnp.sin(2 * t) + jnp.cos(t)

    def rate(t, y, args):
        x, slope = jax.jvp(drive, (t,), (jnp.ones_like(t),))
        return slope - stiffness * (y - x)

    @jax.jit
    def error(h):
        found = integrated(rate, drive(0.0)[None], 2.0, dt0=2.0 * h).ys[-1, 0]
        return jnp.abs(found - drive(2.0))

    np.testing.assert_allclose(orders(error, [20, 40]), 3.0, atol=0.25)
    # 0.6 on both; the largest derivative of the motion is 17.
    assert error(1 / 20) < (2.0 / 20) ** 3 / stiffness


def test_order_on_infinitely_stiff_equations():
    """`y' = z`, `0 = y^2 + z^2 - 1`, of index 1, as the limit of a stiff equation."""

    def rate(t, x, args):
        y, z = x
        stiff = 1e11 * jnp.exp(2 * y) * (y**2 + z**2 - 1)
        return jnp.stack([z, -stiff - jnp.sin(t)])

    @jax.jit
    def error(h):
        found = integrated(rate, [0.0, 1.0], 1.0, dt0=h).ys[-1]
        return jnp.abs(found - jnp.array([jnp.sin(1.0), jnp.cos(1.0)])).max()

    # Second differences of the exact order, above round-off of 1e-12: 5.2, 5.1.
    np.testing.assert_allclose(orders(error, [20, 40, 80]), 5.0, atol=0.35)


def van_der_pol(t, y, stiffness):
    return [y[1], stiffness * ((1 - y[0] ** 2) * y[1] - y[0])]


def robertson(t, y, args):
    first, second, third = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return [second - first, first - second - third, third]


STIFF = [
    pytest.param(van_der_pol, [2.0, 0.0], 2.0, 1e6, 1.0, marks=pytest.mark.slow),
    (robertson, [1.0, 0.0, 0.0], 1e4, 0.0, 1e-6),
]


@pytest.mark.parametrize(("rate", "y0", "t1", "args", "scale"), STIFF)
def test_stiff_equations_agree_with_radau(rate, y0, t1, args, scale):
    """Van der Pol's with a constant of 1e6, through two jumps; Robertson's over four decades."""
    exact = solve_ivp(rate, (0, t1), y0, "Radau", args=(args,), rtol=1e-10, atol=1e-12 * scale)
    run = integrated(
        lambda t, y, args: jnp.stack(rate(t, y, args)), y0, t1, args=args,
        stepsize_controller=diffrax.PIDController(rtol=1e-7, atol=1e-7 * scale),
    )  # fmt: skip
    # The step control keeps the error of a step; jumps multiply it.
    np.testing.assert_allclose(run.ys[-1], exact.y[:, -1], rtol=2e-6)
    assert run.stats["num_steps"] < 1500


def crank_run(system=None, tolerance: Any = 1e-7, **how: Any):
    how = {"t1": 0.3, "saveat": END, "solver": Rodas5P()} | how
    if "dt" not in how:
        how["stepsize_controller"] = diffrax.PIDController(rtol=tolerance, atol=tolerance)
    return jaxdae.simulate(system or ElasticCrank(), jaxdae.Multipliers(), CRANK, **how)


@pytest.mark.slow
def test_a_slider_crank_with_a_damped_spring_agrees_with_radau():
    start = np.concatenate([CRANK.q, CRANK.v])
    exact = solve_ivp(elastic_crank, (0, 0.3), start, "Radau", rtol=1e-9, atol=1e-11).y[:, -1]
    run = crank_run(backend="native")
    found = np.concatenate([run.q[-1], run.v[-1]])
    # Errors of some hundred steps, each within 1e-7.
    np.testing.assert_allclose(found, exact, atol=2e-5)
    assert run.stats["num_steps"] < 1000


@pytest.mark.slow
def test_both_backends_make_the_same_steps():
    """Fixed ones, saved between steps and backward in time too, on an equation with the time."""
    times = diffrax.SaveAt(ts=jnp.linspace(0.0, 0.1, 7))
    forward: dict[str, Any] = {"system": ElasticCrank(), "t1": 0.1, "dt": 0.002}
    backward = {"system": ElasticCrank(1e5, 0.0), "t0": 0.1, "t1": 0.0, "dt": -0.002}
    for settings in (forward, forward | {"saveat": times}, backward):
        native, plain = (crank_run(backend=x, **settings) for x in ("native", "plain"))
        # Round-off, times the stiffness over the mass, 1e7, times the square of the step.
        np.testing.assert_allclose(native.q, plain.q, rtol=1e-11)
        np.testing.assert_allclose(native.v, plain.v, atol=1e-8)


@pytest.mark.slow
def test_the_failure_of_a_stiff_run_recommends_it_unless_it_has_failed():
    pendulum = CartesianPendulum()
    run = (pendulum, jaxdae.Multipliers(), jaxdae.State(*pendulum.start()))
    with pytest.raises(jaxdae.SimulationError, match=r"solver for stiff .*solvers\.Rodas5P\(\)"):
        jaxdae.simulate(*run, t1=9.0, max_steps=3)
    with pytest.raises(jaxdae.SimulationError, match="too stiff") as error:
        jaxdae.simulate(*run, t1=9.0, max_steps=3, solver=Rodas5P(), backend="plain")
    assert "Rodas5P" not in str(error.value)


@pytest.mark.slow
def test_more_states_than_pivots_are_chosen_of():
    """Eliminated in an order that is known beforehand."""
    chain = Chain(lengths=[0.2] * 5, masses=[1.0] * 5)  # of 20 states
    start = jaxdae.State(*chain.start())
    native, plain = (
        jaxdae.simulate(
            chain, jaxdae.Multipliers(), start, t1=0.1, dt=0.01, solver=Rodas5P(), backend=backend
        )
        for backend in ("native", "plain")
    )
    # Round-off of ten steps.
    np.testing.assert_allclose(native.q, plain.q, atol=1e-12)
    np.testing.assert_allclose(native.v, plain.v, atol=1e-10)


@pytest.mark.slow
def test_a_member_that_fails_is_alone():
    """An equation whose solution ends at t = 1: values and gradients beside it are untouched."""

    def squared(t, y, args):
        return y**2

    def end(start):
        run = integrated(
            squared, start[None], 1.5, max_steps=64, throw=False,
            stepsize_controller=diffrax.PIDController(rtol=1e-6, atol=1e-6),
        )  # fmt: skip
        return run.ys[-1, 0], run.result == diffrax.RESULTS.successful

    starts = jnp.array([0.5, 1.0])
    (ends, fine), slopes = jax.vmap(lambda x: (end(x), jax.grad(lambda x: end(x)[0])(x)))(starts)
    assert fine.tolist() == [True, False]
    # y0 / (1 - y0 t), with errors of a step of 1e-6.
    np.testing.assert_allclose(ends[0], 2.0, rtol=1e-5)
    np.testing.assert_allclose(slopes[0], 16.0, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
def test_states_of_any_structure_and_precision(dtype):
    """Backward in time, too, and in steps of no length."""
    y0 = {"a": jnp.ones((), dtype), "b": jnp.full((2, 2), 2.0, dtype)}

    def rate(t, y, args):
        return jax.tree.map(lambda x: -x * jnp.cos(t), y)

    term, solver = diffrax.ODETerm(rate), Rodas5P()
    times = jnp.linspace(1, 0, 4, dtype=dtype)
    run: Any = diffrax.diffeqsolve(
        term, solver, dtype(1), dtype(0), dtype(-0.05), y0, saveat=diffrax.SaveAt(ts=times)
    )
    assert run.ys["b"].dtype == dtype
    exact = np.exp(np.sin(1.0) - np.sin(times))
    # Of the method 1e-9; or round-off of twenty steps.
    tolerance = 1e-8 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(run.ys["a"], exact, rtol=tolerance)
    np.testing.assert_allclose(run.ys["b"][:, 1, 0], 2 * exact, rtol=tolerance)
    y1, error, dense, _, _ = solver.step(term, dtype(1), dtype(1), y0, None, None, False)
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), y0, y1))
    assert jax.tree.all(jax.tree.map(lambda x: (x == 0).all(), error))
    between = solver.interpolation_cls(t0=dtype(1), t1=dtype(1), **dense).evaluate(dtype(1))
    assert jax.tree.all(jax.tree.map(lambda x, y: (x == y).all(), between, y0))


def end(log_stiffness, adjoint=None, backend="plain"):
    system = ElasticCrank(jnp.exp(log_stiffness), 1e4)
    run = crank_run(system, t1=0.02, dt=0.002, adjoint=adjoint, backend=backend)
    return run.q[-1, 0] + run.v[-1, 1]


@pytest.mark.slow
def test_derivatives_are_those_of_the_steps():
    """By a parameter in fixed steps, both modes, against differences."""
    x, h = jnp.log(1e6), 1e-2
    value = jax.jit(end)
    # The difference is off by the fourth power of its step, and by round-off of 1e-14 over it.
    near, far = ((value(x + k * h) - value(x - k * h)) / (2 * k * h) for k in (1, 2))
    difference = (4 * near - far) / 3
    slopes = [
        jax.jit(jax.grad(end))(x),
        jax.jit(jax.jacfwd(lambda x: end(x, diffrax.ForwardMode())))(x),
    ]
    np.testing.assert_allclose(slopes, slopes[0], rtol=1e-10)
    np.testing.assert_allclose(slopes[0], difference, rtol=1e-6)


@pytest.mark.slow
def test_kernels_have_derivatives_in_both_modes_and_to_second_order():
    x = jnp.log(1e6)
    native = lambda x: end(x, backend="native")  # noqa: E731
    plain = jax.grad(end)(x)
    for slope in (jax.grad(native), jax.jacfwd(native)):
        # Sums of terms of the order of 1, of which the smallest slope is 1e-4.
        np.testing.assert_allclose(slope(x), plain, rtol=1e-10, atol=1e-13)
    slope, h = jax.grad(lambda x: released(1.3, START.at[0].set(x), dt=0.05)), 1e-4
    difference = (slope(0.6 + h) - slope(0.6 - h)) / (2 * h)
    # The error of the difference is of the order of its step squared.
    np.testing.assert_allclose(jax.jacfwd(slope)(0.6), difference, rtol=1e-5)


START = jnp.array([0.6, -0.8])


def released(mass, q, backend: Any = "native", rtol=1e-6, dt=None):
    """A stiff pendulum by adaptive or fixed steps, with rows between their ends."""
    control = diffrax.PIDController(rtol=rtol, atol=rtol) if dt is None else None
    run = jaxdae.simulate(
        CartesianPendulum(mass=mass), jaxdae.Penalty(1e3, jaxdae.Baumgarte(20.0, 100.0)),
        jaxdae.State(q, jnp.array([0.4, 0.3])), t1=0.3, solver=Rodas5P(), throw=False,
        dt=dt, stepsize_controller=control, backend=backend, max_steps=1000, start_tolerance=None,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 0.3, 4)),
    )  # fmt: skip
    return jnp.sum(run.q**2 * jnp.arange(1.0, 3.0)) + run.final_state.v[0]


@pytest.mark.slow
def test_derivatives_of_adaptive_steps_in_kernels():
    """By a parameter and the start; of a tight tolerance as differences, which see other steps."""
    point = jnp.array(1.3), START
    by = (0, 1)
    reverse, forward = jax.grad(released, by)(*point), jax.jacfwd(released, by)(*point)
    plain = jax.grad(lambda *x: released(*x, backend="plain"), by)(*point)
    for one, other, third in zip(*map(jax.tree.leaves, (reverse, forward, plain)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
        np.testing.assert_allclose(one, third, rtol=1e-9)
    tight = lambda mass: released(mass, point[1], rtol=1e-11)  # noqa: E731
    difference = (tight(1.301) - tight(1.299)) / 2e-3
    np.testing.assert_allclose(jax.grad(tight)(point[0]), difference, rtol=1e-6)


@pytest.mark.slow
def test_members_that_fail_leave_gradients_of_the_others_alone():
    masses = jnp.array([1.3, jnp.nan, 2.0])
    values, slopes = jax.vmap(jax.value_and_grad(released), (0, None))(masses, START)
    assert np.isfinite(values).tolist() == [True, False, True]
    alone = [float(jax.grad(released)(float(masses[i]), START)) for i in (0, 2)]
    np.testing.assert_allclose([slopes[0], slopes[2]], alone, rtol=1e-12)


@pytest.mark.slow
def test_projected_steps_keep_their_order_of_error_and_the_constraints():
    pendulum = CartesianPendulum()
    start = jaxdae.State(*pendulum.released_from(0.5))
    exact = jaxdae.simulate(
        pendulum, jaxdae.Multipliers(), start, t1=1.0, saveat=END, backend="native",
        stepsize_controller=diffrax.PIDController(rtol=1e-13, atol=1e-13),
    ).q[-1]  # fmt: skip

    def run(dt, backend: Any = "native"):
        solver = jaxdae.Projected(Rodas5P())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return jaxdae.simulate(
                pendulum, jaxdae.Multipliers(), start, t1=1.0, dt=dt, solver=solver,
                backend=backend,
            )  # fmt: skip

    runs = [run(1.0 / count) for count in (16, 32)]
    errors = [np.abs(x.q[-1] - exact).max() for x in runs]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(5.0, abs=0.3)
    assert max(np.abs(x.violation.phi).max() for x in runs) < 1e-13
    np.testing.assert_allclose(run(1.0 / 16, "plain").q, runs[0].q, atol=1e-12)
