"""Parameters of primitives that rules read, and those that change no number.

A release of JAX that adds one, or leaves one out, is met with a word instead of another meaning.
"""

import inspect

import jax.extend.core as jex

from jaxdae.linalg.lu import COMPLEX_FACTORS, FACTORS, PIVOTED_FACTORS
from jaxdae.linalg.positive_definite import POSITIVE_DEFINITE
from jaxdae.linalg.saddle_point import SADDLE_POINT
from jaxdae.primitives.entries import MOVEMENTS


class Refusal(Exception):  # noqa: N818
    """Why a primitive is not understood, or cannot be made scalar operations."""


_SOLVES = (COMPLEX_FACTORS, FACTORS, PIVOTED_FACTORS, POSITIVE_DEFINITE, SADDLE_POINT)

# How something is computed, kept, shown or placed, not what.
_HARMLESS = {
    "accuracy", "copy_semantics", "devices", "indices_are_sorted", "is_stable", "out_sharding",
    "precision", "sharding", "srcs", "unique_indices", "unroll", "use_magma", "weak_type",
}  # fmt: skip
_OF_SCATTER = "dimension_numbers mode"
_READ: dict[str, str] = {
    "argmax": "axes",
    "argmin": "axes",
    "call_subprogram": "subprogram",
    "cholesky": "",
    "cond": "branches",
    "convert_element_type": "new_dtype",
    **dict.fromkeys(("cummax", "cummin", "cumprod", "cumsum"), "axis reverse"),
    "dot_general": "dimension_numbers",
    "dynamic_slice": "slice_sizes",
    "gather": "dimension_numbers mode slice_sizes fill_value",
    "integer_pow": "y",
    "lu_pivots_to_permutation": "permutation_size",
    "ormqr": "left transpose",
    "qr": "full_matrices pivoting",
    **{f"reduce_{x}": "axes" for x in ("and", "max", "min", "or", "prod", "sum")},
    "reduce_precision": "exponent_bits mantissa_bits",
    "round": "rounding_method",
    "scan": "jaxpr length reverse",
    "scatter": _OF_SCATTER,
    **{f"scatter-{x}": _OF_SCATTER for x in ("add", "max", "min", "mul", "sub")},
    **dict.fromkeys(_SOLVES, "batch"),
    "sort": "dimension num_keys",
    "triangular_solve": "left_side lower transpose_a unit_diagonal",
    "while": "body_jaxpr body_nconsts cond_jaxpr cond_nconsts",
    **{
        name: " ".join(
            x.name for x in inspect.signature(move).parameters.values() if x.kind == x.KEYWORD_ONLY
        )
        for name, move in MOVEMENTS.items()
    },
}
# What some releases have, or what a rule sees to itself.
_PERHAPS: dict[str, str] = {
    "cond": "branches_platforms",
    "argmax": "index_dtype",
    "argmin": "index_dtype",
    "dot_general": "preferred_element_type",
    "mul": "out_dtype",
    "scan": "num_consts num_carry ft_in ft_out linear _split_transpose",
    "triangular_solve": "conjugate_a",
    **{
        f"scatter{x}": "update_jaxpr update_consts"
        for x in ("", "-add", "-max", "-min", "-mul", "-sub")
    },
}
# What they do is what the program does that is their parameter; the rest is JAX's own business.
CALLED = {
    **dict.fromkeys(("jit", "pjit", "checkpoint", "remat", "remat2"), "jaxpr"),
    **dict.fromkeys(
        ("closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr"),
        "call_jaxpr",
    ),
}
_CALLS = {
    **CALLED,
    "call_hi_primitive": "_prim",
    "custom_linear_solve": "const_lengths jaxprs",
    "platform_index": "platforms",
    # Of the library itself.
    **dict.fromkeys(("derivable_function", "derivative_of_function"), "function axes"),
}
_OPAQUE = ("linear_solve", "nondifferentiable", "nondifferentiable_backward", "nonbatchable",
           "nontraceable", "vprim", "maybe_set")  # fmt: skip


def check(name: str, params) -> None:
    """Refuse parameters of a primitive with a rule that are missing, or unknown and given."""
    read = set(_READ.get(name, _CALLS.get(name, "")).split())
    missing = read - set(params)
    if missing:
        raise Refusal(
            f"this release of JAX gives it no parameter {', '.join(sorted(missing))}, which its "
            "rule reads"
        )
    if name in _CALLS or name in _OPAQUE:
        return
    known = read | _HARMLESS | set(_PERHAPS.get(name, "").split())
    unknown = sorted(x for x, value in params.items() if x not in known and value is not None)
    if unknown:
        raise Refusal(
            f"its rule knows no parameter {', '.join(unknown)}, which this release of JAX gives it"
        )


def scan_sizes(params) -> tuple[int, int]:
    """Numbers of constants and of what is handed on, which newer releases keep in one structure."""
    if "ft_in" in params:
        constants, carried, _ = (len(x) for x in params["ft_in"].unpack())
        return constants, carried
    if "num_consts" in params and "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    raise Refusal("this release of JAX does not say which of its arguments are handed on")


def equations(jaxpr) -> int:
    """Equations of a loop's body, with those of the loops and calls in it."""
    return sum(
        1 + one.params.get("length", 1) * sum(map(equations, jex.jaxprs_in_params(one.params)))
        for one in jaxpr.eqns
    )


def branch_of_processors(params) -> int:
    """The number of the branch that JAX takes on a CPU."""
    platforms = params["platforms"]
    numbers = [i for i, x in enumerate(platforms) if x is None or "cpu" in x]
    if not numbers:
        raise Refusal("it has no branch for a CPU")
    return numbers[0]
