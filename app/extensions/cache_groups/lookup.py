"""The longest prefix of a prompt that all KV cache groups have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from app.core.engine.kvcache.block_pool import Block, BlockPool
from app.extensions.cache_groups.layers import GroupSpec, distinct
from app.extensions.cache_groups.policies import Policy, Row


class Hit(Struct):
    """Cached blocks of a prompt.

    All groups have the first `blocks`; `rows` lists the blocks to read, by group. `longest` is the
    longest prefix in the groups of one kind. Where it is longer, prompts share a beginning, and the
    other groups did not keep its end.
    """

    rows: list[Row]
    blocks: int = 0
    longest: int = 0


class GroupLookup:
    """Finds prefixes as vLLM's hybrid coordinator does."""

    def __init__(
        self, pool: BlockPool, specs: Sequence[GroupSpec], policies: Sequence[Policy]
    ) -> None:
        self._pool = pool
        self._count = len(specs)
        self._kinds: list[tuple[Policy, list[int]]] = []
        """Policies of distinct groups, full attention first, with the numbers of their groups."""
        for spec in distinct(specs):
            members = [number for number, other in enumerate(specs) if other == spec]
            self._kinds.append((policies[members[0]], members))

    def find(self, hashes: Sequence[bytes]) -> Hit:
        """Returns the longest common prefix of the blocks with `hashes`."""
        result = Hit([[] for _ in range(self._count)])
        limit = len(hashes)
        ends: dict[int, int] = {}
        """Prefixes of the kinds that read all blocks, by number of the kind."""
        while True:
            current = limit
            for number, (policy, members) in enumerate(self._kinds):
                if number in ends:
                    current = min(current, ends[number])
                    continue
                current, blocks = policy.longest(partial(self._cached, hashes, members), current)
                if policy.reads_all:
                    ends[number] = current
                _fill(result.rows, members, current, blocks)
                result.longest = max(result.longest, current)
            if current >= limit:
                break
            limit = current
            if len(self._kinds) == 2:
                break
        result.blocks = limit
        for row in result.rows:
            del row[limit:]
        return result

    def diverging(self, hashes: Sequence[bytes]) -> Hit | None:
        """Returns the prefix of full attention if it is the longest one, and others are shorter."""
        rows: list[Row] = [[] for _ in range(self._count)]
        lengths: list[int] = []
        for policy, members in self._kinds:
            cached_at = partial(self._cached, hashes, members)
            length, blocks = policy.longest(cached_at, len(hashes))
            _fill(rows, members, length, blocks)
            lengths.append(length)
        if not min(lengths) < lengths[0] == max(lengths):
            return None
        return Hit(rows, lengths[0])

    def _cached(
        self, hashes: Sequence[bytes], groups: Sequence[int], position: int
    ) -> list[Block] | None:
        blocks = []
        for group in groups:
            block = self._pool.longest_prefix([group_key(hashes[position], group)])
            if not block:
                return None
            blocks += block
        return blocks


def _fill(
    rows: list[Row], groups: Sequence[int], length: int, blocks: dict[int, Sequence[Block]]
) -> None:
    for index, group in enumerate(groups):
        row: Row = [None] * length
        for position, cached in blocks.items():
            row[position] = cached[index]
        rows[group] = row


def group_key(block_hash: bytes, group: int) -> bytes:
    """Returns the name of a group's block in the pool, as in vLLM."""
    return block_hash + group.to_bytes(4, "big")


def split_key(key: bytes) -> tuple[bytes, int]:
    """Returns hash and group of a block's name."""
    return key[:-4], int.from_bytes(key[-4:], "big")
