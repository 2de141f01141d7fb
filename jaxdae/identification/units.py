"""Units as records state them, and factors between those of one quantity."""

import re

_OF_ANGLE = {
    "rad": 1.0, "mrad": 1e-3, "deg": 0.017453292519943295, "°": 0.017453292519943295,
    "rev": 6.283185307179586, "turn": 6.283185307179586,
}  # fmt: skip
_OF_LENGTH = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "km": 1e3}
_OF_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_OF_FORCE = {"N": 1.0, "mN": 1e-3, "kN": 1e3}
# Each quantity by its units, in that of SI.
_QUANTITIES = {
    "time": _OF_TIME,
    "angle": _OF_ANGLE,
    "angular velocity": {
        **{f"{x}/s": y for x, y in _OF_ANGLE.items()},
        "rpm": 6.283185307179586 / 60,
        "1/min": 6.283185307179586 / 60,
    },
    "angular acceleration": {f"{x}/s^2": y for x, y in _OF_ANGLE.items()},
    "length": _OF_LENGTH,
    "velocity": {**{f"{x}/s": y for x, y in _OF_LENGTH.items()}, "km/h": 1 / 3.6},
    "acceleration": {f"{x}/s^2": y for x, y in _OF_LENGTH.items()},
    "force": _OF_FORCE,
    "torque": {
        **{f"{x} m": y for x, y in _OF_FORCE.items()},
        **{f"{x}m": y for x, y in _OF_FORCE.items()},
        "N mm": 1e-3, "Nmm": 1e-3, "N cm": 1e-2, "Ncm": 1e-2,
    },
    "current": {"A": 1.0, "mA": 1e-3},
    "voltage": {"V": 1.0, "mV": 1e-3},
    "power": {"W": 1.0, "mW": 1e-3, "kW": 1e3},
    "pressure": {"Pa": 1.0, "kPa": 1e3, "MPa": 1e6, "bar": 1e5},
    "number": {"1": 1.0, "%": 1e-2},
}  # fmt: skip
_BY_UNIT = {unit: (q, x) for q, units in _QUANTITIES.items() for unit, x in units.items()}


def factor(stated: str, wanted: str) -> float:
    """The factor from one unit to another; equal ones, or an empty one, are not converted.

    Args:
        stated: unit of the numbers, such as `"deg"`.
        wanted: unit that they should have, such as `"rad"`; `""` for that of SI.

    Raises:
        ValueError: for a unit that is not known, and for units of different quantities.
    """
    stated, wanted = _plain(stated), _plain(wanted)
    if stated == wanted or not stated:
        return 1.0
    if stated not in _BY_UNIT or (wanted and wanted not in _BY_UNIT):
        unknown = stated if stated not in _BY_UNIT else wanted
        raise ValueError(
            f"the unit {unknown!r} is not known; there are {', '.join(_BY_UNIT)}. Or convert the "
            "numbers, and state the unit that they should have"
        )
    (of, one), (like, other) = _BY_UNIT[stated], _BY_UNIT[wanted or stated]
    if of != like:
        raise ValueError(f"{stated!r} is a unit of {of}, {wanted!r} one of {like}")
    return one / (other if wanted else 1.0)


def split(header: str) -> tuple[str, str]:
    """Name and unit of a column's heading, such as `"angle [deg]"`; no unit where none is there."""
    found = re.fullmatch(r"(.*\S)\s*[\[(]([^\[\]()]*)[\])]\s*", header.strip())
    return (found[1].strip(), found[2].strip()) if found else (header.strip(), "")


def _plain(unit: str) -> str:
    unit = re.sub(r"[*·⋅]", " ", unit).replace("²", "^2").replace("s2", "s^2")
    return re.sub(r"\s+", " ", unit).strip()
