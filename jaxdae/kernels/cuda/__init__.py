"""Kernels on NVIDIA GPUs: PTX by LLVM, launches through the CUDA driver."""
