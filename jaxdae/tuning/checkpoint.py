"""Checkpoints of a tuning run: one file, written atomically, refused if it does not fit.

Layout of the file: a JSON line (what run this is, how far it got), a line with the SHA-256 of
everything else in the file, and the arrays as `equinox.tree_serialise_leaves` writes them.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import PyTree

from jaxdae.files import held, replace_file
from jaxdae.tuning.problem import Chosen, Record
from jaxdae.tuning.result import TuningHistory

FORMAT = "jaxdae tuning checkpoint"
VERSION = 1


class CheckpointError(ValueError):
    """A checkpoint cannot be used: not a checkpoint, damaged, of another run, or in use by one.

    Args:
        message: what is wrong, and what to do in a script.
        reason: what is wrong alone; a command has other remedies.
    """

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


def save(path: Path, fingerprint: dict[str, Any], rows: int, tree: PyTree) -> None:
    """Write a checkpoint; at every moment the file is the old one or the new one, complete."""
    payload = io.BytesIO()
    eqx.tree_serialise_leaves(payload, tree)
    header = {"format": FORMAT, "version": VERSION, "rows": rows}
    header |= {"software": _software(), "fingerprint": fingerprint}
    first = json.dumps(header, sort_keys=True).encode() + b"\n"
    checksum = _checksum(first, payload.getvalue()).encode() + b"\n"
    replace_file(path, first + checksum + payload.getvalue())


def alone(path: Path, caller: str) -> AbstractContextManager[None]:
    """Keep other runs from a checkpoint while this one writes it.

    Raises:
        CheckpointError: if another run has it, naming its process.
    """

    def refused(holder: str) -> CheckpointError:
        reason = f"another run writes the checkpoint {path} ({holder})"
        remedy = "wait until it ends, or end it, or give another path"
        return CheckpointError(f"{caller}: {reason}; {remedy}.", reason)

    path.parent.mkdir(parents=True, exist_ok=True)
    return held(path, refused)


def load(
    path: Path, fingerprint: dict[str, Any], like: Callable[[int], PyTree]
) -> tuple[int, PyTree]:
    """Number of finished evaluations and arrays of the same run, which are `like(rows)`.

    Raises:
        CheckpointError: if the file is not a checkpoint, is truncated or corrupt, has another
            format version, or belongs to another run; the file is left as it is.
    """
    header, payload = _verified(path, path.read_bytes())
    _require_same(path, header, fingerprint)
    try:
        return header["rows"], eqx.tree_deserialise_leaves(
            io.BytesIO(payload), like(header["rows"])
        )
    except Exception as error:
        reason = f"its arrays do not fit this run ({error})"
        raise refusal(path, reason, "use another file or `overwrite=True`") from error


def require_same_objective(
    path: Path, stored: TuningHistory, again: Record, epsilon: float
) -> None:
    """Refuse a file whose first evaluation the objective of this run does not give again.

    Its code cannot be compared, but what it computes can. The same program gives the same numbers,
    bit for bit; another machine or release may round otherwise, and a run amplifies that: what
    differs by more than the root of the precision, relative to the loss, is another function.

    Raises:
        CheckpointError: naming what differs, with both numbers.
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
    name = getattr(objective, "__qualname__", type(objective).__name__)
    return {
        "trained parameters": _shapes(trained),
        "structure of the parameters": _digest(_sanitized(jax.tree.structure(params))),
        "initial values": _digest(*_contents(params)),
        "optimizer state": _shapes(optimizer),
        "optimizer": _digest(
            *_contents(optimizer), _sanitized(program), *_contents(_constants(program))
        ),
        "tolerance": problem.tolerance,
        "objective": f"{name} {getattr(objective, 'budget', '')}".strip(),
        "data of the objective": _digest(*_contents(objective)),
        **search,
    }


def _verified(path: Path, content: bytes) -> tuple[dict[str, Any], bytes]:
    first, _, rest = content.partition(b"\n")
    checksum, _, payload = rest.partition(b"\n")
    if not first.startswith(b'{"') or FORMAT.encode() not in first:
        raise refusal(path, "it is not a tuning checkpoint", "give another path")
    if _checksum(first + b"\n", payload).encode() != checksum:
        reason = f"it is truncated or corrupt ({len(content)} bytes, the checksum does not match)"
        raise refusal(path, reason, "restore a copy, or start again with `overwrite=True`")
    header = json.loads(first)
    if header["version"] != VERSION:
        reason = f"its format version is {header['version']}, this program reads {VERSION}"
        raise refusal(path, reason, "use the version that wrote it, or `overwrite=True`")
    return header, payload


def _require_same(path: Path, header: dict[str, Any], here: dict[str, Any]) -> None:
    stored, here = header["fingerprint"], json.loads(json.dumps(here))
    for section in [*here, *(name for name in stored if name not in here)]:
        old, new = stored.get(section), here.get(section)
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            leaf = next(k for k in [*new, *old] if old.get(k) != new.get(k))
            section, old, new = f"{section}: {leaf}", old.get(leaf), new.get(leaf)
        reason = f"it belongs to another run; {section}: {old} in the file, {new} here"
        if header["software"] != _software():
            reason += f" (written with {header['software']}, this is {_software()})"
        remedy = "make the same call as then, give another path, or start with `overwrite=True`"
        raise refusal(path, reason, remedy)


def refusal(path: Path, reason: str, remedy: str) -> CheckpointError:
    """The error that a file cannot be used, and what to do."""
    failure = f"cannot resume from {path}: {reason}"
    return CheckpointError(f"tune: {failure}; {remedy}.", failure)


def _checksum(first: bytes, payload: bytes) -> str:
    return hashlib.sha256(first + payload).hexdigest()


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


def _software() -> dict[str, str]:
    libraries = ("jax", "equinox", "optax", "optimistix")
    return {name: version(name) for name in libraries}


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]
