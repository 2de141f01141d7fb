"""Digital controllers against the exact motion of an oscillator between samples, in NumPy.

The mass on a spring, `q'' + k q = u`, moves by a rotation about `u / k` while `u` is held. Samples
and outputs that take effect are put in order by hand, apart from the library's clocks.
"""

from typing import Any

import diffrax
import jax.numpy as jnp
import numpy as np
import pytest

from helpers.spring import Spring
from jaxdae import Multipliers, Sampled, simulate, State

TIGHT = diffrax.PIDController(rtol=1e-12, atol=1e-12)
START = State(jnp.array([0.3]), jnp.zeros(1))
END = 2.0
# Tolerances of 1e-12 over two seconds.
ERROR = {"rtol": 0, "atol": 1e-10}
BACKENDS = pytest.mark.parametrize("backend", ["plain", "native"])


def integrating(t, q, v, w, memory):
    """A PI law with damping by the velocity; the memory is the sum of the errors."""
    del t, w
    total = memory + 0.1 * (1.0 - q[0])
    return 3.0 * (1.0 - q) - 0.5 * v + 1.5 * total, total


def samples_of(period, start, end):
    if np.ndim(period):
        return [t for t in period if start - 1e-12 <= t <= end + 1e-12]
    first = np.ceil(start / period - 1e-9)
    return [k * period for k in np.arange(first, np.ceil(end / period) + 1) if k * period < end]


def exact(
    period, delay=0.0, start=0.0, end=END, q=0.3, stiffness=4.0, law=integrating, initial=0.0
):
    """Position, velocity, and the control input that is held, at the end."""
    times = samples_of(period, start, end)
    if delay == 0 and not np.ndim(period) and (not times or times[0] > start + 1e-12):
        times = [start, *times]
    # Outputs take effect before the sample of the same time is taken.
    due = sorted([(t, 1) for t in times] + [(t + delay, 0) for t in times if delay])
    x, t, u, memory, waiting = np.array([q, 0.0]), start, initial, 0.0, []
    frequency = stiffness**0.5

    def moved(x, duration):
        c, s = np.cos(frequency * duration), np.sin(frequency * duration)
        a, b = x[0] - u / stiffness, x[1] / frequency
        return np.array([u / stiffness + a * c + b * s, frequency * (b * c - a * s)])

    merged = []
    for when, kind in due:
        if merged and abs(when - merged[-1][0]) < 1e-12:
            merged[-1][1].append(kind)
        else:
            merged.append([when, [kind]])
    for when, kinds in merged:
        if when > end + 1e-12:
            break
        x, t = moved(x, when - t), when
        if 0 in kinds:
            u = waiting.pop(0)
        if 1 in kinds:
            output, memory = law(t, x[:1], x[1:], None, memory)
            if delay:
                waiting.append(float(output[0]))
            else:
                u = float(output[0])
    return np.array([*moved(x, end - t), u])


def moved(controller, backend: Any = "native", *, state=START, stiffness=4.0, **settings):
    default = {} if "dt" in settings else {"stepsize_controller": TIGHT}
    how: dict[str, Any] = {"t1": END} | default | settings
    return simulate(
        Spring(stiffness), Multipliers(), state, controller=controller, backend=backend, **how
    )


def ends(found):
    return np.concatenate([found.q[-1], found.v[-1], found.w[-1, :1]])


TIMES = np.array([0.0, 0.21, 0.3, 0.77, 0.8, 1.6])


@BACKENDS
@pytest.mark.parametrize(
    ("period", "delay", "how"),
    [
        (0.13, 0.0, {"dt": 0.02}),
        (0.13, 0.0, {}),
        (0.13, 0.05, {}),
        (0.13, 0.13, {}),
        (0.13, 0.4, {"dt": 0.02}),
        (0.13, 0.4, {}),
        (0.1, 0.3, {}),
        (TIMES, 0.0, {}),
        (TIMES, 0.06, {}),
        (TIMES, 0.45, {"dt": 0.02}),
        (0.13, 0.0, {"t0": 0.2}),
        (0.13, 0.4, {"t0": 0.2}),
    ],
)
def test_it_is_the_exact_motion_between_samples(backend, period, delay, how):
    controller = Sampled(integrating, period, memory=jnp.zeros(()), delay=delay, initial=0.1)
    found = moved(controller, backend, **how)
    assert found.backend == backend
    wanted = exact(period, delay, how.get("t0", 0.0), initial=0.1 if delay else 0.0)
    np.testing.assert_allclose(ends(found), wanted, **ERROR)
