"""What is compared in the matrix of agreement: systems, formulations, and which go together."""

import dataclasses
import itertools
from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax.numpy as jnp

import jaxdae
from helpers.systems import Everything, Massless, RepeatedRod
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    Hamiltonian,
    MinimumNormSolve,
    Multipliers,
    NullSpace,
    Penalty,
    QuasiVelocities,
    RealizingForces,
    SingularMassSolve,
    State,
    System,
    VelocityElimination,
)
from jaxdae.formulations import AbstractFormulation, SignLaw
from jaxdae.models import (
    AndrewsMechanism,
    BallBeam,
    CartesianPendulum,
    Chain,
    ChaplyginSleigh,
    DifferentialDriveRobot,
    KnifeEdge,
)
from jaxdae.models.arm import SurfaceArm
from jaxdae.models.kepler import Kepler
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.models.motor import ChargeDrive

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
# With and without stabilization in turn: on the constraints neither may change the motion.
FORMULATIONS: dict[str, AbstractFormulation] = {
    "multipliers": Multipliers(),
    "stabilized": Multipliers(GAINS),
    "minimum norm": Multipliers(GAINS, MinimumNormSolve()),
    "singular mass": Multipliers(solve=SingularMassSolve()),
    # Constraint masses are times the unit of the case. 1/101 is the factor of each iteration where
    # the least eigenvalue of J M^-1 J^T is one unit; seven leave 1e-14.
    "penalty": Penalty(alpha=1e4),
    "augmented Lagrangian": AugmentedLagrangian(alpha=1e2, stabilization=GAINS, iterations=7),
    "Hamiltonian": Hamiltonian(GAINS),
    "Hamiltonian, minimum norm": Hamiltonian(solve=MinimumNormSolve()),
    "velocity elimination": VelocityElimination(),
    "null space, stabilized": NullSpace(GAINS),
    "null space": NullSpace(),
    "quasi-velocities": QuasiVelocities(),
    "quasi-velocities, stabilized": QuasiVelocities(stabilization=GAINS),
    # Longer than the step; the bound is far above every reaction here.
    "realizing forces": RealizingForces(SignLaw(bound=1e5, time_constant=0.1)),
}

SINGULAR_MASS = "the mass matrix is not positive definite: eigenvalues from"
DEPENDENT = "the constraints are dependent at t = 0: their Jacobian has rank 1 of 2"
REGULAR_MASS = (
    "multipliers", "stabilized", "minimum norm", "Hamiltonian", "Hamiltonian, minimum norm",
    "realizing forces",
)  # fmt: skip
# The default solve of multipliers finds dependent constraints by itself.
INDEPENDENT_CONSTRAINTS = (
    "velocity elimination", "null space, stabilized", "null space", "quasi-velocities",
    "quasi-velocities, stabilized", "realizing forces",
)  # fmt: skip
REFUSED: dict[tuple[str, str], str] = {
    **{("massless", name): SINGULAR_MASS for name in REGULAR_MASS},
    **{("repeated rod", name): DEPENDENT for name in INDEPENDENT_CONSTRAINTS},
    ("everything", "velocity elimination"): "velocity_constraints must be affine in the velocities",
    ("everything", "quasi-velocities"): "'rolling' is not affine in the velocities",
    ("everything", "quasi-velocities, stabilized"): "'rolling' is not affine in the velocities",
}
# What the others are compared with; the plain multipliers unless those are refused.
REFERENCES = {"massless": "singular mass", "repeated rod": "minimum norm"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A system, its motion, and the size of its constraint mass.

    Steps are equal, of an eighth-order method, and short enough for the formulations to agree
    although each has a truncation error of its own. Motions end before the choice of independent
    velocities that is made at their start goes singular.
    """

    system: System
    state: State
    t1: float
    steps: int = 30
    alpha: float = 1.0
    controller: Any = None


def _voltage(t, q, v, w):
    return jnp.stack([1.5 * jnp.cos(3 * t) - 0.5 * q[2] - 0.1 * w[0]])


def _mirror_voltage(t, q, v, w):
    return jnp.stack([0.5 * jnp.cos(3 * t) - 0.2 * q[0] - 0.1 * v[0]])


def _torques(t, q, v, w):
    return jnp.stack([0.3 * jnp.cos(2 * t), -0.1 - 0.01 * v[3]])


def _ball_beam() -> Case:
    # The inductance of the rig makes the current a thousand times faster than the rest.
    system = BallBeam(inductance=0.1)
    q, v = jnp.array([0.15, 0.0, 0.6]), jnp.array([0.2, 0.0, -1.5])
    state = jaxdae.consistent_state(system, q, v, w=system.actuators() + 0.3, fixed=("r", "theta"))
    return Case(system, state, 0.3, controller=_voltage)


def _sleigh() -> Case:
    system = ChaplyginSleigh(mass=1.7, offset=0.4, inertia=3 * 1.7 * 0.4**2, speed=1.3, phase=-0.8)
    return _of(system, 0.7)


def _knife_edge() -> Case:
    system = KnifeEdge(mass=1.4, inertia=0.3, slope=0.4, turn_rate=1.9, speed=0.7)
    return _of(system, 0.7)


def _chain() -> Case:
    system = Chain((0.5, 0.3), (1.2, 0.7))
    return Case(system, State([0.4, -0.3, 0.4, -0.6], [0.6, 0.8, -0.5, 0.8]), 0.3)


def _mirror() -> Case:
    system = AdaptiveMirror()
    q, v = system.start()
    return Case(system, State(q, v, system.actuators()), 0.3, controller=_mirror_voltage)


def _motor() -> Case:
    # As with the ball and beam, an inductance that does not make the current much faster.
    system = ChargeDrive(inductance=0.05)
    q, v = system.start()
    # Light bodies behind a gear: J M^-1 J^T is large, as with Andrews' mechanism below.
    return Case(system, State(q, v, system.actuators()), 0.05, steps=100, alpha=0.1)


def _of(system: System, t1: float, **settings) -> Case:
    """From where a model says that it starts."""
    return Case(system, State(*system.start()), t1, **settings)  # pyright: ignore


def _everything() -> Case:
    system = Everything()
    start = jaxdae.consistent_state(system, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    return Case(system, start, 0.3)


# Made when they are asked for: each process of the tests has some of the systems.
CASES: dict[str, Callable[[], Case]] = {
    "pendulum": lambda: Case(CartesianPendulum(1.3, 0.9), State([0.9, 0.0], [0.0, -1.0]), 0.4),
    "chain": _chain,
    # J M^-1 J^T is 10 at least; larger constraint masses lose digits beside its light bodies.
    "andrews": lambda: _of(AndrewsMechanism(), 0.003, alpha=0.1),
    "sleigh": _sleigh,
    "knife edge": _knife_edge,
    "robot": lambda: _of(DifferentialDriveRobot(), 0.5, alpha=10.0, controller=_torques),
    "ball and beam": _ball_beam,
    "kepler": lambda: _of(Kepler(), 0.5, steps=60),
    "mirror": _mirror,
    "surface arm": lambda: _of(SurfaceArm(), 0.15, steps=60, alpha=0.1),
    "motor": _motor,
    "everything": _everything,
    "massless": lambda: Case(Massless(), State([0.5, 0.125], [1.0, 0.5]), 0.5),
    "repeated rod": lambda: Case(RepeatedRod((1.0, 2.0)), State([0.6, -0.8], [1.2, 0.9]), 0.4),
}


@cache
def case_of(system: str) -> Case:
    return CASES[system]()


CLOSED_FORMS = ("sleigh", "knife edge")
# Here formulations have nothing to enforce, and must agree all the same.
UNCONSTRAINED = ("kepler", "mirror")
SYSTEMS = (
    "pendulum", "chain", "andrews", *CLOSED_FORMS, "massless", "robot", "ball and beam",
    "surface arm", "motor", "everything", "repeated rod", *UNCONSTRAINED,
)  # fmt: skip
# With half of the formulations each: a chain, and an actuator with a controller.
HALVES = ("chain", "ball and beam")
# With all of them: all kinds of constraints at once, some not affine in the velocities, and
# dependent ones.
KINDS = (*HALVES, "everything", "repeated rod")
# What is paired of these runs on the plain backend too.
PLAIN = ("ball and beam", "everything", "massless", "mirror")
# Formulations that the native backend cannot take where there are constraints, and its reason.
NOT_NATIVE = {
    "realizing forces": "while cannot .* how often its loop turns depends on the inputs",
}
CONSTRAINED = [x for x in SYSTEMS if x not in UNCONSTRAINED]
# The default solve finds dependent constraints at a start; a field alone, as it is read here, has
# none. Runs of them are tested for themselves.
AT_A_START = {
    ("repeated rod", x) for x in ("multipliers", "stabilized", "singular mass", "Hamiltonian")
}


def is_paired(system: str, name: str) -> bool:
    """Whether a pair is in the matrix: kinds with half or all, the others in rotation.

    What is not native compiles for ten times as long: one constrained system, all kinds at once.
    """
    if name in NOT_NATIVE:
        return system in ("everything", "repeated rod", "massless", "kepler")
    number = list(FORMULATIONS).index(name)
    if system in HALVES:
        return number % 2 == HALVES.index(system)
    turn = [x for x in SYSTEMS if x not in KINDS]
    return system in KINDS or (number + turn.index(system)) % 7 == 0


APPLIED = [
    pair
    for pair in itertools.product(SYSTEMS, FORMULATIONS)
    if is_paired(*pair) and pair not in REFUSED and pair not in AT_A_START
]


def is_not_native(system: str, name: str) -> bool:
    return name in NOT_NATIVE and system not in UNCONSTRAINED


def is_twice(system: str, name: str) -> bool:
    """Whether both backends run a pair."""
    return system in PLAIN and not is_not_native(system, name)


def is_plain(system: str, name: str) -> bool:
    """Whether a pair runs on the plain backend, too or only."""
    refused = (system, name) in REFUSED
    return not refused and (system in PLAIN or is_not_native(system, name))


def weighted(formulation, factor: float):
    if not isinstance(formulation, Penalty | AugmentedLagrangian):
        return formulation
    return eqx.tree_at(lambda f: f.alpha, formulation, replace_fn=lambda alpha: factor * alpha)
