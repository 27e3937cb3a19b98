"""A pool that counts blocks finds what one with hashes finds of a sequence that comes back."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.counted import CountedBlocks

SIZE = 16


class NumberedBlocks:
    """Blocks with numbers, in the order in which they became free; the first is taken next."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.left: dict[str, list[int]] = {}

    def take(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for name, blocks in self.left.items():
            gone = [place for place, block in enumerate(blocks) if block in taken]
            self.left[name] = blocks[: min(gone, default=len(blocks))]
        return taken

    def leave(self, name: str, blocks: Sequence[int], findable: int) -> None:
        self.free += reversed(blocks)
        self.left[name] = list(blocks[:findable])

    def come_back(self, name: str, found: int, count: int) -> list[int]:
        again = self.left.pop(name, [])[:found]
        self.free = [block for block in self.free if block not in again]
        return again + self.take(count)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 6)), max_size=40))
def test_what_others_have_taken_meanwhile_is_found_no_more(actions: list[tuple[str, int, int]]) -> None:
    counted, numbered = CountedBlocks(13, SIZE), NumberedBlocks(12)
    held: dict[str, list[int]] = {}
    for name, count, findable in actions:
        if name in held:
            blocks = held.pop(name)
            findable = min(findable, len(blocks))
            counted.release(name, len(blocks), findable)
            numbered.leave(name, blocks, findable)
            continue
        tokens = count * SIZE + 1
        found = counted.find(name, tokens)
        assert found == min(len(numbered.left.get(name, [])), count)
        if count <= counted.free:
            counted.begin(name, found, count - found)
            held[name] = numbered.come_back(name, found, count - found)
        assert counted.free == len(numbered.free)
