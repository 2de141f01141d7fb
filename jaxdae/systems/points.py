"""What a system looks like: named points, links between them, and paths to draw."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

# Of a circle: at the size of a page its corners are not seen.
_CORNERS = 32


def _chains(values) -> tuple[tuple[str, ...], ...]:
    """Tuples of names; of a text each letter would count as one."""
    for names in values:
        if isinstance(names, str):
            raise TypeError(
                f"Points: links, lines and bodies are tuples of names, such as "
                f'(("pivot", "mass"),); got the text {names!r} for one of them.'
            )
    return tuple(tuple(names) for names in values)


def _names(values) -> tuple[str, ...]:
    if isinstance(values, str):
        raise TypeError(
            f'Points: trace and fixed are tuples of names, such as ("{values}",); got the text '
            f"{values!r}."
        )
    return tuple(values)


class Points(eqx.Module):
    """A position of a system as a drawing, returned by `System.points(t, q)`.

    Pictures write the names of points beside them, but for names that begin with an underscore.

    Example:
        A pendulum::

            def points(self, t, q):
                return jaxdae.Points(
                    {"pivot": jnp.zeros(2), "mass": q},
                    links=(("pivot", "mass"),),
                    trace=("mass",),
                    fixed=("pivot",),
                )

    Args:
        places: from names to positions [m], all in a plane, shape `(2,)`, drawn with the second
            axis up, or all in space, shape `(3,)`, the third axis up.
        links: rigid links through points, two names or more each.
        lines: what else joins points, drawn thin and dashed: springs, threads, rays of light.
        bodies: closed polygons through points, three names or more each.
        outlines: closed curves by name, shape `(corners, 2)` or `(corners, 3)` [m]; see `circle`.
        trace: names of the points whose paths are drawn.
        fixed: names of the points of the ground.
        unit: of all positions, as axes show it.

    Raises:
        ValueError: for a name without a place, or positions of different or other dimensions.
        TypeError: for a text where a tuple of names belongs.
    """

    places: dict[str, Float[Array, " d"]]
    links: tuple[tuple[str, ...], ...] = eqx.field(static=True, default=(), converter=_chains)
    lines: tuple[tuple[str, ...], ...] = eqx.field(static=True, default=(), converter=_chains)
    bodies: tuple[tuple[str, ...], ...] = eqx.field(static=True, default=(), converter=_chains)
    outlines: dict[str, Float[Array, "corners d"]] = eqx.field(default_factory=dict)
    trace: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    fixed: tuple[str, ...] = eqx.field(static=True, default=(), converter=_names)
    unit: str = eqx.field(static=True, default="m")

    def __check_init__(self):
        """Every name has a place, and all are in one plane or one space."""
        if not self.places:
            raise ValueError("Points needs at least one place; got none.")
        named = {"links": self.links, "lines": self.lines, "bodies": self.bodies}
        named |= {"trace": (self.trace,), "fixed": (self.fixed,)}
        for field, chains in named.items():
            unknown = sorted({x for chain in chains for x in chain} - {*self.places})
            if unknown:
                raise ValueError(
                    f"Points: {field} name {', '.join(map(repr, unknown))}, which no place has; "
                    f"there are: {', '.join(self.places)}."
                )
        for field, least in (("links", 2), ("lines", 2), ("bodies", 3)):
            short = [x for x in named[field] if len(x) < least]
            if short:
                raise ValueError(f"Points: one of {field} needs {least} names; got {short[0]!r}.")
        self._check_shapes()

    def _check_shapes(self):
        shapes = {name: jnp.shape(x) for name, x in self.places.items()}
        first = next(iter(shapes.values()))
        for name, shape in shapes.items():
            if shape not in ((2,), (3,)) or shape != first:
                raise ValueError(
                    f"Points: the place {name!r} has shape {shape}; all are of shape (2,) in the "
                    "plane, or all of shape (3,) in space."
                )
        for name, outline in self.outlines.items():
            shape = jnp.shape(outline)
            if len(shape) != 2 or shape[1:] != first:
                raise ValueError(
                    f"Points: the outline {name!r} has shape {shape}; beside places of shape "
                    f"{first} it is (corners, {first[0]})."
                )


def circle(centre, radius, along=None, up=None) -> Float[Array, "corners d"]:
    """Corners of a circle, for `Points.outlines`.

    Args:
        centre: shape `(2,)` or `(3,)` [m].
        radius: [m].
        along: in space, a unit vector of its plane, shape `(3,)`; the first corner lies there.
        up: the unit vector across.

    Returns:
        Shape `(32, 2)` or `(32, 3)` [m].
    """
    centre = jnp.asarray(centre)
    along = jnp.eye(centre.size)[0] if along is None else jnp.asarray(along)
    up = jnp.eye(centre.size)[1] if up is None else jnp.asarray(up)
    angles = jnp.linspace(0.0, 2 * jnp.pi, _CORNERS, endpoint=False)[:, None]
    return centre + radius * (jnp.cos(angles) * along + jnp.sin(angles) * up)
