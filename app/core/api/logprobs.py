"""Log probabilities in the shapes of the API families."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from msgspec import Raw

from app.core.base.clock.pause import paced
from app.core.engine.outputs import TokenLogprob
from app.core.protocol import common as wire
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode

NULL = Raw(b"null")
ALL = -1
MAX_CACHED_TEXTS = 4096
"""Most texts whose JSON is cached, in about 2 MiB: answers repeat the tokens of a vocabulary."""
MAX_CACHED_CHARACTERS = 64
"""Longest text whose JSON is cached."""
CHAT_ENTRY = b'{"token":%b,"logprob":%b,"bytes":%b,"top_logprobs":[%b]}'
"""JSON of a `ChatLogprob`."""
CHAT_ALTERNATIVE = b'{"token":%b,"logprob":%b,"bytes":%b}'
"""JSON of a `ChatAlternative`."""

SomeEntries = Sequence[TokenLogprob | None]
"""Log probabilities of consecutive tokens; None for a token without any."""
E = TypeVar("E", bound=TokenLogprob | None)


def token_bytes(text: str) -> Raw:
    """Returns the UTF-8 of a text as a JSON list of numbers."""
    return spelled(text)[1]


def spelled(text: str) -> tuple[bytes, Raw]:
    """Returns a token's text as a JSON string, and its UTF-8 as a JSON list of numbers."""
    if len(text) <= MAX_CACHED_CHARACTERS:
        return _spelled_token(text)
    return _spell(text)


def _spell(text: str) -> tuple[bytes, Raw]:
    return encode(text), Raw(encode(list(text.encode())))


_spelled_token = lru_cache(MAX_CACHED_TEXTS)(_spell)


def token_name(token_id: int, text: str, as_id: bool) -> str:
    """Returns the name of a token: its text, or `token_id:N` if `as_id`."""
    if as_id:
        return f"token_id:{token_id}"
    return text


def rendered(spans: Sequence[Sequence[E]], render: Callable[[E], object]) -> Raw:
    """Returns one JSON list of all entries as `render` writes them; pauses where there are many."""
    # One buffer that grows: a list to be joined would take each of 40 MB three times.
    json = bytearray()
    for entry in paced(chain.from_iterable(spans)):
        json += b",%b" % encode(render(entry))
    json[:1] = b"["
    json += b"]"
    return Raw(json)


class TokenNames:
    """Writes the entries of an answer, with `top` alternatives each.

    With `as_ids`, tokens are named `token_id:N` instead of by their texts. In a chat, the field
    `bytes` encodes the text of the token itself, or is null if `byteless`.
    """

    def __init__(self, top: int, as_ids: bool = False, byteless: bool = False) -> None:
        self._top = top
        self._as_ids = as_ids
        self._byteless = byteless

    def alternatives(self, entry: TokenLogprob) -> Sequence[tuple[int, str, float]]:
        """Returns id, name and log probability of each alternative that the answer shows."""
        alternatives = entry.top if self._top == ALL else entry.top[: self._top]
        if not self._as_ids:
            return alternatives
        return [
            (token_id, f"token_id:{token_id}", logprob) for token_id, _, logprob in alternatives
        ]

    def chat_entry(self, entry: TokenLogprob) -> Raw:
        """Returns an entry of a chat, the JSON of a `ChatLogprob`."""
        name, numbers = spelled(entry.token)
        if self._as_ids:
            name = b'"token_id:%d"' % entry.token_id
        if self._byteless:
            numbers = NULL
        alternatives = []
        for _, text, logprob in self.alternatives(entry):
            text_json, text_numbers = spelled(text)
            alternatives.append(CHAT_ALTERNATIVE % (text_json, encode(logprob), text_numbers))
        return Raw(CHAT_ENTRY % (name, encode(entry.logprob), numbers, b",".join(alternatives)))


def prompt_entries(entries: SomeEntries | None) -> Raw | None:
    """Returns the list `prompt_logprobs`: by token id, with rank and text; null for the first."""
    if entries is None:
        return None
    return rendered((entries,), _by_id)


def _by_id(entry: TokenLogprob | None) -> JsonObject | None:
    if entry is None:
        return None
    return {
        str(token_id): {"logprob": logprob, "rank": rank, "decoded_token": text}
        for rank, (token_id, text, logprob) in zip(entry.ranks, entry.top, strict=False)
    }


class CompletionLogprobs:
    """The `logprobs` of one choice of a text completion: parallel lists."""

    def __init__(self, as_ids: bool) -> None:
        self._as_ids = as_ids
        self._offset = 0

    def lists(self, spans: Sequence[SomeEntries], names: Sequence[str]) -> wire.CompletionLogprobs:
        """Returns the lists of the next tokens; `names` has the tokens whose entries are None."""
        tokens: list[str] = []
        offsets: list[int] = []
        values: list[float | None] = []

        def add_entry(entry: TokenLogprob | None) -> dict[str, float] | None:
            offsets.append(self._offset)
            if entry is None:
                name = names[len(tokens)]
                value = None
                top = None
            else:
                name = token_name(entry.token_id, entry.token, self._as_ids)
                value = entry.logprob
                top = {
                    token_name(token_id, text, self._as_ids): logprob
                    for token_id, text, logprob in entry.top
                }
            tokens.append(name)
            values.append(value)
            self._offset += len(name)
            return top

        return wire.CompletionLogprobs(
            top_logprobs=rendered(spans, add_entry),
            text_offset=offsets,
            token_logprobs=values,
            tokens=tokens,
        )
