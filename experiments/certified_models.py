"""Certificates of the ready models: the gradient of a run's end by all numbers of system and law.

The run is that of `jaxdae.simulate` by default, of one second at most.

    python experiments/certified_models.py [--models pendulum,arm] [--out results/certified_models]
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

from claims import block, Claim, finish, listed, options

import jaxdae
from jaxdae.models.registry import get_model, MODELS


class Row(NamedTuple):
    """The certificate of a model.

    Args:
        model: its name.
        passed: whether the gradient is certified.
        fault: why not.
        digits: that hold.
        limit: what they are limited by.
        digits_lost: by the growth of perturbations.
        evaluations: of the function.
        seconds: that the certificate took, compiling included.
    """

    model: str
    passed: bool
    fault: str
    digits: float
    limit: str
    digits_lost: float
    evaluations: int
    seconds: float


def certified(name: str, *, backends: bool, **how: Any) -> Row:
    """The certificate of a model's run.

    Args:
        name: of the model.
        backends: whether both are compared.
        how: what `simulate` takes beside.
    """
    model = get_model(name)
    system = model.system()
    start = jaxdae.State(*system.start(), system.actuators())
    if model.departure is not None:  # where something moves
        start = model.departure(start)
    controller = None if model.controller is None else model.controller(system)

    def end(params):
        declared, formulation = params
        run = jaxdae.simulate(
            declared, formulation, start, t1=min(model.t1, 1.0), controller=controller, **how
        )
        return run.final_state.q, run.final_state.v

    began = time.perf_counter()
    found = jaxdae.certify(end, (system, model.formulation()), backends=backends)
    lost = float("nan") if found.growth is None else found.growth.digits_lost
    row = Row(
        name, found.passed, found.fault, found.digits, found.reason.partition("; ")[2], lost,
        found.evaluations, time.perf_counter() - began,
    )  # fmt: skip
    print(row, flush=True)
    return row


def claims(rows: list[Row]) -> list[Claim]:
    """What the certificates show."""
    least = min((x for x in rows if x.passed), key=lambda x: x.digits, default=rows[0])
    return [
        Claim(
            f"Of {len(rows)} models {sum(x.passed for x in rows)} are certified; the least number "
            f"of digits is {least.digits:.1f}, of {least.model}.",
            all(x.passed for x in rows),
        ),
        Claim(
            f"No certificate takes more than {max(x.evaluations for x in rows)} evaluations.",
            max(x.evaluations for x in rows) <= 12,
        ),
    ]


def main(out: Path, names: list[str], *, backends: bool) -> None:
    """Certificates of models."""
    rows = [certified(name, backends=backends) for name in names]
    found = claims(rows)
    headings = ("model", "certified", "digits", "digits lost", "evaluations")
    cells = [
        (x.model, "yes" if x.passed else f"no: {x.fault}", f"{x.digits:.1f}",
         f"{x.digits_lost:.1f}", x.evaluations)
        for x in rows
    ]  # fmt: skip
    text = ["# Certificates of the ready models", "", listed(found), ""]
    text += block("By model", headings, cells)
    finish(out, "\n".join(text), {"rows": [x._asdict() for x in rows]}, found)


if __name__ == "__main__":
    asked = options(
        __doc__, "results/certified_models",
        models=(",".join(MODELS), "names, separated by commas"),
        backends=(0, "1 compares both backends, too"),
    )  # fmt: skip
    main(Path(asked.out), asked.models.split(","), backends=bool(asked.backends))
