"""Changes in a newer version of vLLM for clients, dashboards, and command lines."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from app.core.versions.chain import changes_between
from app.core.versions.change import Default
from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from config.vllm.history import History


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """A default of an option that a version of vLLM changed."""

    option: str
    since: str
    old: str
    new: str


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
    for release, change in changes_between(old, new):
        if not any(isinstance(form, Default) for form in change.forms):
            message = f"{change.area}: {change.before} In {release}: {change.after}"
            yield finding("U601", place, message)
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
    for release, change in changes_between(old, new):
        for form in change.forms:
            if isinstance(form, Default):
                yield ChangedDefault(
                    option=form.option, since=release, old=form.before, new=form.after
                )
    for name, lifetime in history.options.items():
        option = name.removeprefix("--")
        changed = lifetime.changed_default(old, new)
        is_in_both = lifetime.is_in(old) and lifetime.is_in(new)
        if changed is None or option in UNTOLD or not is_in_both:
            continue
        since, before, after = changed
        yield ChangedDefault(option=option, since=since, old=before, new=after)
