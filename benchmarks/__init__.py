"""Every figure that is claimed, one command each:

`python -m benchmarks.NAME` (docs/benchmarks.md).
"""
