"""Launches of GPU kernels by XLA."""

import hashlib

from jaxdae.kernels.cuda.kernel import DeviceKernel

REGISTERED: dict[str, DeviceKernel] = {}


def register(kernel: DeviceKernel, content: str) -> str:
    """Make a kernel known to XLA.

    Args:
        kernel: what is launched.
        content: what it computes, in words that are the same on every machine.

    Returns:
        Name of the target of foreign-function calls.
    """
    parts = (hashlib.sha256(x.encode()).hexdigest()[:32] for x in (content, kernel.ptx))
    name = "_".join(["jaxdae", *parts])
    REGISTERED[name] = kernel
    return name
