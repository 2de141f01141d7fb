"""Executes PTX on the host, with arithmetic that is exact to the last bit: all threads at once.

What it does not know it refuses, and so it does what is not specified to the last bit.
"""

from helpers.ptx.errors import PtxError as PtxError
from helpers.ptx.launching import Module as Module
from helpers.ptx.memory import Memory as Memory
