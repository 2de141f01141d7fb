"""A system of rigid bodies."""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody import recursion, rotations
from jaxdae.multibody.bodies import AbstractLoop, Body, Motor
from jaxdae.multibody.joints import Pose, space_vector, Twist
from jaxdae.systems import ForwardDynamics, Labels, Points, State, System


class Multibody(System):
    r"""Rigid bodies on joints, with loops closed by constraints.

    Coordinates are those of the joints, body by body: an angle for a hinge, a displacement for a
    slide, a quaternion for a ball, place and quaternion for a free body. Velocities are rates of
    angles and displacements, and angular velocities of balls and free bodies in axes of the body.
    With the velocity `c'` of a body's centre of mass, its angular velocity `omega` in its own axes,
    armatures `a_k` of the velocities `s_k`,

        T = sum (m |c'|^2 + omega^T I omega) / 2 + sum a_k s_k^2 / 2
        V = -sum m g^T c + springs,     D = sum d_k s_k^2 / 2

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
        motors: forces by inputs.
        gravity: acceleration [m/s^2], shape `(3,)`.

    Raises:
        ValueError: for a name that nothing has or two have, a free body on another one, or a loop
            between a body or a joint and itself.
    """

    zeros_are_structure: ClassVar[bool] = True

    bodies: tuple[Body, ...] = eqx.field(converter=tuple)
    loops: tuple[AbstractLoop, ...] = eqx.field(converter=tuple, default=())
    motors: tuple[Motor, ...] = eqx.field(converter=tuple, default=())
    gravity: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, -9.81))

    def __check_init__(self):
        """Names that exist, each once; parents first."""
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
        ):
            twice = sorted({x for x in names if names.count(x) > 1})
            if twice:
                raise ValueError(f"Multibody: two {kind} are called {twice[0]!r}.")
        single = [x.name for x in joints if x.size == 1]
        for motor in self.motors:
            _known(f"the joint of motor {motor.name!r}", motor.joint, single)
        for loop in self.loops:
            among = {"first": seen, "second": seen, "joint": single, "by": single}
            for field, names in among.items():
                _known(f"{field} of {loop.name!r}", getattr(loop, field, None), names)
            for one, other in (("first", "second"), ("joint", "by")):
                pair = getattr(loop, one, loop), getattr(loop, other, None)
                if pair[0] == pair[1]:
                    raise ValueError(
                        f"Multibody: {one} and {other} of {loop.name!r} are both "
                        f"{'the ground' if pair[0] is None else repr(pair[0])}: it constrains "
                        "nothing. Name two different ones."
                    )

    def joints(self) -> list[Any]:
        """Of all bodies, in the order of the coordinates."""
        return [x for body in self.bodies for x in body.joints]

    def values(self, q: Float[Array, " n"]) -> dict[str, Float[Array, " size"]]:
        """Coordinates by joint, in the order of `q`."""
        return self._by_joint("coordinates", q, [x.size for x in self.joints()])

    def speeds(self, v: Float[Array, " n_v"]) -> dict[str, Float[Array, " freedoms"]]:
        """Velocities by joint, in the order of `v`."""
        return self._by_joint("velocities", v, [x.freedoms for x in self.joints()])

    def _by_joint(self, what: str, numbers, sizes: list[int]):
        ends = list(itertools.accumulate(sizes, initial=0))
        if numbers.shape != (ends[-1],):
            raise ValueError(
                f"Multibody: the joints have {ends[-1]} {what}; got shape {numbers.shape}."
            )
        names = [x.name for x in self.joints()]
        return {x: numbers[a:b] for x, a, b in zip(names, ends[:-1], ends[1:], strict=True)}

    def rate(self, t, q, v):
        """Rates of the coordinates: of quaternions by angular velocities, shape `(n,)`."""
        values, speeds = self.values(q), self.speeds(v)
        rates = [x.rate(values[x.name], speeds[x.name]) for x in self.joints()]
        return jnp.concatenate([*rates, jnp.zeros(0, q.dtype)])

    def poses(self, q: Float[Array, " n"]) -> dict[str | None, Pose]:
        """Poses of all bodies by name; the ground is `None`."""
        found = self.tree().body_poses(q)
        ground = Pose(jnp.zeros(3, q.dtype), rotations.none(q.dtype))
        poses = {x.name: Pose(found.place[i], found.turn[i]) for i, x in enumerate(self.bodies)}
        return {None: ground, **poses}

    def twists(self, q: Float[Array, " n"], v: Float[Array, " n_v"]) -> dict[str | None, Twist]:
        """How all bodies move, by name, each in its own axes."""
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

    def kinetic_energy(self, t, q, v):
        """T of bodies and armatures [J]."""
        return self.tree().kinetic_energy(q, v)

    def mass_matrix(self, t, q):
        """Mass matrix by composite rigid bodies, shape `(n_v, n_v)`."""
        return self.tree().mass_matrix(q)

    def bias_force(self, t, q, v):
        """Inertial forces and weights by Newton and Euler, and forces of springs `(n_v,)`."""
        return self.tree().bias_force(q, v, self.gravity) - self._spring_force(t, q, v)

    def forward_dynamics(self, t, q, v, force):
        """Accelerations without loops, by articulated bodies."""
        force = force + self._spring_force(t, q, v)
        a, factored = self.tree().forward_dynamics(q, v, force, self.gravity)
        return ForwardDynamics(a, factored.solve)

    def _spring_force(self, t, q, v):
        slope = jax.grad(self.spring_energy)(q)
        return -jax.vjp(functools.partial(self.rate, t, q), v)[1](slope)[0]

    def potential_energy(self, t, q):
        """V of weights and springs [J]."""
        return self.tree().weight_energy(q, self.gravity) + self.spring_energy(q)

    def spring_energy(self, q: Float[Array, " n"]) -> Float[Array, ""]:
        """V of the springs of joints alone [J]."""
        values = self.values(q)
        return sum((x.energy(values[x.name]) for x in self.joints()), jnp.zeros((), q.dtype))

    def dissipation(self, t, q, v):
        """Rayleigh's function of the dampers [W]."""
        speeds = self.speeds(v)
        return 0.5 * sum(
            (jnp.sum(x.damping * speeds[x.name] ** 2) for x in self.joints()),
            jnp.zeros((), q.dtype),
        )

    def force(self, t, q, v, w, u):
        """Of the motors [N or N m], shape `(n_v,)`."""
        values, rates = self.values(q), self.speeds(v)
        forces = {name: jnp.zeros_like(x) for name, x in rates.items()}
        for i, motor in enumerate(self.motors):
            given = 0.0 if u is None else u[i]
            name = motor.joint
            forces[name] += motor.force(values[name], rates[name], given)
        return jnp.concatenate([*forces.values(), jnp.zeros(0, q.dtype)])

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
        """All joints as declared, at rest."""
        q = jnp.asarray([y for x in self.joints() for y in x.start()], float)
        return State(q, jnp.zeros(sum(x.freedoms for x in self.joints()), q.dtype))

    def labels(self) -> Labels:
        joints = self.joints()
        named = [y for x in joints for y in x.coordinates()]
        units = {x.name: x.coordinates()[0][1] for x in joints}
        closed = [y for x in self.loops for y in x.constraints(units)]
        closed += [y for x in self.loops for y in x.velocity_constraints()]
        return Labels(
            coordinates=tuple(x for x, _ in named),
            units=tuple(x for _, x in named),
            constraints=tuple(x for x, _ in closed),
            constraint_units=tuple(x for _, x in closed),
            inputs=tuple(x.name for x in self.motors),
        )

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
