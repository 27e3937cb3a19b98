"""Token ids of prompts by their raw bytes, for the fast path, which must not wait.

Known prompts are looked up, short new ones tokenized at once: `MOST_BYTES` take less than a millisecond.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec
from gevent import monkey
from msgspec import Struct

from app.text.base import PLAIN_CHAT, Tokenizer, TokenizerError

LIMIT_BYTES = 8 << 20
MOST_BYTES = 2048
ENTRY_BYTES = 300
"""Memory of an entry beside its bytes and ids; measured."""
ID_BYTES = 40
"""Memory of a token id and its place in a list, an upper bound: small ids are shared."""
LARGEST_SHARE = 8
"""Entries larger than one in so many of the memo's memory are not kept."""
SEEN = 1 << 13
"""Places for hashes of prompts seen once: 64 KB."""

Ids = TypeVar("Ids", bound=Sequence[int])


class PromptMemo(Generic[Ids]):
    """LRU cache of token ids by raw bytes, within `limit_bytes` of memory.

    Values are lists or arrays, with `id_bytes` per id. Callers must not change them, as all share them.
    Safe for threads and greenlets.
    """

    def __init__(self, limit_bytes: int, id_bytes: int = ID_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._id_bytes = id_bytes
        self.size_bytes = 0
        """Estimated memory of the entries."""
        self._entries: OrderedDict[bytes, Ids] = OrderedDict()
        # A native lock, held for a microsecond: a gevent lock costs as much as all the rest.
        self._lock = monkey.get_original("threading", "Lock")()

    def get(self, raw: bytes) -> Ids | None:
        """Returns the ids kept for these bytes; None if unknown or dropped."""
        ids = self._entries.get(raw)
        if ids is None:
            return None
        try:
            self._entries.move_to_end(raw)
        except KeyError:  # another thread has dropped the entry meanwhile
            return None
        return ids

    def put(self, raw: bytes, ids: Ids) -> None:
        added = self._held_bytes(raw, ids)
        if added > self.limit_bytes // LARGEST_SHARE:
            return
        with self._lock:
            known = self._entries.pop(raw, None)
            if known is not None:
                self.size_bytes -= self._held_bytes(raw, known)
            self._entries[raw] = ids
            self.size_bytes += added
            while self.size_bytes > self.limit_bytes:
                self.size_bytes -= self._held_bytes(*self._entries.popitem(last=False))

    def _held_bytes(self, raw: bytes, ids: Ids) -> int:
        return ENTRY_BYTES + len(raw) + self._id_bytes * len(ids)


class KnownPrompts:
    """Token ids of prompts of one kind, remembered in `memo` from their second use.

    Most prompts are never repeated. Keeping each would evict an entry outside the processor's caches, which
    takes more time than half of the tokenization.
    """

    def __init__(self, tokenizer: Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.memo: PromptMemo[list[int]] = PromptMemo(limit_bytes)
        self._get = self.memo.get
        self._tokenizer = tokenizer
        self._seen = array("q", bytes(8 * SEEN))
        """Hash of the latest prompt, by the hash's remainder."""

    def ids(self, key: bytes) -> list[int] | None:
        """Returns the token ids of a prompt, read-only; None for a prompt that is long or not supported."""
        known = self._get(key)
        if known is not None or len(key) > MOST_BYTES:
            return known
        try:
            ids = self.encode(key)
        except TokenizerError:
            return None
        mark = hash(key)
        place = mark % SEEN
        if self._seen[place] != mark:  # new, or another prompt has taken its place since
            self._seen[place] = mark
        elif ids is not None:
            self.memo.put(key, ids)
        return ids

    def encode(self, key: bytes) -> list[int] | None:
        """Returns the token ids of a new prompt; None for a prompt that is not supported."""
        raise NotImplementedError


class KnownTexts(KnownPrompts):
    def encode(self, key: bytes) -> list[int] | None:
        return self._tokenizer.encode(key.decode(), True)


class _TextMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


_MESSAGES = msgspec.json.Decoder(list[_TextMessage])


class KnownChats(KnownPrompts):
    """Known prompts whose keys are JSON arrays of messages; only messages of text are supported."""

    def encode(self, key: bytes) -> list[int] | None:
        if self._tokenizer.tells_time:
            return None
        try:
            messages = _MESSAGES.decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # As in `Tokenizer.encode_chat`, which would remember the prompt a second time.
        text = self._tokenizer.render_chat(msgspec.to_builtins(messages), PLAIN_CHAT)
        return self._tokenizer.encode(text, PLAIN_CHAT.add_special_tokens)
