r"""What there is to say of the steps of a run.

Some are short for the sake of stability, not of accuracy, and some too long to be stable; of others
the iterations did not converge.

At a row of a run the linearized vector field has the fastest root `lambda`, and an explicit method
makes stable steps up to `|h lambda| = z`, the reach of its stability region in that direction. The
motion has as much of the fastest modes as `f` still has after it was multiplied by `J / |lambda|`
again and again, `k` times: a mode `x` times as fast is left with the part `x^(k+1)`. Where that is
no more than what errors within the tolerance would leave, the steps resolve what is not there.
"""

import math
from typing import Any, NamedTuple

import diffrax
import jax
import numpy as np

from jaxdae.diagnosis.findings import Finding
from jaxdae.formulations import Multipliers
from jaxdae.simulation.linear_field import linear_field, Scaled, scaled
from jaxdae.solvers.constrained_term import enforces_constraints
from jaxdae.solvers.projected import parts_of
from jaxdae.stability.reach import reach
from jaxdae.stability.stability_functions import (
    amplification,
    has_stability_function,
    is_multistep,
    linear_stages,
)  # fmt: skip
from jaxdae.tables import root_text

# Fewer steps take moments, whatever keeps them short.
FEWEST_STEPS = 4000
# Rows at which the vector field is linearized.
_ROWS = 8
# Part of the steps that stability asks for above which they are limited by it: error estimates of
# modes that steps hardly resolve shorten them to some fraction of the limit.
_SHARE = 0.1
# Fast modes within so many tolerances are no part of the motion.
_NOTHING = 30.0
# A mode of the size of the state that is so slow that its own error at the steps that were made is
# below this part of the tolerance does not keep them short; nor does one slower than the other.
_EXACT, _SLOW = 0.01, 0.1
# Below this damping ratio vibrations take long to die away, and count by their own amplitude.
_LIGHT = 0.02
# The energy's change in all rows over that in the first half of them, above which a run is asked
# whether its steps are stable: errors that grew less are no part of what is to be seen.
_GROWN = 10.0
# Rows at which the vector field is linearized, of those before the energy grows.
_EARLY_ROWS = 4
# Steps whose iterations do not converge: some are made at a first step that is too long, or
# beside a singular position that is passed.
_FEWEST_UNSOLVED, _UNSOLVED_SHARE = 10, 0.1


class Stiffness(NamedTuple):
    """What stability asks of the steps of a run, at the row that asks for most.

    Args:
        root: the fastest root of the linearized vector field there [1/s].
        time: when [s].
        product: the run's mean step times the size of that root.
        reach: largest product of stable steps in the direction of that root.
        share: steps that stability asks for where the motion has nothing of the fastest modes, over
            those that were made.
    """

    root: complex
    time: float
    product: float
    reach: float
    share: float


def is_explicit(solver) -> bool:
    """Whether a solver, or what it wraps, is an explicit method with a known stability region."""
    method = parts_of(solver).method
    if enforces_constraints(method) or not has_stability_function(method):
        return False
    return not np.triu(linear_stages(method)[0]).any()


def stiffness(parts, solver, examined: Any, accepted: int) -> Stiffness | None:
    """What stability asks of the adaptive steps of an explicit method; `None` without finite rows.

    Args:
        parts: `(system, formulation, controller)`.
        solver: see `is_explicit`.
        examined: rows of the run, with its tolerance.
        accepted: number of steps.
    """
    count = len(examined.ts)
    rows = np.unique(np.linspace(0, count - 1, 2 * _ROWS + 1).round().astype(int)[1::2])
    ts, ys = np.asarray(examined.ts)[rows], jax.tree.map(lambda x: np.asarray(x)[rows], examined.ys)
    found = linear_field(parts, ts, ys)
    duration = abs(float(examined.ts[-1] - examined.ts[0]))
    if found is None or duration == 0:
        return None
    # Backward in time what decays grows.
    sign = 1 if examined.ts[-1] > examined.ts[0] else -1
    fastest = sign * found.fastest
    sizes = np.abs(fastest)
    if not sizes.all():
        return None
    limits = reach(parts_of(solver).method, fastest)
    tolerance, mean = examined.tolerance / 2, duration / accepted
    powers = _powers(parts_of(solver).method, mean * float(sizes.max()), tolerance)
    damped = np.abs(np.real(fastest)) > _LIGHT * sizes
    scale = tolerance * (1 + np.abs(found.states))
    idle = _are_idle(scaled(found, sizes), scale, damped, powers)
    # Growing modes are part of the motion.
    counted = idle & (np.real(fastest) <= 1e-6 * sizes)
    share = duration * float(np.where(counted, sizes / limits, 0.0).mean()) / accepted
    i = int(np.argmax(np.where(counted, sizes / limits, -1.0)))
    at, product = float(found.ts[i]), float(mean * sizes[i])
    return Stiffness(complex(sign * fastest[i]), at, product, float(limits[i]), share)


def _powers(solver, product: float, tolerance: float) -> int:
    """How often `f` is multiplied by the Jacobian, so that slow modes do not count as fast ones.

    A mode `x` times as fast as the fastest has the error `(x h lambda)^p / p!` of a step.
    """
    order = solver.error_order(diffrax.ODETerm(lambda t, y, args: y))  # noqa: ARG005
    order = int(2 if order is None else order)
    slow = (_EXACT * tolerance * math.factorial(order)) ** (1 / order) / product
    left = math.log(min(_NOTHING * tolerance, 0.1)) / math.log(min(slow, _SLOW))
    return max(1, math.floor(left) - 1)


def _are_idle(field: Scaled, scale, damped, powers: int) -> np.ndarray:
    """Whether a motion has no more of the fastest modes than errors within the tolerance make.

    Args:
        field: in units of its fastest roots.
        scale: tolerances of states, shape `(rows, states)`.
        damped: whether the fastest mode is, shape `(rows,)`.
        powers: see `_powers`.

    Returns:
        Shape `(rows,)`.
    """
    left = field.ahead
    for _ in range(powers):
        left = field.times(left)
    # A damped mode forgets errors of coordinates, which it makes velocities of meanwhile.
    matrix = field.matrix[:, :-1, :-1]
    errors = np.abs(np.linalg.matrix_power(matrix, powers + 1)) @ scale[..., None]
    made = np.where(damped, (errors[..., 0] / scale).max(axis=1), 1.0)
    nothing = field.largest(left, scale) <= _NOTHING * made
    return nothing & field.is_slow(scale, _SLOW)


def limited_by_stability(problem, method, run, examined: Any) -> Finding | None:
    """What there is to say of adaptive steps of an explicit method that are short for stability.

    Args:
        problem: what was simulated.
        method: how.
        run: the `Trajectory`.
        examined: rows that it reached.
    """
    if examined.steps < FEWEST_STEPS or examined.tolerance is None or len(examined.ts) < 2:
        return None
    if not is_explicit(method.solver):
        return None
    found = stiffness(problem.parts, method.solver, examined, int(run.stats["num_accepted_steps"]))
    if found is None or found.share < _SHARE:
        return None
    rejected = int(run.stats["num_rejected_steps"])
    message = (
        f"stability and not accuracy kept the steps short: there were {examined.steps} of them, "
        f"{rejected} rejected, and the mean step times the fastest root "
        f"{root_text(found.root, 4)} 1/s of the linearized equations, at t = {found.time:.4g} s, "
        f"is {found.product:.3g}, where {_name(method.solver)} is stable up to "
        f"{found.reach:.3g}; the motion itself has nothing that fast above its tolerance. "
        f"{_remedy(problem.formulation, method, run.why_solver)}"
    )
    return Finding(message, found.product, found.time, subject="effort")


def unstable_steps(problem, method, examined: Any, energy) -> Finding | None:
    """What there is to say of fixed steps that are too long for an explicit method to be stable.

    Their errors grow from step to step, and end in NaN where they have time for it. Before that the
    numbers are finite and mean nothing.

    Args:
        problem: what was simulated.
        method: how.
        examined: rows that the run reached.
        energy: there [J].
    """
    if examined.tolerance is not None or len(examined.ts) < 3:
        return None
    change, grid = np.abs(energy - energy[0]), problem.times.grid
    half = change[: (len(change) + 1) // 2].max()
    if not change.max() > _GROWN * half:
        return None
    if not (is_explicit(method.solver) or is_multistep(method.solver)):
        return None
    early = np.flatnonzero(np.maximum.accumulate(change) <= half)
    rows = np.unique(np.linspace(0, early[-1], _EARLY_ROWS).round().astype(int))
    ts, ys = np.asarray(examined.ts)[rows], jax.tree.map(lambda x: np.asarray(x)[rows], examined.ys)
    found = linear_field(problem.parts, ts, ys)
    if found is None:
        return None
    steps = np.array([examined.ts[-1] - examined.ts[0]]) / examined.steps
    steps = steps if grid is None else np.diff(np.asarray(grid))
    step = float(steps[np.argmax(np.abs(steps))])
    # Backward in time what decays grows, and growing modes are part of the motion.
    roots = found.fastest
    decays = np.real(np.sign(step) * roots) <= 1e-6 * np.abs(roots)
    method = parts_of(method.solver).method
    limits = reach(method, np.sign(step) * roots)
    share = np.where(decays, np.abs(step * roots) / limits, 0.0)
    if not (share > 1).any():
        return None
    i = int(np.argmax(share > 1))  # the first: behind it errors may be what is linearized
    product, at, name = float(abs(step * roots[i])), float(found.ts[i]), type(method).__name__
    grows = float(amplification(method, np.asarray(step * roots[i])))
    message = (
        f"the steps of {abs(step):.3g} s are too long for {name} to be stable, and the numbers of "
        f"this run mean nothing: step times the fastest root {root_text(complex(roots[i]), 4)} 1/s "
        f"of the linearized equations, at t = {at:.4g} s, is {product:.3g}, where {name} is stable "
        f"up to {float(limits[i]):.3g}; errors grow by {grows:.3g} in each step, and the energy "
        f"has changed by {float(change.max()):.3g} J, in the first half of the rows by "
        f"{float(half):.3g} J. Take steps below {abs(step) / share[i]:.2g} s, adaptive ones (leave "
        "dt out), or a solver for stiff equations, solver=jaxdae.solvers.Rodas5P()."
    )
    return Finding(message, product, at)


def unsolved_steps(stats: dict[str, Any], solver, *, failed: bool = False) -> Finding | None:
    """What there is to say of steps whose iterations did not converge, where they were many.

    Args:
        stats: of a run; without counts, such as those of a method that iterates nothing, there is
            nothing to say.
        solver: the method.
        failed: whether the run ended early: then a share of them is enough, however few.
    """
    if "num_unsolved_steps" not in stats:
        return None
    unsolved, steps = (int(np.asarray(stats[f"num_{x}steps"])) for x in ("unsolved_", ""))
    if unsolved < (1 if failed else _FEWEST_UNSOLVED) or unsolved < _UNSOLVED_SHARE * steps:
        return None
    mean = int(np.asarray(stats["num_iterations"])) / max(steps, 1)
    message = (
        f"Newton's iteration of {_name(solver)} did not converge in {unsolved} of {steps} steps, "
        f"which were tried again with shorter ones (num_unsolved_steps in its stats; {mean:.3g} "
        "iterations a step). Equations that jump within a step do this, such as dry friction or a "
        "controller that switches: give the times of jumps, "
        "diffrax.ClipStepSizeController(…, jump_ts=…), make them smooth, or declare an event; so "
        "does a first step that is too long (give dt beside a stepsize_controller), and a position "
        "in which constraints lose rank."
    )
    return Finding(message, float(unsolved))


def _name(solver) -> str:
    return type(parts_of(solver).method).__name__


def _remedy(formulation, method, why: str | None) -> str:
    from jaxdae.simulation.automatic import spoke_against  # with the methods that it tries

    gains = "" if formulation.capabilities.stabilization is None else "lower the gains, "
    if spoke_against(why):
        return (
            "A trial has spoken against solvers for stiff equations (why_solver of the run): "
            f"{gains}make what is fast in its forces slower, or allow a larger error, "
            "stepsize_controller=diffrax.PIDController(rtol=1e-5, atol=1e-5)."
        )
    keeps = isinstance(formulation, Multipliers) and formulation.stabilization is None
    other = " or RadauIIA()" if keeps and not method.work else ""
    gains = f", or {gains[:-2]}" if gains else ""
    return (
        f"Take a solver for stiff equations, solver=jaxdae.solvers.Rodas5P(){other}, whose steps "
        f"are as long as accuracy allows{gains}."
    )
