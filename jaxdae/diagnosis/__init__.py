"""What may be wrong with a run: before it, on its way, and at its end."""
