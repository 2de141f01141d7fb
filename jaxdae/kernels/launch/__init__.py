"""Kernels in the programs of JAX: called, batched and differentiated."""
