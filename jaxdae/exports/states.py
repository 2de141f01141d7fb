"""States of exported runs as they come out: coordinates, velocities, and what is read of them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdae.names import unknown_name
from jaxdae.results import readings
from jaxdae.simulation.kernel_plan import KernelPlan
from jaxdae.solvers.projected import between_steps


class _Quantity(NamedTuple):
    """What can be read of a state.

    Args:
        about: in words.
        read: `read(parts, t, y)` of the formulation's own state.
    """

    about: str
    read: Callable[..., Any]


_STATE = {
    "q": _Quantity("coordinates", lambda *x: readings.state_of(*x).q),
    "v": _Quantity("velocities", lambda *x: readings.state_of(*x).v),
    "w": _Quantity("actuator states", lambda *x: readings.state_of(*x).w),
}
_MORE = {
    "u": _Quantity("control input", readings.control),
    "multipliers": _Quantity("multipliers", readings.multipliers),
    "phi": _Quantity("residuals of position constraints", lambda *x: readings.violation(*x).phi),
    "phi_dot": _Quantity("residuals of velocities", lambda *x: readings.violation(*x).phi_dot),
    "energy": _Quantity("generalized energy [J]", readings.energy),
    "kinetic_energy": _Quantity("kinetic energy [J]", readings.kinetic_energy),
    "potential_energy": _Quantity("potential energy [J]", readings.potential_energy),
}


class _Parts(NamedTuple):
    """Of a run, what quantities are read by."""

    system: Any
    formulation: Any
    controller: Any


def check_quantities(quantities: Sequence[str], controller) -> None:
    """That there are such.

    Args:
        quantities: names.
        controller: of the run, or `None`.

    Raises:
        ValueError: for others, and for a control input without a controller.
    """
    for name in quantities:
        if name not in _MORE:
            raise ValueError(unknown_name("quantity", str(name), _MORE))
        if name == "u" and controller is None:
            raise ValueError("there is no control input u without a controller; give one.")


class Reader(NamedTuple):
    """States as they come out, from those that are integrated.

    Args:
        plan: the kernel of the run.
        solver: of the run.
        quantities: names of what is read beside coordinates, velocities and actuator states.
    """

    plan: KernelPlan
    solver: Any
    quantities: tuple[str, ...]

    def fields(self) -> list:
        """The parts of a state."""
        from jaxdae.kernels.export.interface import Field

        time, start, parameters = self._arguments()
        shapes = jax.eval_shape(lambda t, y, *p: self._values(t, y, p), time, start, *parameters)
        abouts = (x.about for x in self._every().values())
        named = zip(self._every(), abouts, shapes, strict=True)
        return [Field(name, about, x.shape) for name, about, x in named]

    def program(self, name: str, project: bool):
        """As a program of a kernel; `None` where they are what is integrated.

        Args:
            name: of the program.
            project: whether states are taken onto the constraints before.
        """
        from jaxdae.kernels.tracing.subprograms import Subprogram
        from jaxdae.kernels.tracing.trace import scalarize

        def read(t, y, *parameters):
            values = self._values(t, y, parameters, project)
            return [jnp.concatenate([x.ravel().astype(self.plan.dtype) for x in values])]

        time, start, parameters = self._arguments()
        program = scalarize(read, time, start, *parameters, loops=True, signed=True)
        same = np.arange(1, 1 + self.plan.states)  # nodes of the inputs come first
        return None if np.array_equal(program.outputs, same) else Subprogram(name, program)

    def _arguments(self):
        plan = self.plan
        time = jax.ShapeDtypeStruct((), plan.dtype)
        return time, jax.ShapeDtypeStruct((plan.states,), plan.dtype), plan.shapes

    def _every(self) -> dict[str, _Quantity]:
        return _STATE | {x: _MORE[x] for x in self.quantities}

    def _values(self, t, y, parameters, project: bool = False) -> list:
        plan, projection = self.plan, between_steps(self.solver)
        arrays = jax.tree.unflatten(plan.structure, parameters)
        parts = _Parts(*eqx.combine(arrays, plan.static)[0])
        tree = plan.unravel(y)
        if project and projection is not None:
            tree = projection.project(t, tree, tuple(parts))
        every = (x.read(parts, t, tree[0]) for x in self._every().values())
        return [_flat(x) for x in every]


def _flat(value) -> jax.Array:
    """Numbers of a pytree as one array."""
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(value)]
    return leaves[0] if len(leaves) == 1 else jnp.concatenate([x.ravel() for x in leaves])
