"""Models and their roots, for tests of what is said of them."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.findings import analyze
from jaxdae.commands.analyze import solvers
from jaxdae.models import get_model
from jaxdae.models.base import Rest
from jaxdae.systems import State

# Eigenvalues of small matrices, relative.
TIGHT = 1e-9
PENDULUM = ("pendulum", "--K_D", "30", "--K_P", "100", "--dt", "0.08")


def system_of(name) -> Any:
    return get_model(name).system()


def as_roots(pairs):
    return sorted_roots([complex(*pair) for pair in pairs])


def sorted_roots(roots):
    return np.array(sorted(np.asarray(roots), key=lambda z: (round(z.real, 6), round(z.imag, 6))))


def rested(system, formulation, inputs=0, q=(0.0, 0.0), **options):
    rest = Rest(guess=lambda _: jnp.asarray(q), inputs=inputs, remark="of a test")
    guess = State(rest.guess(system), jnp.zeros(len(q)))
    found = analyze(system, formulation, guess, solvers([]), inputs=inputs, t1=1.0, **options)
    return found, rest
