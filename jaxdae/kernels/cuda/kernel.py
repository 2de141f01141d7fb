"""What is launched on a GPU, and with how many threads."""

from typing import NamedTuple

# Name of kernels in their PTX.
ENTRY = "kernel"
# Threads of a block: two warps, so that blocks fill a processor well whatever registers they need.
_BLOCK = 64
# Members that are served at once, at most; a thread that is done takes the next member. Today's
# largest GPUs hold some 300 000 threads of few registers.
_MOST_THREADS = 2**18
# Memory beside that of arguments and results, for all threads together [bytes].
_SCRATCH_BYTES = 2**30


class Geometry(NamedTuple):
    """Threads of a launch.

    Args:
        threads: all of them, at most: a launch may have fewer blocks.
        block: those of a block.
    """

    threads: int
    block: int


class DeviceKernel(NamedTuple):
    """A kernel for a GPU.

    Its parameters, of eight bytes each: of every argument and then of every result, the last of
    which is scratch memory, the pointer to its data and then all its dimensions; then the number of
    members. Thread `t` of `T` serves the members `t`, `t + T`, `t + 2 T`, and so on.

    Args:
        ptx: text with an entry `kernel`.
        rank: leading axes of the first result, which are the batch.
        threads: largest number of threads, a multiple of `block`.
        block: threads of a block.
    """

    ptx: str
    rank: int
    threads: int
    block: int


def geometry(members: int, scratch: int) -> Geometry:
    """How many threads serve a batch.

    Args:
        members: of the batch.
        scratch: memory of each thread beside its own [bytes].
    """
    wanted = max(min(members, _MOST_THREADS), 1)
    room = max(_SCRATCH_BYTES // max(scratch, 1), 1)
    # In full blocks, one at least.
    blocks = max(min(-(-wanted // _BLOCK), room // _BLOCK), 1)
    return Geometry(blocks * _BLOCK, _BLOCK)
