"""Without and with stabilization.

One chain twice at steps of 0.02 s. Nothing takes back the errors of the constraints in the first
run; by 12 s the two have parted.
"""

import jax
from draw import film

import jaxdae
from jaxdae.models import Chain
from jaxdae.solvers import RK4

jax.config.update("jax_enable_x64", True)

system = Chain(lengths=(0.5, 0.5), masses=(1.0, 1.0))
start = jaxdae.State(*system.start())
steps = {"dt": 0.02, "solver": RK4(), "t1": 12.0}
plain = jaxdae.simulate(system, jaxdae.Multipliers(), start, **steps)
stabilized = jaxdae.Multipliers(jaxdae.Baumgarte.critical(10.0))
held = jaxdae.simulate(system, stabilized, start, **steps)
film({"no gains": plain, "Baumgarte": held}, "drift.gif")
