"""Formulations on `(q, v, w)`: multipliers, penalty, augmented Lagrangian."""

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.formulations.base import AbstractFormulation, Examination, holding_rank
from jaxdae.formulations.excess_mass import (
    check_mass_function,
    mass_and_change,
    why_it_ends,
    why_not_positive,
)
from jaxdae.formulations.gains import apply_gain, as_gain, check_positive, Gain
from jaxdae.formulations.reaction_forces import (
    accelerate_with,
    reaction_law,
    why_undetermined,
)
from jaxdae.formulations.stabilization import desired_rate, Stabilization
from jaxdae.linalg.positive_definite import solve_positive_definite
from jaxdae.linalg.saddle_point import AbstractSolve, AutomaticSolve, Capabilities
from jaxdae.systems import Dynamics, evaluate, mass_and_jacobian, State
from jaxdae.systems.checks import constraint_counts
from jaxdae.systems.dynamics import free_dynamics, FreeDynamics
from jaxdae.systems.kinematics import coordinate_rate

# Of violations: a gain, or a function `alpha(t, q, v)`.
Mass = Gain | Callable


class AbstractLagrangeFormulation(AbstractFormulation):
    """A formulation whose state is `(q, v, w)` itself, on mass matrix and constraint Jacobian."""

    @abc.abstractmethod
    def accelerate(
        self, dynamics: Dynamics, rhs: Float[Array, " c"]
    ) -> tuple[Float[Array, " n"], Float[Array, " c"]]:
        """Acceleration and multipliers for the wanted `J a = rhs`; shapes `(n,)`, `(m+r,)`."""

    def dynamics(self, system, t, y, u, lam) -> Dynamics:
        """What the accelerations follow from; matrices are arrays unless overridden."""
        return evaluate(system, t, y.q, y.v, y.w, u, lam)

    def motion(self, system, t, y, u) -> tuple[Float[Array, " n"], Float[Array, " c"]]:
        """Acceleration `(n,)` and multipliers `(m+r,)` at a state."""
        finds = self.capabilities.finds_reaction_forces
        law = reaction_law(system, t, y, u) if finds else None
        d = self.dynamics(system, t, y, u, None if law is None else law.none)
        rhs = self.wanted_rate(t, y, d.phi, d.phi_dot) - d.gamma
        if law is None or rhs.size == 0:
            # Within a run the rank is decided.
            return holding_rank(self, system, t, y).accelerate(d, rhs)
        return accelerate_with(law, d, rhs)

    def wanted_rate(self, t, y, phi, phi_dot) -> Float[Array, " c"]:
        """What the stabilization wants `d(phi_dot)/dt` to be at a state, shape `(m+r,)`."""
        return desired_rate(self.capabilities.stabilization, t, y.q, y.v, phi, phi_dot)

    def init(self, system, t, state, like=None):
        return state

    def recover(self, system, t, y):
        return y

    def rate_and_multipliers(self, system, t, y, u):
        acceleration, lam = self.motion(system, t, y, u)
        rate = system.actuator_rate(t, y.q, y.v, y.w, u)
        return State(coordinate_rate(system, t, y.q, y.v), acceleration, rate), lam


class Multipliers(AbstractLagrangeFormulation):
    r"""Lagrange multipliers with constraint stabilization.

        M a + J^T lam = f,        J a = s,        s = Phi - gamma

    [MukharlyamovDeressa2015, eqs. 1, 20, 21; Mukharlyamov2019, eq. 0.11]: the index-3 problem with
    the constraint replaced by its perturbation equation `d(phi_dot)/dt = Phi`.

    Args:
        stabilization: `Baumgarte`, `LinearStabilization`, any callable
            `Phi(t, q, v, phi, phi_dot)`, or `None` (violations then grow linearly in time).
        solve: `AutomaticSolve()`, which is `FullRankSolve()` or, for dependent constraints,
            `MinimumNormSolve()`; `SingularMassSolve()` for a mass matrix that is singular off
            `ker J`. Forces that depend on the multipliers (`System.reaction_dependent_force`) need
            independent constraints. `SparseSolve()` for many bodies makes no dense matrices. All
            are in `jaxdae.formulations`.
    """

    stabilization: Stabilization | None = None
    solve: AbstractSolve = AutomaticSolve()

    @property
    def capabilities(self):
        capabilities = self.solve.capabilities
        return capabilities._replace(stabilization=self.stabilization, plain_state=True)

    @property
    def examination(self):
        if self.solve.examination is not None:
            return self.solve.examination
        undetermined = partial(_why_undetermined, self)
        return Examination(start=undetermined, stop=partial(undetermined, nearly=True))

    def dynamics(self, system, t, y, u, lam) -> Any:
        # Forces that depend on the multipliers are found with the mass matrix.
        if lam is None and getattr(self.solve, "takes_free_dynamics", False):
            free = free_dynamics(system, t, y.q, y.v, y.w, u)
            if free is not None:
                return free
        return self.solve.dynamics(evaluate, system, t, y, u, lam)

    def accelerate(self, dynamics, rhs):
        if not isinstance(dynamics, FreeDynamics):
            return self.solve.accelerate(dynamics, rhs)
        if rhs.size == 0:
            return dynamics.free, rhs
        solve: Any = self.solve
        rows, jac = jax.vmap(dynamics.solve)(dynamics.jac), dynamics.jac
        product = jnp.concatenate([jac @ rows.T, (jac @ dynamics.free)[:, None]], axis=1)
        return solve.from_free(dynamics.free, rows.T, product, rhs)


def _why_undetermined(formulation: Multipliers, system, t, y, *, nearly=False) -> str | None:
    rate = formulation.wanted_rate
    return why_undetermined(system, t, y, wanted_rate=rate, nearly=nearly)


class AbstractWeighted(AbstractLagrangeFormulation):
    """A formulation whose violations have a mass, its field `alpha`."""

    alpha: eqx.AbstractVar[Mass]
    stabilization: eqx.AbstractVar[Stabilization | None]

    @abc.abstractmethod
    def weighted(self, alpha, known, dynamics, rhs) -> tuple[Any, Any]:
        """Acceleration and multipliers for the wanted `J a = rhs`.

        Args:
            alpha: value of the constraint mass.
            known: multipliers beside those of it, shape `(m+r,)`, or `None`.
            dynamics: the equations at a state.
            rhs: shape `(m+r,)`.
        """

    @property
    def capabilities(self):
        return Capabilities(
            independent_constraints=False,
            regular_mass=False,
            stabilization=self.stabilization,
            weight=self.alpha,
            plain_state=True,
        )

    @property
    def examination(self):
        alpha: Any = self.alpha
        if not callable(alpha):
            return Examination()

        def declared(system, state):
            check_mass_function(alpha, state, sum(constraint_counts(system, state)))

        start, stop = (partial(why, alpha) for why in (why_not_positive, why_it_ends))
        return Examination(declaration=declared, start=start, stop=stop)

    def accelerate(self, dynamics, rhs):
        return self.weighted(self.alpha, None, dynamics, rhs)

    def motion(self, system, t, y, u):
        alpha: Any = self.alpha
        if not callable(alpha):
            return super().motion(system, t, y, u)
        d = self.dynamics(system, t, y, u, None)
        value, change = mass_and_change(alpha, system, t, y)
        rhs = self.wanted_rate(t, y, d.phi, d.phi_dot) - d.gamma
        return self.weighted(value, apply_gain(change, d.phi_dot) / 2, d, rhs)

    def perturbation_matrix(self, system, t, state):
        H = super().perturbation_matrix(system, t, state)
        if H is None:
            return None
        mass, jac = mass_and_jacobian(system, t, state.q, state.v)
        none = jnp.zeros(jac.shape[0], jac.dtype)
        m = H.shape[0] - none.size
        # Without forces, which only shift the residuals.
        d = Dynamics(mass, jnp.zeros_like(state.v), jac, none, none[:m], none)
        alpha: Any = self.alpha
        varies = callable(alpha)
        value, change = mass_and_change(alpha, system, t, state) if varies else (alpha, 0.0)

        def rate(wanted, y_dot):
            known = apply_gain(change, y_dot) / 2 if varies else None
            return jac @ self.weighted(value, known, d, wanted)[0]

        # What becomes of the wanted rate: all of it, or with a finite constraint mass less.
        response = jax.jacfwd(rate)(none, none)
        below = response @ H[m:]
        if varies:
            below = below.at[:, m:].add(jax.jacfwd(rate, argnums=1)(none, none))
        return jnp.concatenate([H[:m], below])


class Penalty(AbstractWeighted):
    r"""Modified Lagrange equation (penalty form).

    Violations are excess coordinates of mass `alpha`, damping `alpha K_D`, stiffness `alpha K_P`:

        (M + J^T alpha J) a = f + J^T alpha s,        lam = alpha (J a - s),        s = Phi - gamma

    [MukharlyamovDeressa2015, eqs. 30, 31]. The matrix is positive definite for dependent
    constraints, at singular configurations and for singular `M`, as long as `M` is positive on
    `ker J`. The result differs from that of `Multipliers` by `O(1/alpha)`; a large `alpha` is
    stiff.

    This is [MukharlyamovDeressa2015, eq. 28]. Its eq. 27, from energies of the violation, has
    damping `K_D` and stiffness `K_P` themselves:
    `LinearStabilization(-alpha^-1 K_P, -alpha^-1 K_D)` here. Where `alpha` is a scalar, or all are
    diagonal, the two dissipate the same; with full matrices `alpha K_P` need not be symmetric, and
    only eq. 27 is sure to be stable.

    A mass that varies, `alpha(t, q, v)`, adds what its energy `y'^T alpha y' / 2`, `y' = phi_dot`,
    asks for [MukharlyamovDeressa2015, eqs. 24-26]:

        lam = alpha (J a - s) + alpha' y' / 2,        alpha' = d alpha/dt + d alpha/dq dq/dt

    so that of an `alpha(q)` and constraints that do not depend on time nor drift, the energy of the
    violation changes by `y' . lam` less what `Phi` takes: a heavier violation is a slower one.
    Lagrange's equations of that energy have a force of second order in the violation more, without
    power and not along `J^T`, which is left out (`jaxdae/formulations/excess_mass.py`). By `v`
    the mass is a gain: as it changes with `a`, it does the work of `y'^T (d alpha/dv a) y' / 2` on
    the violation. Damping and stiffness that vary are those of a stabilization that is a function:
    `Phi(t, q, v, phi, phi_dot) = -alpha^-1 (K_P phi + K_D phi_dot)` has them as they are in eq. 27,
    and a stiffness that depends on `q` does the work of its own change.

    Args:
        alpha: constraint mass: positive scalar, diagonal `(m+r,)`, or SPD matrix; or a function
            `alpha(t, q, v)` that returns one.
        stabilization: as for `Multipliers`.

    Raises:
        ValueError: for an `alpha` that is not positive definite, or a function that does not return
            one at the start.
    """

    alpha: Mass = eqx.field(converter=as_gain)
    stabilization: Stabilization | None = None

    def __check_init__(self):
        _check_mass(self.alpha)

    def weighted(self, alpha, known, dynamics, rhs):
        jac = dynamics.jac
        matrix, force = _penalized(alpha, dynamics, rhs)
        force = force if known is None else force - jac.T @ known
        a = solve_positive_definite(matrix, force)
        lam = apply_gain(alpha, jac @ a - rhs)
        return a, lam if known is None else lam + known


class AugmentedLagrangian(AbstractWeighted):
    r"""Augmented Lagrangian iteration [Bayo1988].

        (M + J^T alpha J) a_k = f + J^T (alpha s - lam_k),    lam_{k+1} = lam_k + alpha (J a_k - s)

    from `lam_0 = 0`, or where `alpha(t, q, v)` varies from what that adds (see `Penalty`). One
    iteration is `Penalty`; for any `alpha` the iteration converges to
    `Multipliers`, the error falling by `1 / (1 + alpha a_min)` each time, with `a_min` the least
    nonzero eigenvalue of `J M^-1 J^T`.

    Args:
        alpha: as for `Penalty`.
        stabilization: as for `Multipliers`.
        iterations: number of solves, all with one factorization; at least 1.

    Raises:
        ValueError: for an `alpha` that is not positive definite, or less than one iteration.
    """

    alpha: Mass = eqx.field(converter=as_gain)
    stabilization: Stabilization | None = None
    iterations: int = eqx.field(static=True, default=3)

    def __check_init__(self):
        _check_mass(self.alpha)
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(f"iterations must be an integer, at least 1; got {self.iterations}.")

    def weighted(self, alpha, known, dynamics, rhs):
        jac = dynamics.jac
        matrix, force = _penalized(alpha, dynamics, rhs)
        columns = jnp.concatenate([jac.T, force[:, None]], axis=1)
        solved = solve_positive_definite(matrix, columns)
        mobility, a0 = solved[:, :-1], solved[:, -1]
        lam, a = jnp.zeros_like(rhs) if known is None else known, a0
        for _ in range(self.iterations):
            a = a0 - mobility @ lam
            lam = lam + apply_gain(alpha, jac @ a - rhs)
        return a, lam


def _check_mass(alpha) -> None:
    if not callable(alpha):  # a function is examined where it is used
        check_positive("alpha", alpha)


def _penalized(alpha, dynamics: Dynamics, rhs):
    """`M + J^T alpha J`, and `f + J^T alpha s`."""
    jac = dynamics.jac
    alpha = jnp.asarray(alpha)
    weighted = alpha @ jac if alpha.ndim == 2 else alpha[..., None] * jac
    return dynamics.mass + jac.T @ weighted, dynamics.force + weighted.T @ rhs
