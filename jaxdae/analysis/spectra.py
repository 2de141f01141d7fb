r"""Spectrum of a linearization, and the verdict on stability that follows from it.

In redundant coordinates `m` roots are zero whatever the forces are. For position constraints they
say nothing about stability: the constraints force the errors of the dependent coordinates to
vanish, so that negative real parts of all other roots give asymptotic stability [Krasinskaya2013,
section 5]. A nonholonomic system has `r` zero roots more; nothing forces their variables to vanish,
its equilibria form an `r`-dimensional manifold, and the same spectrum gives stability only
(Lyapunov-Malkin).
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxdae.analysis.linearization import drift_rows, Linearization
from jaxdae.reprs import shown
from jaxdae.systems.calls import check_instance
from jaxdae.tables import root_text

Verdict = Literal["asymptotically stable", "stable", "unstable", "undecided"]

# Round-off of the matrix entries, in units of the machine epsilon times the norm and the size of
# the matrix: they come from two derivatives and a saddle-point solve.
ROUNDOFF = 100.0


class Spectrum(NamedTuple):
    """Roots of the linearized motion, and what they say.

    Args:
        roots: all `2n-m-r+k` of them, constraint zeros included.
        constraint_zeros: number `m` of zero roots that the position constraints make.
        nonholonomic_zeros: number `r` of those that the velocity constraints make.
        others: the roots that decide, by decreasing real part.
        tolerances: uncertainty of each of `others`.
        accidental_zeros: how many of `others` vanish to within their tolerance.
        verdict: "asymptotically stable", "stable", "unstable" or "undecided".
        reason: in words, with the numbers.
    """

    roots: NDArray[np.complex128]
    constraint_zeros: int
    nonholonomic_zeros: int
    others: NDArray[np.complex128]
    tolerances: np.ndarray
    accidental_zeros: int
    verdict: Verdict
    reason: str

    def __repr__(self) -> str:
        return shown(self)


def spectrum(linearization: Linearization) -> Spectrum:
    r"""Roots, and the verdict on the stability of the equilibrium.

    The constraint zeros are taken off by structure: they are the zero rows that the errors of the
    dependent coordinates have, not roots that look small. A root of what remains counts as lying
    on the imaginary axis if its real part is below its own uncertainty, the first-order bound
    `|d root| <= cond(root) |dA|`, with `|dA|` the round-off of the matrix; for roots that are
    (nearly) defective, whose bound is infinite, that of a double root, `sqrt(|dA| |A|)`.

    Verdicts: *unstable* for a root with positive real part; *asymptotically stable* (position
    constraints) or *stable* (velocity constraints too) for negative real parts throughout; for
    critical roots *stable* where the forces have energies only and the second variation of the
    potential on the constraints is positive definite (Lagrange-Dirichlet), else *undecided*: terms
    of higher order decide.

    Args:
        linearization: from `jaxdae.analysis.linearize`; concrete numbers.

    Returns:
        `Spectrum`.

    Raises:
        TypeError: for anything but a linearization.
        ValueError: for one that is not finite.
    """
    lin = linearization
    check_instance("linearization", lin, Linearization, "jaxdae.linearize(system, equilibrium)")
    A = np.asarray(lin.A, np.float64)
    if not np.isfinite(A).all():
        raise ValueError("the linearization has entries that are not finite: no equilibrium there?")
    m, r = lin.position_constraints, lin.velocity_constraints
    # Velocity constraints that position errors violate at rest make no zero roots.
    zeros = 0 if len(drift_rows(lin)) else r
    core = A[: len(A) - zeros, : len(A) - zeros]
    eps = float(np.finfo(np.asarray(lin.A).dtype).eps)
    others, tolerances = root_bounds(core, eps)
    accidental = int((np.abs(others) <= tolerances).sum())
    verdict, reason = _verdict(lin, others, tolerances, accidental, zeros)
    roots = np.concatenate([others, np.zeros(m + zeros, np.complex128)])
    return Spectrum(roots, m, zeros, others, tolerances, accidental, verdict, reason)


def root_bounds(matrix, eps: float) -> tuple[NDArray[np.complex128], np.ndarray]:
    """Eigenvalues by decreasing real part, and bounds of each for entries of precision `eps`."""
    size = len(matrix)
    if size == 0:
        return np.zeros(0, np.complex128), np.zeros(0)
    # Imported here: it takes longer than the rest of the package, which does not need it.
    from scipy.linalg import matrix_balance

    balanced = matrix_balance(np.asarray(matrix, np.float64), permute=False)[0]
    roots, vectors = (np.asarray(x, np.complex128) for x in np.linalg.eig(balanced))
    norm = np.linalg.norm(balanced, 2)
    error = ROUNDOFF * size * eps
    left = np.linalg.pinv(vectors)
    # Unit right vectors, and left vectors with y x = 1: the condition number is the length of y.
    condition = np.linalg.norm(left, axis=1)
    condition = np.where(np.isfinite(condition), condition, np.inf)
    bounds = norm * np.minimum(condition * error, np.sqrt(error))
    order = np.lexsort((np.imag(roots), -np.real(roots)))
    return roots[order], np.maximum(bounds, error * norm)[order]


def _verdict(lin, others, tolerances, accidental, zeros) -> tuple[Verdict, str]:
    if others.size == 0:
        return "stable", "nothing can move: the constraints leave no degree of freedom."
    margin = others.real - tolerances
    worst = others[np.argmax(margin)]
    if margin.max() > 0:
        return "unstable", (
            f"the root {root_text(worst)} has a positive real part (Lyapunov's theorem on the "
            "first approximation)."
        )
    if (others.real < -tolerances).all():
        return _hurwitz(lin, others, zeros)
    return _critical(lin, others, tolerances, accidental)


def _hurwitz(lin, others, zeros) -> tuple[Verdict, str]:
    slowest = f"{len(others)} roots have negative real parts, the largest {others.real.max():.6g}"
    m, r = lin.position_constraints, lin.velocity_constraints
    holonomic = f"; {m} zero roots belong to position constraints, which force their variables to 0"
    if zeros == 0:
        return "asymptotically stable", slowest + (holonomic if m else "") + "."
    return "stable", (
        f"{slowest}{holonomic if m else ''}; {zeros} zero roots belong to velocity constraints: "
        f"the equilibria form a {r}-dimensional manifold, and a perturbed motion tends to one of "
        "them, in general not to this one."
    )


def _critical(lin, others, tolerances, accidental) -> tuple[Verdict, str]:
    on_axis = int((np.abs(others.real) <= tolerances).sum())
    count = f"{on_axis} of {len(others)} roots lie on the imaginary axis, {accidental} of them at 0"
    energy = _energy_argument(lin)
    if energy is not None:
        return "stable", f"{count}; {energy}"
    why = (
        "zero roots beyond those of the constraints mean a neutral direction: a family of "
        "equilibria, a symmetry, or a degenerate potential"
        if accidental
        else "the first approximation cannot decide"
    )
    return "undecided", f"{count}; {why}. Terms of higher order decide."


def _energy_argument(lin) -> str | None:
    """Lagrange-Dirichlet on the constraints, where it applies."""
    if not lin.conservative:
        return None
    stiffness, damping = np.asarray(lin.stiffness), np.asarray(lin.damping)
    eps = float(np.finfo(stiffness.dtype).eps)
    least = np.linalg.eigvalsh((stiffness + stiffness.T) / 2).min()
    slack = ROUNDOFF * len(stiffness) * eps
    drag = np.linalg.eigvalsh((damping + damping.T) / 2).min()
    if least <= slack * np.abs(stiffness).max() or drag < -slack * np.abs(damping).max():
        return None
    return (
        "the forces come from energies and a dissipation that is convex at rest, and the second "
        f"variation of V - T0 on the constraints is positive definite (least eigenvalue "
        f"{least:.6g}): stable by the theorem of Lagrange and Dirichlet."
    )
