"""The tokens of blocks, to find a block that begins like a prompt goes on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

MAX_CANDIDATES: Final = 64
"""Blocks that are compared, the newest first; many may follow the same one."""


class BlockTokens:
    """Full blocks that follow another block, and their tokens. Not thread-safe.

    A block without a predecessor is not known, as blocks with different salts or adapters may begin
    alike; those after the first differ in their predecessors.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._followers: dict[int, dict[int, tuple[int, ...]]] = {}
        """Block -> blocks that follow it, each with its tokens."""
        self._predecessors: dict[int, int] = {}

    def add(self, predecessor: int, block: int, tokens: tuple[int, ...]) -> None:
        """Notes that a block follows another one, and its tokens."""
        self._detach(block)
        self._followers.setdefault(predecessor, {})[block] = tokens
        self._predecessors[block] = predecessor

    def remove(self, block: int) -> None:
        """Forgets a block, which gets other tokens, and the blocks that follow it."""
        self._detach(block)
        for follower in self._followers.pop(block, {}):
            del self._predecessors[follower]

    def find(self, predecessor: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Returns the block after `predecessor` with the most of the first `tokens`, and the count.

        The count is 0 if there is none.
        """
        best_block = -1
        best_count = 0
        followers = self._followers.get(predecessor, {})
        for block in islice(reversed(followers), MAX_CANDIDATES):
            count = _common_count(followers[block], tokens)
            if count > best_count:
                best_block = block
                best_count = count
        return best_block, best_count

    def _detach(self, block: int) -> None:
        predecessor = self._predecessors.pop(block, None)
        if predecessor is None:
            return
        followers = self._followers[predecessor]
        del followers[block]
        if not followers:
            del self._followers[predecessor]


def _common_count(block: Sequence[int], tokens: Sequence[int]) -> int:
    count = 0
    for one, other in zip(block, tokens, strict=False):
        if one != other:
            return count
        count += 1
    return count
