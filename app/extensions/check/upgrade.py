"""Changes in a newer version of vLLM for clients, dashboards, and command lines."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from app.core.protocol.features import Feature
from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from app.extensions.lab.costs.default_steps import (
    FIRST_LARGEST_STEPS,
    LARGE_STEP,
    LARGEST_GIB,
    LARGEST_STEP,
)
from config.vllm.history import History, version_number


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """A default of an option that a version of vLLM changed."""

    option: str
    since: str
    old: str
    new: str


UNDECLARED = (
    ChangedDefault(option="async-scheduling", since="0.14", old="off", new="on"),
    ChangedDefault(
        option="max-num-batched-tokens",
        since=".".join(map(str, FIRST_LARGEST_STEPS)),
        old=str(LARGE_STEP),
        new=f"{LARGEST_STEP} on devices with {LARGEST_GIB} GiB or more",
    ),
)
"""Defaults that vLLM's code changed without the declaration of the option."""
NEEDED = {
    "all2all-backend": "enable-expert-parallel",
    "cp-kv-cache-interleave-size": "decode-context-parallel-size",
    "dcp-comm-backend": "decode-context-parallel-size",
    "kv-offloading-backend": "kv-offloading-size",
}
"""The option without which another one has no effect."""
UNTOLD = frozenset(("model", "scheduler-cls"))
"""Options whose declared defaults concern no server."""


def changes(
    old: str, new: str, history: History, place: Place, options: ReadOptions
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
    for default in changed_defaults(old, new, history):
        needed = NEEDED.get(default.option)
        if options.has(default.option) or (needed is not None and not options.has(needed)):
            continue
        now, before = default.new or "left to vLLM", default.old or "left to vLLM"
        message = f"the default of --{default.option} is {now} since {default.since}"
        yield finding("U603", place, f"{message}, and {before} before")


def changed_defaults(old: str, new: str, history: History) -> Iterator[ChangedDefault]:
    """Yields the options of both versions whose defaults differ."""
    for default in UNDECLARED:
        if version_number(old) < version_number(default.since) <= version_number(new):
            yield default
    for name, lifetime in history.options.items():
        option = name.removeprefix("--")
        change = lifetime.changed_default(old, new)
        if change is None or option in UNTOLD or not (lifetime.is_in(old) and lifetime.is_in(new)):
            continue
        since, before, after = change
        yield ChangedDefault(option=option, since=since, old=before, new=after)
