"""Log probabilities in the shapes of the API families."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from msgspec import Raw

from app.base.clock.pause import Slices
from app.engine.core.outputs import TokenLogprob
from app.serving.protocol import common as wire
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import encode

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
    return f"token_id:{token_id}" if as_id else text


def rendered(spans: Sequence[Sequence[E]], render: Callable[[E], object]) -> Raw:
    """Returns one JSON list of all entries as `render` writes them; pauses where there are many."""
    turns, lists = Slices(SLICE), list[bytes]()
    for span in spans:
        last = span[-1] if span else None
        width = 1 if last is None else 1 + len(last.top)
        size = max(1, SLICE // width)
        for start in range(0, len(span), size):
            lists.append(encode([render(entry) for entry in span[start : start + size]])[1:-1])
            turns.spend(size * width)
    return Raw(b"[%b]" % b",".join(lists))


class TokenNames:
    """Writes entries of an answer: `top` alternatives each; `token_id:N` instead of texts if
    `as_ids`.

    Bytes encode names, but a chat's own ones the text, or they are null if `byteless`.
    """

    def __init__(self, top: int, as_ids: bool = False, byteless: bool = False) -> None:
        self._top, self._as_ids, self._byteless = top, as_ids, byteless
        self._bytes = lru_cache(MOST_KNOWN)(token_bytes)

    def _shown(self, entry: TokenLogprob) -> Sequence[tuple[int, str, float]]:
        shown = entry.top if self._top == ALL else entry.top[: self._top]
        if not self._as_ids:
            return shown
        return [(token_id, f"token_id:{token_id}", logprob) for token_id, _, logprob in shown]

    def chat_entry(self, entry: TokenLogprob) -> wire.ChatLogprob:
        of, name = self._bytes, token_name(entry.token_id, entry.token, self._as_ids)
        top = [
            wire.ChatAlternative(text, logprob, of(text)) for _, text, logprob in self._shown(entry)
        ]
        return wire.ChatLogprob(
            name, entry.logprob, NULL if self._byteless else of(entry.token), top
        )

    def item_entry(self, entry: TokenLogprob) -> JsonObject:
        """Returns an entry of an item of Responses, whose keys have another order."""
        of, name = self._bytes, token_name(entry.token_id, entry.token, self._as_ids)
        shown = self._shown(entry)
        top = [{"token": text, "bytes": of(text), "logprob": logprob} for _, text, logprob in shown]
        return {"token": name, "bytes": of(name), "logprob": entry.logprob, "top_logprobs": top}

    def event_entry(self, entry: TokenLogprob) -> JsonObject:
        name = token_name(entry.token_id, entry.token, self._as_ids)
        top = [{"token": text, "logprob": logprob} for _, text, logprob in self._shown(entry)]
        return {"token": name, "logprob": entry.logprob, "top_logprobs": top}


def token_id_entry(entry: TokenLogprob) -> wire.TokenIdLogprob:
    ranked = zip(entry.ranks, entry.top, strict=False)
    top = [wire.TokenCandidate(token_id, logprob, rank) for rank, (token_id, _, logprob) in ranked]
    return wire.TokenIdLogprob(entry.token_id, entry.logprob, entry.rank, top)


def prompt_entries(entries: SomeEntries | None) -> Raw | None:
    """Returns the `prompt_logprobs` list:

    by token id, with rank and text; null for the first token.
    """
    return None if entries is None else rendered((entries,), _by_id)


def _by_id(entry: TokenLogprob | None) -> JsonObject | None:
    if entry is None:
        return None
    ranked = zip(entry.ranks, entry.top, strict=False)
    return {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": text}
        for rank, (token_id, text, logprob) in ranked
    }


class CompletionLogprobs:
    """The `logprobs` of one choice of a text completion: parallel lists."""

    def __init__(self, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._offset = 0

    def lists(self, spans: Sequence[SomeEntries], names: Sequence[str]) -> wire.CompletionLogprobs:
        """Returns the lists of the next tokens; `names` has the tokens whose entries are None."""
        as_ids, tokens, offsets = self._as_ids, list[str](), list[int]()
        values: list[float | None] = []

        def top(entry: TokenLogprob | None) -> dict[str, float] | None:
            name = (
                names[len(tokens)]
                if entry is None
                else token_name(entry.token_id, entry.token, as_ids)
            )
            values.append(None if entry is None else entry.logprob)
            tokens.append(name)
            offsets.append(self._offset)
            self._offset += len(name)
            if entry is None:
                return None
            return {
                token_name(token_id, text, as_ids): logprob for token_id, text, logprob in entry.top
            }

        return wire.CompletionLogprobs(
            top_logprobs=rendered(spans, top),
            text_offset=offsets,
            token_logprobs=values,
            tokens=tokens,
        )
