"""A prompt as the KV cache sees it: token ids and the hashes of its full blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.kvcache.chain import Part
from app.kvcache.extra_keys import Adapter, ExtraKeys
from app.kvcache.hashing import BlockHasher


class Prompt:
    """Token ids whose blocks are hashed once, in parts where the caller wants to share its thread."""

    def __init__(
        self,
        token_ids: Sequence[int],
        hasher: BlockHasher | None,
        keys: ExtraKeys,
        adapter: Adapter | None = None,
    ) -> None:
        """Without a `hasher` the prompt has no hashes: nothing of it is cached or found."""
        self.token_ids = token_ids
        self.keys = keys
        self.adapter = adapter
        self.cached = hasher is not None
        self._hashes: list[bytes] = []
        self._parts = iter(()) if hasher is None else self._chain(hasher)

    def hashing(self) -> Iterator[None]:
        """Hash what is not hashed yet, a part before each item: pause there if others wait."""
        for part in self._parts:
            self._hashes += part
            yield

    @property
    def hashes(self) -> list[bytes]:
        """The hash of every full block."""
        for _ in self.hashing():
            pass
        return self._hashes

    def _chain(self, hasher: BlockHasher) -> Iterator[Part]:
        count = len(self.token_ids) // hasher.chain.block_size
        extras = self.keys.hashed(0, count)
        return hasher.chain.parts(hasher.none_hash, self.token_ids, extras)
