"""Conditions that an objective averages over: starts, steps and variations."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxdae.checks import are_known
from jaxdae.reprs import Module


def _numbers(values: Any) -> Any:
    """One number or several as a tuple of floats."""
    if values is None:
        return None
    if not are_known(values):
        raise TypeError(
            "Conditions: dt decides how many steps are made, and cannot be traced; make the "
            "conditions outside of jit, grad and vmap."
        )
    try:
        numbers = np.ravel(np.asarray(values))
    except (TypeError, ValueError):
        numbers = np.array([None])
    # Texts that read like numbers are none, nor are booleans.
    if numbers.size and numbers.dtype.kind not in "iuf":
        raise TypeError(f"Conditions: dt is one number or several; got {values!r}.")
    return tuple(float(x) for x in numbers)


class Conditions(Module):
    """Steps and variations under which every start is run, all with all.

    Gains that are made for one step are made for that step alone; an objective over several asks
    for gains that serve all of them. A value that is given twice counts twice.

    Args:
        dt: fixed steps [s], a number or several, in place of the objective's `dt`.
        variations: pytree whose arrays have a leading axis of variations, such as masses of several
            payloads; one of them is the second argument of the objective's `build`.

    Raises:
        TypeError: for steps that are not numbers, or are being traced.
        ValueError: for steps that are not finite or none at all, and variations without arrays or
            of different numbers.
    """

    dt: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_numbers)
    variations: PyTree = None

    def __check_init__(self):
        if self.dt is not None and not (self.dt and np.isfinite(self.dt).all()):
            what = "are no values" if not self.dt else f"is one that is not finite: {self.dt}"
            raise ValueError(f"Conditions: of dt there {what}; give times [s].")
        if self.variations is not None:
            _ = self.variation_count

    @property
    def variation_count(self) -> int:
        """Number of variations; 1 without any."""
        if self.variations is None:
            return 1
        arrays = [x for x in jax.tree.leaves(self.variations) if eqx.is_array_like(x)]
        sizes = {jnp.shape(x)[:1] for x in arrays}
        if len(sizes) != 1 or sizes & {(), (0,)}:
            shapes = ", ".join(str(jnp.shape(x)) for x in arrays) or "none"
            raise ValueError(
                "Conditions: arrays of variations need one leading axis of the same length, at "
                f"least 1, as of jnp.array([0.9, 1.0, 1.1]); their shapes are: {shapes}."
            )
        return int(*sizes.pop())

    def variation(self, index) -> PyTree:
        """One of the variations; `index` may be traced."""
        return jax.tree.map(
            lambda x: jnp.asarray(x)[index] if eqx.is_array_like(x) else x, self.variations
        )


class Members(NamedTuple):
    """The batch of an objective: every start under all conditions.

    Args:
        shape: numbers of steps, variations and starts; costs can be reshaped to it.
        dt: fixed step of each member as it was given [s], shape (members,); NaN of adaptive runs.
        variation: number of its variation, shape (members,).
        start: number of its start, shape (members,).
    """

    shape: tuple[int, int, int]
    dt: Float[np.ndarray, " members"]
    variation: Int[np.ndarray, " members"]
    start: Int[np.ndarray, " members"]

    @classmethod
    def of(cls, shape: tuple[int, int, int], dt) -> "Members":
        """All steps with all variations and starts; starts change fastest."""
        step, variation, start = (x.ravel() for x in np.indices(shape))
        return cls(shape, np.array(dt)[step], variation, start)

    def name(self, index: int) -> str:
        """Conditions of a member in words, those that differ among members and its start."""
        steps, variations, _ = self.shape
        parts = [f"dt = {self.dt[index]:g} s"] if steps > 1 else []
        parts += [f"variation {self.variation[index]}"] if variations > 1 else []
        return ", ".join([*parts, f"start {self.start[index]}"])


class Member(NamedTuple):
    """One run of the batch, of arrays that may be traced."""

    start: Int[Array, ""]  # number of its start
    variation: Int[Array, ""]  # number of its variation
    # Ends of its fixed steps, shape (steps + 1,); `None` where all have the same.
    grid: Float[Array, " ends"] | None = None
