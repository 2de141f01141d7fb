"""Names of the variables and equations of a declaration, from the keys of pytrees."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxdae.systems.dae import Variables


def entry_names(root: str, tree: Any) -> list[str]:
    """A name for each number in a pytree of arrays or shapes, in the order of `ravel_pytree`."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = root + jax.tree_util.keystr(path)
        places = np.ndindex(*np.shape(leaf) if not hasattr(leaf, "shape") else leaf.shape)
        found += [name + "".join(f"[{i}]" for i in place) for place in places]
    return found


def variable_names(variables: Variables, implicit: bool) -> tuple[list[str], list[str]]:
    """Names of the numbers in `y`, and in `z` or, of implicit equations, in `y_dot`."""
    second = "y_dot" if implicit else "z"
    return entry_names("y", variables.y), entry_names(second, variables.z)


def is_below(name: str, prefix: str) -> bool:
    """Whether a name is another one, or one of the entries below it."""
    return name == prefix or (name.startswith(prefix) and name[len(prefix)] in "[.")


def units_by_name(names: list[str], units: Mapping[str, str]) -> list[str]:
    """Units of variables; what is said of an entry goes before what is said of those around it."""
    found = ([x for x in units if is_below(name, x)] for name in names)
    return [units[max(x, key=len)] if x else "" for x in found]


def listed(names: list[str], most: int = 8) -> str:
    """Names in a row, the first ones where there are many."""
    if not names:
        return "none"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
