"""Surfaces of triangles that bodies carry, for pictures: they take no part in the motion."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxdae.multibody.mujoco import load_mujoco, model_of, Names

# The colour that MuJoCo gives to what has none; a material shows through it.
_UNCOLOURED = (0.5, 0.5, 0.5, 1.0)
# Viewers of MuJoCo show these groups; the others are models for contacts, by custom.
_SHOWN = (0, 1, 2)


class Surface(NamedTuple):
    """A surface of triangles that is fixed in a body.

    Args:
        body: name of the body; `None` is the ground.
        vertices: places of corners in axes of the body [m], shape `(vertices, 3)`.
        faces: of each triangle the numbers of its corners, counterclockwise seen from outside,
            shape `(faces, 3)`.
        color: red, green, blue and opacity, each from 0 to 1.
    """

    body: str | None
    vertices: ArrayLike
    faces: ArrayLike
    color: tuple[float, float, float, float] = _UNCOLOURED


def read_surfaces(source: str | Path, *, cuts: str | Sequence[str] = ()) -> tuple[Surface, ...]:
    """Read the geometries of a file for MuJoCo (MJCF) or a robot description (URDF), as triangles.

    Bodies have the names that `read_mujoco` gives them. Geometries of the groups 0 to 2 are read,
    which viewers of MuJoCo show, and meshes with the vertices that they have. A plane without an
    end is a square about its origin, as large as the mechanism. Of a robot description there are
    shapes for contacts alone, unless the file has `<mujoco><compiler discardvisual="false"/>
    </mujoco>`, as MuJoCo wants it. It needs `pip install 'jaxdae[import,viewer]'`.

    Args:
        source: path of the file, or its text.
        cuts: names of joints of a robot description that close loops, as `read_mujoco` has them.

    Returns:
        A surface for each geometry that can be seen.

    Raises:
        ImportError: without MuJoCo, or without trimesh, which makes triangles of round shapes.
        ValueError: for what MuJoCo cannot read, such as meshes that are not there.

    Warns:
        RuntimeWarning: if height fields are left out.
    """
    mujoco, creation = load_mujoco(), _load_creation()
    _, _, model = model_of(mujoco, source, (cuts,) if isinstance(cuts, str) else tuple(cuts))
    fields = int(np.sum(model.geom_type == int(mujoco.mjtGeom.mjGEOM_HFIELD)))
    if fields:
        warnings.warn(f"read_surfaces: left out: {fields} x height field.", RuntimeWarning, 2)
    return tuple(_surfaces(mujoco, creation, model))


def _load_creation() -> Any:
    """The room of trimesh that makes round shapes, or an error that says how to install it."""
    try:
        from trimesh import creation  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError(
            "read_surfaces needs trimesh, which is not installed: pip install 'jaxdae[viewer]'."
        ) from error
    return creation


def _surfaces(mujoco, creation, model) -> Iterator[Surface]:
    names = Names(mujoco, model)
    for i in range(model.ngeom):
        color = _color(model, i)
        if int(model.geom_group[i]) not in _SHOWN or color[3] == 0.0:
            continue
        found = _triangles(mujoco, creation, model, i)
        if found is not None:
            turn = np.empty(9)
            mujoco.mju_quat2Mat(turn, model.geom_quat[i])
            vertices = model.geom_pos[i] + found[0] @ turn.reshape(3, 3).T
            yield Surface(names.body(int(model.geom_bodyid[i])), vertices, found[1], color)


def _color(model, i: int) -> tuple[float, float, float, float]:
    color, material = model.geom_rgba[i], int(model.geom_matid[i])
    if material >= 0 and np.allclose(color, _UNCOLOURED):
        color = model.mat_rgba[material]
    red, green, blue, opacity = map(float, color)
    return red, green, blue, opacity


def _triangles(mujoco, creation, model, i: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Vertices and faces in axes of the geometry; `None` for a height field."""
    kind, size = mujoco.mjtGeom(int(model.geom_type[i])).name, model.geom_size[i]
    if kind in ("mjGEOM_MESH", "mjGEOM_SDF"):
        mesh = int(model.geom_dataid[i])
        parts = zip(
            (model.mesh_vert, model.mesh_face),
            (model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]),
            (model.mesh_vertnum[mesh], model.mesh_facenum[mesh]),
            strict=True,
        )
        vertices, faces = (values[first : first + count] for values, first, count in parts)
        return np.array(vertices, float), np.array(faces)
    if kind == "mjGEOM_PLANE":
        half = np.where(size[:2] > 0.0, size[:2], model.stat.extent)
        corners = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]]) * [*half, 1.0]
        return corners, np.array([[0, 1, 2], [0, 2, 3]])
    if kind == "mjGEOM_BOX":
        found = creation.box(2.0 * size)
    elif kind == "mjGEOM_CYLINDER":
        found = creation.cylinder(size[0], 2.0 * size[1])
    elif kind == "mjGEOM_CAPSULE":
        found = creation.capsule(2.0 * size[1], size[0])
    elif kind in ("mjGEOM_SPHERE", "mjGEOM_ELLIPSOID"):
        axes = size if kind == "mjGEOM_ELLIPSOID" else np.full(3, size[0])
        round_ = creation.icosphere(subdivisions=3)
        return np.array(round_.vertices) * axes, np.array(round_.faces)
    else:
        return None
    return np.array(found.vertices), np.array(found.faces)
