"""Names of the variables and equations of a declaration, from the keys of pytrees."""

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


def listed(names: list[str], most: int = 8) -> str:
    """Names in a row, the first ones where there are many."""
    if not names:
        return "none"
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
