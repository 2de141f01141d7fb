"""Fine runs that others are compared with: made once, stored as data, with their own error."""

import math
from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxdae.compiled import jit
from jaxdae.reprs import Module
from jaxdae.runs import simulate
from jaxdae.solvers.grid import Grid
from jaxdae.tuning.per_start import PerStart

_DEGREE = 5
_QUANTITIES = ("energy", "multipliers", "coordinates")
# Times that are kept, at least and for each of the objective's fixed steps: between them
# interpolation is of order 6.
_LEAST_STEPS, _KNOTS_PER_STEP = 64, 4
_MOST_DOUBLINGS = 5


class Spline(Module):
    """A piecewise polynomial in time.

    Args:
        knots: increasing [s], shape (knots,).
        coefficients: of powers of the time since the last knot, the highest first, shape (degree +
            1, knots - 1, k).
    """

    knots: Float[Array, " knots"]
    coefficients: Float[Array, "powers pieces k"]

    @classmethod
    def through(cls, knots: np.ndarray, values: np.ndarray) -> "Spline":
        """The spline of degree 5 through values, of shape (knots, k)."""
        # Imported here: it takes longer than the rest of the package, which does not need it.
        from scipy.interpolate import make_interp_spline

        order = np.argsort(knots)
        spline: Any = make_interp_spline(knots[order], values[order], k=_DEGREE)
        ends = np.unique(spline.t)
        taylor = [
            spline.derivative(power)(ends[:-1]) / math.factorial(power)
            for power in range(_DEGREE, 0, -1)
        ]
        return cls(jnp.asarray(ends), jnp.asarray([*taylor, spline(ends[:-1])]))

    def __call__(self, ts: Float[Array, " times"]) -> Float[Array, "times k"]:
        """Values at times within the knots, the nearest of them elsewhere.

        Args:
            ts: times [s], shape (times,).
        """
        t = jnp.clip(ts, self.knots[0], self.knots[-1])
        last = self.knots.shape[0] - 2
        piece = jnp.clip(jnp.searchsorted(self.knots, t, side="right") - 1, 0, last)
        since, value = (t - self.knots[piece])[:, None], self.coefficients[0, piece]
        for power in self.coefficients[1:]:
            value = value * since + power[piece]
        return value


class FineRuns(NamedTuple):
    """Fine runs of all variations and starts of an objective.

    Args:
        energy: generalized energy [J], as a `Spline` of one column for each start.
        multipliers: of the constraints.
        coordinates: q [m or rad].
        uncertainty: of each, by name, in its own unit: the largest difference from runs of twice
            the step, or an estimate of the error of interpolation, whichever is larger.
        step: of the runs [s].
    """

    energy: PerStart
    multipliers: PerStart
    coordinates: PerStart
    uncertainty: dict[str, float]
    step: float


def fine_runs(objective: Any, params: PyTree, *, accepted: float = 1e-8) -> FineRuns:
    """Make the fine runs of all starts and variations of an objective, up to its longest horizon.

    By fixed steps of `diffrax.Dopri8`, at first a quarter of the shortest of the objective, and
    halved until the difference from twice the step is accepted. Starts have to be on the
    constraints: from others a violation decays as the gains say, and there is no motion that all
    gains share. Where constraints are dependent their multipliers are not unique.

    Args:
        objective: a `SimulationObjective`.
        params: resolved parameters, such as those to be tuned at first.
        accepted: largest uncertainty of each quantity, relative to its largest value.

    Returns:
        `FineRuns`.

    Raises:
        ValueError: where a run fails, a start is off the constraints, or runs have not converged;
            with the numbers.
    """
    members = objective.members
    t1 = float(members.t1[np.argmax(np.abs(members.t1 - objective.t0))])
    steps = 0 if objective.adaptive else _KNOTS_PER_STEP * objective.most_steps
    count = max(_LEAST_STEPS, steps // 2 * 2)
    ts = np.linspace(objective.t0, t1, count + 1)
    fine, errors, substeps = _converged(objective, params, ts, accepted)
    dtype = objective.states.q.dtype
    splines = {name: _splines(ts, fine[name], dtype) for name in _QUANTITIES}
    return FineRuns(**splines, uncertainty=errors, step=float(ts[1] - ts[0]) / substeps)


def _converged(objective, params, ts: np.ndarray, accepted: float):
    """Quantities of the first runs that differ little from those of twice the step.

    Returns:
        The quantities, their errors, and the number of steps between times.
    """
    coarse, errors, sizes = _runs(objective, params, ts, 1), {}, {}
    for substeps in (2**x for x in range(1, _MOST_DOUBLINGS + 1)):
        fine = _runs(objective, params, ts, substeps)
        errors = {name: _uncertainty(ts, fine[name], coarse[name]) for name in _QUANTITIES}
        sizes = {name: _largest(fine[name]) for name in _QUANTITIES}
        if all(errors[x] <= accepted * sizes[x] for x in _QUANTITIES):
            return fine, errors, substeps
        coarse = fine
    name = max(errors, key=lambda x: errors[x] / max(sizes[x], np.finfo(float).tiny))
    raise ValueError(
        f"fine_runs: the {name} of fine runs are known to {errors[name]:.3g} of {sizes[name]:.3g} "
        f"only, more than {accepted:g} of it, though the step was halved {_MOST_DOUBLINGS} times. "
        "Take double precision or a shorter horizon, or accept more."
    )


def _uncertainty(ts, fine, coarse) -> float:
    """Largest difference, or error of interpolation: that between every second time over 2^6."""
    between = _interpolated(ts, fine) / 2 ** (_DEGREE + 1)
    return max(_largest(fine - coarse), _largest(between))


def _runs(objective, params, ts: np.ndarray, substeps: int) -> dict[str, np.ndarray]:
    """Quantities of runs with so many steps between times, (variations, starts, times, k)."""
    ends = np.linspace(ts[0], ts[-1], (ts.size - 1) * substeps + 1)
    runs = _compiled(objective, params, jnp.asarray(ends), substeps)
    _check_runs(runs)
    return {name: np.asarray(runs[name], np.float64) for name in _QUANTITIES}


@jit
def _compiled(objective, params, ends, substeps: int) -> dict[str, Array]:
    def one(variation, state):
        system, formulation, controller = objective.built(params, variation)
        state = objective.first_state(params, variation, state)
        state = jax.tree.map(lambda x: x.astype(jnp.result_type(float)), state)
        run = simulate(
            system, formulation, state, t0=ends[0], t1=ends[-1],
            saveat=diffrax.SaveAt(t0=True, steps=substeps), stepsize_controller=Grid(ends),
            controller=controller, throw=False, start_tolerance=None,
        )  # fmt: skip
        first = jax.tree.map(lambda x: x[0], run.violation)
        off = jnp.max(jnp.abs(jnp.concatenate([first.phi, first.phi_dot])), initial=0.0)
        return {
            "energy": run.energy[:, None],
            "multipliers": run.multipliers,
            "coordinates": run.q,
            "off": off,
            "success": run.success,
        }

    over_starts = eqx.filter_vmap(one, in_axes=(None, 0))
    variations = jnp.arange(objective.conditions.variation_count)
    return eqx.filter_vmap(over_starts, in_axes=(0, None))(variations, objective.states)


def _check_runs(runs: dict[str, Array]) -> None:
    failed = np.argwhere(~np.asarray(runs["success"]))
    if failed.size:
        raise ValueError(
            f"fine_runs: the run of start {failed[0, 1]}, variation {failed[0, 0]}, failed; there "
            "is no fine run to compare with. A shorter horizon, or another start?"
        )
    off = np.asarray(runs["off"])
    where = np.unravel_index(np.argmax(off), off.shape)
    if not off[where] <= 1e-6:
        raise ValueError(
            f"fine_runs: start {where[1]} is off the constraints by {off[where]:.3g}, so that its "
            "motion depends on the gains; take perturbed_states(..., system=system), which are on "
            "them."
        )


def _interpolated(ts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Error of the interpolation between every second time, at the others."""
    rows = np.moveaxis(values, -2, 0).reshape(ts.size, -1)
    return np.asarray(Spline.through(ts[::2], rows[::2])(jnp.asarray(ts[1::2]))) - rows[1::2]


def _splines(ts: np.ndarray, values: np.ndarray, dtype) -> PerStart:
    """A spline for each variation and start."""
    made = [_stacked([Spline.through(ts, x) for x in some]) for some in values]
    return PerStart(jax.tree.map(lambda x: x.astype(dtype), _stacked(made)))


def _stacked(trees: list) -> Any:
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values), initial=0.0))
