"""Compares what a load tool reports with what the server did; start with `command`."""
