"""Systems, formulations and motions of the matrix of agreement."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

import jaxdae
from helpers.systems import Everything, Massless, RepeatedRod
from jaxdae import (
    AugmentedLagrangian,
    Baumgarte,
    evaluate,
    Hamiltonian,
    MinimumNorm,
    Multipliers,
    NullSpace,
    Penalty,
    QuasiVelocities,
    RealizingForces,
    simulate,
    SingularMass,
    State,
    System,
    VelocityElimination,
)
from jaxdae.control.base import control_input
from jaxdae.formulations import AbstractFormulation, SignLaw
from jaxdae.kernels import scalarize
from jaxdae.kernels.graph.operations import OPERATIONS
from jaxdae.kernels.launch.portable import results
from jaxdae.models import (
    AndrewsMechanism,
    BallBeam,
    CartesianPendulum,
    Chain,
    ChaplyginSleigh,
    DifferentialDriveRobot,
    KnifeEdge,
    RollingDisk,
    SliderCrank,
    TwoLinkManipulator,
)
from jaxdae.models.arm import PointMassArm, SurfaceArm
from jaxdae.models.kepler import Kepler
from jaxdae.models.mirror import AdaptiveMirror
from jaxdae.models.motor import AbstractMotorDrive, ChargeDrive, CurrentDrive
from jaxdae.simulation.backends import Backend
from jaxdae.simulation.trajectory import Trajectory
from jaxdae.systems import generalized_energy, power_balance
from jaxdae.systems.precision import in_dtype

GAINS = Baumgarte(K_D=20.0, K_P=100.0, Gamma=10.0)
# With and without stabilization in turn: on the constraints neither may change the motion.
FORMULATIONS: dict[str, AbstractFormulation] = {
    "multipliers": Multipliers(),
    "stabilized": Multipliers(GAINS),
    "minimum norm": Multipliers(GAINS, MinimumNorm()),
    "singular mass": Multipliers(solve=SingularMass()),
    # Constraint masses are times the unit of the case. 1/101 is the factor of each iteration where
    # the least eigenvalue of J M^-1 J^T is one unit; seven leave 1e-14.
    "penalty": Penalty(alpha=1e4),
    "augmented Lagrangian": AugmentedLagrangian(alpha=1e2, stabilization=GAINS, iterations=7),
    "Hamiltonian": Hamiltonian(GAINS),
    "Hamiltonian, minimum norm": Hamiltonian(solve=MinimumNorm()),
    "velocity elimination": VelocityElimination(),
    "null space, orthonormal": NullSpace(GAINS),
    "null space, coordinate": NullSpace(basis="coordinate"),
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
    "velocity elimination", "null space, orthonormal", "null space, coordinate", "quasi-velocities",
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
    del v
    return jnp.stack([1.5 * jnp.cos(3 * t) - 0.5 * q[2] - 0.1 * w[0]])


def _mirror_voltage(t, q, v, w):
    del w
    return jnp.stack([0.5 * jnp.cos(3 * t) - 0.2 * q[0] - 0.1 * v[0]])


def _torques(t, q, v, w):
    del q, w
    return jnp.stack([0.3 * jnp.cos(2 * t), -0.1 - 0.01 * v[3]])


def _ball_beam() -> Case:
    # The inductance of the rig makes the current a thousand times faster than the rest.
    system = BallBeam(inductance=0.1)
    q, v = jnp.array([0.15, 0.0, 0.6]), jnp.array([0.2, 0.0, -1.5])
    state = jaxdae.consistent_state(system, q, v, w=system.actuators() + 0.3, fixed=("r", "theta"))
    return Case(system, state, 0.3, controller=_voltage)


def _sleigh() -> Case:
    system = ChaplyginSleigh(mass=1.7, offset=0.4, inertia=3 * 1.7 * 0.4**2, speed=1.3, phase=-0.8)
    return Case(system, State(*system.start()), 0.7)


def _disk() -> Case:
    system = RollingDisk(mass=1.3, radius=0.4, spin_inertia=0.2, turn_inertia=0.07, turn_rate=1.7)
    return Case(system, State(*system.start()), 0.7)


def _knife_edge() -> Case:
    system = KnifeEdge(mass=1.4, inertia=0.3, slope=0.4, turn_rate=1.9, speed=0.7)
    return Case(system, State(*system.start()), 0.7)


def _chain() -> Case:
    system = Chain((0.5, 0.3), (1.2, 0.7))
    return Case(system, State([0.4, -0.3, 0.4, -0.6], [0.6, 0.8, -0.5, 0.8]), 0.3)


def _arm() -> Case:
    system = PointMassArm(forces=jnp.array([2.0, -14.7, -3.0, -9.8]))
    return Case(system, State(*system.start()), 0.3, steps=60)


def _mirror() -> Case:
    system = AdaptiveMirror()
    q, v = system.start()
    return Case(system, State(q, v, system.actuators()), 0.3, controller=_mirror_voltage)


def _drive(system: AbstractMotorDrive) -> Case:
    q, v = system.start()
    # Light bodies behind a gear: J M^-1 J^T is large, as with Andrews' mechanism below.
    return Case(system, State(q, v, system.actuators()), 0.05, steps=100, alpha=0.1)


def cases() -> dict[str, Case]:
    """The systems of the matrix with their motions."""
    pendulum, crank = CartesianPendulum(1.3, 0.9), SliderCrank(rod_length=1.5)
    surface_arm, everything = SurfaceArm(), Everything()
    start = jaxdae.consistent_state(everything, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    two_link, robot, andrews = TwoLinkManipulator(), DifferentialDriveRobot(), AndrewsMechanism()
    return {
        "pendulum": Case(pendulum, State([0.9, 0.0], [0.0, -1.0]), 0.4),
        "chain": _chain(),
        # Its singular configuration is at t = 0.4933 s.
        "two-link": Case(two_link, State(*two_link.start()), 0.2, alpha=100.0),
        "slider-crank": Case(crank, State(*crank.start()), 0.3),
        # J M^-1 J^T is 10 at least; larger constraint masses lose digits beside its light bodies.
        "andrews": Case(andrews, State(*andrews.start()), 0.003, alpha=0.1),
        "sleigh": _sleigh(),
        "disk": _disk(),
        "knife edge": _knife_edge(),
        "robot": Case(robot, State(*robot.start()), 0.5, alpha=10.0, controller=_torques),
        "ball and beam": _ball_beam(),
        "kepler": Case(Kepler(), State(*Kepler().start()), 0.5, steps=60),
        "mirror": _mirror(),
        "arm": _arm(),
        "surface arm": Case(surface_arm, State(*surface_arm.start()), 0.15, steps=60, alpha=0.1),
        # As with the ball and beam, an inductance that does not make the current much faster.
        "motor": _drive(ChargeDrive(inductance=0.05)),
        "motor as actuator": _drive(CurrentDrive(inductance=0.05)),
        "everything": Case(everything, start, 0.3),
        "massless": Case(Massless(), State([0.5, 0.125], [1.0, 0.5]), 0.5),
        "repeated rod": Case(RepeatedRod((1.0, 2.0)), State([0.6, -0.8], [1.2, 0.9]), 0.4),
    }


CLOSED_FORMS = ("sleigh", "disk", "knife edge")
OTHERS = ("everything", "massless", "repeated rod")
# Here formulations have nothing to enforce, and must agree all the same.
UNCONSTRAINED = ("kepler", "mirror")
SYSTEMS = (
    "pendulum", "chain", "two-link", "slider-crank", "andrews", *CLOSED_FORMS, "robot",
    "ball and beam", "arm", "surface arm", "motor", "motor as actuator", *OTHERS,
    *UNCONSTRAINED,
)  # fmt: skip
# With all formulations: a chain, an actuator with a controller, all kinds of constraints at once,
# some not affine in the velocities.
KINDS = ("chain", "ball and beam", "everything")
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


def _is_paired(system: str, name: str) -> bool:
    """Whether a pair is in the matrix: kinds with all, the others in rotation."""
    turn = [x for x in SYSTEMS if x not in KINDS]
    return system in KINDS or (list(FORMULATIONS).index(name) + turn.index(system)) % 3 == 0


APPLIED = [
    pair
    for pair in itertools.product(SYSTEMS, FORMULATIONS)
    if _is_paired(*pair) and pair not in REFUSED and pair not in AT_A_START
]


def _flat_state(system, formulation, state: State):
    """Length of a formulation's flat state, and the way back from it."""
    shapes = jax.eval_shape(lambda: formulation.init(system, jnp.zeros(()), state))
    flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
    return flat.size, unravel


class OneOf(AbstractFormulation):
    """One of several formulations, told by a number: one compiled program for all of them.

    The state is theirs, flattened, and filled up with zeros to the length of the longest.
    """

    members: tuple[AbstractFormulation, ...]
    index: Int[Array, ""]
    sizes: tuple[int, int] = eqx.field(static=True)  # coordinates, actuators

    def init(self, system, t, state):
        size = max(self._own(system, member)[0] for member in self.members)

        def packed(member):
            return lambda: _filled(member.init(system, t, state), size)

        return jax.lax.switch(self.index, [packed(member) for member in self.members])

    def vector_field(self, system, t, y, u):
        def rate(member, own):
            return _filled(member.vector_field(system, t, own, u), y.size)

        return self._switch(system, y, rate)

    def recover(self, system, t, y):
        return self._switch(system, y, lambda member, own: member.recover(system, t, own))

    def multipliers(self, system, t, y, u):
        return self._switch(system, y, lambda member, own: member.multipliers(system, t, own, u))

    def check(self, system, state):
        self.members[int(self.index)].check(system, state)

    def check_start(self, system, t, state):
        self.members[int(self.index)].check_start(system, t, state)

    def assumptions(self):
        return self.members[int(self.index)].assumptions()

    def _switch(self, system, y, function):
        def branch(member):
            own, unravel = self._own(system, member)
            return lambda y: function(member, unravel(y[:own]))

        return jax.lax.switch(self.index, [branch(member) for member in self.members], y)

    def _own(self, system, member):
        n, k = self.sizes
        return _flat_state(system, member, State(jnp.zeros(n), jnp.zeros(n), jnp.zeros(k)))


def _filled(y, size: int):
    flat, _ = ravel_pytree(y)
    return jnp.zeros(size, flat.dtype).at[: flat.size].set(flat)


class Motion(NamedTuple):
    """What formulations must agree on, times first."""

    ts: Any
    q: Any
    v: Any
    w: Any
    energy: Any
    multipliers: Any
    reaction: Any
    power: Any


class Rows(NamedTuple):
    """Times and flat states of a run, in NumPy."""

    ts: np.ndarray
    ys: np.ndarray


# For arrays; of a sign, that of zero apart, which no motion depends on.
NUMPY = {name: one.evaluate for name, one in OPERATIONS.items()} | {"sign": np.sign}


class Table:
    """A function of numbers and vectors, evaluated for many rows of them.

    It is taken apart to scalar operations, and NumPy does them: nothing is compiled.

    Args:
        function: of arrays, traceable by JAX.
        shapes: shape of each argument.
    """

    def __init__(self, function, shapes):
        self.program = scalarize(function, *(jax.ShapeDtypeStruct(x, float) for x in shapes))

    def __call__(self, *arguments) -> list[np.ndarray]:
        """Results for every row of the arguments; those without rows are the same for all."""
        rows = np.shape(arguments[0])
        shapes = [x.shape for x in self.program.inputs]
        columns = [
            column
            for x, shape in zip(map(np.asarray, arguments), shapes, strict=True)
            for column in x.reshape(*x.shape[: x.ndim - len(shape)], -1).T
        ]
        found = results(self.program, columns, NUMPY)
        every = np.stack([np.broadcast_to(x, rows) for x in found], -1)
        sizes = [int(np.prod(x.shape)) for x in self.program.results]
        parts = np.split(every, np.cumsum(sizes)[:-1], axis=-1)
        return [
            x.reshape(*rows, *y.shape) for x, y in zip(parts, self.program.results, strict=True)
        ]


class Matrix:
    """The motions, each simulated once."""

    def __init__(self, cases: dict[str, Case]):
        self.cases = cases
        self._motions: dict[tuple, Motion] = {}
        self._tables: dict[Any, Table] = {}

    def motion(self, system: str, name: str, factor: float = 1.0, plain: bool = False) -> Motion:
        """The motion under a formulation, its constraint mass times `factor`.

        It runs on the native backend, where that can take it and the plain one is not asked for.
        """
        plain = plain or is_not_native(system, name)
        key = (system, name, factor, plain)
        if key not in self._motions:
            rows = self._by_diffrax(system, name, factor) if plain else self._by_kernel(*key[:3])
            self._motions[key] = self._read(system, name, factor, rows)
        return self._motions[key]

    def formulation(self, system: str, name: str, factor: float = 1.0) -> AbstractFormulation:
        found = weighted(FORMULATIONS[name], factor * self.cases[system].alpha)
        return in_dtype(found, np.dtype(float))  # gains are arrays, so that tables can be shared

    def run(self, system: str, formulation, backend: Backend = "auto") -> Trajectory:
        case = self.cases[system]
        return simulate(
            case.system,
            formulation,
            case.state,
            t1=case.t1,
            dt=case.t1 / case.steps,
            controller=case.controller,
            backend=backend,
            throw=system in KINDS,  # of these, that right runs are not warned of either
        )

    def _by_kernel(self, system: str, name: str, factor: float) -> Rows:
        run = self.run(system, self.formulation(system, name, factor), "native")
        assert (run.backend, run.why_not_native) == ("native", None)
        return _rows(run)

    def _by_diffrax(self, system: str, name: str, factor: float) -> Rows:
        names = [x for x in FORMULATIONS if is_plain(system, x) and _is_paired(system, x)]
        run = self.run(system, self._one_of(system, names, name, factor), "plain")
        assert run.backend == "plain"
        return _rows(run)

    def _one_of(self, system: str, names: list[str], name: str, factor: float = 1.0) -> OneOf:
        members = tuple(self.formulation(system, x, factor) for x in names)
        state = self.cases[system].state
        return OneOf(members, jnp.asarray(names.index(name)), (state.q.size, state.w.size))

    def _read(self, system: str, name: str, factor: float, rows: Rows) -> Motion:
        read = self._by_xla if is_not_native(system, name) else self._by_numpy
        q, v, w, lam = read(system, name, factor, rows)
        if system not in self._tables:
            self._tables[system] = _of_states(self.cases[system], lam.shape[1])
        energy, reaction, power = self._tables[system](rows.ts, q, v, w, lam)
        return Motion(rows.ts, q, v, w, energy, lam, reaction, power)

    def _by_numpy(self, system: str, name: str, factor: float, rows: Rows) -> list[np.ndarray]:
        case, formulation = self.cases[system], self.formulation(system, name, factor)
        size, unravel = _flat_state(case.system, formulation, case.state)
        arrays, static = eqx.partition(formulation, eqx.is_array)
        gains, structure = jax.tree.flatten(arrays)

        def row(t, y, *gains):
            own = eqx.combine(jax.tree.unflatten(structure, gains), static)
            return _row(case.system, case.controller, own, t, unravel(y))

        if (system, name) not in self._tables:
            shapes = [(), (size,), *(x.shape for x in gains)]
            self._tables[system, name] = Table(row, shapes)
        return self._tables[system, name](rows.ts, rows.ys[:, :size], *gains)

    def _by_xla(self, system: str, name: str, factor: float, rows: Rows) -> list[np.ndarray]:
        case = self.cases[system]
        names = [x for x in NOT_NATIVE if (system, x) not in REFUSED]
        one = self._one_of(system, names, name, factor)
        return [np.asarray(x) for x in _compiled_rows((case.system, case.controller), one, rows)]

    def reference(self, system: str) -> Motion:
        return self.motion(system, REFERENCES.get(system, "multipliers"))

    def result(self, system: str, name: str, plain: bool = False) -> Motion:
        """The motion; that of the penalty form extrapolated to infinite constraint mass."""
        if name != "penalty":
            return self.motion(system, name, plain=plain)
        runs = [self.motion(system, name, factor, plain) for factor in (1.0, 2.0, 4.0)]
        # Richardson's: removes the errors in 1/alpha and 1/alpha^2.
        return jax.tree.map(lambda a, b, c: a / 3 - 2 * b + 8 / 3 * c, *runs)


def is_not_native(system: str, name: str) -> bool:
    return name in NOT_NATIVE and system not in UNCONSTRAINED


def is_twice(system: str, name: str) -> bool:
    """Whether both backends run a pair."""
    return system in PLAIN and not is_not_native(system, name)


def is_plain(system: str, name: str) -> bool:
    """Whether a pair runs on the plain backend, too or only."""
    refused = (system, name) in REFUSED
    return not refused and (system in PLAIN or is_not_native(system, name))


def _rows(run: Trajectory) -> Rows:
    leaves = [np.asarray(x) for x in jax.tree.leaves(run.saved)]
    ts = np.asarray(run.ts)
    return Rows(ts, np.concatenate([x.reshape(ts.size, -1) for x in leaves], 1))


def _row(system, controller, formulation, t, y):
    """Coordinates, velocities, actuators and multipliers."""
    s = formulation.recover(system, t, y)
    u = control_input(controller, t, s)
    return s.q, s.v, s.w, formulation.multipliers(system, t, y, u)


@eqx.filter_jit
def _compiled_rows(parts, formulation, rows: Rows):
    system, controller = parts
    return jax.vmap(lambda t, y: _row(system, controller, formulation, t, y))(*rows)


def _of_states(case: Case, constraints: int) -> Table:
    """Energy, reactions and powers, from times, states and multipliers."""

    def row(t, q, v, w, lam):
        u = control_input(case.controller, t, State(q, v, w))
        reaction = -evaluate(case.system, t, q, v, w, u).jac.T @ lam
        power = power_balance(case.system, t, q, v, w, u, lam)
        return generalized_energy(case.system, t, q, v), reaction, jnp.stack(power)

    state = case.state
    return Table(row, [(), state.q.shape, state.v.shape, state.w.shape, (constraints,)])


def weighted(formulation, factor: float):
    if not isinstance(formulation, Penalty | AugmentedLagrangian):
        return formulation
    return eqx.tree_at(lambda f: f.alpha, formulation, replace_fn=lambda alpha: factor * alpha)
