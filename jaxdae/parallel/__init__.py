"""Batches over members, devices, processes and hosts, stored beyond memory."""

from jaxdae import names as _names
from jaxdae.parallel.batch import map_batch as map_batch
from jaxdae.parallel.members import stack as stack
from jaxdae.parallel.processes import BatchError as BatchError
from jaxdae.parallel.simulations import (
    as_trajectory as as_trajectory,
    motion as motion,
    simulate_batch as simulate_batch,
)
from jaxdae.storage.batches import (
    load_batch as load_batch,
    StoredBatch as StoredBatch,
    StoredBatchError as StoredBatchError,
)

__all__ = _names.public(globals())
