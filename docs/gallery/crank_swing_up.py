"""Swing-up by a crank.

A bounded torque on the crank moves cart and pole: by a policy that was trained, by prediction, and
along an optimal trajectory. On plants that differ the last one often fails: see
`experiments/swing_up.py`.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
from draw import film

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import swing_up

from jaxdae.control import Sampled

jax.config.update("jax_enable_x64", True)

start = jnp.array(swing_up.HANGING).at[1].add(0.1)
policies = swing_up.controllers(json.loads(swing_up.DATA.read_text()))
runs = {
    name: swing_up.motion(Sampled(policy, swing_up.PERIOD), jnp.ones(6), start)
    for name, policy in policies.items()
}
film(runs, "crank_swing_up.gif", until=3.0)
