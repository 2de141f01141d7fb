"""Dry friction that sticks and slides, against exact motions of oscillators."""

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdae
from jaxdae.formulations import RealizingForces, SignLaw

TIGHT = diffrax.PIDController(rtol=1e-11, atol=1e-11)


class Block(jaxdae.System):
    """A block of 1 kg on a belt, held by a spring; its speed over the belt is the constraint."""

    stiffness: jax.Array = eqx.field(converter=jnp.asarray)
    belt: jax.Array = eqx.field(converter=jnp.asarray)

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * self.stiffness * q @ q

    def velocity_constraints(self, t, q, v):
        return v - self.belt


def moved(parameters, x=0.0, v=None, *, t1, static=True, **how):
    """From rest on the belt, with parameters stiffness, belt, bound and static bound."""
    stiffness, belt, bound, hold = parameters
    system = Block(stiffness, belt)
    speed = belt if v is None else v
    state = jaxdae.State(jnp.asarray(x)[None], jnp.asarray(speed, float)[None])
    stick = jaxdae.stick_slip(system, SignLaw(bound), state, static=hold if static else None)
    settings = {"max_events": 12, "stepsize_controller": TIGHT} | how
    return jaxdae.simulate(
        stick.system, stick.formulation, stick.state, t1=t1, events=stick.events, **settings
    )


BELT = jnp.array([4.0, 0.5, 1.0, 1.5])


def exact_times(parameters, cycles):
    """Times at which a block on a belt slips and sticks.

    It sticks until the spring holds the static bound, `k x = S`. Sliding, it swings about
    `x = F / k` from `S / k` with the speed of the belt `b`, and has that again behind the angle
    `2 pi - 2 arctan((S - F) / (b sqrt k))`, as far on the other side: `x = (2 F - S) / k`.
    """
    stiffness, belt, bound, hold = parameters
    rate = jnp.sqrt(stiffness)
    slides = (2 * np.pi - 2 * jnp.arctan((hold - bound) / (belt * rate))) / rate
    sticks = 2 * (hold - bound) / (stiffness * belt)
    first = hold / (stiffness * belt)
    slips = first + jnp.arange(cycles) * (slides + sticks)
    return jnp.stack([slips, slips + slides], axis=1).ravel()


def test_a_block_on_a_belt_sticks_and_slips_at_exact_times():
    """To 1e-10, in steps of a tolerance of 1e-11; while it sticks it has the speed of the belt."""
    run = moved(BELT, t1=12.0)
    times = exact_times(BELT, 4)
    count = len(run.events)
    assert run.backend == "native"
    assert count == 7
    np.testing.assert_allclose(run.events.times[:count], times[:count], rtol=0, atol=1e-9)
    modes = np.asarray(run.w[:, -1])
    sticking = np.searchsorted(times, run.ts, side="right") % 2 == 0
    np.testing.assert_array_equal(modes == 0, sticking)
    np.testing.assert_allclose(run.v[sticking, 0], BELT[1], rtol=0, atol=1e-10)
    # Sliding slower than the belt.
    assert set(modes[~sticking]) == {-1.0}


@pytest.mark.parametrize("backend", ["native", pytest.param("plain", marks=pytest.mark.slow)])
def test_an_oscillator_with_dry_friction_comes_to_rest(backend):
    """Half periods, each of which loses `2 F / k`, until the friction holds the spring."""
    parameters = jnp.array([4.0, 0.0, 1.0, 1.0])
    run = moved(parameters, x=1.7, v=0.0, t1=8.0, static=False, backend=backend)
    # 1.7 -> -1.2 -> 0.7 -> -0.2, which is less than F / k = 0.25.
    turns = np.pi / 2 * np.arange(1, 4)
    assert len(run.events) == 3
    np.testing.assert_allclose(run.events.times[:3], turns, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.events.before.q[:3, 0], [-1.2, 0.7, -0.2], rtol=0, atol=1e-9)
    assert run.events.after.w[:3, 0].tolist() == [1.0, -1.0, 0.0]
    np.testing.assert_allclose(run.final_state.q[0], -0.2, rtol=0, atol=1e-9)
    np.testing.assert_allclose(run.final_state.v[0], 0.0, rtol=0, atol=1e-10)
    # Friction balances the spring.
    np.testing.assert_allclose(run.multipliers[-1, 0], 4.0 * 0.2, rtol=0, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
def test_derivatives_of_times_are_those_of_the_exact_ones(mode):
    """By stiffness, belt and both bounds; the errors of the steps, over a slope of 0.5."""

    def times(parameters):
        run = moved(parameters, t1=7.5, throw=False, max_events=4, saveat=diffrax.SaveAt(t1=True))
        return run.events.times[:3]

    found = mode(times)(BELT)
    expected = jax.jacfwd(lambda x: exact_times(x, 2)[:3])(BELT)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)


@pytest.mark.slow
def test_the_layer_of_the_sign_law_tends_to_the_same_motion():
    """With `tau = 1e-3` s it differs by as much."""
    parameters = jnp.array([4.0, 0.0, 1.0, 1.0])
    run = moved(parameters, x=1.7, v=0.0, t1=4.0, static=False)
    state = jaxdae.State(jnp.array([1.7]), jnp.zeros(1))
    layer = jaxdae.simulate(Block(4.0, 0.0), RealizingForces(SignLaw(1.0)), state, t1=4.0)
    np.testing.assert_allclose(layer.q, run.q, rtol=0, atol=5e-3)


class TwoBlocks(jaxdae.System):
    """Two blocks of 1 kg with a spring between them, the first driven, both on a floor."""

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def potential_energy(self, t, q):
        return 0.5 * 5.0 * (q[0] - q[1]) ** 2 + 0.5 * 20.0 * (q[0] - 0.5 * t) ** 2

    def velocity_constraints(self, t, q, v):
        return v


@pytest.mark.slow
def test_two_contacts_switch_each_by_itself():
    """Forces are within their bounds where they stick, at them where they slide."""
    system, state = TwoBlocks(), jaxdae.State(jnp.zeros(2), jnp.zeros(2))
    stick = jaxdae.stick_slip(system, SignLaw(1.0), state, static=1.3)
    assert stick.state.w.tolist() == [0.0, 0.0]
    run = jaxdae.simulate(
        stick.system, stick.formulation, stick.state, t1=6.0, events=stick.events, max_events=60,
        stepsize_controller=TIGHT,
    )  # fmt: skip
    happened = run.events.indices[: len(run.events)].tolist()
    assert set(happened) == {0, 1}
    forces, modes = -np.asarray(run.multipliers), np.asarray(run.w)
    assert (np.abs(forces[modes == 0]) <= 1.3 + 1e-8).all()
    np.testing.assert_allclose(forces[modes != 0], -modes[modes != 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.asarray(run.v)[modes == 0], 0.0, rtol=0, atol=1e-9)
    assert (np.asarray(run.v)[modes != 0] * modes[modes != 0] > -1e-9).all()


def test_what_does_not_fit_is_refused():
    system = Block(4.0, 0.5)
    state = jaxdae.State(jnp.zeros(1), jnp.array([0.5]))
    with pytest.raises(ValueError, match=r"static is 0\.5, must be at least the bound of sliding"):
        jaxdae.stick_slip(system, SignLaw(1.0), state, static=0.5)
    with pytest.raises(TypeError, match="law"):
        jaxdae.stick_slip(system, jaxdae.Multipliers(), state)  # pyright: ignore
    with pytest.raises(ValueError, match=r"static has shape \(2,\)"):
        jaxdae.stick_slip(system, SignLaw(1.0), state, static=np.ones(2))
    stick = jaxdae.stick_slip(system, SignLaw(1.0), state)
    with pytest.raises(ValueError, match=r"give the controller to jaxdae\.stick_slip"):
        jaxdae.simulate(
            stick.system, stick.formulation, stick.state, t1=1.0, events=stick.events,
            controller=lambda t, q, v, w: jnp.zeros(1),
        )  # fmt: skip
