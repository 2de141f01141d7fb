"""Levenberg-Marquardt and Gauss-Newton, composed of optimistix's searches and descents."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import lineax as lx
import optimistix as optx
from jaxtyping import Array, Float


class _DampingState(eqx.Module):
    """Residuals and Jacobian at the last accepted point, and the scales of the parameters."""

    residual: Float[Array, " k"]
    jacobian: Float[Array, "k p"]
    scale: Float[Array, " p"]


# A step that the linearization foresees to this part lets the next be so many times as bold.
_FORESEEN, _BOLDER = 0.1, 10.0


class ScaledDamping(optx.AbstractDescent):
    """The step `p` of least squares, damped in the scales of the parameters.

        minimize  |r + J p|^2 + d |D p|^2,      d = damping / step_size

    `D` is diagonal: the largest norms so far of the columns of `J` [More1978, section 6], so that
    the steps do not depend on the units of residuals and parameters.

    Columns of `J D^-1` have length one at first, so that damping 1 is [MadsenNielsenTingleff2004,
    eq. 3.14] with `tau = 1`, for starts that are not known to be near. Bolder first steps may lower
    the loss and end where hardly anything changes it any more.
    """

    damping: float = 1.0  # `d` at step size 1

    def init(self, y, f_info_struct) -> _DampingState:
        residual = jnp.zeros(f_info_struct.residual.shape, y.dtype)
        return _DampingState(residual, jnp.outer(residual, y), jnp.zeros_like(y))

    def query(self, y, f_info, state) -> _DampingState:
        del y
        jacobian = f_info.jac.as_matrix()
        norms = jnp.linalg.norm(jacobian, axis=0)
        return _DampingState(f_info.residual, jacobian, jnp.maximum(state.scale, norms))

    def step(self, step_size, state):
        # A parameter that nothing depends on stays where it is.
        scale = jnp.where(state.scale > 0, state.scale, 1.0)
        # The search counts in the widest precision, whatever that of the parameters is.
        root = jnp.sqrt(self.damping / step_size).astype(scale.dtype)
        damped = jnp.diag(root * scale)
        matrix = jnp.concatenate([state.jacobian, damped])
        right = jnp.concatenate([state.residual, jnp.zeros_like(scale)])
        out = lx.linear_solve(lx.MatrixLinearOperator(matrix), right, lx.QR(), throw=False)
        return -out.value, optx.RESULTS.promote(out.result)


class BoundedTrustRegion(optx.AbstractSearch):
    """optimistix's trust region, whose size has an upper limit.

    It grows where the loss falls by three quarters of what was predicted, but not in the step after
    one that was refused, which would only be refused again. At the library's 0.99 it would stay
    small where the Jacobian loses rank at the solution. Without a limit, a long run of good steps
    makes it so large that as many bad ones follow before it has any effect again; and without any
    damping, parameters that have no effect move by round-off.

    Where the fall is foreseen to a tenth it grows tenfold: from a cautious first step on, a problem
    that is nearly linear is soon solved without damping.
    """

    largest: float  # step size
    search: Any = eqx.field(default_factory=lambda: optx.ClassicalTrustRegion(0.75))

    def init(self, y, f_info_struct):
        return self.search.init(y, f_info_struct), jnp.asarray(True)

    def step(self, first_step, y, y_eval, f_info, f_eval_info, state):
        before, accepted_before = state
        size, accept, result, after = self.search.step(
            first_step, y, y_eval, f_info, f_eval_info, before
        )
        foreseen = self.search.predict_reduction(y_eval - y, f_info)
        missed = jnp.abs(f_eval_info.as_min() - f_info.as_min() - foreseen)
        exact = ~first_step & (foreseen < 0) & (missed <= -_FORESEEN * foreseen)
        size = jnp.where(exact, _BOLDER * before.step_size, size)
        most = jnp.where(accepted_before, self.largest, before.step_size)
        size = jnp.minimum(size, most)
        after = eqx.tree_at(lambda s: s.step_size, after, size)
        return size, accept, result, (after, accept)


class ComposedLeastSquares(optx.AbstractGaussNewton):
    """A solver of least squares made of a search and a descent."""

    search: optx.AbstractSearch  # how far to go
    descent: optx.AbstractDescent  # which way
    rtol: float = 0.0  # not used, `tune` has its own tests
    atol: float = 0.0  # not used
    norm: Callable = optx.max_norm  # not used
    # Called with what happens in each step.
    verbose: Callable = eqx.field(static=True, default=lambda **_: None)


def levenberg_marquardt(epsilon: float) -> ComposedLeastSquares:
    """Levenberg-Marquardt: a trust region, and damping in the scales of the parameters."""
    descent = ScaledDamping()
    search = BoundedTrustRegion(descent.damping / epsilon**0.75)
    return ComposedLeastSquares(search=search, descent=descent)


def gauss_newton() -> ComposedLeastSquares:
    """Gauss-Newton with backtracking; steps of least norm where the Jacobian lacks rank."""
    linear_solver = lx.AutoLinearSolver(well_posed=False)
    descent = optx.NewtonDescent(linear_solver=linear_solver)
    return ComposedLeastSquares(search=optx.BacktrackingArmijo(), descent=descent)
