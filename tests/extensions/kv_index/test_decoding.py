"""Batches off the wire: every layout there was, and everything that is none."""

import math
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.core.engine.kvcache.events import BlockRemoved, BlockStored
from app.core.engine.kvcache.publishing import LayoutName
from app.extensions.kv_index.decoding import (
    MAX_EVENTS,
    BatchTooLargeError,
    PodBatch,
    UnreadableBatchError,
    decode,
    field_losses,
)
from app.extensions.kv_index.ingest import engine_keys
from app.extensions.kv_index.splitting import split_array
from config.untrusted import UntrustedDataError
from tests.core.kvcache.test_wire import MAP, ONE_BLOCK

pack = msgspec.msgpack.encode

REAL = {**dict(ONE_BLOCK), "map": MAP}
"""Bytes of real versions of vLLM (kv-cache specification, 2.4), by the name of their layout."""
GOOD = ["BlockRemoved", [1]]
STORED: dict[str, Any] = {
    "type": "BlockStored",
    "block_hashes": [1],
    "parent_block_hash": None,
    "token_ids": [1],
    "block_size": 1,
    "lora_id": None,
}
ORDER = list(STORED)[1:] + [
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
]
WRONG: dict[str, list[Any]] = {
    "block_hashes": ["x", 5, None, ["x"], ["e235fcc84bc5706d"], [1.5], [None], {}],
    "parent_block_hash": ["x", "e235fcc84bc5706d", 1.5, [1], {}, True],
    "token_ids": ["x", 5, [None], ["a"], [1.5], {"a": 1}],
    "block_size": ["x", None, 1.5, [], True],
    "lora_id": ["x", [], 1.5],
    "medium": [5, [], b"GPU"],
    "lora_name": [5, [], b"x"],
    "extra_keys": ["x", 5, ["bare"], {}],
    "group_idx": ["x", [], 1.5],
    "kv_cache_spec_kind": [5, []],
    "kv_cache_spec_sliding_window": ["x", []],
}
LOOKAHEAD = [[[2, 3]], [[2, 3], []], [2, 3], None, {"block": [2]}, "text"]
"""Tokens behind each block as vLLM 0.33 sends them, and other shapes."""
UNREAD = st.sampled_from(
    ["locality", "ownership", "session_id", "lookahead_token_ids", "later", "newest"]
)
"""Names of fields that the index does not read:

those of vLLM 0.33, and those of versions to come.
"""


@pytest.mark.parametrize("layout", REAL)
def test_recorded_events_of_every_vllm_version_are_decoded(layout: LayoutName) -> None:
    batch = decode(bytes.fromhex(REAL[layout]))
    stored = batch.events[0]
    assert isinstance(stored, BlockStored)
    assert (batch.ts, batch.rank, list(batch.losses)) == (1.5, 0, [])
    assert (stored.block_hashes, stored.parent_block_hash) == ([0xE235FCC84BC5706D], None)
    assert (stored.token_ids, stored.block_size) == ([1, 2, 3, 4], 4)
    assert len(batch.events) == (3 if layout == "map" else 1)


def test_sglang_events_that_omit_trailing_fields_are_decoded() -> None:
    events = [["BlockStored", [-1], None, [1, 2], 2], ["BlockRemoved", [-1]], ["AllBlocksCleared"]]
    batch = decode(pack([1.0, events, None]))
    stored = batch.events[0]
    assert isinstance(stored, BlockStored) and len(batch.events) == 3
    assert engine_keys(stored.block_hashes, "block_hashes") == [(1 << 64) - 1]


def test_batch_may_contain_events_as_arrays_maps_or_packed_bytes() -> None:
    removed = ["BlockRemoved", [1]]
    mapped = {"block_hashes": [2], "type": "BlockRemoved", "later": "field"}
    batch = decode(pack([1, [removed, mapped, pack(removed), pack(mapped)]]))
    assert [event.block_hashes for event in batch.events] == [[1], [2], [1], [2]]  # type: ignore[union-attr]
    assert not batch.losses


def test_llm_d_simulator_event_without_tokens_is_decoded() -> None:
    batch = decode(pack([1.0, [["BlockStored", [5], None, None, 0, None]], 0]))
    stored = batch.events[0]
    assert isinstance(stored, BlockStored) and not stored.token_ids


def is_good(event: object) -> bool:
    """Whether it is the event that `GOOD` stands for."""
    return isinstance(event, BlockRemoved) and (event.block_hashes, event.medium) == ([1], None)


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in WRONG.items() for v in values]
)
def test_field_of_a_wrong_type_drops_only_the_event_that_contains_it(
    field: str, value: Any
) -> None:
    mapped = STORED | {field: value}
    fields = STORED | {name: None for name in ORDER[5:]} | {field: value}
    listed = ["BlockStored", *(fields[name] for name in ORDER)]
    batch = decode(pack([1.0, [GOOD, mapped, listed, GOOD], 0]))
    assert len(batch.events) == 2
    assert batch.losses == [f"bad_{field}"] * 2
    assert f"bad_{field}" in field_losses()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (["Unheard"], "unknown_event"),
        ({"type": "Unheard"}, "unknown_event"),
        ({"type": 5}, "malformed_event"),
        ({"no": "type"}, "malformed_event"),
        ([], "malformed_event"),
        ([5, 6], "malformed_event"),
        (None, "malformed_event"),
        ("BlockRemoved", "malformed_event"),
        (b"garbage", "malformed_event"),
        (pack(pack(pack(GOOD))), "malformed_event"),
        (["BlockStored", [1], None], "bad_token_ids"),
        (["BlockRemoved"], "bad_block_hashes"),
        ({"type": "BlockRemoved"}, "bad_block_hashes"),
    ],
)
def test_malformed_event_does_not_affect_other_events(event: Any, reason: str) -> None:
    batch = decode(pack([1.0, [GOOD, event, GOOD], 0]))
    assert (len(batch.events), batch.losses) == (2, [reason])


@pytest.mark.parametrize(
    "event",
    [
        b"\x82\xa4type\xa2\xff\xfe\x01\x02",
        b"\x82\xa4type\xacBlockRemoved\xacblock_hashes\x91\xa2\xff\xfe",
        b"\x93\xacBlockRemoved\x05\xa2\xff\xfe",
        b"\x92\xa2\xff\xfe\x91\x01",
        b"\x92\xacBlockRemoved" + b"\x91" * 200_000 + b"\xc0",
        b"\x91" * 5_000 + b"\xc0",
        b"\x81\xa1a" * 5_000 + b"\xc0",
        b"\x82\xa4type\xacBlockRemoved\xa5later" + b"\x91" * 200_000 + b"\xd9\x03abc",
    ],
)
def test_event_with_bad_text_or_deep_nests_does_not_affect_its_neighbors(event: bytes) -> None:
    good = pack(GOOD)
    for place in range(3):
        events = [good, good]
        events.insert(place, event)
        batch = decode(b"\x93" + pack(1.0) + b"\x93" + b"".join(events) + b"\x00")
        assert list(map(is_good, batch.events)) == [True, True]
        assert batch.losses == ["malformed_event"]


@pytest.mark.parametrize(
    "value",
    [
        "x" * 31,
        "x" * 32,
        "x" * 300,
        "x" * 70_000,
        b"x" * 5,
        b"x" * 300,
        b"x" * 70_000,
        [1] * 20,
        [1] * 70_000,
        {str(number): number for number in range(20)},
        {str(number): number for number in range(70_000)},
        msgspec.msgpack.Ext(5, b"x"),
        msgspec.msgpack.Ext(5, b"x" * 3),
        msgspec.msgpack.Ext(5, b"x" * 16),
        msgspec.msgpack.Ext(5, b"x" * 300),
        msgspec.msgpack.Ext(5, b"x" * 70_000),
        [-1, -33, -129, -40_000, -(1 << 40), 127, 128, 300, 70_000, 1 << 40, 1.5, True, None],
    ],
)
def test_items_of_every_size_are_split(value: Any) -> None:
    item = pack(value)
    assert list(map(bytes, split_array(memoryview(pack([value, value]))))) == [item, item]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_split_or_rejected(data: bytes) -> None:
    with suppress(UntrustedDataError):
        items = split_array(memoryview(data))
        assert sum(map(len, map(bytes, items))) < len(data)


@pytest.mark.parametrize("ts", ["x", None, math.nan, math.inf, [1], -1.0, 1e308])
def test_batch_without_a_valid_time_keeps_its_events(ts: Any) -> None:
    batch = decode(pack([ts, [GOOD], 0]))
    assert (batch.ts, len(batch.events), batch.losses) == (0.0, 1, ["bad_ts"])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"not msgpack at all",
        pack(5),
        pack({}),
        pack([]),
        pack([1.0]),
        pack([1.0, 5]),
        pack([1.0, [GOOD], "rank"]),
        pack([1.0, [GOOD], 0])[:-3],
        b"\xdd\xff\xff\xff\xff",
        b"\x93\xcb" + bytes(8) + b"\xdd\x7f\xff\xff\xff",
        b"\x91" * 5_000,
    ],
)
def test_payloads_that_are_not_batches_are_rejected(payload: bytes) -> None:
    with pytest.raises(UnreadableBatchError):
        decode(payload)


def test_batch_with_more_events_than_the_limit_is_rejected() -> None:
    assert len(decode(pack([1.0, [None] * MAX_EVENTS, 0])).losses) == MAX_EVENTS
    with pytest.raises(BatchTooLargeError):
        decode(pack([1.0, [None] * (MAX_EVENTS + 1), 0]))


@pytest.mark.parametrize("lookahead", LOOKAHEAD)
def test_lookahead_tokens_of_any_shape_are_accepted(lookahead: Any) -> None:
    batch = decode(pack([1.0, [STORED | {"lookahead_token_ids": lookahead}, GOOD], 0]))
    stored = batch.events[0]
    assert isinstance(stored, BlockStored) and is_good(batch.events[1])
    assert (stored.block_hashes, stored.token_ids, batch.losses) == ([1], [1], [])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_only_unreadable_batch_errors(payload: bytes) -> None:
    with suppress(UnreadableBatchError):
        assert isinstance(decode(payload), PodBatch)


words = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "token_ids"])
numbers = st.integers(-(1 << 63), (1 << 64) - 1)


def lists_and_maps(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["type", *ORDER])
    return st.lists(inner, max_size=7) | st.dictionaries(names, inner, max_size=7)


values = st.recursive(
    st.none() | st.booleans() | numbers | st.floats() | st.binary(max_size=9) | words,
    lists_and_maps,
    max_leaves=30,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(values, max_size=5))
@example([b"\xa1\x80"])  # packed by itself, text that is none
def test_valid_events_of_a_batch_with_invalid_events_are_kept(others: list[Any]) -> None:
    events = [GOOD]
    for other in others:
        events += [other, GOOD]
    batch = decode(pack([1.0, events, 0]))
    assert sum(map(is_good, batch.events)) >= len(others) + 1
    assert len(batch.events) + len(batch.losses) == len(events)


@settings(max_examples=40, deadline=None)
@given(
    fields=st.dictionaries(UNREAD, values, max_size=4),
    items=st.lists(values, max_size=4),
    of_batch=st.lists(values, max_size=2),
)
def test_unknown_event_fields_of_any_name_and_type_are_ignored(
    fields: dict[str, Any], items: list[Any], of_batch: list[Any]
) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": None}
    complete = [
        "BlockStored",
        *((STORED | dict.fromkeys(ORDER[5:]) | STORED)[name] for name in ORDER),
    ]
    later_items = [None] * 4 + items
    events = [STORED | fields, removed | fields, [*complete, *later_items], GOOD]
    batch = decode(pack([1.0, events, 0, *of_batch]))
    assert batch.losses == [] and len(batch.events) == len(events)
    for stored in (batch.events[0], batch.events[2]):
        assert isinstance(stored, BlockStored)
        assert (stored.block_hashes, stored.token_ids, stored.block_size) == ([1], [1], 1)
    assert is_good(batch.events[1]) and is_good(batch.events[3])


@settings(max_examples=60, deadline=None)
@given(st.lists(values, min_size=1, max_size=4))
def test_items_of_an_array_are_split_as_by_the_library(items: list[Any]) -> None:
    data = pack(items)
    raw_items = split_array(memoryview(data))
    assert b"".join(map(bytes, raw_items)) == data[1:]
    expected = msgspec.msgpack.decode(data, type=list[msgspec.Raw])
    assert list(map(bytes, raw_items)) == list(map(bytes, expected))
