"""Parametrizations: admissible sets (positive, SPD, Hurwitz, bounded) as images of all of R^k.

A gain must stay inside a set: `K_P` positive definite, a characteristic polynomial Hurwitz. Each
class here holds an unconstrained array `raw` and maps it smoothly onto such a set by `value`, so
that a gradient step of any length on `raw` keeps `value` admissible.
"""

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from numpy.typing import ArrayLike

from jaxdae.checks import are_known, fails, where_known
from jaxdae.formulations.gains import check_positive
from jaxdae.reprs import Module, shown


class AbstractParametrization(Module):
    """A value of a constrained set, held as an unconstrained array.

    Contract: `value` is admissible for every finite `raw` (up to overflow of the floating-point
    range), and `Parametrization(x).value` equals `x` up to round-off.
    """

    raw: eqx.AbstractVar[Float[Array, "..."]]

    @property
    @abc.abstractmethod
    def value(self) -> Float[Array, "..."]:
        """The admissible value."""

    def in_short(self) -> str:
        """Its value, and bounds where it has some, as it is made."""
        fields = {name: x for name, x in vars(self).items() if name != "raw"}
        texts = [shown(self.value), *(f"{name}={shown(x)}" for name, x in fields.items())]
        return f"{type(self).__name__}({', '.join(texts)})"


class Positive(AbstractParametrization):
    """Positive numbers, elementwise: `value = exp(raw)`.

    A vector gain is the diagonal of a diagonal SPD matrix. Steps on `raw` are relative changes of
    the value: 0.05 is five per cent.

    Args:
        x: positive value of any shape, in the unit of what it stands for.

    Raises:
        ValueError: if an entry of `x` is not a positive finite number.
    """

    raw: Float[Array, "..."]

    def __init__(self, x: ArrayLike):
        x = _floating("Positive", x)
        _require_positive("Positive: the value", x, _POSITIVE_REMEDY)
        self.raw = jnp.log(x)

    @property
    def value(self) -> Float[Array, "..."]:
        """The positive value, same shape as `raw`."""
        return jnp.exp(self.raw)


class PositiveDefinite(AbstractParametrization):
    """Symmetric positive definite matrices: `value = L L^T`, `L` lower triangular.

    The diagonal of `L` is the exponential of its `raw` entries, so the factorization is unique and
    `value` runs through all SPD matrices (log-Cholesky, [PinheiroBates1996]).

    Args:
        matrix: SPD matrix, shape (m, m).

    Raises:
        ValueError: if `matrix` is not square, not symmetric, or not positive definite.
    """

    raw: Float[Array, " m*(m+1)/2"]

    def __init__(self, matrix: ArrayLike):
        matrix = _floating("PositiveDefinite", matrix)
        _check_spd(matrix)
        factor = jnp.linalg.cholesky(matrix)
        _check_factor(factor)
        rows, columns, diagonal = _triangle(matrix.shape[0])
        packed = factor[rows, columns]
        self.raw = packed.at[diagonal].set(jnp.log(packed[diagonal]))

    @property
    def value(self) -> Float[Array, "m m"]:
        """The SPD matrix, exactly symmetric."""
        size = (math.isqrt(8 * self.raw.shape[-1] + 1) - 1) // 2
        rows, columns, diagonal = _triangle(size)
        raw = jnp.asarray(self.raw)  # NumPy where a user put it
        packed = raw.at[diagonal].set(jnp.exp(raw[diagonal]))
        factor = jnp.zeros((size, size), packed.dtype).at[rows, columns].set(packed)
        product = factor @ factor.T
        return 0.5 * (product + product.T)


class Interval(AbstractParametrization):
    """Numbers between two bounds: `value = lower + (upper - lower) / (1 + exp(-raw))`.

    Args:
        x: value strictly inside the bounds, any shape.
        lower: lower bound, broadcast to the shape of `x`; never trained.
        upper: upper bound, broadcast to the shape of `x`; never trained.

    Raises:
        ValueError: if `lower < upper` does not hold or an entry of `x` is not strictly inside.
    """

    raw: Float[Array, "..."]
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]

    def __init__(self, x: ArrayLike, lower: ArrayLike, upper: ArrayLike):
        x = _floating("Interval", x)
        lower = jnp.broadcast_to(_floating("Interval", lower), x.shape).astype(x.dtype)
        upper = jnp.broadcast_to(_floating("Interval", upper), x.shape).astype(x.dtype)
        remedy = "exchange the bounds or widen them"
        _require_positive("Interval: upper - lower", upper - lower, remedy)
        remedy = "start strictly inside, or widen the bounds"
        _require_positive("Interval: x - lower", x - lower, remedy)
        _require_positive("Interval: upper - x", upper - x, remedy)
        self.raw = jnp.log(x - lower) - jnp.log(upper - x)
        self.lower = lower
        self.upper = upper

    @property
    def value(self) -> Float[Array, "..."]:
        """The value inside the bounds; it reaches a bound only where `raw` saturates."""
        lower, upper = jax.lax.stop_gradient((self.lower, self.upper))
        return lower + (upper - lower) * jax.nn.sigmoid(self.raw)


class HurwitzPolynomial(AbstractParametrization):
    """Monic real polynomials whose roots all have negative real part.

    `s^n + c_{n-1} s^{n-1} + ... + c_1 s + c_0` is held as a product of quadratic factors
    `s^2 + a s + b` and, for odd `n`, one linear factor `s + c`; every real Hurwitz polynomial is
    such a product with positive `a`, `b`, `c`, and every such product is Hurwitz. `raw` holds
    `log(a_1), log(b_1), ..., [log(c)]`.

    `value` is *ascending without the leading one*, `(c_0, c_1, ..., c_{n-1})`: the gains of
    `y^(n) = -(c_0 y + c_1 y' + ... + c_{n-1} y^(n-1))`. `numpy.poly1d` order is
    `[1, *value[::-1]]`.

    Args:
        coefficients: `(c_0, ..., c_{n-1})`, shape (n,), `c_k` in s^(k-n).
        roots: the roots instead [1/s], shape (n,), complex ones in conjugate pairs.

    Raises:
        ValueError: if not exactly one of the two is given, the degree is zero, a root does not
            have a negative real part, or complex roots do not come in conjugate pairs.
        TypeError: if given a traced value; factoring needs concrete numbers.
    """

    raw: Float[Array, " n"]

    def __init__(self, coefficients: ArrayLike | None = None, *, roots: ArrayLike | None = None):
        if (coefficients is None) == (roots is None):
            raise ValueError("HurwitzPolynomial: give exactly one of `coefficients` and `roots`.")
        values = _concrete_vector(coefficients if roots is None else roots)
        located = np.polynomial.Polynomial([*values, 1.0]).roots() if roots is None else values
        _require_hurwitz(located)
        dtype = jnp.real(1.0 * jnp.asarray(values)).dtype
        self.raw = jnp.log(jnp.asarray(_factors(located), dtype=dtype))

    @property
    def value(self) -> Float[Array, " n"]:
        """Coefficients `(c_0, ..., c_{n-1})`, ascending, leading one left out."""
        factors = jnp.exp(self.raw)
        degree = factors.shape[-1]
        one = jnp.ones((1,), factors.dtype)
        polynomial = one
        for k in range(degree // 2):
            damping, stiffness = factors[2 * k], factors[2 * k + 1]
            polynomial = jnp.convolve(polynomial, jnp.stack([stiffness, damping, one[0]]))
        if degree % 2:
            polynomial = jnp.convolve(polynomial, jnp.stack([factors[-1], one[0]]))
        return polynomial[:-1]


def is_parametrization(x: Any) -> bool:
    """Whether `x` is a parametrization; the `is_leaf` of tree maps over parameters."""
    return isinstance(x, AbstractParametrization)


def resolve(params: PyTree) -> PyTree:
    """Replace every parametrization in a pytree by its `value`.

    Args:
        params: any pytree, e.g. a formulation whose gains are parametrizations.

    Returns:
        The same pytree with plain arrays in their place.
    """
    return jax.tree.map(
        lambda x: x.value if is_parametrization(x) else x, params, is_leaf=is_parametrization
    )


def trainable(params: PyTree) -> PyTree[bool]:
    """Which leaves of `params` an optimizer may change, as a filter for `equinox.partition`.

    Trained are the `raw` arrays of parametrizations and all other floating-point arrays. Python
    numbers, integer arrays and the bounds of an `Interval` are held fixed.

    Args:
        params: any pytree.

    Returns:
        The same pytree with a bool at every leaf.
    """

    def mark(x: Any) -> Any:
        if not is_parametrization(x):
            return eqx.is_inexact_array(x)
        fixed = jax.tree.map(lambda _: False, x)
        return eqx.tree_at(lambda p: p.raw, fixed, True)

    return jax.tree.map(mark, params, is_leaf=is_parametrization)


_POSITIVE_REMEDY = "start from a positive value, or leave the array plain if its sign is free"


def _floating(name: str, x: ArrayLike) -> Array:
    if x is None or isinstance(x, str | dict):
        raise TypeError(f"{name}: got {x!r}, needs a number or an array of numbers.")
    array = jnp.asarray(x)
    if jnp.iscomplexobj(array):
        raise ValueError(f"{name}: got a complex value, needs a real one; pass its real part.")
    floating = jnp.issubdtype(array.dtype, jnp.inexact)
    return array if floating else array.astype(jnp.result_type(float))


@where_known
def _require_positive(name: str, x: Array, remedy: str) -> None:
    array = np.asarray(x)
    bad = np.argwhere(~((array > 0) & np.isfinite(array)))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        where = f" at {list(index)}" if index else ""
        raise ValueError(f"{name}{where} is {array[index]:.6g}, must be > 0; {remedy}.")


def _check_spd(matrix: Array) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(
            f"PositiveDefinite: got shape {matrix.shape}, needs (m, m) with m >= 1; "
            "for a scalar or a positive diagonal use Positive."
        )
    check_positive("PositiveDefinite: the matrix", matrix)


def _check_factor(factor: Array) -> None:
    """Cholesky's algorithm may fail, by round-off, where the smallest eigenvalue is positive."""
    pivots = jnp.diagonal(factor) ** 2
    # A pivot is a difference of numbers as large as the largest, and round-off below eps of those.
    if fails(lambda x: x.min() > np.finfo(x.dtype).eps * x.max(), pivots):
        raise ValueError(
            f"PositiveDefinite: the matrix is singular to round-off in {factor.dtype}, its "
            f"Cholesky pivots are {pivots}; add a multiple of the identity."
        )


def _concrete_vector(values: Any) -> np.ndarray:
    if not are_known(values):
        raise TypeError(
            "HurwitzPolynomial: cannot factor a traced polynomial; build it outside of "
            "jit, grad and vmap, and pass the module in."
        )
    array = np.atleast_1d(np.asarray(values))
    if array.ndim != 1 or array.size == 0:
        raise ValueError(
            f"HurwitzPolynomial: got shape {array.shape}, needs a vector (n,) with n >= 1."
        )
    if not np.all(np.isfinite(array)):
        raise ValueError(f"HurwitzPolynomial: {array} is not finite; pass finite numbers.")
    return array


def _require_hurwitz(roots: np.ndarray) -> None:
    rightmost = roots[np.argmax(np.real(roots))]
    if rightmost.real >= 0:
        raise ValueError(
            f"HurwitzPolynomial: the root {rightmost:.6g} has real part {rightmost.real:.6g}, "
            "must be < 0; start from stable roots, e.g. "
            f"HurwitzPolynomial(roots=[-1.0] * {roots.size})."
        )


def _factors(roots: np.ndarray) -> np.ndarray:
    """Positive numbers (a_1, b_1, ..., [c]) of the quadratic and linear real factors."""
    roots = np.asarray(roots, dtype=complex)
    tolerance = np.sqrt(np.finfo(float).eps) * np.abs(roots)
    upper = np.sort_complex(roots[np.imag(roots) > tolerance])
    lower = np.sort_complex(roots[np.imag(roots) < -tolerance].conj())
    if upper.size != lower.size or not np.allclose(upper, lower, rtol=1e-6, atol=0.0):
        raise ValueError(
            f"HurwitzPolynomial: the complex roots {roots[np.abs(np.imag(roots)) > tolerance]} are "
            "not conjugate pairs; add the conjugate of each."
        )
    real = np.sort(np.real(roots[np.abs(np.imag(roots)) <= tolerance]))
    pairs = [(-2.0 * z.real, abs(z) ** 2) for z in upper]
    pairs += [(-(x + y), x * y) for x, y in zip(real[0:-1:2], real[1::2], strict=True)]
    flat = [number for pair in pairs for number in pair]
    return np.array(flat + ([-real[-1]] if real.size % 2 else []))


def _triangle(size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows and columns of the packed lower triangle, and where in it the diagonal lies."""
    rows, columns = np.tril_indices(size)
    return rows, columns, np.flatnonzero(rows == columns)


class CrankRocker(AbstractParametrization):
    r"""Lengths `(a, b, c, d)` of crank, coupler, rocker and ground of a crank-rocker.

    The crank turns all round where crank and ground, in line, close a triangle with the other two
    both ways (Grashof, with the crank the shortest):

        |b - c| < d - a,        a + d < b + c

    These are held as `d - a = a exp(r_1)`, `b - c = (d - a) tanh(r_2)` and
    `b + c = a + d + a exp(r_3)`, with `a = exp(r_0)`: every step of an optimizer stays inside, and
    the two ways to assemble the loop never meet.

    Args:
        lengths: `(a, b, c, d)` [m], shape (4,).

    Raises:
        ValueError: for lengths that make no crank-rocker, with the inequality.
    """

    raw: Float[Array, " 4"]

    def __init__(self, lengths: ArrayLike):
        lengths = jnp.asarray(lengths, dtype=float)
        if lengths.shape != (4,):
            raise ValueError(
                f"CrankRocker: got shape {lengths.shape}, needs (4,): crank, coupler, rocker, "
                "ground."
            )
        _require_crank_rocker(lengths)
        a, b, c, d = lengths
        skew = jnp.arctanh((b - c) / (d - a))
        self.raw = jnp.stack([jnp.log(a), jnp.log((d - a) / a), skew, jnp.log((b + c - a - d) / a)])

    @property
    def value(self) -> Float[Array, " 4"]:
        """The lengths, shape (4,)."""
        a, longer, slack = jnp.exp(self.raw[jnp.array([0, 1, 3])])
        apart = a * longer
        difference, total = apart * jnp.tanh(self.raw[2]), a * (2 + longer + slack)
        return jnp.stack([a, (total + difference) / 2, (total - difference) / 2, a + apart])


@where_known
def _require_crank_rocker(lengths) -> None:
    a, b, c, d = np.asarray(lengths)
    if not (np.isfinite(lengths).all() and a > 0):
        raise ValueError(f"CrankRocker: the lengths are {lengths}; all must be positive numbers.")
    for left, right, words in (
        (abs(b - c), d - a, "|coupler - rocker| < ground - crank"),
        (a + d, b + c, "crank + ground < coupler + rocker"),
    ):
        if not left < right:
            raise ValueError(
                f"CrankRocker: the crank does not turn all round: {words} does not hold, "
                f"{left:.6g} against {right:.6g}; shorten the crank."
            )
