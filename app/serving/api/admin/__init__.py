"""Operators: settings, life cycle, health, metrics, models, adapters."""
