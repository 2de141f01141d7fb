"""Bricard's linkage: rods along edges of a cube on six hinges, movable against the count."""

import numpy as np

from jaxdae.multibody import Body, Hinge, HingeLoop, Multibody

# Hinges at corners of a cube, each across both of the edges that meet in it.
CORNERS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [0, 1, 1], [0, 0, 1]], float)
EDGES = np.roll(CORNERS, -1, axis=0) - CORNERS
AXES = np.cross(np.roll(EDGES, 1, axis=0), EDGES)


def bricard() -> Multibody:
    """Five uniform rods of length 1 and mass 1 in a row; the ground is the sixth link."""
    place = np.diff(CORNERS, axis=0, prepend=np.zeros((1, 3)))
    rods = [
        Body(
            f"rod {i + 1}",
            Hinge(f"hinge {i + 1}", axis=AXES[i]),
            f"rod {i}" if i else None,
            position=place[i],
            mass=1.0,
            centre=EDGES[i] / 2,
            inertia=(np.eye(3) - np.outer(EDGES[i], EDGES[i])) / 12,
        )
        for i in range(5)
    ]
    closing = HingeLoop("hinge 6", "rod 5", None, EDGES[4], CORNERS[5], AXES[5])
    return Multibody(rods, [closing])
