"""The one compiled program that runs every chunk of a batch, and what batch it is of."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

from jaxdae.kernels.llvm.machine_code import portable_names
from jaxdae.parallel.members import join, SplitCall
from jaxdae.storage.fingerprints import digest, leaf_name, software

AXIS = "devices"
# Bytes of an array that are read at once: inputs may be larger than memory.
_PIECE = 2**24


class DeviceLayout(NamedTuple):
    """How members lie on devices.

    Blocks are dealt to the devices like cards, so that a last chunk that is not full, and members
    that grow harder from first to last, load all of them.

    Args:
        members: number of members of the batch.
        block: number of members of a block.
        chunk: number of members of a chunk, a multiple of `block`.
        mesh: the devices, in one row.
    """

    members: int
    block: int
    chunk: int
    mesh: Mesh

    @property
    def slots(self) -> int:
        """Places for blocks on each device, as many as a full chunk needs and two at least.

        Of a single one XLA knows the place and compiles its block otherwise than one of many.
        """
        return max(2, -(-self.chunk // (self.block * self.mesh.size)))

    def places(self, start: int) -> np.ndarray:
        """Members of a chunk, shape (devices, slots, block); behind the last one, it again."""
        shape = (self.slots, self.mesh.size, self.block)
        members = np.arange(start, start + math.prod(shape)).reshape(shape)
        return np.minimum(members.swapaxes(0, 1), self.members - 1)

    def counts(self, start: int, stop: int) -> np.ndarray:
        """Number of blocks with members of a chunk on each device, shape (devices,)."""
        blocks = np.arange(-(-(stop - start) // self.block))
        return np.bincount(blocks % self.mesh.size, minlength=self.mesh.size).astype(np.int32)

    def first_block(self) -> np.ndarray:
        """Members of the first block, shape (block,)."""
        return np.arange(self.block)

    def in_order(self, results: list[Any], start: int, stop: int) -> list[np.ndarray]:
        """Results as they lie on the devices, as arrays on the host with leading axis `members`."""
        arrays = (np.asarray(x).swapaxes(0, 1) for x in results)
        return [x.reshape(math.prod(x.shape[:3]), *x.shape[3:])[: stop - start] for x in arrays]


@eqx.filter_jit
def run_block(mapped: PyTree, shared: PyTree, rest: PyTree) -> PyTree:
    """Results of one block: members, in the parts of `SplitCall`, that are computed in step."""

    def member(mapped):
        call = join(mapped, shared, rest)
        return _checked(call.function(call.batch))

    return jax.vmap(member)(mapped)


def place_shared(members: SplitCall, layout: DeviceLayout) -> SplitCall:
    """The same batch, with what all members share on every device, once for all chunks."""
    everywhere = NamedSharding(layout.mesh, PartitionSpec())
    return members._replace(shared=jax.device_put(members.shared, everywhere))


def start_chunk(members: SplitCall, layout: DeviceLayout, start: int, stop: int) -> list[Any]:
    """Start the computation of a chunk; it goes on while the host does other things.

    Leaves of the results, as they lie on the devices, of the members from `start` to before `stop`.
    """
    mapped, counts = jax.device_put(
        (members.take(layout.places(start)), layout.counts(start, stop)),
        NamedSharding(layout.mesh, PartitionSpec(AXIS)),
    )
    return jax.tree.leaves(_run_chunk(mapped, members.shared, members.rest, counts, layout.mesh))


@eqx.filter_jit
def _run_chunk(mapped: PyTree, shared: PyTree, rest: PyTree, counts, mesh: Mesh) -> PyTree:
    split, everywhere = PartitionSpec(AXIS), PartitionSpec()

    def on_device(mapped, shared, count):
        mapped, count = jax.tree.map(lambda x: x[0], (mapped, count))
        return jax.tree.map(lambda x: x[None], _run_blocks(mapped, shared, rest, count))

    if mesh.size == 1:
        # The same program, in which iterations of diffrax's implicit methods work, too: lineax
        # finds that types of arrays differ where they name a mesh.
        return on_device(mapped, shared, counts)
    sharded = jax.shard_map(
        on_device, mesh=mesh, in_specs=(split, everywhere, split), out_specs=split, check_vma=False
    )
    return sharded(mapped, shared, counts)


def _run_blocks(mapped: PyTree, shared: PyTree, rest: PyTree, count) -> PyTree:
    """The first `count` blocks, one after the other; the others stay zero.

    The numbers of a member come from the same instructions on the same block however many blocks,
    chunks, devices and processes there are: the number of members that one compiled loop goes over
    changes how XLA splits and vectorizes it, and with that the last bits.
    """
    slots = jax.tree.leaves(mapped)[0].shape[0]

    def block(index):
        here = jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, index, keepdims=False), mapped
        )
        return run_block(here, shared, rest)

    def step(index, results):
        put = jax.lax.dynamic_update_index_in_dim
        return jax.tree.map(lambda x, new: put(x, new, index, 0), results, block(index))

    shapes = jax.eval_shape(block, jax.ShapeDtypeStruct((), jnp.int32))
    empty = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape), x.dtype), shapes)
    # A number of blocks known only when it runs: XLA would unroll a single one into its
    # surroundings and compile it otherwise than one of many.
    return jax.lax.fori_loop(0, count, step, empty)


def _checked(results: PyTree) -> PyTree:
    for path, x in jax.tree_util.tree_leaves_with_path(results):
        if not _is_numbers(x):
            what = f"of type {x.dtype}" if eqx.is_array(x) else repr(x)
            raise TypeError(
                f"the result {leaf_name(path)} of a member is {what}; return arrays of floats, "
                "integers, complex numbers or booleans."
            )
    if not jax.tree.leaves(results):
        raise TypeError("the function returns no array; return what you want to know of a member.")
    return jax.tree.map(jnp.asarray, results)


def _is_numbers(x: Any) -> bool:
    if not eqx.is_array_like(x) or jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended):
        return False
    return np.dtype(jnp.result_type(x)).kind in "biufc"


def fingerprint(members: SplitCall, layout: DeviceLayout) -> dict[str, Any]:
    """What must agree for a batch to be continued, section by section, as JSON values.

    How members are split over chunks, devices and processes is not among it: it changes no number.
    """
    return {
        "members": members.total,
        "block_size": layout.block,
        "inputs": _arrays(members.mapped),
        "shared inputs": _arrays(members.shared),
        "program of the function and what it closes over": _program(members, layout),
        "platform": layout.mesh.devices.flat[0].platform,
        "software": software("jax", "jaxlib"),
    }


def _arrays(tree: Any) -> dict[str, str]:
    return {
        leaf_name(path): f"{x.dtype}{list(x.shape)} {digest(_pieces(x))}"
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _pieces(x: np.ndarray) -> Iterator[bytes]:
    rows = max(1, _PIECE // max(1, x.nbytes // max(1, len(x)))) if x.ndim else 1
    parts = (x[i : i + rows] for i in range(0, len(x), rows)) if x.ndim else (x,)
    return (np.ascontiguousarray(part).tobytes() for part in parts)


def _program(members: SplitCall, layout: DeviceLayout) -> str:
    """Of the compiled text of one block: constants are in it, addresses and file names are not.

    Kernels of machine code are named in it by what they compute, for whatever processor.
    """
    mapped = members.take(layout.first_block())
    program: Any = run_block  # equinox keeps the `lower` of compiled functions from type checkers
    text = program.lower(mapped, members.shared, members.rest).as_text()
    return digest([portable_names(text).encode()])
