"""A function of runs as one of vectors: values, derivatives, and what is asked of the runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from jaxdae.diagnosis.observation import Observation, observing, SeenRun
from jaxdae.formulations.structure import used_leaves
from jaxdae.results.trajectory import Trajectory

# What differentiation raises where a function, or a part of it, has no derivative of the mode.
_REFUSALS = (TypeError, ValueError, NotImplementedError)
_LIBRARIES = (str(Path(jax.__file__).parent.parent), str(Path(__file__).parents[1]))


class Differentiated(NamedTuple):
    """Values, and a derivative of one mode, of weighted values; or why there is none."""

    value: np.ndarray | None = None
    slope: np.ndarray | None = None
    refusal: str = ""


class Evaluator:
    """A function of one vector, its derivatives, and the runs behind them; its programs are kept.

    Args:
        function: of a pytree of floating-point arrays; returns a pytree with such arrays.
        params: an example of the former.
    """

    def __init__(self, function: Callable, params: PyTree):
        leaves, self._structure = jax.tree.flatten(params)
        paths = jax.tree_util.tree_leaves_with_path(params)
        self.names = [jax.tree_util.keystr(path) or "the parameter" for path, _ in paths]
        self._kinds = [(x.shape, x.dtype) for x in leaves]
        self._ends = np.cumsum([0, *(x.size for x in leaves)])
        self._function = function
        self.returns_integers = False

        def forward(x, v):
            return jax.jvp(self._vector, (x,), (v,))

        def reverse(x, w):
            y, back = jax.vjp(self._vector, x)
            return y, back(w.astype(y.dtype))[0]

        def by_leaves(x, v):
            return jax.vmap(lambda v: jax.jvp(self._vector, (x,), (v,))[1])(v)

        self._values, self._by_leaves = jax.jit(self._vector), jax.jit(by_leaves)
        self._forward, self._reverse = jax.jit(forward), jax.jit(reverse)

    def _vector(self, params: PyTree):
        """The floating-point numbers that the function returns, as a vector."""
        result = self._function(params)
        result = result.states if isinstance(result, Trajectory) else result
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(result) if eqx.is_array_like(x)]
        if any(jnp.iscomplexobj(x) for x in leaves):
            raise ValueError(
                "certify: the function returns complex numbers; return their real and imaginary "
                "parts."
            )
        real = [x for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)]
        if not leaves:
            raise ValueError(
                "certify: the function returns no array; return what is differentiated."
            )
        self.returns_integers = not real
        return jnp.concatenate([jnp.ravel(x) for x in real or [x.astype(float) for x in leaves]])

    def tree(self, vector: np.ndarray) -> PyTree:
        """Parameters from one vector."""
        parts = zip(self._ends[:-1], self._ends[1:], self._kinds, strict=True)
        leaves = [jnp.asarray(vector[a:b].reshape(shape), kind) for a, b, (shape, kind) in parts]
        return jax.tree.unflatten(self._structure, leaves)

    def flat(self, params: PyTree) -> np.ndarray:
        """Parameters as one vector in double precision."""
        return np.concatenate([np.asarray(x, float).ravel() for x in jax.tree.leaves(params)])

    # Evaluations, each with what it asks of the runs.

    def evaluate(self, x: np.ndarray) -> tuple[np.ndarray, Any, list[SeenRun]]:
        """Values, their type, and the runs that were made for them."""
        with observing(Observation(sees=True)) as seen:
            value = jax.block_until_ready(self._values(self.tree(x)))
        return np.asarray(value, float), value.dtype, seen

    def forward(self, x: np.ndarray, v: np.ndarray, **asked: Any) -> Differentiated:
        """Values and `J v`."""
        return self._differentiated(self._forward, Observation(mode="forward", **asked), x, v)

    def reverse(self, x: np.ndarray, w: np.ndarray, **asked: Any) -> Differentiated:
        """Values and `J^T w`."""
        return self._differentiated(self._reverse, Observation(mode="reverse", **asked), x, w)

    def _differentiated(self, program, asked, x, direction) -> Differentiated:
        given = self.tree(direction) if program is self._forward else jnp.asarray(direction)
        try:
            with observing(asked):
                value, slope = jax.block_until_ready(program(self.tree(x), given))
        except _REFUSALS as error:
            return Differentiated(refusal=str(error).split("\n")[0][:200])
        return Differentiated(np.asarray(value, float), self.flat(slope))

    def by_leaves(self, x: np.ndarray, v: np.ndarray) -> np.ndarray | None:
        """`J v` for the part of a direction in each leaf, shape (leaves, m)."""
        count = len(self.names)
        rows = np.zeros((count, v.size))
        for i, (a, b) in enumerate(zip(self._ends[:-1], self._ends[1:], strict=True)):
            rows[i, a:b] = v[a:b]
        trees = [self.tree(row) for row in rows]
        try:
            with observing(Observation(mode="forward")):
                moved = jax.tree.map(lambda *xs: jnp.stack(xs), *trees)
                return np.asarray(self._by_leaves(self.tree(x), moved), float)
        except _REFUSALS:
            return None

    def unused(self, x: np.ndarray) -> list[str]:
        """Names of the leaves that the function's program never reads."""
        with observing(Observation()):
            used = used_leaves(self._vector, self.tree(x))
        named = zip(self.names, used, self._kinds, strict=True)
        return [name for name, kept, (shape, _) in named if not kept and 0 not in shape]

    def own_rules(self, x: np.ndarray) -> list[str]:
        """Functions in the program that have rules of derivatives that a user wrote."""
        with observing(Observation()):
            program = jax.make_jaxpr(self._vector)(self.tree(x))
        return [*dict.fromkeys(_own_rules(program.jaxpr))]

    @property
    def epsilon(self) -> float:
        """Round-off of the coarsest parameters."""
        return max(float(jnp.finfo(kind).eps) for _, kind in self._kinds)

    def slices(self) -> list[slice]:
        """Places of the leaves in the vector."""
        return [slice(a, b) for a, b in zip(self._ends[:-1], self._ends[1:], strict=True)]


def _own_rules(jaxpr: Any) -> list[str]:
    """Names of functions with rules of their own that are not of a library."""
    found = []
    for equation in jaxpr.eqns:
        inner = [
            x.jaxpr if hasattr(x, "jaxpr") else x
            for value in equation.params.values()
            for x in (value if isinstance(value, tuple | list) else (value,))
            if hasattr(x, "jaxpr") or hasattr(x, "eqns")
        ]
        if equation.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
            about = [getattr(getattr(x, "debug_info", None), "func_src_info", "") for x in inner]
            text = next((x for x in about if x), "")
            if text and not any(x in text for x in _LIBRARIES):
                found.append(text)
        for x in inner:
            found += _own_rules(x)
    return found
