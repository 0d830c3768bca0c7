"""DeepMind Mathematics: 168 combinations of the official generator."""
