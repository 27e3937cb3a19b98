"""A large event says in pieces what it says whole, and only what cannot be used is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache.events import BlockStored, KVEvent
from app.kvindex import large_events
from app.kvindex.batches import Batch
from app.kvindex.decoding import FIELDS, decode_events
from app.kvindex.large_events import MOST_BLOCK_TOKENS, large_event
from tests.kvindex.test_ingest import rejoined

pack = msgspec.msgpack.encode
PIECE_BLOCKS, PIECE_TOKENS = 3, 12


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_events, "PIECE_BLOCKS", PIECE_BLOCKS)
        patch.setattr(large_events, "PIECE_TOKENS", PIECE_TOKENS)
        yield


def read(event: Any) -> tuple[list[KVEvent], list[str]]:
    """The events and losses of one event amid other bytes."""
    raw = pack(event)
    parts = list(large_event(b"\xc1" + raw + b"\x93", 1, 1 + len(raw)))
    found = Batch(0.0, 0, parts)
    assert len(found.events) + len(found.losses) <= len(parts)
    return found.events, found.losses


names = st.one_of(st.integers(0, (1 << 64) - 1), st.binary(min_size=1, max_size=40))
texts = st.sampled_from([None, "", "CPU", "x" * 40])
numbers = st.sampled_from([None, 0, 1, 3])
keys = st.sampled_from([None, [], ["salt"], ["name", ["image", 3]]])


@st.composite
def fields_of_a_store(draw: st.DrawFn) -> dict[str, Any]:
    hashes = draw(st.lists(names, min_size=1, max_size=12))
    size, first = draw(st.integers(0, 14)), draw(st.sampled_from([0, 120, 70_000, 1 << 32]))
    tokens = list(range(first, first + size * len(hashes)))
    return {
        "block_hashes": hashes,
        "parent_block_hash": draw(st.one_of(st.none(), names)),
        "token_ids": tokens or draw(st.sampled_from([None, []])),
        "block_size": size,
        "lora_id": draw(numbers),
        "medium": draw(texts),
        "lora_name": draw(texts),
        "extra_keys": draw(st.one_of(st.none(), st.lists(keys, min_size=len(hashes), max_size=len(hashes)))),
        "group_idx": draw(numbers),
        "kv_cache_spec_kind": draw(texts),
    }


@st.composite
def fields_of_a_removal(draw: st.DrawFn) -> dict[str, Any]:
    hashes = draw(st.lists(names, min_size=1, max_size=12))
    return {"block_hashes": hashes, "medium": draw(texts), "group_idx": draw(numbers)}


def at_its_place(event: KVEvent) -> KVEvent:
    """Where none is told it is the GPU's memory."""
    medium = getattr(event, "medium", None)
    return msgspec.structs.replace(event, medium=medium or "GPU")


@given(
    st.one_of(
        st.tuples(st.just("BlockStored"), fields_of_a_store()),
        st.tuples(st.just("BlockRemoved"), fields_of_a_removal()),
    ),
    st.sampled_from(["map", "array"]),
    st.integers(0, 6),
    st.booleans(),
)
def test_pieces_say_what_the_event_says(
    event: tuple[str, dict[str, Any]], form: str, missing: int, packed_itself: bool
) -> None:
    """Whether it is a map or an array, with fields left out at its end, or packed by itself."""
    name, fields = event
    least = 4 if name == "BlockStored" else 1
    kept = dict(list(fields.items())[: max(least, len(fields) - missing)])
    sent: Any = {"unheard": [1], "type": name, **kept} if form == "map" else [name, *kept.values()]
    (whole,) = decode_events(1, pack(sent)).events
    pieces, losses = read(pack(sent) if packed_itself else sent)
    assert losses == [] and list(map(at_its_place, rejoined([whole], iter(pieces)))) == [at_its_place(whole)]
    size = whole.block_size if isinstance(whole, BlockStored) and whole.token_ids else 0
    most = max(1, min(PIECE_BLOCKS, PIECE_TOKENS // size)) if size else PIECE_BLOCKS
    assert {len(piece.block_hashes) for piece in pieces[:-1]} <= {most}


def store(**changed: Any) -> dict[str, Any]:
    fields = {"block_hashes": [1, 2, 3, 4], "parent_block_hash": None, "token_ids": [7] * 8, "block_size": 2}
    return {"type": "BlockStored", **fields, **changed}


def test_clears_are_one_event() -> None:
    assert [len(each) for each in read(["AllBlocksCleared", "and more"])] == [1, 0]


@pytest.mark.parametrize(
    ("event", "reasons"),
    [
        (store(token_ids=[7] * 7), ["token_count"]),
        (store(token_ids=[7] * 9), ["token_count"]),
        (store(block_size=-2), ["bad_block_size"]),
        (store(block_size=0), ["bad_block_size"]),
        (store(extra_keys=[None] * 3), ["extra_keys_count"]),
        (store(extra_keys=[None] * 5), ["extra_keys_count"]),
        (store(extra_keys=[]), []),
        (store(extra_keys=None), []),
        (store(token_ids=None), []),
        (store(block_hashes=None), ["bad_block_hashes"]),
        (store(parent_block_hash="x"), ["bad_parent_block_hash"]),
        ({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}, []),
        ({"type": "BlockStored", "token_ids": [1], "block_size": 1}, ["bad_block_hashes"]),
        ({"type": "BlockStored", "block_hashes": [1], "block_size": 1}, ["bad_token_ids"]),
        ({"type": "BlockStored", "block_hashes": [1], "token_ids": [1]}, ["bad_block_size"]),
        ({"type": "BlockRemoved"}, ["bad_block_hashes"]),
        (["BlockRemoved"], ["bad_block_hashes"]),
        (["x" * 62], ["unknown_event"]),
        (["x" * 63], ["malformed_event"]),
        ([b"BlockRemoved", [1]], ["malformed_event"]),
        ([], ["malformed_event"]),
        (pack(["BlockRemoved", [1]]) + b"\0", ["malformed_event"]),
        (5, ["malformed_event"]),
    ],
)
def test_what_is_wrong_has_a_name(event: Any, reasons: list[str]) -> None:
    assert read(event)[1] == reasons


@pytest.mark.parametrize("size", [1, MOST_BLOCK_TOKENS])
def test_a_block_has_so_many_tokens_at_most(size: int) -> None:
    assert read(store(block_hashes=[1], token_ids=[7] * size, block_size=size))[1] == []
    larger = MOST_BLOCK_TOKENS + 1
    assert read(store(block_hashes=[1], token_ids=[7] * larger, block_size=larger))[1] == ["bad_block_size"]


def test_blocks_before_a_fault_are_used() -> None:
    pieces, losses = read(["BlockRemoved", [1, 2, 3, 4, 5, 6, 7, "x"], "CPU"])
    assert [piece.block_hashes for piece in pieces] == [[1, 2, 3], [4, 5, 6]]
    assert losses == ["bad_block_hashes"]


def test_a_field_of_one_value_has_so_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_events, "LARGE_BYTES", 10)
    assert read(store(medium="x" * 9))[1] == []
    assert read(store(medium="x" * 10))[1] == ["bad_medium"]


def test_the_items_of_a_piece_have_so_many_bytes_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_events, "PIECE_BYTES", 3 * 12)
    assert [len(event.block_hashes) for event in read(["BlockRemoved", [b"x" * 10] * 5])[0]] == [3, 2]
    larger = [*[b"x" * 10] * 5, b"x" * 11, *[b"x" * 10] * 5]
    pieces, losses = read(["BlockRemoved", larger])
    assert [event.block_hashes for event in pieces] == [larger[:3]] and losses == ["bad_block_hashes"]


def test_the_items_of_a_piece_take_so_many_steps_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_events, "PIECE_STEPS", 8)
    for inside, reasons in ((7, []), (8, ["bad_extra_keys"])):
        event = store(block_hashes=[1], token_ids=[1, 2], extra_keys=[[1] * inside])
        assert read(event)[1] == reasons


def test_among_many_fields_that_nobody_knows_others_run() -> None:
    known = {"type": "BlockRemoved", "block_hashes": [1]}
    for unknown, pauses in ((0, 1), (1, 1), (2, 2), (5, 3)):
        raw = pack({str(number): number for number in range(unknown)} | known)
        parts = list(large_event(raw, 0, len(raw)))
        assert [len(part.events) for part in parts] == [0] * pauses + [1]


def test_a_long_field_is_passed_a_few_values_at_a_time() -> None:
    raw = pack({"unheard": [[1]] * 50_000, "type": "BlockRemoved", "block_hashes": [1]})
    parts = list(large_event(raw, 0, len(raw)))
    assert 20 < len(parts) < 100 and sum(len(part.events) for part in parts) == 1


def test_fields_of_arrays_are_in_their_order() -> None:
    values = [[1], 2, [3, 4], 2, 5, "CPU", "name", [["key"]], 6, "kind"]
    (event,), losses = read(["BlockStored", *values, 99, "later"])
    order = list(FIELDS["BlockStored"])[: len(values)]
    assert [getattr(event, field) for field in order] == values and losses == []
