"""Whole integrations, and their adjoints, as kernels."""
