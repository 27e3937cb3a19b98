"""A real engine plays loads, and the simulation plays the same (docs/accuracy.md)."""
