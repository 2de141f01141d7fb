"""Tendons: sums of coordinates, and paths through points of bodies."""

import itertools
from collections.abc import Mapping, Sequence

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxdae.checks import fails
from jaxdae.multibody.forces import BODY, COORDINATE, Marker
from jaxdae.multibody.lengths import AbstractLength, distance
from jaxdae.multibody.wrapping import AbstractObstacle
from jaxdae.reprs import Module
from jaxdae.systems.precision import as_floats


class FixedTendon(AbstractLength):
    """A sum of coordinates of hinges and slides: `sum c_k q_k` [m or rad].

    Args:
        coefficients: `c_k` by name of the joint.
    """

    joints: tuple[str, ...] = eqx.field(static=True)
    coefficients: Float[Array, " k"]

    def __init__(self, coefficients: Mapping[str, float]):
        self.joints = tuple(coefficients)
        (self.coefficients,) = as_floats(jnp.asarray([*coefficients.values()], float))
        if not self.joints:
            raise ValueError("FixedTendon has no joints: give a coefficient for one at least.")

    def length(self, poses, values):
        del poses
        return self.coefficients @ jnp.stack([values[x][0] for x in self.joints])

    def parts(self):
        return tuple(("a joint", COORDINATE, x) for x in self.joints)


class SpatialTendon(AbstractLength):
    """A path that is straight between points of bodies, in one or several branches [m].

    The tendon slides through its points without friction. Branches are the sections between
    pulleys: of a branch with the divisor `d`, which the force of the tendon pulls with `1/d`, the
    length counts `1/d` times. Between two points there may be a `Sphere` or a `Cylinder` that it
    wraps around.

    Args:
        points: markers and obstacles in the order of the path, which begins and ends with markers;
            or a sequence of branches, each such a sequence.
        divisors: of the branches, one each; 1 by default.

    Raises:
        ValueError: for a branch with fewer than two points, an obstacle that is not between two of
            them, a divisor that is not positive, or another number of divisors than of branches.
    """

    branches: tuple[tuple[Marker | AbstractObstacle, ...], ...]
    divisors: tuple[float, ...]

    def __init__(
        self,
        points: Sequence[Marker | AbstractObstacle] | Sequence[Sequence[Marker | AbstractObstacle]],
        divisors: Sequence[float] | None = None,
    ):
        branches = (points,) if points and isinstance(points[0], Module) else points
        self.branches = tuple(tuple(x) for x in branches)  # pyright: ignore
        self.divisors = (1.0,) * len(self.branches) if divisors is None else tuple(divisors)

    def __check_init__(self):
        for branch in self.branches:
            for point in branch:
                if not isinstance(point, Marker | AbstractObstacle):
                    raise TypeError(
                        "SpatialTendon: a path has Markers, and between them a Sphere or a "
                        f"Cylinder; got {point!r}."
                    )
        short = [len(x) for x in self.branches if len(x) < 2]
        if short or not self.branches:
            raise ValueError(
                f"SpatialTendon: a branch has two points or more; got {min(short, default=0)}."
            )
        for branch in self.branches:
            kinds = [isinstance(x, Marker) for x in branch]
            if not (kinds[0] and kinds[-1]) or any(
                not (a or b) for a, b in itertools.pairwise(kinds)
            ):
                raise ValueError(
                    "SpatialTendon: an obstacle lies between two Markers, at neither end of a "
                    "branch and not beside another one. Put a Marker there."
                )
        if len(self.divisors) != len(self.branches):
            raise ValueError(
                f"SpatialTendon has {len(self.branches)} branches and {len(self.divisors)} "
                "divisors: give one for each."
            )
        for divisor in self.divisors:
            if fails(lambda x: x > 0, divisor):
                raise ValueError(f"SpatialTendon: a divisor is positive; got {divisor}.")

    def length(self, poses, values):
        del values
        total = jnp.zeros((), poses[None].place.dtype)
        for branch, divisor in zip(self.branches, self.divisors, strict=True):
            total += self._branch(branch, poses) / divisor
        return total

    def _branch(self, branch, poses):
        found, obstacle = jnp.zeros((), poses[None].place.dtype), None
        before = branch[0].point(poses)
        for step in branch[1:]:
            if isinstance(step, AbstractObstacle):
                obstacle = step
                continue
            after = step.point(poses)
            if obstacle is None:
                found += distance(before, after)
            else:
                found += obstacle.path(before, after, poses)
            before, obstacle = after, None
        return found

    def parts(self):
        path = [x for branch in self.branches for x in branch]
        markers = [x if isinstance(x, Marker) else x.marker for x in path]
        return tuple(("a point", BODY, x.body) for x in markers)
