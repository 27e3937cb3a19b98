"""How a batch is applied: events that are applied together mean what they mean alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.kvcache.events import AllBlocksCleared, BlockHash, KVEvent
from app.kvindex.index import Index, IndexSettings, Ingest
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import block, ingest, offloaded, removed, stored


def test_blocks_that_come_and_go_are_counted_and_those_that_nobody_has() -> None:
    index = Index(MemoryBackend(), IndexSettings(block_size=4))
    ingest(index, "a", block(0), block(1), block(2), removed([2, 7, 8]), removed([9]))
    index.clear("a")
    lines = index.metrics.render({}).splitlines()
    for name, value in (("admissions", 3), ("evictions", 3)):
        assert f"kvcache_index_{name}_total {value}.0" in lines
    assert index.metrics.skipped_events == {"unknown_block": 3}


# Few blocks, so that they come again, continue each other, and are held twice.
blocks = st.integers(1, 6)
hashes = st.one_of(blocks, blocks, blocks, st.sampled_from([b"", b"\x01"]))
parents = st.one_of(st.none(), st.just(0), hashes)
lists: st.SearchStrategy[list[BlockHash]] = st.lists(hashes, max_size=3)


@st.composite
def a_store(draw: st.DrawFn) -> KVEvent:
    engine = draw(lists)
    size = draw(st.sampled_from([2, 2, 2, 2, 1, 3, 0]))
    count = len(engine) * size if draw(st.integers(0, 9)) else draw(st.integers(0, 5))
    more: dict[str, Any] = {
        "medium": draw(st.sampled_from(["GPU", "GPU", "GPU", "CPU"])),
        "group_idx": draw(st.sampled_from([None, None, None, 1])),
        "lora_name": draw(st.sampled_from([None, None, None, "x"])),
        "extra_keys": draw(st.sampled_from([None, None, [None], [["salt"]]])),
    }
    return stored(engine, [draw(st.integers(0, 1))] * count, draw(parents), size, **more)


events = st.one_of(
    a_store(),
    a_store(),
    a_store(),
    st.builds(removed, lists, st.sampled_from(["GPU", "CPU"])),
    st.builds(offloaded, lists),
    st.just(AllBlocksCleared()),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(events, max_size=8), max_size=3))
def test_together_they_leave_what_they_leave_one_by_one(batches: list[list[KVEvent]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = state(batches)
        patch.setattr(Ingest, "_likeness", lambda self, event: id(event))
        assert together == state(batches)


def state(batches: list[list[KVEvent]]) -> tuple[Any, ...]:
    """Everything that an index of blocks of two tokens knows after these batches."""
    backend = MemoryBackend()
    index = Index(backend, IndexSettings(block_size=2))
    outcomes = [ingest(index, "a", *each) for each in batches]
    maps = {number: (map_.owned, map_.repeats) for number, map_ in backend._maps.items()}
    held = dict(backend.table), maps, index.backend.size()
    return outcomes, held, index.metrics.skipped_events
