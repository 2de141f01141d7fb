"""Limits of joints, tendons and motors of files, against those of MuJoCo."""

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdae
from jaxdae.multibody import BallAngle, read_mujoco, Stop
from jaxdae.solvers import RK4

# Compiled, without stubs.
MUJOCO: Any = mujoco
# A margin within which MuJoCo has the limits' rows in every position, and holds them that far off.
TEXT = """<mujoco><option><flag contact="disable"/></option><worldbody>
  <site name="hook" pos="0 0 1"/>
  <body><joint name="swing" axis="0 1 0" range="-20 50" limited="true" margin="9"/>
    <geom type="box" size=".3 .05 .1" pos=".25 0 0"/>
    <body pos=".5 0 0"><joint name="socket" type="ball" range="0 60" limited="true" margin="9"/>
      <geom type="box" size=".1 .05 .15" pos=".1 .1 0"/><site name="eye" pos=".1 .2 .1"/>
      <body pos=".2 0 0"><joint name="reach" type="slide" axis="1 1 0" damping="1"/>
        <geom type="box" size=".1 .05 .1"/></body>
    </body></body>
</worldbody><tendon>
  <spatial name="rope" range=".2 1.5" limited="true" margin="9">
    <site site="hook"/><site site="eye"/></spatial>
  <fixed name="sum" range="-1 2" limited="true" margin="9"><joint joint="swing" coef="2"/></fixed>
</tendon><actuator>
  <motor name="push" joint="reach" ctrlrange="-.5 .7" gear="3"/>
  <position name="servo" joint="swing" kp="7" forcerange="-1 2" gear="2"/>
  <general name="slow" joint="reach" dyntype="filter" dynprm=".2" ctrlrange="-.2 .2"
           forcerange="-.3 .1" gainprm="4"/>
</actuator></mujoco>"""


@pytest.fixture(scope="module")
def limited():
    return read_mujoco(TEXT, limits="events", motor_limits=True)


def state_of(model, seed):
    rng, data = np.random.default_rng(seed), MUJOCO.MjData(model)
    data.qvel, data.ctrl = rng.normal(size=model.nv), 3 * rng.normal(size=model.nu)
    data.act = rng.normal(size=model.na)
    MUJOCO.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.8)
    MUJOCO.mj_forward(model, data)
    return data


def test_events_are_where_mujoco_holds_the_limits(limited):
    assert limited.left_out == ()
    assert [x.name for x in limited.events] == [
        "lower limit of swing", "upper limit of swing", "upper limit of socket",
        "lower limit of tendon rope", "upper limit of tendon rope",
        "lower limit of tendon sum", "upper limit of tendon sum",
    ]  # fmt: skip
    system = limited.system

    def gaps(q, v):
        at = lambda q: jnp.stack([x.function(0.0, q, v, None) for x in limited.events])  # noqa: E731
        return jax.jvp(at, (q,), (system.rate(0.0, q, v),))

    ours = jax.jit(gaps)
    model = MUJOCO.MjModel.from_xml_string(TEXT)
    kinds = MUJOCO.mjtConstraint
    for seed in range(3):
        data = state_of(model, seed)
        found, rates = ours(jnp.asarray(data.qpos), jnp.asarray(data.qvel))
        rows = np.isin(data.efc_type, [int(kinds.mjCNSTR_LIMIT_JOINT),
                                       int(kinds.mjCNSTR_LIMIT_TENDON)])  # fmt: skip
        assert rows.sum() == 7
        # Sums of a few rounded products.
        theirs = (data.efc_pos - data.efc_margin)[rows]
        np.testing.assert_allclose(found, theirs, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(rates, data.efc_vel[rows], rtol=1e-10, atol=1e-11)


def test_motors_have_the_ranges_of_mujoco(limited):
    system = limited.system
    motors: Any = system.motors
    assert motors[0].input_range == (-0.5, 0.7)
    assert motors[1].force_range == (-1.0, 2.0)
    ours = jax.jit(lambda *x: (system.force(*x), system.actuator_rate(*x)))
    model = MUJOCO.MjModel.from_xml_string(TEXT)
    clipped = 0
    for seed in range(4):
        data = state_of(model, seed)
        state = [0.0, *map(jnp.asarray, (data.qpos, data.qvel, data.act, data.ctrl))]
        force, rate = ours(*state)
        np.testing.assert_allclose(force, data.qfrc_actuator, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(rate, data.act_dot, rtol=1e-10)
        clipped += int(np.isin(data.actuator_force, (-0.5, 0.7, -1, 2, -0.3, 0.1)).sum())
    assert clipped > 4
    with pytest.warns(RuntimeWarning, match=r"limits of 3 actuators\.$"):
        plain: Any = read_mujoco(TEXT, limits="events").system.motors
    assert not any(x.input_range or x.force_range for x in plain)


def test_balls_have_stops_that_keep_the_power(limited):
    text = TEXT.replace('margin="9"', "")
    system = read_mujoco(text, limit_stiffness=500.0, motor_limits=True).system
    ball = system.forces[1]
    assert isinstance(ball, Stop)
    assert isinstance(ball.along, BallAngle)
    assert (ball.name, ball.lower) == ("stop of socket", None)
    assert ball.upper is not None
    np.testing.assert_allclose(ball.upper, np.pi / 3)
    data = state_of(MUJOCO.MjModel.from_xml_string(text), 1)
    q, v = jnp.asarray(data.qpos), jnp.asarray(data.qvel)

    def both(q, v):
        moving = ball.along.moving(system.motion(q, v))
        length = lambda q: ball.along.length({}, system.values(q))  # noqa: E731
        return moving.rate, jax.jvp(length, (q,), (system.rate(0.0, q, v),))[1]

    by_load, by_length = jax.jit(both)(q, v)
    np.testing.assert_allclose(by_load, by_length, rtol=1e-12)
    # Without rotation there is no direction; slopes are zero there, not undefined.
    still = q.at[1:5].set(jnp.array([1.0, 0, 0, 0]))
    slope = jax.grad(lambda q: ball.along.length({}, system.values(q)))(still)
    np.testing.assert_array_equal(slope, 0.0)


PENDULUM = """<mujoco><option gravity="0 0 0"/><worldbody><body><joint name="turn" axis="0 1 0"
range="-10 30" limited="true"/><geom size=".1" pos="1 0 0"/></body></worldbody></mujoco>"""


@pytest.mark.slow
def test_a_run_ends_at_a_limit_or_comes_back():
    """At constant speed: to 30 degrees, and back at half the speed."""
    end, rate = np.pi / 6, 1.0
    for restitution, angle in ((None, end), (0.5, end - 0.5 * (0.7 - end))):
        read = read_mujoco(PENDULUM, limits="events", limit_restitution=restitution)
        start = jaxdae.State(read.state.q, jnp.array([rate]))
        run = jaxdae.simulate(
            read.system, jaxdae.Multipliers(), start, t1=0.7, dt=0.1, solver=RK4(),
            events=read.events,
        )  # fmt: skip
        assert run.events is not None
        # The motion is linear in time.
        np.testing.assert_allclose(run.events.times[0], end / rate, rtol=1e-12)
        np.testing.assert_allclose(run.final_state.q, [angle], rtol=1e-12)
        happened = run.events.indices[run.events.indices >= 0]
        assert [run.events.names[x] for x in happened] == ["upper limit of turn"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"limits": "springs"}, r"limits is 'springs'; there are: ignore, stops, events\."),
        ({"limits": "stops"}, "limits is 'stops' and limit_stiffness is None; stops have"),
        ({"limits": "events", "limit_stiffness": 1.0}, "'events' and limit_stiffness is 1.0; sto"),
        ({"limit_restitution": 0.5}, "limits is 'ignore' and limit_restitution is 0.5; it bel"),
        ({"limits": "events", "limit_restitution": 2.0}, "restitution is 2.0; give a number from"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        read_mujoco(PENDULUM, **given)
