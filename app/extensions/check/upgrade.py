"""Changes in a newer version of vLLM for clients, dashboards, and command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from app.core.protocol.features import Feature
from app.extensions.check.findings import Finding, Place
from app.extensions.check.options import ReadOptions
from app.extensions.check.rules import finding
from app.extensions.check.text import Text
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
        since="0.28",
        old="8192",
        new="16384 on devices with 160 GiB or more",
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


SPECULATION = ("speculative-config", "spec-method", "spec-model", "spec-tokens")
OFFLOADING = ("kv-offloading-size", "kv-transfer-config")
USED_BY: Mapping[Feature, Sequence[str]] = {
    Feature.CHUNK_TRANSFER_PARAMS: ("kv-transfer-config",),
    Feature.REFUSAL_IN_PAUSE: ("enable-sleep-mode",),
    Feature.PREFILL_INTERVAL: ("prefill-schedule-interval",),
    Feature.SELF_PREEMPTION: ("scheduling-policy",),
    Feature.LAST_ADAPTERS: ("enable-lora",),
    Feature.DRAFTED_BLOCKS: SPECULATION,
    Feature.KNOWN_STATES: ("mamba-cache-mode", "mamba-block-size", "mamba-cache-dtype"),
    Feature.OFFERS_AGAIN: OFFLOADING,
    Feature.OFFLOADED_BLOCKS: OFFLOADING,
    Feature.TOKEN_EMBEDDINGS: ("pooler-config", "runner", "convert"),
    Feature.ELASTIC_STATUS: ("enable-elastic-ep",),
    Feature.PROFILER_KWARGS: ("profiler-config",),
}
"""Options without which a server does not have a change."""
OF_CLIENTS = frozenset(
    (
        Feature.WEIGHT_VERSIONS,
        Feature.DEFAULT_SPECIAL_TOKENS,
        Feature.BEAM_TOKEN_IDS_ERROR,
        Feature.RESERVED_REPLY_TOKEN,
        Feature.RESPONSE_CACHE_FIELDS,
        Feature.INCOMPLETE_ITEMS,
        Feature.ANTHROPIC_ERROR_TYPES,
        Feature.RENDERED_REQUESTS,
        Feature.DERENDER_OUTPUT_MODE,
        Feature.DERENDER_AS_GENERATED,
        Feature.DECISIONS,
    )
)
"""Changes that depend on requests only; recordings of clients show them (`client_upgrade.py`)."""


def named_metrics(texts: Mapping[str, str], old: str, new: str) -> Iterator[Finding]:
    """Yields the metrics in texts of files that the old version has, and the new one has not.

    Of a name, only its first place in a file is reported.
    """
    from app.extensions.check.watch.catalog import Catalog  # imports the metrics
    from app.extensions.check.watch.promql import metrics_in

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
            if found.status != "removed" or found.lifetime is None:
                continue
            fix = ""
            if found.lifetime.replacement not in ("", "unknown"):
                fix = f"use {found.lifetime.replacement}"
            message = f"vLLM {new} has no metric {name}"
            yield finding("U602", source.place(match.start()), message, fix=fix)


def changes(
    old: str, new: str, history: History, place: Place, options: ReadOptions
) -> Iterator[Finding]:
    """Yields the differences between two versions for the options of a command line."""
    first = version_number(old)
    last = version_number(new)
    for feature, names in USED_BY.items():
        if not first < version_number(feature.since) <= last:
            continue
        used = next((name for name in names if options.has(name)), None)
        if used is not None:
            message = f"{feature.area}: {feature.old_behavior} In {feature.since}:"
            found = options.place_of(used, place)
            yield finding("U601", found, f"{message} {feature.new_behavior}")
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
