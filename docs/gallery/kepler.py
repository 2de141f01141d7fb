"""Kepler's ellipse, without and with its integrals.

Both runs make 28 large steps in each period. Energy, momentum and Laplace's vector are stabilized
in the second, and the ellipse keeps its place [Baumgarte1972; Mukharlyamov2019].
"""

import jax
from draw import film

import jaxdae
from jaxdae.control import StabilizedIntegrals
from jaxdae.models import Kepler
from jaxdae.solvers import RK4

jax.config.update("jax_enable_x64", True)

orbit = Kepler(eccentricity=0.6)
start = orbit.start_state()
plain = jaxdae.Multipliers()
held = StabilizedIntegrals.at(start, orbit.all_integrals, 1.0, inner=plain, rcond=1e-6)
steps = {"t1": 31.0, "dt": float(orbit.period()) / 28, "solver": RK4()}
runs = {
    "plain": jaxdae.simulate(orbit, plain, start, **steps),
    "stabilized": jaxdae.simulate(orbit, held, start, **steps),
}
film(runs, "kepler.gif")
