"""Token ids of prompts by their raw bytes, for the fast path, which must not wait.

Known prompts are looked up, short new ones tokenized at once: `MOST_BYTES` take less than a
millisecond.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct

from app.text.base import PLAIN_CHAT, Tokenizer, TokenizerError

LIMIT_BYTES = 8 << 20
MOST_BYTES = 2048
ENTRY_BYTES = 300
"""Memory of an entry beside its bytes and ids; measured."""
ID_BYTES = 40
"""Memory of a token id and its place in a list, an upper bound: small ids are shared."""
SEEN = 1 << 13
"""Places for hashes of prompts seen once: 64 KB."""


class KnownPrompts(OrderedDict[bytes, list[int]]):
    """Token ids of prompts of one kind, remembered from their second use, within `limit_bytes` of
    memory.

    The prompt that was not used for longest goes first. Most prompts are never repeated: keeping
    each would evict an entry outside the processor's caches, which takes more time than half of the
    tokenization. For one loop, and not for threads.
    """

    def __init__(
        self, encode: Callable[[bytes], list[int] | None], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """`encode` returns the token ids of a new prompt; None for a prompt that is not supported."""
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._encode = encode
        self._seen = array("q", bytes(8 * SEEN))
        """Hash of the latest prompt, by the hash's remainder."""

    def ids(self, key: bytes) -> list[int] | None:
        """Returns the token ids of a prompt, read-only; None for a prompt that is long or not
        supported.
        """
        known = self.get(key)
        if known is not None:
            self.move_to_end(key)
            return known
        if len(key) > MOST_BYTES:
            return None
        try:
            ids = self._encode(key)
        except TokenizerError:
            return None
        mark = hash(key)
        place = mark % SEEN
        if self._seen[place] != mark:  # new, or another prompt has taken its place since
            self._seen[place] = mark
        elif ids is not None:
            self[key] = ids
            self.size_bytes += _held_bytes(key, ids)
            while self.size_bytes > self.limit_bytes:
                self.size_bytes -= _held_bytes(*self.popitem(last=False))
        return ids


def _held_bytes(key: bytes, ids: list[int]) -> int:
    return ENTRY_BYTES + len(key) + ID_BYTES * len(ids)


def known_texts(tokenizer: Tokenizer) -> KnownPrompts:
    return KnownPrompts(lambda key: tokenizer.encode(key.decode(), True))


class _TextMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


def known_chats(tokenizer: Tokenizer) -> KnownPrompts:
    """Returns known prompts whose keys are JSON arrays of messages; only messages of text are
    supported.
    """
    decode = msgspec.json.Decoder(list[_TextMessage]).decode

    def encode(key: bytes) -> list[int] | None:
        if tokenizer.tells_time:
            return None
        try:
            messages = decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return tokenizer.encode_chat(msgspec.to_builtins(messages), PLAIN_CHAT)

    return KnownPrompts(encode)
