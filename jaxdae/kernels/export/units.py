"""Units in words, such as `kg m^2` or `N m/rad`, as factors and exponents of base units."""

import re
from typing import NamedTuple

BASE = ("kg", "m", "s", "A", "K", "mol", "cd", "rad")
_TURN = 3.141592653589793 / 180.0
# Factor, and exponents of kg, m, s, A, K, mol, cd, rad; what is left out is zero.
_KNOWN: dict[str, tuple[float, tuple[int, ...]]] = {
    **{name: (1.0, tuple(int(i == k) for i in range(8))) for k, name in enumerate(BASE)},
    "1": (1.0, ()), "g": (1e-3, (1,)), "t": (1e3, (1,)), "mm": (1e-3, (0, 1)),
    "cm": (1e-2, (0, 1)), "km": (1e3, (0, 1)), "ms": (1e-3, (0, 0, 1)), "min": (60.0, (0, 0, 1)),
    "h": (3600.0, (0, 0, 1)), "deg": (_TURN, (0,) * 7 + (1,)), "°": (_TURN, (0,) * 7 + (1,)),
    "N": (1.0, (1, 1, -2)), "kN": (1e3, (1, 1, -2)), "J": (1.0, (1, 2, -2)),
    "W": (1.0, (1, 2, -3)), "kW": (1e3, (1, 2, -3)), "Pa": (1.0, (1, -1, -2)),
    "bar": (1e5, (1, -1, -2)), "Hz": (1.0, (0, 0, -1)), "C": (1.0, (0, 0, 1, 1)),
    "V": (1.0, (1, 2, -3, -1)), "ohm": (1.0, (1, 2, -3, -2)), "Ω": (1.0, (1, 2, -3, -2)),
    "F": (1.0, (-1, -2, 4, 2)), "H": (1.0, (1, 2, -2, -2)), "Wb": (1.0, (1, 2, -2, -1)),
    "T": (1.0, (1, 0, -2, -1)),
}  # fmt: skip
_POWERS = {"²": "^2", "³": "^3", "⁴": "^4", "⁻¹": "^-1", "⁻²": "^-2", "·": " ", "*": " "}


class Unit(NamedTuple):
    """A unit.

    Args:
        factor: how many of the product of base units it is.
        exponents: of `BASE`.
    """

    factor: float
    exponents: tuple[int, ...]


def unit_of(text: str) -> Unit | None:
    """What a unit is in base units; `None` for words that are none.

    Factors stand beside each other; a slash divides by those that follow it up to the next one, or
    within parentheses.
    """
    for sign, power in _POWERS.items():
        text = text.replace(sign, power)
    factor, exponents = 1.0, [0] * 8
    for i, part in enumerate(text.split("/")):
        words = part.strip().removeprefix("(").removesuffix(")").split()
        if not words:
            return None
        for word in words:
            match = re.fullmatch(r"([^\d\^\-]+|1)(?:\^?\(?(-?\d+)\)?)?", word)
            if match is None or match[1] not in _KNOWN:
                return None
            power = int(match[2] or 1) * (-1 if i else 1)
            size, powers = _KNOWN[match[1]]
            factor *= size**power
            for k, x in enumerate(powers):
                exponents[k] += power * x
    return Unit(factor, tuple(exponents))
