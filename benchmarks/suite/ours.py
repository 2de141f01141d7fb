"""This library on the suite: motions and derivatives, on both backends and in both modes."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxdae
from jaxdae.formulations import MinimumNormSolve, SingularityRobust, SingularMassSolve

from .answers import Answer, Program, TOLERANCES
from .catalogue import Motion
from .mechanism import Mechanism, named

Order = Literal["motion", "first", "reverse", "second"]


class Declared(jaxdae.System):
    """A mechanism of the suite as this library takes it.

    Args:
        mechanism: what is declared.
        values: its parameters, in their order.
    """

    mechanism: Mechanism = eqx.field(static=True)
    values: Any

    def parameters(self):
        """Parameters by their names."""
        return named([*self.mechanism.values], list(self.values))

    def kinetic_energy(self, t, q, v):
        return self.mechanism.kinetic_energy(jnp, t, list(q), list(v), self.parameters())

    def potential_energy(self, t, q):
        return jnp.asarray(self.mechanism.potential_energy(jnp, t, list(q), self.parameters()))

    def force(self, t, q, v, w, u):
        del w, u
        return stacked(self.mechanism.force(jnp, t, list(q), list(v), self.parameters()))

    def position_constraints(self, t, q):
        return stacked(self.mechanism.position_constraints(jnp, t, list(q), self.parameters()))

    def velocity_constraints(self, t, q, v):
        given = self.mechanism.velocity_constraints(jnp, t, list(q), list(v), self.parameters())
        return stacked(given)


class Gap(eqx.Module):
    """The distance from an impact, as a function whose parameters JAX can see.

    Args:
        system: the declaration.
    """

    system: Declared

    def __call__(self, t, q):
        del t
        return self.system.mechanism.gap(jnp, list(q), self.system.parameters())


def stacked(scalars: Sequence[Any]) -> jax.Array:
    """Scalars as a vector."""
    return jnp.stack([jnp.asarray(x, float) for x in scalars]) if scalars else jnp.zeros(0)


def start(mechanism: Mechanism, values: Any) -> jaxdae.State:
    """The start, completed as `Mechanism.free` wants it; derivatives pass through Newton's steps.

    Args:
        mechanism: whose start.
        values: its parameters.
    """
    system = Declared(mechanism, values)
    p = named([*mechanism.values], list(values))
    q, v = (stacked(x) for x in mechanism.start(jnp, p))
    if mechanism.free is None:
        return jaxdae.State(q, v)
    rest = jnp.array([i for i in range(len(q)) if i not in mechanism.free])
    phi = lambda q: system.position_constraints(jnp.asarray(0.0), q)  # noqa: E731
    rows = jnp.array(mechanism.kept or range(len(rest)))
    for _ in range(10):
        jac = jax.jacfwd(phi)(q)[rows]
        q = q.at[rest].add(-jnp.linalg.solve(jac[:, rest], phi(q)[rows]))
    jac = jax.jacfwd(phi)(q)[rows]
    return jaxdae.State(q, v.at[rest].add(-jnp.linalg.solve(jac[:, rest], jac @ v)))


def formulation(mechanism: Mechanism) -> jaxdae.Multipliers:
    """Multipliers with the solve that suits the kind of the constraints."""
    if "redundant" in mechanism.kinds:
        return jaxdae.Multipliers(solve=MinimumNormSolve())
    if "singular position" in mechanism.kinds:
        return jaxdae.Multipliers(solve=SingularityRobust())
    if "massless coordinate" in mechanism.kinds:
        return jaxdae.Multipliers(solve=SingularMassSolve())
    return jaxdae.Multipliers()


def rows(
    mechanism: Mechanism, values: Any, times: Any, tolerance: Any, **options: Any
) -> tuple[jax.Array, jax.Array]:
    """Rows of q, v, lam at times, and times of impacts.

    Args:
        mechanism: which.
        values: its parameters.
        times: from zero on.
        tolerance: of the steps, relative and absolute.
        options: of `simulate`.
    """
    system, begin = Declared(mechanism, values), start(mechanism, values)
    if mechanism.restitution is not None:
        impact = jaxdae.impact(system, Gap(system), mechanism.restitution, name="impact")
        options = {"events": [impact], "max_events": mechanism.events + 1} | options
    if "stiff" in mechanism.kinds:
        options = {"solver": jaxdae.solvers.Rodas5P()} | options
    run = jaxdae.simulate(
        system, formulation(mechanism), begin, t1=mechanism.t1, saveat=diffrax.SaveAt(ts=times),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance), **options,
    )  # fmt: skip
    impacts = run.events.times[: mechanism.events] if mechanism.events else jnp.zeros(0)
    return jnp.concatenate([run.q, run.v, run.multipliers], axis=1), impacts


def program(order: Order, backend: Any = "native") -> Callable[[Mechanism, Motion], Program]:
    """Runs as one compiled program, of which the tolerance is an argument.

    Args:
        order: the motion; first derivatives, forward or in reverse; or second ones, forward over
            forward.
        backend: of `simulate`.
    """

    def prepared(mechanism: Mechanism, wanted: Motion) -> Program:
        base = jnp.array([*mechanism.values.values()])
        places = jnp.array([[*mechanism.values].index(x) for x in mechanism.by])
        chosen = "plain" if _too_large(mechanism, order) else backend
        options: dict[str, Any] = {"backend": chosen, "throw": False}
        if chosen == "plain" and order != "reverse":
            options["adjoint"] = diffrax.ForwardMode()

        def function(by, tolerance):
            values = base.at[places].set(by)
            return rows(mechanism, values, jnp.asarray(wanted.t), tolerance, **options)

        def answer(by, tolerance):
            run = lambda by: (function(by, tolerance)[0],) * 2  # noqa: E731
            if order == "motion":
                found, impacts = function(by, tolerance)
                return Answer(rows=found, impacts=impacts)
            if order == "second":
                both = lambda by: (lambda x: (x[0], x))(jax.jacfwd(run, has_aux=True)(by))  # noqa: E731
                twice, (once, found) = jax.jacfwd(both, has_aux=True)(by)
                return Answer(found, once, twice)
            mode = jax.jacfwd if order == "first" else jax.jacrev
            once, found = mode(run, has_aux=True)(by)
            return Answer(found, once)

        call = jax.jit(answer)
        return Program(
            lambda tolerance: jax.tree.map(np.asarray, call(base[places], tolerance)), TOLERANCES
        )

    return prepared


def _too_large(mechanism: Mechanism, order: Order) -> bool:
    """Whether kernels refuse derivatives of so many operations, or compile them for minutes."""
    if order == "second":
        return "stiff" in mechanism.kinds
    return order != "motion" and len(mechanism.coordinates) > 20


CODES = {
    "jaxdae": program("motion"),
    "jaxdae, forward": program("first"),
    "jaxdae, reverse": program("reverse"),
    "jaxdae, second derivatives": program("second"),
}
