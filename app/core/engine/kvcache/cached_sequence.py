"""The state of a sequence that the KV cache reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.core.engine.kvcache.block_pool import Block
    from app.core.engine.kvcache.hashing import Prompt


class CachedSequence:
    """One sequence, as the KV cache knows it."""

    __slots__ = (
        "blocks",
        "cached_blocks",
        "cached_tokens",
        "caches",
        "computed",
        "created_tokens",
        "fetched_tokens",
        "hits",
        "last_hash",
        "load_s",
        "loaded",
        "preemptions",
        "prompt",
        "prompt_tokens",
        "remote",
        "reply_tokens",
    )

    prompt: Prompt
    """Set where a cache is used; after a preemption with the reply tokens so far."""

    def __init__(self, prompt_tokens: int, remote: bool = False) -> None:
        """With `remote` the prefill runs on another engine, which sends its cache."""
        self.prompt_tokens = prompt_tokens
        self.remote = remote
        self.computed = 0
        """Tokens whose KV is computed or scheduled.

        Outdated for a decode that advances in bulk: see `SequenceState.lead`.
        """
        self.preemptions = 0
        self.hits: list[Block] = []
        """Cached blocks found for the prompt, until they are assigned to the sequence."""
        self.loaded = 0
        """Tokens after the blocks in `hits` that a connector's store loads."""
        self.load_s = 0.0
        """Duration of the load, in seconds, from the first admission on."""
        self.blocks: list[Block] = []
        self.cached_blocks = 0
        """Number of leading blocks that are cached or were found in the cache."""
        self.last_hash = b""
        """Hash of the last of the `cached_blocks`."""
        self.caches = False
        """True while full blocks of the sequence are cached."""
        self.reply_tokens = 0
        """Reply tokens whose steps are over. The newest is not computed and has no place yet."""
        self.cached_tokens = 0
        """Prompt tokens found in the cache at the first admission."""
        self.fetched_tokens = 0
        """Prompt tokens fetched from another engine or from a connector's store."""
        self.created_tokens = 0
        """Prompt tokens that this sequence added to the cache."""

    def reply_ids(self, start: int, stop: int) -> Sequence[int]:
        """Returns the ids of reply tokens `start` to `stop` (exclusive)."""
        raise NotImplementedError

    def block_numbers(self, first: int = 0) -> list[int]:
        """Returns the numbers of the sequence's blocks, from position `first` on."""
        return [block.number for block in self.blocks[first:]]
