r"""Stability functions: what a method makes of `dy/dt = H y` in one step of size `h`.

A Runge-Kutta method with tableau `(a, b)` multiplies by `R(hH)`, with

    R(z) = 1 + z b^T (I - z a)^-1 1 = det(I - z a + z 1 b^T) / det(I - z a)

[HairerWanner1996, section IV.3]. That of a Rosenbrock method is the same with the sum of both its
matrices for `a` (`linear_stages`). An Adams-Bashforth method of `k` steps multiplies by the roots
of `zeta^k - zeta^(k-1) - z (b_1 zeta^(k-1) + … + b_k) = 0`.
"""

import diffrax
import numpy as np


def is_multistep(solver) -> bool:
    """Whether a solver is an explicit multistep method, such as `jaxdae.solvers.AdamsBashforth`.

    It has `linear_steps`, the weights of the newest to the oldest rate in steps of one length.
    """
    return hasattr(solver, "linear_steps")


def has_tableau(solver) -> bool:
    """Whether `tableau` knows the coefficients of a solver."""
    if isinstance(solver, diffrax.AbstractWrappedSolver):
        return False  # though to diffrax it is of the kind of the solver that it wraps
    table = getattr(solver, "tableau", None)
    return isinstance(table, diffrax.ButcherTableau) or isinstance(
        solver, diffrax.Euler | diffrax.ImplicitEuler
    )


def tableau(solver) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Full Butcher tableau `(a, b, c)` of a diffrax Runge-Kutta solver, from its own coefficients.

    Args:
        solver: a Runge-Kutta solver of diffrax or of `jaxdae.solvers`.

    Returns:
        `a (stages, stages)`, `b (stages,)`, `c (stages,)`.

    Raises:
        ValueError: for a solver that has no Butcher tableau.
    """
    if not has_tableau(solver):
        if has_stability_function(solver):
            raise ValueError(
                f"{type(solver).__name__} is no Runge-Kutta method, and of its steps the stability "
                "function alone is known, which sets step limits of given gains but does not "
                "choose gains; it is stable for all gains whose violations decay."
            )
        raise ValueError(
            f"{type(solver).__name__} has no Butcher tableau of one right-hand side; step limits "
            "are known for Runge-Kutta solvers (Euler, Heun, RK4, Dopri5, Tsit5, Kvaerno5, …), "
            "jaxdae.solvers.Rodas5P() and jaxdae.solvers.AdamsBashforth(steps)."
        )
    if isinstance(solver, diffrax.Euler):
        return np.zeros((1, 1)), np.ones(1), np.zeros(1)
    if isinstance(solver, diffrax.ImplicitEuler):
        return np.ones((1, 1)), np.ones(1), np.ones(1)
    table = solver.tableau
    b = np.asarray(table.b_sol, float)
    a = np.zeros((b.size, b.size))
    for i, row in enumerate(table.a_lower):
        a[i + 1, : len(row)] = row
    if table.a_diagonal is not None:
        a += np.diag(np.asarray(table.a_diagonal, float))
    return a, b, np.concatenate([[table.c1], np.asarray(table.c, float)])


def has_stability_function(solver) -> bool:
    """Whether `stability_function` knows a solver."""
    if isinstance(solver, diffrax.AbstractWrappedSolver):
        return False
    return has_tableau(solver) or hasattr(solver, "linear_stages")


def linear_stages(solver) -> tuple[np.ndarray, np.ndarray]:
    """`(a, b)` by which a solver steps linear equations with constant coefficients.

    `a (stages, stages)`, lower triangular, and `b (stages,)`: of a Runge-Kutta solver its tableau,
    of another one, which has an attribute of this name, whatever gives `R(z)`.
    """
    if has_stability_function(solver) and not has_tableau(solver):
        return solver.linear_stages
    return tableau(solver)[:2]


def amplification(solver, z) -> np.ndarray:
    """Factor by which one step multiplies a solution of `dy/dt = (z / h) y`.

    Args:
        solver: one with a stability function, or an explicit multistep method.
        z: complex numbers of any shape.

    Returns:
        `|R(z)|`, or the largest root of the multistep method, of the shape of `z`.
    """
    z = np.asarray(z, complex)
    if is_multistep(solver):
        return _largest_root(solver, z)
    return np.abs(stability_function(solver, z))


def stability_function(solver, z) -> np.ndarray:
    """`R(z)` of a solver (`linear_stages`) at complex numbers, of their shape.

    Stage by stage: no cancellation at small `z`.
    """
    (a, b), z = linear_stages(solver), np.asarray(z, complex)
    flat = z.ravel()
    stages = np.empty((b.size, flat.size), complex)
    for i in range(b.size):
        stages[i] = (1 + flat * (a[i, :i] @ stages[:i])) / (1 - flat * a[i, i])
    return (1 + flat * (b @ stages)).reshape(z.shape)


def zeros(solver) -> np.ndarray:
    """Zeros of `R(z)` in the left half-plane, those of multiplicity `k` `k` times.

    `R(z)` vanishes where `I - z (a - 1 b^T)` is singular and `I - z a` is not.

    Args:
        solver: one with a stability function.

    Returns:
        Complex, the nearest to the origin first; empty for methods without any.
    """
    a, b = linear_stages(solver)
    inverse = np.linalg.eigvals(a - np.ones((b.size, 1)) * b)
    # A stage that the step does not depend on leaves an inverse of zero, to round-off.
    z = 1 / inverse[(inverse.real < 0) & (np.abs(inverse) > 1e-2)]
    step = 1e-5
    for _ in range(3):
        slope = (stability_function(solver, z + step) - stability_function(solver, z - step)) / (
            2 * step
        )
        change = stability_function(solver, z) / np.where(np.abs(slope) > 1e-4, slope, np.inf)
        z = z - change
    z = z[np.abs(stability_function(solver, z)) < 1e-9]  # others are cancelled by a pole
    z = np.where(np.abs(z.imag) < 1e-6 * np.abs(z), z.real + 0j, z)
    return z[np.argsort(np.abs(z), kind="stable")]


def step_matrix(H, h: float, solver) -> np.ndarray:
    """`R(hH)`: the matrix by which one step of a method multiplies `y`.

    Args:
        H: matrix `(p, p)`, or a function of the fraction of the step in `[0, 1]` that returns one:
            then the matrix is that of the linear equation with varying coefficients.
        h: step [s].
        solver: a Runge-Kutta solver; for a constant matrix one with a stability function.

    Returns:
        Shape `(p, p)`.
    """
    if callable(H):
        a, b, c = tableau(solver)
        samples = [np.asarray(H(fraction), float) for fraction in c]
    else:
        a, b = linear_stages(solver)
        samples = [np.asarray(H, float)] * b.size
    eye, rates = np.eye(len(samples[0])), []
    # Stage rates K_i = H_i (y + h sum_j a_ij K_j); diffrax's tableaux are lower triangular.
    for i, sample in enumerate(samples):
        known = eye + h * sum((a[i, j] * rate for j, rate in enumerate(rates)), 0 * eye)
        rates.append(np.linalg.solve(eye - h * a[i, i] * sample, sample @ known))
    return eye + h * np.einsum("i,ijk->jk", b, np.array(rates))


def _largest_root(method, z):
    weights = method.linear_steps
    k = weights.size
    companion = np.zeros((*z.shape, k, k), complex)
    companion[..., 0, :] = z[..., None] * weights
    companion[..., 0, 0] += 1
    companion[..., np.arange(1, k), np.arange(k - 1)] = 1
    return np.abs(np.linalg.eigvals(companion)).max(axis=-1)
