"""Constraints that are released and caught again in a run: unilateral ones, and a user's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxdae.checks import are_known, where_known
from jaxdae.compiled import jit, shared
from jaxdae.control.base import AbstractDynamicController, control_input
from jaxdae.events.crossings import time_tolerance
from jaxdae.events.declaration import Event
from jaxdae.formulations.lagrange import Multipliers
from jaxdae.formulations.stabilization import AbstractStabilization
from jaxdae.linalg.box_quadratic import minimize_in_box
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import AbstractSaddlePointSolve, AutomaticSolve, ZeroRowsSolve
from jaxdae.reprs import Module
from jaxdae.solvers.projection import nearest
from jaxdae.systems import constraint_residuals, evaluate, Labels, mass_and_jacobian, State, System
from jaxdae.systems.calls import check_instance
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import constraint_bias, has_reaction_forces
from jaxdae.systems.kinematics import along_motion, coordinate_rate, refuse_rates

# Powers of the round-off, relative to what is compared: of gaps and reactions that are zero (4e-10
# in double precision), and of rates of gaps so slow that bodies are at rest on each other (5e-7),
# or that may not be closing at all (9e-8).
_ZERO, _SLOW, _CLOSING = 0.6, 0.4, 0.45


class Switching(NamedTuple):
    """What `jaxdae.switching` makes, for `simulate(system, formulation, state, events=events)`.

    Args:
        system: the declaration, with a mode for each row that is switched behind its coordinates.
        formulation: multipliers of the rows that hold; zero for others.
        state: the start with its modes.
        events: one for each unilateral row, named like it, and those that were given.
    """

    system: System
    formulation: Multipliers
    state: State
    events: tuple[Event, ...]


class _WithModes(System):
    """A system whose constraints hold as modes behind its coordinates say, and its controller.

    Rows of released constraints are zero, in residuals and Jacobian. Modes are coordinates of no
    velocity, so that whatever asks for constraints has those that hold.

    Args:
        inner: the system.
        controller: `u = controller(t, q, v, w)` of the system's own coordinates, with the modes
            behind the actuator states; or `None`.
        rows: which constraints are switched, positions first.
        coordinates: number of the system's own.
        counts: numbers of position and velocity constraints.
    """

    inner: System
    controller: Any
    rows: tuple[int, ...] = eqx.field(static=True)
    coordinates: int = eqx.field(static=True)
    counts: tuple[int, int] = eqx.field(static=True)
    forwards_rate: ClassVar[bool] = False

    def own(self, q):
        """The system's own coordinates."""
        return q[: self.coordinates]

    def modes(self, q):
        """One for each row that is switched: 1 where it holds, 0 where it is released."""
        return q[self.coordinates :]

    def holding(self, q) -> Float[Array, " c"]:
        """The same for all rows."""
        always = np.ones(sum(self.counts))
        always[list(self.rows)] = 0.0
        place = np.eye(sum(self.counts))[:, list(self.rows)]
        return jnp.asarray(always, q.dtype) + jnp.asarray(place, q.dtype) @ self.modes(q)

    def arguments(self, t, q, v, w):
        """What functions of the user's are given of a state."""
        return t, self.own(q), v, jnp.concatenate([w, self.modes(q)])

    def _input(self, t, q, v, w, u):
        if u is not None:
            raise ValueError(
                "reactions, by which constraints are released, depend on the control input: give "
                "the controller to jaxdae.switching(..., controller=...), and none to the run."
            )
        t, q, v, w = self.arguments(t, q, v, w)
        return control_input(self.controller, t, State(q, v, w))

    def rate(self, t, q, v):
        own = coordinate_rate(self.inner, t, self.own(q), v)
        return jnp.concatenate([own, jnp.zeros_like(self.modes(q))])

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(t, self.own(q), v)

    def potential_energy(self, t, q):
        return self.inner.potential_energy(t, self.own(q))

    def dissipation(self, t, q, v):
        return self.inner.dissipation(t, self.own(q), v)

    def force(self, t, q, v, w, u):
        return self.inner.force(t, self.own(q), v, w, self._input(t, q, v, w, u))

    def stiff_force(self, t, q, v, w, u):
        return self.inner.stiff_force(t, self.own(q), v, w, self._input(t, q, v, w, u))

    def actuator_rate(self, t, q, v, w, u):
        return self.inner.actuator_rate(t, self.own(q), v, w, self._input(t, q, v, w, u))

    def position_constraints(self, t, q):
        holding = self.holding(q)[: self.counts[0]]
        return holding * self.inner.position_constraints(t, self.own(q))

    def velocity_constraints(self, t, q, v):
        holding = self.holding(q)[self.counts[0] :]
        return holding * self.inner.velocity_constraints(t, self.own(q), v)

    def mass_matrix(self, t, q):
        return self.inner.mass_matrix(t, self.own(q))

    def bias_force(self, t, q, v):
        return self.inner.bias_force(t, self.own(q), v)

    def forward_dynamics(self, t, q, v, force):
        return self.inner.forward_dynamics(t, self.own(q), v, force)

    def labels(self) -> Labels:
        given, n = self.inner.labels(), self.coordinates
        modes = tuple(f"{given.constraint(i)} holds" for i in self.rows)
        units = (*(*given.units, *("",) * n)[:n], *("1",) * len(modes)) if given.units else ()
        return Labels(
            (*map(given.coordinate, range(n)), *modes), units,
            given.constraints, given.constraint_units, given.actuators, given.actuator_units,
            given.inputs, given.input_units, given.velocities, given.velocity_units,
        )  # fmt: skip

    def points(self, t, q):
        return self.inner.points(t, self.own(q))


class _OwnCoordinates(Module):
    """A stabilization of the user's, a function of the system's own coordinates.

    Args:
        stabilization: `Phi(t, q, v, phi, phi_dot)`.
        coordinates: number of them.
    """

    stabilization: Callable
    coordinates: int = eqx.field(static=True)

    def __call__(self, t, q, v, phi, phi_dot):
        return self.stabilization(t, q[: self.coordinates], v, phi, phi_dot)


class _Contacts(Module):
    """Which constraints hold behind an instant.

    Args:
        system: with modes.
        formulation: of the rows that hold.
        unilateral: which rows are, shape (c,).
        restitution: coefficient of theirs.
        length: of the rows of the Jacobian at the start, shape (c,).
    """

    system: _WithModes
    formulation: Multipliers
    unilateral: tuple[bool, ...] = eqx.field(static=True)
    restitution: Any
    length: Float[Array, " c"]

    def near(self, q) -> Float[Array, " c"]:
        """Gaps below this are zero [m]."""
        size = 1 + jnp.max(jnp.abs(self.system.own(jax.lax.stop_gradient(q))))
        return _round_off(q, _ZERO) * self.length * size

    def fast(self, v, power) -> Float[Array, " c"]:
        """Rates of gaps below this are none [m/s], in a power of the round-off."""
        size = 1 + jnp.max(jnp.abs(jax.lax.stop_gradient(v)))
        return _round_off(v, power) * self.length * size

    def after(self, t, q, v, w, before):
        """A state behind an instant in which constraints may close, or be released.

        Args:
            t: time [s].
            q: coordinates with modes, those that a user's event has changed as they are to be.
            v: velocities.
            w: actuator states.
            before: modes before the instant.

        Returns:
            `(q, v)`.
        """
        # What has held is on the constraints, but for what steps have left of them.
        held = jnp.concatenate([self.system.own(q), before])
        there = nearest(self.system, self.formulation, t, State(held, v, w), 1)
        q = jnp.concatenate([self.system.own(there.q), self.system.modes(q)])
        touching = self.touching(t, q, there.v, before)
        v = self.velocities(t, q, there.v, touching)
        q = self.with_modes(t, q, v, w, touching)
        # Bodies that would leave so slowly that they are back at once stay.
        mass, jac = mass_and_jacobian(self.system, t, q, v)
        left = constraint_residuals(self.system, t, q, v).phi_dot
        solve: Any = self.formulation.solve
        return q, v + solve(mass, jnp.zeros_like(v), jac, -left)[0]

    def touching(self, t, q, v, before) -> Bool[Array, " c"]:
        """Unilateral rows that hold or whose gap is zero."""
        inner, own = self.system.inner, self.system.own(q)
        rates = constraint_residuals(inner, t, own, v).phi_dot
        gaps = (
            jnp.zeros_like(rates)
            .at[: self.system.counts[0]]
            .set(inner.position_constraints(t, own))
        )
        closed = gaps <= 2 * self.near(q) + time_tolerance(t) * jnp.abs(rates)
        holds = self.system.holding(jnp.concatenate([own, before])) > 0
        return jnp.array(self.unilateral) & (closed | holds)

    def velocities(self, t, q, v, touching):
        """Velocities behind impulses: those of unilateral rows push, or are zero."""
        system, inner, own = self.system, self.system.inner, self.system.own(q)
        mass, jac = mass_and_jacobian(inner, t, own, v)
        rates = constraint_residuals(inner, t, own, v).phi_dot
        unilateral = jnp.array(self.unilateral)
        bounces = unilateral & (self.restitution * rates < -self.fast(v, _SLOW))
        approach = jnp.where(bounces, 1 + self.restitution, 1.0) * rates
        acting = jnp.where(unilateral, touching, system.holding(q) > 0)
        mobility, impulse, _ = self._complementary(mass, jac, approach, acting)
        return v + mobility @ impulse

    def with_modes(self, t, q, v, w, touching):
        """Coordinates with the modes that accelerations are consistent with.

        Of bodies at rest on each other those are held that press. Where they do neither, those
        whose reaction begins to press.
        """
        system, inner, own = self.system, self.system.inner, self.system.own(q)
        unilateral = jnp.array(self.unilateral)
        d = evaluate(system, t, q, v, w, None)
        _, jac = mass_and_jacobian(inner, t, own, v)
        gamma, _, rates = constraint_bias(inner, t, own, v)
        resting = touching & (jnp.abs(rates) <= self.fast(v, _SLOW))
        acting = jnp.where(unilateral, resting, system.holding(q) > 0)
        free = solve_positive_definite(d.mass, d.force)
        drift = gamma + jac @ free
        mobility, reaction, opening = self._complementary(d.mass, jac, drift, acting)
        response = jac @ mobility
        size = jnp.abs(gamma) + jnp.abs(jac) @ jnp.abs(free) + jnp.abs(response) @ reaction
        pressing = jnp.diagonal(response) * reaction
        neither = jnp.maximum(pressing, opening) <= _round_off(q, _ZERO) * size
        holds = jnp.where(unilateral, resting & ((pressing > 0) | neither), acting)
        pressing_soon = self._change_of_reactions(t, self._with(q, holds), v, w) > 0
        return self._with(q, holds & (pressing_soon | ~(unilateral & neither)))

    def _complementary(self, mass, jac, linear, acting):
        """`M^-1 J^T`, forces `x` of acting rows, and what they leave, `J M^-1 J^T x + linear`.

        Of unilateral rows neither is negative and one of them is zero; of others what is left is.
        """
        jac = jnp.where(acting[:, None], jac, 0.0)
        mobility = solve_positive_definite(mass, jac.T)
        linear = jnp.where(acting, linear, 0.0)
        idle = jnp.diag(jnp.where(acting, 0.0, 1.0)).astype(linear.dtype)
        matrix, infinite = jac @ mobility + idle, jnp.full_like(linear, jnp.inf)
        lower = jnp.where(jnp.array(self.unilateral), 0.0, -infinite)
        forces = minimize_in_box(matrix, linear, lower, infinite)
        return mobility, forces, matrix @ forces + linear

    def _with(self, q, holds):
        """Coordinates with other modes."""
        modes = jnp.stack([holds[i] for i in self.system.rows]).astype(q.dtype)
        return jnp.concatenate([self.system.own(q), modes])

    def reactions(self, t, q, v, w) -> Float[Array, " c"]:
        """What pushes the gaps open, `-lam`."""
        return -self.formulation.multipliers(self.system, t, State(q, v, w), None)

    def _change_of_reactions(self, t, q, v, w):
        """Rates of the reactions along the motion."""
        rate = self.formulation.vector_field(self.system, t, State(q, v, w), None)
        return jax.jvp(self.reactions, (t, q, v, w), (jnp.ones_like(t), rate.q, rate.v, rate.w))[1]


@shared
def _after(contacts: _Contacts, t, q, v, w, before):
    return contacts.after(t, q, v, w, before)


def _round_off(x, power) -> float:
    return float(jnp.finfo(x.dtype).eps) ** power


class _GapOrReaction(Module):
    """What is left until a unilateral constraint is caught or released: its gap, or its reaction.

    Args:
        contacts: all of them.
        mode: which of the modes.
    """

    contacts: _Contacts
    mode: int = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        contacts, system = self.contacts, self.contacts.system
        row = system.rows[self.mode]
        own = system.own(q)
        gap, rate = jax.jvp(
            lambda t, q: system.inner.position_constraints(t, q)[row], (t, own),
            along_motion(system.inner, t, own, v),
        )  # fmt: skip
        # Behind a release a gap is zero with its first two derivatives, and round-off would close
        # it: where it does not close it is not quite zero.
        closing = jnp.minimum(rate, 0.0) / contacts.fast(v, _CLOSING)[row]
        free = gap + contacts.near(q)[row] * jnp.exp(-(closing**2))
        holds = system.modes(q)[self.mode] > 0
        return jnp.where(holds, contacts.reactions(t, q, v, w)[row], free)


class _While(Module):
    """A function of the user's while a constraint holds, or while it does not; else one.

    Args:
        function: `function(t, q, v, w)`.
        system: with modes.
        mode: which of the modes.
        holds: while that is one, or zero.
    """

    function: Callable
    system: _WithModes
    mode: int = eqx.field(static=True)
    holds: bool = eqx.field(static=True)

    def __call__(self, t, q, v, w):
        value = jnp.asarray(self.function(*self.system.arguments(t, q, v, w)), q.dtype)
        holds = self.system.modes(q)[self.mode] > 0
        return jnp.where(holds == self.holds, value, 1.0)


class _Decision(Module):
    """The state behind an event.

    Args:
        contacts: all of them.
        mode: which one is switched by a function of the user's; `None` for unilateral ones, which
            switch as gaps and reactions are.
        holds: what it is then.
    """

    contacts: _Contacts
    mode: int | None = eqx.field(static=True, default=None)
    holds: bool = eqx.field(static=True, default=False)

    @property
    def one_sided(self) -> bool:
        """Whether the function must not become negative: gaps and reactions of unilateral ones."""
        return self.mode is None

    def __call__(self, t, q, v, w):
        system = self.contacts.system
        before = system.modes(q)
        if self.mode is not None:
            q = q.at[system.coordinates + self.mode].set(float(self.holds))
        q, v = _after(self.contacts, t, q, v, w, before)
        return q, v, w


def switching(
    system: System,
    formulation: Multipliers,
    state: State,
    *,
    unilateral: str | int | Sequence[str | int] = (),
    hold: Mapping[Any, Event] | None = None,
    release: Mapping[Any, Event] | None = None,
    held: str | int | Sequence[str | int] = (),
    restitution=0.0,
    t0=0.0,
    controller=None,
) -> Switching:
    r"""Constraints that are released and caught again, as one run.

    A unilateral constraint is a gap `f_i(t, q) >= 0` among the `position_constraints`, with a
    reaction `-J^T lam` that pushes it open, `-lam_i >= 0`, and one of both zero [Brogliato2016]. It
    is released where the reaction falls to zero, and caught where the gap does, by an impact that
    is consistent with all constraints that hold then:

        M (v+ - v-) = J^T p,    p_i >= 0,    f_i'(v+) + e f_i'(v-) >= 0,    one of both zero

    for unilateral rows whose gap is zero, and `J v+ = 0` for others that hold. Rows that close in
    one instant are so decided together; what remains closed and presses holds. Both are linear
    complementarity problems, solved by projected Gauss-Seidel sweeps and a linear solve on the face
    that they find. Where the constraints do not depend on time no energy appears.
    A run backward in time ends at an impact as a failure.

    Other rows, velocity constraints among them, hold from where an event of `hold` happens, by
    impulses that are consistent with the rest, until one of `release` happens. Their residual must
    be zero there: what holds wherever it is when it closes is a velocity constraint.

    Modes are coordinates behind those of the system, without velocities: 1 where a row holds and 0
    where it is released. Rows that hold together should be independent: of others reactions, and so
    which of them lets go, are not determined. `violation` and consistent states count rows that
    hold, and `multipliers` of others are zero. The controller and functions of `hold` and `release`
    are given the system's own coordinates, with the modes behind `w`: a controller may switch with
    them.

    Args:
        system: the declaration, with all constraints.
        formulation: `Multipliers`, with a solve for independent constraints.
        state: start: unilateral rows hold where their gap is zero and they press.
        unilateral: names (see `System.labels`) or numbers of position constraints.
        hold: by name or number of a row, the event at which it holds from there on.
        release: likewise, at which it is released. A row without an event of `hold` holds at the
            start.
        held: rows of `hold` that hold at the start, too.
        restitution: coefficient `e` of impacts of unilateral rows, from 0 to 1. Bodies that
            would leave slower than about 1e-6 m/s are at rest.
        t0: time of the start [s].
        controller: `u = controller(t, q, v, w)` without internal state; here and not in the run.

    Returns:
        `Switching`, for `simulate(system, formulation, state, events=events)`.

    Raises:
        TypeError: for another system, formulation or event, or a controller with internal state.
        ValueError: for a row that is not there or switched twice, a coefficient outside of 0 to 1,
            a solve or forces that do not fit, or a start at which a gap is negative or closing; NaN
            instead, where it is traced.
    """
    check_instance("system", system, System, "an instance of your jaxdae.System")
    _check_formulation(formulation)
    if isinstance(controller, AbstractDynamicController):
        raise TypeError(
            f"{type(controller).__name__} has an internal state: give its output and its state as "
            "jaxdae.control.attach makes them."
        )
    refuse_rates(system, controller)
    if are_known(restitution) and not (
        np.ndim(restitution) == 0 and 0.0 <= float(restitution) <= 1.0
    ):
        raise ValueError(
            f"restitution is {restitution!r}; give a number from 0 (no rebound) to 1 (no loss)."
        )
    counts, labels = constraint_counts(system, state), system.labels()
    numbers = lambda rows: tuple(_number(labels, x, sum(counts)) for x in rows)  # noqa: E731
    one_sided, at_start = numbers(_several(unilateral)), numbers(_several(held))
    hold = {_number(labels, x, sum(counts)): event for x, event in (hold or {}).items()}
    release = {_number(labels, x, sum(counts)): event for x, event in (release or {}).items()}
    rows = tuple(sorted({*one_sided, *hold, *release}))
    _check_rows(labels, counts, one_sided, hold, release, at_start)
    t, n = jnp.asarray(t0, state.q.dtype), state.q.shape[-1]
    law: Any = formulation.stabilization
    if law is not None and not isinstance(law, AbstractStabilization):
        law = _OwnCoordinates(law, n)
    given = formulation.solve
    solve = ZeroRowsSolve() if isinstance(given, AutomaticSolve) else ZeroRowsSolve(given)  # pyright: ignore[reportArgumentType]
    switched = _WithModes(system, controller, rows, n, counts)
    jac = jax.lax.stop_gradient(mass_and_jacobian(system, t, state.q, state.v)[1])
    length = jnp.maximum(jnp.linalg.norm(jac, axis=1), _round_off(jac, 1.0))
    contacts = _Contacts(
        switched, Multipliers(law, solve), tuple(i in one_sided for i in range(sum(counts))),
        restitution, length,
    )  # fmt: skip
    first = [i in at_start or (i in release and i not in hold) for i in rows]
    modes = jnp.asarray(first, state.q.dtype)
    start = State(jnp.concatenate([state.q, modes]), state.v, state.w)
    u = switched._input(t, start.q, start.v, start.w, None)
    if has_reaction_forces(system, t, state.q, state.v, state.w, u):
        raise ValueError(
            f"{type(system).__name__} declares reaction_dependent_force, forces that depend on the "
            "multipliers: constraints that are switched cannot have such. Write friction of "
            "constraints that are not switched by stick_slip or realizing forces."
        )
    start = _begun(contacts, t, start)
    events = tuple(_events(contacts, labels, one_sided, hold, release))
    return Switching(switched, contacts.formulation, start, events)


def _events(contacts: _Contacts, labels: Labels, one_sided, hold, release):
    """Events of all rows, in their order."""
    for mode, row in enumerate(contacts.system.rows):
        if row in one_sided:
            yield Event(
                _GapOrReaction(contacts, mode),
                reset=_Decision(contacts),
                name=labels.constraint(row),
            )
        for events, holds in ((hold, True), (release, False)):
            if row in events:
                event = events[row]
                function = _While(event.function, contacts.system, mode, not holds)
                yield Event(
                    function, direction=event.direction, reset=_Decision(contacts, mode, holds),
                    name=event.name,
                )  # fmt: skip


def _begun(contacts: _Contacts, t, start: State) -> State:
    """The start with its modes; NaN where it is traced and no start."""
    q, gaps, rates, overlap, closing = _start(contacts, t, start)
    _refuse_start(contacts.system, t, gaps, rates, overlap, closing)
    good = ~jnp.any(overlap | closing)
    return State(jnp.where(good, q, jnp.nan), start.v, start.w)


@jit
def _start(contacts: _Contacts, t, start: State):
    """Coordinates with modes, gaps and their rates, and which of these are none to start from."""
    system = contacts.system
    own, m = system.own(start.q), system.counts[0]
    gaps = system.inner.position_constraints(t, own)
    rates = constraint_residuals(system.inner, t, own, start.v).phi_dot[:m]
    overlap = jnp.array(contacts.unilateral[:m], bool) & (gaps < -2 * contacts.near(start.q)[:m])
    touching = contacts.touching(t, start.q, start.v, system.modes(start.q))
    closing = touching[:m] & (rates < -contacts.fast(start.v, _SLOW)[:m])
    q = contacts.with_modes(t, start.q, start.v, start.w, touching)
    return q, gaps, rates, overlap, closing


@where_known
def _refuse_start(system: _WithModes, t, gaps, rates, overlap, closing) -> None:
    labels = system.labels()
    for i in np.flatnonzero(np.asarray(overlap)):
        raise ValueError(
            f"the gap {labels.constraint(int(i))!r} is {float(gaps[i]):.3g} at the start "
            f"(t = {float(t):.6g}), and a unilateral constraint is not negative: start where it is "
            "zero or open, or change its sign."
        )
    for i in np.flatnonzero(np.asarray(closing)):
        raise ValueError(
            f"the gap {labels.constraint(int(i))!r} is zero at the start (t = {float(t):.6g}) and "
            f"closes, its rate is {float(rates[i]):.3g}: start before the impact, or with the "
            "velocities behind it."
        )


def _check_formulation(formulation) -> None:
    if not isinstance(formulation, Multipliers):
        raise TypeError(
            f"{type(formulation).__name__} keeps all constraints at all times: constraints that "
            "are switched need the multipliers of those that hold, give "
            "jaxdae.Multipliers(stabilization)."
        )
    solve, name = formulation.solve, type(formulation.solve).__name__
    if isinstance(solve, AbstractSaddlePointSolve) and solve.asks_for_rank:
        raise ValueError(
            f"{name}() keeps the rank of the start, and the number of constraints that hold "
            f"changes: give an explicit threshold, {name}(rcond=1e-9), or drop superfluous "
            "constraints and leave solve out."
        )
    if not isinstance(solve, AbstractSaddlePointSolve) or not solve.capabilities.regular_mass:
        raise ValueError(
            f"{name} cannot leave out the rows of constraints that are released: leave solve out, "
            "which needs a regular mass matrix."
        )


def _check_rows(labels: Labels, counts, one_sided, hold, release, held) -> None:
    if not (one_sided or hold or release):
        raise ValueError("no row is switched: name some by unilateral, hold or release.")
    for row in one_sided:
        name = repr(labels.constraint(row))
        if row >= counts[0]:
            raise ValueError(
                f"{name} is a velocity constraint, which has no gap: switch it by hold and release."
            )
        if row in hold or row in release:
            raise ValueError(
                f"{name} is unilateral, and switched by an event, too: leave one of them out."
            )
    for row, event in (*hold.items(), *release.items()):
        name = repr(labels.constraint(row))
        if not isinstance(event, Event):
            raise TypeError(f"{name} is switched by {event!r}; give jaxdae.Event(function, ...).")
        if event.reset is not None:
            raise ValueError(
                f"the event {event.name!r}, which switches {name}, has a reset of its own: leave "
                "it out, velocities follow from the constraints that hold."
            )
    for row in held:
        if row not in hold:
            raise ValueError(
                f"held names {labels.constraint(row)!r}, which has no event in hold: leave it out, "
                "rows without one hold at the start."
            )


def _several(rows) -> tuple:
    return (rows,) if isinstance(rows, str | int) else tuple(rows)


def _number(labels: Labels, row, count: int) -> int:
    """The number of a row that is given by its name or number."""
    names = [labels.constraint(i) for i in range(count)]
    if isinstance(row, str):
        if row not in names:
            raise ValueError(
                f"no constraint is called {row!r}; there are: {', '.join(names) or 'none'}."
            )
        return names.index(row)
    if isinstance(row, bool) or not isinstance(row, int) or not -count <= row < count:
        raise ValueError(f"constraint {row!r} is out of range: there are {count}.")
    return row % count
