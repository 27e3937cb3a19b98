"""What is huge or hostile is worked on in slices, and the answer is the right one.

How long a slice takes is measured by `benchmarks/kv_stalls.py`; here it is counted what one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.kvcache.events import (
    LAYOUTS,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    LayoutName,
    encoder,
)
from app.kvindex import batches
from app.kvindex.backend import BackendUnavailable, Operation, Outcome, Stamp, Steps
from app.kvindex.batches import decode, decoding
from app.kvindex.event_pool import MOST_PODS, Pool, PoolSettings
from app.kvindex.feed import Message
from app.kvindex.holders import Source
from app.kvindex.index import Index, IndexSettings
from app.kvindex.large_events import LARGE_BYTES, MOST_BLOCK_TOKENS
from app.kvindex.memory import MemoryBackend
from app.kvindex.replay_client import Replays
from app.kvindex.scanning import Malformed, skip
from tests.kvindex.engines import PROMPT, batch, removed, stored
from tests.kvindex.held import matched
from tests.kvindex.publisher import Station

pack = msgspec.msgpack.encode
MILLION, NILS = 1_000_000, 15_000_000


def make(backend: MemoryBackend | None = None, **more: Any) -> tuple[Index, Pool]:
    """An index that stops as soon as it can: each step is a slice."""
    index = Index(backend or MemoryBackend(), IndexSettings(block_size=4))
    clock = count().__next__
    pool = Pool(index, Replays(None), PoolSettings(shards=1, **more), clock=lambda: float(clock()))
    return index, pool


def run(pool: Pool) -> Iterator[None]:
    """Go on, one item for each slice."""
    while pool.step(0.0):
        yield


def work_off(pool: Pool) -> int:
    """How many slices it was."""
    return sum(1 for _ in run(pool)) + 1


def events_of(events: bytes, count: int) -> bytes:
    """A batch of events that are packed."""
    return b"\x93" + pack(1000.0) + b"\xdd" + count.to_bytes(4, "big") + events + b"\x00"


@pytest.mark.parametrize("junk", [b"\xc0", b"\x05", b"\xff", b"\x80", b"\x90", b"\xa0", b"\xc3"])
def test_fifteen_megabytes_of_nothing_are_so_many_malformed_events(junk: bytes) -> None:
    index, pool = make()
    pool.put(Message("a", "m", 0, events_of(junk * NILS, NILS)))
    pool.put(Message("a", "m", 1, encoder()(batch(stored([1], PROMPT[:4]), ts=1001.0))))
    assert work_off(pool) > 100
    assert index.losses.events == {"malformed_event": NILS} and index.losses.messages == {}
    assert matched(index, PROMPT) == {"a": 1}


def test_fifteen_megabytes_that_are_no_batch_are_refused() -> None:
    index, pool = make()
    pool.put(Message("a", "m", 0, b"\xc0" * NILS))
    work_off(pool)
    assert index.losses.messages == {"unreadable": 1}


@pytest.mark.slow
def test_a_batch_of_a_million_events_is_applied_a_few_at_a_time() -> None:
    index, pool = make(most_payload_bytes=64 << 20)
    store = encoder("0.9.2")(batch(stored([1, 2], PROMPT[:8]), ts=1000.0))
    pool.put(Message("a", "m", 0, store))
    events = b"".join(pack(["BlockRemoved", [number]]) for number in range(2, MILLION + 2))
    pool.put(Message("a", "m", 1, events_of(events, MILLION)))
    assert work_off(pool) > 1_000
    assert index.losses.events == {"unknown_block": MILLION - 1}
    assert matched(index, PROMPT) == {"a": 1}


def test_no_slice_stores_or_clears_more_than_a_few_thousand_blocks() -> None:
    index, pool = make()
    tokens = list(range(200_000))
    pool.put(Message("a", "m", 0, encoder()(batch(stored(range(1, 50_001), tokens), ts=1000.0))))
    pool.put(Message("a", "m", 1, encoder()(batch(AllBlocksCleared(), ts=1001.0))))
    copies, most = [0], 0
    for _ in run(pool):
        copies.append(index.size().copies)
    most = max(abs(after - before) for before, after in zip(copies, copies[1:], strict=False))
    assert max(copies) == 50_000 and copies[-1] == 0 and most <= 2048
    assert index.losses.events == {}


def test_of_too_many_pods_the_longest_silent_are_forgotten() -> None:
    index, pool = make(most_pods=3)
    for sequence, pod in enumerate("abcade"):  # when d comes, a is not the longest silent
        pool.put(Message(pod, "m", sequence, encoder()(batch(stored([1], PROMPT[:4]), ts=1000.0 + sequence))))
    work_off(pool)
    assert set(matched(index, PROMPT)) == {"a", "d", "e"}
    assert "kvcache_events_pods_evicted_total 2.0" in index.metrics.render({}, {}, {})


@pytest.mark.slow
def test_thirty_eight_thousand_pods_leave_the_latest_ones() -> None:
    pods, (index, pool) = 38_000, make(most_messages=40_000)
    payload = encoder()(batch(stored([1, 2], PROMPT[:8]), ts=1000.0))
    for number in range(pods):
        pool.put(Message(f"pod{number}", "m", 0, payload))
    work_off(pool)
    kept = {f"pod{number}" for number in range(pods - MOST_PODS, pods)}
    assert matched(index, PROMPT) == dict.fromkeys(kept, 2)
    assert set(index.backend.pods()) == kept and len(pool.positions()) == MOST_PODS
    assert index.size().copies == 2 * MOST_PODS and index.losses.messages == {}
    text = index.metrics.render({}, {}, {})
    assert f"kvcache_events_pods_evicted_total {pods - MOST_PODS}.0" in text
    assert pool.size_bytes <= pool.limit_bytes


def test_a_pod_that_was_forgotten_can_come_back() -> None:
    index, pool = make(most_pods=1)
    for sequence, pod in ((0, "a"), (0, "b"), (1, "a")):
        event = stored([1], PROMPT[:4])
        pool.put(Message(pod, "m", sequence, encoder()(batch(event, ts=1000.0 + sequence))))
    work_off(pool)
    assert matched(index, PROMPT) == {"a": 1} and index.losses.messages == {"gap": 1}


def test_a_message_too_large_is_not_kept() -> None:
    index, pool = make(most_payload_bytes=1000)
    pool.put(Message("a", "m", 0, encoder()(batch(stored([1], PROMPT[:4]), ts=1000.0))))
    pool.put(Message("a", "m", 1, bytes(1001)))
    assert pool.shards[0].size_bytes < 1000
    pool.put(Message("a", "m", 2, encoder()(batch(stored([2], PROMPT[4:8], 1), ts=1002.0))))
    work_off(pool)
    assert matched(index, PROMPT) == {"a": 2} and index.losses.messages == {"too_large": 1}


def test_a_large_message_comes_through_a_socket(place: Station) -> None:
    place.listen()
    engine = place.engine("kv@a@m")
    place.meet(engine)
    tokens = [number % 50_000 + 70_000 for number in range(400_000)]
    payload = engine.pack(stored(range(1, 100_001), tokens))
    assert len(payload) > 2_000_000
    engine.send(payload)
    place.until(lambda: place.pool.positions() != [])
    place.until(lambda: place.matched(tokens) == {"a": 100_000})
    assert place.index.losses.events == {}


class Failing(MemoryBackend):
    """Does not answer the n-th call."""

    calls, fails_at = 0, 0

    def applying(self, source: Source, operations: Any, stamp: Stamp | None = None) -> Steps[Outcome]:
        self.calls += 1
        if self.calls == self.fails_at:
            raise BackendUnavailable("away")
        return (yield from super().applying(source, operations, stamp))


@pytest.mark.parametrize("fails_at", [1, 2, 5])
def test_what_is_lost_is_counted_once_though_the_backend_fails_halfway(fails_at: int) -> None:
    backend = Failing()
    backend.fails_at = fails_at
    index, pool = make(backend)
    events: list[KVEvent] = [stored([1], PROMPT[:3]), stored(range(2, 5_002), range(20_000)), removed([9**9])]
    pool.put(Message("a", "m", 0, encoder()(batch(*events, ts=1000.0))))
    for now in range(100):
        pool.step(float(now))
    assert backend.calls > 5 and index.size().copies == 5_000
    assert index.losses.events == {"token_count": 1, "unknown_block": 1}


def test_a_few_long_blocks_are_more_than_a_slice() -> None:
    backend = Failing()
    index, pool = make(backend)
    event = stored(range(1, 21), range(20 * 1024), None, 1024)
    pool.put(Message("a", "m", 0, encoder()(batch(event, ts=1000.0))))
    work_off(pool)
    assert index.size().copies == 20 * 1024 // 4
    assert backend.calls > 1


KEYS: list[Any] = [["alice"], None, [["img", 3], b"\1\2"]]


def large_store(blocks: int, size: int = 4, **more: Any) -> BlockStored:
    tokens = [number * 7919 % 100_000 for number in range(blocks * size)]
    return stored([number | 1 << 40 for number in range(blocks)], tokens, 77, size, **more)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_store_is_several_that_continue_each_other(layout: LayoutName) -> None:
    event = large_store(9_000, extra_keys=KEYS * 3_000, lora_name="alice", medium="CPU", group_idx=1)
    found = decode(encoder(layout)(batch(event)))
    small = large_store(3, extra_keys=KEYS, lora_name="alice", medium="CPU")
    whole = decode(encoder(layout)(batch(small))).events
    parts = [each for each in found.events if isinstance(each, BlockStored)]
    assert len(parts) > 5 and found.losses == [] and isinstance(whole[0], BlockStored)
    assert [key for part in parts for key in part.block_hashes] == event.block_hashes
    assert [token for part in parts for token in part.token_ids] == event.token_ids
    assert [part.parent_block_hash for part in parts[1:]] == [part.block_hashes[-1] for part in parts[:-1]]
    assert parts[0].parent_block_hash == 77 and {part.block_size for part in parts} == {4}
    assert {(part.medium, part.lora_name) for part in parts} == {(whole[0].medium, whole[0].lora_name)}
    if whole[0].extra_keys is not None:
        assert [key for part in parts for key in part.extra_keys or ()] == 3_000 * whole[0].extra_keys


def test_large_removals_offloads_and_clears_are_read_too() -> None:
    hashes = [number | 1 << 40 for number in range(20_000)]
    padding = "x" * 2 * LARGE_BYTES
    events: list[Any] = [
        ["BlockRemoved", hashes, "CPU", 3],
        {"type": "BlockRemoved", "block_hashes": hashes, "unheard": padding},
        ["BlockStored", hashes, None, [], 0, None, "CPU"],
        ["AllBlocksCleared", padding],
        pack(["BlockRemoved", hashes]),
    ]
    found = decode(pack([1.0, events, 0]))
    assert found.losses == []
    removals = [event for event in found.events if isinstance(event, BlockRemoved)]
    assert [key for event in removals for key in event.block_hashes] == hashes * 3
    assert {(event.medium, event.group_idx) for event in removals} == {("CPU", 3), (None, None)}
    offloads = [event for event in found.events if isinstance(event, BlockStored)]
    assert [key for event in offloads for key in event.block_hashes] == hashes
    assert {(event.medium, event.block_size, len(event.token_ids)) for event in offloads} == {("CPU", 0, 0)}
    assert sum(isinstance(event, AllBlocksCleared) for event in found.events) == 1


HASHES, TOKENS = list(range(10_000)), list(range(40_000))


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (["BlockStored", HASHES, None, TOKENS[1:], 4], "token_count"),
        (["BlockStored", HASHES, None, TOKENS, 0], "bad_block_size"),
        (["BlockStored", HASHES, None, TOKENS, "4"], "bad_block_size"),
        (["BlockStored", [1], None, TOKENS, 40_000], "bad_block_size"),
        (["BlockStored", HASHES, None, TOKENS, 4, None, "GPU", None, [None]], "extra_keys_count"),
        (["BlockStored", HASHES, None, "x" * 40_000, 4], "bad_token_ids"),
        (["BlockStored", "x" * 40_000, None, TOKENS, 4], "bad_block_hashes"),
        (["BlockStored", HASHES * 2, None], "bad_block_size"),
        (["BlockStored", HASHES, 1.5, TOKENS, 4], "bad_parent_block_hash"),
        (["BlockStored", HASHES, None, TOKENS, 4, "x"], "bad_lora_id"),
        (["BlockStored", HASHES, None, TOKENS, 4, None, "x" * 40_000], "bad_medium"),
        (["BlockRemoved", "x" * 40_000], "bad_block_hashes"),
        (["BlockRemoved", None, "x" * 40_000], "bad_medium"),
        (["Unheard", HASHES], "unknown_event"),
        ({"type": "Unheard", "more": TOKENS}, "unknown_event"),
        ({"type": 5, "more": TOKENS}, "malformed_event"),
        ({"more": TOKENS}, "malformed_event"),
        ([TOKENS], "malformed_event"),
        (TOKENS, "malformed_event"),
        ("x" * 40_000, "malformed_event"),
        (b"x" * 40_000, "malformed_event"),
        (pack(pack(["BlockRemoved", HASHES])), "malformed_event"),
    ],
)
def test_what_is_wrong_with_a_large_event_has_a_name(event: Any, reason: str) -> None:
    good = ["BlockRemoved", [1]]
    found = decode(pack([1.0, [good, event, good], 0]))
    assert (found.losses, len(found.events)) == ([reason], 2)


def test_of_a_large_event_with_a_fault_in_it_the_blocks_before_are_used() -> None:
    tokens: list[Any] = [*TOKENS[:30_000], "x", *TOKENS[30_001:]]
    found = decode(pack([1.0, [["BlockStored", HASHES, None, tokens, 4]], 0]))
    kept = [token for event in found.events if isinstance(event, BlockStored) for token in event.token_ids]
    assert found.losses == ["bad_token_ids"] and kept == TOKENS[: len(kept)]
    assert 30_000 - MOST_BLOCK_TOKENS <= len(kept) <= 30_000


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=300)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=90) | st.dictionaries(st.text(max_size=40), inner, max_size=20),
    max_leaves=200,
)


@pytest.mark.slow
@given(st.lists(values, max_size=3), st.integers(1, 300))
def test_values_end_where_they_end(items: list[Any], steps: int) -> None:
    data = b"".join(map(pack, items))
    at, left = 0, len(items)
    while left:
        at, left = skip(data, at, left, steps)
    assert at == len(data)
    if data:
        with pytest.raises(Malformed):
            at, left = 0, len(items)
            while left:
                at, left = skip(data[:-1], at, left, steps)


hashes = st.lists(st.integers(0, (1 << 64) - 1) | st.binary(min_size=1, max_size=40), max_size=6)
events = st.one_of(
    st.builds(stored, hashes, st.lists(st.integers(0, 1 << 40), max_size=20), st.none() | st.integers(0, 9)),
    st.builds(removed, hashes, st.sampled_from(["GPU", "CPU"])),
    st.just(AllBlocksCleared()),
)


@settings(max_examples=60)
@given(st.lists(events, max_size=700), st.sampled_from(LAYOUTS), st.integers(0, 3))
def test_in_slices_a_batch_is_what_it_is_whole(sent: list[KVEvent], layout: LayoutName, rank: int) -> None:
    payload = encoder(layout)(batch(*sent, rank=rank, ts=7.5))
    whole = decode(payload)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "WHOLE_BYTES", 0)
        found = decode(payload)
    assert (found.ts, found.rank, found.losses) == (whole.ts, whole.rank, whole.losses)
    assert found.events == whole.events


def test_to_find_the_parts_of_a_batch_others_run_in_between() -> None:
    payload = pack([1.0, [["BlockRemoved", [number]] for number in range(50_000)], 0])
    assert sum(1 for _ in decoding(payload)) > 100


def test_operations_of_a_batch_are_few_at_a_time() -> None:
    applied: list[list[Operation]] = []

    class Noting(MemoryBackend):
        def applying(self, source: Source, operations: Any, stamp: Stamp | None = None) -> Steps[Outcome]:
            applied.append(list(operations))
            return (yield from super().applying(source, operations, stamp))

    index = Index(Noting(), IndexSettings(block_size=4))
    index.ingest(batch(*(stored([n], [n] * 4) for n in range(1, 5_000))), "a", "m", 0)
    index.ingest(
        batch(stored(range(10_000, 20_000), range(40_000)), removed(range(10_000, 20_000))), "a", "m", 1
    )
    sizes = [sum(len(operation.engine) for operation in each) for each in applied]  # type: ignore[union-attr]
    assert sum(sizes) == 4_999 + 20_000 and max(sizes) <= 1024
    assert index.size().copies == 4_999 and index.losses.events == {}
