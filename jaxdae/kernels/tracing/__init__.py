"""From functions written for JAX to graphs of scalar operations."""
