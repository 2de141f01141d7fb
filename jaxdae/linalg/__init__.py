"""Linear solves."""
