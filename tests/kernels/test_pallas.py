"""A whole integration as one GPU kernel: interpreted here, it has the numbers of diffrax."""

from functools import partial

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae import Baumgarte, Multipliers, State
from jaxdae.kernels import scalarize, UnsupportedOperationError
from jaxdae.kernels.pallas import _rint, count_operations, pallas_integrate, stages
from jaxdae.models import CartesianPendulum
from jaxdae.solvers import RK4

SOLVERS = {"RK4": RK4(), "Tsit5": diffrax.Tsit5(), "Dopri8": diffrax.Dopri8()}
START, DT, STEPS = 0.3, 0.05, 12
AXES = {"stiffness": None, "drive": 0}


def driven(t, y, p):
    """A driven pendulum."""
    angle, rate = y
    return rate, p["drive"] * jnp.cos(t) - p["stiffness"] * jnp.sin(angle)


def batch(count, dtype=jnp.float64):
    grid = jnp.linspace(0, 1, count, dtype=dtype)
    return (0.1 + grid, grid**2), {"stiffness": 4.0, "drive": grid}


def integrate(y0, p, rhs=driven, solver="RK4", **how):
    given = {"t0": START, "dt": DT, "steps": STEPS, "block": 4, "parameters_axes": AXES} | how
    return pallas_integrate(rhs, y0, p, tableau=SOLVERS[solver].tableau, **given)


def reference(y0, p, rhs=driven, solver="RK4", dt=DT):
    """One trajectory, by diffrax."""
    ends = START + dt * jnp.arange(STEPS + 1)
    return diffrax.diffeqsolve(
        diffrax.ODETerm(rhs),
        SOLVERS[solver],
        ends[0],
        ends[-1],
        None,
        y0,
        args=p,
        saveat=diffrax.SaveAt(steps=True),
        stepsize_controller=diffrax.StepTo(ends),
        max_steps=STEPS,
    ).ys


@pytest.fixture(scope="module")
def rows():
    """Every step of RK4 for five trajectories, by diffrax."""
    return jax.jit(jax.vmap(reference, (0, AXES)))(*batch(5))


def close(found, expected):
    """Sums of a stage in another order: some hundred roundings of numbers of order one."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("solver", SOLVERS)
def test_every_row_is_that_of_diffrax(solver):
    y0, p = batch(5)
    ts, ys = jax.jit(partial(integrate, solver=solver))(y0, p)
    np.testing.assert_allclose(ts, START + DT * np.arange(1, STEPS + 1), rtol=1e-15)
    close(ys, jax.jit(jax.vmap(partial(reference, solver=solver), (0, AXES)))(y0, p))


def test_it_runs_back():
    y0, p = batch(2)
    found = integrate(y0, p, dt=-DT)[1]
    close(found, jax.jit(jax.vmap(partial(reference, dt=-DT), (0, AXES)))(y0, p))


@pytest.mark.parametrize("every", [3, STEPS])
def test_saving_less_often_leaves_rows_out(every, rows):
    ts, ys = integrate(*batch(5), save_every=every)
    np.testing.assert_allclose(ts, START + DT * np.arange(every, STEPS + 1, every), rtol=1e-15)
    close(ys, [x[:, every - 1 :: every] for x in rows])


@pytest.mark.parametrize("count", [1, 3, 4])
def test_blocks_that_are_not_full_change_nothing(count, rows):
    y0, p = batch(5)
    y0, p["drive"] = jax.tree.map(lambda x: x[:count], (y0, p["drive"]))
    close(integrate(y0, p)[1], [x[:count] for x in rows])


@pytest.mark.parametrize("block", [1, 8])
def test_blocks_of_every_size_give_the_same(block, rows):
    close(integrate(*batch(5), block=block)[1], rows)


def test_parameters_that_all_share_are_as_if_each_had_its_own():
    y0, _ = batch(3)
    own = {"stiffness": jnp.full(3, 4.0), "drive": jnp.full(3, 0.7)}
    expected = integrate(y0, own, parameters_axes=0)[1]
    close(integrate(y0, {"stiffness": 4.0, "drive": 0.7}, parameters_axes=None)[1], expected)


def test_a_batch_of_batches_is_a_batch_for_each():
    """`jax.vmap` over parameters that each batch shares, and over the step."""
    y0, p = batch(2)
    stiffness, dt = jnp.array([4.0, 2.0, 1.0]), jnp.array([DT, 0.02, 0.03])

    def one(stiffness, dt):
        return integrate(y0, p | {"stiffness": stiffness}, dt=dt)[1]

    found = jax.vmap(one)(stiffness, dt)
    for i in range(3):
        close([x[i] for x in found], one(stiffness[i], dt[i]))


def test_a_constrained_system_is_integrated_as_by_diffrax():
    """A linear system of equations in every stage, a state of several arrays, parameters in it."""

    def rhs(t, y, parameters):
        system, formulation = parameters
        return formulation.vector_field(system, t, y, None)

    parameters = CartesianPendulum(), Multipliers(Baumgarte(K_D=20.0, K_P=100.0))
    q, v = CartesianPendulum().start()
    pushes = jnp.linspace(0, 1, 3)[:, None] * jnp.array([0.0, 1.0])
    y0 = State(jnp.tile(q, (3, 1)), v + pushes, jnp.zeros((3, 0)))
    found = integrate(y0, parameters, rhs, parameters_axes=None)[1]
    expected = jax.jit(jax.vmap(lambda y: reference(y, parameters, rhs)))(y0)
    close(jax.tree.leaves(found), jax.tree.leaves(expected))


def test_single_precision_stays_single(rows):
    (angles, rates), p = batch(5, jnp.float32)
    ts, ys = integrate((angles, rates), p)
    for one, other in zip(ys, rows, strict=True):
        assert one.dtype == jnp.float32
        # Twelve steps of some ten roundings each.
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert ts.dtype == jnp.float32


def test_a_failure_stays_in_its_trajectory_and_marks_all_of_it():
    """`y' = y^2` ends at `t = 1 / y0`; the clock beside it never would."""

    def rhs(t, y, p):
        del t, p
        return jnp.stack([y[0] ** 2, jnp.ones_like(y[1])])

    y0 = jnp.array([[1.0, 0.0], [1e3, 0.0], [0.5, 0.0], [jnp.nan, 0.0]])
    ys = integrate(y0, (), rhs, parameters_axes=None, dt=0.02, steps=40)[1]
    assert np.isnan(ys[3]).all()
    failed = np.isnan(ys[1])
    assert failed[-1].all()
    np.testing.assert_array_equal(failed[:, 0], failed[:, 1])
    alone = integrate(y0[::2], (), rhs, parameters_axes=None, dt=0.02, steps=40)[1]
    np.testing.assert_array_equal(ys[::2], alone)


def test_stages_for_an_error_estimate_are_left_out():
    assert stages(RK4.tableau) == [0, 1, 2, 3]
    # First same as last: the seventh is the next step's first.
    assert stages(diffrax.Tsit5.tableau) == list(range(6))
    assert len(stages(diffrax.Dopri8.tableau)) < len(diffrax.Dopri8.tableau.b_sol)


def test_rounding_to_whole_numbers_is_that_of_jax():
    x = jnp.array([0.5, 1.5, 2.5, -0.5, -1.5, -0.2, 0.0, -0.0, 1e300, jnp.inf, -jnp.inf, jnp.nan])
    np.testing.assert_array_equal(_rint(x), jnp.rint(x))
    np.testing.assert_array_equal(np.signbit(_rint(x)), np.signbit(jnp.rint(x)))


FUNCTIONS = {
    "elementary": lambda x: jnp.sin(x) + jnp.exp(x) * jnp.tanh(x) - jnp.log(x) + jnp.sqrt(x),
    "inverse": lambda x: jnp.arctan2(x, 2.0) + jnp.arcsin(x / 3) + jnp.arccosh(1 + x) + x**0.3,
    "choices": lambda x: jnp.where((x > 1) & ~(x == 2), jnp.minimum(x, 1.5), jnp.rint(x)) % 0.7,
}


@pytest.mark.parametrize("precision", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_triton_takes_every_operation(name, precision):
    """Down to Triton's own language, which needs no GPU; what it computes there is not seen."""

    def rhs(t, y, p):
        return FUNCTIONS[name](y) * p * t

    y0 = jnp.ones((3, 2), precision)
    run = partial(integrate, rhs=rhs, parameters_axes=None, interpret=False, save_every=4)
    for function in (run, jax.vmap(run, (None, 0))):
        parameter = jnp.ones(() if function is run else (2,), precision)
        lowered = jax.jit(function).trace(y0, parameter).lower(lowering_platforms=("cuda",))
        assert "triton" in lowered.as_text()


def test_operations_are_counted_once_each():
    program = scalarize(lambda x: jnp.sin(x) * jnp.sin(x) + x, jnp.zeros(()))
    assert count_operations(program) == {"sin": 1, "mul": 1, "add": 1}


REFUSED = {
    "solver": ({"tableau": diffrax.Tsit5()}, TypeError, "give that of an explicit Runge–Kutta"),
    "implicit": ({"tableau": diffrax.Kvaerno3.tableau}, ValueError, "implicit method.*Tsit5"),
    "steps": ({"steps": 0}, ValueError, "steps must be a positive whole number; got 0"),
    "every": ({"save_every": 5}, ValueError, "12 is not a multiple of save_every = 5; take 15"),
    "block": ({"block": 96}, ValueError, "block = 96 is not a power of two"),
    "dt": ({"dt": jnp.ones(2)}, ValueError, r"dt has shape \(2,\); give a scalar"),
    "axes": ({"parameters_axes": 1}, ValueError, r"None or 0; got 1"),
    "lanes": ({"parameters_axes": 0}, ValueError, r"shape \(\) has no axis of 3 trajectories"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_arguments_that_do_not_fit_are_refused(case):
    how, error, match = REFUSED[case]
    given = {"tableau": RK4.tableau, "t0": 0.0, "dt": DT, "steps": STEPS, "parameters_axes": AXES}
    with pytest.raises(error, match=match):
        pallas_integrate(driven, *batch(3), **(given | how))


STATES = {
    "whole numbers": ((jnp.arange(3), jnp.arange(3)), TypeError, "float32 or float64; got int"),
    "two types": ((jnp.ones(3), jnp.ones(3, jnp.float32)), TypeError, "got float32, float64"),
    "nothing": ((), TypeError, "got nothing"),
    "no batch": ((jnp.ones(()), jnp.ones(())), ValueError, "first axis of every leaf"),
    "two batches": ((jnp.ones(3), jnp.ones(4)), ValueError, r"shapes \(3,\), \(4,\)"),
    "empty batch": ((jnp.ones(0), jnp.ones(0)), ValueError, "same positive size"),
}


@pytest.mark.parametrize("case", STATES)
def test_states_that_do_not_fit_are_refused(case):
    y0, error, match = STATES[case]
    with pytest.raises(error, match=match):
        integrate(y0, {"stiffness": 4.0, "drive": 1.0}, parameters_axes=None)


def test_functions_that_do_not_fit_are_refused():
    y0, p = batch(3)
    with pytest.raises(ValueError, match="return the rate of each leaf"):
        integrate(y0, p, rhs=lambda t, y, p: y[0])  # noqa: ARG005
    with pytest.raises(
        UnsupportedOperationError, match="erf cannot be made part of a kernel for G"
    ):
        integrate(y0, p, rhs=lambda t, y, p: jax.tree.map(jax.scipy.special.erf, y))  # noqa: ARG005
    with pytest.raises(TypeError, match="parameters are numbers and arrays; got 'stiff'"):
        integrate(y0, "stiff", parameters_axes=None)


def test_derivatives_are_refused():
    y0, p = batch(3)
    with pytest.raises(
        NotImplementedError, match=r"cannot be differentiated; use jaxdae\.simulate"
    ):
        jax.jacfwd(lambda k: integrate(y0, p | {"stiffness": k})[1][0])(4.0)
