"""Integrations as code for other machines: object files, WebAssembly."""
