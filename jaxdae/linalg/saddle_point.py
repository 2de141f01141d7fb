r"""Accelerations and multipliers from the saddle-point system of constrained dynamics.

    [[M, J^T], [J, 0]] (a, lam) = (f, s)

Policies say what may be assumed of `M` and `J`. All give the acceleration that Gauss's principle of
least constraint singles out.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from jaxdae.linalg.held_rank import solve_at_rank
from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT, solve_positive_definite
from jaxdae.linalg.solve_primitive import solve_primitive
from jaxdae.reprs import Module

# Name of the primitive of `FullRankSolve`, which takes `M`, `J`, `f` and `s`.
SADDLE_POINT = "solve_saddle_point"


class Capabilities(NamedTuple):
    """What a formulation or a solve needs, and what it is capable of.

    Args:
        independent_constraints: needs `J` of full row rank at every state.
        regular_mass: needs `M` positive definite at every state, not only on `ker J`.
        arrays: takes `M` and `J` as arrays.
        finds_reaction_forces: forces may depend on the multipliers
            (`System.reaction_dependent_force`).
        passes_singular_positions: runs pass them, with every step projected.
        obstacle: why no kernel can serve it, in words; `None` where one can.
        enforces_constraints: exact motions stay on the constraints, or go back there.
        stabilization: what the constraints are stabilized with, or `None`.
        weight: mass of violations, or a function `alpha(t, q, v)`; `None` where they have none.
        plain_state: the formulation's own state is `(q, v, w)` itself.
        keeps_constraints: the same constraints hold at every state of a run.
    """

    independent_constraints: bool = True
    regular_mass: bool = True
    arrays: bool = True
    finds_reaction_forces: bool = False
    passes_singular_positions: bool = False
    obstacle: str | None = None
    enforces_constraints: bool = True
    stabilization: Callable | None = None
    weight: Any = None
    plain_state: bool = False
    keeps_constraints: bool = True


class AbstractSolve(Module):
    """A policy for solving the saddle-point system, in whatever form its matrices are."""

    @property
    @abc.abstractmethod
    def capabilities(self) -> Capabilities:
        """What must hold of `M` and `J`, and what it is capable of."""

    @property
    def examination(self) -> Any:
        """What it says itself of runs by it; `None` for nothing."""
        return None

    @abc.abstractmethod
    def dynamics(self, evaluate: Callable, system, t, y, u, lam) -> Any:
        """The equations at a state, with `M` and `J` in the form that it takes.

        Args:
            evaluate: gives them as arrays, of `(system, t, q, v, w, u, lam)`.
            system: the declaration.
            t: time [s].
            y: state `(q, v, w)`.
            u: control input.
            lam: multipliers of forces that depend on them, or `None`.
        """

    @abc.abstractmethod
    def accelerate(self, dynamics, rhs) -> tuple[Float[Array, " n"], Float[Array, " c"]]:
        """Acceleration `a (n,)` and multipliers `lam (c,)` for the wanted `J a = rhs`."""


class AbstractSaddlePointSolve(AbstractSolve):
    """A policy for the saddle-point system of arrays."""

    def dynamics(self, evaluate, system, t, y, u, lam):
        return evaluate(system, t, y.q, y.v, y.w, u, lam)

    def accelerate(self, dynamics, rhs):
        return self(dynamics.mass, dynamics.force, dynamics.jac, rhs)

    def least_change(self, mass, jac, residual) -> Float[Array, " n"]:
        """The least change in the mass metric that takes a linear residual away.

        Args:
            mass: `M`, shape `(n, n)`.
            jac: `J`, shape `(c, n)`.
            residual: `r`, shape `(c,)`.

        Returns:
            `x` of `M x + J^T mu = 0`, `J x = -r`, shape `(n,)`.
        """
        return self(mass, jnp.zeros(mass.shape[0], mass.dtype), jac, -residual)[0]

    @property
    def takes_free_dynamics(self) -> bool:
        """Whether it asks for no mass matrix where accelerations without constraints are known."""
        return False

    def from_free(self, free, mobility, product, rhs) -> tuple[Any, Any]:
        """Acceleration and multipliers from accelerations without constraints.

        Args:
            free: these, `M^-1 f`, shape `(n,)`.
            mobility: `M^-1 J^T`, shape `(n, c)`.
            product: `J` times mobility, then times free, shape `(c, c+1)`.
            rhs: `s`, shape `(c,)`.

        Raises:
            TypeError: of a policy that asks for the mass matrix.
        """
        del free, mobility, product, rhs
        raise TypeError(
            f"{type(self).__name__} asks for the mass matrix: call it with mass, force, Jacobian "
            "and right-hand side. One whose `takes_free_dynamics` is true declares `from_free`."
        )

    def with_rank(self, rank: Float[Array, ""]) -> "AbstractSaddlePointSolve":
        """The policy with the rank of `J` that holds along a motion, where it asks for one.

        Args:
            rank: an integer in floating point; may be traced.
        """
        del rank
        return self

    @property
    def asks_for_rank(self) -> bool:
        """Whether `with_rank` makes a difference."""
        return False

    @property
    def held_rank(self) -> Any:
        """The rank that it holds; `None` for a policy that holds none."""
        return None

    def resolved(self, dependent: bool) -> "AbstractSaddlePointSolve":
        """The policy for constraints that are known to be dependent, or independent."""
        del dependent
        return self

    @abc.abstractmethod
    def __call__(self, mass, force, jac, rhs) -> tuple[Float[Array, " n"], Float[Array, " c"]]:
        """Solve `M a + J^T lam = force`, `J a = rhs`.

        Args:
            mass: `M`, shape `(n, n)`, symmetric positive semidefinite.
            force: shape `(n,)`.
            jac: `J`, shape `(c, n)`.
            rhs: `s`, shape `(c,)`.

        Returns:
            Acceleration `a (n,)` and multipliers `lam (c,)`.
        """


class FullRankSolve(AbstractSaddlePointSolve):
    """Regular mass matrix, independent constraints: the fast path.

    Range-space method [MukharlyamovDeressa2015, eq. 21]: `A lam = J M^-1 f - s`, `A = J M^-1 J^T`.
    Where `J` loses rank the multipliers are not determined: the result is not finite, or, where
    round-off or a violation hides the loss, finite and wrong. `simulate` refuses such a start.
    """

    @property
    def capabilities(self):
        return Capabilities(finds_reaction_forces=True)

    @property
    def takes_free_dynamics(self):
        return True

    def from_free(self, free, mobility, product, rhs):
        return _from_free(mobility, free, product, rhs)

    def __call__(self, mass, force, jac, rhs):
        n, c = force.shape[0], rhs.shape[0]
        if mass.shape != (n, n) or jac.shape != (c, n):
            raise ValueError(
                f"mass, force, jac and rhs must have shapes (n, n), (n,), (c, n) and (c,); got "
                f"{mass.shape}, {force.shape}, {jac.shape} and {rhs.shape}."
            )
        if c == 0:
            return solve_positive_definite(mass, force), rhs

        def matvec(x):
            a, lam = x[:n, None], x[n:, None]
            return jnp.concatenate([_product(mass, a) + _product(jac.T, lam), _product(jac, a)])[
                :, 0
            ]

        # Derivatives of every order cost one more right side; kernels keep the factors. One array:
        # of several, JAX cannot derive where only some have derivatives.
        x = jax.lax.custom_linear_solve(
            matvec,
            jnp.concatenate([force, rhs]),
            lambda _, b: jnp.concatenate(_range_space(mass, jac, b[:n], b[n:])),
            symmetric=True,
        )
        return x[:n], x[n:]


def _by_range_space(mass, jac, force, rhs):
    return list(_from_free(*_to_constraints(mass, jac, force), rhs))


def _from_free(mobility, free, product, rhs):
    lam = solve_positive_definite(product[:, :-1], product[:, -1] - rhs)
    return free - _product(mobility, lam[:, None])[:, 0], lam


def _to_constraints(mass, jac, force):
    """`M^-1 J^T`, `M^-1 f`, and `J` times both."""
    columns = solve_positive_definite(mass, jnp.concatenate([jac.T, force[:, None]], axis=1))
    return columns[:, :-1], columns[:, -1], _product(jac, columns)


_range_space = solve_primitive(SADDLE_POINT, _by_range_space, 2)


class AutomaticSolve(AbstractSaddlePointSolve):
    """`FullRankSolve()` where constraints are independent, `MinimumNormSolve()` where they are not.

    `simulate` finds out which at the start, on the constraints, and takes that one for the run; a
    mechanism with independent constraints is not slower for it. It does so wherever the numbers of
    system and start are known: in eager runs, under `jax.grad` and `jax.vmap` of them (where some
    member is dependent, all take `MinimumNormSolve()`, each with its rank), and inside `jax.jit`
    where the compiled program does not vary them. Where it does, `FullRankSolve()` is taken: a run
    that starts with dependent constraints then fails, and `MinimumNormSolve()` is to be given.
    Outside of `simulate` it is `FullRankSolve()`.
    """

    @property
    def capabilities(self):
        return _FULL_RANK.capabilities

    def resolved(self, dependent):
        return _MINIMUM_NORM if dependent else _FULL_RANK

    @property
    def takes_free_dynamics(self):
        return True

    def from_free(self, free, mobility, product, rhs):
        return _FULL_RANK.from_free(free, mobility, product, rhs)

    def __call__(self, mass, force, jac, rhs):
        return _FULL_RANK(mass, force, jac, rhs)


class MinimumNormSolve(AbstractSaddlePointSolve):
    r"""Regular mass matrix, dependent constraints allowed: least-norm multipliers.

    `lam = A^+ (J M^-1 f - s)` with `A = J M^-1 J^T` [MukharlyamovDeressa2015, eqs. 6, 11]. For
    `M > 0` the acceleration is unique, and reactions are ideal with any of the multipliers: they
    differ by `y` with `J^T y = 0`. Those of least norm are one choice, smooth in the state.

    The rank is *held*: decided once for a run, on the constraints, and kept. Constraints of a
    closed loop with fixed axes, say, depend on each other only where they hold. At the distance
    `d` from there `J` has singular values of the order `d`, above any threshold that spares the
    small ones of a mechanism near a singular position, and what is divided by them is of the
    order `d` as well: the quotient means nothing. With the rank held such a mechanism is treated as
    one of independent constraints, exact up to the order `d` and smooth, next to singular
    positions too; the solve is an elimination with so many pivots (`solve_at_rank`), which kernels
    can make. A threshold that knows the violation would have to be above it, and would switch a
    direction off and on next to singular positions.

    Args:
        rcond: an explicit threshold instead: singular values of `W = J L^-T`, `M = L L^T`, below
            this fraction of the largest count as zero at every state. To pass an isolated singular
            position take about 1e-3: next to it residuals enter the acceleration divided by the
            least singular value. It must be above the violations where constraints are dependent.
        rank: of `J`, an integer; `simulate` finds it. Where a policy without `rcond` and
            `rank` is called by itself, it finds that of the `J` given, with the 2/3 power of
            the machine epsilon for a threshold.

    Raises:
        ValueError: for `rcond` and `rank` together, or a negative `rcond`.
    """

    rcond: float | None = eqx.field(static=True, default=None)
    rank: Float[Array, ""] | float | None = None

    def __check_init__(self):
        if self.rcond is not None and not self.rcond >= 0:
            raise ValueError(
                f"rcond of MinimumNormSolve must be a number not below zero; got {self.rcond!r}."
            )
        if self.rcond is not None and self.rank is not None:
            raise ValueError(
                f"MinimumNormSolve takes a threshold, rcond = {self.rcond!r}, or a rank, "
                f"{self.rank!r}; leave one out."
            )

    @property
    def capabilities(self):
        return Capabilities(independent_constraints=False)

    def with_rank(self, rank):
        return MinimumNormSolve(rank=rank) if self.asks_for_rank else self

    @property
    def asks_for_rank(self):
        return self.rcond is None and self.rank is None

    @property
    def held_rank(self):
        return self.rank

    def __call__(self, mass, force, jac, rhs):
        if self.rank is not None and rhs.size:
            mobility, free, product = _to_constraints(mass, jac, force)
            return self.from_free(free, mobility, product, rhs)
        factor = jnp.linalg.cholesky(mass)
        free = _lower_solve(factor, force)
        if rhs.size == 0:
            return _lower_solve(factor, free, transpose=True), rhs
        w = _lower_solve(factor, jac.T).T
        rcond = float(jnp.finfo(w.dtype).eps) ** (2 / 3) if self.rcond is None else self.rcond
        correction = _pseudo_solve(w, rhs - w @ free, rcond)
        lam = -_pseudo_solve(w.T, correction, rcond)
        return _lower_solve(factor, free + correction, transpose=True), lam

    @property
    def takes_free_dynamics(self):
        return self.rank is not None

    def from_free(self, free, mobility, product, rhs):
        rank = jnp.asarray(self.rank, rhs.dtype)
        lam = solve_at_rank(product[:, :-1], product[:, -1] - rhs, rank)
        return free - _product(mobility, lam.weighted[:, None])[:, 0], lam.least


_FULL_RANK, _MINIMUM_NORM = FullRankSolve(), MinimumNormSolve()


class SingularMassSolve(AbstractSaddlePointSolve):
    """Mass matrix that may be singular off `ker J`.

    `M + c J^T J` is positive definite when `M` is so on `ker J`, and the motion does not change
    when `c J^T s` is added to the force, because `J a = s`. The multipliers are the same.

    Args:
        inner: policy for the regularized system; `MinimumNormSolve()` allows dependent constraints,
            `FullRankSolve()` is faster.

    Raises:
        ValueError: for an `inner` that does not take arrays.
    """

    inner: AbstractSaddlePointSolve = AutomaticSolve()

    def __check_init__(self):
        if not self.inner.capabilities.arrays:
            raise ValueError(
                f"SingularMassSolve takes arrays, {type(self.inner).__name__} has none; give "
                "SingularMassSolve() or SingularMassSolve(MinimumNormSolve())."
            )

    @property
    def capabilities(self):
        # Forces that depend on the multipliers need a regular mass matrix.
        return self.inner.capabilities._replace(regular_mass=False, finds_reaction_forces=False)

    def with_rank(self, rank):
        return SingularMassSolve(self.inner.with_rank(rank))

    @property
    def asks_for_rank(self):
        return self.inner.asks_for_rank

    @property
    def held_rank(self):
        return self.inner.held_rank

    def resolved(self, dependent):
        inner = self.inner.resolved(dependent)
        return self if inner is self.inner else SingularMassSolve(inner)

    def __call__(self, mass, force, jac, rhs):
        regular, weight = self._regular(mass, jac)
        return self.inner(regular, force + weight * jac.T @ rhs, jac, rhs)

    def least_change(self, mass, jac, residual):
        return self.inner.least_change(self._regular(mass, jac)[0], jac, residual)

    def _regular(self, mass, jac):
        # Any positive weight is exact; this one balances the two terms.
        inertia, size = jnp.trace(mass), jnp.sum(jac * jac)
        weight = jnp.where(inertia > 0, inertia, 1.0) / jnp.where(size > 0, size, 1.0)
        return mass + weight * jac.T @ jac, weight


class ZeroRowsSolve(AbstractSaddlePointSolve):
    r"""Rows of `J` that are zero are no constraints: their multipliers are zero.

    With `z` one for such rows and zero for others the equations of `inner` are regular,

        [[M, 0, J^T], [0, I, diag(z)], [J, diag(z), 0]] (a, b, lam) = (f, 0, (1 - z) s),

    and `lam = -b = 0` where `z` is one. For constraints that are switched, whose rows are zero as
    long as they are released (`jaxdae.switching`).

    Args:
        inner: policy for the rows that are not zero; one that asks for no rank.
    """

    inner: AbstractSaddlePointSolve = FullRankSolve()

    @property
    def capabilities(self):
        return self.inner.capabilities._replace(
            independent_constraints=False, finds_reaction_forces=False, keeps_constraints=False
        )

    def __call__(self, mass, force, jac, rhs):
        n, c = force.shape[0], rhs.shape[0]
        if c == 0:
            return self.inner(mass, force, jac, rhs)
        zero = jnp.sum(jac * jac, axis=1) == 0
        none, unit = jnp.zeros((n, c), mass.dtype), jnp.eye(c, dtype=mass.dtype)
        a, lam = self.inner(
            jnp.block([[mass, none], [none.T, unit]]),
            jnp.concatenate([force, jnp.zeros(c, force.dtype)]),
            jnp.concatenate([jac, jnp.where(zero[:, None], unit, 0.0)], axis=1),
            jnp.where(zero, 0.0, rhs),
        )
        return a[:n], jnp.where(zero, 0.0, lam)


class SingularityRobust(AbstractSaddlePointSolve):
    r"""Singular positions allowed: damped least squares, repeated, with every step projected.

        (A + c I) (lam_{k+1} - lam_k) = J M^-1 f - s - A lam_k,    A = J M^-1 J^T,    lam_0 = 0

    With `c = damping^2 max_i A_ii` the reaction in a direction whose relative singular value is
    `sigma` comes out `1 - (damping^2 / (sigma^2 + damping^2))^iterations` times its exact value: to
    round-off away from a singular position; next to one it fades out smoothly while
    `sigma < damping`, where the exact multiplier grows without bound. What a motion loses there is
    a velocity of the order of `damping` across the constraints, which a projection in the mass
    metric takes away again at the cost of an energy of the order of `damping^2`. Therefore
    `simulate` projects every step with this policy, as if the solver were `Projected(solver)`.

    Projections fade out earlier, while `sigma` of rows scaled to `A_ii = 1` is less than the root
    of `damping`. Round-off `eps` of a residual moves coordinates by `eps / sigma`, velocities by
    `eps / sigma^2`, and derivatives of these by the order of `eps / sigma^3`, which would leave
    five digits of them where steps to a tight tolerance come near to the position. What a step
    leaves across the constraints there is projected by those after it.

    Damping next to singular positions is that of [NakamuraHanafusa1986]; repeated it is an
    augmented Lagrangian with mass-orthogonal projections [BayoLedesma1996].

    Derivatives: next to such a position round-off and what a step leaves of a violation are divided
    by powers of `sigma`, and next to a position with forces across the branch the reaction is lost
    in a stage with `sigma < damping`. Adaptive steps see that, fixed ones do not. Of 1000 slider-
    cranks with friction, past one or two in-line positions, steps to a tolerance of 1e-8 kept every
    value to 3e-7 rad or rad/s and every derivative by masses, length, gravity and friction to 1e-6
    of the largest; with fixed steps of 0.01 s by RK4 ten had derivatives wrong by more than 0.1 %,
    the worst by a factor of 17. Take adaptive steps where derivatives are wanted; tolerances down
    to 1e-13 keep them to 1e-6 as well, and make only the typical error smaller. By a parameter that
    alone moves the constraints apart there, such as one of two equal lengths, a motion through
    the position has no derivative, whatever the formulation: two branches that cross become a
    hyperbola, and the motion turns into the other one. `jaxdae.identify` names such parameters.
    Multipliers grow without bound towards the position and have no derivative in it.

    A constraint whose rows are `damping` times shorter than those of others, in the metric of
    `M^-1`, is damped as well: write constraints in units that make their rows comparable.

    Args:
        damping: relative singular value below which reactions fade, positive; by default
            `eps^0.3` with the machine epsilon, 2e-5 in double precision.
        iterations: number of solves, at least 1.

    Raises:
        ValueError: for a damping outside (0, 1), or less than one iteration.
    """

    damping: float | None = eqx.field(static=True, default=None)
    iterations: int = eqx.field(static=True, default=3)

    def __check_init__(self):
        if self.damping is not None and not 0 < self.damping < 1:
            raise ValueError(
                f"SingularityRobust: damping is {self.damping!r}, must lie between 0 and 1."
            )
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise ValueError(
                f"SingularityRobust: iterations is {self.iterations!r}, must be a positive integer."
            )

    @property
    def capabilities(self):
        return Capabilities(independent_constraints=False, passes_singular_positions=True)

    def damping_in(self, dtype) -> float:
        """The damping that is taken in a precision."""
        return float(jnp.finfo(dtype).eps) ** 0.3 if self.damping is None else self.damping

    def __call__(self, mass, force, jac, rhs):
        columns = solve_positive_definite(mass, jnp.concatenate([jac.T, force[:, None]], axis=1))
        mobility, free = columns[:, :-1], columns[:, -1]
        if rhs.size == 0:
            return free, rhs
        response, defect = jac @ mobility, jac @ free - rhs
        damping = self.damping_in(rhs.dtype) ** 2 * jnp.max(jnp.diagonal(response))
        lam = self._damped(response, defect, damping * jnp.ones_like(rhs))
        return free - mobility @ lam, lam

    def least_change(self, mass, jac, residual):
        if residual.size == 0:
            return jnp.zeros(mass.shape[0], mass.dtype)
        mobility = solve_positive_definite(mass, jac.T)
        response = jac @ mobility
        each, damping = jnp.diagonal(response), self.damping_in(residual.dtype)
        # Rows of other units are not short for it.
        lam = self._damped(response, residual, damping * each + damping**2 * jnp.max(each))
        return -mobility @ lam

    def _damped(self, response, defect, damping):
        """`response @ lam = defect`, solved as often as the class says, each time damped."""
        # Where no constraint acts at all, no reaction does.
        damped = response + jnp.diag(jnp.where(jnp.max(damping) > 0, damping, 1.0))
        lam = jnp.zeros_like(defect)
        for _ in range(self.iterations):
            lam = lam + solve_positive_definite(damped, defect - response @ lam)
        return lam


def _product(a: Float[Array, "c n"], b: Float[Array, "n k"]) -> Float[Array, "c k"]:
    """`a @ b`; small ones as a sum, which joins the neighbouring operations instead of a call."""
    if max(*a.shape, *b.shape) > ELIMINATION_LIMIT:
        return a @ b
    return jnp.sum(a[:, :, None] * b[None], axis=1)


def _lower_solve(factor, rhs, *, transpose: bool = False):
    """Solve with a lower triangular factor, or with its transpose."""
    return solve_triangular(factor, rhs, lower=True, trans=int(transpose))


def _pseudo_solve(matrix, rhs, rcond: float):
    """Least-squares solution of least norm; differentiable while the rank does not change."""
    operator = lx.MatrixLinearOperator(matrix)
    # Not finite in, not finite out: a step controller rejects such a step by itself.
    return lx.linear_solve(operator, rhs, lx.SVD(rcond=rcond), throw=False).value
