"""What goes wrong in PTX."""


class PtxError(Exception):
    """PTX that is not understood, or that does what it must not do."""


class ThreadError(PtxError):
    """Something that one thread must not do.

    Args:
        thread: its number in the launch.
        what: what it does, as the end of a sentence about it.
    """

    def __init__(self, thread: int, what: str):
        super().__init__(f"thread {thread} {what}")
