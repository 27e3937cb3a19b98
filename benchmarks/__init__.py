"""Every figure that the project claims, one command each: `python -m benchmarks.NAME` (docs/benchmarks.md)."""
