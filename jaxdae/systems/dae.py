"""The declaration of differential-algebraic equations that need not be mechanics."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from jaxtyping import Array, PyTree, Real

from jaxdae.reprs import Module
from jaxdae.systems.calls import unwrapped


class Variables(NamedTuple):
    """Values of differential and algebraic variables at one time.

    Args:
        y: differential variables; of a `residual` all of them.
        z: algebraic variables, or `None`; of a `residual` the rates `dy/dt`.
    """

    y: Any
    z: Any = None


class DAE(Module):
    r"""Differential-algebraic equations, declared by their functions.

    Either semi-explicit, by `rate`, `constraints` and, where it is not the identity, `mass`,

        M(t, y) y' = rate(t, y, z, u),        0 = constraints(t, y, z, u),

    of index 1, where `dconstraints/dz` is regular, or of index 2 in Hessenberg form, where
    constraints do not depend on `z` and `(dconstraints/dy) M^-1 (drate/dz)` is regular
    [HairerLubichRoche1989]. Or fully implicit, of index 1, by `residual` alone,

        residual(t, y, y') = 0,

    where `dresidual/dy'` may be singular, as that of a circuit with capacitors. `y` and `z` are
    pytrees of floating-point arrays or numbers, such as `{"voltage": v, "current": i}`; messages
    and results name variables and equations by their keys. Fields are parameters, which derivatives
    and batches go by; `u` is what a controller `u = controller(t, y, z)` returns, `None` without.
    Functions must be traceable by JAX on arrays of fixed shape. `jaxdae.solve` integrates them, and
    `jaxdae.consistent_start` finds values to start from.

    Example:
        A capacitor that a diode discharges; its current follows from its voltage::

            class Discharge(jaxdae.DAE):
                capacity: float = 1e-3

                def rate(self, t, y, z, u):
                    return {"voltage": -z["current"] / self.capacity}

                def constraints(self, t, y, z, u):
                    return {"diode": z["current"] - 1e-3 * jnp.expm1(y["voltage"])}
    """

    def rate(self, t, y, z, u) -> PyTree:
        """Right-hand side of `M y' = rate`, of the structure and shapes of `y`.

        Args:
            t: time [s].
            y: differential variables.
            z: algebraic variables, or `None`.
            u: control input, or `None`.
        """

    def constraints(self, t, y, z, u) -> PyTree:
        """Residuals of the algebraic equations, as many numbers as `z` has, in any pytree.

        Keys of a dictionary name the equations. Without them `y' = rate` are ordinary differential
        equations. Arguments are those of `rate`.
        """
        return ()

    def mass(self, t, y) -> Real[Array, "n n"] | None:
        """Regular matrix `M(t, y)` of the `n` numbers in `y`; `None` for the identity.

        They are in the order of `jax.flatten_util.ravel_pytree`: dictionaries by sorted keys.
        Equations with a singular matrix are declared by `residual`.
        """

    def residual(self, t, y, y_dot, u) -> PyTree:
        """Residuals of implicit equations, as many numbers as `y` has, in any pytree.

        Args:
            t: time [s].
            y: variables.
            y_dot: their rates `dy/dt`, of the same structure.
            u: control input, or `None`.
        """

    def units(self) -> Mapping[str, str]:
        """Units of variables by name, for pictures and tables: `{"y['charge']": "C", "z": "A"}`.

        A name stands for all entries below it, as in `consistent_start(…, hold=…)`; those of rates
        follow. What is not named has none.
        """
        return {}


def declares(dae: DAE, name: str) -> bool:
    """Whether a class has written a function of the declaration itself."""
    return unwrapped(getattr(type(dae), name)) is not unwrapped(getattr(DAE, name))


def is_implicit(dae: DAE) -> bool:
    """Whether equations are declared by `residual`."""
    return declares(dae, "residual")
