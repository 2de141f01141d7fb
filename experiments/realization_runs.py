"""Runs of four nonholonomic systems with forces in place of constraints, and what is read of them.

`realization.py` makes a report of it.
"""

import dataclasses
from collections.abc import Callable

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import jaxdae
from jaxdae.formulations import (
    deviation_power,
    LaggedLaw,
    linear_decay_rate,
    linear_threshold,
    LinearLaw,
    LuGreLaw,
    reaching_time_bound,
    realizing_constants,
    RealizingForces,
    SaturatedLaw,
    SignLaw,
    TanhLaw,
)
from jaxdae.models.base import AbstractModel
from jaxdae.models.disk import RollingDisk
from jaxdae.models.knife_edge import KnifeEdge
from jaxdae.models.robot import DifferentialDriveRobot
from jaxdae.models.sleigh import ChaplyginSleigh
from jaxdae.systems import constraint_residuals, evaluate

END = 2.0
TIMES = np.linspace(0.0, END, 2001)
TIGHT = diffrax.PIDController(rtol=1e-10, atol=1e-10)
# Excess of the bounds over the reactions [N].
ETA = 1.0
# Time constant of the layer of the sign law in runs off the constraint [s].
LAYER = 1e-4


@dataclasses.dataclass(frozen=True)
class System:
    """A system with its exact motion and, for the robot, its torques."""

    name: str
    model: AbstractModel
    controller: Callable | None = None

    def run(self, law, state=None, **options):
        """The free system with realizing forces, by default from the exact start."""
        state = jaxdae.State(*self.model.start()) if state is None else state
        saveat = diffrax.SaveAt(ts=jnp.asarray(TIMES))
        options = {"saveat": saveat, "stepsize_controller": TIGHT} | options
        return jaxdae.simulate(
            self.model,
            RealizingForces(law),
            state,
            t1=END,
            controller=self.controller,
            start_tolerance=None,
            max_steps=2**18,
            **options,
        )

    def reactions(self) -> np.ndarray:
        """Reactions `r = -lam` along the exact constrained motion, shape `(times, r)`."""
        multipliers = eqx.filter_jit(
            lambda t, q, v: jaxdae.Multipliers().multipliers(
                self.model, t, jaxdae.State(q, v), self.input(t, q, v)
            )
        )
        return -np.asarray(jax.vmap(multipliers)(jnp.asarray(TIMES), *self.exact()))

    def input(self, t, q, v):
        """The control input, if any."""
        return None if self.controller is None else self.controller(t, q, v, jnp.zeros(0))

    def exact(self):
        """Coordinates and velocities of the constrained motion at `TIMES`."""
        return jax.vmap(self.model.exact_motion)(jnp.asarray(TIMES))  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class Steady:
    """Constant torques."""

    torques: tuple[float, float]

    def __call__(self, t, q, v, w):
        """The torques [N m], whatever the state."""
        del t, v, w
        return jnp.asarray(self.torques, q.dtype)


def systems() -> list[System]:
    """The four systems."""
    robot = DifferentialDriveRobot()
    right, left = (float(x) for x in robot.steady_torques())
    return [
        System("Chaplygin sleigh", ChaplyginSleigh()),
        System("rolling disk", RollingDisk()),
        System("knife edge", KnifeEdge()),
        System("robot", robot, Steady((right, left))),
    ]


def linear_errors(system: System, ks) -> np.ndarray:
    """Largest error of the motion with linear forces, for each k: in q, in v, and in R - r."""
    q, v = system.exact()
    r = system.reactions()
    rows = []
    for k in ks:
        sol = system.run(LinearLaw(float(k)))
        # The first 0.5 s hold the layer in which the forces build up from zero.
        force = np.abs(-np.asarray(sol.multipliers) - r)[TIMES >= 0.5]
        rows.append((np.abs(sol.q - q).max(), np.abs(sol.v - v).max(), force.max()))
    return np.array(rows, float)


def slope(ks, errors) -> float:
    """Least-squares slope of log error against log k."""
    return float(np.polyfit(np.log(ks), np.log(errors), 1)[0])


def linear_decay(omega: float, k: float = 20.0) -> dict:
    """Size of `psi'` of a disk with linear forces, pushed off its constraints, and `|r| / k`."""
    disk = RollingDisk(turn_rate=omega)
    q, v = disk.start()
    sol = System("disk", disk).run(LinearLaw(k), jaxdae.State(q, v + jnp.array([0.1, 0.1, 0, 0])))
    needed = float(jnp.linalg.norm(disk.multiplier(sol.q[-1], sol.v[-1])))
    known = realizing_constants(disk, 0.0, jaxdae.State(q, v))
    return {
        "size": np.linalg.norm(sol.violation.phi_dot, axis=1),
        "reaction over k": needed / k,
        "promised rate": linear_decay_rate(k, known.rho2, known.A),
    }


def about_the_threshold(system: System, factors=(0.5, 2.0)) -> dict:
    """Size of `psi'` of the sleigh, going straight ahead and pushed, with `k` about theorem 1's."""
    model = system.model
    straight = jaxdae.State(jnp.zeros(3), jnp.array([model.speed, 0.0, 0.0]))  # pyright: ignore[reportAttributeAccessIssue]
    known = realizing_constants(model, 0.0, straight)
    threshold = linear_threshold(known.rho2, known.A)
    # A push on `psi'` alone: the other quasi-velocities stay.
    d = evaluate(model, 0.0, straight.q, straight.v)
    pushed = straight.v + jnp.linalg.solve(d.mass, 1e-3 * d.jac[0])
    rows = []
    for factor in factors:
        sol = system.run(LinearLaw(factor * threshold), jaxdae.State(straight.q, pushed))
        size = np.abs(sol.violation.phi_dot[:, 0])
        promised = linear_decay_rate(factor * threshold, known.rho2, known.A)
        # At the start, where nothing else moves yet: from a fit to the first 20 ms.
        rate = -np.polyfit(TIMES[:21], np.log(size[:21]), 1)[0]
        rows.append({"factor": factor, "promised": promised, "rate": rate})
    return {"threshold": threshold, "rows": rows}


def laws_with_memory(system: System, delays=(0.02, 0.005), stiffnesses=(1e3, 16e3)) -> dict:
    """Sleigh with late forces, against the same without delay, and with those of bristles."""
    state = jaxdae.State(*system.model.start())
    bound = sleigh_estimate(system.model, state).bound  # pyright: ignore[reportArgumentType]
    q, _ = system.exact()
    prompt = TanhLaw(bound, 0.03)
    same = system.run(prompt).q
    error = lambda law, q: float(np.abs(system.run(law).q - q).max())  # noqa: E731
    return {
        "delays": delays,
        "late": [error(LaggedLaw(prompt, delay), same) for delay in delays],
        "stiffnesses": stiffnesses,
        "bristles": [error(LuGreLaw(bound, stiffness), q) for stiffness in stiffnesses],
    }


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What the a-priori estimate of a start needs: `G`, its constants, and the bound of `R`."""

    energy: float
    rho: float
    A: float
    bound: float

    @property
    def time(self) -> float:
        """Bound of the reaching time [s]."""
        return reaching_time_bound(self.energy, ETA, self.rho, self.A)


def sleigh_estimate(model: ChaplyginSleigh, state) -> Estimate:
    """`G = mu psi'^2 / 2`; `|r| = mu |v w| <= mu E / sqrt(m I)`, and E does not grow; A = B = 0."""
    mu = float(model.lateral_mass())
    psi = constraint_residuals(model, 0.0, state.q, state.v).phi_dot
    energy = float(model.kinetic_energy(0.0, state.q, state.v))
    bound = mu * energy / np.sqrt(model.mass * model.inertia) + ETA
    return Estimate(0.5 * mu * float(psi @ psi), np.sqrt(mu / 2), 0.0, bound)


def disk_estimate(model: RollingDisk, state) -> Estimate:
    """`G = psi'^T (J M^-1 J^T)^-1 psi' / 2`, `A = kappa w / (1 - kappa)`, `|r| <= m R w |phi'|`.

    `(J M^-1 J^T)^-1 = m (1 - kappa e e^T)` turns with the constant rate w; `kappa = m R^2 / (I + m
    R^2)`. The energy, less that of turning, does not grow, and bounds the rate of rolling.
    """
    m, radius, spin = model.mass, model.radius, model.spin_inertia
    kappa, rate = m * radius**2 / (spin + m * radius**2), abs(float(state.v[2]))
    e = np.array([np.cos(state.q[2]), np.sin(state.q[2])])
    psi = np.asarray(constraint_residuals(model, 0.0, state.q, state.v).phi_dot, float)
    energy = float(model.kinetic_energy(0.0, state.q, state.v)) - model.turn_inertia * rate**2 / 2
    bound = m * radius * rate * np.sqrt(2 * energy / spin) + ETA
    start = float(0.5 * m * (psi @ psi - kappa * (e @ psi) ** 2))
    return Estimate(start, np.sqrt(m / 2), kappa * rate / (1 - kappa), bound)


def reaching(system: System, estimate: Callable, count: int = 12, seed: int = 1999) -> list[dict]:
    """Measured reaching times from random starts off the constraints, and their bounds."""
    rng = np.random.default_rng(seed)
    q, v = system.model.start()
    rows = []
    for _ in range(count):
        state = jaxdae.State(q, v + jnp.asarray(rng.normal(scale=0.3, size=v.shape)))
        bound = estimate(system.model, state)
        sol = system.run(SignLaw(bound.bound, time_constant=LAYER), state)
        size = np.linalg.norm(sol.violation.phi_dot, axis=1)
        rows.append(
            {
                "psi0": size[0],
                "reached": float(TIMES[np.argmax(size < 1e-6)]) if (size < 1e-6).any() else np.inf,
                "estimate": bound.time,
                "afterwards": size[bound.time <= TIMES].max(initial=0.0),
            }
        )
    return rows


class Chattering(eqx.Module):
    """The discontinuous sign law, without any regularization."""

    bound: Float[Array, " c"]

    def __call__(self, psi_dot, t, q, v):
        """Forces [N], whatever the motion."""
        del t, q, v
        return -self.bound * jnp.sign(psi_dot)


def mean_of_sign(system: System, steps=(1e-4, 2.5e-5)) -> dict:
    """Time averages over the run of the chattering sign law, and of the reaction.

    The law switches in every step or every few, so that it is as fine as the step; the steps of
    Euler's method show what the mean tends to.
    """
    reaction = system.reactions()
    bound = np.abs(reaction).max(axis=0) + ETA
    limit = jnp.asarray(bound)
    exact = np.trapezoid(reaction, TIMES, axis=0) / END
    size = float(np.abs(exact).max())
    rows = []
    for dt in steps:
        sol = system.run(
            Chattering(limit), dt=dt, solver=diffrax.Euler(), stepsize_controller=None, saveat=None
        )
        # The force of each row acts over the step that follows it.
        forces = -np.asarray(sol.multipliers)[:-1]
        error = float(np.abs(forces.mean(axis=0) - exact).max())
        rows.append(
            {
                "dt": dt,
                "mean": forces.mean(axis=0),
                "error": error,
                "relative": error / size,
                "force": float(np.abs(forces).max()),
                "psi": float(np.abs(sol.violation.phi_dot).max()),
            }
        )
    sliding = system.run(SignLaw(limit))
    equivalent = float(np.abs(-np.asarray(sliding.multipliers) - reaction).max())
    return {
        "system": system.name, "reaction": exact, "size": size, "rows": rows,
        "equivalent": equivalent,
    }  # fmt: skip


def smooth_laws(system: System, widths=(0.1, 0.03, 0.01)) -> list[dict]:
    """Sleigh with smoothed laws: power of the deviation, and `psi'`, each with its bound."""
    state = jaxdae.State(*system.model.start())
    bound = sleigh_estimate(system.model, state).bound  # pyright: ignore[reportArgumentType]
    q, _ = system.exact()
    rows = []
    for make in (TanhLaw, SaturatedLaw):
        for width in widths:
            law = make(bound, width)
            sol = system.run(law)
            power = jax.vmap(lambda psi, law=law: deviation_power(law, bound, psi))
            delta = float(law.deviation_bound(1))
            rows.append(
                {
                    "law": make.__name__,
                    "width": width,
                    "power": float(power(sol.violation.phi_dot).max()),
                    "bound": bound,
                    # What the paper prints is minus this, and so never positive.
                    "printed": float(power(sol.violation.phi_dot).min()),
                    "delta": delta,
                    "psi": float(np.abs(sol.violation.phi_dot).max()),
                    "psi_bound": delta / ETA,
                    "error": float(np.abs(sol.q - q).max()),
                }
            )
    return rows


def motions(system: System, ks=(5.0, 25.0)) -> dict[str, np.ndarray]:
    """Paths in the plane [m], shape `(times, 2)`: constrained, and with forces in its place."""
    bound = jnp.asarray(np.abs(system.reactions()).max(axis=0) + ETA)
    runs = {f"linear, k = {k:g} N s/m": system.run(LinearLaw(k)).q for k in ks}
    runs |= {"sign": system.run(SignLaw(bound)).q, "constrained": system.exact()[0]}
    return {name: np.asarray(q)[:, :2] for name, q in runs.items()}


def inertias(sleigh: System, disk: System) -> dict[str, float]:
    """What forces on `psi'` feel, over the paper's block of `u`: see the last claim.

    For one constraint the quotient; for two the quotient in one direction of `psi'` over that in
    the other.
    """

    def quotients(model, free):
        d = jax.jit(evaluate)(model, 0.0, *model.start())
        felt = jnp.linalg.inv(d.jac @ jnp.linalg.solve(d.mass, d.jac.T))
        # From quasi-velocities, psi' and the free ones, to velocities.
        back = jnp.linalg.inv(jnp.concatenate([d.jac, free]))[:, : len(felt)]
        return np.linalg.eigvals(np.linalg.solve(back.T @ d.mass @ back, felt)).real

    # Free: speed along the blade and turning of the sleigh; turning and rolling of the disk.
    heading = sleigh.model.start()[0][2]
    blade = jnp.array([[jnp.cos(heading), jnp.sin(heading), 0.0], [0.0, 0.0, 1.0]])
    one, two = quotients(sleigh.model, blade), quotients(disk.model, jnp.eye(4)[2:])
    return {"one": float(one[0]), "ratio of two": float(two.max() / two.min())}
