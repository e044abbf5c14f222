"""Training and held-out text of the miniature: generated from seeds, or read from the Python installation."""
