"""Fake metrics: chosen numbers in place of the true ones, so that a router can be shown any state."""

from app.metrics.fake.families import FakeFamilies

__all__ = ["FakeFamilies"]
