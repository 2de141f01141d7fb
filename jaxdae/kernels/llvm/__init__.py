"""From graphs of scalar operations to machine code."""
