"""The step method of `simulate(solver="auto")`: explicit, unless a trial shows that it is slow.

An explicit method is taken where the fastest root of the linearized equations at the start lets it
make the run in few steps, or is no faster than the motion. Otherwise a method for stiff equations
makes the run on trial, in ever longer parts of it: it is taken where its steps cost a fraction of
those that the explicit one would need by the stability of its steps alone. These are a lower bound,
so that the choice is for the explicit method where they are near each other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import jit
from jaxdae.formulations.base import holding_rank
from jaxdae.simulation.linear_field import linear_field, LinearField, scaled
from jaxdae.simulation.plain import step_control
from jaxdae.simulation.problem import DEFAULT_TIMES, Method, Problem, Solution
from jaxdae.simulation.run import run
from jaxdae.solvers.grid import known_ends
from jaxdae.solvers.projected import parts_of, Projected
from jaxdae.solvers.rodas5p import Rodas5P
from jaxdae.stability.reach import reach
from jaxdae.stability.stability_functions import amplification
from jaxdae.systems.checks import constraint_counts
from jaxdae.tables import root_text

# What is taken where nothing is known, and for motions that are not stiff.
EXPLICIT = diffrax.Dopri8()
# Fewer steps of an explicit method take less time than a trial.
_FEW = 1000
# The motion is slower than the fastest root where it takes so many of its times.
_SLOW = 0.1
# An implicit method is taken where its steps cost less than this part of the explicit ones.
_PART = 1 / 3
# Each part of the run that is tried is so many times as long as the last one; parts that may fail,
# as transients are in them, before no other is tried.
_LONGER, _PATIENCE = 4.0, 3
# Evaluations of the equations in a step of the explicit method, and of the other, beside those of
# its Jacobian, one for each state; and what projection on the constraints adds.
_EXPLICIT_COST, _IMPLICIT_COST, _PROJECTION_COST = 12.0, 9.0, 6.0
# Why a trial spoke against a method for stiff equations, in words that `spoke_against` finds.
_DEAR, _FAILED = ", but a method for stiff equations would not cost less", "did not reach t ="
# A fixed step multiplies no mode that decays by more than this.
_GROWING = 1e-3
# Rows of a trial at which the vector field is linearized.
_ROWS = 8


class Choice(NamedTuple):
    """A step method, and why it was taken.

    Args:
        solver: it.
        why: in words.
    """

    solver: diffrax.AbstractSolver
    why: str


def choose(
    complete: Callable[[Any], tuple[Problem, Method]], known: Callable[[Problem], bool]
) -> Choice:
    """The step method of a run.

    Args:
        complete: from a step method to the run by it, its arguments checked and completed; raises
            `ValueError` where the two do not fit.
        known: whether the numbers of a problem are known, so that runs can be tried.

    Raises:
        ValueError: as `complete` does for an explicit method.
    """
    problem, method = complete(EXPLICIT)
    if not known(problem):
        return Choice(
            EXPLICIT,
            "inside a JAX transformation no numbers are known, of which another choice could be "
            "made",
        )
    if problem.times.grid is not None:
        return _for_fixed_steps(problem)
    tolerance = _tolerance(problem, method)
    if tolerance is None:
        return Choice(EXPLICIT, "the tolerance of the steps is not known")
    start = _at_start(problem)
    if start is None:
        return Choice(EXPLICIT, "the equations have no derivatives at the start")
    limited = _steps(problem, start)
    fastest, duration = complex(start.fastest[0]), _duration(problem)
    if limited < 10:
        return Choice(EXPLICIT, f"stability asks {_name(EXPLICIT)} for no more than ten steps")
    asks = (
        f"the fastest root {root_text(fastest, 4)} 1/s at the start asks {_name(EXPLICIT)} for "
        f"about {limited:.3g} steps by its stability"
    )
    if limited < _FEW:
        return Choice(EXPLICIT, f"{asks}, which are few")
    scale = tolerance * (1 + np.abs(start.states))
    if not scaled(start, np.abs(start.fastest)).is_slow(scale, _SLOW).all():
        return Choice(EXPLICIT, f"{asks}, but is no faster than the motion")
    solver, cost = _implicit(problem)
    found, words = _tried(*complete(solver), cost, first=duration * _FEW / limited)
    return Choice(solver if found else EXPLICIT, f"{asks}{words}")


def spoke_against(why: str | None) -> bool:
    """Whether a trial spoke against methods for stiff equations, by what a choice says of it."""
    return why is not None and (_DEAR in why or _FAILED in why)


def _duration(problem: Problem) -> float:
    return abs(float(problem.times.end - problem.times.start))


def _tolerance(problem: Problem, method: Method) -> float | None:
    control = known_ends(step_control(method.stepsize_controller, problem.times)).controller
    control = getattr(control, "controller", control)
    rtol = getattr(control, "rtol", None)
    return None if rtol is None else float(np.max(np.asarray(jax.tree.leaves(rtol)[0])))


def _name(solver) -> str:
    return type(parts_of(solver).method).__name__


def _at_start(problem: Problem) -> LinearField | None:
    """The vector field at the start."""
    system, formulation, controller, state, times, *_ = problem
    formulation = holding_rank(formulation, system, jnp.asarray(times.start), state)
    y = formulation.init(system, jnp.asarray(times.start), state)
    rows = jax.tree.map(lambda x: jnp.asarray(x)[None], (times.start, y))
    return linear_field((system, formulation, controller), *rows)


def _steps(problem: Problem, field: LinearField) -> float:
    """About how many steps stability asks of the explicit method, from rows along the run."""
    # Backward in time what decays grows.
    sign = -1.0 if problem.times.end < problem.times.start else 1.0
    fastest = sign * field.fastest
    grows = np.real(fastest) > 1e-6 * np.abs(fastest)
    rates = np.where(grows, 0.0, np.abs(fastest) / reach(EXPLICIT, fastest))
    return _duration(problem) * float(rates.mean())


def _for_fixed_steps(problem: Problem) -> Choice:
    """An explicit method, unless a step of the given length lets something grow that decays."""
    start = _at_start(problem)
    if start is None:
        return Choice(EXPLICIT, "the equations have no derivatives at the start")
    sign = -1.0 if problem.times.end < problem.times.start else 1.0
    roots = sign * np.linalg.eigvals(start.jacobians[0])
    roots = roots[np.real(roots) < -1e-6 * np.abs(roots)]
    step = float(np.abs(np.diff(problem.times.grid)).max())
    factors = amplification(EXPLICIT, step * roots)
    if not (factors > 1 + _GROWING).any():
        return Choice(EXPLICIT, f"what decays at the start does so in steps of {step:.4g} s")
    worst = roots[np.argmax(factors)]
    return Choice(
        Rodas5P(),
        f"steps of {step:.4g} s are beyond the stability of {_name(EXPLICIT)} for the root "
        f"{root_text(worst, 4)} 1/s at the start",
    )


def _implicit(problem: Problem) -> tuple[diffrax.AbstractSolver, float]:
    """A method for stiff equations, and evaluations in a step of it, its Jacobian among them."""
    cost = _IMPLICIT_COST + sum(x.size for x in jax.tree.leaves(problem.state))
    offered = problem.formulation.capabilities
    bare = offered.plain_state and offered.stabilization is None and offered.weight is None
    # Of constraints that nothing stabilizes long steps leave more than short ones.
    constrained = sum(constraint_counts(problem.system, problem.state)) > 0
    if bare and constrained and offered.enforces_constraints:
        return Projected(Rodas5P()), cost + _PROJECTION_COST
    return Rodas5P(), cost


def _tried(problem: Problem, method: Method, cost: float, *, first: float) -> tuple[bool, str]:
    """Whether a method is to be taken, and why, or why not, in words.

    Args:
        problem: the run.
        method: of it.
        cost: evaluations in one of its steps.
        first: the part of the run that is tried first [s].
    """
    duration = _duration(problem)
    sign = np.sign(problem.times.end - problem.times.start)
    part, tries = min(first, duration), 0
    while True:
        last = part >= duration
        end = problem.times.end if last else problem.times.start + sign * part
        found = _on_trial(problem, method, end)
        if found is None:
            return False, f", but {_name(method.solver)} {_FAILED} {end:.4g} s on trial"
        steps, limited = found
        saved = steps * cost <= _PART * limited * _EXPLICIT_COST
        tries += 1
        if last or (tries >= _PATIENCE and not saved):
            break
        part = min(_LONGER * part, duration)
    if not saved:
        return False, _DEAR
    return True, (
        f"; {_name(method.solver)} made the run on trial in {steps}, where stability along it asks "
        f"{_name(EXPLICIT)} for {limited:.3g}"
    )


def _on_trial(problem: Problem, method: Method, end) -> tuple[int, float] | None:
    """Steps of a run up to a time, and those that stability asks of the explicit method.

    `None` where it does not reach its end.
    """
    times = problem.times
    end = np.asarray(end, times.start.dtype)
    saved = np.linspace(times.start, end, DEFAULT_TIMES, dtype=times.start.dtype)
    problem = problem._replace(times=times._replace(end=end, saved=saved))
    method = method._replace(saveat=None, picked=None, only_end=False)
    solution = _made(problem, method)
    if not bool(diffrax.is_okay(solution.result)):
        return None
    rows = np.linspace(0, DEFAULT_TIMES - 1, 2 * _ROWS + 1).round().astype(int)[1::2]
    ys = jax.tree.map(lambda x: x[rows], solution.saved)
    parts = problem.system, solution.formulation, problem.controller
    field = linear_field(parts, saved[rows], ys)
    if field is None:
        return None
    return int(solution.stats["num_steps"]), _steps(problem, field)


@jit
def _made(problem: Problem, method: Method) -> Solution:
    return run(problem, method)
