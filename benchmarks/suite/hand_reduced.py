"""Diffrax on equations reduced by hand (`reduced.py`): the way without a code of DAEs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .answers import Answer, Program, RefusedError, TOLERANCES
from .catalogue import Motion
from .mechanism import Mechanism, named
from .reduced import REDUCED


class _Functions:
    """The functions of declarations."""

    def __init__(self):
        import jax.numpy as jnp

        self.sin, self.cos, self.sqrt, self.atan = jnp.sin, jnp.cos, jnp.sqrt, jnp.arctan


def program(order: str) -> Callable[[Mechanism, Motion], Program]:
    """Diffrax' Dopri8; derivatives through its steps.

    Args:
        order: "motion", "first" (forward mode), "reverse" (checkpointed) or "second".
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        import diffrax
        import jax
        import jax.numpy as jnp

        if mechanism.name not in REDUCED:
            raise RefusedError("not reduced by hand here")
        reduced, m = REDUCED[mechanism.name], _Functions()
        base = jnp.array([*mechanism.values.values()])
        places = jnp.array([[*mechanism.values].index(x) for x in mechanism.by])
        adjoint = diffrax.RecursiveCheckpointAdjoint() if order == "reverse" else (
            diffrax.ForwardMode()
        )  # fmt: skip
        rates = lambda t, y, p: jnp.stack(reduced.rates(m, t, list(y), p))  # noqa: E731

        def run(by, tolerance):
            p = named([*mechanism.values], list(base.at[places].set(by)))
            start = jnp.stack([jnp.asarray(x, float) for x in reduced.start(m, p)])
            found = diffrax.diffeqsolve(
                diffrax.ODETerm(lambda t, y, _: rates(t, y, p)), diffrax.Dopri8(), 0.0,
                mechanism.t1, None, start, saveat=diffrax.SaveAt(ts=jnp.asarray(wanted.t)),
                stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
                adjoint=adjoint, max_steps=16384,
            )  # fmt: skip
            state = lambda t, y: jnp.stack(reduced.state(m, t, list(y), p))  # noqa: E731
            assert found.ts is not None
            rows = jax.vmap(state)(found.ts, found.ys)
            return rows, rows

        def answer(by, tolerance) -> Answer:
            function = lambda by: run(by, tolerance)  # noqa: E731
            if order == "motion":
                return Answer(function(by)[0])
            if order == "second":
                both = lambda by: (lambda x: (x[0], x))(jax.jacfwd(function, has_aux=True)(by))  # noqa: E731
                twice, (once, found) = jax.jacfwd(both, has_aux=True)(by)
                return Answer(found, once, twice)
            mode = jax.jacfwd if order == "first" else jax.jacrev
            once, found = mode(function, has_aux=True)(by)
            return Answer(found, once)

        call = jax.jit(answer)
        return Program(
            lambda tolerance: jax.tree.map(np.asarray, call(base[places], tolerance)), TOLERANCES
        )

    return prepared


CODES: dict[str, Any] = {
    "diffrax, reduced by hand": program("motion"),
    "diffrax, reduced by hand, forward": program("first"),
    "diffrax, reduced by hand, reverse": program("reverse"),
    "diffrax, reduced by hand, second derivatives": program("second"),
}
