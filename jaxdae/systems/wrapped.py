"""A system made of another one: what it takes over from it."""

from typing import ClassVar

from jaxdae.systems.base import Labels, System


class AbstractWrappedSystem(System):
    """A system with energies, constraints, rates, names and points of an inner one.

    Forces and rates of actuators are left to the classes made of it.

    Args:
        inner: the other one.
    """

    inner: System
    forwards_rate: ClassVar[bool] = True

    @property
    def zeros_are_structure(self):  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.inner.zeros_are_structure

    def rate(self, t, q, v):
        return self.inner.rate(t, q, v)

    def kinetic_energy(self, t, q, v):
        return self.inner.kinetic_energy(t, q, v)

    def potential_energy(self, t, q):
        return self.inner.potential_energy(t, q)

    def dissipation(self, t, q, v):
        return self.inner.dissipation(t, q, v)

    def position_constraints(self, t, q):
        return self.inner.position_constraints(t, q)

    def velocity_constraints(self, t, q, v):
        return self.inner.velocity_constraints(t, q, v)

    def mass_matrix(self, t, q):
        return self.inner.mass_matrix(t, q)

    def bias_force(self, t, q, v):
        return self.inner.bias_force(t, q, v)

    def forward_dynamics(self, t, q, v, force):
        return self.inner.forward_dynamics(t, q, v, force)

    def undefined_at(self, q):
        return self.inner.undefined_at(q)

    def labels(self) -> Labels:
        return self.inner.labels()

    def points(self, t, q):
        return self.inner.points(t, q)
