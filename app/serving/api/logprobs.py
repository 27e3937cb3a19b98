"""Log probabilities in the shapes of the API families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Raw

from app.engine.core.outputs import TokenLogprob
from app.serving.api.pieces import SLICE, Holes, joined, slices
from app.serving.protocol import common as wire
from app.serving.protocol.common import encode

Entries = Sequence[TokenLogprob]
"""Log probabilities of consecutive tokens; may be computed on access and not kept."""
SomeEntries = Sequence[TokenLogprob | None]
"""Log probabilities of consecutive tokens; None for a token without any."""
E = TypeVar("E", bound=TokenLogprob | None)

NULL = Raw(b"null")
ALL = -1
"""Stands for all alternatives of a token."""


MOST_KNOWN = 4096
"""Texts whose bytes an answer remembers; saves a third of the work for many alternatives."""


def token_bytes(text: str) -> Raw:
    """Returns the UTF-8 of `text` as a JSON list of numbers."""
    return Raw(encode(list(text.encode())))


def token_name(token_id: int, text: str, as_id: bool) -> str:
    """Returns the name of a token: its text, or `token_id:N`."""
    return f"token_id:{token_id}" if as_id else text


def width(entries: SomeEntries | None) -> int:
    last = entries[-1] if entries else None
    return 1 if last is None else 1 + len(last.top)


def _parts(spans: Iterable[Sequence[E]]) -> Iterator[Sequence[E]]:
    """Yields `spans` in parts of at most `SLICE` log probabilities."""
    for span in spans:
        yield from slices(span, max(1, SLICE // width(span)))


def rendered(
    spans: Sequence[Entries], render: Callable[[Entries], Sequence[object]], holes: Holes | None = None
) -> Raw:
    return joined((encode(render(part)) for part in _parts(spans)), holes)


class ChatLogprobs:
    """Log probabilities of a chat, with `top` alternatives each, the token itself first.

    Names are `token_id:N` if `as_ids`. An alternative's bytes encode its name; the entry's own bytes encode
    its text, or are null if `byteless`.
    """

    __slots__ = ("_as_ids", "_byteless", "_bytes", "_top")

    def __init__(self, top: int, as_ids: bool = False, byteless: bool = False) -> None:
        self._top = top
        self._as_ids = as_ids
        self._byteless = byteless
        self._bytes = lru_cache(MOST_KNOWN)(token_bytes)

    def entries(self, entries: Entries) -> list[wire.ChatLogprob]:
        of, as_ids, alternative = self._bytes, self._as_ids, wire.ChatAlternative
        byteless = self._byteless
        return [
            wire.ChatLogprob(
                token_name(entry.token_id, entry.token, as_ids),
                entry.logprob,
                NULL if byteless else of(entry.token),
                [alternative(name, logprob, of(name)) for _, name, logprob in self._named(entry)],
            )
            for entry in entries
        ]

    def _named(self, entry: TokenLogprob) -> Sequence[tuple[int, str, float]]:
        shown = _shown(entry, self._top)
        if not self._as_ids:
            return shown
        return [(token_id, token_name(token_id, "", True), logprob) for token_id, _, logprob in shown]


class ItemLogprobs:
    """Log probabilities of a message of the Responses family, with `top` alternatives each.

    With `as_ids` tokens are named `token_id:N`, and bytes encode that name.
    """

    __slots__ = ("_as_ids", "_bytes", "_top")

    def __init__(self, top: int, as_ids: bool = False) -> None:
        self._top = top
        self._as_ids = as_ids
        self._bytes = lru_cache(MOST_KNOWN)(token_bytes)

    def entries(self, entries: Entries) -> list[wire.ItemLogprob]:
        of, alternative = self._bytes, wire.ItemAlternative
        return [
            wire.ItemLogprob(
                entry.token,
                of(entry.token),
                entry.logprob,
                [alternative(text, of(text), logprob) for _, text, logprob in _shown(entry, self._top)],
            )
            for entry in self._named(entries)
        ]

    def event_entries(self, entries: Entries) -> list[wire.EventLogprob]:
        """Returns the entries as in events, without bytes."""
        return [
            wire.EventLogprob(
                entry.token,
                entry.logprob,
                [wire.EventAlternative(text, logprob) for _, text, logprob in _shown(entry, self._top)],
            )
            for entry in self._named(entries)
        ]

    def _named(self, entries: Entries) -> Entries:
        if not self._as_ids:
            return entries
        return [
            TokenLogprob(
                entry.token_id,
                token_name(entry.token_id, "", True),
                entry.logprob,
                [(token_id, token_name(token_id, "", True), logprob) for token_id, _, logprob in entry.top],
                entry.rank,
            )
            for entry in entries
        ]


def _shown(entry: TokenLogprob, top: int) -> Sequence[tuple[int, str, float]]:
    return entry.top if top == ALL else entry.top[:top]


def token_id_entries(entries: Entries) -> list[wire.TokenIdLogprob]:
    return [
        wire.TokenIdLogprob(
            entry.token_id,
            entry.logprob,
            entry.rank,
            [
                wire.TokenCandidate(token_id, logprob, rank)
                for rank, (token_id, _, logprob) in zip(entry.ranks, entry.top, strict=False)
            ],
        )
        for entry in entries
    ]


def prompt_entries(entries: SomeEntries | None, holes: Holes) -> Raw | None:
    """Returns the `prompt_logprobs` list: by token id, with rank and text; null for the first token."""
    return None if entries is None else joined((encode(_by_id(part)) for part in _parts((entries,))), holes)


def _by_id(entries: SomeEntries) -> wire.PromptLogprobs:
    return [
        None
        if entry is None
        else {
            str(token_id): wire.PromptLogprob(logprob, rank, text)
            for rank, (token_id, text, logprob) in zip(entry.ranks, entry.top, strict=False)
        }
        for entry in entries
    ]


class CompletionLogprobs:
    """The `logprobs` of one choice of a text completion: parallel lists."""

    __slots__ = ("_as_ids", "_offset")

    def __init__(self, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._offset = 0
        """Offset of the next token, in characters."""

    def lists(
        self, spans: Sequence[SomeEntries], names: Sequence[str], holes: Holes | None = None
    ) -> wire.CompletionLogprobs:
        """Returns the lists of the next tokens; `names` has the tokens whose entries are None."""
        tokens: list[str] = []
        values: list[float | None] = []
        places: list[int] = []

        def tops() -> Iterator[bytes]:
            for part in _parts(spans):
                entries = tuple(part)  # computes each entry only once
                places.extend(self._offsets(entries, names, tokens, values))
                yield encode(self._tops(entries))

        return wire.CompletionLogprobs(
            top_logprobs=joined(tops(), holes), text_offset=places, token_logprobs=values, tokens=tokens
        )

    def _offsets(
        self, entries: SomeEntries, names: Sequence[str], tokens: list[str], values: list[float | None]
    ) -> list[int]:
        """Returns the offset of each token in characters.

        Adds names to `tokens` and log probabilities to `values`.
        """
        offsets = []
        for entry in entries:
            if entry is None:
                token = names[len(tokens)]
                values.append(None)
            else:
                token = token_name(entry.token_id, entry.token, self._as_ids)
                values.append(entry.logprob)
            tokens.append(token)
            offsets.append(self._offset)
            self._offset += len(token)
        return offsets

    def _tops(self, entries: SomeEntries) -> list[dict[str, float] | None]:
        return [None if entry is None else self._top(entry) for entry in entries]

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        if self._as_ids:
            return {token_name(token_id, "", True): logprob for token_id, _, logprob in entry.top}
        return {text: logprob for _, text, logprob in entry.top}
