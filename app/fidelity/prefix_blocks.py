"""A pool whose prompts share beginnings: the KV cache's own, with keys that nobody needs to hash."""

from __future__ import annotations

from app.engine.batch import SequenceState
from app.kvcache.block_pool import Block, BlockPool


class OfflineRequest(SequenceState):
    """A request of an offline run, with its moments in seconds."""

    __slots__ = ("arrival_s", "first_s", "last_s", "send_s")

    def __init__(self, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        super().__init__(prompt_tokens, output_tokens)
        self.arrival_s = arrival_s
        """When the load wants to send it."""
        self.send_s = arrival_s
        self.first_s = -1.0
        self.last_s = -1.0


class GroupedRequest(OfflineRequest):
    """A request of a load; those of one group share the first `prefix_tokens` tokens of their prompts."""

    __slots__ = ("group", "number", "prefix_tokens")

    def __init__(self, number: int, arrival_s: float, prompt_tokens: int, output_tokens: int) -> None:
        super().__init__(arrival_s, prompt_tokens, output_tokens)
        self.number = number
        """Its place in the load."""
        self.group = -1
        self.prefix_tokens = 0


class PrefixBlocks:
    """`num_blocks` blocks, one of them vLLM's null block. Where no prompts are shared it tells what
    `CountedBlocks` tells (a property test).

    A whole block of a shared beginning can be found as soon as the step that computes it is made.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks, on_evict=lambda hashes: None)
        self.capacity = self.pool.capacity
        self.held: dict[GroupedRequest, list[Block]] = {}
        self._kept: dict[GroupedRequest, int] = {}
        """Blocks of their own that preempted requests may find again."""
        self.hits = 0
        """Blocks that requests found when they came for the first time."""

    @property
    def free(self) -> int:
        return self.pool.free

    def find(self, sequence: GroupedRequest, tokens: int) -> int:
        return len(self._found(sequence, (tokens - 1) // self.block_size))

    def fits(self, sequence: GroupedRequest, tokens: int, found: int) -> bool:
        used = sum(block.references > 0 for block in self._found(sequence, found))
        return -(-tokens // self.block_size) - used <= self.free

    def begin(self, sequence: GroupedRequest, found: int, count: int) -> None:
        blocks = self._found(sequence, found)
        self._kept.pop(sequence, None)
        self.hits += 0 if sequence.preemptions else found
        self.pool.use(blocks)
        self.held[sequence] = blocks
        self.grow(sequence, count)

    def grow(self, sequence: GroupedRequest, count: int) -> None:
        self.held[sequence] += self.pool.take(count)

    def filled(self, sequence: GroupedRequest) -> None:
        whole = min(sequence.computed // self.block_size, self._shared(sequence))
        for place, block in enumerate(self.held[sequence][:whole]):
            if block.hash is None:
                self.pool.cache(block, _group_key(sequence.group, place))

    def release(self, sequence: GroupedRequest, held: int, findable: int = 0) -> None:
        blocks = self.held.pop(sequence)
        for place, block in enumerate(blocks):
            if block.hash is None:
                self.pool.cache(block, _own_key(sequence, place))
        if findable:
            self._kept[sequence] = findable
        self.pool.release(blocks)

    def forget(self, sequence: GroupedRequest) -> None:
        self._kept.pop(sequence, None)

    def _shared(self, sequence: GroupedRequest) -> int:
        """Whole blocks of its prompt that it shares."""
        return sequence.prefix_tokens // self.block_size

    def _found(self, sequence: GroupedRequest, most: int) -> list[Block]:
        """Of its first `most` blocks those that are there."""
        shared, group = self._shared(sequence), sequence.group
        return self.pool.longest_prefix(
            _group_key(group, place) if place < shared else _own_key(sequence, place)
            for place in range(min(most, max(shared, self._kept.get(sequence, 0))))
        )


def shared_keys(request: GroupedRequest, block_size: int) -> list[bytes]:
    """Those of the whole blocks that it shares."""
    return [_group_key(request.group, place) for place in range(request.prefix_tokens // block_size)]


def _group_key(group: int, place: int) -> bytes:
    return b"g%d/%d" % (group, place)


def _own_key(sequence: GroupedRequest, place: int) -> bytes:
    return b"%d/%d" % (sequence.number, place)
