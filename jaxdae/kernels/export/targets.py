"""Machines that runs are exported for."""

from typing import Any, NamedTuple

from jaxdae.names import unknown_name


class ExportTarget(NamedTuple):
    """A machine.

    Args:
        name: as users give it.
        triple: LLVM's name of processor and system.
        cpu: LLVM's name of the processor.
        features: what it can do beside, as LLVM writes it.
        about: in words.
        register: bits of a vector register.
        fused: whether it has an instruction for `a b + c` with one rounding.
        pointer: bits of an address.
    """

    name: str
    triple: str
    cpu: str
    features: str
    about: str
    register: int
    fused: bool = True
    pointer: int = 64

    @property
    def is_web(self) -> bool:
        """Whether it is WebAssembly."""
        return self.triple.startswith("wasm")

    def lanes(self, dtype: Any) -> int:
        """Members of a batch that are integrated at once.

        Vectors win nothing where each fused product is a call for each entry.
        """
        return 1 if self.is_web or not self.fused else self.width(dtype)

    def width(self, dtype: Any) -> int:
        """Numbers of a type in a vector register."""
        return max(self.register // (8 * dtype.itemsize), 1)


_LINUX = "x86_64-unknown-linux-gnu"
_KNOWN = (
    ExportTarget("x86-64-v2", _LINUX, "x86-64-v2", "", "x86-64, since 2008", 128, fused=False),
    ExportTarget("x86-64-v3", _LINUX, "x86-64-v3", "", "x86-64 with AVX2 and FMA", 256),
    ExportTarget("x86-64-v4", _LINUX, "x86-64-v4", "", "x86-64 with AVX-512", 512),
    ExportTarget("aarch64", "aarch64-unknown-linux-gnu", "generic", "", "64-bit ARM", 128),
    ExportTarget("wasm32", "wasm32-unknown-unknown", "mvp", "", "WebAssembly", 64, False, 32),
)
TARGETS = tuple(x.name for x in _KNOWN)


def export_target(name: str) -> ExportTarget:
    """The machine of a name.

    Raises:
        ValueError: where there is none.
    """
    for target in _KNOWN:
        if target.name == name:
            return target
    raise ValueError(unknown_name("target", str(name), TARGETS))
