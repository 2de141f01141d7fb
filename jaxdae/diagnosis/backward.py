"""Runs backward in time: by how much damping lets deviations grow.

Stabilizations act in the direction of integration; dissipation, realizing forces and controllers
are parts of the motion. A deviation that they damp forward in time grows in the same proportion
backward, and errors of the steps with it.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.compiled import BRIEFLY, jit
from jaxdae.control.base import control_input
from jaxdae.diagnosis.findings import Finding
from jaxdae.systems import State
from jaxdae.tables import root_text

# Factor by which damping may let deviations grow without a warning.
_GROWTH = 10.0
# Rows at which a run is examined, and a block of them.
_ROWS = 256


def damping_root(system, formulation, controller, t, state: State):
    """Root of the fastest decay by damping [1/s], complex; not finite where the rate is not.

    Without damping a motion is reversible: with velocities of the other sign it takes the same way
    back, and `d(dv/dt)/dv` is odd in the velocities. Its even part, the damping, is what makes both
    directions differ. For `q` fixed its roots are rates of deviations of the velocities, and of
    the actuators' states and a law's memory with them.
    """
    free = formulation.in_direction(0)  # of stabilization
    count = state.v.size
    # Laws with a memory, such as one that is late, forget forward in time.
    memory = getattr(free.init(system, jnp.asarray(t, state.q.dtype), state), "memory", state.w[:0])

    def rate(v, w, z):
        """Of velocities, actuators and memory, by the formulation's own equations."""
        t_ = jnp.asarray(t, v.dtype)
        now = State(state.q, v, w)
        own = free.init(system, t_, now)
        own = eqx.tree_at(lambda x: x.memory, own, z) if z.size else own
        slope = free.vector_field(system, t_, own, control_input(controller, t_, now))
        motion = lambda t, y: free.recover(system, t, y)  # noqa: E731
        found = jax.jvp(motion, (t_, own), (jnp.ones_like(t_), slope))[1]
        return jnp.concatenate([found.v, found.w, *([slope.memory] if z.size else [])])

    def jacobian(v):
        parts = jax.jacfwd(rate, argnums=(0, 1, 2))(v, state.w, memory)
        return jnp.concatenate(parts, axis=1)

    size = count + state.w.size + memory.size
    signs = jnp.where(jnp.arange(size) < count, -1.0, 1.0).astype(state.v.dtype)
    even = (jacobian(state.v) + signs[:, None] * jacobian(-state.v) * signs) / 2
    finite = jnp.isfinite(even).all()
    roots = jnp.linalg.eigvals(jnp.where(finite, even, 0.0))
    fastest = roots[jnp.argmin(jnp.real(roots))] if roots.size else jnp.zeros((), roots.dtype)
    return jnp.where(finite, fastest, jnp.nan)


def largest_growth(xp, ts, roots):
    """Logarithm of the largest growth that damping makes of deviations in a run, 0 forward in time.

    `roots` are those of the fastest decay [1/s] at times, the start first; `xp` is the library.
    """
    # Nothing is known where equations have no derivative, as at singular positions.
    rates = xp.nan_to_num(xp.maximum(-xp.real(roots), 0.0), nan=0.0, posinf=0.0)
    total = xp.sum((ts[:-1] - ts[1:]) * (rates[1:] + rates[:-1]) / 2)
    return xp.maximum(total, 0.0)


def start_warning(system, formulation, controller, state, t, duration: float) -> str | None:
    """What to warn of before a run backward in time; `None` for a growth by less than 10."""
    root = complex(_root(system, formulation, controller, t, state))
    times = np.array([0.0, -duration])
    return _in_words(root, 0.0, float(largest_growth(np, times, np.array([root, root]))), duration)


def growth_along(system, formulation, controller, ts, states: State) -> Finding | None:
    """What damping does to a run backward in time, where its start did not show it."""
    if not ts[-1] < ts[0]:
        return None
    rows = np.linspace(0, len(ts) - 1, _ROWS).round().astype(int)
    ts, states = np.asarray(ts)[rows], jax.tree.map(lambda x: x[rows], states)
    roots = np.asarray(_roots(system, formulation, controller, ts, states))
    growth, duration = float(largest_growth(np, ts, roots)), float(ts[0] - ts[-1])
    fastest = int(np.nanargmin(np.append(np.real(roots), 0.0)))
    if fastest == len(roots) or largest_growth(np, ts, roots[[0] * _ROWS]) > np.log(_GROWTH):
        return None
    message = _in_words(complex(roots[fastest]), float(ts[fastest]), growth, duration)
    return None if message is None else Finding(message, growth, float(ts[fastest]))


def _in_words(root: complex, t: float, growth: float, duration: float) -> str | None:
    if not growth > np.log(_GROWTH):
        return None
    when = f" at t = {t:.4g} s" if t else " at the start"
    return (
        "time runs backward, in which what is damped grows: damping has the root "
        f"{root_text(root, 4)} 1/s{when}, so that deviations, errors of the steps among them, grow "
        f"by a factor of up to about 1e{growth / np.log(10.0):+.0f} in {duration:.4g} s. Make the "
        "run shorter or its steps more accurate, or leave out what damps: dissipation, realizing "
        "forces, a controller."
    )


_root = jit(damping_root, options=BRIEFLY)


@jit(options=BRIEFLY)
def _roots(system, formulation, controller, ts, states):
    one = lambda t, state: damping_root(system, formulation, controller, t, state)  # noqa: E731
    return jax.vmap(one)(ts, states)
