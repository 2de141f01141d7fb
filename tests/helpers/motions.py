"""Motions of the matrix of agreement, each simulated once and read by plain JAX."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

from helpers.agreement import (
    case_of,
    FORMULATIONS,
    is_not_native,
    is_paired,
    is_plain,
    KINDS,
    REFERENCES,
    weighted,
)
from jaxdae import (
    evaluate,
    simulate,
    State,
)
from jaxdae.control.base import control_input
from jaxdae.formulations import AbstractFormulation, Examination
from jaxdae.results.trajectory import Trajectory
from jaxdae.simulation.backends import Backend
from jaxdae.systems import generalized_energy, power_balance
from jaxdae.systems.precision import in_dtype


def _flat_state(system, formulation, state: State):
    """Length of a formulation's flat state, and the way back from it."""
    shapes = jax.eval_shape(lambda: formulation.init(system, jnp.zeros(()), state))
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    return flat.size, unravel


class OneOf(AbstractFormulation):
    """One of several formulations, chosen by a number: one compiled program for all of them.

    The state is theirs, flattened, and filled up with zeros to the length of the longest.
    """

    members: tuple[AbstractFormulation, ...]
    index: Int[Array, ""]
    sizes: tuple[int, int] = eqx.field(static=True)  # coordinates, actuators

    def init(self, system, t, state, like=None):
        size = max(self._own(system, member)[0] for member in self.members)

        def packed(member):
            return lambda: _filled(member.init(system, t, state), size)

        return jax.lax.switch(self.index, [packed(member) for member in self.members])

    def rate_and_multipliers(self, system, t, y, u):
        def both(member, own):
            rate, lam = member.rate_and_multipliers(system, t, own, u)
            return _filled(rate, y.size), lam

        return self._switch(system, y, both)

    def recover(self, system, t, y):
        return self._switch(system, y, lambda member, own: member.recover(system, t, own))

    @property
    def capabilities(self):
        """Of the one, whose state is packed here."""
        return self.members[int(self.index)].capabilities._replace(plain_state=False)

    @property
    def examination(self):
        member = self.members[int(self.index)]
        return Examination(declaration=member.check, start=member.examination.start)

    def perturbation_matrix(self, system, t, state):
        del system, t, state  # which one it is is not known while this is compiled

    def _switch(self, system, y, function):
        def branch(member):
            own, unravel = self._own(system, member)
            return lambda y: function(member, unravel(y[:own]))

        return jax.lax.switch(self.index, [branch(member) for member in self.members], y)

    def _own(self, system, member):
        n, k = self.sizes
        return _flat_state(system, member, State(jnp.zeros(n), jnp.zeros(n), jnp.zeros(k)))


def _filled(y, size: int):
    flat, _ = ravel_pytree(y)
    return jnp.zeros(size, flat.dtype).at[: flat.size].set(flat)


class Motion(NamedTuple):
    """What formulations must agree on, times first."""

    ts: Any
    q: Any
    v: Any
    w: Any
    multipliers: Any
    energy: Any
    reaction: Any
    power: Any


class Rows(NamedTuple):
    """Times and flat states of a run, in NumPy."""

    ts: np.ndarray
    ys: np.ndarray


class Matrix:
    """The motions, each simulated once."""

    def __init__(self):
        self._motions: dict[tuple, Motion] = {}

    def motion(self, system: str, name: str, factor: float = 1.0, plain: bool = False) -> Motion:
        """The motion under a formulation, its constraint mass times `factor`.

        It runs on the native backend, where that can take it and the plain one is not asked for.
        """
        plain = plain or is_not_native(system, name)
        key = (system, name, factor, plain)
        if key not in self._motions:
            rows = self._by_diffrax(system, name, factor) if plain else self._by_kernel(*key[:3])
            self._motions[key] = self._read(system, name, factor, rows)
        return self._motions[key]

    def formulation(self, system: str, name: str, factor: float = 1.0) -> AbstractFormulation:
        found = weighted(FORMULATIONS[name], factor * case_of(system).alpha)
        return in_dtype(found, np.dtype(float))  # gains are arrays, so that tables can be shared

    def run(self, system: str, formulation, backend: Backend = "auto") -> Trajectory:
        case = case_of(system)
        return simulate(
            case.system,
            formulation,
            case.state,
            t1=case.t1,
            dt=case.t1 / case.steps,
            controller=case.controller,
            backend=backend,
            throw=system in KINDS,  # of these, that right runs are not warned of either
        )

    def _by_kernel(self, system: str, name: str, factor: float) -> Rows:
        run = self.run(system, self.formulation(system, name, factor), "native")
        assert (run.backend, run.why_not_native) == ("native", None)
        return _rows(run)

    def _by_diffrax(self, system: str, name: str, factor: float) -> Rows:
        names = [x for x in FORMULATIONS if is_plain(system, x) and is_paired(system, x)]
        run = self.run(system, self._one_of(system, names, name, factor), "plain")
        assert run.backend == "plain"
        return _rows(run)

    def _one_of(self, system: str, names: list[str], name: str, factor: float = 1.0) -> OneOf:
        members = tuple(self.formulation(system, x, factor) for x in names)
        state = case_of(system).state
        return OneOf(members, jnp.asarray(names.index(name)), (state.q.size, state.w.size))

    def _read(self, system: str, name: str, factor: float, rows: Rows) -> Motion:
        """By plain JAX, whatever ran."""
        case, formulation = case_of(system), self.formulation(system, name, factor)
        size, _ = _flat_state(case.system, formulation, case.state)
        parts = case.system, case.controller
        states, lam = _states_read(*parts, formulation, case.state, rows.ts, rows.ys[:, :size])
        others = _quantities_read(*parts, rows.ts, states, lam)
        return Motion(rows.ts, states.q, states.v, states.w, lam, *others)

    def reference(self, system: str) -> Motion:
        return self.motion(system, REFERENCES.get(system, "multipliers"))

    def result(self, system: str, name: str, plain: bool = False) -> Motion:
        """The motion; that of the penalty form extrapolated to infinite constraint mass."""
        if name != "penalty":
            return self.motion(system, name, plain=plain)
        runs = [self.motion(system, name, factor, plain) for factor in (1.0, 2.0, 4.0)]
        # Richardson's: removes the errors in 1/alpha and 1/alpha^2.
        return jax.tree.map(lambda a, b, c: a / 3 - 2 * b + 8 / 3 * c, *runs)


def _rows(run: Trajectory) -> Rows:
    leaves = [np.asarray(x) for x in jax.tree.leaves(run.saved)]
    ts = np.asarray(run.ts)
    return Rows(ts, np.concatenate([x.reshape(ts.size, -1) for x in leaves], 1))


@eqx.filter_jit
def _states_read(system, controller, formulation, start: State, ts, ys):
    """States and multipliers, from a formulation's own states."""
    _, unravel = _flat_state(system, formulation, start)

    def row(t, y):
        own = unravel(y)
        state = formulation.recover(system, t, own)
        u = control_input(controller, t, state)
        return state, formulation.multipliers(system, t, own, u)

    return jax.vmap(row)(ts, ys)


@eqx.filter_jit
def _quantities_read(system, controller, ts, states: State, lam):
    """Energy, reactions and powers."""

    def row(t, state, lam):
        q, v, w = state.q, state.v, state.w
        u = control_input(controller, t, state)
        reaction = -evaluate(system, t, q, v, w, u).jac.T @ lam
        power = power_balance(system, t, q, v, w, u, lam)
        return generalized_energy(system, t, q, v), reaction, jnp.stack(power)

    return jax.vmap(row)(ts, states, lam)
