"""Swing-up by a crank.

A bounded torque on the crank moves cart and pole, on a plant that no controller knows: by a policy
that was trained, by prediction, and along an optimal trajectory (`experiments/swing_up.py`).
"""

import json
import sys
from pathlib import Path

import jax
from draw import film

sys.path.append(str(Path(__file__).parents[2] / "experiments"))
import swing_up

from jaxdae.control import Sampled

jax.config.update("jax_enable_x64", True)

scales, starts = swing_up.drawn(jax.random.key(7), 16)
policies = swing_up.controllers(json.loads(swing_up.DATA.read_text()))
runs = {
    name: swing_up.motion(Sampled(policy, swing_up.PERIOD), scales[4], starts[4])
    for name, policy in policies.items()
}
film(runs, "swing_up.gif", until=3.0)
