"""How kernels make the steps of solvers."""

import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxdae.solvers.base import (
    AbstractIterativeSolver,
    AbstractStepMethod,
    AbstractTracedSolver,
    at_once,
    remembers,
    Step,
    step_in_kernel,
)
from jaxdae.solvers.constrained_term import enforces_constraints, splits
from jaxdae.solvers.implicit_stages import ImplicitStages


def packed(tree, dtype) -> jax.Array:
    """All arrays of a pytree, one after the other."""
    leaves = [jnp.ravel(x).astype(dtype) for x in jax.tree.leaves(eqx.filter(tree, _is_array))]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, dtype)


def packed_size(shapes) -> int:
    """Numbers in all arrays of a pytree, or of their shapes."""
    return sum(x.size for x in jax.tree.leaves(eqx.filter(shapes, _is_array)))


def unpacked(numbers, shapes):
    """A pytree of given shapes and types, from `packed`; what is no array in it stays."""
    arrays, rest = eqx.partition(shapes, _is_array)
    leaves, structure = jax.tree.flatten(arrays)
    # The last part, behind all of them, is empty.
    *parts, _ = jnp.split(numbers, np.cumsum([x.size for x in leaves], dtype=int))
    results = [
        (part != 0 if x.dtype == np.bool_ else part.astype(x.dtype)).reshape(x.shape)
        for part, x in zip(parts, leaves, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(structure, results), rest)


def _is_array(x) -> bool:
    return eqx.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def step_method(
    solver, equations: "ConstrainedEquations | None" = None
) -> AbstractStepMethod | str:
    """How kernels make the steps of a solver, or why they cannot.

    Args:
        solver: of diffrax.
        equations: what a solver is given that takes a `ConstrainedTerm`, or the parts of a motion.
    """
    name = type(solver).__name__
    if isinstance(solver, AbstractTracedSolver):
        of_motions = enforces_constraints(solver) or solver.takes_parts
        of_motions |= equations is not None and equations.always
        return SolverSteps(solver, equations if of_motions else None)
    if splits(solver):
        return f"{name} splits the rate into an explicit and an implicit part"
    single = isinstance(getattr(solver, "tableau", None), diffrax.ButcherTableau)
    if not (isinstance(solver, diffrax.AbstractERK | diffrax.AbstractESDIRK) and single):
        return f"{name} is no explicit or diagonally implicit Runge-Kutta method with one tableau"
    # A kernel makes the steps that the tableau describes.
    for method in ("init", "step", "func"):
        if getattr(type(solver), method) is not getattr(diffrax.AbstractRungeKutta, method):
            return f"{name} has a method {method} of its own"
    if isinstance(solver, diffrax.AbstractERK):
        return ExplicitRungeKutta(solver)
    return ImplicitStages(solver)


class ExplicitRungeKutta(AbstractStepMethod):
    """Steps of an explicit Runge-Kutta method, by its tableau.

    Args:
        solver: a diffrax solver with one tableau.
    """

    solver: diffrax.AbstractERK
    evaluates_only: ClassVar[bool] = True

    @property
    def tableau(self) -> diffrax.ButcherTableau:
        """The method's coefficients."""
        tableau: Any = self.solver.tableau
        return tableau

    def carried(self, states: int) -> int:
        return states if self.tableau.fsal else 0

    def dense_shape(self, states: int) -> tuple[int, ...]:
        return self.tableau.num_stages, states

    def evaluations(self, dense: bool) -> int:
        tableau = self.tableau
        rows = [*tableau.a_lower, *([] if tableau.ssal else [tableau.b_sol])]
        used = (i + 1 for row in rows for i, x in enumerate(row) if x != 0)
        return tableau.num_stages if dense else max(used)

    def init(self, rate: Callable, t0, y0):
        return rate(t0, y0) if self.tableau.fsal else y0[:0]

    def step(self, rate: Callable, t0, t1, y0, carry, each: Callable = at_once) -> Step:
        tableau, h = self.tableau, t1 - t0
        f = carry if tableau.fsal and carry is not None else rate(t0, y0)
        rates, y = [f], y0
        for i, (row, c) in enumerate(zip(tableau.a_lower, tableau.c, strict=True)):
            y = _combined(each, f"stage_{i}", h, y0, row, rates)
            f = rate(t1 if c == 1 else t0 + float(c) * h, y)
            rates.append(f)
        if not tableau.ssal:
            y = _combined(each, "solution", h, y0, tableau.b_sol, rates)

        def error():
            return _error(each, h, tableau.b_error, rates)

        def dense():
            return jnp.stack([each("increment", operator.mul, h, f, wrt=(1,)) for f in rates])

        return Step(y, error, f[: self.carried(y0.size)], dense)

    def interpolate(self, t0, t1, y0, y1, dense, t):
        make: Any = _in_dtype(self.solver.interpolation_cls, y0.dtype)
        return make(t0=t0, t1=t1, y0=y0, y1=y1, k=dense).evaluate(t)


@functools.cache
def _in_dtype(interpolation: Any, dtype: np.dtype) -> Any:
    """Dense output with coefficients in the precision of a kernel, which has no other numbers."""
    fourth = diffrax.FourthOrderPolynomialInterpolation
    if not (isinstance(interpolation, type) and issubclass(interpolation, fourth)):
        return interpolation
    coefficients = np.asarray(interpolation.c_mid, dtype)
    return type(interpolation.__name__, (interpolation,), {"c_mid": coefficients})


class ConstrainedEquations(NamedTuple):
    """The equations of a motion, for solvers that look at more of it than a rate.

    Args:
        make: from the parameters of a kernel to the term, its arguments `(system, formulation,
            controller)`, and 1 or -1: kernels take times as increasing.
        parameters: shapes of these.
        unravel: from a state as one vector to its structure.
        always: whether there is no rate, and every solver is given the term.
    """

    make: Callable
    parameters: tuple
    unravel: Callable
    always: bool = False


class SolverSteps(AbstractStepMethod):
    """Steps that a solver makes by itself, traced as they are.

    Args:
        solver: of ordinary differential equations, or of motions.
        equations: the latter; `None` for the former.
    """

    solver: AbstractTracedSolver
    equations: ConstrainedEquations | None = eqx.field(default=None, static=True)
    evaluates_only: ClassVar[bool] = False

    def carried(self, states: int) -> int:
        # Those of Runge-Kutta methods hand on a rate alone, and whether there is one: a branch.
        one_step = isinstance(self.solver, diffrax.AbstractRungeKutta)
        return 0 if one_step else packed_size(self._carry_shapes(_zeros(states)))

    @property
    def remembers(self) -> bool:
        return remembers(self.solver)

    @property
    def counts(self) -> bool:
        return isinstance(self.solver, AbstractIterativeSolver)

    def dense_shape(self, states: int) -> tuple[int, ...]:
        return (packed_size(self._dense_shapes(_zeros(states))),)

    def init(self, rate: Callable, t0, y0):
        if not self.carried(y0.size):
            return y0[:0]
        term, args, sign = self._terms(rate)
        # Where the first step ends is not known yet: what depends on it is no number.
        state = self.solver.init(term, sign * t0, jnp.nan * t0, self._tree(y0), args)
        return packed(state, y0.dtype)

    def step(self, rate: Callable, t0, t1, y0, carry, each: Callable = at_once) -> Step:
        term, args, sign = self._terms(rate)
        t0, t1, tree = sign * t0, sign * t1, self._tree(y0)
        count = self.carried(y0.size)
        known = carry is not None and count > 0
        if known:
            state = unpacked(carry, self._carry_shapes(y0))
        else:
            state = self.solver.init(term, t0, t1, tree, args)
        # What has been begun here is of here.
        (y1, error, dense, state, result), counts = step_in_kernel(
            self.solver, term, t0, t1, tree, args, state, made_jump=count == 0
        )
        self._known["dense", y0.size, y0.dtype] = _shapes_of(_within(dense))
        y1 = jnp.where(diffrax.is_okay(result), _vector(y1, y0), jnp.nan)
        none = jnp.zeros_like(y0)
        return Step(
            y1,
            lambda: none if error is None else _vector(error, y0),
            packed(state, y0.dtype)[:count],
            lambda: packed(_within(dense), y0.dtype),
            counts,
        )

    def interpolate(self, t0, t1, y0, y1, dense, t):
        parts = unpacked(dense, self._dense_shapes(y0))
        make: Any = self.solver.interpolation_cls
        ends = {"y0": self._tree(y0), "y1": self._tree(y1)}
        return _vector(make(t0=t0, t1=t1, **ends, **parts).evaluate(t), y0)

    def _terms(self, rate: Any) -> tuple[diffrax.AbstractTerm, Any, Any]:
        if self.equations is None:
            return diffrax.ODETerm(_WithoutArguments(rate)), None, 1
        return self.equations.make(rate.parameters)

    def _tree(self, y):
        return y if self.equations is None else self.equations.unravel(y)

    def _carry_shapes(self, y0):
        """Of what the solver hands from step to step."""
        return self._traced("carry", self._begun, y0)

    def _dense_shapes(self, y0):
        """Of what its dense output is made of: of a step, which takes longer to trace."""

        def made(t, y, *parameters):
            state, (term, args, tree) = self._begun(t, y, *parameters), self._given(y, parameters)
            given = term, t, t, tree, args, state
            (_, _, dense, *_), _ = step_in_kernel(self.solver, *given, made_jump=True)
            return _within(dense)

        return self._traced("dense", made, y0)

    def _given(self, y, parameters):
        term, args, _ = self._terms(_Still(parameters))
        return term, args, self._tree(y)

    def _begun(self, t, y, *parameters):
        term, args, tree = self._given(y, parameters)
        return self.solver.init(term, t, t, tree, args)

    def _traced(self, name: str, function: Callable, y0):
        """Shapes of a function of time, state and parameters; traced once, or where it is used."""
        key = name, y0.size, y0.dtype
        if key not in self._known:
            parameters = () if self.equations is None else self.equations.parameters
            zero = jnp.zeros((), y0.dtype)
            self._known[key] = eqx.filter_eval_shape(function, zero, y0, *parameters)
        return self._known[key]

    @property
    def _known(self) -> dict[tuple, Any]:
        """Shapes that have been found."""
        return vars(self).setdefault("known", {})  # beside the fields


class _WithoutArguments(NamedTuple):
    """A rate as diffrax calls it, with the arrays in it known to derivatives with own rules."""

    rate: Any

    def __call__(self, t, y, args):
        return self.rate(t, y)


class _Still(NamedTuple):
    """A rate for the sake of shapes."""

    parameters: tuple

    def __call__(self, t, y):
        return y


def _shapes_of(tree):
    shape = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if _is_array(x) else x  # noqa: E731
    return jax.tree.map(shape, tree)


def _vector(tree, like):
    return ravel_pytree(tree)[0].astype(like.dtype)


def _zeros(states: int):
    return np.zeros(states, jnp.result_type(float))


def _within(dense: dict) -> dict:
    """What dense output is made of beside the two states."""
    return {name: x for name, x in dense.items() if name not in ("y0", "y1")}


def _combined(each: Callable, name: str, h, y, coefficients, rates):
    """`y + sum_j (c_j h) f_j` of the coefficients that are not zero."""
    coefficients, rates = _used(coefficients, rates)

    def combination(h, y, *rates):
        return sum(((c * h) * f for c, f in zip(coefficients, rates, strict=True)), y)

    return each(name, combination, h, y, *rates, wrt=tuple(range(1, len(rates) + 2)))


def _error(each: Callable, h, coefficients, rates):
    """`h sum_j e_j f_j`: products with `h` are rounded apart, and would not cancel as well."""
    coefficients, rates = _used(coefficients, rates)

    def estimate(h, *rates):
        return h * sum(c * f for c, f in zip(coefficients, rates, strict=True))

    return each("error", estimate, h, *rates, wrt=tuple(range(1, len(rates) + 1)))


def _used(coefficients, rates) -> tuple[list[float], list]:
    """Coefficients that are not zero, and their rates."""
    pairs = [(float(c), f) for c, f in zip(coefficients, rates, strict=False) if c != 0]
    return [c for c, _ in pairs], [f for _, f in pairs]
