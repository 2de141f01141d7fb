"""One run: what it is given, what computes it, and what it gives."""
