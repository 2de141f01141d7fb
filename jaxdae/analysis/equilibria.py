"""Equilibria of constrained systems, with unknown multipliers, actuator states and controls."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from jaxdae.checks import are_known, where_known
from jaxdae.compiled import jit
from jaxdae.linalg.held_rank import pivoted_rows, unit_rows
from jaxdae.reprs import Module, shown
from jaxdae.systems import State, System
from jaxdae.systems.checks import check_functions, check_position, check_tolerance
from jaxdae.systems.dynamics import mass_and_jacobian, other_force
from jaxdae.systems.independence import constraint_rank, surely_independent
from jaxdae.systems.kinematics import (
    at_rest,
    coordinate_rate,
    generalized_force,
    has_rate,
    moved,
    velocity_count,
)
from jaxdae.systems.precision import as_numbers, in_dtype

_MAX_STEPS = 256
# Newton's method on a regular root doubles its digits; from the end of the search this is enough.
_POLISH_STEPS = 3
# Stages of the loop: multipliers from the guess, search, Newton steps, evaluation at the root.
_GUESS, _SEARCH, _POLISH = 0, 1, 2
_LAST = _POLISH + _POLISH_STEPS


class EquilibriumError(ValueError):
    """No equilibrium was found."""


class Balance(NamedTuple):
    """What must vanish at an equilibrium.

    Args:
        force: generalized forces less `J^T lam` at rest, of the shape of velocities.
        phi: position constraint residuals, shape `(m,)`.
        phi_dot: velocity-level residuals at rest, shape `(m+r,)`.
        actuator: rates of the actuator state, shape `(k,)`.
    """

    force: Float[Array, " n"]
    phi: Float[Array, " m"]
    phi_dot: Float[Array, " c"]
    actuator: Float[Array, " k"]

    def __repr__(self) -> str:
        return shown(self)


class Equilibrium(Module):
    """A state of rest.

    Args:
        q: coordinates, shape `(n,)`.
        w: actuator state, shape `(k,)`.
        u: control input that holds it there, or `None`.
        multipliers: `lam` of `J^T lam = f`, shape `(m+r,)`; the reaction is `-J^T lam`. Of
            dependent constraints some have it all, and the others zero.
        residual: what is left of the equations, a `Balance`.
        t: time [s].
    """

    q: Float[Array, " n"]
    w: Float[Array, " k"]
    u: Any
    multipliers: Float[Array, " c"]
    residual: Balance
    t: Float[Array, ""]

    @property
    def state(self) -> State:
        """The state of rest, `State(q, 0, w)`."""
        return State(self.q, jnp.zeros_like(self.residual.force), self.w)


class _Unknowns(NamedTuple):
    q: Any
    w: Any
    u: Any
    multipliers: Any


def equilibrium(
    system: System,
    q,
    w=None,
    u=None,
    *,
    t=0.0,
    free_controls: bool = False,
    fixed: Sequence[str | int] = (),
    tolerance: float | None = None,
) -> Equilibrium:
    r"""The equilibrium near a guess: a state of rest in which all forces balance.

        f(t, q, 0, w, u) = J^T lam,   phi(t, q) = 0,   phi_dot(t, q, 0) = 0,   dw/dt = 0

    in the unknowns `q`, `w`, `lam` and, with `free_controls`, `u` [Krasinskaya2013, eq. 12], with
    the multipliers kept. An equilibrium need not be stationary for the potential energy in the
    redundant coordinates. Levenberg-Marquardt steps from the guess, then Newton steps of least
    norm; where equilibria form a family it is a member near the guess, unless `fixed` selects one.
    Where velocities are not rates of the coordinates (`System.rate`), coordinates move along the
    directions of velocities. First derivatives follow from the implicit function theorem.

    Args:
        system: the declaration; at rest it must not depend on time.
        q: guess of the coordinates, shape `(n,)`.
        w: guess of the actuator state, shape `(k,)`.
        u: control input: given, or a guess of it. `None` for a system without inputs.
        t: time [s].
        free_controls: find also the controls, from the guess `u`.
        fixed: names (see `System.labels`) or indices of coordinates to hold at their guess.
        tolerance: largest residual allowed, relative to the size of the forces and coordinates;
            by default the 2/3 power of the machine epsilon.

    Returns:
        `Equilibrium`.

    Raises:
        EquilibriumError: naming the equation that is farthest out of balance, and by how much, or
            the rate at which a system that depends on time leaves the equilibrium. Under `jit` and
            `vmap` the result is NaN instead.
        ValueError: for wrong shapes, unknown names, or numbers that are not finite.
    """
    guess = State(q, q, w)
    rest = at_rest(system, jnp.asarray(t, guess.q.dtype), guess.q)
    state = State(guess.q, rest, guess.w)
    dtype = state.q.dtype
    check_tolerance("tolerance", tolerance)
    fixed = (fixed,) if isinstance(fixed, str | int) else fixed
    u = None if u is None else as_numbers("the control input u", u, dtype)
    if free_controls and u is None:
        raise ValueError("free_controls=True needs a guess of the controls: give u.")
    t = jnp.asarray(t, dtype)
    check_functions(system, state, u)
    # As arrays: numbers of another value would be compiled anew.
    system = in_dtype(system, dtype)
    check_position(system, state)
    free = jnp.asarray(_free(system, fixed, state.q.size))
    kept = _independent_constraints(system, t, state)
    rest, residual, rate = _solve(system, t, state, u, free, kept, free_controls)
    tolerance = float(jnp.finfo(dtype).eps) ** (2 / 3) if tolerance is None else tolerance
    _check_held(system, state.q, rest.q, free)
    return _require(system, rest, residual, rate, t, tolerance, fixed)


@jit
def _solve(system, t, state, u, free, kept, free_controls):
    """Unknowns, what is left of the equations, and the rate of that in time."""
    problem = (system, t, state, u, free, kept)
    q, s = state.q, u.size if free_controls else 0
    places = jnp.zeros_like(state.v) if has_rate(system) else q
    m = jax.eval_shape(system.position_constraints, t, q).size
    r = jax.eval_shape(system.velocity_constraints, t, q, state.v).size
    control = jnp.ravel(u) if s else jnp.zeros(0, q.dtype)
    start = jnp.concatenate([places, state.w, control, jnp.zeros(m + r, q.dtype)])
    # Multipliers that balance best: a guess that is an equilibrium is found to be one.
    multipliers = jnp.arange(start.size) >= start.size - m - r
    # Declarations may hold functions.
    arrays, rest = eqx.partition(problem, eqx.is_array)
    fixed = eqx.combine(jax.lax.stop_gradient(arrays), rest)
    root = jax.lax.stop_gradient(
        _find_root(lambda x: _linear(x, fixed, s), jax.lax.stop_gradient(start), multipliers)
    )
    out = _unknowns(_implicit(root.x, root.inverse, problem, s), problem, s)
    shapes = jax.eval_shape(lambda x: _balance(x, problem, s), root.x)
    residual = ravel_pytree(jax.tree.map(jnp.zeros_like, shapes))[1](root.residual)
    return out, residual, jnp.max(jnp.abs(root.rate), initial=0.0)


def _unknowns(x, problem, s: int) -> _Unknowns:
    system, t, state, u, free, kept = problem
    n, k = state.v.size, state.w.size
    places, w, control, multipliers = jnp.split(x, (n, n + k, n + k + s))
    if has_rate(system):
        held = moved(system, t, state.q, _along_free(system, t, state, free, places))
    else:
        held = jnp.where(free, places, state.q)
    # Off the constraints a superfluous one could balance any force by a multiplier without bound.
    multipliers = multipliers if kept is None else jnp.where(kept, multipliers, 0.0)
    return _Unknowns(held, w, control.reshape(u.shape) if s else u, multipliers)


@where_known
def _independent_constraints(system: System, t, state: State):
    """Which constraints are not superfluous where they hold, shape `(m+r,)`; `None` for all.

    Under transformations the guess is not known, and all are taken.
    """
    phi, jac = (np.asarray(x) for x in _constraints_at(system, t, state))
    if len(jac) < 2 or surely_independent(jac, phi):
        return None
    kept, regular, _ = independent_rows(system, t, state)
    return kept if bool(regular) and not bool(jnp.all(kept)) else None


@jit
def _constraints_at(system, t, state):
    _, jac = mass_and_jacobian(system, t, state.q, state.v)
    return system.position_constraints(t, state.q), jac


@jit
def independent_rows(system: System, t, state: State):
    """Which constraints are not superfluous where they hold, if that is regular, and `J` there."""
    rank = constraint_rank(system, t, state)
    order = pivoted_rows(unit_rows(rank.jac)[0]).order
    first = jnp.arange(len(order)) < rank.rank
    return (first @ order) > 0, rank.regular, rank.jac


def _along_free(system: System, t, state: State, free, change):
    """The part of a change of position that leaves coordinates that are held where they are."""
    rates = jax.vmap(lambda e: coordinate_rate(system, t, state.q, e), out_axes=1)
    rows = jnp.where(free[:, None], 0.0, rates(jnp.eye(change.size, dtype=change.dtype)))
    rows = jax.lax.stop_gradient(rows)
    return change - jnp.linalg.pinv(rows) @ (rows @ change)


def _balance(x, problem, s: int) -> Balance:
    system, t, *_ = problem
    q, w, u, multipliers = _unknowns(x, problem, s)
    return balance(system, t, q, w, u, multipliers)


def _linear(x, problem, s: int) -> "_Linear":
    """Residual and its derivatives, time as one more column: one trace of the equations."""
    system, t, *rest = problem

    def residual(x_t):
        value = ravel_pytree(_balance(x_t[:-1], (system, x_t[-1], *rest), s))[0]
        return value, value

    jacobian, value = jax.jacfwd(residual, has_aux=True)(jnp.append(x, t))
    return _Linear(value, jacobian[:, :-1], jacobian[:, -1])


@eqx.filter_custom_jvp
def _implicit(x, inverse, problem, s: int):
    """A root, with the derivative of the implicit function theorem, `-J^+ dR`."""
    del inverse, problem, s
    return x


@_implicit.def_jvp
def _implicit_jvp(primals, tangents):
    x, inverse, problem, s = primals
    residual = lambda problem: ravel_pytree(_balance(x, problem, s))[0]  # noqa: E731
    _, change = eqx.filter_jvp(residual, (problem,), (tangents[2],))
    return x, -inverse @ change


@where_known
def _check_held(system: System, guess, q, free) -> None:
    """Coordinates that velocities cannot hold one by one: a part of a quaternion."""
    if not has_rate(system):
        return
    away = np.where(free, 0.0, np.abs(np.asarray(q) - np.asarray(guess)))
    worst = int(np.argmax(away))
    if away[worst] > np.finfo(away.dtype).eps ** 0.5 * (1 + abs(float(guess[worst]))):
        raise EquilibriumError(
            f"the coordinate {system.labels().coordinate(worst)!r} was to be held and moved by "
            f"{away[worst]:.3g}: velocities do not hold it alone; hold all coordinates of its "
            "rotation, or none."
        )


def _require(system, rest, residual, rate, t, tolerance, fixed) -> Equilibrium:
    """The equilibrium if everything balances; an error, or NaN while tracing, if not."""
    limit = tolerance * (1 + _size(rest))
    worst = _size(residual)
    good = (worst <= limit) & (rate <= limit)
    out = Equilibrium(rest.q, rest.w, rest.u, rest.multipliers, residual, t)
    if not are_known(good):
        return jax.tree.map(lambda x: jnp.where(good, x, jnp.nan), out)
    if not worst <= limit:
        raise EquilibriumError(_message(system, rest, residual, limit, fixed))
    if not rate <= limit:
        raise EquilibriumError(
            f"at t = {float(t):.6g} the system balances at q = {np.asarray(rest.q)}, but only for "
            f"a moment: the equations of rest change at the rate {float(rate):.3g} per second. An "
            "equilibrium needs constraints and forces that do not depend on time."
        )
    return out


def _size(tree):
    return jnp.max(jnp.abs(ravel_pytree(tree)[0]), initial=0.0)


def _message(system, rest, residual, limit, fixed) -> str:
    labels = system.labels()
    names = (
        [f"the force on {labels.coordinate(i)!r}" for i in _moved_most(system, residual, rest.q)]
        + [f"constraint {labels.constraint(i)!r}" for i in range(residual.phi.size)]
        + [f"constraint {labels.constraint(i)!r} at rest" for i in range(residual.phi_dot.size)]
        + [f"the rate of actuator state w{i + 1}" for i in range(residual.actuator.size)]
    )
    values = np.abs(np.asarray(ravel_pytree(residual)[0]))
    values = np.where(np.isfinite(values), values, np.inf)
    worst = [f"{names[i]} by {values[i]:.3g}" for i in np.argsort(-values)[:3] if values[i] > limit]
    held = f" with {', '.join(map(str, fixed))} held" if fixed else ""
    return (
        f"no equilibrium was found near the guess{held}; the nearest rest, q = "
        f"{np.asarray(rest.q)}, is out of balance: {', '.join(worst)} (allowed {float(limit):.1g})"
        ". Start nearer, hold fewer coordinates, or let the controls be found (free_controls=True)."
    )


def _moved_most(system: System, residual: Balance, q) -> list[int]:
    """Of each velocity the coordinate that it moves most."""
    count = residual.force.size
    if not has_rate(system):
        return [*range(count)]
    basis = np.eye(count, dtype=q.dtype)
    rates = np.stack([coordinate_rate(system, jnp.zeros((), q.dtype), q, e) for e in basis])
    return np.argmax(np.abs(rates), axis=1).tolist()


def _free(system: System, fixed, n: int) -> np.ndarray:
    free = np.ones(n, bool)
    free[system.labels().coordinate_indices(fixed, n, "fixed")] = False
    return free


def balance(system: System, t, q, w, u, multipliers) -> Balance:
    """What is out of balance at rest in `q`, under multipliers `(m+r,)`; zero at an equilibrium."""
    rest = at_rest(system, t, q)
    phi, f_dot = jax.jvp(lambda t: system.position_constraints(t, q), (t,), (jnp.ones_like(t),))
    g = system.velocity_constraints(t, q, rest)
    holonomic, nonholonomic = jnp.split(multipliers, (phi.size,))
    force = energy_force(system, t, q, holonomic)
    force += remaining_force(system, t, q, rest, w, u, nonholonomic)
    rate = system.actuator_rate(t, q, rest, w, u)
    return Balance(force, phi, jnp.concatenate([f_dot, g]), rate)


def energy_force(system: System, t, q, multipliers) -> Float[Array, " n"]:
    """`-d(W + lam . f)/dq` with `W = V - T0`: energies and position constraints, at rest."""
    rest = at_rest(system, t, q)

    def potential(q):
        static = system.potential_energy(t, q) - system.kinetic_energy(t, q, rest)
        return static + multipliers @ system.position_constraints(t, q)

    return generalized_force(system, t, q, rest, -jax.grad(potential)(q))


def remaining_force(system: System, t, q, v, w, u, multipliers) -> Float[Array, " n"]:
    """All other forces: `force`, less the slopes by `v` of dissipation, `lam . g` and `dT/dt`.

    Of the inertial forces it has the explicit rate of the momenta; the rest of them,
    `turning(...) @ v` to first order, vanishes at rest. The multipliers `(r,)` are those of the
    velocity constraints.
    """

    def power(v):
        kinetic = lambda t: system.kinetic_energy(t, q, v)  # noqa: E731
        _, kinetic_rate = jax.jvp(kinetic, (t,), (jnp.ones_like(t),))
        reaction = multipliers @ system.velocity_constraints(t, q, v)
        return kinetic_rate + system.dissipation(t, q, v) + reaction

    return other_force(system, t, q, v, w, u) - jax.grad(power)(v)


def mass_and_turning(system: System, t, q) -> tuple[Float[Array, "n n"], Float[Array, "n n"]]:
    """Mass matrix, and the gyroscopic matrix `A^T - A` with `A = d2T/dv dq` at rest.

    Where velocities are not rates of coordinates, `dq` along them.
    """
    eye = jnp.eye(velocity_count(system, t, q), dtype=q.dtype)
    rest, still = jnp.zeros_like(eye[0]), jnp.zeros_like(q)
    momentum = lambda q, v: jax.grad(system.kinetic_energy, argnums=2)(t, q, v)  # noqa: E731
    _, push = jax.linearize(momentum, q, rest)
    declared = system.mass_matrix(t, q)
    mass = jax.vmap(lambda e: push(still, e))(eye).T if declared is None else declared
    A = jax.vmap(lambda e: push(coordinate_rate(system, t, q, e), rest))(eye).T
    return jnp.asarray(mass, q.dtype), A.T - A


class _Linear(NamedTuple):
    """Equations at one point: residual `(e,)`, Jacobian `(e, x)`, and rate in time `(e,)`."""

    residual: Float[Array, " e"]
    jacobian: Float[Array, "e x"]
    rate: Float[Array, " e"]


class _Root(NamedTuple):
    """Unknowns `(x,)`, pseudoinverse of the Jacobian there, what is left, and its rate in time."""

    x: Float[Array, " x"]
    inverse: Float[Array, "x e"]
    residual: Float[Array, " e"]
    rate: Float[Array, " e"]


class _SearchState(NamedTuple):
    stage: Any
    steps: Any
    x: Any
    best: Any
    method: Any
    root: _Root


def _find_root(equations: Callable[[Any], _Linear], x, guessed) -> _Root:
    """Levenberg-Marquardt steps from a guess, then Newton steps of least norm.

    The equations are compiled once, whatever the method asks for: mechanisms of some ten
    coordinates would otherwise spend minutes in the compiler. Those that are `guessed` alone move
    in the first step, one of least norm: a guess that is a root but for these is found to be one.
    """
    search = _RootSearch(x, jax.eval_shape(equations, x))

    def body(now: _SearchState) -> _SearchState:
        at = equations(now.x)
        jacobian = jnp.where((now.stage == _GUESS) & ~guessed, 0, at.jacobian)
        inverse = _pseudoinverse(jacobian)
        tried, best, done, method = search.step(now, at)
        searching = now.stage == _SEARCH
        ended = searching & (done | (now.steps >= _MAX_STEPS))
        step = jnp.where(now.stage < _LAST, inverse @ at.residual, 0)
        following = jnp.where(searching, jnp.where(ended, best, tried), now.x - step)
        method, best = jax.tree.map(
            lambda new, old: jnp.where(searching, new, old), (method, best), (now.method, following)
        )
        root = _Root(now.x, inverse, at.residual, at.rate)
        stage = now.stage + jnp.where(searching & ~ended, 0, 1)
        return _SearchState(stage, now.steps + 1, following, best, method, root)

    start = _SearchState(jnp.array(_GUESS), jnp.array(0), x, x, search.start, search.nothing)
    return jax.lax.while_loop(lambda now: now.stage <= _LAST, body, start).root


class _RootSearch:
    """Steps of optimistix' method on equations that the loop has evaluated."""

    def __init__(self, x, shapes: _Linear):
        # The method keeps its damping in the default precision and cannot mix two.
        self.dtype, self.float = x.dtype, jnp.result_type(float)
        eps = float(jnp.finfo(x.dtype).eps)
        self.method = optx.LevenbergMarquardt(rtol=eps**0.5, atol=eps**0.5)
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        self.nothing = _Root(x, blank.jacobian.T, blank.residual, blank.rate)
        out = jax.ShapeDtypeStruct(blank.residual.shape, self.float)
        x = x.astype(self.float)
        model = (x, blank.residual.astype(self.float), blank.jacobian.astype(self.float))
        state = self.method.init(_model, x, model, _OPTIONS, out, None, frozenset())
        self.start, self.static = eqx.partition(state, eqx.is_array)

    def step(self, now: _SearchState, at: _Linear):
        """Point to try next, best so far, whether the search is over, and the method's state."""
        x, best, residual, jacobian = (
            y.astype(self.float) for y in (now.x, now.best, at.residual, at.jacobian)
        )
        state = eqx.combine(self.static, now.method)
        state = eqx.tree_at(lambda s: s.y_eval, state, x)
        model = (x, residual, jacobian)
        best, state, _ = self.method.step(_model, best, model, _OPTIONS, state, frozenset())
        done, result = self.method.terminate(_model, best, model, _OPTIONS, state, frozenset())
        done |= (result != optx.RESULTS.successful) | ~jnp.isfinite(state.y_eval).all()
        method = eqx.filter(state, eqx.is_array)
        return state.y_eval.astype(self.dtype), best.astype(self.dtype), done, method


# Reverse mode is what makes the method form the Jacobian as an array, here of a linear function.
_OPTIONS = {"jac": "bwd"}


def _model(x, linear):
    """The equations as they are linearized where they were evaluated: exact there."""
    at, residual, jacobian = linear
    return residual + jacobian @ (x - at), None


def _pseudoinverse(jacobian):
    rtol = float(jnp.finfo(jacobian.dtype).eps) ** (2 / 3)
    return jnp.linalg.pinv(jacobian, rtol=rtol)
