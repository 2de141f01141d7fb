"""Primitives of JAX: what their parameters mean, and what they do by NumPy."""
