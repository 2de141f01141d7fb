"""What can go wrong with a batch as a whole; what goes wrong in a lane is a value."""


class BatchError(RuntimeError):
    """A batch ended before all lanes were computed; finished chunks in a directory are kept."""


class StoredBatchError(ValueError):
    """A directory cannot be used: it holds another batch, none, or a damaged one."""
