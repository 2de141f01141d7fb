"""Kernels: functions of small arrays as scalar programs, and those as machine code."""

import lazy_loader

# What machine code on disk needs is loaded without what makes it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
