"""Clients with kept connections, for `benchmarks.reloads`: each runs in a separate process."""
