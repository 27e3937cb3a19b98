"""Token ids of the beginnings of texts, so that a long prompt is not tokenized again for its last words.

A text is cut into chunks of bytes; a chunk's key is XXH64 over the key before it and its bytes, so it stands
for everything up to its end (kv-cache specification, 1.3).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from cachetools import LRUCache
from msgspec import Struct
from xxhash import xxh64_intdigest

CHUNK_BYTES = 256
MOST_CHUNKS = 100_000
"""About 70 MB."""


class Known(Struct):
    """The tokens that end in the first `end` bytes of a text; `ends` are where, for the last of them."""

    tokens: list[int]
    ends: list[int]
    end: int


class PrefixStore:
    """At most `most_chunks` chunks, those used last. Threads that share it have to take turns."""

    def __init__(self, most_chunks: int = MOST_CHUNKS, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.chunk_bytes = chunk_bytes
        self._chunks: LRUCache[int, tuple[array[int], array[int]]] = LRUCache(most_chunks)

    def __len__(self) -> int:
        """Chunks that are kept."""
        return len(self._chunks)

    def keys(self, root: int, text: bytes) -> list[int]:
        """The keys of a text's full chunks; `root` tells apart texts for different tokenizers."""
        keys, key, size = [], root, self.chunk_bytes
        for start in range(0, len(text) - size + 1, size):
            key = xxh64_intdigest(key.to_bytes(8, "little") + text[start : start + size])
            keys.append(key)
        return keys

    def insert(self, root: int, text: bytes, tokens: Sequence[int], ends: Sequence[int]) -> None:
        """Keep the tokens of a text's full chunks; `ends` are where each ends in `text`, ascending.

        A token belongs to the chunk in which it ends.
        """
        first, size = 0, self.chunk_bytes
        for number, key in enumerate(self.keys(root, text)):
            start, last = number * size, first
            while last < len(ends) and ends[last] <= start + size:
                last += 1
            self._chunks[key] = (
                array("I", tokens[first:last]),
                array("I", [end - start for end in ends[first:last]]),
            )
            first = last

    def lookup(self, root: int, text: bytes, most_ends: int = 1) -> Known:
        """The tokens of the chunks from the start of a text on that are known.

        `ends` has an entry for at least the last `most_ends` of them, if there are as many.
        """
        found = []
        for key in self.keys(root, text):
            chunk = self._chunks.get(key)
            if chunk is None:
                break
            found.append(chunk)
        known = Known([], [], len(found) * self.chunk_bytes)
        for tokens, _ in found:
            known.tokens.extend(tokens)
        for number in range(len(found) - 1, -1, -1):
            start = number * self.chunk_bytes
            known.ends = [start + end for end in found[number][1]] + known.ends
            if len(known.ends) >= most_ends:
                break
        return known
