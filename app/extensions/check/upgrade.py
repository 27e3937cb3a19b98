"""Changes in a newer version of vLLM for clients, dashboards, and command lines."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from app.core.protocol.features import Feature
from app.extensions.check.findings import Finding, Place
from app.extensions.check.rules import finding
from config.sources import FlagValues
from config.vllm.history import History, version_number


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """A default of an option that a version of vLLM changed."""

    option: str
    since: str
    old: str
    new: str


CHANGED_DEFAULTS = (
    ChangedDefault(option="async-scheduling", since="0.14", old="off", new="on"),
    ChangedDefault(option="gpu-memory-utilization", since="0.21", old="0.9", new="0.92"),
)
"""By vLLM's release notes, and by start logs of public servers."""


def changes(
    old: str, new: str, history: History, place: Place, values: FlagValues
) -> Iterator[Finding]:
    """Yields the differences between two versions, in behavior, metrics, and defaults."""
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
    for default in CHANGED_DEFAULTS:
        if first < version_number(default.since) <= last and default.option not in values:
            message = f"the default of --{default.option} is {default.new} since {default.since}"
            yield finding("U603", place, f"{message}, and {default.old} before")
