"""A system of rigid bodies."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.checks import are_known
from jaxdae.compiled import BRIEFLY, jit
from jaxdae.multibody import recursion, rotations
from jaxdae.multibody.bodies import AbstractLoop, Body
from jaxdae.multibody.forces import (
    AbstractForce,
    applied_wrenches,
    BALL,
    BODY,
    Configuration,
    COORDINATE,
    generalized,
    JOINT,
    Motion,
    shares,
    total_load,
)
from jaxdae.multibody.joints import Ball, Pose, space_vector, Twist, Wrench
from jaxdae.multibody.mjcf_text import mjcf
from jaxdae.systems import ForwardDynamics, Labels, Points, State, System

# Cosine of an angle so near to half a turn that `2 tan` of the half of it is rounding alone.
HALF_A_TURN = -1.0 + 1e-6


class Multibody(System):
    r"""Rigid bodies on joints, with loops closed by constraints.

    Coordinates are those of the joints, body by body: an angle for a hinge, a displacement for a
    slide, a quaternion for a ball, place and quaternion for a free body. Velocities are rates of
    angles and displacements, and angular velocities of balls and free bodies in axes of the body.
    With the velocity `c'` of a body's centre of mass, its angular velocity `omega` in its own axes,
    armatures `a_k` of the velocities `s_k`,

        T = sum (m |c'|^2 + omega^T I omega) / 2 + sum a_k s_k^2 / 2
        V = -sum m g^T c + springs,     D = sum d_k s_k^2 / 2

    to which force elements (`jaxdae/multibody/forces.py`) add their own.

    Mass matrix, inertial forces and accelerations come from recursions along the tree
    (`jaxdae/multibody/recursion.py`), which agree with these energies. The number of operations for
    accelerations grows with that of the bodies.

    Example:
        A pendulum::

            rod = Body("rod", Hinge("angle", axis=(0, 1, 0)), mass=1.0, centre=(0, 0, -0.5),
                       inertia=(0.08, 0.08, 0.0))
            system = Multibody([rod])

    Args:
        bodies: each after its parent.
        loops: constraints that close loops.
        motors: forces by inputs, which come first among the control inputs.
        gravity: acceleration [m/s^2], shape `(3,)`.
        forces: springs, dampers, tendons, drag and other force elements.

    Raises:
        ValueError: for a name that nothing has or two have, a free body on another one, or a loop
            between a body or a joint and itself.
    """

    zeros_are_structure: ClassVar[bool] = True

    bodies: tuple[Body, ...] = eqx.field(converter=tuple)
    loops: tuple[AbstractLoop, ...] = eqx.field(converter=tuple, default=())
    motors: tuple[AbstractForce, ...] = eqx.field(converter=tuple, default=())
    gravity: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, -9.81))
    forces: tuple[AbstractForce, ...] = eqx.field(converter=tuple, default=())

    def __check_init__(self):
        """Names that exist, each once; parents first."""
        if not self.bodies:
            raise ValueError("Multibody: give it a body at least.")
        for element in self._elements():
            if not isinstance(element, AbstractForce):
                raise TypeError(
                    f"Multibody: motors and forces are force elements; got {element!r}. Give a "
                    "Motor, a SpringDamper or another AbstractForce."
                )
        seen: list[str] = []
        for body in self.bodies:
            _known("the parent of " + repr(body.name), body.parent, seen)
            seen.append(body.name)
            if body.free() and (len(body.joints) > 1 or body.parent is not None):
                raise ValueError(
                    f"Multibody: the body {body.name!r} is free; then it has no other joint and no "
                    "parent."
                )
        joints = self.joints()
        for kind, names in (
            ("bodies", seen),
            ("joints", [x.name for x in joints]),
            ("coordinates", [y for x in joints for y, _ in x.coordinates()]),
            ("loops", [x.name for x in self.loops]),
            ("motors", [x.name for x in self.motors]),
            ("forces", [x.name for x in self.forces]),
            ("inputs", [y for x in self._elements() for y, _ in x.inputs()]),
        ):
            twice = sorted({x for x in names if names.count(x) > 1})
            if twice:
                raise ValueError(f"Multibody: two {kind} are called {twice[0]!r}.")
        single = [x.name for x in joints if x.size == 1]
        self._check_elements({
            BODY: seen,
            JOINT: [x.name for x in joints],
            BALL: [x.name for x in joints if isinstance(x, Ball)],
            COORDINATE: single,
        })  # fmt: skip
        for loop in self.loops:
            among = {"first": seen, "second": seen, "housing": seen, "joint": single, "by": single}
            for field, names in among.items():
                _known(f"{field} of {loop.name!r}", getattr(loop, field, None), names)
            between = [x for x in ("first", "second", "housing") if hasattr(loop, x)]
            for one, other in (*itertools.combinations(between, 2), ("joint", "by")):
                pair = getattr(loop, one, loop), getattr(loop, other, None)
                if pair[0] == pair[1]:
                    raise ValueError(
                        f"Multibody: {one} and {other} of {loop.name!r} are both "
                        f"{'the ground' if pair[0] is None else repr(pair[0])}: it constrains "
                        "nothing. Name two different ones."
                    )
        if not self.joints():
            raise ValueError(
                "Multibody: no body has a joint, so that nothing moves; give one a Hinge, a Slide, "
                "a Ball or Free."
            )

    def _check_elements(self, known: dict[str, list[str]]):
        """Names that motors and forces refer to, by kind."""
        for kind, elements in (("motor", self.motors), ("force", self.forces)):
            for element in elements:
                for where, of_kind, name in element.parts():
                    what = f"{where} of {kind} {element.name!r}"
                    if name is None and of_kind != BODY:
                        raise ValueError(f"Multibody: {what} is None; name a {of_kind}.")
                    single = of_kind in (BALL, COORDINATE) and name in known[JOINT]
                    if single and name not in known[of_kind]:
                        raise ValueError(
                            f"Multibody: {what} is {name!r}, which is no {of_kind}. Along hinges "
                            "and slides there are coordinates; balls and free bodies have "
                            "JointSpring and JointDamper, balls BallTransmission."
                        )
                    _known(what, name, known[of_kind])

    def _elements(self) -> tuple[AbstractForce, ...]:
        return (*self.motors, *self.forces)

    def _elements_with(self, method: str) -> list[AbstractForce]:
        """Those that declare an energy, or whatever it is; others are not traced for it."""
        default = getattr(AbstractForce, method)
        return [x for x in self._elements() if getattr(type(x), method) is not default]

    def joints(self) -> list[Any]:
        """Of all bodies, in the order of the coordinates."""
        return [x for body in self.bodies for x in body.joints]

    def values(self, q: Float[Array, " n"]) -> dict[str, Float[Array, " size"]]:
        """Coordinates by joint, in the order of `q`."""
        self._check_counts(q)
        return self._by_joint(q, [x.size for x in self.joints()])

    def speeds(self, v: Float[Array, " n_v"]) -> dict[str, Float[Array, " freedoms"]]:
        """Velocities by joint, in the order of `v`."""
        self._check_counts(v=v)
        return self._by_joint(v, [x.freedoms for x in self.joints()])

    def _check_counts(self, q=None, v=None) -> None:
        """Refuse vectors of other sizes than the joints have."""
        for what, numbers, field in (("coordinates", q, "size"), ("velocities", v, "freedoms")):
            count = sum(getattr(x, field) for x in self.joints())
            if numbers is not None and numbers.shape != (count,):
                raise ValueError(
                    f"Multibody: the joints have {count} {what}; got shape {numbers.shape}."
                )

    def _by_joint(self, numbers, sizes: list[int]):
        names = [x.name for x in self.joints()]
        return dict(zip(names, jax.lax.split(numbers, sizes), strict=True))

    @property
    def velocities_are_rates(self) -> bool:
        """Whether velocities are the rates of the coordinates: without balls and free bodies."""
        return all(x.size == x.freedoms for x in self.joints())

    def rate(self, t, q, v):
        """Rates of the coordinates: of quaternions by angular velocities, shape `(n,)`."""
        self._check_counts(q, v)
        return self.tree().rates(q, v)

    def poses(self, q: Float[Array, " n"]) -> dict[str | None, Pose]:
        """Poses of all bodies by name; the ground is `None`."""
        self._check_counts(q)
        found = self.tree().body_poses(q)
        ground = Pose(jnp.zeros(3, q.dtype), rotations.none(q.dtype))
        poses = {x.name: Pose(found.place[i], found.turn[i]) for i, x in enumerate(self.bodies)}
        return {None: ground, **poses}

    def twists(self, q: Float[Array, " n"], v: Float[Array, " n_v"]) -> dict[str | None, Twist]:
        """How all bodies move, by name, each in its own axes."""
        self._check_counts(q, v)
        found = self.tree().body_twists(q, v)
        twists: dict[str | None, Twist] = {
            None: Twist(jnp.zeros(3, q.dtype), jnp.zeros(3, q.dtype))
        }
        for i, body in enumerate(self.bodies):
            twists[body.name] = Twist(found.velocity[i], found.spin[i])
        return twists

    def tree(self) -> recursion.Tree:
        """Its links, for recursive dynamics."""
        return recursion.Tree(self.bodies)

    def configuration(self, q: Float[Array, " n"]) -> Configuration:
        """What energies of forces may depend on."""
        bodies = {x.name: x for x in self.bodies}
        return Configuration(self.poses(q), self.values(q), bodies, self.gravity)

    def motion(self, q: Float[Array, " n"], v: Float[Array, " n_v"]) -> Motion:
        """What forces may depend on."""
        return Motion(*self.configuration(q), self.twists(q, v), self.speeds(v))

    def kinetic_energy(self, t, q, v):
        """T of bodies and armatures [J]."""
        self._check_counts(q, v)
        return self.tree().kinetic_energy(q, v)

    def mass_matrix(self, t, q):
        """Mass matrix by composite rigid bodies, shape `(n_v, n_v)`."""
        self._check_counts(q)
        return self.tree().mass_matrix(q)

    def bias_force(self, t, q, v):
        """Inertial forces and weights by Newton and Euler, and forces of springs `(n_v,)`."""
        self._check_counts(q, v)
        return self.tree().bias_force(q, v, self.gravity) - self._spring_force(t, q, v)

    def forward_dynamics(self, t, q, v, force):
        """Accelerations without loops, by articulated bodies."""
        self._check_counts(q, v)
        force = force + self._spring_force(t, q, v)
        a, factored = self.tree().forward_dynamics(q, v, force, self.gravity)
        return ForwardDynamics(a, factored.solve)

    def _spring_force(self, t, q, v):
        """Of springs of joints, and of forces that have an energy."""
        slope = jax.grad(lambda q: self.spring_energy(q) + self._force_energy(t, q))(q)
        return -jax.vjp(functools.partial(self.rate, t, q), v)[1](slope)[0]

    def potential_energy(self, t, q):
        """V of weights, springs and forces [J]."""
        self._check_counts(q)
        weights = self.tree().weight_energy(q, self.gravity)
        return weights + self.spring_energy(q) + self._force_energy(t, q)

    def _force_energy(self, t, q):
        elements = self._elements_with("energy")
        if not elements:
            return jnp.zeros((), q.dtype)
        configuration = self.configuration(q)
        return sum(x.energy(t, configuration) for x in elements)

    def spring_energy(self, q: Float[Array, " n"]) -> Float[Array, ""]:
        """V of the springs of joints alone [J]."""
        self._check_counts(q)
        return self.tree().spring_energy(q)

    def dissipation(self, t, q, v):
        """Rayleigh's function of dampers and forces [W]."""
        self._check_counts(q, v)
        found = 0.5 * self.tree().of_velocities("damping") @ v**2
        elements = self._elements_with("dissipation")
        if elements:
            motion = self.motion(q, v)
            found += sum(x.dissipation(t, motion) for x in elements)
        return found

    def force(self, t, q, v, w, u):
        """Of motors and forces [N or N m], shape `(n_v,)`."""
        if not self._elements():
            return jnp.zeros_like(v)
        motion = self.motion(q, v)
        load = total_load(self._elements(), t, motion, w, u)
        return generalized(load, motion)

    def applied_wrenches(self, t, q, v, w, u) -> dict[str | None, Wrench]:
        """What motors and forces exert on bodies, in their axes; weights are not among it."""
        if not self._elements():
            return {}
        return applied_wrenches(self._elements(), t, self.motion(q, v), w, u)

    def actuator_rate(self, t, q, v, w, u):
        """Rates of the states of motors and forces, such as currents."""
        if not any(x.states() for x in self._elements()):
            return jnp.zeros_like(w)
        motion = self.motion(q, v)
        parts = shares(self._elements(), w, u, q.dtype)
        rates = [x.rate(t, motion, own_w, own_u) for x, own_w, own_u in parts if own_w.size]
        return jnp.concatenate(rates)

    def position_constraints(self, t, q):
        """Those of loops."""
        if not self.loops:
            return jnp.zeros(0, q.dtype)
        values, poses = self.values(q), self.poses(q)
        loops = [x.residuals(t, poses, values) for x in self.loops]
        return jnp.concatenate([*loops, jnp.zeros(0, q.dtype)])

    def velocity_constraints(self, t, q, v):
        """Those of loops, such as rolling without slip."""
        rolling = [x for x in self.loops if x.velocity_constraints()]
        if not rolling:
            return jnp.zeros(0, q.dtype)
        poses, twists = self.poses(q), self.twists(q, v)
        return jnp.concatenate([x.velocity_residuals(t, poses, twists) for x in rolling])

    def start(self) -> State:
        """All joints as declared, at rest; states of motors and forces zero."""
        start = [y for x in self.joints() for y in x.start()]
        q = jnp.asarray(np.asarray(start) if are_known(start) else start, float)
        states = sum(len(x.states()) for x in self._elements())
        velocities = np.zeros(sum(x.freedoms for x in self.joints()), q.dtype)
        return State(q, jnp.asarray(velocities), jnp.asarray(np.zeros(states, q.dtype)))

    def to_mjcf(self) -> str:
        """The text of a file for MuJoCo (MJCF), of which `read_mujoco` makes the same system.

        Returns:
            Bodies with their inertias and joints, loops as equality constraints, motors.

        Raises:
            ValueError: for what is not written to files: force elements beside motors of hinges and
                slides, other loops than `Connection`, `Weld` and `Coupling`, screws, bodies with a
                moment of inertia of zero, different dampings in one joint.
        """
        return mjcf(self.bodies, self.loops, self.motors, self.gravity, self.forces)

    def labels(self) -> Labels:
        joints = self.joints()
        named = [y for x in joints for y in x.coordinates()]
        speeds = [y for x in joints for y in x.velocities()]
        units = {x.name: x.coordinates()[0][1] for x in joints}
        closed = [y for x in self.loops for y in x.constraints(units)]
        closed += [y for x in self.loops for y in x.velocity_constraints()]
        return Labels(
            coordinates=tuple(x for x, _ in named),
            units=tuple(x for _, x in named),
            constraints=tuple(x for x, _ in closed),
            constraint_units=tuple(x for _, x in closed),
            actuators=tuple(y for x in self._elements() for y, _ in x.states()),
            actuator_units=tuple(y for x in self._elements() for _, y in x.states()),
            inputs=tuple(y for x in self._elements() for y, _ in x.inputs()),
            input_units=tuple(y for x in self._elements() for _, y in x.inputs()),
            velocities=() if self.velocities_are_rates else tuple(x for x, _ in speeds),
            velocity_units=() if self.velocities_are_rates else tuple(x for _, x in speeds),
        )

    def undefined_at(self, q) -> str | None:
        problem = self.without_rotation(q)
        if problem is not None:
            return problem
        for loop, cosine in self.alignments(q).items():
            if cosine < HALF_A_TURN:
                angle = np.degrees(np.arccos(max(cosine, -1.0)))
                return (
                    f"Multibody: the loop {loop!r} is {angle:.5g} degrees away from where it is "
                    "closed, and has no residual there. Start nearer, or find a start by "
                    "jaxdae.multibody.assemble."
                )
        return None

    def alignments(self, q) -> dict[str, float]:
        """By loops that have an `alignment` that cosine, of coordinates that are known."""
        if all(type(x).alignment is AbstractLoop.alignment for x in self.loops):
            return {}
        found = zip(self.loops, _alignments(self, jnp.asarray(q)), strict=True)
        return {loop.name: float(x) for loop, x in found if x is not None}

    def without_rotation(self, q) -> str | None:
        """Why a quaternion among coordinates that are known is no rotation, in words."""
        values = self.values(q)
        for joint in self.joints():
            part = joint.quaternion(values[joint.name])
            # Its square is divided by.
            if part is not None and part @ part < np.finfo(part.dtype).tiny:
                length = functools.reduce(np.hypot, part.astype(float))
                return (
                    f"Multibody: the quaternion of the joint {joint.name!r} has the length "
                    f"{length:.3g}, and is no rotation: give it another length than zero, such as "
                    "(1, 0, 0, 0), which Multibody.start() has."
                )
        return None

    def points(self, t, q) -> Points:
        """Origins of bodies, and centres of mass of those that bear no other one."""
        poses = self.poses(q)
        ground = unused("ground", [x.name for x in self.bodies])
        places = {ground: jnp.zeros(3, q.dtype)}
        places |= {x.name: poses[x.name].place for x in self.bodies}
        links = [(x.parent or ground, x.name) for x in self.bodies]
        last = [x for x in self.bodies if x.name not in {y.parent for y in self.bodies}]
        for body in last:
            places[f"_centre of {body.name}"] = poses[body.name].point(body.centre)
            links.append((body.name, f"_centre of {body.name}"))
        free = {x.name for x in self.bodies if x.free()}
        return Points(
            places,
            links=tuple(x for x in links if x[1] not in free),
            trace=tuple(f"_centre of {x.name}" for x in last),
            fixed=(ground,),
        )


@jit(options=BRIEFLY)
def _alignments(system: Multibody, q) -> list:
    poses = system.poses(q)
    return [x.alignment(poses) for x in system.loops]


def unused(name: str, taken: Sequence[str | None]) -> str:
    """A name that nothing has: with as many primes as it needs."""
    while name in taken:
        name += "'"
    return name


def _known(what: str, name: str | None, names: Sequence[str]):
    """Refuse a name that nothing has; without a name it is the ground."""
    if name is not None and name not in names:
        among = ", ".join(names) or "none yet"
        raise ValueError(f"Multibody: {what} is {name!r}; there are: {among}.")
