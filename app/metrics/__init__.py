"""Prometheus metrics: what happened is counted here; nothing in this room knows where a number comes from."""
