"""Kernels that the driver has compiled: once for each device."""

import threading
from collections import defaultdict
from typing import NamedTuple

from jaxdae.kernels.cuda.driver import Context, Driver, DriverError
from jaxdae.kernels.cuda.kernel import ENTRY


class _Key(NamedTuple):
    """What a compiled kernel is known by.

    Args:
        context: number of the context that it is for.
        digest: of its PTX.
    """

    context: int
    digest: str


class _Place:
    """Where one kernel is, once it has been compiled; who waits for another one does not wait."""

    def __init__(self):
        self.lock = threading.Lock()
        self.function: int | None = None


class Modules:
    """Kernels by the text of their PTX and the context they run in.

    They stay for the life of the process: compiled programs of JAX name them. What fails is not
    remembered, as memory may be free the next time.

    Args:
        driver: compiles and keeps them.
    """

    def __init__(self, driver: Driver):
        self.driver = driver
        self._lock = threading.Lock()
        self._places: dict[_Key, _Place] = defaultdict(_Place)

    def function(self, digest: str, ptx: str, context: Context) -> int:
        """The kernel of a text, for a context, which is the current one.

        Args:
            digest: of the text, which need not be read again.
            ptx: the text.
            context: where the kernel is to run.

        Raises:
            DriverError: where the device is too old, the driver refuses the text, or has no memory.
        """
        with self._lock:
            place = self._places[_Key(context.number, digest)]
        if place.function is None:
            with place.lock:
                if place.function is None:
                    place.function = self._compiled(ptx)
        return place.function

    def _compiled(self, ptx: str) -> int:
        driver = self.driver
        reason = driver.obstacle_of(driver.device())
        if reason is not None:
            raise DriverError(reason)
        module = driver.load(ptx)
        try:
            return driver.function(module, ENTRY)
        except DriverError:
            driver.unload(module)
            raise
