"""Names of metrics in texts that are no queries: arguments, triggers, policies and relabelings.

Every value of a document that is, or begins with, a name such as `vllm:num_requests_waiting` asks
for this metric, whatever program reads the document. Start reading at `names_of`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

PREFIX = "vllm:"
RAY_PREFIXES = ("ray_vllm:", "ray_vllm_")
"""Beginnings of vLLM's names in releases of Ray Serve, which exports the metrics itself."""
NAME = r"(?:ray_)?vllm:[A-Za-z0-9:]*_[\w:]*"
"""A metric of vLLM, whose names have underscores; the tag of an image may have none."""
_NAMES = re.compile(rf"(?:--?[\w.-]+=)?(?P<names>{NAME}(?:\s*,\s*{NAME})*)")
_NAME = re.compile(NAME)
_BEGINNING = re.compile(r"(?<![A-Za-z0-9:])[A-Za-z0-9:]++_")
"""Characters up to the first underscore of a name: a search for `NAME` tries each `vllm:` there."""
_QUERY = re.compile(
    rf"(?:--?[\w.-]+=)?(?P<query>{NAME}\s*(?:\{{[^{{}}]*\}}\s*)?(?:[<>=!]=?\s*[\d.]+)?)"
)
QUERY_KEYS = ("query", "expr", "promql", "expression")
"""Ends of keys whose texts are PromQL."""
IMAGE_KEYS = ("image", "repository", "tag", "newname", "newtag")
"""Ends of keys whose texts may begin like a metric."""
PROSE_KEYS = frozenset(("description", "summary", "title", "message", "legendformat", "runbook"))
MAX_ALTERNATIVES = 200
MAX_PATTERN = 4_000
"""Characters of a pattern."""
MAX_JOINED = 20_000
"""Times that a piece of a pattern is added to an alternative."""
MAX_DEPTH = 10
"""Groups within one another in a pattern."""
TARGET_KEYS = (
    "threshold",
    "targetValue",
    "targetAverageValue",
    "averageValue",
    "value",
    "target",
    "activationThreshold",
    "activationTargetValue",
)
"""Keys of autoscalers with the value that a metric is to have."""


def prefix_of(series: str) -> str:
    """Returns the beginning of a name of vLLM's, which Ray Serve changes; empty for other names."""
    return next((start for start in (PREFIX, *RAY_PREFIXES) if series.startswith(start)), "")


def plain_name(series: str) -> str:
    """Returns vLLM's own name of a series that Ray Serve renames; other names as they are."""
    prefix = prefix_of(series)
    if not prefix:
        return series
    return PREFIX + series.removeprefix(prefix)


class TextPart(NamedTuple):
    """A part of a text."""

    text: str
    start: int
    is_query: bool = False


def names_of(key: str, text: str) -> Iterator[TextPart]:
    """Yields the metrics in the text of a key: names, selectors, or a whole query."""
    lower = key.lower()
    if lower.endswith(IMAGE_KEYS) or lower in PROSE_KEYS:
        return
    match = _NAMES.fullmatch(text.strip())
    shift = len(text) - len(text.lstrip())
    if match is not None:
        for name in _NAME.finditer(match["names"]):
            yield TextPart(name[0], shift + match.start("names") + name.start())
        return
    match = _QUERY.fullmatch(text.strip())
    if match is not None:
        yield TextPart(match["query"], shift + match.start("query"), is_query=True)
    elif lower.endswith(QUERY_KEYS) and any(
        "vllm:" in each[0] for each in _BEGINNING.finditer(text)
    ):
        yield TextPart(text, 0, is_query=True)


class Alternative(NamedTuple):
    """A name that a pattern fits, or the beginning of such names."""

    text: str
    is_whole: bool


@lru_cache(maxsize=16)  # aliases of YAML repeat a pattern
def alternatives_of(pattern: str) -> Sequence[Alternative]:
    """Returns what a pattern such as `vllm:(a|b.*)` stands for; empty for too many."""
    return _Pattern(pattern).read() if len(pattern) <= MAX_PATTERN else []


class _Pattern:
    """Reads a pattern from left to right; a part that is not plain ends the known beginning."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern.removeprefix("^").removesuffix("$")
        self._position = 0
        self._joined_count = 0

    def read(self) -> list[Alternative]:
        found = self._choices(0)
        is_read = self._position >= len(self._pattern) and self._joined_count <= MAX_JOINED
        return found if is_read and len(found) <= MAX_ALTERNATIVES else []

    def _choices(self, depth: int) -> list[Alternative]:
        """Reads alternatives up to the end of their group."""
        choices: list[Alternative] = []
        current = [Alternative("", True)]
        while self._position < len(self._pattern):
            character = self._pattern[self._position]
            if character == ")" and depth:
                break
            self._position += 1
            if character == "|":
                choices += current
                current = [Alternative("", True)]
                continue
            piece = self._piece(character, depth)
            current = [_joined(first, second) for first in current for second in piece]
            self._joined_count += len(current)
            is_long = self._joined_count > MAX_JOINED
            if is_long or len(choices) + len(current) > MAX_ALTERNATIVES:
                self._position = len(self._pattern) + 1
                return choices + current
        return choices + current

    def _piece(self, character: str, depth: int) -> list[Alternative]:
        """Reads a character or a group, with the number of times that it may stand there."""
        piece = [Alternative("", False)]
        if character == "(" and depth < MAX_DEPTH:
            if self._pattern.startswith("?:", self._position):
                self._position += 2
            piece = self._choices(depth + 1)
            self._position += 1
        elif character == "\\":
            piece = [Alternative(self._pattern[self._position : self._position + 1], True)]
            self._position += 1
        elif character == "[":
            end = self._pattern.find("]", self._position)
            self._position = len(self._pattern) if end < 0 else end + 1
        elif character not in ".*+?{}^$()":
            piece = [Alternative(character, True)]
        following = self._pattern[self._position : self._position + 1]
        if following and following in "*+?{":
            self._position += 1
            return [Alternative("", False)]
        return piece


def _joined(first: Alternative, second: Alternative) -> Alternative:
    if not first.is_whole:
        return first
    return Alternative(first.text + second.text, second.is_whole)
