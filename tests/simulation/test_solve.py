"""Solving differential-algebraic equations: published digits, backends, batches, derivatives."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdae
from helpers.daes import (
    Chained,
    Circle,
    Cubic,
    Growth,
    ImplicitRobertson,
    Pendulum,
    Resonator,
    Robertson,
    ROBERTSON_END,
    ROBERTSON_REFERENCE,
    ROBERTSON_START,
    TRANSISTOR_END,
    TRANSISTOR_REFERENCE,
    TRANSISTOR_START,
    Transistors,
    Turned,
)

END = diffrax.SaveAt(t1=True)


def tight(rtol, atol):
    return diffrax.PIDController(rtol=rtol, atol=atol)


def grown(k, backend="auto", **options):
    settings: dict[str, Any] = {"t1": 1.0, "saveat": END, "backend": backend} | options
    return jaxdae.solve(Growth(k), 1.0, k, **settings)


# Published digits, and equations solved by others.


@pytest.mark.slow
def test_robertson_has_the_published_digits_after_ten_to_the_eleven():
    """In both forms; of the residual, whose sum is one, `a` is known to round-off over 2e-8."""
    settings: dict[str, Any] = {
        "t1": ROBERTSON_END, "saveat": END, "stepsize_controller": tight(1e-8, 1e-14),
    }  # fmt: skip
    found = jaxdae.solve(Robertson(), *ROBERTSON_START, **settings)
    values = [found.y["a"][0], found.y["b"][0], found.z["c"][0]]
    np.testing.assert_allclose(values, ROBERTSON_REFERENCE, rtol=1e-10)
    start = jaxdae.consistent_start(ImplicitRobertson(), jnp.array([1.0, 0.0, 0.0]))
    found = jaxdae.solve(ImplicitRobertson(), *start, **settings)
    assert found.backend == "native"
    np.testing.assert_allclose(found.y[0], ROBERTSON_REFERENCE, rtol=1e-6)


def test_robertson_at_forty_agrees_with_scipy():
    """SciPy's Radau on the ordinary equations that the sum leaves."""

    def reduced(t, y):
        a, b = y
        one, two = 0.04 * a - 1e4 * b * (1 - a - b), 3e7 * b**2
        return [-one, one - two]

    exact = solve_ivp(reduced, (0, 40), [1.0, 0.0], method="Radau", rtol=1e-10, atol=1e-14).y[:, -1]
    found = jaxdae.solve(
        Robertson(), *ROBERTSON_START, t1=40.0, saveat=END,
        stepsize_controller=tight(1e-10, 1e-14), backend="plain",
    )  # fmt: skip
    np.testing.assert_allclose([found.y["a"][0], found.y["b"][0]], exact, rtol=1e-8)
    # As published in the test set.
    np.testing.assert_allclose(found.z["c"][0], 0.2841637457, atol=2e-10)


@pytest.mark.slow
def test_the_transistor_amplifier_has_the_published_digits():
    start = jaxdae.consistent_start(Transistors(), TRANSISTOR_START)
    found = jaxdae.solve(
        Transistors(), *start, t1=TRANSISTOR_END, saveat=END, backend="native",
        stepsize_controller=tight(1e-7, 1e-7),
    )  # fmt: skip
    # Volts of a signal that is amplified some twenty times, 1e-7 in each of some thousand steps.
    np.testing.assert_allclose(found.y[0], TRANSISTOR_REFERENCE, atol=1e-6)


@pytest.mark.slow
def test_a_mass_matrix_is_taken_account_of_and_time_may_run_backward():
    """`y` goes round with a matrix that depends on it: `y = (cos t, sin t)`."""

    there = jaxdae.solve(Turned(), jnp.array([1.0, 0.0]), 0.0, t1=1.0)
    np.testing.assert_allclose(there.y[:, 0], np.cos(there.ts), atol=1e-7)  # tolerance 1e-8 a step
    rates = there.y_dot
    np.testing.assert_allclose(rates[:, 1], np.cos(there.ts), atol=1e-7)
    back = jaxdae.solve(Turned(), *there.last, t0=1.0, t1=0.0, saveat=END)
    np.testing.assert_allclose(back.y[0], [1.0, 0.0], atol=1e-7)


@pytest.mark.slow
def test_backends_make_the_same_steps():
    runs = [
        jaxdae.solve(Robertson(), *ROBERTSON_START, t1=1.0, backend=backend)
        for backend in ("plain", "native")
    ]
    assert int(runs[0].stats["num_steps"]) == int(runs[1].stats["num_steps"])
    for one, other in zip(*(jax.tree.leaves(x.saved) for x in runs), strict=True):
        # Round-off in the iterations of each step.
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-13)


@pytest.mark.slow
def test_single_precision():
    start = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (0.0, 1.0))
    found = jaxdae.solve(Cubic(), *start, t1=1.0, saveat=END)
    assert found.y.dtype == found.z.dtype == jnp.float32
    # The default tolerance of single precision is 1e-5 in each step.
    np.testing.assert_allclose(found.y[0], np.sin(1.0), atol=1e-4)


def test_equations_without_constraints_are_ordinary_ones():
    class Decay(jaxdae.DAE):
        def rate(self, t, y, z, u):
            return jax.tree.map(jnp.negative, y)

    found = jaxdae.solve(Decay(), {"x": jnp.ones(2)}, t1=1.0, dt=0.1, backend="plain")
    assert (found.index, found.z, found.violation_names) == (0, None, [])
    np.testing.assert_allclose(found.y["x"][-1], np.exp(-1.0), rtol=1e-8)  # 0.1^5 over a thousand


# Controls.


class Ramp(eqx.Module):
    """A source that goes up, with a proportional feedback of the current."""

    gain: Any = 0.0

    def __call__(self, t, y, z):
        return jnp.where(t < 0.25, 0.0, 1.0) - self.gain * z["current"]


@pytest.mark.slow
def test_a_circuit_under_a_source_that_jumps_and_feeds_back():
    """The current of a resonator by hand; the feedback is a resistor of its own."""
    dae, source = Resonator(resistance=1.5), Ramp(0.5)
    start = jaxdae.consistent_start(
        dae, {"charge": 0.0, "flux": 0.0}, {"coil": 0.0, "current": 0.0}, controller=source
    )
    found = jaxdae.solve(
        dae, *start, t1=1.0, controller=source,
        stepsize_controller=diffrax.ClipStepSizeController(
            tight(1e-9, 1e-9), jump_ts=jnp.array([0.25])
        ),
    )  # fmt: skip
    since = np.maximum(np.asarray(found.ts) - 0.25, 0.0)
    exact = np.exp(-2 * since) * np.sin(4 * since) / (0.5 * 4)
    np.testing.assert_allclose(found.z["current"], exact, atol=1e-7)
    np.testing.assert_allclose(found.u[-1], 1 - 0.5 * exact[-1], atol=1e-7)
    assert np.abs(found.violation.residual).max() < 1e-14  # round-off
    assert found.names[1] == ["z['coil']", "z['current']"]
    assert found.violation_names == ["constraints['coil']", "constraints['loop']"]


# Derivatives.


# What the fastest reaction has come to: from the start on it is too fast for steps of one length.
B = 3.4e-5


def robertson_end(k, **options):
    dae = Robertson(k)
    start = jaxdae.consistent_start(dae, {"a": 0.98, "b": B}, {"c": 0.0})
    run = jaxdae.solve(dae, *start, t1=1.0, saveat=END, **options)
    return run.y["a"][0] + 1e3 * run.y["b"][0] + run.z["c"][0] ** 2


def pendulum_end(x, **options):
    dae = Pendulum(gravity=9.0 * x)
    start = {"q": jnp.array([0.6, -0.8]), "v": jnp.array([1.0 + x, 1.0])}
    run = jaxdae.solve(
        dae, *jaxdae.consistent_start(dae, start, 0.0), t1=0.4, saveat=END, **options
    )
    return run.y["q"][0, 0] + run.z[0]


def implicit_end(x, **options):
    dae = ImplicitRobertson(0.04 * x)
    given = jnp.array([0.9, B, 0.02 * x])
    start = jaxdae.consistent_start(dae, given, hold=["y[1]", "y[2]"])
    run = jaxdae.solve(dae, *start, t1=1.0, saveat=END, **options)
    return run.y[0, 0] + 1e3 * run.y[0, 1] + run.y_dot[0, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "at", "dt"),
    [(robertson_end, 0.04, 0.05), (pendulum_end, 1.1, 0.02), (implicit_end, 1.1, 0.05)],
    ids=["index 1", "index 2", "residual"],
)
def test_derivatives_in_both_modes_and_by_differences(function, at, dt):
    """By parameters and, where it depends on them, the start; of rates and `z`, too."""
    made = lambda x, adjoint=None: function(x, dt=dt, backend="native", adjoint=adjoint)  # noqa: E731
    reverse = jax.grad(made)(at)
    forward = jax.jvp(lambda x: made(x, diffrax.ForwardMode()), (at,), (1.0,))[1]
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)
    h = 1e-3 * at
    near, far = (made(at + x) - made(at - x) for x in (h, 2 * h))
    np.testing.assert_allclose(reverse, (8 * near - far) / (12 * h), rtol=1e-6)


@pytest.mark.slow
def test_derivatives_of_adaptive_runs_are_those_of_the_solution():
    """`y = 1 / (1 - k t)`; along steps that the tolerance chooses."""
    at = lambda k: grown(k, t1=0.5).y[0]  # noqa: E731
    np.testing.assert_allclose(jax.grad(at)(1.0), 2.0, rtol=1e-6)
    ahead = lambda k: grown(k, t1=0.5, adjoint=diffrax.ForwardMode()).y[0]  # noqa: E731
    np.testing.assert_allclose(jax.jvp(ahead, (1.0,), (1.0,))[1], 2.0, rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_native_runs():
    at = lambda k: grown(k, "native", t1=0.5, dt=0.025).y[0]  # noqa: E731
    np.testing.assert_allclose(jax.hessian(at)(1.0), 4.0, rtol=1e-5)  # the error of the steps


# Batches and failures.


@pytest.mark.slow
def test_a_batch_of_thousands_on_kernels_with_gradients():
    """Each the solution `y = 1 / (1 - k t)`, and the gradient of a sum over all of them."""
    ks = jnp.linspace(0.1, 1.5, 4096)

    def total(ks):
        runs = jax.vmap(lambda k: grown(k, "native", t1=0.5, throw=False))(ks)
        return jnp.sum(runs.y[:, 0]), runs

    (_, runs), gradient = jax.value_and_grad(total, has_aux=True)(ks)
    assert bool(runs.success.all())
    assert runs.batch_shape == (4096,)
    exact = 1 / (1 - 0.5 * ks)
    # The tolerance of 1e-8 of each step, which growth enlarges.
    np.testing.assert_allclose(runs.y[:, 0], exact, rtol=1e-6)
    np.testing.assert_allclose(gradient, 0.5 * exact**2, rtol=1e-5)
    assert runs[7].batch_shape == ()
    assert float(runs[7].y[0]) == float(runs.y[7, 0])


@pytest.mark.parametrize("backend", ["native", pytest.param("plain", marks=pytest.mark.slow)])
def test_a_member_that_fails_is_alone(backend):
    """One without an end before its time, and one whose parameter is no number."""
    ks = jnp.array([0.5, 2.0, jnp.nan, 0.9])
    saveat = diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 5))

    def run(k):
        return jaxdae.solve(
            Growth(k), 1.0, 1.0, t1=1.0, saveat=saveat, backend=backend, throw=False,
            start_tolerance=None, max_steps=200,
        )  # fmt: skip

    def total(ks):
        runs = jax.vmap(run)(ks)
        ends = jnp.where(runs.success, runs.final.y, 0.0)
        return jnp.sum(ends), runs

    (_, runs), gradient = jax.value_and_grad(total, has_aux=True)(ks)
    assert runs.success.tolist() == [True, False, False, True]
    exact = 1 / (1 - ks[jnp.array([0, 3])])
    np.testing.assert_allclose(runs.y[jnp.array([0, 3]), -1], exact, rtol=1e-6)
    assert np.isfinite(runs.y[1, :2]).all()  # until half a second it has one
    assert np.isnan(runs.y[1, 2:]).all()
    assert np.isinf(runs.ts[1, 2:]).all()
    assert np.isnan(runs.y[2, 1:]).all()
    np.testing.assert_allclose(gradient[jnp.array([0, 3])], exact**2, rtol=1e-5)
    assert gradient[1] == gradient[2] == 0
    assert "2 of 4 reached their end" in repr(runs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 2.0}, r"the run stopped at t = 0\.\d+ s .*largest variable there is z"),
        ({"k": 2.0, "dt": 0.3}, r"the run stopped at .*The next step has no end: the iteration"),
        ({"k": 0.5, "max_steps": 3}, r"maximum number of solver steps.*raise max_steps"),
    ],
)
def test_a_run_that_fails_says_when_and_what_to_try(options, words):
    with pytest.raises(jaxdae.SimulationError, match=words):
        grown(backend="plain", **options)


@pytest.mark.slow
def test_a_run_that_comes_to_a_singular_point_names_the_equations():
    """`z^2 = 1 - y`: where `z` comes to zero, the constraint does not determine it any more."""

    class Fold(jaxdae.DAE):
        def rate(self, t, y, z, u):
            return 1.0 + 0 * z

        def constraints(self, t, y, z, u):
            return {"fold": z**2 - (1 - y)}

    with pytest.raises(jaxdae.SimulationError, match=r"the run stopped at t = (0.99|1)"):
        jaxdae.solve(Fold(), 0.0, 1.0, t1=2.0, backend="plain", saveat=END)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"solver": diffrax.Dopri8()}, ValueError, "Dopri8 does not solve differential-algebraic"),
        ({"solver": jaxdae.solvers.Rattle()}, ValueError, "Rattle does not solve differential-al"),
        ({"solver": 5}, TypeError, "solver is 5; give jaxdae.solvers.RadauIIA"),
        ({"controller": 3.0}, TypeError, r"give a callable u = controller\(t, y, z\)"),
        ({"controller": lambda t, y: 0.0}, ValueError, "the controller is declared with the par"),
        ({"controller": lambda t, y, z: None}, ValueError, "the controller returned nothing"),
        ({"adjoint": diffrax.BacksolveAdjoint()}, TypeError, "BacksolveAdjoint cannot give"),
        ({"saveat": diffrax.SaveAt(t1=True, fn=lambda t, y, args: t)}, ValueError,
         "leave fn and subs out of SaveAt"),
        ({"stepsize_controller": diffrax.ConstantStepSize()}, ValueError, "ConstantStepSize needs"),
        ({"dt": -0.1}, ValueError, "dt = -0.1 does not lead from"),
        ({"t1": jnp.inf}, ValueError, "t1 is not finite"),
        ({"start_tolerance": -1.0}, ValueError, "start_tolerance must be"),
        ({"backend": "gpu"}, ValueError, "backend is 'gpu'"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_refused_in_words(options, error, words):
    with pytest.raises(error, match=words):
        grown(1.0, **options)


def test_a_start_that_is_off_is_refused_by_name_and_distance():
    words = (
        r"the start is not consistent: constraints\['sum'\] = 0.1 at t = 0, about .* of the "
        r"variables away from zero \(allowed 0.0001\). Start from jaxdae.consistent_start"
    )
    with pytest.raises(jaxdae.ConsistencyError, match=words):
        jaxdae.solve(Robertson(), {"a": 1.0, "b": 0.0}, {"c": 0.1}, t1=1.0)
    with pytest.raises(jaxdae.ConsistencyError, match="d/dt constraints = "):
        jaxdae.solve(Circle(), jnp.array([0.0, 1.0]), 3.0, t1=1.0)
    with pytest.raises(ValueError, match=r"the start is not finite: y\['b'\] = nan"):
        jaxdae.solve(Robertson(), {"a": 1.0, "b": jnp.nan}, {"c": 0.1}, t1=1.0)


@pytest.mark.slow
def test_more_variables_than_kernels_choose_pivots_for_are_left_to_the_plain_backend():
    dae, y, z = Chained(), jnp.ones(16), 1.0
    with pytest.raises(jaxdae.BackendError, match="17 variables are more than the 16 for which"):
        jaxdae.solve(dae, y, z, t1=0.1, dt=0.05, backend="native")
    found = jaxdae.solve(dae, y, z, t1=0.1, dt=0.05)
    assert found.backend == "plain"
    assert "17 variables are more" in str(found.why_not_native)
    np.testing.assert_allclose(found.y[-1], np.exp(-0.1), rtol=1e-9)


@pytest.mark.slow
def test_kernels_solve_as_many_as_they_choose_pivots_for():
    dae, y, z = Chained(), jnp.ones(15), 1.0
    kinds = ("native", "plain")
    one, other = (jaxdae.solve(dae, y, z, t1=0.1, dt=0.05, backend=x) for x in kinds)
    # Round-off of a few steps.
    np.testing.assert_allclose(one.y, other.y, rtol=1e-12)
    np.testing.assert_allclose(one.z, other.z, rtol=1e-12)


@pytest.mark.slow
def test_dense_output_is_consistent_at_any_time():
    found = jaxdae.solve(
        Circle(), jnp.array([0.0, 1.0]), 1.0, t1=1.0, dt=0.1, backend="plain",
        saveat=diffrax.SaveAt(dense=True),
    )  # fmt: skip
    ts = jnp.linspace(0.0, 1.0, 7)
    y, z = found.evaluate(ts)
    assert np.abs(jnp.sum(y**2, axis=1) - 1).max() < 1e-14  # round-off
    # Of order 4 in the step between the ends of steps, 0.1^4 over a hundred.
    np.testing.assert_allclose(y[:, 0], np.sin(ts), atol=1e-6)
    np.testing.assert_allclose(z, np.exp(-ts), atol=1e-5)
    with pytest.raises(ValueError, match="no dense output; run solve"):
        jaxdae.solve(Cubic(), 0.0, 1.0, t1=0.1, dt=0.1, backend="plain").evaluate(0.0)


# What is known only when the program runs.


class Chain(jaxdae.DAE):
    """`x'' = z` and `x = r t^2` where `s` is zero: index 3, else `s z = x - r t^2`, index 1."""

    s: float = 0.0
    r: float = 1.0

    def rate(self, t, y, z, u):
        return jnp.stack([y[1], z])

    def constraints(self, t, y, z, u):
        return self.s * (z - 2 * self.r) + y[0] - self.r * t**2


def _moved(s, z, throw):
    run = jaxdae.solve(
        Chain(s), jnp.zeros(2), z, t1=0.2, dt=0.1, backend="plain", throw=throw, saveat=END
    )
    return run.y[0], run.success


@pytest.mark.slow
def test_inside_of_a_transformation_index_and_start_are_checked_when_the_program_runs():
    """Members of which the index is 3, or the start off, fail alone; with `throw` in words."""
    s, z = jnp.array([1.0, 0.0, 1.0, jnp.nan]), jnp.array([2.0, 2.0, 3.0, 2.0])
    y, good = jax.vmap(lambda s, z: _moved(s, z, False))(s, z)
    assert good.tolist() == [True, False, False, False]
    assert np.isnan(y[1:]).all()
    np.testing.assert_allclose(y[0], [0.04, 0.4], atol=1e-6)  # 0.1^5
    call = jax.jit(lambda s, z: _moved(s, z, True)[0])
    with pytest.raises(Exception, match="the index of the equations is higher"):
        call(0.0, 2.0)
    with pytest.raises(Exception, match="the start is not consistent to start_tolerance"):
        call(1.0, 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("solver", [jaxdae.solvers.RadauIIA(), jaxdae.solvers.Rodas5P()])
def test_derivatives_by_a_parameter_know_that_z_at_the_start_moves_with_it(solver):
    """`y = 1 / (1 - k t)`, where `z` is given as the number that it is at `k = 1`."""

    def end(k):
        run = jaxdae.solve(
            Growth(k), 1.0, 1.0, t1=0.5, dt=0.02, solver=solver, backend="plain", saveat=END
        )
        return run.y[0]

    # Steps of a fiftieth to order five.
    np.testing.assert_allclose(jax.grad(end)(1.0), 2.0, rtol=1e-6)


# Parameters from data.


# The solver that is taken.


@pytest.mark.parametrize(
    ("dae", "start", "name", "why"),
    [
        (Robertson(), ROBERTSON_START, "Rodas5P", "the equations are semi-explicit"),
        pytest.param(
            Circle(),
            (jnp.array([0.0, 1.0]), 1.0),
            "RadauIIA",
            "the constraints do not depend on z",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ImplicitRobertson(),
            jnp.array([1.0, 0.0, 0.0]),
            "RadauIIA",
            "the equations are a resid",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["index 1", "index 2", "residual"],
)
def test_the_solver_that_suits_the_equations_is_taken_and_named(dae, start, name, why):
    given = start if isinstance(start, tuple) else (start,)
    y, z = jaxdae.consistent_start(dae, *given)
    settings: dict[str, Any] = {"t1": 0.1, "saveat": END, "backend": "plain"}
    found = jaxdae.solve(dae, y, z, solver="auto", **settings)
    assert str(found.why_solver).startswith(f"{name}, as {why}")
    assert why in repr(found)
    assert found.stored().why_solver == found.why_solver
    same = jaxdae.solve(dae, y, z, solver=getattr(jaxdae.solvers, name)(), **settings)
    assert same.why_solver is None
    for one, other in zip(jax.tree.leaves(found.y), jax.tree.leaves(same.y), strict=True):
        assert (one == other).all()


def test_another_name_of_a_solver_is_refused():
    with pytest.raises(ValueError, match="solver is 'best'; give 'auto', or a solver such as"):
        jaxdae.solve(Growth(), 1.0, 1.0, t1=0.1, solver="best")
