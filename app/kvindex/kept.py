"""Which chunks of text are kept with their tokens, and which were seen at all."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from app.kvindex.chunks import Chunk

LEAST_COST = 32
"""Tokens that a chunk counts for at least: its text takes place too."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A chunk and its place: behind the chunk with the serial number `parent`, or at the start of a chain."""

    serial: int
    parent: int
    chunk: Chunk


class KeptChunks:
    """Chunks under their keys; those go first that were not used for longest.

    cachetools would do, at three times the cost of a hit: a text has a hundred chunks.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._chunks: OrderedDict[int, Kept] = OrderedDict()
        self.get = self._chunks.get
        self.tokens = 0
        """What the chunks count for."""

    def use(self, keys: Sequence[int], chunks: Sequence[Kept]) -> None:
        """Keep the chunks of a text, also those here already. Its end will go before its beginning."""
        for key, kept in zip(reversed(keys), reversed(chunks), strict=True):
            known = self._chunks.get(key)
            if known is kept:
                self._chunks.move_to_end(key)
            else:
                self._put(key, kept)
        while self.tokens > self._max_tokens:
            self.tokens -= _cost(self._chunks.popitem(last=False)[1])

    def _put(self, key: int, kept: Kept) -> None:
        replaced = self._chunks.pop(key, None)
        self._chunks[key] = kept
        self.tokens += _cost(kept) - (_cost(replaced) if replaced else 0)


def _cost(kept: Kept) -> int:
    return max(LEAST_COST, len(kept.chunk.ids))


class Sightings:
    """Keys of chunks that were asked for of late: at least the last `keys` ones, at most twice as many."""

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def add(self, keys: Iterable[int]) -> None:
        self._young.update(keys)
        if len(self._young) >= self._keys:
            self._old, self._young = self._young, set()
