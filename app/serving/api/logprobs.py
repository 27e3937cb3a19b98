"""Log probabilities in the shapes of the API families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Raw

from app.base.clock.pause import Slices
from app.engine.core.outputs import TokenLogprob
from app.serving.protocol import common as wire
from app.serving.protocol.common import encode

Entries = Sequence[TokenLogprob]
"""Log probabilities of consecutive tokens; may be computed on access and not kept."""
SomeEntries = Sequence[TokenLogprob | None]
"""Log probabilities of consecutive tokens; None for a token without any."""
E = TypeVar("E", bound=TokenLogprob | None)

NULL = Raw(b"null")
ALL = -1


SLICE = 2048
"""Log probabilities, or tokens, written between two pauses: well below 5 ms of work."""
MOST_KNOWN = 4096
"""Texts whose bytes an answer remembers; saves a third of the work for many alternatives."""


def token_bytes(text: str) -> Raw:
    return Raw(encode(list(text.encode())))


def token_name(token_id: int, text: str, as_id: bool) -> str:
    """Returns the name of a token: its text, or `token_id:N`."""
    return f"token_id:{token_id}" if as_id else text


def width(entries: SomeEntries | None) -> int:
    last = entries[-1] if entries else None
    return 1 if last is None else 1 + len(last.top)


def rendered(spans: Sequence[Sequence[E]], render: Callable[[Sequence[E]], Sequence[object]]) -> Raw:
    """Returns one JSON list of all entries as `render` writes them; pauses where there are many."""
    turns, lists = Slices(SLICE), list[bytes]()
    for span in spans:
        entry_width = width(span)
        size = max(1, SLICE // entry_width)
        for start in range(0, len(span), size):
            lists.append(encode(render(span[start : start + size]))[1:-1])
            turns.spend(size * entry_width)
    return Raw(b"[%b]" % b",".join(lists))


class TokenNames:
    """Names of tokens in an answer: `top` alternatives each; `token_id:N` instead of texts if `as_ids`."""

    __slots__ = ("_as_ids", "_bytes", "_top")

    def __init__(self, top: int, as_ids: bool = False) -> None:
        self._top = top
        self._as_ids = as_ids
        self._bytes = lru_cache(MOST_KNOWN)(token_bytes)

    def _shown(self, entry: TokenLogprob) -> Sequence[tuple[int, str, float]]:
        shown = entry.top if self._top == ALL else entry.top[: self._top]
        if not self._as_ids:
            return shown
        return [(token_id, f"token_id:{token_id}", logprob) for token_id, _, logprob in shown]


class ChatLogprobs(TokenNames):
    """Log probabilities of a chat. Bytes of an alternative encode its name; a beam's entry has null bytes."""

    __slots__ = ("_byteless",)

    def __init__(self, top: int, as_ids: bool = False, byteless: bool = False) -> None:
        super().__init__(top, as_ids)
        self._byteless = byteless

    def entries(self, entries: Entries) -> list[wire.ChatLogprob]:
        of, as_ids, alternative = self._bytes, self._as_ids, wire.ChatAlternative
        byteless = self._byteless
        return [
            wire.ChatLogprob(
                token_name(entry.token_id, entry.token, as_ids),
                entry.logprob,
                NULL if byteless else of(entry.token),
                [alternative(name, logprob, of(name)) for _, name, logprob in self._shown(entry)],
            )
            for entry in entries
        ]


class ItemLogprobs(TokenNames):
    """Log probabilities of a message of the Responses family. Bytes encode names."""

    __slots__ = ()

    def entries(self, entries: Entries) -> list[wire.ItemLogprob]:
        of, alternative = self._bytes, wire.ItemAlternative
        return [
            wire.ItemLogprob(
                name := token_name(entry.token_id, entry.token, self._as_ids),
                of(name),
                entry.logprob,
                [alternative(text, of(text), logprob) for _, text, logprob in self._shown(entry)],
            )
            for entry in entries
        ]

    def event_entries(self, entries: Entries) -> list[wire.EventLogprob]:
        return [
            wire.EventLogprob(
                token_name(entry.token_id, entry.token, self._as_ids),
                entry.logprob,
                [wire.EventAlternative(text, logprob) for _, text, logprob in self._shown(entry)],
            )
            for entry in entries
        ]


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


def prompt_entries(entries: SomeEntries | None) -> Raw | None:
    """Returns the `prompt_logprobs` list: by token id, with rank and text; null for the first token."""
    return None if entries is None else rendered((entries,), _by_id)


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

    def lists(self, spans: Sequence[SomeEntries], names: Sequence[str]) -> wire.CompletionLogprobs:
        """Returns the lists of the next tokens; `names` has the tokens whose entries are None."""
        tokens: list[str] = []
        values: list[float | None] = []
        offsets: list[int] = []

        def tops(entries: SomeEntries) -> list[dict[str, float] | None]:
            for entry in entries:
                if entry is None:
                    name = names[len(tokens)]
                else:
                    name = token_name(entry.token_id, entry.token, self._as_ids)
                values.append(None if entry is None else entry.logprob)
                tokens.append(name)
                offsets.append(self._offset)
                self._offset += len(name)
            return [None if entry is None else self._top(entry) for entry in entries]

        return wire.CompletionLogprobs(
            top_logprobs=rendered(spans, tops), text_offset=offsets, token_logprobs=values, tokens=tokens
        )

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        if self._as_ids:
            return {f"token_id:{token_id}": logprob for token_id, _, logprob in entry.top}
        return {text: logprob for _, text, logprob in entry.top}
