"""Electric circuit of two loops, by the dynamic analogies."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.models.base import AbstractSolvedModel, ConstraintStudy, Model, Rest, stabilized
from jaxdae.systems import Labels


class TwoLoopCircuit(AbstractSolvedModel):
    r"""Two loops of coil, resistor and capacitor that share a third branch of the same kind.

    A charge that has flown is a coordinate, a current its velocity, and

        T = sum L i^2 / 2,    V = sum q^2 / (2 C),    D = sum R i^2 / 2,    f = q1 - q2 - q3 = 0

    with sources `E1`, `E2` for forces (dynamic analogies: [Shemelova; Mukharlyamov2019]). Branch 1
    leads into the node, branches 2 and 3 out of it: the constraint is Kirchhoff's law of currents,
    integrated; its multiplier is the voltage of the node, `lam = L3 q3'' + R3 q3' + q3 / C3`. The
    law of voltages follows.

    Source: elements of another physical nature, [Shemelova]; numbers of our own.

    Args:
        inductance: L of each loop [H].
        resistance: R of each loop [ohm].
        capacitance: C of each loop [F].
        shared_inductance: L3 of the shared branch [H]; with zero the mass matrix is singular.
        shared_resistance: R3 [ohm].
        shared_capacitance: C3 [F].
        source: voltages `(E1, E2)` along the directions of the branches [V].
        charge: on the capacitor of the first loop at t = 0, and on the shared one [C].
    """

    inductance: float = 0.5
    resistance: float = 0.4
    capacitance: float = 0.1
    shared_inductance: float = 0.1
    shared_resistance: float = 0.2
    shared_capacitance: float = 0.05
    source: tuple[float, float] = (2.0, 0.0)
    charge: float = 0.0

    def kinetic_energy(self, t, q, v):
        """Energy of the coils, `sum L i^2 / 2` [J]."""
        return 0.5 * (self.inductance * (v[:2] @ v[:2]) + self.shared_inductance * v[2] ** 2)

    def potential_energy(self, t, q):
        """Energy of the capacitors, `sum q^2 / (2 C)` [J]."""
        return 0.5 * (q[:2] @ q[:2] / self.capacitance + q[2] ** 2 / self.shared_capacitance)

    def dissipation(self, t, q, v):
        """Rayleigh function of the resistors, `sum R i^2 / 2` [W]."""
        return 0.5 * (self.resistance * (v[:2] @ v[:2]) + self.shared_resistance * v[2] ** 2)

    def force(self, t, q, v, w, u):
        """Voltages of the sources, and a control added to the first if there is one [V]."""
        first, second = (jnp.asarray(x, q.dtype) for x in self.source)
        first = first if u is None else first + jnp.reshape(u, ())
        return jnp.stack([first, second, jnp.zeros_like(first)])

    def position_constraints(self, t, q):
        """Charges that meet at the node [C], shape (1,)."""
        return jnp.stack([q[0] - q[1] - q[2]])

    def labels(self) -> Labels:
        branches = ("charge 1", "charge 2", "shared charge")
        return Labels(branches, ("C", "C", "C"), ("node",), ("C",))

    def points(self, t, q) -> None:
        """None: charges have no places."""

    def exact_position(self, t: Float[Array, ""] | float) -> Float[Array, " 3"]:
        r"""Charges in closed form, from rest.

        The sum `s = q1 + q2` does not flow through the shared branch, the difference does:

            L s'' + R s' + s / C = E1 + E2,
            (L + 2 L3) d'' + (R + 2 R3) d' + (1 / C + 2 / C3) d = E1 - E2,

        each a damped oscillation about its stationary charge (underdamped).

        Returns:
            `(q1, q2, q3)` [C], shape (3,).
        """
        first, second = self.source
        stiffness = 1 / self.capacitance
        both = _damped(t, self.inductance, self.resistance, stiffness, first + second, self.charge)
        difference = _damped(
            t,
            self.inductance + 2 * self.shared_inductance,
            self.resistance + 2 * self.shared_resistance,
            stiffness + 2 / self.shared_capacitance,
            first - second,
            self.charge,
        )
        return jnp.stack([0.5 * (both + difference), 0.5 * (both - difference), difference])

    def stationary(self) -> Float[Array, " 3"]:
        """Charges that the sources hold, without currents [C], shape (3,)."""
        first, second = (jnp.asarray(x, dtype=float) for x in self.source)
        both = (first + second) * self.capacitance
        difference = (first - second) / (1 / self.capacitance + 2 / self.shared_capacitance)
        return jnp.stack([0.5 * (both + difference), 0.5 * (both - difference), difference])

    def start(self) -> tuple[Float[Array, " 3"], Float[Array, " 3"]]:
        """Switched on: charged as `charge` says, without currents; each of shape (3,)."""
        return self.charge * jnp.array([1.0, 0.0, 1.0]), jnp.zeros(3)


def _damped(t, inertia, damping, stiffness, force, x0):
    """`inertia x'' + damping x' + stiffness x = force` from rest at `x0`, underdamped."""
    t = jnp.asarray(t, dtype=float)
    rate = damping / (2 * inertia)
    frequency = jnp.sqrt(stiffness / inertia - rate**2)
    angle = frequency * t
    shape = jnp.exp(-rate * t) * (jnp.cos(angle) + rate / frequency * jnp.sin(angle))
    return force / stiffness + (x0 - force / stiffness) * shape


MODELS = (
    Model(
        name="circuit",
        summary="electric circuit of two loops with coils, resistors and capacitors",
        source="Shemelova, elements of another physical nature; numbers of our own",
        place=11,
        system=TwoLoopCircuit,
        formulation=stabilized,
        t1=5.0,
        study=ConstraintStudy(t1=1.0, dt=0.01, deviation=3e-3),
        rest=Rest(
            guess=lambda system: system.stationary(),
            remark="capacitors charged by the source, no currents",
        ),
    ),
)
