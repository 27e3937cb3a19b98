"""Changes in a newer version of vLLM for clients and dashboards."""

from __future__ import annotations

from collections.abc import Iterator

from app.core.protocol.features import Feature
from app.extensions.check.findings import Finding, Place
from app.extensions.check.rules import finding
from config.vllm.history import History, version_number


def changes(old: str, new: str, history: History, place: Place) -> Iterator[Finding]:
    """Yields the differences between two versions, in behavior and metrics."""
    first = version_number(old)
    last = version_number(new)
    for feature in Feature:
        if first < version_number(feature.since) <= last:
            message = f"{feature.area}: {feature.old_behavior} In {feature.since}:"
            yield finding("U601", place, f"{message} {feature.new_behavior}")
    for name, lifetime in history.metrics.items():
        if lifetime.is_in(old) and not lifetime.is_in(new):
            fix = ""
            if lifetime.replacement not in ("", "unknown"):
                fix = f"use {lifetime.replacement}"
            yield finding("U602", place, f"{new} has no metric {name}", fix=fix)
