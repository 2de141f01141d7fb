"""What keeps kernels from running where JAX computes."""

import warnings
from functools import cache

import jax

from jaxdae.kernels.llvm import machine_code


def platform() -> str:
    """Where JAX computes, by the name that its lowering rules have."""
    name = jax.default_backend()
    if name != "gpu":
        return name
    version = jax.devices()[0].client.platform_version
    return "cuda" if "cuda" in version else "rocm" if "rocm" in version else name


def obstacle() -> str | None:
    """Why no kernel can run there, in words; `None` where kernels can."""
    place = platform()
    if place == "cpu":
        return machine_code.obstacle()
    if place == "cuda":
        return machine_code.without_llvm() or _of_gpus()
    return f"JAX computes on {place}, kernels on processors and on GPUs by NVIDIA"


def can_be_removed(reason: str) -> bool:
    """Whether a reason is one of this machine, whose user can do something about it."""
    return reason == machine_code.without_llvm() or (platform() == "cuda" and reason == _of_gpus())


@cache
def warn(reason: str) -> None:
    """Say once what this machine misses.

    Warns:
        RuntimeWarning: with the reason.
    """
    warnings.warn(
        f"simulations run on the plain backend, slower and with other last digits: {reason}",
        RuntimeWarning,
        stacklevel=2,
    )


def _of_gpus() -> str | None:
    from jaxdae.kernels.cuda import launch

    return launch.obstacle()
