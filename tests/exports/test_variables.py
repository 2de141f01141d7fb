"""Names, units and descriptions of what stands in declarations."""

import jax
import jax.numpy as jnp

import jaxdae
from jaxdae.exports.variables import (
    Described,
    distinct,
    entries,
    entries_in_words,
    field_words,
    in_declaration,
    of_constraints,
    of_system,
    part_name,
)
from jaxdae.models import FourBar


def test_docstrings_say_what_fields_are():
    words = field_words(FourBar)
    assert words["inertias"] == ("about these", "kg m^2")
    assert words["tilt"] == ("direction of the ground, from pivot to pivot", "rad")
    assert words["masses"] == ("of crank, coupler, rocker", "kg")
    assert words["centres"][1] == "m"
    assert field_words(jaxdae.Baumgarte)["K_D"][1] == "1/s"


class Nested(jaxdae.System):
    parts: dict
    gain: jax.Array

    def kinetic_energy(self, t, q, v):
        return 0.5 * v @ v

    def labels(self):
        return jaxdae.Labels(
            coordinates=("x", "x", "phi"), units=("m", "", "rad"), inputs=("torque",),
            input_units=("N m",), constraints=("closing",), constraint_units=("m",),
        )  # fmt: skip


def test_places_are_names():
    system = Nested({"a b": [1.0, jnp.ones((2, 2))]}, jnp.ones(2))
    leaves = jax.tree_util.tree_leaves_with_path(system)
    made = [
        y.name
        for path, x in leaves
        for y in entries(Described(*in_declaration("system", system, path)), jnp.shape(x))
    ]
    assert made == [
        "system.parts.'a b'[0]", "system.parts.'a b'[1,0,0]", "system.parts.'a b'[1,0,1]",
        "system.parts.'a b'[1,1,0]", "system.parts.'a b'[1,1,1]", "system.gain[0]",
        "system.gain[1]",
    ]  # fmt: skip
    assert part_name('it\'s "so" \\ ü') == "'it_s _so_ _ _'"


def test_labels_are_names_where_they_differ():
    """Two coordinates are called x: numbers serve for all."""
    system = Nested({}, jnp.ones(2))
    assert [x.name for x in of_system(system, "q", 3)] == ["q[0]", "q[1]", "q[2]"]
    assert [x.unit for x in of_system(system, "v", 3)] == ["m/s", "", "rad/s"]
    assert of_system(system, "u", 1)[0] == Described("u.torque", "control input torque", "N m")
    assert of_constraints(system, "phi_dot", 1, 1)[0].unit == "m/s"
    assert of_constraints(system, "multipliers", 1, 1)[0].unit == ""
    words = entries_in_words("coordinates", system, "q", 3)
    assert words == "coordinates: x [m], x, phi [rad]"
    assert entries_in_words("states", system, "w", 2) == "states"
    assert entries_in_words("coordinates", system, "q", 99) == "coordinates"


def test_equal_names_are_numbered():
    given = [Described(x) for x in ("a", "a", "a.'_'", "a.'_'", "b[0]", "b[0]")]
    names = [x.name for x in distinct(given)]
    assert names == ["a", "a_2", "a.'_'", "a.'__2'", "b[0]", "b_2[0]"]
