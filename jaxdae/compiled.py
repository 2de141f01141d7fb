"""Compiled programs, apart for values that Python alone takes for equal: 1, 1.0 and True.

Programs are compiled ahead and called without what JAX would keep beside them: the trace of a
program, of all that it calls and of all derivatives, takes as much memory as the program.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.extend.core as jex
import numpy as np
from jax import dtypes

from jaxdae.checks import are_known, calls_programs
from jaxdae.memory import kinds, Memory, settings
from jaxdae.primitives.interpreter import interpreted, NotInterpretedError

# Programs of one function, and traces of one that is shared, that are kept.
_MOST_PROGRAMS, _MOST_TRACES = 1024, 16
# XLA's older generators of loops, and one module of machine code in place of one for each loop take
# half the time to compile, for programs that are as fast.
ORDINARY: dict[str, Any] = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
# Of programs that run for less time than they take to compile: no optimization.
BRIEFLY: dict[str, Any] = {
    **ORDINARY,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


class _Programs:
    """Programs of a function of static and varying arguments.

    Args:
        function: of a `_Static` and as many arrays as that says.
        name: of the programs.
        options: of XLA's compiler, or a function that has them of the result's shapes.
        interpreted: how many first calls NumPy computes.
    """

    def __init__(self, function: Callable, name: str, options: "_Options", *, interpreted: int = 0):
        self._function, self._name, self._options = function, name, options
        self._interpreted = interpreted
        self._traced = jax.jit(self._named(function), static_argnums=0)
        self._kept = Memory(_MOST_PROGRAMS)

    def _named(self, function: Callable) -> Callable:
        def call(*arguments):
            return function(*arguments)

        call.__name__ = call.__qualname__ = self._name
        return call

    def __call__(self, static: "_Static", varying: list) -> Any:
        """The function's result."""
        if not calls_programs():
            return self._traced(static, *varying)
        try:
            hash(static)
        except TypeError:  # JAX says so in its own words
            return self._traced(static, *varying)
        return self.compiled(static, varying)(*varying)

    def compiled(self, static: "_Static", varying: list) -> Callable:
        """The program for arguments that are known, a function of what varies."""
        key = static, *map(_array_kind, varying)
        return self._kept.get(key, None, lambda: self._compiled(static, varying))

    def _compiled(self, static: "_Static", varying: list) -> Callable:
        traced, options = self.traced(static, varying), self._options
        if callable(options):
            options = options(traced.out_info.tree(varying))
        if self._interpreted:
            return _Interpreted(traced, options, self._interpreted)
        return _compile(traced.lower(), options)

    def traced(self, static: "_Static", varying: list) -> Any:
        """A trace that lives no longer than its result: JAX keeps it as long as the function."""
        function = self._named(functools.partial(self._function, static))
        return jax.jit(function).trace(*varying)


class _Interpreted:
    """A program that NumPy computes in its first calls, and that is compiled then.

    Args:
        traced: by JAX.
        options: of XLA's compiler.
        calls: how many.
    """

    def __init__(self, traced: Any, options: dict[str, Any], calls: int):
        self._options, self._left = options, calls
        self._structure = jax.tree.structure(traced.out_info)
        # One of both: the trace lives as long as it is needed.
        self._made: tuple[Any, Any] = traced, None

    def __call__(self, *varying) -> Any:
        """The function's result."""
        traced, program = self._made
        if program is not None:
            return program(*varying)
        if self._left > 0:
            self._left -= 1
            try:
                found = interpreted(traced.jaxpr, list(varying))
                return jax.tree.unflatten(self._structure, jax.device_put(found))
            except NotInterpretedError:
                self._left = 0
        program = _compile(traced.lower(), self._options)
        self._made = None, program
        return program(*varying)


# Options that this release of XLA has turned out not to know.
_UNKNOWN: set[str] = set()


def _compile(lowered: Any, options: dict[str, Any]) -> Callable:
    """A program, by those of the options that XLA knows: they come and go with its releases."""
    known = {name: value for name, value in options.items() if name not in _UNKNOWN}
    try:
        return lowered.compile(known)
    except jax.errors.JaxRuntimeError as error:
        named = {name for name in known if f"'{name}'" in str(error)}
        if not named:
            raise
        _UNKNOWN.update(named)
        return _compile(lowered, options)


_Options = dict[str, Any] | Callable[[Any], dict[str, Any]]


def _array_kind(x) -> tuple:
    """What a program knows of an array: shape and type, and where it is, if there are choices."""
    if not isinstance(x, jax.Array):
        return (float,) if type(x) is float else (x.shape, x.dtype, False)
    kind: tuple = x.shape, x.dtype, getattr(x, "weak_type", False)
    return kind if jax.device_count() == 1 else (*kind, x.sharding, x.committed)


class Jitted:
    """A function as `jit` compiles it.

    Args:
        function: to be compiled; of any arguments.
        options: of XLA's compiler.
        interpreted: how many first calls NumPy computes.
    """

    def __init__(self, function: Callable, options: _Options, *, interpreted: int = 0):
        functools.update_wrapper(self, function)

        def of_leaves(static: _Static, *varying):
            arguments, named = static.rebuilt(varying)
            leaves, structure = jax.tree.flatten(function(*arguments, **named))
            places = {id(x): i for i, x in enumerate(varying)}
            sources = [places.get(id(x)) if not are_known(x) else None for x in leaves]
            computed = [eqx.is_array(x) and i is None for x, i in zip(leaves, sources, strict=True)]
            rest = tuple(
                _Argument(i) if i is not None else None if c else x
                for x, i, c in zip(leaves, sources, computed, strict=True)
            )
            arrays = [x for x, c in zip(leaves, computed, strict=True) if c]
            return _Result(arrays, structure, rest)

        name = getattr(function, "__name__", "of_leaves")
        self._programs = _Programs(of_leaves, name, options, interpreted=interpreted)

    def __call__(self, *arguments, **named) -> Any:
        """The function's result, by the compiled program."""
        static, varying = self._separated(arguments, named)
        return self._programs(static, varying).tree(varying)

    def bind(self, *arguments, **named) -> "Bound":
        """A call with these arguments, to be made again and again: what varies is found once."""
        return Bound(self._programs, *self._separated(arguments, named))

    @staticmethod
    def _separated(arguments, named) -> tuple["_Static", list]:
        static, varying = _separated((arguments, named), floats=False)
        return static, [_unchanging(x) for x in varying]


class Bound:
    """A call with its arguments.

    Args:
        programs: of the function.
        static: what arguments are beside their arrays.
        varying: their arrays.
    """

    def __init__(self, programs: _Programs, static: "_Static", varying: list):
        self._programs, self._static, self._varying = programs, static, varying
        self._known: Any = None

    def __call__(self, *last) -> Any:
        """The function's result, with other arrays of the same kinds as the last ones."""
        static, varying = self._static, self._varying
        if not calls_programs():
            varying = [*varying[: len(varying) - len(last)], *last]
            return self._programs(static, varying).tree(varying)
        now = settings()
        if self._known is None or self._known[0]() is not now:
            # On the device: what a program takes from the host it moves there in every call.
            arrays = list(map(_on_device, varying))
            self._known = weakref.ref(now), self._programs.compiled(static, varying), arrays
        _, program, arrays = self._known
        arrays = [*arrays[: len(arrays) - len(last)], *last] if last else arrays
        return program(*arrays).tree(arrays)

    def with_arrays(self, old: list, new: list) -> "Bound | None":
        """The same with other arrays in the places of some, `None` where they are not one each."""
        places = [id(x) for x in self._varying]
        if any(places.count(id(x)) != 1 for x in old):
            return None
        changed = {places.index(id(x)): _unchanging(y) for x, y in zip(old, new, strict=True)}
        other = Bound(
            self._programs, self._static, [changed.get(i, x) for i, x in enumerate(self._varying)]
        )
        if self._known is not None and all(
            _array_kind(self._varying[i]) == _array_kind(y) for i, y in changed.items()
        ):
            now, program, arrays = self._known
            arrays = [_on_device(changed[i]) if i in changed else x for i, x in enumerate(arrays)]
            other._known = now, program, arrays
        return other


def jit(
    function: Callable | None = None,
    *,
    options: _Options = ORDINARY,
    interpreted: int = 0,
) -> Any:
    """`jax.jit` of a function of any arguments and results, as `equinox.filter_jit` compiles it.

    Arrays vary, all else is part of the key, with the kinds of values that Python alone takes for
    equal. A call costs a fraction of one of `filter_jit`; in return errors that are raised in the
    program (`equinox.error_if`) are those of JAX.

    Args:
        function: to be compiled; of any arguments.
        options: of XLA's compiler, such as `BRIEFLY`, or a function that has them of the result,
            with shapes in place of arrays. Programs inside of others are compiled as these are.
        interpreted: how many first calls NumPy computes, to round-off the same, in less time than
            compiling takes; for what is read of a run, not for what it begins from.
    """
    if function is None:
        return functools.partial(jit, options=options, interpreted=interpreted)
    return Jitted(function, options, interpreted=interpreted)


def _unchanging(x):
    """An array; of NumPy's, which can be changed, a copy as a program sees it."""
    if not isinstance(x, np.ndarray | np.generic):
        return x
    copied = np.array(x, dtypes.canonicalize_dtype(x.dtype))
    copied.flags.writeable = False
    return copied


def _on_device(x):
    # Not by jnp.asarray, which compiles a program for each shape.
    return x if isinstance(x, jax.Array) else jax.device_put(x)


class _Argument(NamedTuple):
    """One of the arguments, in a result that it is handed on to: no program has to copy it."""

    place: int


@jax.tree_util.register_pytree_node_class
class _Result:
    """What a program returns: arrays that it computes, and what else stands among them."""

    __slots__ = ("arrays", "rest", "structure")

    def __init__(self, arrays: Any, structure: Any, rest: tuple):
        self.arrays, self.structure, self.rest = arrays, structure, rest

    def tree_flatten(self):
        return self.arrays, (self.structure, self.rest)

    @classmethod
    def tree_unflatten(cls, about, arrays):
        return cls(arrays, *about)

    def tree(self, varying) -> Any:
        """As it was returned, from these arguments."""
        arrays = iter(self.arrays)
        leaves = [
            next(arrays) if x is None else varying[x.place] if type(x) is _Argument else x
            for x in self.rest
        ]
        return self.structure.unflatten(leaves)


def shared(function: Callable) -> Callable:
    """A function whose trace all programs share that call it with arguments of the same kinds.

    Differentiating a system is most of the work of tracing one; fields, multipliers, warnings and
    adjoints, of all formulations, need the same derivatives. In programs it is a function that is
    called, whose derivatives, batches and lowering JAX makes once; operations have the lines they
    come from. Outside of programs it is compiled. The last traces are kept, until
    `jax.clear_caches()`.

    Args:
        function: of any arguments; arrays and floats among them vary, all else is part of the key.
    """

    def of_leaves(static: _Static, *varying):
        arguments, named = static.rebuilt(varying)
        return function(*arguments, **named)

    programs, traces = _Programs(of_leaves, function.__name__, ORDINARY), Memory(_MOST_TRACES)

    @functools.wraps(function)
    def call(*arguments, **named):
        static, varying = _separated((arguments, named))
        try:
            hash(static)
        except TypeError:
            return function(*arguments, **named)
        if are_known(*varying):
            return programs(static, varying)

        def trace():
            traced = programs.traced(static, varying)
            if len(traced.jaxpr.in_avals) > len(varying):  # a function in them knows traced numbers
                return None
            called = jax.jit(jex.jaxpr_as_fun(traced.jaxpr))
            return called, jax.tree.structure(traced.out_info)

        known = traces.get((static, *map(jax.typeof, varying)), None, trace)
        if known is None:
            return function(*arguments, **named)
        called, structure = known
        return jax.tree.unflatten(structure, called(*varying))

    return call


class _Static(NamedTuple):
    """What arguments are beside the numbers in them.

    Args:
        structure: of all arguments.
        leaves: those that do not vary, `None` for the others.
        varies: which do.
        kinds: of all else that is in them.
    """

    structure: Any
    leaves: tuple
    varies: tuple[bool, ...]
    kinds: Any

    def rebuilt(self, varying):
        """The arguments, with these numbers."""
        numbers = iter(varying)
        pairs = zip(self.leaves, self.varies, strict=True)
        return jax.tree.unflatten(self.structure, [next(numbers) if v else x for x, v in pairs])


def _separated(arguments, *, floats: bool = True) -> tuple[_Static, list]:
    """What stays the same in arguments, and the numbers: arrays, and floats where they vary."""
    leaves, structure = jax.tree.flatten(arguments)
    varies = tuple(eqx.is_array(x) or (floats and type(x) is float) for x in leaves)
    pairs = list(zip(leaves, varies, strict=True))
    rest = tuple(None if v else x for x, v in pairs)
    others = kinds(arguments) if not floats else kinds(jax.tree.unflatten(structure, rest))
    return _Static(structure, rest, varies, others), [x for x, v in pairs if v]
