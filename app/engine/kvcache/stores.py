"""Block stores of KV connectors, which still hold blocks that the cache has evicted.

Stores keep the keys of blocks, not their bytes.
"""

from __future__ import annotations

from array import array
from hashlib import blake2b
from typing import Protocol

from app.engine.kvcache.memo import Memo
from app.engine.kvcache.prompt import Prompt

LIMIT_BYTES = 32 << 20
DIGEST_BYTES = 16


class ConnectorStore(Protocol):
    """A connector's block store."""

    tier: str
    """Name of the store in metrics."""
    memo: Memo[bytes, bool]
    """Keys of the stored blocks."""

    def find(self, prompt: Prompt, cached: int) -> int:
        """Returns the number of stored prompt tokens after the first `cached` ones."""

    def keep(self, prompt: Prompt) -> None:
        """Stores the blocks of a computed prompt."""


class PromptStore:
    """vLLM's ExampleConnector: finds a prompt only if its whole blocks equal those of an earlier prompt.

    Neither salt nor adapter makes a difference.
    """

    tier = "external_unspecified"

    def __init__(self, block_size: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self._block_size = block_size
        self.memo: Memo[bytes, bool] = Memo(limit_bytes)

    def _aligned(self, tokens: int) -> int:
        return max(0, (tokens - 1) // self._block_size * self._block_size)

    def _key(self, prompt: Prompt, tokens: int) -> bytes:
        return blake2b(array("q", prompt.token_ids[:tokens]).tobytes(), digest_size=DIGEST_BYTES).digest()

    def find(self, prompt: Prompt, cached: int) -> int:
        """See `ConnectorStore`. The block of the last two tokens is never looked up, as in vLLM."""
        tokens = self._aligned(len(prompt.token_ids) - 1)
        if tokens <= cached or self.memo.get(self._key(prompt, tokens)) is None:
            return 0
        return tokens - cached

    def keep(self, prompt: Prompt) -> None:
        key = self._key(prompt, self._aligned(len(prompt.token_ids)))
        if self.memo.get(key) is None:
            self.memo.put(key, True, DIGEST_BYTES)


class BlockStore:
    """vLLM's OffloadingConnector: stores each prompt block in host memory by its hash."""

    tier = "host"

    def __init__(self, block_size: int, limit_bytes: int = LIMIT_BYTES) -> None:
        """With `limit_bytes` 0 the store keeps nothing: every lookup finds no block."""
        self._block_size = block_size
        self.memo: Memo[bytes, bool] = Memo(limit_bytes)

    def find(self, prompt: Prompt, cached: int) -> int:
        """See `ConnectorStore`. The last token must be computed."""
        first, last = cached // self._block_size, (len(prompt.token_ids) - 1) // self._block_size
        found = 0
        for key in (prompt.hashes or ())[first:last]:
            if self.memo.get(key) is None:
                break
            found += self._block_size
        return found

    def keep(self, prompt: Prompt) -> None:
        for key in prompt.hashes or ():
            if self.memo.get(key) is None:
                self.memo.put(key, True, len(key))


def store_of(connector: str, block_size: int) -> ConnectorStore | None:
    """Returns the block store of the connector with this name; None for a connector without lookups."""
    if connector == "example":
        return PromptStore(block_size)
    if connector in ("nixl", "offloading"):
        return BlockStore(block_size, LIMIT_BYTES if connector == "offloading" else 0)
    return None
