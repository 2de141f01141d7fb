r"""Accelerations and multipliers from the saddle-point system of constrained dynamics.

    [[M, J^T], [J, 0]] (a, lam) = (f, s)

Three policies say what may be assumed of `M` and `J`. All give the acceleration that Gauss's
principle of least constraint singles out.
"""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from jaxdae.linalg.positive_definite import ELIMINATION_LIMIT, solve_positive_definite
from jaxdae.linalg.solve_primitive import solve_primitive

# Name of the primitive of `FullRank`, which takes `M`, `J`, `f` and `s`.
SADDLE_POINT = "solve_saddle_point"


class Assumptions(eqx.Module):
    """What is assumed of the mass matrix and the constraints at every state.

    Args:
        independent_constraints: `J` has full row rank.
        regular_mass: `M` is positive definite, not only on `ker J`.
    """

    independent_constraints: bool = eqx.field(static=True)
    regular_mass: bool = eqx.field(static=True)


class AbstractSaddlePointSolve(eqx.Module):
    """A policy for solving the saddle-point system of constrained dynamics."""

    @abc.abstractmethod
    def assumptions(self) -> Assumptions:
        """What must hold of `M` and `J`."""

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


class FullRank(AbstractSaddlePointSolve):
    """Regular mass matrix, independent constraints: the fast path.

    Range-space method (Redundant, eq. 21): `A lam = J M^-1 f - s`, `A = J M^-1 J^T`. Where `J`
    loses rank the multipliers are not determined: the result is not finite, or, where round-off
    hides the loss, finite with arbitrary shares of the same reaction. `simulate` refuses such a
    start.
    """

    def assumptions(self):
        return Assumptions(independent_constraints=True, regular_mass=True)

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
    columns = solve_positive_definite(mass, jnp.concatenate([jac.T, force[:, None]], axis=1))
    spread, free = columns[:, :-1], columns[:, -1]
    product = _product(jac, columns)
    lam = solve_positive_definite(product[:, :-1], product[:, -1] - rhs)
    return [free - _product(spread, lam[:, None])[:, 0], lam]


_range_space = solve_primitive(SADDLE_POINT, _by_range_space, 2)


class MinimumNorm(AbstractSaddlePointSolve):
    """Regular mass matrix, dependent constraints allowed: least-norm multipliers.

    `lam = A^+ (J M^-1 f - s)`: the reactions are ideal, they do no work on virtual displacements
    (Redundant, eqs. 6 and 11), and the acceleration is unique. With the Cholesky factor `M = L L^T`
    and `W = J L^-T`, `A^+ = (W^+)^T W^+`, so that the rank is decided on `W`, whose condition
    number is only the root of that of `A`.

    Args:
        rcond: singular values of `W` below this fraction of the largest count as zero;
            by default the 2/3 power of the machine epsilon, for constraints that depend on each
            other everywhere. To pass an isolated singular position take about 1e-3: next to it
            residuals enter the acceleration divided by the least singular value.
    """

    rcond: float | None = eqx.field(static=True, default=None)

    def assumptions(self):
        return Assumptions(independent_constraints=False, regular_mass=True)

    def __call__(self, mass, force, jac, rhs):
        factor = jnp.linalg.cholesky(mass)
        free = _lower_solve(factor, force)
        if rhs.size == 0:
            return _lower_solve(factor, free, transpose=True), rhs
        w = _lower_solve(factor, jac.T).T
        rcond = float(jnp.finfo(w.dtype).eps) ** (2 / 3) if self.rcond is None else self.rcond
        correction = _pseudo_solve(w, rhs - w @ free, rcond)
        lam = -_pseudo_solve(w.T, correction, rcond)
        return _lower_solve(factor, free + correction, transpose=True), lam


class SingularMass(AbstractSaddlePointSolve):
    """Mass matrix that may be singular off `ker J`.

    `M + c J^T J` is positive definite when `M` is so on `ker J`, and the motion does not change
    when `c J^T s` is added to the force, because `J a = s`. The multipliers are the same.

    Args:
        inner: policy for the regularized system; `MinimumNorm()` allows dependent constraints,
            `FullRank()` is faster.
    """

    inner: AbstractSaddlePointSolve = FullRank()

    def assumptions(self):
        independent = self.inner.assumptions().independent_constraints
        return Assumptions(independent_constraints=independent, regular_mass=False)

    def __call__(self, mass, force, jac, rhs):
        # Any positive weight is exact; this one balances the two terms.
        inertia, size = jnp.trace(mass), jnp.sum(jac * jac)
        weight = jnp.where(inertia > 0, inertia, 1.0) / jnp.where(size > 0, size, 1.0)
        regular = mass + weight * jac.T @ jac
        return self.inner(regular, force + weight * jac.T @ rhs, jac, rhs)


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
