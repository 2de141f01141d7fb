"""Parts of a run that cannot be: each refusal names the thing, the amount and the remedy."""

# pyright: reportArgumentType=false

import jax
import numpy as np
import pytest

import jaxdae
from helpers.systems import Point
from jaxdae import Multipliers, State
from jaxdae.tuning import perturbed_states

STATE = State([1.0, 0.0], [0.0, 0.0])


class OnLine(Point):
    """The point on a line."""

    def position_constraints(self, t, q):
        return q[:1] - 1.0


def run(formulation=None, controller=None):
    formulation = Multipliers() if formulation is None else formulation
    return jaxdae.simulate(OnLine(), formulation, STATE, t1=0.1, controller=controller)


def stabilized(law):
    return lambda: run(Multipliers(law))


PARTS = [
    (
        stabilized(lambda t, q, v, phi, phi_dot: phi if phi[0] > 0 else phi_dot),
        ValueError,
        r"the stabilization cannot be traced by JAX \(line \d+ of test_refused.*jnp\.where\(",
    ),
    (
        stabilized(lambda t, q, v, phi: -phi),
        ValueError,
        r"stabilization is declared with the parameters .* it must take \(t, q, v, phi, phi_dot\)",
    ),
    (stabilized(lambda *_: None), ValueError, "the stabilization returned nothing; it must return"),
    (
        stabilized(lambda t, q, v, phi, phi_dot: 1j * phi),
        ValueError,
        "the stabilization returned complex numbers",
    ),
    (lambda: jaxdae.Baumgarte(K_D="a"), TypeError, "K_D is 'a', which is no gain; give a number"),
    (lambda: jaxdae.Baumgarte(1.0, lambda t: t), TypeError, "gains that vary need a stabiliz"),
    (
        lambda: run(jaxdae.Penalty(jaxdae.Baumgarte(1.0, 1.0))),
        ValueError,
        "alpha is a Baumgarte, not an array; .*in another order",
    ),
    (
        lambda: run(jaxdae.RealizingForces("linear")),
        ValueError,
        r"law of realizing forces is 'linear'; it must be a function of \(psi_dot, t, q, v\)",
    ),
    (
        lambda: run(jaxdae.QuasiVelocities(lambda t, q: q)),
        ValueError,
        r"forms is declared with the parameters \(t, q\); it must take \(t, q, v\)",
    ),
    (
        lambda: jaxdae.PD(lambda q: q, 1.0, 1.0),
        ValueError,
        r"the error is declared with the parameters \(q\); it must take \(t, q\)",
    ),
    (
        lambda: run(controller=jaxdae.PD(lambda t, q: [q[0]], 1.0, 1.0)),
        ValueError,
        "the error returned a list; it must return an array",
    ),
    (
        lambda: jaxdae.StateFeedback(np.ones((1, 4)), [1.0, 0.0]),
        TypeError,
        r"reference is \[1\.0, 0\.0\]; give jaxdae\.State\(q, v\), or a function of time",
    ),
    (
        lambda: jaxdae.equilibrium(Point, [0.0]),
        TypeError,
        "system is the class Point; give an inst",
    ),
    (lambda: jaxdae.equilibrium(Point(), [0.0], u="a"), TypeError, "input u must be numbers; got"),
    (lambda: jaxdae.equilibrium(Point(), [0.0], fixed=7), ValueError, "fixed coordinate 7 is out"),
    (lambda: jaxdae.spectrum(np.eye(2)), TypeError, r"give jaxdae\.linearize\(system, equilibr"),
    (lambda: jaxdae.lqr(None), TypeError, r"A is None; give jaxdae\.linearize\("),
    (lambda: jaxdae.evaluate(Point(), 0.0, [1.0, 0.0], [1.0]), ValueError, "vectors of one length"),
    (
        lambda: jaxdae.consistent_state(Point(), [1.0], [0.0], program=lambda t, q: q),
        ValueError,
        r"the program is declared with .* it must take \(t, q, v, w\)",
    ),
    (
        lambda: jaxdae.tuning.Positive("a"),
        TypeError,
        "Positive: got 'a', needs a number or an array",
    ),
    (
        lambda: jaxdae.tune(lambda p: None, {"a": np.ones(1)}),
        ValueError,
        "the objective returned no",
    ),
    (
        lambda: jaxdae.tune(lambda p: np.sin(p["a"][0]), {"a": np.ones(1)}),
        ValueError,
        r"the objective cannot be traced by JAX \(line \d+ of test_refused.*jnp\.sin for np\.sin",
    ),
    (
        lambda: jaxdae.tune(lambda p: p["a"][0], {"a": np.ones(1)}, key=3),
        TypeError,
        r"key is 3; give jax\.random\.key\(0\)",
    ),
    (lambda: perturbed_states([1.0], jax.random.key(0), 2), TypeError, r"state is \[1\.0\]; give"),
    (lambda: perturbed_states(STATE, jax.random.key(0), 2.5), TypeError, "count is 2.5, must be a"),
]


@pytest.mark.parametrize(("call", "kind", "message"), PARTS)
def test_a_part_that_cannot_be(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
