"""The events of a batch are used a few at a time: in their order, with nothing lost between the slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEvent
from app.kvindex import ingest
from app.kvindex.decoding import Batch
from app.kvindex.index import Index, IndexSettings
from app.kvindex.ingest import Ingest
from app.kvindex.keys import request_keys
from app.kvindex.memory import MemoryBackend
from tests.kvindex.engines import PROMPT, batch, block, offloaded, removed, stored

NAMES = range(1, 10_000)


def slices(events: Sequence[KVEvent], most: int, size_bytes: int = 0) -> list[list[KVEvent]]:
    made = Ingest(MemoryBackend(), request_keys("E", 4))
    made.slice_blocks = most
    return [list(each) for each in made.slices(Batch(1.0, 0, events, (), size_bytes))]


def work(event: KVEvent) -> int:
    """An event counts as one, and so do each of its blocks and every 16 of its tokens."""
    tokens = len(event.token_ids) if isinstance(event, BlockStored) else 0
    return 1 + len(event.block_hashes) + tokens // 16


@st.composite
def well_formed(draw: st.DrawFn) -> list[KVEvent]:
    """Events whose blocks all have names of their own."""
    names, found = iter(NAMES), list[KVEvent]()
    for blocks in draw(st.lists(st.integers(0, 40), max_size=12)):
        own = [next(names) for _ in range(blocks)]
        size = draw(st.sampled_from([0, 1, 4, 16, 100]))
        kind = draw(st.sampled_from(["store", "store", "remove", "clear"]))
        if kind == "store":
            tokens = range(own[0] if own else 0, (own[0] if own else 0) + size * blocks)
            keys = draw(st.sampled_from([None, [[str(name)] for name in own]]))
            more = {"medium": "CPU", "lora_name": "x", "group_idx": 1, "kv_cache_spec_kind": "mamba"}
            found.append(stored(own, tokens, 77, size, lora_id=5, extra_keys=keys, **more))
        else:
            found.append(removed(own, "CPU", group_idx=2) if kind == "remove" else AllBlocksCleared())
    return found


def rejoined(events: Sequence[KVEvent], pieces: Iterator[KVEvent]) -> Iterator[KVEvent]:
    """The pieces as the events that they are of; each piece of a store has to continue the one before it."""
    for event in events:
        parts = [next(pieces)]
        while sum(len(part.block_hashes) for part in parts) < len(event.block_hashes):
            parts.append(next(pieces))
        yield joined(parts)
    assert list(pieces) == []


def joined(parts: Sequence[KVEvent]) -> KVEvent:
    first = parts[0]
    hashes = [name for part in parts for name in part.block_hashes]
    if isinstance(first, BlockRemoved):
        return removed(hashes, first.medium, group_idx=first.group_idx)
    if not isinstance(first, BlockStored):
        return first
    stores = [part for part in parts if isinstance(part, BlockStored)]
    follows = [store.parent_block_hash for store in stores[1:]]
    assert follows == [store.block_hashes[-1] for store in stores[:-1]]
    tokens = [token for store in stores for token in store.token_ids]
    keys = [key for store in stores for key in store.extra_keys or ()] or first.extra_keys
    size, parent = first.block_size, first.parent_block_hash
    names = ("lora_id", "lora_name", "medium", "group_idx", "kv_cache_spec_kind")
    same = {name: getattr(first, name) for name in names}
    return stored(hashes, tokens, parent, size, extra_keys=keys, **same)


@given(well_formed(), st.integers(3, 60))
def test_slices_are_small_and_together_all_events(events: list[KVEvent], most: int) -> None:
    found = slices(events, most)
    pieces = [event for some in found for event in some]
    assert list(rejoined(events, iter(pieces))) == events
    for some in found:
        assert sum(map(work, some)) <= most or len(some) == 1
    for some, following in zip(found, found[1:], strict=False):
        assert sum(map(work, some)) + work(following[0]) > most
    for piece in pieces:
        whole = len(piece.block_hashes) < 2 or work(piece) <= most
        assert whole or isinstance(piece, BlockRemoved) or piece.token_ids  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("event", "blocks"),
    [
        (removed(range(1, 101)), [50, 50]),
        (removed(range(1, 50)), [49]),
        (offloaded(range(1, 51)), [49, 1]),
        (stored(range(1, 91), range(360)), [49, 41]),
        (stored(range(1, 21), range(16 * 20), size=16), [20]),
        (stored(range(1, 27), range(16 * 26), size=16), [24, 2]),
        (stored(range(1, 4), range(300), size=100), [3]),
        (stored(range(1, 11), range(1000), size=100), [6, 4]),
        (stored(range(1, 4), range(3000), size=1000), [1, 1, 1]),
        (stored([1], range(4000), size=4000), [1]),
    ],
)
def test_an_event_is_cut_into_as_many_blocks_as_go_into_a_slice(event: KVEvent, blocks: list[int]) -> None:
    assert [len(piece.block_hashes) for (piece,) in slices([event], 50)] == blocks


@pytest.mark.parametrize(
    "event",
    [
        stored(range(1, 61), range(239)),
        stored(range(1, 61), range(240), size=5),
        stored(range(1, 61), range(240), extra_keys=[["x"]] * 59),
    ],
)
def test_what_will_be_refused_is_not_cut(event: KVEvent) -> None:
    assert slices([event], 50) == [[event]]


def test_a_batch_of_few_bytes_is_one_slice_without_a_look_at_its_events() -> None:
    events = [stored([1, 2, 3], range(120), size=40), removed([4, 5, 6])]
    assert slices(events, 8, size_bytes=128) == [events]
    assert len(slices(events, 8, size_bytes=129)) == len(slices(events, 8)) == 2


@pytest.mark.parametrize("most", [2, 3, 7])
def test_slices_leave_what_the_whole_batch_leaves(most: int) -> None:
    events = [
        *map(block, range(4)),
        stored([5, 6, 7, 8, 9, 10], PROMPT[16:], 4),
        stored([25, 26], [7] * 8, lora_name="alice"),
        offloaded([1, 2, 3, 4, 5]),
        removed([6, 7, 8, 9, 10, 77, 78]),
        stored([30], [7] * 4, 99),
    ]
    outcomes = []
    for slice_blocks in (1000, most):
        index = Index(MemoryBackend(), IndexSettings(block_size=4))
        index._ingest.slice_blocks = slice_blocks
        outcome = index.ingest(batch(*events), "a", "m")
        (best,) = index.score("m", PROMPT)
        outcomes.append((outcome, index.size(), index.losses.events, best))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] is not None and (outcomes[0][0].added, outcomes[0][0].removed) == (10 + 2 + 5, 5)
    assert outcomes[0][2] == {"unknown_block": 2, "unknown_parent": 1}


def test_spellings_of_a_medium_are_one_tier_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "MOST_MEDIA", 3)
    made = Ingest(MemoryBackend(), request_keys("E", 4))
    for _ in range(2):
        for medium in (None, "", "GPU", "gpu", "Gpu"):
            assert made.tier(medium) == "gpu"
    assert len(made._media) == 3


def test_a_number_stands_for_an_adapter_without_a_name() -> None:
    index = Index(MemoryBackend(), IndexSettings(block_size=4))
    index.ingest(batch(stored([1], PROMPT[:4], lora_id=7), stored([2], PROMPT[:4], lora_id=0)), "a", "m")
    assert index.score("m", PROMPT, lora="7")[0].matched == index.score("m", PROMPT)[0].matched == 1
    assert index.size().blocks == 2
