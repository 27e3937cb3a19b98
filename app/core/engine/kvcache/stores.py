"""Stores of vLLM's KV connectors: prompt blocks that an engine loads instead of computing."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from hashlib import blake2b

from app.core.base.caches import Memo
from app.core.engine.kvcache.hashing import Prompt

LIMIT_BYTES = 32 << 20
"""Default memory of a store, in bytes."""
DIGEST_BYTES = 16


class ConnectorStore:
    """vLLM's OffloadingConnector: keeps the keys of prompt blocks by hash, also of evicted ones."""

    tier = "host"
    """Name of the store in metrics."""

    def __init__(self, block_size: int, limit_bytes: int = LIMIT_BYTES) -> None:
        self.block_size = block_size
        self.memo: Memo[bytes, bool] = Memo(limit_bytes)

    def find(self, prompt: Prompt, cached: int) -> int:
        """Returns the number of stored prompt tokens after the first `cached` ones.

        The last token of a prompt is never loaded.
        """
        first = cached // self.block_size
        last = (len(prompt.token_ids) - 1) // self.block_size
        return self.count((prompt.hashes or ())[first:last]) * self.block_size

    def count(self, keys: Iterable[bytes]) -> int:
        """Returns the number of stored keys before the first one that is missing."""
        number = 0
        for key in keys:
            if self.memo.get(key) is None:
                break
            number += 1
        return number

    def keep(self, prompt: Prompt) -> None:
        """Stores the blocks of a prompt."""
        self.receive(prompt.hashes or ())

    def receive(self, keys: Iterable[bytes]) -> None:
        """Stores keys."""
        for key in keys:
            if self.memo.get(key) is None:
                self.memo.put(key, True, len(key))


class PromptStore(ConnectorStore):
    """vLLM's ExampleConnector: finds prompts whose whole blocks equal those of an earlier one."""

    tier = "external_unspecified"

    def _key(self, prompt: Prompt, tokens: int) -> tuple[int, bytes]:
        """Returns the tokens in whole blocks, without the last token, and their digest."""
        tokens = max(0, (tokens - 1) // self.block_size * self.block_size)
        packed = array("q", prompt.token_ids[:tokens]).tobytes()
        return tokens, blake2b(packed, digest_size=DIGEST_BYTES).digest()

    def find(self, prompt: Prompt, cached: int) -> int:
        """See `ConnectorStore`. The block of the last two tokens is never looked up, as in vLLM."""
        tokens, key = self._key(prompt, len(prompt.token_ids) - 1)
        if tokens <= cached or self.memo.get(key) is None:
            return 0
        return tokens - cached

    def keep(self, prompt: Prompt) -> None:
        """Stores the whole blocks of a prompt."""
        _, key = self._key(prompt, len(prompt.token_ids))
        self.receive([key])


def store_of(connector: str, block_size: int) -> ConnectorStore | None:
    """Returns the store of the connector that the setting `kv-connector` names, if it has one."""
    if connector == "example":
        return PromptStore(block_size)
    if connector in ("offloading", "p2p"):
        return ConnectorStore(block_size)
    if connector in ("nixl", "nixl-push", "mooncake", "moriio"):
        return ConnectorStore(block_size, limit_bytes=0)
    return None
