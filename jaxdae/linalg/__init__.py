"""The linear solves of constrained dynamics."""
