"""Inputs on a grid of times: SciPy's interpolants, and exact motions of an oscillator."""

from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.interpolate

import jaxdae
from helpers.spring import Spring
from jaxdae import Held, Interpolated, Multipliers, simulate, State

TIMES = np.array([0.1, 0.3, 0.35, 0.9, 1.4])
VALUES = np.sin(7 * TIMES)
POINTS = np.cos(np.arange(7.0))
KNOTS = np.concatenate([[0.1] * 3, TIMES, [1.4] * 3])
WITHIN = lambda t: np.clip(t, 0.1, 1.4)  # noqa: E731
INPUTS = {
    "held": (
        lambda: Held(TIMES, VALUES),
        lambda t: VALUES[np.clip(np.searchsorted(TIMES, t, side="right") - 1, 0, 4)],
    ),
    "linear": (lambda: Interpolated(TIMES, VALUES), lambda t: np.interp(t, TIMES, VALUES)),
    "cubic": (
        lambda: Interpolated(TIMES, VALUES, "cubic"),
        lambda t: scipy.interpolate.CubicSpline(TIMES, VALUES, bc_type="natural")(WITHIN(t)),
    ),
    "b-spline": (
        lambda: Interpolated(TIMES, POINTS, "b-spline"),
        lambda t: scipy.interpolate.BSpline(KNOTS, POINTS, 3)(WITHIN(t)),
    ),
}
TIGHT = diffrax.PIDController(rtol=1e-11, atol=1e-11)
START = State(jnp.array([0.3]), jnp.zeros(1))
BACKENDS = pytest.mark.parametrize("backend", ["plain", "native"])


def moved(controller, backend: Any = "native", **settings):
    default = {} if "dt" in settings else {"stepsize_controller": TIGHT}
    how: dict[str, Any] = {"t1": 2.0} | default | settings
    return simulate(
        Spring(4.0), Multipliers(), START, controller=controller, backend=backend, **how
    )


def by_scipy(value):
    """Position and velocity at 2 s, one interval of the times after the other."""
    x = np.array([0.3, 0.0])
    for a, b in zip([0.0, *TIMES], [*TIMES, 2.0], strict=True):
        # Inside of an interval, whatever is on its ends.
        u = lambda t, a=a, b=b: value(min(max(t, a + 1e-12), b - 1e-12))  # noqa: E731
        rate = lambda t, x, u=u: [x[1], -4 * x[0] + u(t)]  # noqa: E731
        x = scipy.integrate.solve_ivp(
            rate, (a, b), x, method="DOP853", rtol=1e-12, atol=1e-12
        ).y[:, -1]  # fmt: skip
    return x


@pytest.mark.parametrize("name", INPUTS)
def test_they_are_what_scipy_interpolates(name):
    make, value = INPUTS[name]
    ts = np.concatenate([np.linspace(-0.213, 1.7, 77), TIMES])
    np.testing.assert_allclose(jax.vmap(make())(ts), value(ts), rtol=0, atol=1e-14)
    # Values of any shape, each entry as it would be alone.
    controller = make()
    many = jnp.stack([controller.values, 2 * controller.values], 1)[:, None]
    kind = () if name == "held" else (name,)
    several = type(controller)(TIMES, many, *kind)(0.7)
    assert several.shape == (1, 2)
    np.testing.assert_allclose(several[0], value(0.7) * np.array([1.0, 2.0]), rtol=1e-12)


@BACKENDS
@pytest.mark.parametrize(
    "name",
    [
        "held",
        "b-spline",
        pytest.param("linear", marks=pytest.mark.slow),
        pytest.param("cubic", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("how", [{"dt": 0.02}, {}], ids=["fixed", "adaptive"])
def test_the_motion_is_that_of_scipy(backend, name, how):
    make, value = INPUTS[name]
    found = moved(make(), backend, **how)
    assert found.backend == backend
    wanted = by_scipy(value)
    np.testing.assert_allclose([found.q[-1, 0], found.v[-1, 0]], wanted, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.u[-1], value(2.0), rtol=0, atol=1e-13)
    if how:
        for t in TIMES:
            assert np.abs(found.ts - t).min() < 1e-14


def test_an_input_in_a_function_of_the_time():
    """In place of a controller of its own; kernels read it there, too."""
    held = Held(np.arange(5) * 0.5, VALUES)
    law = lambda t, q, v, w: held(t) - 0.3 * v  # noqa: E731
    values = [moved(law, x, dt=0.05).q[-1, 0] for x in ("plain", "native")]
    np.testing.assert_allclose(*values, rtol=1e-12)


def test_a_run_may_begin_and_end_between_the_times():
    whole = moved(Held(TIMES, VALUES), t1=0.6)
    state = State(whole.q[-1], whole.v[-1])
    rest = simulate(
        Spring(4.0), Multipliers(), state, t0=0.6, t1=2.0, controller=Held(TIMES, VALUES),
        stepsize_controller=TIGHT,
    )  # fmt: skip
    wanted = by_scipy(INPUTS["held"][1])
    np.testing.assert_allclose([rest.q[-1, 0], rest.v[-1, 0]], wanted, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["held", "cubic", "b-spline"])
def test_derivatives_by_many_values(kind):
    """Three hundred of them, each with its own effect, in both modes and by differences."""
    times = np.arange(300) / 150
    values = jnp.sin(5 * jnp.arange(302.0 if kind == "b-spline" else 300.0) / 150)

    def end(values, backend):
        controller = Held(times, values) if kind == "held" else Interpolated(times, values, kind)
        found = moved(
            controller, backend, dt=0.01, solver=jaxdae.solvers.RK4(),
            adjoint=diffrax.DirectAdjoint(),
        )  # fmt: skip
        return found.q[-1, 0] + found.v[-1, 0]

    gradients = [jax.grad(end)(values, x) for x in ("plain", "native")]
    np.testing.assert_allclose(*gradients, rtol=1e-9, atol=1e-13)
    direction = jnp.cos(jnp.arange(values.size))
    _, along = jax.jvp(lambda x: end(x, "native"), (values,), (direction,))
    np.testing.assert_allclose(along, gradients[1] @ direction, rtol=1e-9)
    # Linear in the values, so that a difference has the round-off of its parts alone.
    difference = end(values + direction, "native") - end(values, "native")
    np.testing.assert_allclose(along, difference, rtol=1e-9)


@pytest.mark.slow
@BACKENDS
def test_members_with_times_and_values_of_their_own(backend):
    times = jnp.stack([TIMES, 0.8 * TIMES, TIMES + 0.05])
    values = jnp.stack([VALUES, 2 * VALUES, -VALUES])

    def end(times, values):
        return moved(Held(times, values), backend, max_steps=300).q[-1, 0]

    together = jax.vmap(end)(times, values)
    alone = [end(np.asarray(t), v) for t, v in zip(times, values, strict=True)]
    np.testing.assert_allclose(together, jnp.stack(alone), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Held(TIMES[::-1], VALUES), "times of Held must be finite and increasing"),
        (lambda: Held([0.0, np.nan], VALUES[:2]), "times of Held must be finite and increasing"),
        (lambda: Held(0.0, VALUES), r"times of Held have shape \(\); give \(times,\)"),
        (lambda: Held(TIMES, VALUES[:3]), r"Held has values of shape \(3,\) at 5 times"),
        (lambda: Interpolated(TIMES, VALUES, "b-spline"), "the first axis must be 7"),
        (lambda: Interpolated(TIMES, VALUES, "cubik"), "No interpolation is named 'cubik'. Did"),
        (lambda: Interpolated(TIMES[:1], VALUES[:1]), "takes two times or more"),
    ],
)
def test_what_is_no_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_a_run_cannot_do_with_it_names_it(tmp_path):
    run = moved(Held(TIMES, VALUES))
    run.save(tmp_path / "run.npz")
    for one in (run, jaxdae.Trajectory.load(tmp_path / "run.npz")):
        assert "under Held" in repr(one)
    with pytest.raises(ValueError, match="Held keeps a memory, which a run backward in time"):
        moved(Held(TIMES, VALUES), t1=-1.0)
    end = jax.jit(lambda x: moved(Held(x, VALUES), throw=False).q[-1, 0])
    assert np.isfinite(end(TIMES))
    assert not np.isfinite(end(TIMES[::-1]))
