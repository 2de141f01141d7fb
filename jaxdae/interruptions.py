"""Interruptions from the keyboard: where Python would drop them, and where they would crash it."""

# Little is loaded here: the command listens before it loads anything else.
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

LINE = "jaxdae: interrupted; what was finished is kept."
# How long an interrupted command waits for files and output that it is writing [s].
_LAST_WORDS = 5.0
# After which an interruption that was dropped comes again [s].
_AGAIN = 0.01


def listening() -> bool:
    """Let an interruption end the process from now on by `leave`.

    Returns:
        Whether it does: not where the program that called has ways of its own.
    """
    usual = (signal.default_int_handler, leave)
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) not in usual:
        return False
    signal.signal(signal.SIGINT, leave)
    return True


def leave(*_) -> NoReturn:
    """End the process at once, with a line of words and the status of an interruption."""

    def last_words():
        # Whoever has not loaded it has not written.
        files = sys.modules.get("jaxdae.storage.files")
        if files is not None:
            files.stop_writing(_LAST_WORDS)
        sys.stdout.flush()

    # Whoever asks twice does not want to wait.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    # Not by `sys.stderr`, which the other thread may be using. A terminal shows "^C" in the line.
    first = "\n" if os.isatty(2) else ""
    with contextlib.suppress(OSError):
        os.write(2, f"{first}{LINE}\n".encode())
    closing = threading.Thread(target=last_words, daemon=True)
    closing.start()
    closing.join(_LAST_WORDS)
    os._exit(130)


def beside(work: Callable[[], int]) -> int:
    """Do work in another thread, while this one waits for an interruption, which ends the process.

    In the thread of the work Python would raise `KeyboardInterrupt` wherever that is: in callbacks
    of the collection of garbage, which drop it, or while the interpreter that ends waits for
    threads, which it then takes down under machine code that still runs: a segmentation fault. An
    interrupted process takes nothing down. It loses nothing either: its files are complete at
    every moment, and a tuning run saves each step.

    Args:
        work: returns the exit status.

    Returns:
        The same. From then on nothing is interrupted: what is left to do is to end.

    Raises:
        BaseException: what the work raises.
    """
    ended, outcome = threading.Event(), []

    def do():
        try:
            outcome.append(work())
        except BaseException as error:
            outcome.append(error)
        finally:
            ended.set()

    threading.Thread(target=do, daemon=True).start()
    while not ended.wait(1.0):  # where a signal does not end waiting, as on Windows
        pass
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


@contextlib.contextmanager
def heard() -> Iterator[None]:
    """Meanwhile an interruption that Python drops comes again.

    Python raises `KeyboardInterrupt` wherever the main thread is. Callbacks of the collection of
    garbage, of which JAX makes some for each array and program, drop what is raised in them: one
    interruption in ten while programs are traced and compiled.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is interrupted
        yield
        return
    others = sys.unraisablehook

    def again(dropped: Any) -> None:
        if not issubclass(dropped.exc_type, KeyboardInterrupt):
            others(dropped)
            return
        # Not from here: it would be dropped as well.
        threading.Timer(_AGAIN, _interrupt).start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        if sys.unraisablehook is again:
            sys.unraisablehook = others


def _interrupt() -> None:
    """As the keyboard does: the main thread, also where it waits."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
