"""Scalar expressions as a graph, and how they are rewritten."""
