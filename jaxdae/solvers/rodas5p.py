"""A linearly implicit method for stiff equations: no iteration, one factorization for each step."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.derivatives.functions import with_nan_safe_derivative
from jaxdae.linalg.lu import factored, product
from jaxdae.solvers.base import AbstractStatelessSolver
from jaxdae.solvers.dae_term import DAEAt, DAETerm
from jaxdae.solvers.dense_output import AbstractDenseOutput

# The coefficients as they are published, for stages that need no product with the Jacobian: with
# `Gamma` the matrix of gamma_ij they are alpha Gamma^-1, and 1 / gamma - Gamma^-1 below the
# diagonal. Rows begin with the second; the last three stages begin where the one before ends.
_GAMMA = 0.21193756319429014
_LAST = [-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256,
         0.030198172008377946]  # fmt: skip
_ALPHA = (
    [3.0],
    [2.849394379747939, 0.45842242204463923],
    [-6.954028509809101, 2.489845061869568, -10.358996098473584],
    [2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641],
    _LAST,
    [*_LAST, 1.0],
    [*_LAST, 1.0, 1.0],
)
_COUPLING = (
    [-14.155112264123755],
    [-17.97296035885952, -2.859693295451294],
    [147.12150275711716, -1.41221402718213, 71.68940251302358],
    [165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306],
    [24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125,
     -0.6610691825249471],
    [30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783,
     -19.097331116725623, -28.087943162872662],
    [37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047,
     -40.06618937091002, -54.66780262877968, -9.48861652309627],
)  # fmt: skip
# Sums of rows of alpha and of Gamma.
_TIMES = np.array([
    0.0, 0.6358126895828704, 0.4095798393397535, 0.9769306725060716, 0.4288403609558664, 1.0, 1.0,
    1.0,
])  # fmt: skip
_SLOPES = np.array([
    _GAMMA, -2 * _GAMMA, -0.3384627126235924, 1.8046452872882734, 2.325825639765069, 0.0, 0.0, 0.0,
])  # fmt: skip
_DENSE = np.array([
    [25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204,
     0.524948541321073, 1.1241088310450404, 0.4272876194431874, -0.17202221070155493],
    [-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796,
     20.176138334709044, 15.98066361424651, -6.789040303419874, -6.710236069923372],
    [11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643,
     -52.072871366152654, -59.78993625266729, -0.15582684282751913, 4.883087185713722],
])  # fmt: skip


def _below(rows) -> np.ndarray:
    """Rows as a matrix with zeros on its diagonal and above."""
    matrix = np.zeros((len(rows) + 1,) * 2)
    for i, row in enumerate(rows, start=1):
        matrix[i, :i] = row
    return matrix


class DenseOutput(AbstractDenseOutput):
    """The state between the ends of a step: a polynomial of degree 4, of order 4.

    Args:
        t0: beginning of the step [s].
        t1: its end [s].
        y0: state at the beginning.
        y1: state at the end.
        k: three combinations of the stages, along a first axis of each leaf.
    """

    t0: Any
    t1: Any
    y0: Any
    y1: Any
    k: Any

    def at(self, t):
        """The state at a time [s]."""

        def between(y0, y1, k):
            x = self.part(t).astype(y0.dtype)
            return (1 - x) * y0 + x * (y1 + (1 - x) * (k[0] + x * (k[1] + x * k[2])))

        return jax.tree.map(between, self.y0, self.y1, self.k)


def _inner(terms) -> Any:
    """A term, or what is within a wrapper for times that run backward."""
    return getattr(terms, "term", terms)


def _is_of_equations(terms) -> bool:
    return isinstance(_inner(terms), DAETerm)


class Rodas5P(AbstractStatelessSolver, diffrax.AbstractAdaptiveSolver):
    r"""The Rosenbrock-Wanner method of order 5 for stiff equations [Steinebach2023].

    Eight stages of linear equations with one matrix, where implicit Runge-Kutta methods iterate:

        (I - gamma h J) k_i = h f(t_0 + alpha_i h, y_0 + sum_j alpha_ij k_j)
                              + h J sum_(j<i) gamma_ij k_j + gamma_i h^2 df/dt(t_0, y_0),
        y_1 = y_0 + sum_i b_i k_i,        J = df/dy(t_0, y_0)

    `J` and `df/dt` are exact, by automatic differentiation in forward mode; the matrix is factored
    once for each step, by dense LU decomposition. The method is A- and L-stable, and of order 5
    also where equations become infinitely stiff, that is, differential-algebraic of index 1. On the
    test equation `y' = g' - s (y - g)` of [ProtheroRobinson1974] with a large `s` its errors fall
    with `h^3 / s`. Its error estimate and its dense output are of order 4.

    It is for stiff equations of few to some hundred states: `Penalty` of a large constraint mass,
    large gains, stiff springs and dampers, `RealizingForces`, motors beside mechanisms. It has no
    iteration that needs a tolerance or can fail. Where accuracy and not stability keeps steps
    short, explicit methods cost less: a step takes `J`, nine evaluations and about `n^3`
    multiplications. Stiff vibrations that nothing damps are followed by steps that resolve them;
    longer ones damp them. The right-hand side has to be smooth within steps, and differentiable in
    forward mode.

    `jaxdae.solve` takes it for semi-explicit equations of index 1: the identity above has zeros for
    algebraic variables, whose equations hold at the ends of steps to the order of the method; rows
    have `z` anew from `y`. Equations of index 2, and those of a `residual`, are for `RadauIIA`.

    It runs in `diffrax.diffeqsolve` by itself, too. Kernels make its steps, and the derivatives
    of these in both modes, for up to some thirty states; what is larger `backend="auto"` leaves to
    the plain backend.
    """

    term_structure: ClassVar[Any] = diffrax.AbstractTerm
    interpolation_cls: ClassVar[Callable[..., DenseOutput]] = DenseOutput

    @property
    def linear_stages(self) -> tuple[np.ndarray, np.ndarray]:
        """`(a, b)` of its stability function, `R(z) = 1 + z b^T (I - z a)^-1 1`.

        `a = alpha + Gamma`, whose last row is `b`.
        """
        gammas = np.linalg.inv(np.eye(_TIMES.size) / _GAMMA - _below(_COUPLING))
        a = _below(_ALPHA) @ gammas + gammas
        return a, a[-1]

    def order(self, terms):
        """Order of convergence: 5."""
        return 5

    def step(self, terms, t0, t1, y0, args, solver_state, made_jump):
        """One step; one of no length changes nothing."""
        given, made = (terms, t0, t1, y0, args), self._made
        if _is_of_equations(terms) and not _inner(terms).in_kernel:
            # Derivatives of a matrix that is not finite are none, whatever they are multiplied by.
            made = partial(with_nan_safe_derivative, made, eqx.filter_eval_shape(made, *given))
        y1, error, dense = made(*given)
        return y1, error, {"y0": y0, "y1": y1, "k": dense}, None, diffrax.RESULTS.successful

    @staticmethod
    def _made(terms, t0, t1, y0, args):
        """The end of a step, its error and the stages of its dense output."""
        start, unravel = ravel_pytree(y0)
        t0, t1, dtype = jnp.asarray(t0), jnp.asarray(t1), start.dtype
        h, control = t1 - t0, terms.contr(t0, t1)
        inertia = jnp.ones_like(start)
        if _is_of_equations(terms):  # algebraic variables and their equations come last
            (variables, _) = y0
            count = ravel_pytree(variables.y)[0].size
            inertia = inertia.at[count:].set(0.0)

        def change(t, y):
            """`h f(t, y)`, and the constraints of differential-algebraic equations."""
            if _is_of_equations(terms):
                return terms.vf(t, unravel(y), args).safe(DAEAt.explicit_change, control)
            return ravel_pytree(terms.vf_prod(t, unravel(y), args, control))[0].astype(dtype)

        slope = jax.jvp(lambda t: change(t, start), (t0,), (h,))[1]  # h^2 df/dt
        jacobian = jax.jacfwd(partial(change, t0))(start)
        solve = factored(jnp.diag(inertia) - _GAMMA * jacobian)

        def stage(k, row):
            i, alpha, coupling, c, gamma = row
            t = jnp.where(c == 1, t1, t0 + c * h)
            known = change(t, start + product(alpha, k)) + gamma * slope
            return k.at[i].set(solve(_GAMMA * (known + inertia * product(coupling, k)))), None

        weights = _below(_ALPHA), _below(_COUPLING), _SLOPES
        alphas, couplings, slopes = (jnp.asarray(x, dtype) for x in weights)
        times = jnp.asarray(_TIMES, h.dtype)
        rows = np.arange(_TIMES.size), alphas, couplings, times, slopes
        k, _ = jax.lax.scan(stage, jnp.zeros((_TIMES.size, start.size), dtype), rows)
        if _is_of_equations(terms):  # of which a step of no length would move algebraic variables
            k = jnp.where(control == 0, jnp.zeros_like(k), k)
        error = k[-1]
        # The last stage begins at the solution of order 4.
        y1 = unravel(start + product(alphas[-1], k) + error)
        return y1, unravel(error), jax.vmap(unravel)(product(jnp.asarray(_DENSE, dtype), k))
