"""The declaration of a constrained mechanical system, and its state."""

import abc
import dataclasses
import re
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Real

from jaxdae.reprs import Module, shown
from jaxdae.systems.points import Points
from jaxdae.systems.precision import as_floats, known_array


def _names(values) -> tuple[str, ...]:
    """Names as a tuple; a text would count as one name for each letter."""
    if isinstance(values, str) or not all(isinstance(name, str) for name in values):
        raise TypeError(f'labels are tuples of names, such as ("x", "y"); got {values!r}.')
    return tuple(values)


class Labels(Module):
    """Names and units of coordinates, constraints, actuators and inputs, for messages and plots.

    Every field is optional; what is missing is numbered (`q1`, `q2`, …, `f1`, …).

    Args:
        coordinates: names of the `n` coordinates.
        units: their units, for example `("m", "rad")`.
        constraints: names of the `m` position constraints, then the `r` velocity constraints.
        constraint_units: their units.
        actuators: names of the `k` actuator states.
        actuator_units: their units.
        inputs: names of the control inputs. Where they are given, a control input of another size
            is refused.
        input_units: their units.
        velocities: names of the velocities, where these are not the rates of the coordinates
            (`System.rate`); rates have names made of those of the coordinates.
        velocity_units: their units.
    """

    coordinates: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    units: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    constraints: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    constraint_units: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    actuators: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    actuator_units: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    inputs: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    input_units: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    velocities: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    velocity_units: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)

    def coordinate(self, i: int) -> str:
        """Name of coordinate `i`."""
        return self.coordinates[i] if i < len(self.coordinates) else f"q{i + 1}"

    def constraint(self, i: int) -> str:
        """Name of constraint `i`."""
        return self.constraints[i] if i < len(self.constraints) else f"f{i + 1}"

    def coordinate_index(self, name: str, n: int) -> int:
        """Position of the coordinate called `name` among `n`.

        Raises:
            ValueError: when no coordinate has that name.
        """
        names = [self.coordinate(i) for i in range(n)]
        if name not in names:
            raise ValueError(f"no coordinate is called {name!r}; there are: {', '.join(names)}")
        return names.index(name)

    def coordinate_indices(self, keys, n: int, what: str) -> list[int]:
        """Positions among `n` of coordinates given by names or indices, one or a sequence.

        Raises:
            ValueError: for what is none of them; `what` they are is said.
        """
        keys = (keys,) if isinstance(keys, str | int) else keys
        indices = [self.coordinate_index(k, n) if isinstance(k, str) else int(k) for k in keys]
        for i in indices:
            if not -n <= i < n:
                raise ValueError(
                    f"{what} coordinate {i} is out of range: there are {n} coordinates."
                )
        return [i % n for i in indices]


def _holds_truth(values) -> bool:
    dtypes = [getattr(x, "dtype", type(x)) for x in jax.tree.leaves(values)]
    return any(jnp.issubdtype(dtype, jnp.bool_) for dtype in dtypes)


class State(Module):
    """A state of a system: coordinates, velocities, actuator state.

    Args:
        q: coordinates [m or rad], shape `(n,)`.
        v: velocities `dq/dt`, shape `(n,)`.
        w: actuator state, shape `(k,)`; empty when the system has no actuators.
    """

    q: Float[Array, "*batch n"]
    v: Float[Array, "*batch n"]
    w: Float[Array, "*batch k"] = eqx.field(default=None)  # pyright: ignore[reportAssignmentType]

    def __init__(self, q, v, w=None):
        for name, value in (("q", q), ("v", v), ("w", w)):
            if value is None and name != "w":
                raise TypeError(
                    f"State: {name} is None; give the coordinates q and the velocities v, zeros at "
                    "rest, as vectors of one length."
                )
            if _holds_truth(value):
                raise TypeError(
                    f"State: {name} holds booleans, {value}; give numbers, 1.0 for True."
                )
        try:
            q, v, w = as_floats(q, v, w)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"State: q, v and w must be vectors of real numbers ({error})."
            ) from error
        self.q, self.v = q, v
        self.w = known_array(np.zeros((*q.shape[:-1], 0)), q.dtype) if w is None else w

    def __repr__(self) -> str:
        # Of a system without actuators there is nothing to say.
        return re.sub(r",\s+w=\[\]", "", shown(self))


class ForwardDynamics(NamedTuple):
    """What forces do to a system without its constraints.

    Args:
        acceleration: `a` of `M a + h = force`, of the shape of `v`.
        solve: the map `b -> x` with `M x = b` for vectors of that shape.
    """

    acceleration: Real[Array, " n"]
    solve: Callable[[Array], Array]


class System(Module):
    r"""A constrained mechanical system, declared by its energies, forces and constraints.

    Only `kinetic_energy` must be given; the rest is zero or empty. Any function may depend on
    time, and every function must be traceable by JAX on small arrays of fixed shape. The equations
    that follow from the declaration, in the sign convention of the library, are

        M a + J^T lam = f,        J a + gamma = d(phi_dot)/dt,

    with `M = d2T/dv2`, and `f` all forces but the constraint reactions (Lagrange's equations of
    the second kind with multipliers). `jaxdae.evaluate` derives all of them.

    Example:
        A pendulum in Cartesian coordinates::

            class Pendulum(jaxdae.System):
                mass: float = 1.0
                length: float = 1.0

                def kinetic_energy(self, t, q, v):
                    return 0.5 * self.mass * v @ v

                def potential_energy(self, t, q):
                    return self.mass * 9.81 * q[1]

                def position_constraints(self, t, q):
                    return jnp.array([q @ q - self.length**2])
    """

    # Whether zeros and ones in its vectors and matrices, such as axes along coordinates, are worth
    # a kernel of their own: another one is compiled where a number ceases to be zero or one.
    zeros_are_structure: ClassVar[bool] = False

    def __setattr__(self, name: str, value: Any) -> None:
        try:
            super().__setattr__(name, value)
        except dataclasses.FrozenInstanceError as error:
            raise dataclasses.FrozenInstanceError(_unassignable(self, name)) from error

    @abc.abstractmethod
    def kinetic_energy(self, t, q, v) -> Real[Array, ""]:
        """Kinetic energy `T(t, q, v)` [J], a scalar."""

    def rate(self, t, q, v) -> Real[Array, " n"]:
        r"""Rates of the coordinates `dq/dt = N(t, q) v`, linear in `v`, shape `(n,)`.

        `v` itself where velocities are rates of coordinates, as by default. Others, such as
        angular velocities beside quaternions, may be fewer than the coordinates. All functions of
        the declaration take them as `v`; forces, the mass matrix and the rows of the Jacobian
        belong to them. The columns of `N` must span directions along which the coordinates can move
        in any order (for quaternions: those of the unit sphere).
        """
        return v

    def potential_energy(self, t, q) -> Real[Array, ""]:
        """Potential energy `V(t, q)` [J], a scalar."""
        return jnp.zeros((), q.dtype)

    def dissipation(self, t, q, v) -> Real[Array, ""]:
        """Rayleigh dissipation function `D(t, q, v)` [W]; the force is `-dD/dv`."""
        return jnp.zeros((), q.dtype)

    def force(self, t, q, v, w, u) -> Real[Array, " n"]:
        """Other generalized forces, of the shape of `v`; `w` actuator state, `u` control input."""
        return jnp.zeros_like(v)

    def stiff_force(self, t, q, v, w, u) -> Real[Array, " n"]:
        """The stiff part of the forces, of the shape of `v`, for methods that split the motion.

        A part of those that energies, `dissipation` and `force` declare already, such as that of a
        stiff spring: it changes no motion. Methods such as `diffrax.KenCarp4` take it implicitly
        and the rest explicitly; others do not ask for it.
        """
        return jnp.zeros_like(v)

    def reaction_dependent_force(self, t, q, v, w, u, lam) -> Real[Array, " n"] | None:
        r"""Generalized forces that depend on the multipliers `lam`, such as friction and creep.

        They enter the equations beside `force`,

            M a + J^T lam = f + F(t, q, v, w, u, lam),

        which `Multipliers` solves for `a` and `lam` together. The normal reaction of a constraint
        is `|J_i| |lam_i|` (of a contact that may leave, the sign says whether it presses). Coulomb
        friction needs a direction: where a body may come to rest write a smooth law, such as
        `tanh(v / v0)` for `sign v`.

        Args:
            t: time [s].
            q: coordinates, shape `(n,)`.
            v: velocities, shape `(n,)`.
            w: actuator state, shape `(k,)`.
            u: control input.
            lam: multipliers, shape `(m+r,)`; the reaction is `-J^T lam`.

        Returns:
            Shape `(n,)`, or `None` where there are no such forces.
        """

    def position_constraints(self, t, q) -> Real[Array, " m"]:
        """Holonomic constraints `f(t, q) = 0`, shape `(m,)`."""
        return jnp.zeros((0,), q.dtype)

    def velocity_constraints(self, t, q, v) -> Real[Array, " r"]:
        """Nonholonomic constraints `g(t, q, v) = 0`, affine in `v` or not, shape `(r,)`.

        Virtual displacements are those of Chetaev's rule, `(dg/dv) dq = 0`, so that the reactions
        are `-(dg/dv)^T lam` [Chetaev1932]. For constraints affine in `v` it is the rule of
        d'Alembert and Lagrange; for others it is a postulate of its own.
        """
        return jnp.zeros((0,), q.dtype)

    def actuator_rate(self, t, q, v, w, u) -> Real[Array, " k"]:
        """Rate `dw/dt` of the actuator state, shape `(k,)`."""
        return jnp.zeros_like(w)

    def mass_matrix(self, t, q) -> Real[Array, "n n"] | None:
        """Mass matrix `M(t, q)`, only where a faster one than the energy's Hessian is known.

        `None` means that it is derived from `kinetic_energy`. A declared one is taken at its word
        by `evaluate`; `jaxdae.check_system` compares it with the energy.
        """
        return None

    def bias_force(self, t, q, v) -> Real[Array, " n"] | None:
        r"""Inertial and potential forces at zero acceleration, where faster ones are known.

            h = d/dt(dT/dv)|_{a=0} - dT/dq + dV/dq,        M a + h + dD/dv + J^T lam = F

        of the shape of `v`; of velocities that are not rates with the terms of Boltzmann and Hamel.
        `None` means that it is derived from the energies; `jaxdae.check_system` compares.
        """
        return None

    def forward_dynamics(self, t, q, v, force) -> "ForwardDynamics | None":
        """Accelerations without constraints, where faster ones are known than by a solve with `M`.

        Args:
            t: time [s].
            q: coordinates, shape `(n,)`.
            v: velocities.
            force: all forces but those of `bias_force`, of the shape of `v`.

        Returns:
            `ForwardDynamics`; `None` means that they are found from the mass matrix.
            `jaxdae.check_system` compares.
        """
        return None

    def undefined_at(self, q) -> str | None:
        """Why coordinates describe no position, in words; `None` where they do, as by default.

        It is asked before runs and searches begin, where numbers are known.

        Args:
            q: coordinates, an array of NumPy of shape `(n,)`.
        """
        return None

    def labels(self) -> Labels:
        """Names and units for messages and plots."""
        return Labels()

    def points(self, t, q) -> Points | None:
        """What the system looks like, for pictures; `None` where it has no shape to draw.

        Args:
            t: time [s].
            q: coordinates, shape `(n,)`.

        Returns:
            Named points and what joins them; see `jaxdae.Points`.
        """


def _unassignable(system: System, name: str) -> str:
    owner = type(system).__name__
    if any(field.name == name for field in dataclasses.fields(system)):
        return (
            f"{owner}.{name} does not change once the system is made; make another one, "
            f"dataclasses.replace(system, {name}=…)."
        )
    return (
        f"{owner} has no field {name!r}; declare it in the body of the class, `{name}: float`, for "
        "an array or anything else with its type. Without an __init__ of your own such fields are "
        "the arguments."
    )
