"""Programs lowered in contexts that are used again, as releases of JAX after 0.10 do themselves."""

import threading

from jax._src.interpreters import mlir
from jaxlib.mlir import ir


class SharedContext:
    """One context of MLIR for the programs of a file: to make one takes longer than most of them.

    Contexts hold what is written once, such as types and constants, and nothing of a program.
    Programs that are lowered while another one is, or in other threads, have their own.
    """

    def __init__(self):
        self._make = mlir.make_ir_context
        self._context: ir.Context | None = None

    def __call__(self) -> ir.Context:
        """Take the place of `make_ir_context`."""
        apart = threading.current_thread() is not threading.main_thread()
        if apart or ir.Context.current is not None:
            return self._make()
        if self._context is None:
            self._context = self._make()
        return self._context

    def forget(self):
        """Make another for the next program: constants would fill the memory."""
        self._context = None


def share_contexts() -> SharedContext:
    """Switch it on, where the installed release makes a context for each program."""
    shared = SharedContext()
    if not hasattr(mlir, "_thread_local_context"):
        mlir.make_ir_context = shared
    return shared
