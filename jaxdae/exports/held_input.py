"""Control inputs that whoever calls an exported run gives."""

from typing import Any

from jaxdae.reprs import Module


class HeldInput(Module):
    """A control input that stays as it is during a call.

    Args:
        u: as the system takes it.
    """

    u: Any

    def __call__(self, t, q, v, w) -> Any:
        del t, q, v, w
        return self.u
