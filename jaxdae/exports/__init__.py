"""Runs as code for programs without Python."""
