"""Kepler's problem against Kepler's equation and the relations of its integrals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdae.models.kepler import Kepler

pytestmark = pytest.mark.optimized

ORBIT = Kepler(mass=2.0, parameter=1.7, semi_major_axis=1.3, eccentricity=0.6)


@pytest.mark.parametrize("eccentricity", [0.0, 0.3, 0.99])
def test_exact_positions_solve_keplers_equation(eccentricity):
    orbit = Kepler(eccentricity=eccentricity)
    ts = np.linspace(-9.0, 20.0, 31)
    q = np.asarray(jax.vmap(orbit.exact_position)(jnp.asarray(ts)))
    ratio = np.sqrt(1 - eccentricity**2)
    anomaly = np.arctan2(q[:, 1] / ratio, q[:, 0] + eccentricity)
    defect = anomaly - eccentricity * np.sin(anomaly) - ts
    # modulo whole turns; near the pericentre of a thin ellipse atan2 loses some digits
    np.testing.assert_allclose(np.sin(defect / 2), 0.0, atol=1e-12)


def test_integrals_are_those_of_the_orbit_elements(rng):
    start = ORBIT.start_state()
    energy, momentum, *laplace = np.asarray(ORBIT.all_integrals(0.0, start.q, start.v))
    a, e, mu = 1.3, 0.6, 1.7
    assert energy == pytest.approx(-mu / (2 * a), rel=1e-14)
    assert momentum == pytest.approx(np.sqrt(mu * a * (1 - e**2)), rel=1e-14)
    np.testing.assert_allclose(laplace, [e, 0.0], atol=1e-14)
    for q, v in rng.normal(size=(5, 2, 2)):
        energy, momentum, *laplace = np.asarray(
            ORBIT.all_integrals(0.0, jnp.asarray(q), jnp.asarray(v))
        )
        square = 1 + 2 * energy * momentum**2 / mu**2
        assert np.dot(laplace, laplace) == pytest.approx(square, rel=1e-11)
