"""What numbers of an exported run are called, in which units, and what is said of them.

Fields of systems, formulations and controllers are described by the sections *Args* and
*Attributes* of their classes' docstrings, and have the unit in brackets there.
"""

import inspect
import re
from functools import cache
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdae.kernels.export.units import unit_of
from jaxdae.results.naming import label_field, per_second
from jaxdae.systems.kinematics import has_rate


class Described(NamedTuple):
    """What is said of a number.

    Args:
        name: by the structured naming convention of FMI.
        about: in words; empty where nothing is known.
        unit: empty where none is known.
    """

    name: str
    about: str = ""
    unit: str = ""

    @property
    def words(self) -> str:
        """What it is, and its unit in brackets."""
        return f"{self.about} [{self.unit}]".strip() if self.unit else self.about


_SECTION = re.compile(r"^\s*(Args|Attributes|Parameters):\s*$")
_ENTRY = re.compile(r"^(\s+)(\w+)(?: \([^)]*\))?: (.*)$")


@cache
def field_words(kind: type) -> dict[str, tuple[str, str]]:
    """Description and unit of fields of a class and of those that it is made from."""
    result: dict[str, tuple[str, str]] = {}
    for one in kind.__mro__:
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        for name, words in _entries(text).items():
            result.setdefault(name, _without_unit(words))
    return result


def _entries(text: str) -> dict[str, str]:
    """What sections of a docstring say of each name."""
    entries: dict[str, str] = {}
    inside, name, depth = False, "", 0
    for line in text.splitlines():
        if _SECTION.match(line):
            inside, name = True, ""
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
        elif inside and (match := _ENTRY.match(line)) and (not name or len(match[1]) <= depth):
            depth, name = len(match[1]), match[2]
            entries[name] = match[3].strip()
        elif inside and name and line.strip():
            entries[name] += f" {line.strip()}"
    return entries


def _without_unit(words: str) -> tuple[str, str]:
    """A description and the unit in it, if there is one."""
    for match in re.finditer(r"\s*\[([^\[\]]+)\]", words):
        unit = match[1].strip()
        if unit_of(unit) is not None:
            rest = words[: match.start()] + words[match.end() :]
            return rest.strip().rstrip(".;,").strip(), unit
    return words.strip().rstrip("."), ""


def in_declaration(root: str, part: Any, path) -> tuple[str, str, str]:
    """Name, description and unit of what stands at a place in a declaration."""
    name, words, current = root, ("", ""), part
    for key in path:
        if isinstance(key, jax.tree_util.GetAttrKey):
            words = field_words(type(current)).get(key.name, ("", ""))
            name += f".{part_name(key.name)}"
            current = getattr(current, key.name, None)
        elif isinstance(key, jax.tree_util.SequenceKey):
            name = with_indices(name, (key.idx,))
            current = current[key.idx] if isinstance(current, list | tuple) else None
        else:
            word = getattr(key, "key", key)
            name += f".{part_name(str(word))}"
            current = current.get(word) if isinstance(current, dict) else None
    return name, *words


_QUOTED = re.compile(r"[\w!#$%&()*+,\-./:;<>=?@\[\]^{}|~ ]+", re.ASCII)


def part_name(word: str) -> str:
    """A word as a part of a name, in quotes where needed; letters beyond ASCII are left out."""
    if re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII):
        return word
    if _QUOTED.fullmatch(word):
        return f"'{word}'"
    return "'" + re.sub(r"[^\w ]", "_", word, flags=re.ASCII) + "'"


def with_indices(name: str, indices: tuple[int, ...]) -> str:
    """An entry of an array; indices of an entry of an array are joined."""
    if not indices:
        return name
    words = ",".join(map(str, indices))
    return f"{name[:-1]},{words}]" if name.endswith("]") else f"{name}[{words}]"


def entries(described: Described, shape: tuple[int, ...]) -> list[Described]:
    """Of each entry of an array, in the order of C."""
    return [described._replace(name=with_indices(described.name, i)) for i in np.ndindex(*shape)]


_ENDS = re.compile(r"(.*?)('?)(\[[\d,]+\])?")


def distinct(names: list[Described]) -> list[Described]:
    """The same with other names where some are equal."""
    seen: set[str] = set()
    result = []
    for x in names:
        name, count = x.name, 1
        while name in seen:
            count += 1
            head, quote, indices = _ENDS.fullmatch(x.name).groups()  # pyright: ignore
            name = f"{head}_{count}{quote}{indices or ''}"
        seen.add(name)
        result.append(x._replace(name=name))
    return result


_LEVELS = {
    "q": ("coordinates", "units", "coordinate"),
    "v": ("velocities", "velocity_units", "velocity"),
    "w": ("actuators", "actuator_units", "actuator state"),
    "u": ("inputs", "input_units", "control input"),
}


def of_system(system: Any, quantity: str, count: int) -> list[Described]:
    """Entries of coordinates, velocities, actuator states or control inputs, as labels have them.

    Those without a label, and all where two have one name, have their number.
    """
    labels = system.labels()
    names, units, about = _LEVELS[quantity]
    given = label_field(labels, names, count, lambda _: "")
    unit = label_field(labels, units, count, lambda _: "")
    rate = quantity == "v" and not has_rate(system)
    if rate:
        given = label_field(labels, "coordinates", count, lambda _: "")
        unit = [per_second(x) for x in label_field(labels, "units", count, lambda _: "")]
    clear = len(set(filter(None, given))) == sum(map(bool, given))
    result = []
    for i, (word, its_unit) in enumerate(zip(given, unit, strict=True)):
        plain = clear and word and word.isascii()
        name = f"{quantity}.{part_name(word)}" if plain else f"{quantity}[{i}]"
        head = "rate of coordinate" if rate else about
        said = f"{head} {word}" if word else f"{head} {i}"
        result.append(Described(name, said, its_unit if unit_of(its_unit) else ""))
    return result


# More entries than this are not listed.
_MOST_LISTED = 24


def entries_in_words(words: str, system: Any, quantity: str, count: int) -> str:
    """What a vector of a state is, and its entries that have labels or units."""
    described = of_system(system, quantity, count) if 0 < count <= _MOST_LISTED else []
    labels = label_field(system.labels(), _LEVELS[quantity][0], count, lambda _: "")
    if quantity == "v" and not has_rate(system):
        labels = label_field(system.labels(), "coordinates", count, lambda _: "")
    if not any(labels) and not any(x.unit for x in described):
        return words
    each = [
        f"{label or i} [{x.unit}]" if x.unit else f"{label or i}"
        for i, (label, x) in enumerate(zip(labels, described, strict=False))
    ]
    return f"{words}: {', '.join(each)}" if each else words


def of_constraints(system: Any, quantity: str, count: int, positions: int) -> list[Described]:
    """Multipliers, or residuals of the constraints."""
    labels = system.labels()
    unit = label_field(labels, "constraint_units", count, lambda _: "")
    result = []
    for i in range(count):
        its_unit = per_second(unit[i]) if quantity == "phi_dot" and i < positions else unit[i]
        word = labels.constraint(i)
        head = "multiplier" if quantity == "multipliers" else "residual"
        level = {"phi": "", "phi_dot": ", velocity level"}.get(quantity, "")
        known = quantity != "multipliers" and unit_of(its_unit)
        said = f"{head} of constraint {word}{level}"
        result.append(Described(f"{quantity}[{i}]", said, its_unit if known else ""))
    return result
