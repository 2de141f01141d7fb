"""What a run saves: plain states, what the user makes of them, and the end besides."""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdae.simulation.problem import Method, Times
from jaxdae.solvers.projected import between_steps
from jaxdae.systems.precision import in_dtype

_STANDARD = diffrax.SubSaveAt(t1=True).fn


# The ends of all steps, without a state.
STEP_ENDS = diffrax.SaveAt(steps=True, fn=lambda t, y, args: None)


def is_sub(x) -> bool:
    """Whether something is one of several descriptions of what is saved."""
    return isinstance(x, diffrax.SubSaveAt)


def is_plain(saveat) -> bool:
    """Whether states are saved, and not what the user makes of them."""
    return saveat is None or (is_sub(saveat.subs) and saveat.subs.fn is _STANDARD)


def is_end(saveat: diffrax.SaveAt | None) -> bool:
    """Whether it asks for the state at the end and nothing else."""
    if saveat is None or not is_plain(saveat) or saveat.dense:
        return False
    sub: Any = saveat.subs
    return sub.t1 and not sub.t0 and not sub.steps and sub.ts is None


def asked_times(saveat: diffrax.SaveAt | None):
    """The times at which it asks for states, where it asks for nothing else; else `None`."""
    if saveat is None or not is_plain(saveat) or saveat.dense:
        return None
    sub: Any = saveat.subs
    return None if sub.t0 or sub.t1 or sub.steps else sub.ts


def row_times(sub: diffrax.SubSaveAt, times: Times):
    """Times of the rows that it asks for, but for one at the end: start, fixed steps, times."""
    dtype = jnp.asarray(times.start).dtype
    parts: list[Any] = [jnp.zeros(0), *([jnp.asarray(times.start)[None]] if sub.t0 else [])]
    if sub.steps:
        parts.append(jnp.asarray(times.grid)[sub.steps :: sub.steps])
    if sub.ts is not None:
        parts.append(sub.ts)
    return jnp.concatenate([jnp.asarray(x, dtype) for x in parts])


def column(mask, rows):
    """A mask of rows, for what is saved in them."""
    return mask.reshape(-1, *[1] * (rows.ndim - 1))


def with_end(method: Method, saved) -> diffrax.SaveAt:
    """What the user saves, and the last state reached besides.

    Args:
        method: of the run.
        saved: times of the rows where the run asks for none.
    """
    saveat, projection = method.saveat, between_steps(method.solver)
    end = diffrax.SubSaveAt(t1=True, fn=lambda t, y, args: in_dtype(y[0], t.dtype))
    if saveat is STEP_ENDS:
        return diffrax.SaveAt(subs=(STEP_ENDS.subs, end))
    if saveat is None:
        return diffrax.SaveAt(subs=(diffrax.SubSaveAt(ts=saved, fn=_of_one_precision), end))
    project = None if projection is None else projection.project
    # Rows of a single one are projected afterwards, all at once.
    later = project is None or is_sub(saveat.subs)
    subs = jax.tree.map(lambda sub: _on_state(sub, project, later), saveat.subs, is_leaf=is_sub)
    return eqx.tree_at(lambda s: s.subs, saveat, (subs, end), is_leaf=lambda x: x is None)


def _of_one_precision(t, y, args):
    """What was integrated, in its precision: that of dense output may be a higher one."""
    return in_dtype(y, t.dtype)


def _on_state(sub, project, later: bool):
    """A user's `fn(t, y, args)` sees the state; the standard one saves what was integrated."""
    standard = sub.fn is _STANDARD
    if standard and later:
        return eqx.tree_at(lambda s: s.fn, sub, _of_one_precision)

    def on_state(t, y, args, fn=sub.fn):
        y = _of_one_precision(t, y, args)
        y = y if project is None else project(t, y, args)
        system, formulation, _ = args
        return y if standard else fn(t, formulation.recover(system, t, y[0]), args)

    return eqx.tree_at(lambda s: s.fn, sub, on_state)
