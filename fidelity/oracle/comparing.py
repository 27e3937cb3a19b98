"""Compares two answers to a case: `disagreements`. The rules apply to all cases."""

import re
from collections.abc import Sequence

from app.extensions.recording.comparison import (
    CONSTANTS,
    ComparisonRules,
    ReceivedAnswer,
    differences,
    shapes_of,
)
from fidelity.oracle.cases import Case
from fidelity.oracle.sending import Counts

VALUES = CONSTANTS | frozenset(
    (
        "background",
        "cached_tokens",
        "code",
        "count",
        "index",
        "input_tokens",
        "is_paused",
        "is_sleeping",
        "max_model_len",
        "model",
        "name",
        "num_classes",
        "output_index",
        "content_index",
        "owned_by",
        "parallel_tool_calls",
        "param",
        "parent",
        "prompt",
        "prompt_tokens",
        "server_load",
        "service_tier",
        "store",
        "success",
        "temperature",
        "tool_choice",
        "top_p",
        "truncation",
    )
)
"""Fields whose values do not depend on generated text."""
COUNTED = frozenset(("choices", "data", "results"))
"""Lists with one item for each item of the request."""
HEADER_VALUES = frozenset(
    (
        "access-control-allow-credentials",
        "access-control-allow-headers",
        "access-control-allow-methods",
        "access-control-allow-origin",
        "allow",
        "location",
        "vary",
        "www-authenticate",
    )
)
UNSTABLE_HEADERS = frozenset(
    (
        "connection",
        "content-length",
        "content-type",
        "date",
        "keep-alive",
        "server",
        "transfer-encoding",
    )
)
"""Headers that say how a server sends an answer. The content type is compared in any case."""

OWN_FAMILIES = ("understudy_",)
"""Metrics that only Understudy has."""


def rules_of(case: Case) -> ComparisonRules:
    """Returns the rules for a case."""
    ignored = frozenset(case.ignored)
    return ComparisonRules(
        values=(VALUES | frozenset(case.values)) - ignored,
        ignored=ignored,
        counted=COUNTED,
        headers=HEADER_VALUES,
        unstable_headers=UNSTABLE_HEADERS,
        ignored_families=OWN_FAMILIES,
    )


class Outcome:
    """What a server made of a case: the answer, and the growth of counters."""

    def __init__(self, answer: ReceivedAnswer, counts: Counts) -> None:
        self.answer = answer
        self.counts = counts


def disagreements(case: Case, first: Outcome, second: Outcome, names: tuple[str, str]) -> list[str]:
    """Returns a line for each difference between two outcomes of a case.

    `names` of the servers are parts of the lines.
    """
    rules = rules_of(case)
    lines = list(
        differences(shapes_of(first.answer, rules), shapes_of(second.answer, rules), names)
    )
    for word in case.words:
        texts = [_first_match(word, outcome.answer.body) for outcome in (first, second)]
        if texts[0] != texts[1]:
            lines.append(f"words {word}: {texts[0]} of {names[0]}, {texts[1]} of {names[1]}")
    for name in sorted({*first.counts, *second.counts}):
        growths = [outcome.counts.get(name, 0) for outcome in (first, second)]
        if growths[0] != growths[1]:
            lines.append(f"{name}: {growths[0]:g} by {names[0]}, {growths[1]:g} by {names[1]}")
    return lines


def least_disagreements(
    case: Case, recorded: Sequence[Outcome], live: Outcome, names: tuple[str, str]
) -> list[str]:
    """Compares with each of the recorded outcomes, and returns the shortest list of differences.

    The recorded outcomes differ in what depends on chance, such as how a stream is divided.
    """
    lists = [disagreements(case, outcome, live, names) for outcome in recorded]
    return min(lists, key=len)


def _first_match(pattern: str, body: bytes) -> str | None:
    match = re.search(pattern, body.decode(errors="replace"))
    return match[0] if match is not None else None
