"""Block hashes that cover everything before them: each block is hashed together with the hash before it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from app.kvcache.memo import Memo

Extra: TypeAlias = tuple[Any, ...] | None
"""What a block's hash covers besides tokens (hashable), or None."""

HashBlocks: TypeAlias = Callable[[bytes, Sequence[int], Sequence[Extra] | None], list[bytes]]
"""The hashes of the blocks that some token ids fill, from the hash before them and an extra for each."""

Part: TypeAlias = tuple[bytes, ...]
"""Hashes of some consecutive blocks."""

PART_BLOCKS = 64
"""Blocks hashed in one go, about 0.1 ms, and remembered together."""
MEMO_BLOCKS = 32_768
"""Blocks whose hashes are remembered: about 5 MB, half a million tokens of 16 a block."""


class Chain:
    """The hashes of consecutive full blocks of `block_size` tokens.

    Remembers the hashes of `memo_blocks` blocks, so that a prompt seen before costs next to nothing.
    """

    def __init__(self, block_size: int, hash_blocks: HashBlocks, memo_blocks: int = MEMO_BLOCKS) -> None:
        if block_size < 1:
            raise ValueError("a block has at least one token")
        self.block_size = block_size
        self._hash_blocks = hash_blocks
        self._memo: Memo[object, Part] = Memo(memo_blocks)

    def hashes(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> list[bytes]:
        """The hash of every full block of `token_ids`, `parent` being the one before the first.

        `extras` has an entry for every full block, or is None when no block has one. ValueError for an id
        below 0.
        """
        return [block_hash for part in self.parts(parent, token_ids, extras) for block_hash in part]

    def parts(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> Iterator[Part]:
        """The same hashes, a part at a time: whoever shares a thread lets others run in between."""
        count = len(token_ids) // self.block_size
        for first in range(0, count, PART_BLOCKS):
            last = min(first + PART_BLOCKS, count)
            ids = token_ids[first * self.block_size : last * self.block_size]
            part = self._part(parent, ids, extras and extras[first:last])
            parent = part[-1]
            yield part

    def _part(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> Part:
        try:
            packed = array("I", ids).tobytes()
        except OverflowError:
            if min(ids) < 0:
                raise ValueError("token ids are not negative") from None
            return tuple(self._hash_blocks(parent, ids, extras))  # ids of no vocabulary
        key = parent, packed, extras and tuple(extras)
        part = self._memo.get(key)
        if part is None:
            part = tuple(self._hash_blocks(parent, ids, extras))
            # Blocks of a reply come one by one, and hardly ever again.
            if len(part) > 1:
                self._memo.put([key], [part], len(part))
        return part
