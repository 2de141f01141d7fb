"""The contract of force elements, and the generalized force that loads on bodies and joints are."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.multibody.bodies import Body, quaternion
from jaxdae.multibody.joints import AbstractJoint, Pose, space_vector, Twist, Wrench
from jaxdae.multibody.rotations import cross, from_quaternion
from jaxdae.reprs import Module
from jaxdae.systems.precision import in_dtype


class Configuration(NamedTuple):
    """Where a mechanism is: what energies of forces may depend on.

    Args:
        poses: of bodies by name; the ground is `None`.
        values: coordinates by joint.
        bodies: by name, with their masses.
        gravity: acceleration [m/s^2], shape `(3,)`.
    """

    poses: dict[str | None, Pose]
    values: dict[str, Float[Array, " size"]]
    bodies: dict[str, Body]
    gravity: Float[Array, " 3"]


class Motion(NamedTuple):
    """How a mechanism moves: what forces may depend on.

    Args:
        poses: of bodies by name; the ground is `None`.
        values: coordinates by joint.
        bodies: by name, with their masses.
        gravity: acceleration [m/s^2], shape `(3,)`.
        twists: of bodies by name, each in its own axes at its origin.
        speeds: velocities by joint.
    """

    poses: dict[str | None, Pose]
    values: dict[str, Float[Array, " size"]]
    bodies: dict[str, Body]
    gravity: Float[Array, " 3"]
    twists: dict[str | None, Twist]
    speeds: dict[str, Float[Array, " size"]]


@dataclasses.dataclass(frozen=True)
class Load:
    """What acts on bodies and on joints.

    Args:
        wrenches: by body; what acts on the ground (`None`) has no effect.
        joints: forces or torques by joint, of the shape of its velocities.
    """

    wrenches: dict[str | None, Wrench] = dataclasses.field(default_factory=dict)
    joints: dict[str, Float[Array, " size"]] = dataclasses.field(default_factory=dict)

    def plus(self, other: "Load") -> "Load":
        """Both together."""
        wrenches, joints = {**self.wrenches}, {**self.joints}
        for name, wrench in other.wrenches.items():
            wrenches[name] = wrenches[name].plus(wrench) if name in wrenches else wrench
        for name, force in other.joints.items():
            joints[name] = joints[name] + force if name in joints else force
        return Load(wrenches, joints)

    def times(self, factor: Float[Array, ""]) -> "Load":
        """So many times as much."""
        wrenches = {
            k: Wrench(x.force * factor, x.torque * factor) for k, x in self.wrenches.items()
        }
        return Load(wrenches, {k: x * factor for k, x in self.joints.items()})

    def power(self, motion: Motion) -> Float[Array, ""]:
        """`sum (force . velocity + torque . spin)` of bodies and joints [W]."""
        powers = [
            x.force @ motion.twists[k].velocity + x.torque @ motion.twists[k].spin
            for k, x in self.wrenches.items()
        ]
        powers += [x @ motion.speeds[k] for k, x in self.joints.items()]
        return sum(powers, jnp.zeros((), motion.gravity.dtype))


class Marker(Module):
    """A point of a body, and axes there.

    Args:
        body: its name; `None` is the ground.
        place: of the point in the body [m].
        orientation: of the axes in those of the body, a quaternion with the scalar part first.
    """

    body: str | None = eqx.field(static=True, default=None)
    place: Float[Array, " 3"] = eqx.field(converter=space_vector, default=(0.0, 0.0, 0.0))
    orientation: Float[Array, " 4"] = eqx.field(converter=quaternion, default=(1.0, 0.0, 0.0, 0.0))

    def relative(self) -> Pose:
        """Its pose in the body."""
        return Pose(self.place, from_quaternion(self.orientation))

    def point(self, poses: dict[str | None, Pose]) -> Float[Array, " 3"]:
        """The point in space [m]."""
        return poses[self.body].point(self.place)

    def pose(self, poses: dict[str | None, Pose]) -> Pose:
        """Point and axes in space."""
        return poses[self.body].then(self.relative())

    def twist(self, twists: dict[str | None, Twist]) -> Twist:
        """How it moves, in its own axes."""
        return twists[self.body].seen(self.relative())


# What a force says of the names that it has: where they stand, their kind, the name.
BODY, JOINT, BALL, COORDINATE = "body", "joint", "ball", "hinge or slide"
Part = tuple[str, str, str | None]


class AbstractForce(Module):
    r"""A force element: an energy, a Rayleigh function, loads by virtual power, states of its own.

    Whatever it declares, it acts by

        f = -dV/dq - dD/dv + sum (d twist/dv)^T wrench + sum (d speed/dv)^T force

    so that its power is `sum (force . velocity + torque . spin)` of bodies, and of joints, exactly.
    A subclass gives what it has, in traceable JAX; the rest is zero.
    """

    name: eqx.AbstractVar[str]

    def parts(self) -> tuple[Part, ...]:
        """Names of bodies and joints it refers to, each with where it stands and its kind."""
        return ()

    def inputs(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each control input that it takes."""
        return ()

    def states(self) -> tuple[tuple[str, str], ...]:
        """Name and unit of each state of its own, such as a current."""
        return ()

    def energy(self, t, configuration: Configuration) -> Float[Array, ""]:
        """Its potential energy [J]."""
        return jnp.zeros((), configuration.gravity.dtype)

    def dissipation(self, t, motion: Motion) -> Float[Array, ""]:
        """Its Rayleigh function [W]."""
        return jnp.zeros((), motion.gravity.dtype)

    def load(self, t, motion: Motion, w, u) -> Load:
        """What acts on bodies and joints.

        Args:
            t: time [s].
            motion: of the mechanism.
            w: its own states, shape `(len(states()),)`.
            u: its own control inputs, shape `(len(inputs()),)`, zero without a controller.
        """
        return Load()

    def rate(self, t, motion: Motion, w, u) -> Float[Array, " k"]:
        """Rates of its own states, of the shape of `w`."""
        return jnp.zeros_like(w)


class UserForce(AbstractForce):
    """A force by functions of the user.

    Example:
        A propeller that pushes along the axis x of a body::

            def thrust(t, motion, w, u):
                return Load({"boat": Wrench(jnp.array([u[0], 0.0, 0.0]), jnp.zeros(3))})

            UserForce("propeller", thrust, inputs=("thrust",))

    Args:
        name: of the element.
        function: `function(t, motion, w, u)` returns a `Load`; `None` without one.
        potential: `potential(t, configuration)` returns an energy [J], or `None`.
        rayleigh: `rayleigh(t, motion)` returns a Rayleigh function [W], or `None`.
        inputs: names of control inputs.
    """

    name: str = eqx.field(static=True)
    function: Callable | None = None
    potential: Callable | None = None
    rayleigh: Callable | None = None
    input_names: tuple[str, ...] = eqx.field(static=True, default=())

    def __init__(self, name, function=None, *, potential=None, rayleigh=None, inputs=()):
        if isinstance(inputs, str):
            raise TypeError(f"UserForce {name!r}: inputs are a tuple of names; got {inputs!r}.")
        self.name, self.function = name, function
        self.potential, self.rayleigh, self.input_names = potential, rayleigh, tuple(inputs)

    def __check_init__(self):
        given = (self.function, self.potential, self.rayleigh)
        if not any(given):
            raise ValueError(
                f"UserForce {self.name!r} has no function: give function(t, motion, w, u), "
                "potential(t, configuration) or rayleigh(t, motion)."
            )
        for what in given:
            if what is not None and not callable(what):
                raise TypeError(f"UserForce {self.name!r}: {what!r} is not callable.")

    def inputs(self):
        return tuple((x, "") for x in self.input_names)

    def energy(self, t, configuration):
        if self.potential is None:
            return jnp.zeros((), configuration.gravity.dtype)
        return self.potential(t, configuration)

    def dissipation(self, t, motion):
        if self.rayleigh is None:
            return jnp.zeros((), motion.gravity.dtype)
        return self.rayleigh(t, motion)

    def load(self, t, motion, w, u):
        if self.function is None:
            return Load()
        load = self.function(t, motion, w, u)
        if not isinstance(load, Load):
            raise TypeError(
                f"the function of UserForce {self.name!r} returned {type(load).__name__}; it "
                "returns a jaxdae.multibody.Load of wrenches by body and forces by joint."
            )
        return load


def total_load(
    forces: Sequence[AbstractForce], t, motion: Motion, w: Float[Array, " k"], u: Any
) -> Load:
    """Of all elements, each with its own part of the states and inputs, in their order.

    Raises:
        ValueError: for a load on a body or a joint that is not there, or of another shape.
    """
    total = Load()
    for force, own_w, own_u in shares(forces, w, u, motion.gravity.dtype):
        load = force.load(t, motion, own_w, own_u)
        _check_load(force.name, load, motion)
        on_bodies: dict[str | None, Wrench] = {
            k: x for k, x in load.wrenches.items() if k is not None
        }
        # Before sums: kernels of single precision have no numbers of double precision.
        own = in_dtype((on_bodies, load.joints), motion.gravity.dtype)
        total = total.plus(Load(*own))
    return total


def applied_wrenches(
    forces: Sequence[AbstractForce], t, motion: Motion, w, u
) -> dict[str | None, Wrench]:
    """What elements exert on bodies, those with an energy or a Rayleigh function, too.

    What they exert on joints is not among it.
    """
    poses = {k: x for k, x in motion.poses.items() if k is not None}
    twists = {k: x for k, x in motion.twists.items() if k is not None}
    ground, still = motion.poses[None], motion.twists[None]

    def energy(poses):
        configuration = Configuration({None: ground, **poses}, *motion[1:4])
        zero = jnp.zeros((), motion.gravity.dtype)
        return sum((x.energy(t, configuration) for x in forces), zero)

    def dissipation(twists):
        moving = motion._replace(twists={None: still, **twists})
        zero = jnp.zeros((), motion.gravity.dtype)
        return sum((x.dissipation(t, moving) for x in forces), zero)

    given = {
        k: Wrench.dual(poses[k], x).plus(Wrench(damping.velocity, damping.spin))
        for (k, x), damping in zip(
            jax.grad(energy)(poses).items(), jax.grad(dissipation)(twists).values(), strict=True
        )
    }
    taken = Load(given).times(jnp.asarray(-1.0, motion.gravity.dtype))
    return total_load(forces, t, motion, w, u).plus(taken).wrenches


def shares(forces: Sequence[AbstractForce], w, u, dtype):
    """Of each element: itself, its states, its inputs; zeros where `w` or `u` is `None`.

    Raises:
        ValueError: for too few states or inputs.
    """
    states = [name for x in forces for name, _ in x.states()]
    inputs = [name for x in forces for name, _ in x.inputs()]
    w = jnp.zeros(len(states), dtype) if w is None else w
    u = jnp.zeros(len(inputs), dtype) if u is None else jnp.asarray(u, dtype)
    for what, given, names in (("actuator states", w, states), ("control inputs", u, inputs)):
        if given.shape[-1] < len(names):
            raise ValueError(
                f"Multibody: motors and forces have {len(names)} {what} ({', '.join(names)}); got "
                f"{given.shape[-1]}. start() has the states, a controller gives the inputs."
            )
    at_w = at_u = 0
    for force in forces:
        k, s = len(force.states()), len(force.inputs())
        yield force, w[at_w : at_w + k], u[at_u : at_u + s]
        at_w, at_u = at_w + k, at_u + s


def _check_load(name: str, load: Load, motion: Motion):
    for what, found, known in (
        ("body", load.wrenches, motion.poses),
        ("joint", load.joints, motion.speeds),
    ):
        for key in found:
            if key not in known:
                among = ", ".join(str(x) for x in known if x is not None) or "none"
                raise ValueError(
                    f"Multibody: the force {name!r} acts on the {what} {key!r}; there are: {among}."
                )
    for key, wrench in load.wrenches.items():
        shapes = jnp.shape(wrench.force), jnp.shape(wrench.torque)
        if shapes != ((3,), (3,)):
            raise ValueError(
                f"Multibody: the force {name!r} has force and torque of shapes {shapes[0]} and "
                f"{shapes[1]} on the body {key!r}; each has shape (3,)."
            )
    for key, force in load.joints.items():
        if jnp.shape(force) != motion.speeds[key].shape:
            raise ValueError(
                f"Multibody: the force {name!r} on the joint {key!r} has shape {jnp.shape(force)}; "
                f"velocities of the joint have shape {motion.speeds[key].shape}."
            )


def generalized(load: Load, motion: Motion) -> Float[Array, " n_v"]:
    """The generalized force that has the power of a load in all motions [N or N m], `(n_v,)`.

    It is the transpose of the map from velocities to twists: a joint has the power of all wrenches
    on the bodies that it carries, at each of its velocities 1.
    """
    found = {name: [] for name in motion.speeds}
    carried: dict[str, tuple[Any, Any]] = {}

    def add(name, force, torque):
        others = carried.get(name)
        both = (force, torque) if others is None else (others[0] + force, others[1] + torque)
        carried[name] = both

    for body in reversed(motion.bodies.values()):  # children before their parents
        pose = motion.poses[body.name]
        own = load.wrenches.get(body.name)
        if own is not None:
            # In axes of space, and about its origin, to be added to those of other bodies.
            force, torque = pose.turn @ own.force, pose.turn @ own.torque
            add(body.name, force, torque + cross(pose.place, force))
        if body.name not in carried:
            continue
        force, torque = carried[body.name]
        for joint, frame in joint_frames(body, motion.poses, motion.values):
            about = torque - cross(frame.place, force)
            here, turned = frame.turn.T @ force, frame.turn.T @ about
            found[joint.name] = [
                here @ x.velocity + turned @ x.spin
                for x in joint.directions(motion.values[joint.name])
            ]
        if body.parent is not None:
            add(body.parent, force, torque)
    dtype = motion.gravity.dtype
    joints = [
        (jnp.stack(found[name]) if found[name] else jnp.zeros_like(x))
        + load.joints.get(name, jnp.zeros_like(x))
        for name, x in motion.speeds.items()
    ]
    return jnp.concatenate([*joints, jnp.zeros(0, dtype)])


def joint_frames(
    body: Body, poses: dict[str | None, Pose], values: dict[str, Float[Array, " size"]]
) -> list[tuple[AbstractJoint, Pose]]:
    """Joints of a body, each with its frame in space: at its anchor, with the body's axes."""
    pose, frames = poses[body.parent].then(body.at_rest()), []
    for joint in body.joints:
        moved = joint.pose(values[joint.name])
        # A free body is where its coordinates say, whatever pose it was declared with.
        pose = moved if body.free() else pose.then(moved)
        frames.append((joint, pose if joint.at is None else Pose(pose.point(joint.at), pose.turn)))
    return frames
