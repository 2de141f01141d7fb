"""Integrations as code for other machines: object files, WebAssembly, code objects for AMD GPUs."""
