"""Blocks of engines on blocks of the index, of any two sizes, alone and several together."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.hashing import Placeholder
from app.extensions.kv_index.alignment import NUMBER_BYTES, TAIL_BYTES, Tail
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from tests.extensions.kv_index.engines import ingest, matched, removed, source, stored


def make_index(block_size: int) -> Index:
    return Index(MemoryBackend(), block_size=block_size)


def test_block_after_a_dropped_incomplete_block_is_counted_as_a_loss() -> None:
    index = make_index(64)
    stores = index._ingest
    stores.tails = type(stores.tails)(2000)
    ingest(index, "a", stored([1, 2], list(range(32)), size=16))
    ingest(index, "a", stored([3], list(range(16)), 1, 16))
    assert index.metrics.skipped_events == {"unaligned_parent": 1}


def test_image_matching_requires_compatible_block_sizes() -> None:
    index = make_index(16)
    tokens = list(range(64))
    image = [Placeholder("img", 20, 10)]
    ingest(
        index,
        "a",
        stored([1, 2, 3, 4], tokens, size=16, extra_keys=[None, [["img", 4]], None, None]),
    )
    extra_keys = [None, None, [["img", 4]], [["img", -4]], *[None] * 4]
    ingest(index, "b", stored(range(1, 9), tokens, size=8, extra_keys=extra_keys))
    ingest(index, "c", stored([1, 2], tokens, size=32, extra_keys=[[["img", 20]], None]))
    assert matched(index, tokens, media=image) == {"a": 4, "b": 4}
    assert matched(index, tokens, media=[Placeholder("other", 20, 10)]) == {"a": 1, "b": 1}


sizes = st.integers(1, 12)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_matches_do_not_depend_on_how_blocks_are_split_into_events(
    data: st.DataObject,
) -> None:
    """Whatever the sizes, and however the engine's blocks are spread over events."""
    size = data.draw(sizes)
    engine_size = data.draw(sizes)
    blocks = data.draw(st.integers(1, 12))
    tokens = list(range(1000, 1000 + engine_size * blocks))
    salt = data.draw(st.none() | st.just("salt"))
    index = make_index(size)
    done = 0
    events = []
    while done < blocks:
        count = data.draw(st.integers(1, blocks - done))
        part = tokens[done * engine_size : (done + count) * engine_size]
        extra = [["salt"] if salt and not number else None for number in range(done, done + count)]
        events.append(
            stored(
                range(done + 1, done + count + 1), part, done or None, engine_size, extra_keys=extra
            )
        )
        done += count
    apart = data.draw(st.booleans())
    for step in [[event] for event in events] if apart else [events]:
        ingest(index, "a", *step)
    full = len(tokens) // size
    assert index.metrics.skipped_events == {}
    assert matched(index, tokens, salt=salt) == ({"a": full} if full else {})
    if full:
        gone = data.draw(st.integers(1, blocks))
        ingest(index, "a", removed([gone]))
        left = (gone - 1) * engine_size // size
        assert matched(index, tokens, salt=salt) == ({"a": left} if left else {})
        ingest(index, "a", removed([n for n in range(1, blocks + 1) if n != gone]))
    assert index.metrics.skipped_events == {}
    assert index.backend.size().copies == 0


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (1000, 1), (1, 100)])
def test_partial_blocks_take_no_more_memory_than_estimated(tokens: int, blocks: int) -> None:
    index = make_index(1 << 14)
    tails = index._ingest.tails
    tracemalloc.start()
    try:
        begin, _ = tracemalloc.get_traced_memory()
        for name in range(1 << 40, (1 << 40) + 50):
            tail = Tail(name, list(range(tokens)), tuple(range(name, name + blocks)))
            size = TAIL_BYTES + NUMBER_BYTES * (tokens + blocks)
            tails.put((source(), 0, name), tail, size)
        taken = tracemalloc.get_traced_memory()[0] - begin
    finally:
        tracemalloc.stop()
    assert taken <= tails.size_bytes < 3 * taken
