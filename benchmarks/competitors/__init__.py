"""Other codes on the same problems, each in a module of its own; none is needed to import these."""
