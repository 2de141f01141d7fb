"""One entry point for simulation, over `diffrax.diffeqsolve` and native kernels."""

from collections.abc import Callable

import diffrax
import equinox as eqx

from jaxdae.compiled import kinds
from jaxdae.control.base import AbstractDynamicController
from jaxdae.formulations import AbstractFormulation
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.prepare import prepare
from jaxdae.simulation.problem import MAX_STEPS, START_TOLERANCE
from jaxdae.simulation.review import reviewed
from jaxdae.simulation.run import run
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.systems import State, System

_compiled = eqx.filter_jit(run)


def simulate(
    system: System,
    formulation: AbstractFormulation,
    state: State,
    *,
    t0=0.0,
    t1,
    dt=None,
    solver: diffrax.AbstractSolver | None = None,
    stepsize_controller: diffrax.AbstractStepSizeController | None = None,
    saveat: diffrax.SaveAt | None = None,
    controller: Callable | AbstractDynamicController | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    backend: Backend = "auto",
    progress: bool | diffrax.AbstractProgressMeter = False,
    throw: bool = True,
    work: bool = False,
    start_tolerance: float | None = START_TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Trajectory:
    """Simulate a constrained system.

    The precision is that of `state`. Called again with other numbers of the same kind and shape
    (parameters, gains, start, times with the same number of steps or saved times) it compiles
    nothing. Integers that count something, settings of solver and step controller, and
    functions defined anew are compiled anew: write controllers as `eqx.Module`, or define them
    once.

    Args:
        system: what moves.
        formulation: how its constraints are enforced, for example `Multipliers(Baumgarte(…))`.
        state: start, `State(q, v, w)`; see `consistent_state`.
        t0: start time [s].
        t1: end time [s], before `t0` for a run backward in time. Stabilizations act in the
            direction of integration, with the gains of a run forward: residuals decay toward
            `t1`. What damps the motion itself lets deviations grow backward in time
            (`Trajectory.backward_growth`).
        dt: step [s]. With it, and without a `stepsize_controller`, the time is divided into equal
            steps, none longer than `dt`.
        solver: any diffrax solver of ordinary differential equations, or `jaxdae.solvers.RK4`;
            by default `diffrax.Dopri8()`. `jaxdae.solvers.Projected(solver)` takes every step, and
            every saved state, onto the constraints.
        stepsize_controller: any of diffrax's; by default `PIDController` with `rtol = atol = 1e-8`
            in float64, `1e-5` in float32.
        saveat: any `diffrax.SaveAt`; by default every step of a fixed-step run (when `t0`, `t1`
            and `dt` are plain numbers), else 201 equally spaced times. A `fn(t, y, args)` in it
            receives the `State` as `y`. Times between steps are interpolated to the solver's order
            of dense output, without projection on the constraints unless the solver is
            `Projected`. `SaveAt(steps=True)` of an
            adaptive run has `max_steps` rows, most of them unused: give a smaller `max_steps`.
        controller: `u = controller(t, q, v, w)`; any callable, an `eqx.Module` if it has weights.
            An `AbstractDynamicController` keeps its internal state behind the actuators' in `w`.
        adjoint: any of diffrax's but `BacksolveAdjoint`; by default `RecursiveCheckpointAdjoint()`
            (reverse mode, many parameters). Give `diffrax.ForwardMode()` for forward mode (few), or
            `diffrax.DirectAdjoint()` for both and for second derivatives. It decides what the plain
            backend can do; the native one has both modes to every order whatever is given. Its
            gradients of adaptive runs keep their steps in memory, and are NaN where `max_steps` is
            too large for it.
        backend: `"plain"` for diffrax compiled by XLA; `"native"` for a kernel of machine code that
            integrates all of the run: on processors one lane of a vector register for each batch
            member, on GPUs by NVIDIA one thread. `"auto"` takes the native one where it can serve.
            It needs llvmlite, which loads here, an explicit Runge-Kutta method, fixed steps or
            diffrax's `PIDController`, and saved states; on a GPU compute capability 7.0 and a
            driver of CUDA 12.0 at least, and no toolkit. `Trajectory.backend` says what was used
            and why. Both give the same numbers to round-off. The plain program makes the
            derivatives of native runs by times, and others that no kernel has; `"native"` refuses
            them.
        progress: `True` for a progress bar, or one of diffrax's progress meters.
        throw: raise an error when the run fails: a `SimulationError` that says where and why, or,
            inside a JAX transformation, the runtime error of the compiled program. Otherwise the
            failure is a value: `success` is false, unreached rows are marked; under `vmap` for each
            batch member.
        work: integrate also the work of forces, dissipation and constraints (`Trajectory.work`).
        start_tolerance: largest constraint residual of the start, relative to `1 + max |q|, |v|`;
            `None` allows any (stabilization from a start off the constraints).
        max_steps: largest number of steps.

    Returns:
        `Trajectory`.

    Warns:
        RuntimeWarning: when fixed steps are beyond the step limit of the gains (see
            `jaxdae.step_limit`), or a run that reached its end came close to where the formulation
            or the controller ends, had constraints that cannot all be satisfied, passed
            near-singular positions, or has an energy balance that is off by more than its
            tolerance explains; once where this machine keeps `"auto"` from
            the native backend: no llvmlite, a driver or GPU that is too old.

    Raises:
        SimulationError: when the run fails and `throw` is true: what failed, when, the state of the
            constraints there, and what to try.
        ValueError: before any work, for shapes, gains, a start or a combination that do not fit.
        TypeError: before any work, for an argument of the wrong kind.
        BackendError: when the native backend is asked for and cannot serve.
    """
    problem, method = prepare(
        system, formulation, state, t0=t0, t1=t1, dt=dt, solver=solver,
        stepsize_controller=stepsize_controller, saveat=saveat, controller=controller,
        adjoint=adjoint, backend=backend, progress=progress, throw=throw, work=work,
        start_tolerance=start_tolerance, max_steps=max_steps,
    )  # fmt: skip
    trajectory = _compiled(problem, method, kinds(problem.parts))
    return reviewed(problem, method, trajectory, throw=throw)
