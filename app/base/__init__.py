"""Clocks, metrics, traces."""
