"""Series and sums of controllers, with memories and without."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from helpers.systems import Turning
from jaxdae import Multipliers, Sampled, simulate
from jaxdae.control import DigitalPID, Parallel, PD, RateLimit, Saturation, Series
from jaxdae.tuning import Positive

GIVEN = (jnp.asarray(0.3), jnp.array([0.4]), jnp.array([-0.2]), jnp.zeros(0))


class Summing:
    """A policy that remembers the sum of what it has seen."""

    memory = jnp.zeros(1)

    def __call__(self, t, q, v, w, memory):
        memory = memory + q
        return 2.0 * memory, memory


def test_each_part_has_its_memory_and_those_without_take_none():
    law = PD(lambda _, q: -q, 3.0, 0.5)
    pushed = law(*GIVEN)
    series = Series(Summing(), RateLimit(1.0, 0.1), lambda u: 10.0 * u, Saturation(upper=1.5))
    both = Parallel(series, law)
    memory = both.memory
    # The sums are 0.4, 0.8; doubled they come at 0.1 in each sample.
    for wanted in (1.0, 1.5):
        u, memory = both(*GIVEN, memory)
        np.testing.assert_allclose(u, wanted + pushed, rtol=1e-14)
    (total, limited, *nothing), none = memory
    np.testing.assert_allclose(total, [0.8])
    np.testing.assert_allclose(limited, [0.2])
    assert (nothing, none) == ([(), ()], ())


def test_measurements_take_the_place_of_the_state():
    measuring = Series(lambda t, y: y + t, lambda u: -u)
    u, memory = measuring(jnp.asarray(0.5), jnp.array([1.0]), measuring.memory)
    np.testing.assert_allclose(u, [-1.5])
    assert memory == ((), ())


def test_one_period_goes_through_all_parts():
    assert Series(Summing(), lambda u: u).period is None
    limited = Parallel(Series(Summing(), RateLimit(1.0, 0.1)), Summing())
    assert limited.period == 0.1
    assert Sampled(limited, np.float32(0.1)).memory == limited.memory
    assert Sampled(limited, jnp.array([0.1, 0.2, 0.3])).policy is limited
    for period in (0.2, jnp.array([0.1, 0.3])):
        with pytest.raises(
            ValueError, match=r"Parallel is made for samples every 0\.1 s; it would"
        ):
            Sampled(limited, period)
    with pytest.raises(
        ValueError, match=r"parts of Series are made .* every 0\.1 s and every 0\.2"
    ):
        Series(limited, RateLimit(1.0, 0.2))
    period: Any = Positive(0.1)
    tuned = Series(Summing(), RateLimit(1.0, period), RateLimit(1.0, 0.1))
    assert Sampled(tuned, 0.1).policy is tuned


def test_a_law_for_rates_of_coordinates_is_refused_at_samples_too():
    """A body in angular velocities; what takes coordinates alone is not."""
    system = Turning()
    law = PD(lambda _, q: -q[:3], 1.0, 1.0)
    for policy in (Series(law), Parallel(Series(Summing(), lambda u: u), law)):
        words = "Sampled takes velocities for rates of coordinates, .* Give a law of .t, q, v, w."
        with pytest.raises(ValueError, match=words):
            simulate(system, Multipliers(), system.start(), t1=0.1, controller=Sampled(policy, 0.1))
    pid = DigitalPID(lambda _, q: -q[:1], 0.1, 1.0)
    assert Sampled(pid, 0.1).takes_rates


@pytest.mark.parametrize("kind", [Series, Parallel])
def test_what_cannot_be_asked_is_refused(kind):
    with pytest.raises(ValueError, match=f"{kind.__name__} has no parts"):
        kind()
    with pytest.raises(ValueError, match=r"has the part 3\.0, which cannot be called"):
        kind(Summing(), 3.0)
