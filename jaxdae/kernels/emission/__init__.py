"""From graphs of scalar operations to the language of LLVM."""
