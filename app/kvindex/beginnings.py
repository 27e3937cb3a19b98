"""Request keys of prompts that begin as others did: what was hashed before is looked up, a part at a time.

Prompts of one conversation, and those behind one system prompt, have most of their tokens in common, and it
is them that an index is asked for. To compare a part costs a tenth of hashing its blocks one by one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from app.clock.pause import pause
from app.kvcache.memo import Memo
from app.kvindex.keys import TOKEN_BYTES, RequestKeys, packed_ids

PART_BLOCKS = 64
LIMIT_BYTES = 32 << 20
NUMBER_BYTES = 44
"""A key, and its place in a list."""
PART_BYTES = 350
"""What a part takes besides its tokens and keys."""


class Part(Struct, frozen=True, gc=False):
    """Some blocks in a row: the key before them, their tokens, and their keys."""

    parent: int
    tokens: bytes
    keys: list[int]


class Beginnings:
    """The keys of blocks without features; the parts of prompts that were used last are remembered."""

    def __init__(self, request_keys: RequestKeys, limit_bytes: int = LIMIT_BYTES) -> None:
        self.parts: Memo[int, Part] = Memo(limit_bytes)
        """By a hash of tokens and parent, which two parts may have in common."""
        self._request_keys = request_keys
        self._part = PART_BLOCKS * request_keys.block_size * TOKEN_BYTES

    def keys(self, parent: int, tokens: Sequence[int]) -> list[int]:
        """As `RequestKeys.keys`, with pauses in which others have their turn."""
        ids = packed_ids(tokens)
        data = ids.tobytes()
        keys = self._known(parent, data)
        known, most = len(keys), self._request_keys.slice_blocks
        if known:
            parent = keys[-1]
        size = self._request_keys.block_size
        for start in range(known, len(ids) // size, most):
            if start > known:
                pause()
            keys += self._request_keys.keys(
                keys[-1] if keys else parent, ids[start * size : (start + most) * size]
            )
        self._remember(parent, data, keys, known)
        return keys

    def _known(self, parent: int, data: bytes) -> list[int]:
        """The keys of the parts that the prompt begins with, as far as they are remembered."""
        keys: list[int] = []
        get, width = self.parts.get, self._part
        for start in range(0, len(data) - width + 1, width):
            tokens = data[start : start + width]
            part = get(xxh3_64_intdigest(tokens, parent))
            if part is None or part.tokens != tokens or part.parent != parent:
                break
            keys += part.keys
            parent = keys[-1]
        return keys

    def _remember(self, parent: int, data: bytes, keys: list[int], known: int) -> None:
        """The whole parts behind `known` blocks and their key `parent`."""
        width = self._part
        size = width + NUMBER_BYTES * PART_BLOCKS + PART_BYTES
        for first in range(known, len(keys) - PART_BLOCKS + 1, PART_BLOCKS):
            start = first // PART_BLOCKS * width
            tokens = data[start : start + width]
            own = keys[first : first + PART_BLOCKS]
            self.parts.put(xxh3_64_intdigest(tokens, parent), Part(parent, tokens, own), size)
            parent = own[-1]
