"""Prometheus metrics. Callers pass numbers in; nothing here depends on their source."""
