"""A batch that is taken apart: where its slices end, and that they say what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.events import BlockRemoved
from app.kvindex import batches
from app.kvindex.batches import Batch, Unreadable, decode, decode_whole, decoding
from app.kvindex.decoding import decode_events

pack = msgspec.msgpack.encode
GOOD: list[Any] = ["BlockRemoved", [1]]
SIZE = len(pack(GOOD))


def event_of(size: int) -> list[Any]:
    """A removal that takes so many bytes."""
    return ["BlockRemoved", [b"x" * (size - SIZE - 1)]]


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """No payload is small enough to be decoded whole, and slices are small."""
    bounds = {"WHOLE_BYTES": 0, "SLICE_EVENTS": 5, "SLICE_BYTES": 100, "LARGE_BYTES": 100}
    for name, value in (bounds | {"FEW_VALUES": 3, "MANY_VALUES": 6}).items():
        monkeypatch.setattr(batches, name, value)


def parts(*events: Any) -> list[tuple[int, int]]:
    """Events and losses of each part that has some."""
    found = [(len(part.events), sum(part.losses.values())) for part in decode(pack([1.0, events])).parts]
    return [part for part in found if part != (0, 0)]


@pytest.mark.usefixtures("slices")
@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([GOOD] * 5, [5]),
        ([GOOD] * 11, [5, 5, 1]),
        ([event_of(50)] * 5, [2, 2, 1]),
        ([event_of(49)] * 5, [3, 2]),
        ([event_of(99), GOOD, event_of(100), GOOD], [2, 1, 1]),
        ([GOOD, event_of(100), GOOD], [2, 1]),
        ([GOOD, event_of(101), GOOD], [1, 1, 1]),
        ([event_of(101), event_of(300), GOOD, GOOD], [1, 1, 2]),
        ([], []),
    ],
)
def test_a_slice_has_so_many_events_and_bytes(events: list[Any], expected: list[int]) -> None:
    assert parts(*events) == [(count, 0) for count in expected]
    assert sum(1 for _ in decoding(pack([1.0, events]))) == len(expected)


@pytest.mark.usefixtures("slices")
def test_a_few_values_that_are_no_events_are_among_others() -> None:
    assert parts(GOOD, *[None] * 3, GOOD) == [(2, 3)]
    assert parts(GOOD, *[None] * 9) == [(1, 4), (0, 5)]


@pytest.mark.usefixtures("slices")
def test_many_values_that_are_no_events_are_passed_at_once() -> None:
    assert parts(*[None] * 3, GOOD) == [(1, 3)]
    assert parts(*[None] * 4, GOOD) == [(0, 4), (1, 0)]
    assert parts(*[5] * 6, GOOD) == [(0, 6), (1, 0)]
    assert parts(*[True] * 7, GOOD) == [(0, 6), (1, 1)]
    assert parts(*[[]] * 20) == [(0, 6), (0, 6), (0, 6), (0, 2)]


anything = st.sampled_from(
    [GOOD, event_of(40), event_of(150), {"type": "BlockRemoved", "block_hashes": [2]}, ["AllBlocksCleared"],
     None, 7, [], {}, "text", ["Unheard"], ["BlockRemoved", "x"], ["BlockRemoved", ["x" * 200]], pack(GOOD)]
)  # fmt: skip


@pytest.mark.usefixtures("slices")
@given(st.lists(anything, max_size=40), st.sampled_from([None, 0, 3, 300]))
def test_slices_say_what_the_events_say_together(events: list[Any], rank: int | None) -> None:
    found = decode(pack([2.5, events, rank]))
    whole = decode_events(len(events), b"".join(map(pack, events)))
    assert (found.ts, found.rank) == (2.5, rank or 0)
    assert found.events == whole.events
    assert sorted(found.losses) == sorted(why for why, count in whole.losses.items() for _ in range(count))


@pytest.mark.parametrize("whole_bytes", [0, 1 << 16], ids=["in slices", "whole"])
def test_a_batch_may_end_early_or_have_more_to_say(whole_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "WHOLE_BYTES", whole_bytes)
    for more, rank in (((), 0), ((None,), 0), ((3,), 3), ((3, "later", [GOOD]), 3), ((1 << 63,), 1 << 63)):
        payload = pack([1.0, [GOOD], *more])
        found = decode(payload)
        assert (found.ts, found.rank, found.losses) == (1.0, rank, [])
        assert found.events == [BlockRemoved([1], None)]
        for wrong in (payload + b"\xc0", payload[:-1]):
            with pytest.raises(Unreadable):
                decode(wrong)


@pytest.mark.parametrize("rank", ["x", 1.5, [1], "a text of more than nine bytes"])
def test_a_rank_is_a_number(rank: Any) -> None:
    with pytest.raises(Unreadable):
        decode(pack([1.0, [GOOD], rank]))


@pytest.mark.parametrize("ts", ["a text of more than nine bytes", [1.0], None])
def test_a_time_is_a_number(ts: Any) -> None:
    found = decode(pack([ts, [GOOD, ["Unheard"]], 2]))
    assert (found.ts, found.rank, found.losses) == (0.0, 2, ["bad_ts", "unknown_event"])


def test_a_small_payload_has_no_more_tokens_than_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = pack([1.0, [GOOD, GOOD], 0])
    monkeypatch.setattr(batches, "WHOLE_BYTES", len(payload))
    found = decode_whole(payload)
    assert isinstance(found, Batch)
    assert [(len(part.events), part.most_tokens) for part in found.parts] == [(2, len(payload))]
    assert decode_whole(payload + b"\xc0") is None and decode_whole(pack([1.0, [GOOD, None], 0])) is None
    monkeypatch.setattr(batches, "WHOLE_BYTES", len(payload) - 1)
    assert decode_whole(payload) is None
