"""One motion, whatever the formulation: the matrix of systems and formulations.

Every pair of `SYSTEMS` and `FORMULATIONS` is a test. Either the pair gives the motion, the energy,
the reactions and the powers of the system's reference formulation, or it stands in `REFUSED` with
the message it is refused with. Realizing forces are here with the sign law on the constraint, where
they are exact; the linear, saturated and tanh laws never are, and `test_realizing.py` has the
order of their errors.
"""

import dataclasses
import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Int

import jaxdae
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
from jaxdae.formulations import AbstractFormulation, SignLaw
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
from jaxdae.systems import generalized_energy, Power, power_balance
from jaxdae.trajectory import control_input, Trajectory

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
REFUSED: dict[tuple[str, str], str] = {
    **{
        ("massless", name): SINGULAR_MASS
        for name in (
            "multipliers",
            "stabilized",
            "minimum norm",
            "Hamiltonian",
            "Hamiltonian, minimum norm",
            "realizing forces",
        )
    },
    **{
        ("repeated rod", name): DEPENDENT
        for name in (
            "multipliers",
            "stabilized",
            "singular mass",
            "Hamiltonian",
            "velocity elimination",
            "null space, orthonormal",
            "null space, coordinate",
            "quasi-velocities",
            "quasi-velocities, stabilized",
            "realizing forces",
        )
    },
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


def _start(system, *rates):
    """The model's own start, with other velocities made consistent."""
    q, v = system.start()
    return jaxdae.consistent_state(system, q, jnp.asarray(rates) if rates else v)


def _ball_beam() -> Case:
    # The inductance of the rig makes the current a thousand times faster than the rest.
    system = BallBeam(inductance=0.1)
    q, v = jnp.array([0.15, 0.0, 0.6]), jnp.array([0.2, 0.0, -1.5])
    state = jaxdae.consistent_state(system, q, v, w=system.actuators() + 0.3, fixed=("r", "theta"))
    return Case(system, state, 0.3, controller=_voltage)


def _sleigh() -> Case:
    system = ChaplyginSleigh(mass=1.7, offset=0.4, inertia=3 * 1.7 * 0.4**2, speed=1.3, phase=-0.8)
    return Case(system, _start(system), 0.7)


def _disk() -> Case:
    system = RollingDisk(mass=1.3, radius=0.4, spin_inertia=0.2, turn_inertia=0.07, turn_rate=1.7)
    return Case(system, _start(system), 0.7)


def _knife_edge() -> Case:
    system = KnifeEdge(mass=1.4, inertia=0.3, slope=0.4, turn_rate=1.9, speed=0.7)
    return Case(system, _start(system), 0.7)


def _chain() -> Case:
    system = Chain((0.5, 0.3), (1.2, 0.7))
    q = jnp.array([0.4, -0.3, 0.4, -0.6])
    return Case(system, jaxdae.consistent_state(system, q, jnp.array([0.6, 0.8, -0.5, 0.8])), 0.3)


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


def _models() -> dict[str, Case]:
    pendulum, crank = CartesianPendulum(1.3, 0.9), SliderCrank(rod_length=1.5)
    surface_arm = SurfaceArm()
    two_link, robot, andrews = TwoLinkManipulator(), DifferentialDriveRobot(), AndrewsMechanism()
    return {
        "pendulum": Case(pendulum, _start(pendulum, 0.0, -1.0), 0.4),
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
CONSTRAINED = [x for x in SYSTEMS if x not in UNCONSTRAINED]
APPLIED = [pair for pair in itertools.product(SYSTEMS, FORMULATIONS) if pair not in REFUSED]


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
        """Length of a member's flat state, and the way back from it."""
        n, k = self.sizes
        state = State(jnp.zeros(n), jnp.zeros(n), jnp.zeros(k))
        shapes = jax.eval_shape(lambda: member.init(system, jnp.zeros(()), state))
        flat, unravel = ravel_pytree(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes))
        return flat.size, unravel


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
    power: Power


@eqx.filter_jit
def _read(run: Trajectory) -> Motion:
    def row(t, y):
        s = run.formulation.recover(run.system, t, y)
        u = control_input(run.controller, t, s)
        lam = run.formulation.multipliers(run.system, t, y, u)
        reaction = -evaluate(run.system, t, s.q, s.v, s.w, u).jac.T @ lam
        energy = generalized_energy(run.system, t, s.q, s.v)
        power = power_balance(run.system, t, s.q, s.v, s.w, u, lam)
        return Motion(t, s.q, s.v, s.w, energy, lam, reaction, power)

    return jax.vmap(row)(run.ts, run.saved)


class Matrix:
    """The motions, each simulated once."""

    def __init__(self, cases: dict[str, Case]):
        self.cases = cases
        self._found: dict[tuple, Motion] = {}

    def motion(self, system: str, name: str, factor: float = 1.0) -> Motion:
        """The motion under a formulation, its constraint mass times `factor`."""
        key = (system, name, factor)
        if key not in self._found:
            case = self.cases[system]
            names = [x for x in FORMULATIONS if (system, x) not in REFUSED]
            members = tuple(_weighted(FORMULATIONS[x], case.alpha * factor) for x in names)
            sizes = (case.state.q.size, case.state.w.size)
            run = self.run(system, OneOf(members, jnp.asarray(names.index(name)), sizes))
            self._found[key] = jax.tree.map(np.asarray, _read(run))
        return self._found[key]

    def run(self, system: str, formulation: AbstractFormulation) -> Trajectory:
        case = self.cases[system]
        return simulate(
            case.system,
            formulation,
            case.state,
            t1=case.t1,
            dt=case.t1 / case.steps,
            controller=case.controller,
        )

    def reference(self, system: str) -> Motion:
        return self.motion(system, REFERENCES.get(system, "multipliers"))

    def result(self, system: str, name: str) -> Motion:
        """The motion; that of the penalty form extrapolated to infinite constraint mass."""
        if name != "penalty":
            return self.motion(system, name)
        runs = [self.motion(system, name, factor) for factor in (1.0, 2.0, 4.0)]
        # Richardson's: removes the errors in 1/alpha and 1/alpha^2.
        return jax.tree.map(lambda a, b, c: a / 3 - 2 * b + 8 / 3 * c, *runs)


def _weighted(formulation, factor: float):
    if not isinstance(formulation, Penalty | AugmentedLagrangian):
        return formulation
    return eqx.tree_at(lambda f: f.alpha, formulation, replace_fn=lambda alpha: factor * alpha)


@pytest.fixture(scope="module")
def matrix(everything, massless, repeated_rod) -> Matrix:
    rod = repeated_rod((1.0, 2.0))
    start = jaxdae.consistent_state(everything, [1.2, -0.9, 0.3], [0.5, 0.4, -0.3], w=[0.7])
    return Matrix(
        {
            **_models(),
            "everything": Case(everything, start, 0.3),
            "massless": Case(massless, State([0.5, 0.125], [1.0, 0.5]), 0.5),
            "repeated rod": Case(rod, State([0.6, -0.8], [1.2, 0.9]), 0.4),
        }
    )


@pytest.mark.parametrize(("system", "name"), APPLIED)
def test_every_formulation_gives_the_motion(system, name, matrix):
    """Coordinates, velocities, actuators, energy, reactions and powers at every step."""
    found, expected = matrix.result(system, name), matrix.reference(system)
    for field in ("q", "v", "w", "energy", "reaction", "power"):
        one, other = (ravel_pytree(getattr(x, field))[0] for x in (found, expected))
        size = np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9 * (1 + size), err_msg=field)
    assert (np.abs(expected.reaction).max() > 0.1) == (system not in UNCONSTRAINED)


@pytest.mark.parametrize(("system", "name"), REFUSED)
def test_what_does_not_apply_is_refused(system, name, matrix):
    """Before any work, with the reason."""
    with pytest.raises(ValueError, match=REFUSED[system, name]):
        matrix.run(system, FORMULATIONS[name])


def test_momenta_do_not_go_with_a_singular_mass():
    """So there is no third solve of the Hamiltonian in the matrix."""
    with pytest.raises(ValueError, match="Hamiltonian cannot use SingularMass"):
        Hamiltonian(solve=SingularMass())


@pytest.mark.parametrize("system", [x for x in CONSTRAINED if x != "repeated rod"])
def test_multipliers_agree_where_they_are_unique(system, matrix):
    """Not only the reaction they make."""
    expected = matrix.reference(system).multipliers
    size = np.abs(expected).max()
    for name in FORMULATIONS:
        if (system, name) not in REFUSED:
            found = matrix.result(system, name).multipliers
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * (1 + size))


@pytest.mark.parametrize("name", FORMULATIONS)
@pytest.mark.parametrize("system", CLOSED_FORMS)
def test_closed_forms_hold_in_every_formulation(system, name, matrix):
    """Sleigh, disk and knife edge to 1e-9, their reactions too."""
    found, model = matrix.result(system, name), matrix.cases[system].system
    q, v = jax.vmap(model.exact_motion)(found.ts)
    lam = jax.vmap(model.multiplier)(q, v).reshape(found.multipliers.shape)
    np.testing.assert_allclose(found.q, q, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.v, v, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.multipliers, lam, rtol=0, atol=1e-9)


@pytest.mark.parametrize("system", CONSTRAINED)
def test_error_of_the_penalty_form_is_of_first_order_in_its_inverse_mass(system, matrix):
    """Twice the constraint mass, half the error of the motion."""
    expected = matrix.reference(system)
    errors = [
        np.abs(matrix.motion(system, "penalty", factor).q - expected.q).max()
        for factor in (1.0, 2.0)
    ]
    # The next order is one part in the constraint mass, 1e4 units.
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=1e-2)
    # Far above what the extrapolation is tested to.
    assert errors[0] > 1e-7
