"""What must hold before a simulation starts, checked on the host: arguments, shapes, gains."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.steps import spectral_limit
from jaxdae.checks import are_known, fails
from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import capabilities_of
from jaxdae.diagnosis.findings import Finding
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.gains import is_number
from jaxdae.formulations.stabilization import AbstractStabilization, InDirection, may_grow
from jaxdae.formulations.structure import depends_on_any
from jaxdae.linalg.block_tree import connected_parts
from jaxdae.memory import Memory
from jaxdae.simulation.saving import is_plain
from jaxdae.solvers.constrained_term import check_forces, check_terms, enforces_constraints
from jaxdae.solvers.grid import Grid, known_ends
from jaxdae.solvers.projected import parts_of
from jaxdae.solvers.sampled import SampleSteps
from jaxdae.stability.stability_functions import (
    amplification,
    has_stability_function,
    is_multistep,
)
from jaxdae.systems import State, System
from jaxdae.systems.calls import call_with_shapes, check_instance, check_parameters, described
from jaxdae.systems.checks import (
    check_functions,
    check_linear_rate,
    check_symmetric_mass,
    constraint_counts,
)
from jaxdae.systems.dynamics import refuse_reaction_forces
from jaxdae.systems.precision import known_array
from jaxdae.tables import root_text

# More than round-off of roots that coincide to the fourth order makes of a factor of one.
_GROWING = 1e-3
# Of a stabilization at rest: less is round-off of what a user computes.
_REST = 1e-12
# Declarations that were checked: checking traces every function, which takes longer than many runs.
_CHECKED = Memory(256)
_MOST_STEPS = 2**31 - 1


def check_kinds(
    system, formulation, state, controller, adjoint, saveat, progress, throw, work
) -> None:
    """Arguments of the right kind; `TypeError` naming the argument, what it is, and should be."""
    for name, value, kind, example in (
        ("system", system, System, "an instance of your jaxdae.System"),
        ("formulation", formulation, AbstractFormulation, "jaxdae.Multipliers(Baumgarte(...))"),
        ("state", state, State, "jaxdae.State(q, v) or jaxdae.consistent_state(system, q, v)"),
        ("adjoint", adjoint, diffrax.AbstractAdjoint | None, "diffrax.ForwardMode()"),
        ("saveat", saveat, diffrax.SaveAt | None, "diffrax.SaveAt(ts=...)"),
        ("progress", progress, bool | diffrax.AbstractProgressMeter, "True or False"),
        ("throw", throw, bool | np.bool_, "True or False"),
        ("work", work, bool | np.bool_, "True or False"),
    ):
        check_instance(name, value, kind, example)
    if isinstance(adjoint, diffrax.BacksolveAdjoint):
        raise TypeError(
            "BacksolveAdjoint cannot give the saved rows of a trajectory; use "
            "diffrax.RecursiveCheckpointAdjoint() for reverse mode, diffrax.ForwardMode() for "
            "forward mode."
        )
    if controller is not None and (isinstance(controller, type) or not callable(controller)):
        raise TypeError(
            f"controller is {described(controller)}; give a callable u = controller(t, q, v, w)."
        )
    check_closure("controller", controller)
    formulation.check_parts()
    for name, value in vars(formulation).items():
        check_closure(name, value)


def check_closure(name: str, function) -> None:
    """A function cannot carry a value that is being traced out of the transformation."""
    if not isinstance(function, FunctionType):
        return
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    if not are_known(held):
        raise ValueError(
            f"the {name} closes over a value that is being differentiated or batched; write it as "
            "an eqx.Module with that value as a field, so that JAX can see it."
        )


def check_times(t0, t1, dt, stepsize_controller, saveat, max_steps: int) -> None:
    """Times that are finite numbers, in order, and within the number of steps allowed."""
    integer = isinstance(max_steps, int | np.integer) and not isinstance(max_steps, bool)
    if not integer or max_steps < 1:
        raise ValueError(f"max_steps must be a positive integer; got {max_steps!r}.")
    if max_steps > _MOST_STEPS:
        raise ValueError(
            f"max_steps = {max_steps} is more than the {_MOST_STEPS} that counters of 32 bits "
            "hold; give a smaller one."
        )
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if name == "dt" and value is None:
            continue
        if isinstance(value, bool) or not is_number(value) or jnp.shape(value) != ():
            raise TypeError(f"{name} must be a number; got {value!r}.")
    if not are_known(t0, t1, dt, saveat):
        return
    for name, value in (("t0", t0), ("t1", t1), ("dt", dt)):
        if value is not None and not np.isfinite(value):
            raise ValueError(f"{name} is not finite: {value}.")
    _check_saved_times(t0, t1, saveat)
    if dt is None:
        return
    if dt == 0 or (t1 - t0) * dt <= 0:
        raise ValueError(f"dt = {dt} does not lead from t0 = {t0} to t1 = {t1}.")
    if stepsize_controller is None and (t1 - t0) / dt > max_steps:
        raise ValueError(
            f"{(t1 - t0) / dt:.0f} steps of {dt} s are more than max_steps = {max_steps}; "
            "give a larger max_steps."
        )


def wrong_times(times, saved: list, settings: list, controller) -> dict[str, Any]:
    """What is wrong with times and tolerances that are known only when the program runs.

    By what is wrong in words, whether it is so, a boolean array. `saved` are the times to be saved,
    `settings` the numbers of the step controller.
    """
    start, end, step = times.start, times.end, times.first_step
    numbers = [x for x in (start, end, step, times.grid, *saved) if x is not None]
    not_finite = [jnp.any(~jnp.isfinite(x)) for x in numbers] + [
        jnp.any(jnp.isnan(x)) for x in settings
    ]
    found = {"a time, a step or a tolerance is not finite.": _any(not_finite)}
    given: list[Any] = [getattr(controller, name, None) for name in ("rtol", "atol")]
    tolerances = [jnp.asarray(x) for x in given if is_number(x)]
    if settings and tolerances:
        ranges = [jnp.any(~((x >= 0) & jnp.isfinite(x))) for x in tolerances]
        zero = jnp.all(jnp.stack([jnp.all(x == 0) for x in tolerances]))
        found["rtol and atol must be finite, not below zero, and not both zero."] = _any(
            [*ranges, zero]
        )
    if step is not None:
        found["dt does not lead from t0 to t1."] = (step == 0) | ((end - start) * step < 0)
    if isinstance(known_ends(controller).controller, SampleSteps):
        found["a controller that is sampled keeps a memory, which no run backward in time has."] = (
            end < start
        )
    low, high = jnp.minimum(start, end), jnp.maximum(start, end)
    outside = [
        jnp.any(jnp.diff(x) * jnp.sign(end - start) < 0) | jnp.any((x < low) | (x > high))
        for x in saved
        if x.size
    ]
    if outside:
        words = "must lie between t0 and t1, in the order in which the times are reached."
        found[f"SaveAt(ts=...) {words}"] = _any(outside)
    return found


def _any(conditions: list):
    return jnp.any(jnp.stack(conditions))


def _check_saved_times(t0, t1, saveat) -> None:
    if saveat is not None and (saveat.solver_state or saveat.controller_state or saveat.made_jump):
        raise ValueError(
            "a Trajectory keeps no internal state of solver or step controller; leave "
            "solver_state, controller_state and made_jump out of SaveAt."
        )
    is_sub = lambda x: isinstance(x, diffrax.SubSaveAt)  # noqa: E731
    subs = jax.tree.leaves(None if saveat is None else saveat.subs, is_leaf=is_sub)
    for ts in (np.asarray(sub.ts) for sub in subs if sub.ts is not None):
        if ts.ndim != 1:
            raise ValueError(f"SaveAt(ts=...) has shape {ts.shape}; give a vector of times.")
        low, high = min(t0, t1), max(t0, t1)
        if ts.size and not (low <= ts.min() and ts.max() <= high):
            raise ValueError(
                f"SaveAt(ts=...) asks for times from {ts.min():.6g} to {ts.max():.6g} s, outside "
                f"the simulated {low:.6g} to {high:.6g} s; leave those out, or change t0 or t1."
            )
        if (np.diff(ts) * np.sign(float(t1) - float(t0)) < 0).any():
            raise ValueError("SaveAt(ts=...) must be in the order in which the times are reached.")


def check_declaration(system, formulation, controller, state, t0, solver) -> None:
    """Shapes of everything declared, once for each declaration; values of gains every time."""
    recheck(formulation)
    leaves, structure = jax.tree.flatten((system, formulation, controller, state))
    method = parts_of(solver).method
    key = (structure, enforces_constraints(method), *(signature(x) for x in leaves))
    declared = system, formulation, controller
    _CHECKED.get(key, declared, lambda: _check_shapes(*declared, state, t0, method))


def _check_shapes(system, formulation, controller, state, t0, method) -> None:
    u = _example_input(controller, t0, state)
    check_functions(system, state, u, t0)
    if are_known(system, state, t0):
        with jax.core.eval_context():
            check_symmetric_mass(system, t0, state)
            check_linear_rate(system, known_array(t0, state.q.dtype), state)
    t = known_array(t0, state.q.dtype)
    if not formulation.capabilities.finds_reaction_forces:
        refuse_reaction_forces(system, t, state.q, state.v, state.w, u)
    check_forces(method, system, t, state, u)
    formulation.check(system, state)


def recheck(module) -> None:
    """Run the checks of construction again: a pytree may have been edited since."""
    if not isinstance(module, eqx.Module):
        return
    check = getattr(type(module), "__check_init__", None)
    if check is not None:
        check(module)
    for value in vars(module).values():
        recheck(value)


def signature(leaf):
    """Shape and type of an array; anything else, integers among it, by value."""
    if isinstance(leaf, jax.Array | np.ndarray):
        return (leaf.shape, leaf.dtype)
    if is_number(leaf) and not isinstance(leaf, int):
        return (jnp.shape(leaf), str(jnp.result_type(leaf)))
    return leaf


def _example_input(controller, t, state):
    if controller is None:
        return None
    names = ("t", "q", "v", "w")
    check_parameters("the controller", controller, names)
    args = (jnp.asarray(t, state.q.dtype), state.q, state.v, state.w)
    u = call_with_shapes("the controller", controller, args, names)
    wrong = [x for x in jax.tree.leaves(u) if not (hasattr(x, "shape") or is_number(x))]
    if u is None or wrong:
        what = "nothing" if u is None else f"{wrong[0]!r}"
        raise ValueError(f"the controller returned {what}; it must return the control input.")
    return eqx.filter_eval_shape(lambda u: u, u)


def check_solver(solver, formulation, stepsize_controller, dt, work) -> None:
    """Refuse combinations of solver and step size that cannot work."""
    solver = parts_of(solver).method
    name = type(solver).__name__
    if not isinstance(solver, diffrax.AbstractSolver):
        raise TypeError(
            f"solver must be a diffrax solver, such as diffrax.Dopri8(); got {solver!r}."
        )
    if not isinstance(stepsize_controller, diffrax.AbstractStepSizeController | None):
        raise TypeError(
            "stepsize_controller must be one of diffrax's, such as "
            f"diffrax.PIDController(rtol=1e-6, atol=1e-6); got {stepsize_controller!r}."
        )
    check_tolerances(stepsize_controller)
    check_terms(solver, formulation, work)
    if isinstance(stepsize_controller, diffrax.ConstantStepSize) and dt is None:
        raise ValueError("ConstantStepSize needs the step: give dt.")
    adaptive = isinstance(solver, diffrax.AbstractAdaptiveSolver)
    # To diffrax, a solver that wraps another one is of the other's kind as well.
    wraps = isinstance(solver, diffrax.AbstractWrappedSolver)
    if isinstance(solver, diffrax.AbstractRungeKutta) and not wraps:
        adaptive = _has_error_estimate(solver)
    chooses = (
        dt is None
        if stepsize_controller is None
        else not isinstance(stepsize_controller, diffrax.ConstantStepSize | diffrax.StepTo | Grid)
    )
    if not chooses:
        _check_newton(solver, name)
    if chooses and not adaptive:
        raise ValueError(
            f"{name} has no error estimate, so its step cannot be chosen automatically; give dt, "
            "or use a solver with one, such as diffrax.Dopri8()."
        )


def check_tolerances(stepsize_controller) -> None:
    """Raise `ValueError` for tolerances, step limits and known ends that cannot be."""
    ends = known_ends(stepsize_controller)
    stepsize_controller = ends.controller
    for name, value in (("step_ts", ends.steps), ("jump_ts", ends.jumps)):
        if value is not None and fails(lambda x: np.isfinite(x).all(), value):
            raise ValueError(f"{name} of ClipStepSizeController must be finite times; got {value}.")
    kind = type(stepsize_controller).__name__
    values = {name: getattr(stepsize_controller, name, None) for name in ("rtol", "atol")}
    for name, value in values.items():
        if is_number(value) and fails(lambda x: np.all((x >= 0) & np.isfinite(x)), value):
            raise ValueError(
                f"{name} of {kind} must be a finite number not below zero; got {value!r}."
            )
    for name in ("dtmin", "dtmax"):
        value = getattr(stepsize_controller, name, None)
        if is_number(value) and fails(lambda x: np.all(x > 0), value):
            raise ValueError(f"{name} of {kind} must be a positive number; got {value!r}.")
    if fails(lambda *xs: any(not is_number(x) or np.any(x != 0) for x in xs), *values.values()):
        raise ValueError(
            f"{kind} has rtol = atol = 0: no step is accurate enough; give one of them."
        )


def check_with_events(events, saveat, progress, *, fixed: bool) -> None:
    """Refuse what a run with events, which is made of parts, does not save or show.

    Args:
        events: of the run.
        saveat: what is saved, or `None`.
        progress: a bar or a meter.
        fixed: whether the ends of its steps are known.

    Raises:
        ValueError: naming it, and the remedy.
    """
    for one in events:
        for function in jax.tree.leaves(one):
            check_closure(f"event {one.name!r}", function)
    if not (progress is False or isinstance(progress, diffrax.NoProgressMeter)):
        raise ValueError("a run with events shows no progress; leave progress out.")
    if saveat is None:
        return
    sub: Any = saveat.subs
    if saveat.dense or not is_plain(saveat):
        raise ValueError(
            "a run with events saves plain states: give SaveAt(ts=…), SaveAt(t0=…, t1=…), or "
            "SaveAt(steps=…) with dt, without fn, subs or dense."
        )
    if sub.steps and (not fixed or sub.ts is not None):
        raise ValueError(
            "SaveAt(steps=…) of a run with events needs fixed steps, dt, and no ts: an event ends "
            "a step, and how many adaptive ones there are is not known. Give SaveAt(ts=…)."
        )


def check_projection(solver, formulation) -> None:
    """Refuse to project what moves off the constraints on purpose: realizing forces."""
    method, projection = parts_of(solver)
    if projection is not None and not formulation.capabilities.enforces_constraints:
        raise ValueError(
            "RealizingForces act where the motion leaves the constraints, which Projected takes "
            "away with every step: forces and multipliers would be wrong. Use "
            f"{type(method).__name__} without Projected, or Multipliers()."
        )
    symmetric = projection is not None and projection.symmetric
    if symmetric and not formulation.capabilities.plain_state:
        raise ValueError(
            "symmetric steps of Projected move coordinates and velocities, and the state of "
            f"{type(formulation).__name__} is another one: use Multipliers(), or Projected without "
            "symmetric=True."
        )


def rest_warning(system, formulation, state, t) -> str | None:
    """What to warn of where a stabilization wants consistent states to leave the constraints.

    `Phi(t, q, v, 0, 0) = 0` is what makes the constraints invariant [Mukharlyamov2019, eq. 0.11].

    Returns:
        The largest entry in words, where it depends on the state; `None` where it is zero.

    Raises:
        ValueError: where it is a constant: no start is consistent with it.
    """
    found = _at_rest(system, formulation, state)
    if found is None:
        return None
    with jax.core.eval_context():
        value = np.abs(np.asarray(found(t, state.q, state.v))).max(initial=0.0)
        varies = depends_on_any(found, t, state.q, state.v)
    if not value > _REST:
        return None
    words = (
        f"the stabilization is {value:.4g} for residuals of zero, and must be zero there: states "
        "that satisfy the constraints leave them"
    )
    if not varies:
        raise ValueError(f"{words}. Leave out of Phi what does not vanish with phi and phi_dot.")
    return f"{words}, at the start; it depends on the state. Let Phi vanish with phi and phi_dot."


def rest_along(trajectory) -> Finding | None:
    """The same of a run that reached its end, at saved times, where the start does not show it."""
    if _given_law(trajectory.formulation) is None:
        return None
    found: Any = _at_rest(trajectory.system, trajectory.formulation, trajectory.last_state)
    reached = np.isfinite(np.asarray(trajectory.ts))
    rows = (trajectory.ts, trajectory.q, trajectory.v)
    values = np.abs(np.asarray(jax.vmap(found)(*rows))).reshape(reached.size, -1)
    size = np.where(reached, values.max(axis=1, initial=0.0), 0.0)
    if not (size > _REST).any() or size[0] > _REST:  # that of the start has been warned of
        return None
    row = int(np.argmax(size))
    amount, time = float(size[row]), float(trajectory.ts[row])
    message = (
        "the stabilization wants residuals of zero to change: it reaches "
        f"{amount:.4g} there, at t = {time:.4g} s, so that the run leaves "
        "the constraints. Let Phi vanish with phi and phi_dot at all states."
    )
    return Finding(message, amount, time)


def _at_rest(system, formulation, state) -> Callable | None:
    """`Phi(t, q, v)` at residuals of zero; `None` for laws that vanish there by construction."""
    law = _given_law(formulation)
    if law is None:
        return None
    m, r = constraint_counts(system, state)
    zero = jnp.zeros(m + r, state.q.dtype)
    return lambda t, q, v: jnp.asarray(law(t, q, v, zero[:m], zero))


def _given_law(formulation) -> Callable | None:
    """The stabilization where it is a function of the user; `None` for laws of the library."""
    law = formulation.capabilities.stabilization
    while isinstance(law, InDirection):
        law = law.stabilization
    return None if law is None or isinstance(law, AbstractStabilization) else law


def growth_warning(
    system, formulation, controller, state, t, *, backward: bool = False
) -> str | None:
    """What to warn of before a run: gains with which violations grow, however small the steps.

    Positive gains cannot do that. Blocks of a `LinearStabilization` can, and so can gains of
    `Penalty` and `AugmentedLagrangian` beside a constraint mass that is a matrix: `alpha K_P` need
    not be symmetric [MukharlyamovDeressa2015, eq. 28]. Functions are examined in runs backward in
    time, where one may have been written with the other signs; forward not, which would take time.
    """
    weight = formulation.capabilities.weight
    if callable(weight):
        weight = jax.eval_shape(weight, jnp.asarray(t, state.q.dtype), state.q, state.v)
    weighted = np.ndim(weight) == 2
    law = formulation.capabilities.stabilization
    blocks = may_grow(law)
    own = backward and law is not None and not isinstance(law, AbstractStabilization)
    if not (weighted or blocks or own):
        return None
    H, _ = _perturbation_matrices(system, formulation, controller, state, t)
    roots = _roots(H)
    growth = np.real(roots)
    # Roots that coincide at zero come out as far from it as a root of round-off.
    if not growth.max(initial=0.0) > 1e-3 * np.abs(roots).max(initial=0.0):
        return None
    fastest = roots[np.argmax(growth)]
    remedy = (
        "With full matrices alpha K_P need not be symmetric: make alpha a number or diagonal, or "
        "take damping and stiffness of the violation as they are, "
        "LinearStabilization(-inv(alpha) @ K_P, -inv(alpha) @ K_D)."
        if weighted and not (blocks or own)
        else "Give the stabilization such that its spectrum is in the left half-plane."
    )
    if backward:
        remedy += (
            " Stabilizations act in the direction of integration: backward in time the same is "
            "given as for a run forward."
        )
    return (
        "violations grow with these gains, however small the steps: the constraint perturbation "
        f"equations at the start have the root {root_text(fastest, 4)} 1/s. {remedy}"
    )


def step_warning(
    system, formulation, controller, state, t, solver, step: float, *, backward: bool = False
) -> str | None:
    """What to warn of before a run with fixed steps: gains whose violations a step makes larger.

    The root, its factor and the step limit in words; `None` if no step makes it larger, or the
    method has no stability function. Backward in time what a controller or realizing forces damp
    grows, and no step is short enough.
    """
    solver, projection = parts_of(solver)
    if not (has_stability_function(solver) or is_multistep(solver)):
        return None
    result = _perturbation_matrices(system, formulation, controller, state, t)
    if backward:
        result = (result[0] if formulation.capabilities.enforces_constraints else None, None)
    # The projection leaves no violation for a step to make larger.
    known = [None if x is None else np.asarray(x) for x in result]
    known[0] = None if projection is not None else known[0]
    bits = tuple(None if x is None else (x.shape, x.tobytes()) for x in known)
    make = lambda: _of_matrices(known, solver, step)  # noqa: E731
    leaves, structure = jax.tree.flatten(solver)
    return _SAID.get((bits, structure, *leaves, step), solver, make)


# Gains stay the same from run to run more often than not.
_SAID = Memory(64)


def _of_matrices(matrices, solver, step: float) -> str | None:
    """The same from the matrices of constraints and of servo-constraints; `None` for none."""
    for what, H in zip(("constraint", "servo-constraint"), matrices, strict=True):
        roots = _roots(H)
        # Others grow by themselves, whatever the step.
        roots = roots[np.real(roots) < 0]
        if not roots.size:
            continue
        factors = amplification(solver, step * roots)
        if not (factors > 1 + _GROWING).any():
            continue
        i = int(np.argmax(factors))
        name = type(solver).__name__
        return (
            f"the step of {step:.4g} s is beyond the step limit of the gains: in the {what} "
            f"perturbation equations at the start, {name} multiplies the mode of the root "
            f"{root_text(roots[i], 4)} 1/s by {factors[i]:.4g} in each step. All modes shrink for "
            f"steps below {spectral_limit(roots, solver).limit:.4g} s: take a smaller "
            "dt, or lower gains."
        )
    return None


def _roots(H) -> np.ndarray:
    """Eigenvalues, part by part: with scalar or diagonal gains each constraint is one by itself.

    None of a matrix that is `None`, or that a law without a derivative at rest has.
    """
    if H is None or not np.isfinite(H).all():
        return np.zeros(0)
    matrix = np.asarray(H, np.float64)
    parts = connected_parts(np.stack(np.nonzero(matrix)), len(matrix))
    each = (np.linalg.eigvals(matrix[np.ix_(i, i)]) for i in parts)
    return np.concatenate([np.zeros(0), *each])  # none without constraints


@jit(options=BRIEFLY)
def _perturbation_matrices(system, formulation, controller, state, t):
    of_formulation = formulation.perturbation_matrix(system, t, state)
    servo = capabilities_of(controller).perturbation_matrix
    return of_formulation, servo(t, state.q, state.v, state.w)


def _has_error_estimate(solver: diffrax.AbstractRungeKutta) -> bool:
    tableaux = solver.tableau
    single = isinstance(tableaux, diffrax.ButcherTableau)
    parts = (tableaux,) if single else tableaux.tableaus
    return any(np.any(np.asarray(part.b_error)) for part in parts)


def _check_newton(solver, name: str) -> None:
    """An implicit method takes the tolerance of its iteration from the step controller, if any."""
    rtol = getattr(getattr(solver, "root_finder", None), "rtol", 0.0)
    if isinstance(solver, diffrax.AbstractImplicitSolver) and not is_number(rtol):
        raise ValueError(
            f"{name} with a fixed step has no tolerance for its Newton iteration; give one, "
            f"diffrax.{name}(root_finder=optimistix.Newton(rtol=1e-8, atol=1e-8)), or leave dt "
            "out and let it choose its step."
        )
