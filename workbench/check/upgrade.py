"""Changes in a newer version of vLLM for clients, dashboards, and command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from app.core.versions.chain import changes_of
from app.core.versions.change import Change, Default
from vllm_facts.history import History
from vllm_facts.version import later_versions, parse_version
from workbench.check.findings import Finding, Place
from workbench.check.options import ReadOptions
from workbench.check.rules import HIDDEN_METRICS_OPTION, finding
from workbench.check.text import Text

REQUIRED_OPTION = {
    "all2all-backend": "enable-expert-parallel",
    "cp-kv-cache-interleave-size": "decode-context-parallel-size",
    "dcp-comm-backend": "decode-context-parallel-size",
    "kv-offloading-backend": "kv-offloading-size",
}
"""The option without which another one has no effect."""
IRRELEVANT_DEFAULTS = frozenset(("model", "scheduler-cls"))
"""Options whose declared defaults concern no server."""


def changes_between(old: str, new: str) -> Iterator[tuple[str, Change]]:
    """Yields the changes since `old` up to `new`, each with the version that made it."""
    unreached = later_versions(parse_version(new))
    for name in reversed(later_versions(parse_version(old))):
        if name not in unreached:
            for change in changes_of(name):
                yield name, change


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """A default of an option that a version of vLLM changed."""

    option: str
    since: str
    old: str
    new: str


def named_metrics(texts: Mapping[str, str], old: str, new: str) -> Iterator[Finding]:
    """Yields the metrics in texts of files that the old version has, and the new one has not.

    Of a name, only its first place in a file is reported.
    """
    from workbench.check.watch.catalog import Catalog  # imports the metrics
    from workbench.check.watch.names import PREFIX
    from workbench.check.watch.promql import metrics_in

    before = Catalog(old)
    after = Catalog(new)
    for file, text in texts.items():
        source = Text(file, text)
        seen: set[str] = set()
        for match in metrics_in(text):
            name = match[0]
            if name in seen or before.find(name).status != "here":
                continue
            seen.add(name)
            found = after.find(name)
            if found.lifetime is None:
                continue
            message = f"vLLM {new} has no metric {name}"
            if found.status != "removed":
                if before.is_hidden(before.find(name)) or not after.is_hidden(found):
                    continue
                message = f"vLLM {new} shows {name} only with {HIDDEN_METRICS_OPTION}"
            fix = ""
            if found.lifetime.replacement not in ("", "unknown"):
                fix = f"use {found.lifetime.replacement}".replace(PREFIX, found.prefix)
            yield finding("U602", source.place(match.start()), message, fix=fix)


def changes(
    old: str, new: str, history: History, place: Place, options: ReadOptions
) -> Iterator[Finding]:
    """Yields the differences between two versions for the options of a command line."""
    for release, change in changes_between(old, new):
        used = next((name for name in change.options if options.has(name)), None)
        if used is not None and not any(isinstance(form, Default) for form in change.forms):
            message = f"{change.area}: {change.before} In {release}: {change.after}"
            yield finding("U601", options.place_of(used, place), message)
    for default in changed_defaults(old, new, history):
        needed = REQUIRED_OPTION.get(default.option)
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
        if changed is None or option in IRRELEVANT_DEFAULTS or not is_in_both:
            continue
        since, before, after = changed
        yield ChangedDefault(option=option, since=since, old=before, new=after)
