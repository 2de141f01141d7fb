"""What sensors make of what they measure: offsets and scales, known or estimated."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxdae.reprs import Module


@dataclasses.dataclass(frozen=True)
class Calibration:
    """An offset or a scale of a sensor that is estimated with the parameters.

    Args:
        guess: to begin from; of an offset in the unit of its channel, of a scale near one.
        sigma: standard deviation of the guess, which then counts as a measurement, of each record
            where every one has its own; infinite where nothing is known.
        per_record: whether every record has its own, such as the zero of an encoder that counts
            from where it was switched on; otherwise all records share one.

    Raises:
        ValueError: for a guess that is no finite number, and a standard deviation that is not
            positive.
    """

    guess: float
    sigma: float = np.inf
    _: dataclasses.KW_ONLY
    per_record: bool = False

    def __post_init__(self):
        if np.ndim(self.guess) != 0 or not np.isfinite(self.guess):
            raise ValueError(
                f"Calibration: the guess is {self.guess!r}, must be one finite number; of an "
                "offset 0.0, of a scale 1.0 where nothing better is known."
            )
        if np.ndim(self.sigma) != 0 or not self.sigma > 0:
            raise ValueError(
                f"Calibration: sigma is {self.sigma!r}, must be > 0, infinite where nothing is "
                "known; write a number in place of the Calibration where it is known exactly."
            )
        object.__setattr__(self, "guess", float(self.guess))
        object.__setattr__(self, "sigma", float(self.sigma))


KINDS = ("offset", "scale")
# Offset and scale of one sensor.
Line = tuple[float | Calibration, float | Calibration]


class Sensors(Module):
    """Offsets and scales of all channels, in their order.

    Args:
        names: of the channels.
        lines: offset and scale of each.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    lines: tuple[Line, ...] = eqx.field(static=True)

    def _estimated(self, per_record: bool) -> list[tuple[str, Calibration]]:
        """Names and calibrations that all records share, or of which each has its own."""
        rows = zip(self.names, self.lines, strict=True)
        return [
            (f"{kind} of {name}", x)
            for name, line in rows
            for kind, x in zip(KINDS, line, strict=True)
            if isinstance(x, Calibration) and x.per_record == per_record
        ]

    @property
    def shared(self) -> dict[str, Calibration]:
        """Those that all records share, by name."""
        return dict(self._estimated(False))

    @property
    def own(self) -> dict[str, Calibration]:
        """Those of which every record has its own, by name, in the order of a record's numbers."""
        return dict(self._estimated(True))

    def line(
        self, channel: int, shared: Mapping[str, Any], own: Float[Array, " s"]
    ) -> tuple[Any, Any]:
        """Offset and scale of a channel in a record whose own numbers are `own`."""
        places = {name: i for i, name in enumerate(self.own)}

        def number(kind: str, given: float | Calibration):
            name = f"{kind} of {self.names[channel]}"
            if not isinstance(given, Calibration):
                return given
            return own[places[name]] if given.per_record else shared[name]

        offset, scale = map(number, KINDS, self.lines[channel])
        return offset, scale

    def measured(self, channel: int, values, shared: Mapping[str, Any], own):
        """What a sensor shows of `values`: scale times them, and the offset."""
        offset, scale = self.line(channel, shared, own)
        if isinstance(scale, float) and scale == 1.0:
            return values if isinstance(offset, float) and offset == 0.0 else values + offset
        return scale * values + offset

    def first_shared(self) -> dict[str, Any]:
        """First guesses of those that all records share."""
        return {name: jnp.asarray(x.guess, float) for name, x in self.shared.items()}

    def first_own(self) -> Float[np.ndarray, " s"]:
        """First guesses of those of which every record has its own."""
        return np.array([x.guess for x in self.own.values()], float)
