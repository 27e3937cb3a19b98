"""Request keys: what the blocks of a prompt are called, whichever pod has them.

Generations A to E are those of llm-d (kv-cache specification, section 1.5). E is the fast one: a keyed chain
of XXH64 costs about as much as a dictionary lookup, so nothing of it is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from app.kvcache.hashing import all_low64
from app.kvcache.memo import Memo
from app.kvindex.generations import GenerationName, KeyChain, RawBlocks, packed_ids, raw_root

Features: TypeAlias = tuple[str, ...] | None
"""What tells apart blocks of equal tokens: identifiers of images, a salt. In the order of the prompt."""

DEFAULT_GENERATION: GenerationName = "E"
_LINKS, _ROOTS = 1 << 18, 1 << 10


class RequestKeys(Protocol):
    """Keys of 64 bits, none of them 0 in practice."""

    block_size: int
    """Tokens of a block."""

    def root(self, model: str) -> int:
        """What comes before the first block of a prompt for a model, or an adapter."""

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        """A key for every full block. ValueError for a token id below 0 or of more than 32 bits.

        `features` has an entry for every full block, or is None where no block has any.
        KeyError when `parent` was never given as a key, or too long ago to continue (generation B only).
        """


def request_keys(generation: GenerationName, block_size: int, seed: str = "") -> RequestKeys:
    """The keys of a generation. ValueError for an unknown one, or a block without tokens."""
    if block_size < 1:
        raise ValueError(f"a block has at least one token, not {block_size}")
    return FastKeys(block_size, seed) if generation == "E" else LinkedKeys(generation, block_size, seed)


class FastKeys(RawBlocks):
    """Generation E, in one pass over the packed tokens."""

    def __init__(self, block_size: int, seed: str = "") -> None:
        super().__init__(block_size)
        self.block_size = block_size
        self._seed = seed
        self._roots: Memo[str, int] = Memo(_ROOTS)

    def root(self, model: str) -> int:
        root = self._roots.get(model)
        if root is None:
            root = raw_root(self._seed, model)
            self._roots.put([model], [root])
        return root


class LinkedKeys:
    """Generations A to D. Where a key is only part of a link (B), the latest links are remembered."""

    def __init__(self, generation: GenerationName, block_size: int, seed: str = "") -> None:
        self.block_size = block_size
        self._chain = KeyChain(generation, block_size, seed)
        self._links: Memo[int, bytes] | None = Memo(_LINKS) if generation == "B" else None

    def root(self, model: str) -> int:
        return self._keys([self._chain.root(model)])[0]

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        packed_ids(tokens)  # refuses what no generation can express
        return self._keys(self._chain.links(self._link(parent), tokens, features))

    def _keys(self, links: list[bytes]) -> list[int]:
        keys = all_low64(links)
        if self._links is not None:
            self._links.put(keys, links)
        return keys

    def _link(self, key: int) -> bytes:
        if self._links is None:
            return key.to_bytes(8, "big")
        link = self._links.get(key)
        if link is None:
            raise KeyError(key)
        return link
