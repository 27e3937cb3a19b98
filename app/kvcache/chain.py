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

MEMO_BLOCKS = 16_384
"""Blocks whose hash is remembered: about 5 MB, a quarter of a million tokens of 16 a block."""
PART_BLOCKS = 64
"""Blocks hashed in one go, about 0.15 ms."""


class Chain:
    """The hashes of consecutive full blocks of `block_size` tokens.

    Remembers the hashes of `memo_blocks` blocks, so that a prompt seen before costs a lookup per block.
    """

    def __init__(self, block_size: int, hash_blocks: HashBlocks, memo_blocks: int = MEMO_BLOCKS) -> None:
        if block_size < 1:
            raise ValueError("a block has at least one token")
        self.block_size = block_size
        self._hash_blocks = hash_blocks
        self._memo: Memo[object, bytes] = Memo(memo_blocks)

    def hashes(
        self, parent: bytes, token_ids: Sequence[int], extras: Sequence[Extra] | None = None
    ) -> list[bytes]:
        """The hash of every full block of `token_ids`, `parent` being the one before the first.

        `extras` has an entry for every full block, or is None when no block has one. ValueError for an id
        below 0.
        """
        return [block_hash for part in self.parts(parent, token_ids, extras) for block_hash in part]

    def parts(
        self,
        parent: bytes,
        token_ids: Sequence[int],
        extras: Sequence[Extra] | None = None,
        blocks: int = PART_BLOCKS,
    ) -> Iterator[list[bytes]]:
        """The same hashes, `blocks` at a time: whoever shares a thread lets others run in between."""
        count = len(token_ids) // self.block_size
        for first in range(0, count, blocks):
            last = min(first + blocks, count)
            ids = token_ids[first * self.block_size : last * self.block_size]
            part = self._part(parent, ids, extras and extras[first:last])
            parent = part[-1]
            yield part

    def _part(self, parent: bytes, ids: Sequence[int], extras: Sequence[Extra] | None) -> list[bytes]:
        try:
            blocks = self._packed(ids)
        except OverflowError:
            if min(ids) < 0:
                raise ValueError("token ids are not negative") from None
            return self._hash_blocks(parent, ids, extras)  # ids of no vocabulary: not worth remembering
        hashes = self._known(parent, blocks, extras)
        done = len(hashes)
        if done == len(blocks):
            return hashes
        # Behind a block that was never seen there are only more of them.
        parent = hashes[-1] if hashes else parent
        extras = extras and extras[done:]
        new = self._hash_blocks(parent, ids[done * self.block_size :], extras)
        self._memo.put(_keys([parent, *new[:-1]], blocks[done:], extras), new)
        return hashes + new

    def _known(self, parent: bytes, blocks: Sequence[bytes], extras: Sequence[Extra] | None) -> list[bytes]:
        hashes = []
        for number, block in enumerate(blocks):
            extra = extras[number] if extras else None
            known = self._memo.get(parent + block if extra is None else (parent + block, extra))
            if known is None:
                break
            hashes.append(parent := known)
        return hashes

    def _packed(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of every block. OverflowError for ids outside 32 bits."""
        packed = array("I", ids)
        width = packed.itemsize * self.block_size
        data = packed.tobytes()
        return [data[start : start + width] for start in range(0, len(data), width)]


def _keys(parents: list[bytes], blocks: list[bytes], extras: Sequence[Extra] | None) -> Iterator[object]:
    if extras is None:
        return map(bytes.__add__, parents, blocks)
    return (
        parent + block if extra is None else (parent + block, extra)
        for parent, block, extra in zip(parents, blocks, extras, strict=False)
    )
