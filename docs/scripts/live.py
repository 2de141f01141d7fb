"""The two-link manipulator that the start page runs: exported WebAssembly in a file of JavaScript.

python docs/scripts/live.py    # writes docs/live/two_link.js, after changes of the library

A page that is opened from a disk may load a script, but neither a module nor a file of WebAssembly:
the text of the exported module becomes a plain script, and the code a text in it. Controls and
drawings are in docs/live/live.js.
"""

import base64
import json
import re
import tempfile
from pathlib import Path

import diffrax
import jax
from names import ROOT

import jaxdae
from jaxdae.models.two_link import ReachableTwoLink
from jaxdae.solvers import RK4

FILE = ROOT / "docs" / "live" / "two_link.js"
# Step methods by the names in the list of the page.
METHODS = {
    "Runge–Kutta, order 4": RK4,
    "Bogacki–Shampine, order 3": diffrax.Bosh3,
    "Heun, order 2": diffrax.Heun,
}
DT = 0.01  # s
STEPS = 50  # of a call: the page calls it again until its end
GUESS = {"K_D": 20.0, "K_P": 100.0}
NOT_SCRIPT = re.compile(r"^export (?=const|async)|^  bytes \?\?= .*\n", re.MULTILINE)


def problem() -> tuple[jaxdae.System, jaxdae.Multipliers, jaxdae.State]:
    """The manipulator on a line away from singular positions, and a start beside its target."""
    system = ReachableTwoLink(target_height=0.9)
    on = jaxdae.consistent_state(system, q=[1.0, -1.5], v=[0.0, 0.0])
    start = jaxdae.State(on.q.at[0].add(0.02).at[1].add(0.01), on.v)
    return system, jaxdae.Multipliers(jaxdae.Baumgarte(**GUESS)), start


def script() -> str:
    """Contents of the file."""
    module, methods = "", {}
    for said, method in METHODS.items():
        with tempfile.TemporaryDirectory() as folder:
            files = jaxdae.export(
                *problem(),
                target="wasm32",
                directory=folder,
                name="two_link",
                t1=STEPS * DT,
                dt=DT,
                solver=method(),
                saveat=diffrax.SaveAt(t0=True, steps=True),
                quantities=["phi"],
                start_tolerance=None,
            )
            module = NOT_SCRIPT.sub("", Path(files.header).read_text().partition("\n\n")[2])
            code = base64.b64encode(Path(files.code).read_bytes()).decode()
        best = jaxdae.Baumgarte.for_step(method(), 1.0)
        gains = {x: float(getattr(best, x)) for x in GUESS}
        methods[said] = {"gainsAtUnitStep": gains, "code": code}
    return TEXT.format(
        version=jaxdae.__version__,
        module=module,
        steps=STEPS,
        guess=json.dumps(GUESS),
        methods=json.dumps(methods, indent=1, ensure_ascii=False),
    )


TEXT = """\
// The two-link manipulator in steps of several methods, by jaxdae {version}: made by
// docs/scripts/live.py. Times are in seconds, lengths in metres, angles in radians.
"use strict";

const twoLink = (() => {{
{module}
const methods = {methods};

return {{ inputs, load, methods, stepsOfCall: {steps}, guess: {guess} }};
}})();
"""


def main() -> None:
    """Write the file."""
    jax.config.update("jax_enable_x64", True)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(script())


if __name__ == "__main__":
    main()
