"""Linear-quadratic regulators that are sampled, differentiable through the Riccati equation."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.analysis.controllability import controllability
from jaxdae.analysis.discretization import check_period, held, HeldSystem
from jaxdae.analysis.linearization import Linearization
from jaxdae.analysis.riccati import (
    check_weighted,
    check_weights,
    regulated_part,
    Regulator,
    weighted,
)
from jaxdae.checks import where_known
from jaxdae.tables import root_text

# Doubling converges quadratically: 2^30 samples are enough for roots within 1e-7 of the unit
# circle.
_DOUBLINGS = 30
_POLISH_STEPS = 2


def dlqr(
    A, B=None, Q=None, R=None, *, period=None, errors: Sequence[str | int] | None = None
) -> Regulator:
    r"""The sampled regulator that minimizes `int (s^T Q s + u^T R u) dt` with inputs that are held.

        ds/dt = A s + B u,    u = -K s_k    from sample k to the next

    Sampled system and cost are those of the continuous ones, exactly [VanLoan1978]: from sample to
    sample `s_{k+1} = A_d s_k + B_d u_k` at the cost `s^T Q_d s + 2 s^T N_d u + u^T R_d u`, and

        P = A_d^T P A_d + Q_d - K^T S K,   S = R_d + B_d^T P B_d,   K = S^-1 (B_d^T P A_d + N_d^T)

    By the doubling algorithm [ChuFanLinWang2004], polished by Newton's steps; derivatives, by the
    period too, are those of the solution, as those of `lqr`. Works under `jit`, `vmap`, forward and
    reverse mode.

    Of a linearized system, `dlqr(linearization, Q=Q, R=R, period=h)`, it is the regulator on the
    part that the constraints leave, which `lqr` explains, with `feedback`: a law that has no memory
    and is a policy of a sampled controller.

    Args:
        A: matrix, shape `(s, s)`; or the linearization of a system about an equilibrium with
            controls, from `jaxdae.linearize`.
        B: matrix, shape `(s, i)`; none beside a linearization, which has its own.
        Q: weight of the state, symmetric positive semidefinite `(s, s)`; by default the identity.
        R: weight of the input, SPD `(i, i)`; by default the identity.
        period: from sample to sample [s]. Without one `A` and `B` are `A_d` and `B_d` themselves,
            and the cost is the sum of `s_k^T Q s_k + u_k^T R u_k`.
        errors: of a linearization, as `lqr` takes them.

    Returns:
        `Regulator`; its `roots` are those of `A_d - B_d K`, the largest first.

    Raises:
        TypeError: for a matrix without its `B`, a linearization with a `B` or without a period.
        ValueError: for shapes that do not fit, weights that are not definite, a period that is not
            positive, a pair that is not stabilizable, or not any more as it is sampled (with the
            root), or a cost that does not see an unstable or critical root.
    """
    if isinstance(A, Linearization):
        if B is not None or period is None:
            raise TypeError(
                "a linearization has its own B, and is sampled: dlqr(linearization, period=…)."
            )
        part = regulated_part(A, errors)
        regulator = dlqr(part.A, part.B, Q, R, period=period)
        return regulator._replace(feedback=part.feedback(regulator.K))
    if B is None:
        raise TypeError("the matrix B of the inputs is missing: dlqr(A, B).")
    if errors is not None:
        raise TypeError("errors are those of a linearization; matrices A and B have none.")
    system = sampled_system(*weighted(A, B, Q, R), period)
    P, K = _solution(*system)
    closed_loop = system.A - system.B @ K
    check_stabilized(closed_loop, P)
    return Regulator(K, P, sampled_roots(closed_loop))


def sampled_system(A, B, Q, R, period) -> HeldSystem:
    """The system from sample to sample with its cost, where a regulator can stabilize it."""
    if period is None:
        check_weights(("Q", Q, len(A)), ("R", R, B.shape[-1]))
        _check_stabilizable(A, B, "")
        return HeldSystem(A, B, Q, R, jnp.zeros_like(B))
    check_period(period)
    check_weighted(A, B, Q, R)
    system = held(A, B, Q, R, jnp.asarray(period, A.dtype))
    why = f" as it is sampled, every {period} s; take another period"
    _check_stabilizable(system.A, system.B, why)
    return system


@where_known
def _check_stabilizable(A, B, why: str) -> None:
    root = fixed_root(A, B)
    if root is not None:
        raise ValueError(
            f"the pair (A, B) is not stabilizable{why}: no feedback moves the root "
            f"z = {root_text(root)} of the step from sample to sample."
        )


def fixed_root(A, B) -> complex | None:
    """The largest root on or outside of the unit circle that no input moves, if there is one."""
    reach = controllability(A, B)
    sizes = np.abs(reach.roots) + reach.tolerances
    return reach.roots[np.argmax(sizes)] if (sizes >= 1).any() else None


@where_known
def sampled_roots(matrix) -> np.ndarray:
    """Roots of a step from sample to sample, the largest first."""
    roots = np.asarray(np.linalg.eigvals(np.asarray(matrix)), complex)
    return roots[np.argsort(-np.abs(roots))]


@where_known
def check_stabilized(
    closed_loop,
    P,
    cause: str = "the cost does not see",
    remedy: str = "Give every unstable or critical direction a weight in Q.",
) -> None:
    """Refuse a solution `P` of a Riccati equation that leaves a root on the unit circle."""
    if not np.isfinite(np.asarray(P)).all():
        raise ValueError(
            f"the Riccati equation has no stabilizing solution: {cause} a critical root, |z| = 1. "
            f"{remedy}"
        )
    closed_loop = np.asarray(closed_loop)
    largest = max(np.linalg.eigvals(closed_loop), key=abs)
    if not abs(largest) < 1 - 100 * len(closed_loop) * np.finfo(closed_loop.dtype).eps:
        raise ValueError(f"the root z = {root_text(largest)} stays: {cause} it. {remedy}")


@jax.jit
def _solution(A, B, Q, R, N):
    """`P` and `K`; the product of state and input in the cost is taken into both."""
    shift = jnp.linalg.solve(R, N.T)
    P, K = discrete_riccati(A - B @ shift, B, Q - N @ shift, R)
    return P, K + shift


def discrete_riccati(A, B, Q, R):
    """The stabilizing `P`, and `K = (R + B^T P B)^-1 B^T P A`; not finite where none is."""
    P = _solve(A, B, Q, R)
    return P, _gain(A, B, R, P)


def _gain(A, B, R, P):
    return jnp.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)


@jax.custom_jvp
def _solve(A, B, Q, R):
    P = _by_doubling(A, B @ jnp.linalg.solve(R, B.T), Q)

    def polish(_, P):
        K = _gain(A, B, R, P)
        return _solve_stein(A - B @ K, Q + K.T @ R @ K)

    return jax.lax.fori_loop(0, _POLISH_STEPS, polish, P)


@_solve.defjvp
def _solve_jvp(primals, tangents):
    A, B, Q, R = primals
    dA, dB, dQ, dR = tangents
    P = _solve(A, B, Q, R)
    K = _gain(A, B, R, P)
    closed = A - B @ K
    # P = closed^T P closed + K^T R K + Q is least by K, which therefore has no part in the change.
    cross = closed.T @ P @ (dA - dB @ K)
    change = cross + cross.T + dQ + K.T @ dR @ K
    return P, _solve_stein(closed, (change + change.T) / 2)


def _solve_stein(A, S):
    """`X` with `X = A^T X A + S`, by one linear system of `s^2` unknowns."""
    eye = jnp.eye(A.size, dtype=A.dtype)
    X = jnp.linalg.solve(eye - jnp.kron(A.T, A.T), S.ravel()).reshape(S.shape)
    return (X + X.T) / 2


def _by_doubling(A, inputs, Q):
    """First approximation: what 2^k samples cost, from k to k + 1."""
    eye = jnp.eye(len(A), dtype=A.dtype)

    def double(_, state):
        A, G, H = state
        right = jnp.linalg.solve(eye + G @ H, jnp.concatenate([A, G], axis=1))
        by_A, by_G = right[:, : len(A)], right[:, len(A) :]
        G_next, H_next = G + A @ by_G @ A.T, H + A.T @ H @ by_A
        return A @ by_A, (G_next + G_next.T) / 2, (H_next + H_next.T) / 2

    return jax.lax.fori_loop(0, _DOUBLINGS, double, (A, inputs, Q))[2]
