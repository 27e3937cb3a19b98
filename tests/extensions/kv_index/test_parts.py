"""Long events and batches: other greenlets run meanwhile, and the index is the same."""

from collections.abc import Callable, Sequence
from typing import Any

import gevent
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import KVEvent
from app.extensions.kv_index.backend import Backend, keys_of
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend
from app.extensions.kv_index.parts import PART_COST, cost_of, split_batch
from tests.extensions.kv_index.engines import ingest, matched, offloaded, removed, stored
from tests.extensions.kv_index.test_index import events

BLOCKS = 20_000
HASHES = range(1, BLOCKS + 1)
TOKENS = [number % 251 for number in range(4 * BLOCKS)]
"""Tokens of blocks of the index's size."""
FULL: dict[str, Any] = {"group_idx": 0, "kv_cache_spec_kind": "full_attention"}
WINDOW: dict[str, Any] = {
    "group_idx": 1,
    "kv_cache_spec_kind": "sliding_window",
    "kv_cache_spec_sliding_window": 8,
}
MAX_TURN_BLOCKS = 4 * PART_COST
"""Blocks of a batch for each turn that another greenlet must have."""


def chained(count: int, size: int) -> list[KVEvent]:
    """Events of one block each, every one the continuation of the event before it."""
    events: list[KVEvent] = []
    for number in range(1, count + 1):
        tokens = [number % 251] * size
        events.append(stored([number], tokens, parent=number - 1 or None, size=size))
    return events


LONG_BATCHES: dict[str, list[KVEvent]] = {
    "blocks of the index": [stored(HASHES, TOKENS)],
    "blocks of one token": [stored(HASHES, TOKENS[:BLOCKS], size=1)],
    "blocks of seven tokens": [stored(range(1, 5001), TOKENS[:35_000], size=7)],
    "hashes of bytes": [stored([n.to_bytes(32, "big") for n in HASHES], TOKENS)],
    "blocks with extra keys": [stored(HASHES, TOKENS, extra_keys=[["image"]] * BLOCKS)],
    "chained events": chained(BLOCKS, 4),
    "chained events of one token": chained(BLOCKS, 1),
    "removed blocks": [stored(HASHES, TOKENS), removed(HASHES)],
    "offloaded blocks": [stored(HASHES, TOKENS), offloaded(HASHES)],
    "blocks of a window": [
        stored(HASHES, TOKENS, **FULL),
        stored(HASHES, TOKENS[:4], **WINDOW),
    ],
}


def turns_while(work: Callable[[], object]) -> int:
    """Returns how many turns another greenlet has while a greenlet works."""
    turns = 0

    def count_turns() -> None:
        nonlocal turns
        while True:
            gevent.sleep(0)
            turns += 1

    counter = gevent.spawn(count_turns)
    worker = gevent.spawn(work)
    try:
        worker.get()
    finally:
        counter.kill()
    return turns


@pytest.mark.parametrize("name", LONG_BATCHES)
def test_other_greenlets_run_while_a_long_batch_is_indexed(name: str) -> None:
    index = Index(MemoryBackend(), block_size=4)
    events = LONG_BATCHES[name]
    block_count = sum(len(event.block_hashes) for event in events)
    assert turns_while(lambda: ingest(index, "a", *events)) >= block_count // MAX_TURN_BLOCKS
    assert not index.metrics.skipped_events


@pytest.mark.parametrize("size", [4, 1, 7])
def test_all_blocks_of_a_long_event_are_found(backend: Backend, size: int) -> None:
    index = Index(backend, block_size=4)
    tokens = TOKENS[: 3_000 * size]
    ingest(index, "a", stored(range(1, 3_001), tokens, size=size))
    assert matched(index, tokens) == {"a": len(tokens) // 4}
    ingest(index, "a", stored([9_001], [5] * size * 4, parent=3_000, size=size * 4))
    assert matched(index, [*tokens, *[5] * size * 4]) == {"a": len(tokens) // 4 + size}
    ingest(index, "a", removed(range(1_500, 3_001)))
    assert matched(index, tokens) == {"a": 1_499 * size // 4}


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (stored(HASHES, TOKENS, parent=10**6), "unknown_parent"),
        (stored(HASHES, TOKENS[:-1]), "token_count"),
        (stored(HASHES, [*TOKENS[:-1], -1]), "bad_token_ids"),
        (stored([*HASHES[:-1], b""], TOKENS), "bad_block_hashes"),
        (stored(HASHES, TOKENS, extra_keys=[[]]), "extra_keys_count"),
        (stored([1], TOKENS[:4], extra_keys=[["x"] * 257]), "bad_extra_keys"),
        (removed([*HASHES, b""]), "bad_block_hashes"),
    ],
)
def test_an_invalid_long_event_is_one_loss_and_has_no_effect(event: KVEvent, reason: str) -> None:
    index = Index(MemoryBackend(), block_size=4)
    ingest(index, "a", stored([10**7], [1, 2, 3, 4]), event, stored([10**7 + 1], [1, 2, 3, 5]))
    assert index.metrics.skipped_events == {reason: 1}
    assert index.backend.size().copies == 2


def test_a_batch_is_split_by_the_work_of_its_events() -> None:
    events: Sequence[KVEvent] = [*chained(3_000, 4), stored(HASHES, TOKENS), removed([1])]
    batch_parts = list(split_batch(events, block_size=4))
    assert [event for part in batch_parts for event in part] == events
    for part in batch_parts:
        assert len(part) == 1 or sum(cost_of(event, 4) for event in part) <= PART_COST
    assert [list(part) for part in split_batch([], block_size=4)] == [[]]


def has_distinct_blocks(event: KVEvent) -> bool:
    """A block twice in one event is a further copy of it only where the event is split."""
    numbers = [
        number if isinstance(number, int) else int.from_bytes(number, "big")
        for number in event.block_hashes
    ]
    return len(set(numbers)) == len(numbers)


def state(event_list: list[KVEvent]) -> tuple[object, ...]:
    """Everything that an index of blocks of two tokens knows after these events."""
    backend = MemoryBackend()
    index = Index(backend, block_size=2)
    outcomes = []
    names: dict[tuple[int, object], int] = {}
    for event in event_list:
        outcomes.append(ingest(index, "a", event))
        # An engine names a block by its content. The index counts a block that has two names, one
        # after the other, in the order of the parts.
        for (number, name), keys in covered_blocks(backend).items():
            for key in keys:
                assume(names.setdefault((number, key), name) == name)
    return outcomes, covered_blocks(backend), dict(backend.table), index.metrics.skipped_events


def covered_blocks(backend: MemoryBackend) -> dict[tuple[int, int], set[int]]:
    """The blocks of the index that each name of an engine stands for, by group."""
    return {
        (number, key): set(keys_of(keys))
        for number, engine_map in backend._maps.items()
        for key, keys in engine_map.covered.items()
    }


@settings(max_examples=200, deadline=None)
@given(st.lists(events.filter(has_distinct_blocks), max_size=12))
def test_split_events_have_the_same_effect_as_whole_events(event_list: list[KVEvent]) -> None:
    whole = state(event_list)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("ingest", "parts"):
            patch.setattr(f"app.extensions.kv_index.{module}.PART_COST", 2)
        assert state(event_list) == whole
