"""Environments: a system as reinforcement learning takes it."""

import lazy_loader

# The names stand in the stub beside this file, each once; what one needs is loaded when it is used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
