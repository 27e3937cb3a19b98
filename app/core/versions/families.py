"""Metric families of other releases of vLLM, made from the families of the code.

A family that only a newer release has is rendered by `app.core.versions.new_families`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from msgspec import Struct

from vllm_facts.history import History
from vllm_facts.names import value_in
from vllm_facts.version import CLEARED

START = "# HELP "
NEWER_NAMES = {
    "vllm:gpu_cache_usage_perc": "vllm:kv_cache_usage_perc",
    "vllm:gpu_prefix_cache_hits_total": "vllm:prefix_cache_hits_total",
    "vllm:gpu_prefix_cache_queries_total": "vllm:prefix_cache_queries_total",
    "vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds",
}
"""Family of older releases -> family of newer ones with the same numbers."""
ALWAYS_ZERO = {"vllm:prompt_tokens_recomputed_total": "vllm:prompt_tokens_cached_total"}
"""Family of older releases that counts nothing here -> family with the same labels."""
VALUE = re.compile(r" [^ \n]+$", re.MULTILINE)
SAMPLE = re.compile(r"\{(?P<labels>.*)\} ")
LABEL = re.compile(r'(?P<name>\w+)="(?:[^"\\]|\\.)*",?')
CACHE_CONFIG = "vllm:cache_config_info"
ITERATION_SUM = "vllm:iteration_tokens_total_sum"
ITERATIONS = "vllm:iteration_tokens_total"
SWAP_BYTES = f'swap_space_bytes="{4 << 30}"'
"""Label with the default of `--swap-space`."""
CACHED = "vllm:prompt_tokens_cached_total"


class FamilyRules(Struct, frozen=True, kw_only=True):
    """Sums of families that differ between versions of vLLM; the defaults are the newest."""

    sums_cached_tokens: bool = False
    """The sum of vllm:iteration_tokens_total has cached tokens of prompts; its buckets do not."""
    has_swap_bytes: bool = False
    """vllm:cache_config_info has the bytes of `--swap-space`."""


class PastFamilies:
    """Renders the engine's families as an older release has them."""

    def __init__(
        self,
        families: Callable[[], str],
        history: History,
        release: str,
        rules: FamilyRules = FamilyRules(),  # noqa: B008 (immutable)
    ) -> None:
        """`families` renders those of the newest release; `release` is a number like 0.19.1."""
        self._families = families
        self._rules = rules
        present = history.families_in(release)
        self._absent = frozenset(
            name for name in history.metrics if not history.metrics[name].is_in(release)
        )
        self._older = {
            older: newer
            for older, newer in {**NEWER_NAMES, **ALWAYS_ZERO}.items()
            if older in present
        }
        self._new = {
            name: lifetime
            for name, lifetime in present.items()
            if name not in self._older and not lifetime.is_in(CLEARED)
        }
        self._release = release
        self._new_text = ""
        """The new families, whose numbers never change; empty before the first scrape."""
        self._labels: dict[str, frozenset[str]] = {}
        for name, lifetime in present.items():
            labels = value_in(lifetime.labels, release)
            newest = lifetime.labels[-1][1] if lifetime.labels else labels
            if labels is not None and labels != newest:
                self._labels[name] = frozenset(labels.split())

    def render(self) -> str:
        """Returns the families in the Prometheus text format."""
        return "".join(self._past_families(self._families()))

    def _past_families(self, text: str) -> Iterator[str]:
        blocks = {_name(block): block for block in _blocks(text)}
        if self._rules.sums_cached_tokens:
            blocks[ITERATIONS] = _with_cached(blocks[ITERATIONS], blocks[CACHED])
        for name, block in blocks.items():
            if self._has(name):
                yield self._narrowed(name, block)
        for older, newer in self._older.items():
            if older not in blocks and newer in blocks:
                block = blocks[newer].replace(newer, older)
                if older in ALWAYS_ZERO:
                    block = _without_numbers(block)
                yield self._narrowed(older, block)
                created = f"{newer.removesuffix('_total')}_created"
                if created in blocks:
                    yield blocks[created].replace(
                        newer.removesuffix("_total"), older.removesuffix("_total")
                    )
        if self._new and not self._new_text:
            from app.core.versions.new_families import new_families

            self._new_text = "".join(new_families(self._new, self._release, text))
        yield self._new_text

    def _has(self, name: str) -> bool:
        """Returns whether the release has a family, or the family of the times of creation."""
        counted = name.removesuffix("_created")
        names = {name, counted, f"{counted}_total"}
        return name in self._older or self._absent.isdisjoint(names)

    def _narrowed(self, name: str, block: str) -> str:
        """Returns the family without labels that the release does not have."""
        present = self._labels.get(name)
        if present is None:
            return block

        def narrow(match: re.Match[str]) -> str:
            kept = [
                label[0].rstrip(",")
                for label in LABEL.finditer(match["labels"])
                if label["name"] in present or label["name"] == "le"
            ]
            if name == CACHE_CONFIG:
                known = {label["name"] for label in LABEL.finditer(match["labels"])}
                kept += [f'{missing}="None"' for missing in sorted(present - known)]
                if self._rules.has_swap_bytes:
                    kept.append(SWAP_BYTES)
            return f"{{{','.join(kept)}}} "

        return SAMPLE.sub(narrow, block)


def _blocks(text: str) -> Iterator[str]:
    """Yields the text of each family."""
    for part in text.split(START)[1:]:
        yield START + part


def _name(block: str) -> str:
    return block.removeprefix(START).partition(" ")[0]


def _with_cached(iterations: str, cached: str) -> str:
    """Returns the family of steps whose sums have the cached tokens of the same engine, too."""
    tokens = dict(_samples(cached, CACHED))
    for labels, total in _samples(iterations, ITERATION_SUM):
        sample = f"{ITERATION_SUM}{labels}"
        newer = f"{sample} {total}\n"
        iterations = iterations.replace(newer, f"{sample} {total + tokens.get(labels, 0.0)}\n")
    return iterations


def _samples(block: str, name: str) -> Iterator[tuple[str, float]]:
    """Yields the labels, in braces, and the value of each sample of this name."""
    for line in block.splitlines():
        if line.startswith(f"{name}{{"):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            yield labels, float(value)


def _without_numbers(block: str) -> str:
    lines = [
        line if line.startswith("#") else VALUE.sub(" 0.0", line) for line in block.splitlines()
    ]
    return "\n".join(lines) + "\n"
