"""Runs of arms in Hamiltonian form and in others, and what is read of them.

`hamilton.py` makes a report of it.
"""

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm

import jaxdae
from jaxdae import Baumgarte, Hamiltonian, Multipliers, NullSpace, VelocityElimination
from jaxdae.models.arm import perturbation_equations, PointMassArm
from jaxdae.models.motor import ChargeDrive, CurrentDrive
from jaxdae.solvers import RK4
from jaxdae.tuning import (
    IntegratedViolation,
    Logarithm,
    perturbed_states,
    Positive,
    SimulationObjective,
)

# The paper leaves its coefficients open. These damp both links critically, at 10 / s.
C = (-100.0, -20.0, -100.0, -20.0)
# Forces on the coordinates: the weights of the two masses.
WEIGHTS = (0.0, -1.5 * 9.81, 0.0, -1.0 * 9.81)
TIGHT = diffrax.PIDController(rtol=1e-11, atol=1e-11, dtmin=1e-12, force_dtmin=False)
# Largest entry of B in Shulgin's equations before other independent coordinates are chosen.
LIMIT = 10.0
# What coefficients are tuned on.
OFF, DRIFT = "starts off by 3 mm", "drift from an exact start"
STEP, LONG = 0.01, 60.0
# Rows of the table of drifts.
PLAIN, CRITICAL = "c = 0", "c critical, 10 / s"
VELOCITIES = "velocities instead of momenta, c = 0"


def at(ts) -> diffrax.SaveAt:
    """Rows at given times."""
    return diffrax.SaveAt(ts=jnp.asarray(ts))


def eliminated(system, state, ts) -> dict:
    """Shulgin's equations, their independent coordinates chosen anew wherever a choice ends."""
    t, q, lam, changes = 0.0, np.full((len(ts), state.q.size), np.nan), None, -1
    while True:
        run = jaxdae.simulate(
            system, VelocityElimination(limit=LIMIT), state, t0=t, t1=ts[-1], throw=False,
            stepsize_controller=TIGHT, saveat=at(np.maximum(ts, t)), start_tolerance=None,
        )  # fmt: skip
        rows = np.isfinite(run.ts) & (ts >= t)
        lam = np.full((len(ts), run.multipliers.shape[1]), np.nan) if lam is None else lam
        q[rows], lam[rows], changes = run.q[rows], run.multipliers[rows], changes + 1
        if bool(run.success):
            return {"q": q, "lam": lam, "changes": changes}
        t, state = float(run.final_time), run.final_state


def agreement(system, end: float) -> dict:
    """Largest differences of motions and multipliers from those of `Multipliers`."""
    ts, state = np.linspace(0, end, 401), jaxdae.State(*system.start())
    gains = Baumgarte.critical(10.0)
    runs = {
        kind.__name__: jaxdae.simulate(
            system, kind(gains), state, t1=end, stepsize_controller=TIGHT, saveat=at(ts), work=True
        )
        for kind in (Multipliers, Hamiltonian, NullSpace)
    }
    results = {
        name: {
            "q": np.asarray(run.q),
            "lam": np.asarray(run.multipliers),
            "balance": _balance(run),
            "phi": float(np.abs(run.violation.phi).max()),
        }
        for name, run in runs.items()
    }
    results["VelocityElimination"] = eliminated(system, state, ts)
    plain = results["Multipliers"]
    for one in results.values():
        one["dq"], one["dlam"] = (float(np.abs(one[k] - plain[k]).max()) for k in ("q", "lam"))
    return {"ts": ts, "run": runs["Hamiltonian"], "found": results}


def _balance(run) -> float:
    """Largest error of the energy balance [J]."""
    gained = sum(np.asarray(part) for part in run.work)
    return float(np.abs(run.energy - run.energy[0] - gained).max())


def perturbations(arm: PointMassArm) -> dict:
    """A run from a start off the constraints, and `exp(A t) y(0)`."""
    q, v = arm.start()
    off = jaxdae.State(
        q + jnp.array([0.02, -0.01, 0.03, 0.02]), v + jnp.array([0.1, 0.0, -0.2, 0.1])
    )
    ts = np.linspace(0, 1, 101)
    run = jaxdae.simulate(
        arm, Hamiltonian(perturbation_equations(*C)), off, t1=1.0, stepsize_controller=TIGHT,
        saveat=at(ts), start_tolerance=None,
    )  # fmt: skip
    y = np.stack([run.violation.phi, run.violation.phi_dot], axis=-1)
    closed = np.stack(
        [
            [expm(jnp.array([[0, 1], c]) * t) @ y[0, i] for t in ts]
            for i, c in enumerate((C[:2], C[2:]))
        ],
        axis=1,
    )
    return {"ts": ts, "y": y, "closed": closed, "difference": float(np.abs(y - closed).max())}


def printed(arm: PointMassArm) -> dict:
    """Residuals along the equations (6) written out, as derived and as printed."""
    q, v = arm.start()
    masses = jnp.repeat(jnp.array([arm.mass1, arm.mass2]), 2)
    ts = np.linspace(0, 1, 101)
    results = {}
    for name, slips in (
        ("as derived", {}),
        ("sign in the last row as printed", {"sign_as_printed": True}),
        ("P as printed, without (J q')_q q'", {"drift_as_printed": True}),
    ):

        def field(t, y, args, slips=slips):
            del t, args
            q, p = y
            return arm.canonical_rates(q, p, jnp.asarray(C), **slips)[:2]

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field), diffrax.Dopri8(), 0.0, 1.0, 1e-3, (q, masses * v),
            saveat=at(ts), stepsize_controller=TIGHT, max_steps=2**14, throw=False,
        )  # fmt: skip
        assert solution.ys is not None
        phi = jax.vmap(lambda q: arm.position_constraints(0.0, q))(solution.ys[0])
        results[name] = np.abs(np.asarray(phi))
    return {"ts": ts, "phi": results}


def off(arm: PointMassArm, key: int, count: int) -> jaxdae.State:
    """Starts off the constraints by 3 mm and 3 mm/s."""
    state = jaxdae.State(*arm.start())
    return perturbed_states(state, jax.random.key(key), count, 3e-3, 3e-3)


def exact(arm: PointMassArm) -> jaxdae.State:
    """The arm's own start, on the constraints, as a batch of one."""
    return jax.tree.map(lambda x: x[None], jaxdae.State(*arm.start()))


def objective(arm: PointMassArm, states: jaxdae.State, t1: float) -> SimulationObjective:
    """Mean integrated squared violation of the links."""
    cost = IntegratedViolation(velocity=0.0, from_start=False)
    return SimulationObjective(cost, states, system=arm, t1=t1, dt=STEP, solver=RK4())


def tuned(arm: PointMassArm, steps: int) -> dict:
    """Coefficients tuned for Runge-Kutta steps of 0.01 s, judged on other starts and longer."""
    first = Hamiltonian(Baumgarte(K_D=Positive([-C[1], -C[3]]), K_P=Positive([-C[0], -C[2]])))
    results = {}
    for name, aim, other in (
        (OFF, objective(arm, off(arm, 0, 8), 0.5), objective(arm, off(arm, 1, 32), 2.0)),
        (DRIFT, objective(arm, exact(arm), 4.0), objective(arm, exact(arm), 20.0)),
    ):
        result = jaxdae.tune(Logarithm(aim), first, steps=steps, progress=True)
        gains: Any = result.params.stabilization
        (k1, k3), (k2, k4) = np.asarray(gains.K_P), np.asarray(gains.K_D)
        judge = eqx.filter_jit(other)
        results[name] = {
            "c": [-k1, -k2, -k3, -k4],
            "own": [float(np.exp(x)) for x in (result.initial_loss, result.loss)],
            "judged": [float(judge(f)) for f in (result.initial_params, result.params)],
            "formulation": result.params,
        }
    return results


def drift(arm: PointMassArm, best: dict, end: float = LONG) -> dict:
    """Long fixed-step runs of the free arm: residuals, energy, angular momentum.

    Args:
        arm: the arm, without forces.
        best: names, and formulations with coefficients that were tuned.
        end: end time [s].
    """
    state = jaxdae.State(*arm.start())
    forms = {
        PLAIN: Hamiltonian(),
        CRITICAL: Hamiltonian(perturbation_equations(*C)),
        **{f"c tuned on {name}": formulation for name, formulation in best.items()},
        VELOCITIES: Multipliers(),
    }
    results = {}
    for name, form in forms.items():
        run = jaxdae.simulate(arm, form, state, t1=end, dt=STEP, solver=RK4())
        momentum = jax.vmap(arm.angular_momentum)(run.q, run.v)
        results[name] = {
            "phi": np.linalg.norm(run.violation.phi, axis=1),
            "energy": np.abs(run.energy - run.energy[0]),
            "momentum": np.abs(momentum - momentum[0]),
            "q": np.asarray(run.q),
            "ts": np.asarray(run.ts),
        }
    return results


def motor() -> dict:
    """The motor with its charge as a coordinate, in Hamiltonian form, and as an actuator."""
    ts = np.linspace(0, 0.3, 301)
    # A current is the small difference of two fluxes over an inductance of 1e-4 H.
    tight = diffrax.PIDController(rtol=1e-12, atol=1e-15)
    runs = {}
    for name, drive, form in (
        ("Hamiltonian, charge", ChargeDrive(), Hamiltonian(Baumgarte.critical(10.0))),
        ("Multipliers, charge", ChargeDrive(), Multipliers(Baumgarte.critical(10.0))),
        ("Multipliers, actuator", CurrentDrive(), Multipliers(Baumgarte.critical(10.0))),
    ):
        run = jaxdae.simulate(
            drive, form, jaxdae.State(*drive.start(), w=drive.actuators()), t1=ts[-1], work=True,
            stepsize_controller=tight, saveat=at(ts), max_steps=2**18,
        )  # fmt: skip
        i, speed, torque = eqx.filter_jit(
            lambda run, drive=drive: (
                jax.vmap(drive.current)(run.ts, run.q, run.v, run.w),
                jax.vmap(drive.driven_angle)(run.v),
                run.multipliers[:, 0],
            )
        )(run)
        power = np.stack(jax.vmap(drive.power)(run.ts, run.q, run.v, run.w), axis=1)
        runs[name] = {
            "current": np.asarray(i), "speed": np.asarray(speed), "torque": np.asarray(torque),
            "power": power, "balance": _balance(run), "steps": int(run.stats["num_steps"]),
        }  # fmt: skip
    return {"ts": ts, "runs": runs}
