"""Entries that primitives move, or choose by indices that are known: by NumPy, of any entries."""

from collections.abc import Callable

import numpy as np
from jax.lax import GatherScatterMode


def _reshape(x, *, new_sizes, dimensions, **_):
    return (x if dimensions is None else x.transpose(dimensions)).reshape(new_sizes)


def _broadcast(x, *, shape, broadcast_dimensions, **_):
    sizes = [1] * len(shape)
    for i, axis in enumerate(broadcast_dimensions):
        sizes[axis] = x.shape[i]
    return np.broadcast_to(x.reshape(sizes), shape)


def _slice(x, *, start_indices, limit_indices, strides):
    steps = strides or (1,) * x.ndim
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _pad(x, fill, *, padding_config):
    """First padded with gaps, then shifted; negative margins cut."""
    for axis, (low, high, gap) in enumerate(padding_config):
        size = x.shape[axis] + gap * max(x.shape[axis] - 1, 0)
        shape = (*x.shape[:axis], max(low, 0) + size + max(high, 0), *x.shape[axis + 1 :])
        padded = np.moveaxis(np.full(shape, fill, x.dtype), axis, 0)
        padded[max(low, 0) : max(low, 0) + size : gap + 1] = np.moveaxis(x, axis, 0)
        cut = padded[max(-low, 0) : len(padded) - max(-high, 0)]
        x = np.moveaxis(cut, 0, axis)
    return x


def _unstack(x, *, axis):
    rows = np.moveaxis(x, axis, 0)
    return [rows[i, ...] for i in range(len(rows))]


MOVEMENTS: dict[str, Callable] = {
    "reshape": _reshape,
    "squeeze": lambda x, *, dimensions: np.squeeze(x, tuple(dimensions)),
    "broadcast_in_dim": _broadcast,
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "slice": _slice,
    "concatenate": lambda *x, dimension: np.concatenate(x, dimension),
    "rev": lambda x, *, dimensions: np.flip(x, dimensions),
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "copy": lambda x: x,
    "copy_p": lambda x: x,
    "pad": _pad,
    "stack": lambda *x, axis: np.stack(x, axis),
    "unstack": _unstack,
    "tile": lambda x, *, reps: np.tile(x, reps),
}


def start_of_slice(starts, shape, sizes) -> tuple[slice, ...]:
    """Where a dynamic slice lies; one that would leave the array is moved inside."""
    firsts = [
        min(max(int(i), 0), n - size) for i, n, size in zip(starts, shape, sizes, strict=True)
    ]
    return tuple(slice(i, i + size) for i, size in zip(firsts, sizes, strict=True))


def matrices(x: np.ndarray, batch, contracted) -> np.ndarray:
    """Axes as (batch, free, contracted), each of them one."""
    free = [i for i in range(x.ndim) if i not in (*batch, *contracted)]
    sizes = [int(np.prod([x.shape[i] for i in axes])) for axes in (batch, free, contracted)]
    return x.transpose(*batch, *free, *contracted).reshape(sizes)


class Windows:
    """Which entries of an operand a gather reads, or a scatter writes.

    Slices have the sizes of a window; index vectors count along some axes of the operand. Some axes
    of windows are dropped in the result; batches are axes of operand and indices that run together.
    """

    def __init__(self, shape, window, index_axes, dropped, batches):
        self.shape, self.window, self.index_axes = shape, tuple(window), tuple(index_axes)
        self.dropped, self.batches = set(dropped), batches

    @classmethod
    def of_gather(cls, shape, params) -> "Windows":
        """From the parameters of a gather."""
        d = params["dimension_numbers"]
        batches = tuple(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
        dropped = (*d.collapsed_slice_dims, *d.operand_batching_dims)
        return cls(shape, params["slice_sizes"], d.start_index_map, dropped, batches)

    @classmethod
    def of_scatter(cls, shape, update, params) -> "Windows":
        """From the parameters of a scatter and the shape of its updates."""
        d = params["dimension_numbers"]
        batches = tuple(zip(d.operand_batching_dims, d.scatter_indices_batching_dims, strict=True))
        dropped = (*d.inserted_window_dims, *d.operand_batching_dims)
        sizes = iter(update[i] for i in d.update_window_dims)
        window = [1 if i in dropped else next(sizes) for i in range(len(shape))]
        return cls(shape, window, d.scatter_dims_to_operand_dims, dropped, batches)

    def limits(self) -> list[int]:
        """Largest start along each axis that indices count along."""
        return [self.shape[i] - self.window[i] for i in self.index_axes]

    def kept(self) -> list[int]:
        """Axes of the operand that slices of the result have."""
        return [i for i in range(len(self.shape)) if i not in self.dropped]

    def windows(self, indices: np.ndarray, clip: bool) -> np.ndarray:
        """Flat positions in the operand, `-1` for slices that are not inside of it.

        Index vectors lie along the last axis; the axes of the indices come first, those within a
        slice last. Slices that would leave the operand are moved inside where that is asked for.
        """
        outer, kept = indices.shape[:-1], self.kept()
        inner = [self.window[i] for i in kept]
        starts = self._starts(indices.astype(np.int64), clip)
        wide = (*outer, *[1] * len(inner))
        inside = np.ones(outer, bool)
        flat = np.zeros((*outer, *inner), np.int64)
        for axis, (first, size) in enumerate(zip(starts, self.shape, strict=True)):
            inside &= (first >= 0) & (first + self.window[axis] <= size)
            within = np.zeros(inner, np.int64)
            if axis in kept:
                ones = [1] * len(inner)
                ones[kept.index(axis)] = -1
                within = within + np.arange(self.window[axis]).reshape(ones)
            flat = flat * size + first.reshape(wide) + within
        return np.where(inside.reshape(wide), flat, -1)

    def arranged(self, windows: np.ndarray, offset_axes) -> np.ndarray:
        """Slices as the result of a gather has them: `offset_axes` lie within a slice."""
        return windows.transpose(np.argsort(_order(windows.ndim, offset_axes)))

    def unarranged(self, updates: np.ndarray, window_axes) -> np.ndarray:
        """Updates of a scatter, axes within a slice last."""
        return updates.transpose(_order(updates.ndim, window_axes))

    def _starts(self, indices, clip: bool) -> list[np.ndarray]:
        outer = indices.shape[:-1]
        starts = [np.zeros(outer, np.int64) for _ in self.shape]
        for component, axis in enumerate(self.index_axes):
            starts[axis] = indices[..., component]
        if clip:
            pairs = zip(starts, self.shape, self.window, strict=True)
            starts = [np.clip(x, 0, size - window) for x, size, window in pairs]
        for sizes, of_indices in self.batches:
            ones = [1] * len(outer)
            ones[of_indices] = -1
            count = np.arange(outer[of_indices]).reshape(ones)
            starts[sizes] = np.broadcast_to(count, outer)
        return starts


def _order(ndim: int, last) -> list[int]:
    return [*(i for i in range(ndim) if i not in last), *last]


def clips(mode) -> bool:
    """Whether a mode of gather or scatter moves slices inside instead of dropping them."""
    return mode in (GatherScatterMode.CLIP, GatherScatterMode.PROMISE_IN_BOUNDS)
