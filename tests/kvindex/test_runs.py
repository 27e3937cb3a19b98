"""Events that are told together mean what they mean alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kvcache.events import AllBlocksCleared, BlockHash, KVEvent
from app.kvindex import index as module
from app.kvindex.index import Index, IndexSettings, event_groups
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import batch, offloaded, removed, stored

FIRST, SECOND = stored([1], range(4)), stored([2], range(4), 1)


def lengths(*events: KVEvent, block_size: int = 4) -> list[int]:
    return [len(run) for run in event_groups(events, block_size)]


def test_stores_and_removals_in_a_row_go_together() -> None:
    events = [FIRST, SECOND, stored([3, 4], range(8)), removed([1]), removed([2, 3]), AllBlocksCleared()]
    assert list(event_groups(events, 4)) == [events[:3], events[3:5], events[5:]]
    assert list(event_groups([], 4)) == []


def test_blocks_without_features_are_plain() -> None:
    assert lengths(FIRST, stored([2], range(4), extra_keys=[None])) == [2]


@pytest.mark.parametrize(
    "other",
    [
        stored([2], range(4), medium="CPU"),
        stored([2], range(4), lora_name="x"),
        stored([2], range(4), lora_id=1),
        stored([2], range(4), group_idx=1),
        stored([2], range(4), kv_cache_spec_kind="mamba"),
        stored([2], range(4), extra_keys=[["salt"]]),
        stored([2], range(8), size=8),
        offloaded([2], "GPU"),
        removed([1]),
        AllBlocksCleared(),
    ],
)
def test_what_differs_stays_apart(other: KVEvent) -> None:
    assert lengths(FIRST, other) == lengths(other, FIRST) == [1, 1]
    assert lengths(other, other, block_size=16)[0] == (2 if other == removed([1]) else 1)


def test_removals_of_two_places_stay_apart() -> None:
    assert lengths(removed([1]), removed([1], "CPU"), removed([1], "CPU", group_idx=1)) == [1, 1, 1]


def test_a_bad_event_costs_its_neighbours_nothing() -> None:
    index = Index(MemoryBackend(), IndexSettings(block_size=4))
    index.ingest(
        batch(
            FIRST,
            stored([2], range(3), 1),
            stored([3], range(4), 77),
            stored([4], [-1] * 4, 1),
            stored([b""], range(4), 1),
            stored([5], range(4), b""),
            stored([6], range(4), 1),
            removed([b""]),
            removed([6]),
        ),
        "a",
        "m",
    )
    assert index.losses.events == {
        "token_count": 1,
        "unknown_parent": 1,
        "bad_token_ids": 1,
        "bad_block_hashes": 2,
        "bad_parent_block_hash": 1,
    }
    assert index.size().blocks == 1


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


@pytest.mark.slow
@settings(max_examples=500)
@given(st.lists(st.lists(events, max_size=8), max_size=3))
def test_together_they_leave_what_they_leave_one_by_one(batches: list[list[KVEvent]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = state(batches)
        patch.setattr(module, "event_groups", lambda events, block_size: [[event] for event in events])
        assert together == state(batches)


def state(batches: list[list[KVEvent]]) -> tuple[Any, ...]:
    """Everything that an index of blocks of two tokens knows after these batches."""
    backend = MemoryBackend()
    index = Index(backend, IndexSettings(block_size=2))
    outcomes = [index.ingest(batch(*each), "a", "m") for each in batches]
    maps = {number: (map_.owned, map_.repeats) for number, map_ in backend._maps.items()}
    held = dict(backend.table), maps, index.size()
    return outcomes, held, index.losses.events, index._ingest.stores.block_sizes
