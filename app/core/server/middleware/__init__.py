"""Middleware around every request: keys, CORS, limits, logs, ids, faults, traces, metrics."""
