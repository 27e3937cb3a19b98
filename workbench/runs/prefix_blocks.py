"""Requests of an offline run, and the block pool that caches prefixes between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from workbench.engine.steps import BlockPool, SchedulingPolicy, SequenceState


class OfflineRequest(SequenceState):
    """A request with its times in seconds, and the prefix that it shares with other prompts."""

    __slots__ = (
        "adapter",
        "arrival_s",
        "first_s",
        "images",
        "keys",
        "last_s",
        "node_tokens",
        "number",
        "path",
        "paused_s",
        "pauses",
        "prefix_tokens",
        "recoverable_blocks",
        "send_s",
        "session",
    )

    def __init__(
        self, arrival_s: float, prompt_tokens: int, output_tokens: int, number: int = 0
    ) -> None:
        super().__init__(prompt_tokens, output_tokens)
        self.number = number
        self.adapter: str | None = None
        self.images: Sequence[int] = ()
        """Tokens of each image of the prompt."""
        self.arrival_s = arrival_s
        """Time planned by the load."""
        self.send_s = arrival_s
        """Time of sending, which is later while the client has no free place."""
        self.first_s = -1.0
        self.last_s = -1.0
        self.paused_s = -1.0
        """Time of the last token before the latest preemption."""
        self.pauses: list[OfflineRequest] | None = None
        """Receives the request when it is preempted."""
        self.path: Sequence[int] = ()
        """Nodes of the prefix tree, from the root. Each node has the next `node_tokens` tokens of
        the prompt.
        """
        self.node_tokens = 0
        self.prefix_tokens = 0
        self.session = -1
        """Conversation whose beginning this prompt is, after `prefix_tokens`; its answer continues
        the conversation.
        """
        self.keys: list[bytes] | None = None
        """Keys of the blocks that may be cached; made while the request waits, dropped with its
        blocks.
        """
        self.recoverable_blocks = 0
        """Unshared blocks that the request may find in the cache after a preemption."""

    def preempted(self) -> None:
        """Reports the preemption to the pod, which knows the time of the last token."""
        if self.pauses is not None:
            self.pauses.append(self)


class PrefixBlocks:
    """A block pool with prefix caching between requests.

    `num_blocks` includes vLLM's null block. Without shared prompts the results equal those of
    `CountedBlocks`, as a property test shows. A whole block of a shared prefix can be found once
    the step that computes the block is scheduled.

    A load has numbers of tokens, but no tokens. Keys therefore take the place of vLLM's hashes: a
    key has the prefix, the conversation or the request, and the number of the block.
    """

    policies: Sequence[SchedulingPolicy[Any]] = ()

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, on_evict=lambda hashes: None)
        self.num_blocks = num_blocks
        self.capacity = self.pool.capacity
        self.hits = 0
        """Blocks found at the first admission of requests."""

    @property
    def free(self) -> int:
        """Number of free blocks."""
        return self.pool.free

    def find(self, sequence: OfflineRequest, tokens: int) -> int:
        """Returns the number of cached blocks before the last of the first `tokens` tokens."""
        whole_blocks = (tokens - 1) // self.block_size
        if sequence.keys is None:
            keys = shared_keys(sequence, self.block_size, tokens)
            sequence.keys = keys
            keys += request_keys(sequence, range(len(keys), sequence.recoverable_blocks))
        sequence.hits = self.pool.longest_prefix(sequence.keys[:whole_blocks])
        return len(sequence.hits)

    def fits(self, sequence: OfflineRequest, tokens: int, cached: int, spare: int = 0) -> bool:
        """Returns whether the blocks of `tokens` tokens fit now, besides `spare` free ones."""
        used_hits = sum(block.references > 0 for block in sequence.hits)
        return -(-tokens // self.block_size) - used_hits + spare <= self.free

    def begin(self, sequence: OfflineRequest, cached: int, count: int) -> None:
        """Assigns the `cached` blocks that `find` found, and `count` new ones."""
        blocks = sequence.hits
        sequence.hits = []
        sequence.recoverable_blocks = 0
        if not sequence.preemptions:
            self.hits += cached
            sequence.cached_tokens = cached * self.block_size
        self.pool.use(blocks)
        sequence.blocks = blocks
        self.grow(sequence, count)

    def lacks(self, sequence: OfflineRequest, tokens: int) -> bool:
        """Returns whether too few blocks are free for the first `tokens` tokens."""
        return -(-tokens // self.block_size) - sequence.held > self.free

    def grow(self, sequence: OfflineRequest, count: int) -> None:
        """Assigns `count` more blocks."""
        sequence.blocks += self.pool.take(count)

    def filled(self, sequence: OfflineRequest) -> None:
        """Caches the whole blocks of the shared prefix that are computed."""
        whole_blocks = min(sequence.computed, sequence.prefix_tokens) // self.block_size
        keys = sequence.keys or ()
        for block, key in zip(sequence.blocks[:whole_blocks], keys, strict=False):
            if block.hash is None:
                self.pool.cache(block, key)

    def release(self, sequence: OfflineRequest, held: int, findable: int = 0) -> None:
        """Frees the blocks; a preempted sequence may find the first `findable` ones again."""
        blocks = sequence.blocks
        keys = sequence.keys or []
        sequence.blocks = []
        sequence.keys = None
        sequence.recoverable_blocks = findable
        whole_blocks = findable
        if sequence.last:  # the last token of the answer is not computed
            computed = sequence.prompt_tokens + sequence.output_tokens - 1
            whole_blocks = computed // self.block_size
        keys = keys[:whole_blocks]
        if sequence.session >= 0:
            keys += _session_keys(sequence, range(len(keys), whole_blocks))
        keys += request_keys(sequence, range(len(keys), whole_blocks))
        # Blocks that are not full stay empty, and are reused first.
        for block, key in zip(blocks, keys, strict=False):
            if block.hash is None:
                self.pool.cache(block, key)
        self.pool.release(blocks)

    def release_late(self, sequence: OfflineRequest, held: int) -> None:
        """Frees the blocks of a request that left before."""
        self.release(sequence, held)

    def forget(self, sequence: OfflineRequest) -> None:
        """Drops what is stored for a sequence that will not run again."""
        sequence.recoverable_blocks = 0


def shared_keys(request: OfflineRequest, block_size: int, tokens: int) -> list[bytes]:
    """Returns the keys of blocks of a prompt that other requests may have cached.

    Only whole blocks of the first `tokens` tokens count.
    """
    shared_blocks = request.prefix_tokens // block_size
    keys = []
    for index in range(shared_blocks):
        node = request.path[((index + 1) * block_size - 1) // request.node_tokens]
        keys.append(b"g%d/%d" % (node, index))
    if request.session >= 0:
        keys += _session_keys(request, range(shared_blocks, tokens // block_size))
    return keys


def _session_keys(request: OfflineRequest, blocks: Iterable[int]) -> list[bytes]:
    session = request.session
    return [b"s%d/%d" % (session, index) for index in blocks]


def request_keys(request: OfflineRequest, blocks: Iterable[int]) -> list[bytes]:
    """Returns the keys of blocks that no other request has."""
    number = request.number
    return [b"%d/%d" % (number, index) for index in blocks]
