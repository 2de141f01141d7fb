"""Servo-constraints: program constraints enforced by controls through actuators of any order."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Float

from jaxdae.compiled import jit
from jaxdae.control.base import AbstractController, ControllerCapabilities
from jaxdae.control.plant import decouple, Decoupling, Plant, Program
from jaxdae.control.relative_degree import (
    check_program,
    constraint_names,
    describe_place,
    relative_degree,
)
from jaxdae.control.stabilizers import check_stabilizer, companion_matrix, ServoStabilizer
from jaxdae.formulations import AbstractFormulation
from jaxdae.formulations.gains import check_positive, check_size, Gain, metric_factor
from jaxdae.systems import State, System
from jaxdae.systems.precision import in_dtype

_REMEDY = (
    "Keep the program away from that configuration, or use more controls than constraints so that "
    "others can take over."
)


# Of a failed run: with such a ratio the controls are tenfold what they are elsewhere.
_NEARLY_SINGULAR = 0.1


class Singularity(NamedTuple):
    """Where the decoupling matrix comes nearest to losing rank along a run.

    Args:
        t: time [s].
        state: the state there.
        least: least singular value there, rows scaled to their size at the samples.
        crossed: whether the determinant changed its sign there (as many controls as constraints).
        message: all of it in words.
    """

    t: float
    state: State
    least: float
    crossed: bool
    message: str


class ServoConstraint(AbstractController):
    r"""Controller that enforces program constraints `f(t, q, v) = 0` by their own dynamics.

    Each constraint is differentiated along the flow of its plant until the controls appear, in the
    derivative of order `rho_i` (its relative degree), and the controls solve

        g u = Phi(t, q, v, w, y) - drift,       y_i^(rho_i) = drift_i + (g u)_i

    [Mukharlyamov2019, eqs. 2.9, 3.4], so that residuals obey the constraint perturbation equations
    `y_i^(rho_i) = Phi_i`. With as many controls as constraints that is one `u`; with more, the one
    nearest to `free` in the metric `weight`,

        u = u0 + W^-1 g^T (g W^-1 g^T)^-1 (Phi - drift - g u0),

    which is the least-norm solution plus the null-space part of `u0` [Mukharlyamov2019, eqs. 2.10,
    2.11]. Where `g` loses rank, to half of the digits, `u` is NaN: an adaptive run stops there, and
    `singularity` says where.

    The plant is the controller's own model. It may differ from the system that is simulated; to
    differentiate by a parameter of both, build both from it.

    Args:
        program: residuals `(t, q, v) -> (r,)`; position constraints ignore `v`.
        stabilizer: `Phi`: `HurwitzGains`, `CoupledGains`, or any callable of `(t, q, v, w, y)`.
        system: model of the plant; its `force` and `actuator_rate` take `u` of shape `(s,)`.
        formulation: how the plant's own constraints are enforced.
        sample: states at which the relative degree is found and checked: one, or a batch with a
            leading axis. Required.
        t: times of the samples [s].
        controls: number `s` of controls; by default as many as constraints.
        degrees: relative degrees, if known: nothing is then found or checked by numbers, and the
            servo-constraint can be built inside `jit` and `grad`.
        weight: `W`, cost of the controls: positive scalar, diagonal `(s,)`, or SPD matrix `(s, s)`.
        free: `u0(t, q, v, w) -> (s,)`, what to do with superfluous controls; by default zero.
        names: names of the program constraints, for messages.

    Raises:
        ValueError: when the program cannot be enforced (see `relative_degree`), or shapes and
            gains do not fit.
    """

    plant: Plant
    program: Program
    stabilizer: ServoStabilizer
    weight: Gain | None
    free: Callable | None
    scale: Float[Array, " r"]
    degrees: tuple[int, ...] = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(
        self,
        program: Program,
        stabilizer: ServoStabilizer,
        *,
        system: System,
        formulation: AbstractFormulation,
        sample: State,
        t: ArrayLike = 0.0,
        controls: int | None = None,
        degrees: Sequence[int] | None = None,
        weight: Gain | None = None,
        free: Callable | None = None,
        names: Sequence[str] = (),
    ):
        one = sample if sample.q.ndim == 1 else jax.tree.map(lambda x: x[0], sample)
        time = jnp.ravel(jnp.asarray(t, one.q.dtype))[0]
        shape = eqx.filter_eval_shape(program, time, one.q, one.v)
        controls = int(shape.size) if controls is None else controls
        self.plant = Plant(system, formulation, controls)
        r = check_program(self.plant, program, time, one)
        self.names = constraint_names(names, r)
        _check_options(weight, free, controls, r, time, one)
        self.program, self.stabilizer = program, stabilizer
        self.weight, self.free = weight, free
        if degrees is None:
            result = relative_degree(
                system, formulation, program, sample, t, controls=controls, names=self.names
            )
            self.degrees = result.degrees
            rows = np.linalg.norm(np.asarray(result.matrices), axis=2)
            self.scale = jnp.asarray(np.median(rows, axis=0), one.q.dtype)
        else:
            self.degrees = _check_degrees(degrees, r)
            matrix = decouple(self.plant, program, self.degrees, time, one).matrix
            self.scale = jax.lax.stop_gradient(jnp.linalg.norm(matrix, axis=1))
        check_stabilizer(stabilizer, self.degrees, time, one)

    @property
    def capabilities(self):
        return ControllerCapabilities(
            self.perturbation_matrix, self._of_stop, self._of_run, self.program, self.names
        )

    def __call__(self, t, q, v, w) -> Float[Array, " s"]:
        """The controls, shape `(s,)`; NaN where the decoupling matrix is singular."""
        d = self.decoupling(t, q, v, w)
        wanted = self.stabilizer(t, q, v, w, d.y)
        u0 = None if self.free is None else self.free(t, q, v, w)
        rhs = wanted - d.drift - (0.0 if u0 is None else d.matrix @ u0)
        scale = self.scale.astype(q.dtype)
        correction = self._least_norm(d.matrix / scale[:, None], rhs / scale)
        return correction if u0 is None else u0 + correction

    def decoupling(self, t, q, v, w) -> Decoupling:
        """Residuals with their derivatives, drift and decoupling matrix at a state."""
        t = jnp.asarray(t, q.dtype)
        return decouple(self.plant, self.program, self.degrees, t, State(q, v, w))

    def perturbations(self, t, q, v, w) -> tuple[Float[Array, " rho"], ...]:
        """For each constraint `(f_i, f_i', ..., f_i^(rho_i - 1))`."""
        return self.decoupling(t, q, v, w).y

    def residuals(self, t, q, v, w) -> Float[Array, " total"]:
        """Program constraints and their derivatives below the relative degree, as one vector.

        All vanish at a consistent start: `consistent_state(system, q, v, w=w,
        program=servo.residuals)` finds one [Mukharlyamov2019, eq. 2.5].
        """
        return jnp.concatenate(self.perturbations(t, q, v, w))

    def perturbation_matrix(self, t, q, v, w) -> Float[Array, "total total"]:
        """`H` of the constraint perturbation equations `dy/dt = H y`; what limits the step."""
        t = jnp.asarray(t, q.dtype)
        return companion_matrix(self.stabilizer, self.degrees, t, State(q, v, w))

    def singularity(self, trajectory: Any) -> Singularity:
        """Where along a run the decoupling matrix is nearest to singular. Not for use under `jit`.

        Args:
            trajectory: one run, failed or not (simulated with `throw=False`).

        Returns:
            `Singularity`: the first change of sign of the determinant, else the least singular
            value.
        """
        keep = np.isfinite(np.asarray(trajectory.ts))
        ts = jnp.asarray(np.asarray(trajectory.ts)[keep])
        states = jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[keep]), trajectory.states)
        if not bool(trajectory.success) and np.isfinite(trajectory.final_time):
            # A failed adaptive run ends between the rows it saved.
            last = (jnp.asarray(trajectory.final_time)[None], _rows(trajectory.last_state))
            ts, states = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), (ts, states), last)
        servo = in_dtype(self, ts.dtype)
        return _describe(self, ts, states, np.asarray(_scaled_matrices(servo, ts, states)))

    def _of_stop(self, trajectory: Any) -> str | None:
        """Why a failed run ended, where the decoupling matrix is the reason; else `None`."""
        result = self.singularity(trajectory)
        return result.message if result.crossed or result.least < _NEARLY_SINGULAR else None

    def _of_run(self, trajectory: Any) -> str | None:
        """What to warn of after a run that stepped over a singularity; else `None`."""
        result = self.singularity(trajectory)
        return f"the run stepped over a singularity: {result.message}" if result.crossed else None

    def _least_norm(self, matrix, rhs):
        """Solution of `matrix u = rhs` of least weighted norm, by a QR factorization."""
        factor = metric_factor(self.weight, matrix.shape[1], matrix.dtype)
        scaled = matrix.T if factor is None else solve_triangular(factor, matrix.T, lower=True)
        basis, upper = jnp.linalg.qr(scaled)
        least = float(jnp.finfo(matrix.dtype).eps) ** 0.5
        # The reference is a sample's matrix, whose rows have unit length after scaling.
        reference = 1.0 if factor is None else 1.0 / jnp.max(jnp.diagonal(factor))
        regular = jnp.min(jnp.abs(jnp.diagonal(upper))) > least * reference
        safe = jnp.where(regular, upper, jnp.eye(upper.shape[0], dtype=upper.dtype))
        x = basis @ solve_triangular(safe, rhs, trans=1)
        x = jnp.where(regular, x, jnp.nan)
        return x if factor is None else solve_triangular(factor, x, lower=True, trans=1)


@jit
def _scaled_matrices(servo: ServoConstraint, ts, states: State):
    def at(t, s):
        return servo.decoupling(t, s.q, s.v, s.w).matrix / servo.scale[:, None]

    return jax.vmap(at)(ts, states)


def _describe(servo, ts, states, matrices) -> Singularity:
    matrices = np.nan_to_num(matrices)
    least = np.linalg.svd(matrices, compute_uv=False)[:, -1]
    j, crossed = int(np.argmin(least)), False
    if matrices.shape[1] == matrices.shape[2]:
        sign = np.sign(np.linalg.det(matrices))
        changes = np.flatnonzero(sign[1:] != sign[:-1])
        if changes.size:
            first = changes[0]
            j, crossed = int(first + np.argmin(least[first : first + 2])), True
    state = jax.tree.map(lambda x: x[j], states)
    place, names = describe_place(ts[j], state), ", ".join(map(repr, servo.names))
    if crossed:
        what = f"changes the sign of its determinant next to {place}, between two saved times"
    else:
        what = (
            f"is nearest to singular at {place}: least singular value {least[j]:.3g} of its size "
            f"at the samples (largest along the run {least.max():.3g})"
        )
    message = f"the decoupling matrix {what}; constraints {names}. {_REMEDY}"
    return Singularity(float(ts[j]), state, float(least[j]), crossed, message)


def _rows(state: State) -> State:
    return jax.tree.map(lambda x: jnp.asarray(x)[None], state)


def _check_degrees(degrees: Sequence[int], r: int) -> tuple[int, ...]:
    degrees = tuple(int(rho) for rho in degrees)
    if len(degrees) != r or min(degrees) < 1:
        raise ValueError(
            f"degrees = {degrees} must be one positive number for each of {r} program constraints."
        )
    return degrees


def _check_options(weight, free, controls: int, r: int, t, state: State) -> None:
    if weight is not None:
        check_positive("weight", weight)
        check_size("weight", weight, controls, "controls")
    if (weight is not None or free is not None) and controls == r:
        raise ValueError(
            f"{r} controls for {r} program constraints leave nothing free; weight and free are for "
            "more controls than constraints."
        )
    if free is not None:
        shape = eqx.filter_eval_shape(free, t, state.q, state.v, state.w).shape
        if shape != (controls,):
            raise ValueError(f"free returned shape {shape}; there are {controls} controls.")
