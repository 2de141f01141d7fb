"""Environments: a system as reinforcement learning takes it."""

from .adapters import (
    gymnasium_env as gymnasium_env,
    gymnasium_vector_env as gymnasium_vector_env,
)
from .environment import (
    Environment as Environment,
    Episode as Episode,
    Transition as Transition,
)
