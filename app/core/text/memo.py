"""Token ids of prompts by their raw bytes, for the fast path, which must not wait.

Known prompts are looked up, short new ones tokenized at once: `MAX_PROMPT_BYTES` take less than a
millisecond.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from app.core.text.base import PLAIN_CHAT, Tokenizer, TokenizerError

K = TypeVar("K")
V = TypeVar("V")
LIMIT_BYTES = 8 << 20
MAX_PROMPT_BYTES = 2048
ENTRY_BYTES = 300
"""Memory of an entry beside its bytes and ids; measured."""
ID_BYTES = 40
"""Memory of a token id and its place in a list, an upper bound: small ids are shared."""
HASH_COUNT = 1 << 13
"""Number of hashes of keys seen once: 64 KB."""


class LimitedDict(dict[K, V]):
    """A dictionary that is cleared when its entries exceed a limit of memory.

    Looking a key up costs no call of a Python function. Frequent entries are soon added again.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.full_limit_bytes = limit_bytes
        self.limit_bytes = limit_bytes
        self.size_bytes = 0

    def clear(self) -> None:
        """Removes all entries."""
        super().clear()
        self.size_bytes = 0

    def add(self, key: K, value: V, entry_bytes: int) -> None:
        """Adds an entry, unless it alone exceeds the limit."""
        if self.size_bytes + entry_bytes > self.limit_bytes:
            self.clear()
        if entry_bytes <= self.limit_bytes:
            self[key] = value
            self.size_bytes += entry_bytes


class RecentKeys:
    """Recognizes the latest keys by their hashes, in constant memory."""

    def __init__(self) -> None:
        self._hashes = array("q", bytes(8 * HASH_COUNT))
        """Hash of the latest key, by the hash's remainder."""

    def has(self, key: str | bytes) -> bool:
        """Returns whether `key` has been seen, from then on True.

        Returns False for a key whose place another key has taken since.
        """
        key_hash = hash(key)
        place = key_hash % HASH_COUNT
        if self._hashes[place] == key_hash:
            return True
        self._hashes[place] = key_hash
        return False


class PromptMemo(OrderedDict[bytes, list[int]]):
    """Token ids of prompts of one kind, remembered from their second use.

    The memory is limited to `limit_bytes`; the least recently used prompt goes first. Most prompts
    are never repeated: keeping each would evict an entry outside the processor's caches, which
    takes more time than half of the tokenization. For one loop, and not for threads.
    """

    def __init__(
        self, encode: Callable[[bytes], list[int] | None], limit_bytes: int = LIMIT_BYTES
    ) -> None:
        """Creates an empty memo.

        `encode` returns the token ids of a new prompt; None for a prompt that is not supported.
        """
        super().__init__()
        self.full_limit_bytes = limit_bytes
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._encode = encode
        self._seen = RecentKeys()

    def ids(self, key: bytes) -> list[int] | None:
        """Returns the token ids of a prompt, read-only.

        Returns None for a prompt that is long or not supported.
        """
        known_ids = self.get(key)
        if known_ids is not None:
            self.move_to_end(key)
            return known_ids
        if len(key) > MAX_PROMPT_BYTES:
            return None
        try:
            ids = self._encode(key)
        except TokenizerError:
            return None
        if self._seen.has(key) and ids is not None:
            self[key] = ids
            self.size_bytes += _entry_bytes(key, ids)
            while self.size_bytes > self.limit_bytes:
                self.size_bytes -= _entry_bytes(*self.popitem(last=False))
        return ids


def _entry_bytes(key: bytes, ids: list[int]) -> int:
    return ENTRY_BYTES + len(key) + ID_BYTES * len(ids)


def text_memo(tokenizer: Tokenizer) -> PromptMemo:
    """Returns a memo whose keys are texts in UTF-8."""
    return PromptMemo(lambda key: tokenizer.encode(key.decode(), True))


class TextMessage(Struct, forbid_unknown_fields=True):
    """A message of a plain chat."""

    role: Literal["system", "user", "assistant"]
    content: str


def chat_memo(tokenizer: Tokenizer) -> PromptMemo:
    """Returns a memo whose keys are JSON arrays of messages, which have only text."""
    decode = msgspec.json.Decoder(list[TextMessage]).decode

    def encode(key: bytes) -> list[int] | None:
        if tokenizer.is_time_dependent:
            return None
        try:
            messages = decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        return tokenizer.encode_chat(msgspec.to_builtins(messages), PLAIN_CHAT)

    return PromptMemo(encode)
