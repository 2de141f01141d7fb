"""Whether a checkpoint continues a tuning run: the same parameters, optimizer and objective."""

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import PyTree

from jaxdae.storage.checkpoints import refusal
from jaxdae.storage.fingerprints import digest
from jaxdae.tuning.problem import Chosen, HistoryRow
from jaxdae.tuning.result import TuningHistory


def require_same_objective(
    path: Path, stored: TuningHistory, again: HistoryRow, epsilon: float
) -> None:
    """Refuse a file whose first evaluation the objective of this run does not give again.

    Its code cannot be compared, but what it computes can. The same program gives the same numbers,
    bit for bit; another machine or release may round otherwise, and a run amplifies that: what
    differs by more than the root of the precision, relative to the loss, is another function.
    """
    loss = np.abs(stored.loss[0])
    epsilon = max(epsilon, float(jnp.finfo(np.asarray(again.loss).dtype).eps))
    # A gradient may vanish where tuning begins; per unit of the parameters the loss is its scale.
    scales = {"loss": loss, "gradient_norm": np.fmax(loss, stored.gradient_norm[0])}
    for name, scale in scales.items():
        old, new = getattr(stored, name)[0], np.asarray(getattr(again, name), float)
        with np.errstate(invalid="ignore"):  # inf - inf, of what is equal
            near = np.abs(new - old) <= epsilon**0.5 * scale
        same = near | (new == old) | (np.isnan(new) & np.isnan(old))
        if not same.all():
            i = int(np.argmin(same))
            reason = (
                "the objective is another function, or random: its "
                f"{name.replace('_', ' ')} at the initial parameters of start {i} was "
                f"{old[i]:.17g}, and is {new[i]:.17g} here"
            )
            remedy = "restore the function, give another path, or start with `overwrite=True`"
            raise refusal(path, reason, remedy)


def fingerprint(
    params: PyTree, chosen: Chosen, state: PyTree, search: dict[str, Any]
) -> dict[str, Any]:
    """What must agree for a checkpoint to continue a run, section by section.

    Args:
        params: the initial parameters.
        chosen: what is tuned, and how. What the optimizer computes counts, learning rates among it;
            of the objective arrays, numbers and `budget` count; its code, `require_same_objective`.
        state: the initial one, with a leading axis for the starts.
        search: further settings, JSON values only.

    Returns:
        A dictionary of JSON values.
    """
    problem, method = chosen.problem, chosen.method
    assert method is not None  # `tune` saves no runs of SciPy's
    program, optimizer = method.program(problem), method.memory(state)
    trained, objective = problem.trained, problem.objective
    if problem.validation is not None:
        search = {
            "validation": _name(problem.validation),
            "data of the validation": _digest(*_contents(problem.validation)),
            **search,
        }
    return {
        "trained parameters": _shapes(trained),
        "structure of the parameters": _digest(_sanitized(jax.tree.structure(params))),
        "initial values": _digest(*_contents(params)),
        "optimizer state": _shapes(optimizer),
        "optimizer": _digest(
            *_contents(optimizer), _sanitized(program), *_contents(_constants(program))
        ),
        "tolerance": problem.tolerance,
        "objective": _name(objective),
        "data of the objective": _digest(*_contents(objective)),
        **search,
    }


def _name(objective: Any) -> str:
    name = getattr(objective, "__qualname__", type(objective).__name__)
    return f"{name} {getattr(objective, 'budget', '')}".strip()


def _shapes(tree: PyTree) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path): f"{x.dtype}{list(x.shape)}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _constants(program: ClosedJaxpr) -> list[Any]:
    """Arrays in a program and in the programs it calls; numbers are in its text."""
    constants = list(program.consts)
    for equation in program.jaxpr.eqns:
        constants += [x.val for x in equation.invars if isinstance(x, Literal)]
        for x in jax.tree.leaves(equation.params, is_leaf=lambda x: isinstance(x, ClosedJaxpr)):
            constants += _constants(x) if isinstance(x, ClosedJaxpr) else []
    return constants


def _contents(tree: PyTree) -> list[bytes]:
    """Arrays and numbers of a pytree; of other leaves only the type, their text may vary."""
    parts = []
    for x in jax.tree.leaves(tree):
        if eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x = jax.random.key_data(x)
        if eqx.is_array_like(x):
            array = np.asarray(x)
            parts.append(f"{array.dtype}{array.shape}".encode() + array.tobytes())
        else:
            parts.append(type(x).__qualname__.encode())
    return parts


def _sanitized(description: Any) -> bytes:
    # A function in it prints its address, which differs in every process.
    return re.sub(r" at 0x[0-9a-f]+", "", str(description)).encode()


def _digest(*parts: bytes) -> str:
    # With their lengths: parts are distinct.
    return digest(len(x).to_bytes(8, "little") + x for x in parts)
