"""Puts the tokens of media into prompts, in place of the placeholders of the chat template."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.core.api.chat.media import Features, MediaTokens
from app.core.base.clock.pause import paced
from app.core.server.http.errors import bad_request
from app.extensions.media.rules import ItemTokens

NUMBER = "{number}"
SLICE_TOKENS = 1 << 12
"""Tokens of a prompt that are searched between two pauses, in at most a few milliseconds."""
Pattern = tuple[int, ...]
"""Tokens of a placeholder."""


class Span(NamedTuple):
    """The placeholder of an item in a prompt without media."""

    start: int
    length: int
    is_whole: bool = False
    """True for the tokens of the item itself, which a remote service has inserted."""


class PlacedItem(NamedTuple):
    """An item of a prompt."""

    modality: str
    name: str
    """Hash, or the `uuid` of the client."""
    tokens: ItemTokens | None
    """None for an item whose placeholder stays as it is."""

    def length(self, span: Span) -> int:
        """Returns the tokens in the prompt of the item with a placeholder."""
        if self.tokens is None or span.is_whole:
            return max(span.length, 1)
        return self.tokens.length


class Truncation(NamedTuple):
    """A client's limit of the prompt (`truncate_prompt_tokens`)."""

    max_tokens: int
    keeps_begin: bool
    """The first tokens are kept, not the last ones."""


def place(
    ids: Sequence[int],
    *,
    items: Sequence[PlacedItem],
    encode: Callable[[str], Sequence[int]],
    targets: Mapping[str, str],
    max_model_len: int,
    truncation: Truncation | None,
) -> tuple[Sequence[int], Features]:
    """Returns a prompt with the tokens of media, and where they are. Pauses in a long prompt.

    `encode` returns the tokens of a text. `targets` has the placeholder's text by modality.

    Raises:
        ApiError: 400 for a prompt that is too long with its media, or if a limit cuts them.
    """
    spans = [Span(min(number, max(len(ids) - 1, 0)), 0) for number in range(len(items))]
    for modality in dict.fromkeys(item.modality for item in items):
        numbers = [number for number, item in enumerate(items) if item.modality == modality]
        # A template without parts writes the modality in angle brackets.
        texts = [*filter(None, [targets.get(modality)]), f"<{modality}>"]
        found = placeholder_spans(ids, [items[number] for number in numbers], encode, texts)
        for number, span in zip(numbers, found, strict=False):
            spans[number] = span
    total = len(ids)
    for item, span in zip(items, spans, strict=True):
        total += item.length(span) - span.length
    if total > max_model_len:
        raise bad_request(
            f"Input length ({total}) exceeds model's maximum context length ({max_model_len})."
        )
    token_ids = {item.modality: encode(f"<{item.modality}>")[0] for item in items}
    prompt: list[int] = []
    places: dict[int, MediaTokens] = {}
    end = 0
    for number in sorted(range(len(items)), key=lambda number: spans[number].start):
        item = items[number]
        span = spans[number]
        prompt += ids[end : span.start]
        end = max(end, span.start + span.length)
        length = item.length(span)
        places[number] = {"offset": len(prompt), "length": length}
        prompt += _tokens(ids, item, span, default_id=token_ids[item.modality])
    prompt += ids[end:]
    if truncation is not None:
        _check_truncation(
            truncation,
            len(prompt),
            [(item.modality, places[number]) for number, item in enumerate(items)],
        )
    return prompt, _features(items, places)


def placeholder_spans(
    ids: Sequence[int],
    items: Sequence[PlacedItem],
    encode: Callable[[str], Sequence[int]],
    texts: Sequence[str],
) -> list[Span]:
    """Returns the placeholders of the items of a modality in a prompt, in order.

    They are all written as the first of the `texts` that the prompt contains. In a text,
    ``{number}`` stands for the number of the item, from 1 on. A remote service that tokenizes has
    replaced the placeholders by the tokens of the items, which are then returned.
    """
    for text in texts:
        if NUMBER not in text:
            spans = [span for _, span in _occurrences(ids, [tuple(encode(text))])]
        else:
            patterns = [
                tuple(encode(text.replace(NUMBER, str(number))))
                for number in paced(range(1, len(items) + 1))
            ]
            firsts: dict[Pattern, Span] = {}
            for pattern, span in _occurrences(ids, patterns):
                firsts.setdefault(pattern, span)
            spans = [firsts[pattern] for pattern in patterns if pattern in firsts]
        if spans:
            return _whole_items(spans, items)
    return []


def _whole_items(spans: list[Span], items: Sequence[PlacedItem]) -> list[Span]:
    """Returns the spans of items that a prompt contains with all of their tokens."""
    counts = [item.tokens.embeddings for item in items if item.tokens is not None]
    if len(spans) == len(items) or sum(counts) != len(spans):
        return spans
    whole: list[Span] = []
    first = 0
    for count in counts:
        start = spans[first].start
        last = spans[first + count - 1]
        whole.append(Span(start, last.start + last.length - start, is_whole=True))
        first += count
    return whole


def _occurrences(ids: Sequence[int], patterns: Sequence[Pattern]) -> Iterator[tuple[Pattern, Span]]:
    """Yields the patterns that a prompt contains, and where, in order.

    A client writes the prompt: all patterns are searched together, and with pauses.
    """
    by_length: dict[int, set[Pattern]] = {}
    for pattern in filter(None, patterns):
        by_length.setdefault(len(pattern), set()).add(pattern)
    first_ids = {pattern[0] for pattern in filter(None, patterns)}
    for begin in paced(range(0, len(ids), SLICE_TOKENS)):
        for start, token_id in enumerate(ids[begin : begin + SLICE_TOKENS], begin):
            if token_id not in first_ids:
                continue
            for length, wanted in by_length.items():
                found = tuple(ids[start : start + length])
                if found in wanted:
                    yield found, Span(start, length)


def _tokens(ids: Sequence[int], item: PlacedItem, span: Span, default_id: int) -> Sequence[int]:
    """Returns the tokens of an item: the token of a placeholder of one token, repeated."""
    if item.tokens is None or span.is_whole:
        return ids[span.start : span.start + span.length] or [default_id]
    token_id = ids[span.start] if span.length == 1 else default_id
    return [token_id] * item.tokens.length


def _check_truncation(
    truncation: Truncation, prompt_tokens: int, places: Sequence[tuple[str, MediaTokens]]
) -> None:
    """Raises ApiError if the client's limit cuts an item."""
    max_tokens = truncation.max_tokens
    if max_tokens < 0 or max_tokens >= prompt_tokens:
        return
    start = 0 if truncation.keeps_begin else prompt_tokens - max_tokens
    for modality, place in places:
        first = place["offset"]
        end = first + place["length"]
        if first < start or end > start + max_tokens:
            raise bad_request(
                f"truncate_prompt_tokens={max_tokens} would split or drop a(n) {modality} item, "
                f"which spans tokens {first} to {end} of the {prompt_tokens}-token prompt. "
                "Multimodal placeholders expand after truncation is applied, so the limit must "
                "leave every multimodal item intact. Please raise truncate_prompt_tokens or "
                "shorten the multimodal input.",
                "truncate_prompt_tokens",
                max_tokens,
            )


def _features(items: Sequence[PlacedItem], places: Mapping[int, MediaTokens]) -> Features:
    features: Features = {"mm_hashes": {}, "mm_placeholders": {}, "kwargs_data": {}}
    for number, item in enumerate(items):
        data = base64.b64encode(item.name.encode()).decode()
        features["mm_hashes"].setdefault(item.modality, []).append(item.name)
        features["mm_placeholders"].setdefault(item.modality, []).append(places[number])
        features["kwargs_data"].setdefault(item.modality, []).append(data)
    return features
