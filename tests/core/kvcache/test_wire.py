"""Batches have the bytes of each vLLM; expected ones are those of the KV cache specification,
section 2.4.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from app.core.engine.kvcache.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventBatch,
    KVEvent,
    encoder,
)
from app.core.engine.kvcache.publishing import LayoutName

HASH = 0xE235FCC84BC5706D
STORED = BlockStored(
    [HASH],
    None,
    token_ids=[1, 2, 3, 4],
    block_size=4,
    lora_id=None,
    extra_keys=[None],
    group_idx=0,
    kv_cache_spec_kind="full_attention",
)
REMOVED = BlockRemoved([HASH], group_idx=0)
CLEARED = AllBlocksCleared()

MAP = (
    "93cb3ff800000000000093de000ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cfe235fcc84bc5706d"
    "b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504a76c6f72615f6964"
    "c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b65797391c0a967726f75705f69647800b26b765f636163"
    "68655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68"
    "617368657391cfe235fcc84bc5706da66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b7343"
    "6c656172656400"
)  # fmt: skip

BATCH = "93cb3ff800000000000091"
STORED_TAG = "ab426c6f636b53746f72656491cfe235fcc84bc5706dc0940102030404c0"
GPU = "a3475055"
KIND = "ae66756c6c5f617474656e74696f6e"

ONE_BLOCK: list[tuple[LayoutName, str]] = [
    ("0.9.0", "92cb3ff800000000000091" + "96" + STORED_TAG),
    ("0.9.2", BATCH + "96" + STORED_TAG + "00"),
    ("0.10.2", BATCH + "97" + STORED_TAG + GPU + "00"),
    ("0.14", BATCH + "98" + STORED_TAG + GPU + "c0" + "00"),
    ("0.17", BATCH + "99" + STORED_TAG + GPU + "c0" + "91c0" + "00"),
    ("0.19", BATCH + "99" + STORED_TAG + GPU + "c0" + "91c0" + "00"),
    ("0.20", BATCH + "9a" + STORED_TAG + GPU + "c0" + "91c0" + "00" + "00"),
    ("0.22", BATCH + "9c" + STORED_TAG + GPU + "c0" + "91c0" + "00" + KIND + "c0" + "00"),
]


def written(layout: LayoutName, *events: KVEvent) -> bytes:
    return encoder(layout)(EventBatch(1.5, list(events), 0))


def read(layout: LayoutName, *events: KVEvent) -> Sequence[Any]:
    batch: list[Any] = msgspec.msgpack.decode(written(layout, *events))
    stored_events: Sequence[Any] = batch[1]
    return stored_events


def test_vllm_0_33_encodes_events_as_maps() -> None:
    assert written("map", STORED, REMOVED, CLEARED).hex() == MAP


@pytest.mark.parametrize(("layout", "expected"), ONE_BLOCK, ids=[row[0] for row in ONE_BLOCK])
def test_vllm_versions_before_0_33_encode_events_as_arrays(
    layout: LayoutName, expected: str
) -> None:
    assert written(layout, STORED).hex() == expected


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("0.9.2", ["BlockRemoved", [HASH]]),
        ("0.10.2", ["BlockRemoved", [HASH], "GPU"]),
        ("0.20", ["BlockRemoved", [HASH], "GPU", 0]),
        ("llm-d-inference-sim", ["BlockRemoved", [HASH], "GPU"]),
    ],
)
def test_block_removal_events_have_more_fields_in_later_vllm_versions(
    layout: LayoutName, expected: list[Any]
) -> None:
    assert read(layout, REMOVED, CLEARED) == [expected, ["AllBlocksCleared"]]


def test_vllm_0_17_encodes_images_without_their_offset() -> None:
    event = BlockStored(
        [1, 2, 3],
        9,
        token_ids=[],
        block_size=0,
        lora_id=5,
        medium="CPU",
        lora_name="Alice",
        extra_keys=[["Alice", ["img", -4], "salt"], None, []],
    )
    assert read("0.17", event)[0][6:] == ["CPU", "Alice", [["Alice", "img", "salt"], None, []]]
    assert read("0.19", event)[0][6:] == [
        "CPU",
        "Alice",
        [["Alice", ["img", -4], "salt"], None, []],
    ]
    assert (
        read("0.17", BlockStored([1], None, token_ids=[], block_size=0, lora_id=None))[0][8] is None
    )


def test_stored_event_has_the_nine_items_of_the_llm_d_simulator() -> None:
    name = "ab426c6f636b53746f726564"
    expected = (
        BATCH
        + "99"
        + name
        + "91cfe235fcc84bc5706d"
        + "cf0000000000000000"
        + "9401020304"
        + "04c0"
        + GPU
    )
    assert written("llm-d-inference-sim", STORED).hex() == expected + "c0c0" + "00"
    with_parent = BlockStored(
        [HASH],
        HASH - 1,
        token_ids=[1],
        block_size=1,
        lora_id=3,
        medium="GPU",
        lora_name="Alice",
        extra_keys=[["Alice"]],
    )
    assert read("llm-d-inference-sim", with_parent) == [
        ["BlockStored", [HASH], HASH - 1, [1], 1, 3, "GPU", "Alice", None]
    ]


def test_unset_event_fields_are_omitted_from_the_event_map() -> None:
    stored, removed = read(
        "map", BlockStored([1], None, token_ids=[1], block_size=1, lora_id=None), BlockRemoved([1])
    )
    always = "type block_hashes parent_block_hash token_ids block_size lora_id medium lora_name"
    assert list(stored) == always.split()
    assert list(removed) == ["type", "block_hashes", "medium"]
