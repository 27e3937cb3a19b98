"""Prompts by the bytes that they came in: known ones at once, short new ones tokenized on the spot.

Whoever may not wait (the fast path) asks here. A text of `MOST_BYTES` takes less than a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from app.tokenization.base import PLAIN_CHAT, Tokenizer, TokenizerError

LIMIT_BYTES = 8 << 20
MOST_BYTES = 2048
ENTRY_BYTES = 200
"""What an entry takes besides its key and its ids: dictionary, list and bytes objects."""
ID_BYTES = 36
"""A pointer and a number."""


class PromptMemo:
    """Token ids by key, up to `limit_bytes` in all; what was met first is forgotten first."""

    def __init__(self, tokenizer: Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._tokenizer = tokenizer
        self._known: dict[bytes, Sequence[int]] = {}

    def ids(self, key: bytes) -> Sequence[int] | None:
        """The token ids of a prompt, which nobody may change; None when it is long, or not as expected."""
        known = self._known.get(key)
        if known is not None:
            return known
        if len(key) > MOST_BYTES:
            return None
        try:
            ids = self.encode(key)
        except TokenizerError:
            return None
        if ids is not None:
            self._put(key, ids)
        return ids

    def encode(self, key: bytes) -> Sequence[int] | None:
        """The token ids of a new prompt."""
        raise NotImplementedError

    def _put(self, key: bytes, ids: Sequence[int]) -> None:
        self._known[key] = ids
        self.size_bytes += _size(key, ids)
        while self.size_bytes > self.limit_bytes:
            oldest = next(iter(self._known))
            self.size_bytes -= _size(oldest, self._known.pop(oldest))


class TextMemo(PromptMemo):
    """Keys are texts."""

    def encode(self, key: bytes) -> Sequence[int] | None:
        return self._tokenizer.encode(key.decode(), True)


class _TextMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


_MESSAGES = msgspec.json.Decoder(list[_TextMessage])


class ChatMemo(PromptMemo):
    """Keys are JSON arrays of messages; only those are encoded whose messages are texts."""

    def encode(self, key: bytes) -> Sequence[int] | None:
        try:
            messages = _MESSAGES.decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return self._tokenizer.encode_chat(msgspec.to_builtins(messages), PLAIN_CHAT)


def _size(key: bytes, ids: Sequence[int]) -> int:
    return ENTRY_BYTES + len(key) + len(ids) * ID_BYTES
