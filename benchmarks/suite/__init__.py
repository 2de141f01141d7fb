"""The public suite: mechanisms, reference motions in extended precision, codes compared on them."""
