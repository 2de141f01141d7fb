r"""Gibbs-Appell equations in quasi-velocities, the constraint functions among them.

    pi' = F(q, t) v + f0(q, t),        dU/d(pi'') = Pi + R

with the energy of accelerations `U`, and the last `m+r` quasi-velocities the constraint functions
`psi' = (dphi/dt, g)` [Matyukhin1999, eqs. 2.1-2.5].
"""

from collections.abc import Callable

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import where_known
from jaxdae.compiled import shared
from jaxdae.formulations.base import AbstractFormulation, Examination
from jaxdae.formulations.stabilization import desired_rate, Stabilization
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.rank import numerical_rank
from jaxdae.linalg.saddle_point import Capabilities
from jaxdae.reprs import Module
from jaxdae.systems import constraint_residuals, momentum, State, System
from jaxdae.systems.calls import call_with_shapes, check_parameters, describe_shape
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import applied_force
from jaxdae.systems.kinematics import (
    along_motion,
    at_rest,
    coordinate_rate,
    frame_force,
    generalized_force,
)

Forms = Callable[..., Float[Array, " d"]]


class QuasiState(Module):
    """State of `QuasiVelocities`.

    Args:
        q: coordinates, shape `(n,)`.
        pi: quasi-velocities, of the shape of `v`, or the free ones alone, `m+r` less, when the
            constraint functions are zero identically.
        w: actuator state, shape `(k,)`.
        frame: basis of `ker J` carried along the motion, shape `(n, n-m-r)`; `None` when the
            quasi-velocities are given by the user.
    """

    q: Float[Array, " n"]
    pi: Float[Array, " p"]
    w: Float[Array, " k"]
    frame: Float[Array, "n d"] | None


class QuasiVelocities(AbstractFormulation):
    r"""Gibbs-Appell equations in quasi-velocities.

        u phi'' = Pi + S                    free quasi-velocities
        psi'' = 0, or Phi                   constraint functions
        lam = Pi + S - u pi''               their rows, R = -lam

    where `u` is the Hessian and `-S` the gradient at `pi'' = 0` of the energy of accelerations as a
    function of `pi''`, and `Pi = F^-T Q` [Matyukhin1999, eqs. 2.6, 4.1, 4.9]. Without a
    stabilization `psi' = 0` holds identically, as if by construction: the state carries only the
    `n-m-r` free quasi-velocities, and positions leave their constraints only by the error of
    integrating `q`. With one, all `n` quasi-velocities are integrated and `psi'' = Phi`.

    The constraints must be affine in the velocities. Where these are not rates of coordinates
    themselves (`System.rate`), quasi-velocities are affine in them.

    Args:
        forms: the free quasi-velocities, `forms(t, q, v)` of shape `(n-m-r,)`, affine in `v` and
            independent of each other and of the constraint functions. By default the components of
            `v` along an orthonormal basis `N` of `ker J` that is carried along the motion, turning
            as little as possible: `N' = -J^+ J' N`. No single smooth basis need exist for all `q`.
        stabilization: as for `Multipliers`; `None` for `psi' = 0` identically.
    """

    forms: Forms | None = None
    stabilization: Stabilization | None = None

    @property
    def capabilities(self):
        return Capabilities(regular_mass=False, stabilization=self.stabilization)

    @property
    def examination(self):
        return Examination(declaration=self._check)

    def init(self, system, t, state, like=None):
        frame = None if like is None else like.frame
        if self.forms is None and like is None:
            frame = _null_frame(system, t, state)
        pi = self._quasi_velocities(system, t, state.q, state.v, frame)
        if self.stabilization is None:
            pi = pi[: pi.size - sum(constraint_counts(system, state))]
        return QuasiState(state.q, pi, state.w, frame)

    def recover(self, system, t, y):
        return State(y.q, self._velocities(system, t, y)[0], y.w)

    def _check(self, system, state) -> None:
        m, r = constraint_counts(system, state)
        t, free = jnp.zeros((), state.q.dtype), state.v.size - m - r
        if free < 0:
            raise ValueError(
                f"QuasiVelocities takes the {m + r} constraint functions for quasi-velocities, but "
                f"there are only {state.v.size} velocities; use "
                "Multipliers(solve=MinimumNormSolve())."
            )
        if self.forms is not None:
            names = ("t", "q", "v")
            check_parameters("forms", self.forms, names)
            out = call_with_shapes("forms", self.forms, (t, state.q, state.v), names)
            if getattr(out, "shape", None) != (free,):
                raise ValueError(
                    f"forms returned {describe_shape(out)}; {state.v.size} velocities with {m + r} "
                    f"constraints have {free} free quasi-velocities, shape ({free},)."
                )
        with jax.core.eval_context():
            self._check_numbers(system, jnp.zeros((), state.q.dtype), state)

    def _quasi_velocities(self, system, t, q, v, frame):
        """`pi'` at given velocities, constraint functions last, shape `(n,)`."""
        t = jnp.asarray(t, q.dtype)
        free = frame.T @ v if self.forms is None else self.forms(t, q, v)
        return jnp.concatenate([free, constraint_residuals(system, t, q, v).phi_dot])

    def _velocities(self, system, t, y: QuasiState):
        """`v` and `B = dv/d(pi')`."""
        still = at_rest(system, jnp.asarray(t, y.q.dtype), y.q)
        pi = jnp.concatenate([y.pi, jnp.zeros(still.size - y.pi.size, y.pi.dtype)])

        def quasi(v):
            return self._quasi_velocities(system, t, y.q, v, y.frame)

        rest, tangent = jax.linearize(quasi, still)
        # Column by column: the transpose of the rows that vmap stacks.
        inverse = jnp.linalg.inv(jax.vmap(tangent)(jnp.eye(still.size, dtype=y.q.dtype)).T)
        return inverse @ (pi - rest), inverse

    def rate_and_multipliers(self, system, t, y, u):
        t = jnp.asarray(t, y.q.dtype)
        v, inverse = self._velocities(system, t, y)
        frame_rate, drift = self._drift(system, t, y, v, inverse)
        residual = constraint_residuals(system, t, y.q, v)
        count = residual.phi_dot.size
        psi_ddot = desired_rate(self.stabilization, t, y.q, v, residual.phi, residual.phi_dot)
        slope, inertia = _appell_matrices(system, t, y.q, v, inverse, drift)
        power = inverse.T @ applied_force(system, t, y.q, v, y.w, u) - slope
        free = v.size - count
        rhs = power[:free] - inertia[:free, free:] @ psi_ddot
        phi_ddot = solve_positive_definite(inertia[:free, :free], rhs)
        pi_ddot = jnp.concatenate([phi_ddot, psi_ddot])
        rate = system.actuator_rate(t, y.q, v, y.w, u)
        q_dot = coordinate_rate(system, t, y.q, v)
        state_rate = QuasiState(q_dot, pi_ddot[: y.pi.size], rate, frame_rate)
        return state_rate, (power - inertia @ pi_ddot)[free:]

    def _drift(self, system, t, y: QuasiState, v, inverse):
        """Rate of the frame, and `pi''` at zero acceleration, `F' v + f0'`."""
        moving = (t, y.q), along_motion(system, t, y.q, v)
        if self.forms is not None:
            _, drift = jax.jvp(lambda t, q: self._quasi_velocities(system, t, q, v, None), *moving)
            return None, drift
        frame = jnp.asarray(y.frame)

        def on_frame(t, q):
            def residual(v):
                return constraint_residuals(system, t, q, v).phi_dot

            value, tangent = jax.linearize(residual, v)
            return value, jax.vmap(tangent, in_axes=1, out_axes=1)(frame)

        _, (gamma, turning) = jax.jvp(on_frame, *moving)
        # The last columns of the inverse are J^+ as long as the frame is orthogonal to J. Any other
        # rate would do as well, since the drift accounts for the one that is used.
        frame_rate = -inverse[:, frame.shape[1] :] @ turning
        return frame_rate, jnp.concatenate([frame_rate.T @ v, gamma])

    @where_known
    def _check_numbers(self, system, t, state) -> None:
        """Quasi-velocities must be affine in `v`, and independent at the start."""
        frame = jnp.zeros((state.v.size, 0), state.q.dtype)

        def slope(v):
            if self.forms is None:
                residuals = lambda v: constraint_residuals(system, t, state.q, v).phi_dot  # noqa: E731
                return jax.jacfwd(residuals)(v)
            return jax.jacfwd(lambda v: self._quasi_velocities(system, t, state.q, v, frame))(v)

        here, there = np.asarray(slope(state.v)), np.asarray(slope(2 * state.v + 1))
        change = np.abs(here - there).max(axis=1, initial=0.0)
        names = _row_names(system, here.shape[0], sum(constraint_counts(system, state)))
        if (change > 1e-3 * (1 + np.abs(here).max(initial=0.0))).any():
            i = int(np.argmax(change))
            raise ValueError(
                f"{names[i]} is not affine in the velocities: its derivative changes by "
                f"{change[i]:.3g} with them. Quasi-velocities must be affine; use Multipliers."
            )
        result = numerical_rank(here, 1e-7)
        if self.forms is not None and result.rank < here.shape[0]:
            involved = "; and ".join(", ".join(names[i] for i in x) for x in result.dependent_sets)
            raise ValueError(
                f"the quasi-velocities are dependent at the start: rank {result.rank} of "
                f"{here.shape[0]}; involved: {involved}. Choose other forms, or leave them out: an "
                "orthonormal basis then takes their place."
            )


def energy_of_accelerations(system: System, t, q, v, a) -> Float[Array, ""]:
    r"""Gibbs' function, up to terms that do not depend on the acceleration.

        U = a^T M a / 2 + a . (d/dt(dT/dv)|_{a=0} - dT/dq),    dU/da = d/dt(dT/dv) - dT/dq

    One directional derivative of the momenta along `(1, dq/dt, a / 2)` gives both terms. Of
    velocities that are not rates of coordinates, `dq/dt = N v`, the gradient is `N^T dT/dq` and the
    terms of Boltzmann and Hamel.
    """
    t = jnp.asarray(t, q.dtype)
    momenta = jax.grad(system.kinetic_energy, argnums=2)
    _, rate = jax.jvp(momenta, (t, q, v), (*along_motion(system, t, q, v), a / 2))
    slope = jax.grad(system.kinetic_energy, argnums=1)(t, q, v)
    slope = generalized_force(system, t, q, v, slope)
    turning = frame_force(system, t, q, v, momentum(system, t, q, v))
    return a @ (rate - slope - turning)


@shared
def _appell_matrices(system, t, q, v, inverse, drift):
    """Gradient at `pi'' = 0` and Hessian of the energy of accelerations."""

    def energy(pi_ddot):
        return energy_of_accelerations(system, t, q, v, inverse @ (pi_ddot - drift))

    slope, tangent = jax.linearize(jax.grad(energy), jnp.zeros_like(v))
    return slope, jax.vmap(tangent)(jnp.eye(v.size, dtype=v.dtype))


@shared
def _null_frame(system, t, state: State) -> Float[Array, "n d"]:
    """Orthonormal basis of `ker J` at the start."""
    t = jnp.asarray(t, state.q.dtype)
    jac = jax.jacfwd(lambda v: constraint_residuals(system, t, state.q, v).phi_dot)(state.v)
    # Motions do not depend on the frame, so its derivative is of no consequence.
    rotation, _ = jnp.linalg.qr(jax.lax.stop_gradient(jac).T, mode="complete")
    return rotation[:, jac.shape[0] :]


def _row_names(system, rows: int, count: int) -> list[str]:
    free = [f"form {i + 1}" for i in range(rows - count)]
    return free + [f"constraint {system.labels().constraint(i)!r}" for i in range(count)]
