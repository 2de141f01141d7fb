"""What can end a batch; what goes wrong in one of its members is a value."""


class BatchError(RuntimeError):
    """A batch ended before all members were computed; finished chunks in a directory are kept."""


class StoredBatchError(ValueError):
    """A directory cannot be used: it holds another batch, none, or a damaged one."""
