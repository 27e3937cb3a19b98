"""Keys of prompts that begin as others did are those that hashing gives, whatever is remembered."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvindex.index import Index, IndexSettings
from app.kvindex.keys import (
    GENERATIONS,
    PART_BLOCKS,
    Features,
    Generation,
    PrefixKeyCache,
    RequestKeys,
    request_keys,
)
from app.kvindex.memory import MemoryBackend

SIZE = 2
PART = PART_BLOCKS * SIZE
prompts = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 2 * PART + 3)).map(lambda it: [it[0]] * it[1]), max_size=4
).map(lambda parts: [token for part in parts for token in part])


class Counting:
    """Request keys that count the blocks they are made for."""

    def __init__(self, keys: RequestKeys) -> None:
        self.block_size, self.slice_blocks, self.roots = keys.block_size, keys.slice_blocks, keys.roots
        self.root, self._keys, self.blocks = keys.root, keys.keys, 0

    def keys(
        self, parent: int, tokens: Sequence[int], features: Sequence[Features] | None = None
    ) -> list[int]:
        made = self._keys(parent, tokens, features)
        self.blocks += len(made)
        return made


@pytest.mark.slow
@pytest.mark.parametrize("generation", GENERATIONS)
@given(asked=st.lists(prompts, max_size=8))
def test_the_keys_are_those_of_hashing(generation: Generation, asked: list[list[int]]) -> None:
    keys = request_keys(generation, SIZE)
    cache = PrefixKeyCache(keys, limit_bytes=20_000)
    for prompt in asked:
        assert cache.keys(5, prompt) == keys.keys(5, prompt)
        assert cache.keys(6, array("I", prompt)) == keys.keys(6, prompt)
        assert cache.parts.size_bytes <= cache.parts.limit_bytes


@pytest.mark.parametrize(("blocks", "parts"), [(63, 0), (64, 1), (127, 1), (128, 2)])
def test_a_part_is_remembered_as_soon_as_it_is_whole(blocks: int, parts: int) -> None:
    cache = PrefixKeyCache(request_keys("E", SIZE))
    cache.keys(1, list(range(blocks * SIZE)))
    assert len(cache.parts) == parts


def test_only_what_is_new_is_hashed() -> None:
    counting = Counting(request_keys("E", SIZE))
    cache = PrefixKeyCache(counting)
    prompt = list(range(3 * PART + 5))
    cache.keys(1, prompt)
    assert counting.blocks == 3 * PART_BLOCKS + 2
    counting.blocks = 0
    cache.keys(1, [*prompt[: 2 * PART], 7, *prompt[2 * PART :]])
    assert counting.blocks == PART_BLOCKS + 3
    counting.blocks = 0
    cache.keys(2, prompt)  # of another model
    assert counting.blocks == 3 * PART_BLOCKS + 2


def test_two_parts_with_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kvindex.keys.xxh3_64_intdigest", lambda data, seed: 1)
    keys = request_keys("E", SIZE)
    cache = PrefixKeyCache(keys)
    for parent, first in ((1, 0), (1, 9), (2, 0), (1, 0)):
        prompt = [first] * 2 * PART
        assert cache.keys(parent, prompt) == keys.keys(parent, prompt)


@pytest.mark.slow
def test_what_is_remembered_is_bounded_and_told_of() -> None:
    index = Index(MemoryBackend(), IndexSettings(block_size=SIZE))
    (cache,) = (each for name, each in index.caches.items() if name == "index keys")
    for first in range(3000):
        index.block_keys("m", [first] * 10 * PART)
        assert cache.size_bytes <= cache.limit_bytes
    assert cache.size_bytes > cache.limit_bytes / 3


@pytest.mark.parametrize("tokens", [[-1], [1 << 32], ["x"], [1.5], [None], array("d", [1.0])])
def test_what_is_no_token_is_refused(tokens: list[int]) -> None:
    for generation in GENERATIONS:
        with pytest.raises(ValueError):
            PrefixKeyCache(request_keys(generation, 1)).keys(1, tokens)


@pytest.mark.parametrize("known", [0, PART_BLOCKS, 2 * PART_BLOCKS])
@pytest.mark.parametrize("blocks", [0, 1, 9, 10, 11, 20, 21])
def test_what_is_hashed_is_so_a_slice_at_a_time(
    known: int, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Counting(request_keys("E", SIZE))
    keys.slice_blocks = 10
    cache, prompt = PrefixKeyCache(keys), list(range((known + blocks) * SIZE + 1))
    cache.keys(1, prompt[: known * SIZE])
    slices = [keys.blocks]
    monkeypatch.setattr("app.kvindex.keys.pause_if_possible", lambda: slices.append(keys.blocks))
    assert cache.keys(1, prompt) == request_keys("E", SIZE).keys(1, prompt)
    ends = [*slices, keys.blocks]
    assert [after - before for before, after in pairwise(ends)] == [
        min(10, blocks - start) for start in range(0, max(blocks, 1), 10)
    ]


def test_a_prompt_that_goes_on_adds_parts_to_those_before() -> None:
    keys = Counting(request_keys("E", SIZE))
    cache, prompt = PrefixKeyCache(keys), list(range(5 * PART))
    expected = request_keys("E", SIZE).keys(1, prompt)
    for parts in range(1, 6):
        for _ in range(2):
            assert cache.keys(1, prompt[: parts * PART]) == expected[: parts * PART_BLOCKS]
        assert (keys.blocks, len(cache.parts)) == (parts * PART_BLOCKS, parts)


def test_parts_take_no_more_memory_than_is_reckoned() -> None:
    cache = PrefixKeyCache(request_keys("E", 16))
    tracemalloc.start()
    try:
        empty, _ = tracemalloc.get_traced_memory()
        for first in range(20):
            cache.keys(1, [first] * 5 * PART_BLOCKS * 16)
        taken = tracemalloc.get_traced_memory()[0] - empty
    finally:
        tracemalloc.stop()
    assert len(cache.parts) == 100
    assert taken <= cache.parts.size_bytes < 1.1 * taken
