"""Linear-quadratic regulators in continuous time, differentiable through the Riccati equation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from jaxdae.analysis.controllability import check_pair, controllability
from jaxdae.analysis.linearization import drift_rows, Linearization
from jaxdae.checks import are_known, where_known
from jaxdae.formulations.gains import check_positive, symmetric
from jaxdae.reprs import Module, shown
from jaxdae.systems.calls import described
from jaxdae.tables import root_text

# The scaled sign iteration converges quadratically after a few steps; 30 are enough for roots that
# differ by ten orders of magnitude.
_SIGN_STEPS = 30
_POLISH_STEPS = 4


class RegulatorFeedback(Module):
    """State feedback about an equilibrium, on the independent coordinates and velocities.

        u = u0 - K (q_I - q_I0, v_I, w - w0, errors (q - q0))

    Args:
        K: gain, shape `(i, 2d+k+e)` for `d` independent coordinates and `e` errors.
        q: coordinates of the equilibrium, shape `(n,)`.
        w: actuator state there, shape `(k,)`.
        u: controls there, shape `(i,)`.
        independent: indices of the independent coordinates.
        errors: errors of dependent coordinates that move, from all coordinates, shape `(e, n)`;
            `None` for none.
        frame: `Linearization.frame`, changes of position from those of the coordinates; `None`
            where velocities are rates of coordinates.
    """

    K: Float[Array, "i s"]
    q: Float[Array, " n"]
    w: Float[Array, " k"]
    u: Float[Array, " i"]
    independent: tuple[int, ...] = eqx.field(static=True)
    errors: Float[Array, "e n"] | None = None
    frame: Float[Array, "d n"] | None = None

    def __call__(self, t, q, v, w):
        del t
        free = jnp.array(self.independent, int)
        moved = q - self.q if self.frame is None else self.frame @ (q - self.q)
        state = [moved[free], v[free], w - self.w]
        if self.errors is not None:
            state.append(self.errors @ moved)
        return self.u - self.K @ jnp.concatenate(state)


class Regulator(NamedTuple):
    """A linear-quadratic regulator.

    Args:
        K: gain of `u = -K s`, shape `(i, s)`.
        P: `s^T P s` is the cost of returning from `s`, shape `(s, s)`.
        roots: of `A - B K`, shape `(s,)`, of `dlqr` those of the step from sample to sample; `None`
            under a transformation.
        feedback: of a linearization, the controller of the system, a `RegulatorFeedback`; `None` of
            matrices.
    """

    K: Float[Array, "i s"]
    P: Float[Array, "s s"]
    roots: NDArray[np.complex128] | None
    feedback: Any = None

    def __repr__(self) -> str:
        return shown(self)


def lqr(A, B=None, Q=None, R=None, *, errors: Sequence[str | int] | None = None) -> Regulator:
    r"""The regulator that minimizes `int (s^T Q s + u^T R u) dt` along `ds/dt = A s + B u`.

        A^T P + P A - P B R^-1 B^T P + Q = 0,    K = R^-1 B^T P

    By the matrix sign function of the Hamiltonian matrix [Roberts1980], polished by Newton-Kleinman
    steps: JAX has no Riccati solver, and SciPy's runs on the host alone. Derivatives of every order
    are those of the solution, from a Lyapunov equation; the algorithm is not differentiated. The
    Lyapunov equations are solved as linear systems of `s^2` unknowns, for up to some dozens of
    states. Works under `jit`, `vmap`, forward and reverse mode.

    Of a linearized system, `lqr(linearization, Q=Q, R=R)`, it is the regulator on the part that the
    constraints leave, with `feedback`, a controller for `simulate`. The errors of dependent
    coordinates, `z`, come in two kinds. Position constraints force theirs to vanish: they are left
    out [Krasinskaya2013, section 6]. Those of velocity constraints obey `dz/dt = D s`, with the
    state `s = (x, v_I, dw, z)` and the `drift` `D` of the linearization. Constraints that hold at
    rest have `D = 0`: their errors are constant, no input moves these zero roots, and they are left
    out as well. Where a displacement violates a constraint at rest the errors move: they have roots
    of their own, which inputs can reach through `x`, and they stay. Of dependent rows of `D` the
    combinations `c^T z` with `c^T D = 0` are constant and are left out.

    Args:
        A: matrix, shape `(s, s)`; or the linearization of a system about an equilibrium with
            controls, from `jaxdae.linearize`.
        B: matrix, shape `(s, i)`; none beside a linearization, which has its own.
        Q: weight of the state, symmetric positive semidefinite `(s, s)`; by default the identity.
            Of a linearization the state is `(x, v_I, dw, z)`, where `z` are the `e` errors that
            stay, or coordinates in an orthonormal basis of their space, and `s = 2d+k+e`.
        R: weight of the input, SPD `(i, i)`; by default the identity.
        errors: of a linearization, names or indices of the coordinates of
            `Linearization.partition.nonholonomic` whose errors stay; by default decided by the
            numbers of `D`, which needs concrete ones.

    Returns:
        `Regulator`.

    Raises:
        TypeError: for a matrix without its `B`, a linearization with a `B`, or anything else.
        ValueError: for shapes that do not fit, weights that are not definite, a pair that is not
            stabilizable (with the root), or a cost that does not see an unstable or critical root;
            for an equilibrium without controls; or for `errors` that do not fit.
    """
    if isinstance(A, Linearization):
        if B is not None:
            raise TypeError(
                "a linearization has its own B; give weights by name, lqr(linearization, Q=…, R=…)."
            )
        return _of_linearization(A, Q, R, errors)
    if not (hasattr(A, "shape") or isinstance(A, list | tuple)):
        raise TypeError(
            f"A is {described(A)}; give jaxdae.linearize(system, equilibrium), or matrices A and B."
        )
    if B is None:
        raise TypeError("the matrix B of the inputs is missing: lqr(A, B), or lqr(linearization).")
    if errors is not None:
        raise TypeError("errors are those of a linearization; matrices A and B have none.")
    return _of_matrices(A, B, Q, R)


def _of_matrices(A, B, Q, R) -> Regulator:
    A, B, Q, R = weighted(A, B, Q, R)
    check_weighted(A, B, Q, R)
    P, K = _solution(A, B, Q, R)
    return Regulator(K, P, _roots(A - B @ K, P))


def weighted(A, B, Q, R) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`A`, `B` and weights as arrays of one precision; weights that are `None` are identities."""
    A, B, Q, R = (np.asarray(x) if isinstance(x, list | tuple) else x for x in (A, B, Q, R))
    dtype = jnp.result_type(*(x for x in (A, B, Q, R) if x is not None), float)
    A, B = jnp.asarray(A, dtype), jnp.asarray(B, dtype)
    Q = jnp.eye(A.shape[0], dtype=dtype) if Q is None else jnp.asarray(Q, dtype)
    R = jnp.eye(B.shape[1], dtype=dtype) if R is None else jnp.asarray(R, dtype)
    return A, B, Q, R


@where_known
def _roots(closed_loop, P) -> np.ndarray:
    """Roots of the closed loop, rightmost first."""
    if not np.isfinite(np.asarray(P)).all():
        raise ValueError(
            "the Riccati equation has no stabilizing solution: the cost does not see a critical "
            "root. Give every unstable or critical direction a weight in Q."
        )
    roots = np.asarray(np.linalg.eigvals(np.asarray(closed_loop)), complex)
    worst = roots[np.argmax(np.real(roots))]
    if not worst.real < 0:
        raise ValueError(
            f"the regulator leaves the root {root_text(worst)}: the cost does not see it. Give "
            "every unstable or critical direction a weight in Q."
        )
    return roots[np.argsort(-np.real(roots))]


def _of_linearization(lin: Linearization, Q, R, errors) -> Regulator:
    """On the part that constraints leave, with the controller of the system."""
    part = regulated_part(lin, errors)
    regulator = _of_matrices(part.A, part.B, Q, R)
    return regulator._replace(feedback=part.feedback(regulator.K))


class RegulatedPart(NamedTuple):
    """The part of a linearization that constraints leave, with the errors that move.

    Args:
        A: shape `(s, s)`.
        B: shape `(s, i)`.
        basis: its coordinates from the state of the linearization, orthonormal rows.
        errors: rows that pick the errors that move, shape `(e, r)`.
        linearization: it is a part of.
    """

    A: Float[Array, "s s"]
    B: Float[Array, "s i"]
    basis: Float[Array, "s f"]
    errors: Float[Array, "e r"]
    linearization: Linearization

    def feedback(self, K) -> RegulatorFeedback:
        """`u = u0 - K s` as a controller of the system."""
        lin, eq = self.linearization, self.linearization.equilibrium
        errors = _errors(lin, self.errors)
        independent = lin.partition.independent
        return RegulatorFeedback(K, eq.q, eq.w, jnp.ravel(eq.u), independent, errors, lin.frame)


def regulated_part(lin: Linearization, errors) -> RegulatedPart:
    """What a regulator of a linearization acts on.

    Args:
        lin: about an equilibrium with controls.
        errors: of `lqr`.
    """
    if lin.equilibrium.u is None:
        raise ValueError("the equilibrium has no controls; find it with equilibrium(…, u=…).")
    kept = _moving_errors(lin, errors)
    r, (e, size) = lin.velocity_constraints, (kept.shape[0], lin.A.shape[0])
    basis = jnp.eye(size, dtype=lin.A.dtype)[: size - r]
    basis = jnp.concatenate([basis, jnp.zeros((e, size), basis.dtype).at[:, size - r :].set(kept)])
    return RegulatedPart(basis @ lin.A @ basis.T, basis @ lin.B, basis, kept, lin)


def _moving_errors(lin: Linearization, names) -> Float[Array, "e r"]:
    """Rows that pick, of the errors of velocity constraints, those that move."""
    nonholonomic, dtype = lin.partition.nonholonomic, lin.A.dtype
    r = len(nonholonomic)
    if names is not None:
        return jnp.eye(r, dtype=dtype)[jnp.array(_places(lin, names), int)]
    if r == 0:
        return jnp.zeros((0, 0), dtype)
    if not are_known(lin.drift):
        raise ValueError(
            "which errors of velocity constraints move is decided by numbers, which a "
            "transformation hides: name them, lqr(linearization, errors=(…)), under jit, vmap and "
            "grad; errors=() for constraints that hold at rest."
        )
    rows = drift_rows(lin)
    # All of them: in their own coordinates, whose weights a user can give.
    return jnp.asarray(np.eye(r) if len(rows) == r else rows, dtype)


def _places(lin: Linearization, names) -> list[int]:
    nonholonomic = lin.partition.nonholonomic
    labels, out = lin.coordinates, []
    for name in names:
        index = labels.index(name) if name in labels else name
        if index not in nonholonomic:
            known = ", ".join(labels[i] for i in nonholonomic) or "none"
            raise ValueError(
                f"errors = {tuple(names)}: {name!r} is none of the coordinates that velocity "
                f"constraints determine; these are: {known}."
            )
        out.append(nonholonomic.index(index))
    return out


def _errors(lin: Linearization, kept) -> Float[Array, "e n"] | None:
    """`z = q_E - q_E0 - B_E x` from all coordinates, in the rows that are kept."""
    if kept.shape[0] == 0:
        return None
    parts = (lin.partition.independent, lin.partition.nonholonomic)
    free, rows = (jnp.array(x, int) for x in parts)
    positions = lin.positions if lin.frame is None else lin.frame @ lin.positions
    by_x = positions[rows][:, : len(free)]
    pick = jnp.zeros((len(rows), len(positions)), by_x.dtype)
    pick = pick.at[jnp.arange(len(rows)), rows].set(1.0).at[:, free].add(-by_x)
    return kept @ pick


@jax.jit
def _solution(A, B, Q, R):
    """`P` and `K`; compiled as one, once for each size."""
    P = _solve_riccati(A, B, Q, R)
    return P, jnp.linalg.solve(R, B.T @ P)


@jax.custom_jvp
def _solve_riccati(A, B, Q, R) -> Float[Array, "s s"]:
    """The stabilizing `P` of `A^T P + P A - P B R^-1 B^T P + Q = 0`; not finite where none is."""
    inputs = B @ jnp.linalg.solve(R, B.T)
    P = _by_sign(A, inputs, Q)

    def polish(_, P):
        closed = A - inputs @ P
        return _solve_lyapunov(closed, Q + P @ inputs @ P)

    return jax.lax.fori_loop(0, _POLISH_STEPS, polish, P)


@_solve_riccati.defjvp
def _riccati_jvp(primals, tangents):
    A, B, Q, R = primals
    dA, dB, dQ, dR = tangents
    P = _solve_riccati(A, B, Q, R)
    K = jnp.linalg.solve(R, B.T @ P)
    # d(P B R^-1 B^T P) with P held: K^T dB^T P + P dB K - K^T dR K.
    cross = P @ dA - P @ dB @ K
    change = cross + cross.T + dQ + K.T @ dR @ K
    return P, _solve_lyapunov(A - B @ K, (change + change.T) / 2)


def _solve_lyapunov(A, S) -> Float[Array, "s s"]:
    """`X` with `A^T X + X A + S = 0`, by one linear system of `s^2` unknowns."""
    eye = jnp.eye(len(A), dtype=A.dtype)
    matrix = jnp.kron(A.T, eye) + jnp.kron(eye, A.T)
    X = jnp.linalg.solve(matrix, -S.ravel()).reshape(S.shape)
    return (X + X.T) / 2


def _by_sign(A, inputs, Q):
    """First approximation, from the stable invariant subspace of the Hamiltonian matrix."""
    n = len(A)
    hamiltonian = jnp.block([[A, -inputs], [-Q, -A.T]])

    def iterate(_, Z):
        inverse = jnp.linalg.inv(Z)
        # Scaling by norms evens out slow and fast roots; at convergence it is 1.
        c = jnp.sqrt(jnp.linalg.norm(inverse) / jnp.linalg.norm(Z))
        return 0.5 * (c * Z + inverse / c)

    sign = jax.lax.fori_loop(0, _SIGN_STEPS, iterate, hamiltonian)
    # (sign + I) (I; P) = 0 on the stable subspace.
    eye = jnp.eye(n, dtype=A.dtype)
    left = jnp.concatenate([sign[:n, n:], sign[n:, n:] + eye])
    right = -jnp.concatenate([sign[:n, :n] + eye, sign[n:, :n]])
    P = jnp.linalg.lstsq(left, right)[0]
    return (P + P.T) / 2


@where_known
def check_weighted(A, B, Q, R) -> None:
    """Shapes, weights, and a pair whose unstable roots feedback moves; else a `ValueError`."""
    A, B = check_pair(A, B)
    check_weights(("Q", Q, len(A)), ("R", R, B.shape[1]))
    reach = controllability(A, B)
    if not reach.stabilizable:
        i = int(np.argmax(np.real(reach.roots) + reach.tolerances))
        raise ValueError(
            f"the pair (A, B) is not stabilizable: no feedback moves the root "
            f"{root_text(reach.roots[i])} (controllable dimension {reach.rank} of {len(A)}). Leave "
            "that part out (lqr of a linearization drops the zero roots of position constraints, "
            "and of velocity constraints that hold at rest), or add an input that reaches it."
        )


@where_known
def check_weights(semidefinite: tuple, definite: tuple) -> None:
    """Two symmetric matrices, each given as its name, itself and its size; else a `ValueError`."""
    for name, weight, count in (semidefinite, definite):
        if weight.shape != (count, count):
            raise ValueError(f"{name} must have shape ({count}, {count}); got {weight.shape}.")
        if not np.isfinite(np.asarray(weight)).all():
            raise ValueError(f"{name} must be finite.")
    check_positive(*definite[:2])
    name, weight, _ = semidefinite
    least = np.linalg.eigvalsh(symmetric(name, weight)).min()
    if least < -1e-6 * np.abs(weight).max():
        raise ValueError(
            f"{name} must be positive semidefinite; its least eigenvalue is {least:.6g}."
        )
