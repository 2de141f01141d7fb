"""Derivatives of functions in both modes, and primitives of JAX that serve a batch in one call."""
