"""Placeholder, replaced by the real elimination."""
import jax.numpy as jnp
def solve_positive_definite(matrix, rhs):
    """Solve."""
    return jnp.linalg.solve(matrix, rhs)
