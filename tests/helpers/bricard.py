"""Bricard's linkage: six rods along edges of a cube on six hinges, movable against the count."""

import numpy as np

from jaxdae.multibody import Body, Hinge, Multibody, Weld

# Hinges at corners of a cube, each across both of the edges that meet in it.
CORNERS = np.array(
    [[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], float
)  # fmt: skip
EDGES = np.roll(CORNERS, -1, axis=0) - CORNERS


def bricard() -> Multibody:
    """Uniform rods of length 1 and mass 1 in a row; the last one is fixed to the ground."""
    place = np.diff(CORNERS, axis=0, prepend=np.zeros((1, 3)))
    rods = [
        Body(
            f"rod {i + 1}",
            Hinge(f"hinge {i + 1}", axis=np.cross(EDGES[i - 1], EDGES[i])),
            f"rod {i}" if i else None,
            position=place[i],
            mass=1.0,
            centre=EDGES[i] / 2,
            inertia=(np.eye(3) - np.outer(EDGES[i], EDGES[i])) / 12,
        )
        for i in range(6)
    ]
    return Multibody(rods, [Weld("closure", "rod 6", None, EDGES[5], CORNERS[0])])
