"""Integrations, and their adjoints, as kernels."""
