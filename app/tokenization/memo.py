"""Prompts by the bytes that they came in: known ones at once, short new ones tokenized on the spot.

Whoever may not wait (the fast path) asks here. A text of `MOST_BYTES` takes less than a millisecond.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

import msgspec
from gevent import monkey
from msgspec import Struct

from app.tokenization.base import PLAIN_CHAT, Tokenizer, TokenizerError

LIMIT_BYTES = 8 << 20
MOST_BYTES = 2048
ENTRY_BYTES = 300
"""Memory of an entry beside its bytes and its ids, measured."""
ID_BYTES = 40
"""Memory of a token id and its place in a list; that of small ones is shared."""
LARGEST_SHARE = 8
"""An entry that takes a larger part of the memo than one in so many is not kept."""
SEEN = 1 << 13
"""Prompts of which is known that they came once, by their hashes: 64 KB."""

Ids = TypeVar("Ids", bound=Sequence[int])


class PromptMemo(Generic[Ids]):
    """Token ids by raw bytes: what was not used for longest goes when `limit_bytes` of memory are full.

    They are lists, or arrays, of which an id takes `id_bytes`. They are shared: whoever puts or gets one does
    not change it. For threads and greenlets.
    """

    def __init__(self, limit_bytes: int, id_bytes: int = ID_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._id_bytes = id_bytes
        self.size_bytes = 0
        """Memory that the entries hold."""
        self._entries: OrderedDict[bytes, Ids] = OrderedDict()
        # A lock of gevent costs as much as all else here; this one is held for a microsecond.
        self._lock = monkey.get_original("threading", "Lock")()

    def get(self, raw: bytes) -> Ids | None:
        """The ids that were put for these bytes; None when they are not here (any more)."""
        ids = self._entries.get(raw)
        if ids is None:
            return None
        try:
            self._entries.move_to_end(raw)
        except KeyError:  # another thread has dropped it meanwhile
            return None
        return ids

    def put(self, raw: bytes, ids: Ids) -> None:
        """Keep `ids` for `raw`, unless they are too large."""
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
    """The token ids of prompts of one kind, remembered in `memo` from the second time on.

    Most prompts never come again: remembering each, and forgetting another one for it whose memory has long
    left the processor's caches, takes more time than half of its tokens.
    """

    def __init__(self, tokenizer: Tokenizer, limit_bytes: int = LIMIT_BYTES) -> None:
        self.memo: PromptMemo[list[int]] = PromptMemo(limit_bytes)
        self._get = self.memo.get
        self._tokenizer = tokenizer
        self._seen = array("q", bytes(8 * SEEN))
        """The hash of the last prompt that came, for each remainder."""

    def ids(self, key: bytes) -> list[int] | None:
        """The token ids of a prompt, which nobody may change; None when it is long, or not as expected."""
        known = self._get(key)
        if known is not None or len(key) > MOST_BYTES:
            return known
        try:
            ids = self.encode(key)
        except TokenizerError:
            return None
        if ids is not None and self._comes_again(key):
            self.memo.put(key, ids)
        return ids

    def _comes_again(self, key: bytes) -> bool:
        """True when the prompt came before, and not too many others since."""
        mark = hash(key)
        place = mark % SEEN
        if self._seen[place] == mark:
            return True
        self._seen[place] = mark
        return False

    def encode(self, key: bytes) -> list[int] | None:
        """The token ids of a new prompt."""
        raise NotImplementedError


class KnownTexts(KnownPrompts):
    """Keys are texts."""

    def encode(self, key: bytes) -> list[int] | None:
        return self._tokenizer.encode(key.decode(), True)


class _TextMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


_MESSAGES = msgspec.json.Decoder(list[_TextMessage])


class KnownChats(KnownPrompts):
    """Keys are JSON arrays of messages; only those are encoded whose messages are texts."""

    def encode(self, key: bytes) -> list[int] | None:
        if self._tokenizer.tells_time:
            return None
        try:
            messages = _MESSAGES.decode(key)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        # As `Tokenizer.encode_chat`, which would remember it once more.
        text = self._tokenizer.render_chat(msgspec.to_builtins(messages), PLAIN_CHAT)
        return self._tokenizer.encode(text, PLAIN_CHAT.add_special_tokens)
